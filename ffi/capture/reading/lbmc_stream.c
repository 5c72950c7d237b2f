#include "capture/reading/lbmc_stream.h"

enum {
    OPTION_HEAD_BYTES = 4,
    LAST_SQN_REACH = 1 << 16, /* how far behind the last sqn the next found message may be */
    TSNI_TOPIC_AT = 0,
    TSNI_SQN_AT = 4,
};

void um_lbmc_stream_init(um_lbmc_stream *stream, bool aligned)
{
    *stream = (um_lbmc_stream){.is_aligned = aligned};
}

static void begin_message(um_lbmc_stream *stream)
{
    stream->phase = UM_LBMC_STREAM_HEADER;
    stream->unit_bytes = 0;
    stream->has_item = false;
    stream->acknowledgement = 0;
    stream->left = 0;
}

static enum um_dgram_status give_up(um_lbmc_stream *stream, enum um_dgram_status why)
{
    stream->is_aligned = false;
    return why;
}

/* Returns the length of the current unit, as far as it is known. */
static uint32_t unit_wanted(const um_lbmc_stream *stream)
{
    if (stream->phase == UM_LBMC_STREAM_OPTION)
        return stream->unit_bytes < OPTION_HEAD_BYTES ? OPTION_HEAD_BYTES : stream->unit[1];
    if (stream->unit_bytes < UM_LBMC_CONTROL_BYTES)
        return UM_LBMC_CONTROL_BYTES;
    return um_lbmc_has_topic(stream->unit[0] & 0x0f) ? UM_LBMC_HEADER_BYTES : UM_LBMC_CONTROL_BYTES;
}

static void pass_item(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context, const um_lbmc_item *item)
{
    stream->has_item = true;
    if (take != NULL)
        take(context, item);
}

static void pass_acknowledged(um_lbmc_stream *stream, uint32_t first_sqn, uint32_t last_sqn, um_lbmc_take_item *take,
                              void *context)
{
    pass_item(stream, take, context,
              &(um_lbmc_item){.kind = (enum um_lbmc_item_kind)stream->acknowledgement,
                              .topic_index = stream->acknowledged_topic,
                              .first_sqn = first_sqn,
                              .sqn = last_sqn});
}

/* Called when all headers are complete. */
static enum um_dgram_status end_headers(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context)
{
    um_lbmc_message *message = &stream->message;
    message->payload_length = stream->option == UM_LBMC_OPTION_DATA ? stream->left : 0;
    enum um_dgram_status status = um_lbmc_observe_end(message);
    if (status != UM_DGRAM_OK)
        return give_up(stream, status);
    if (um_lbmc_has_topic(message->type)) {
        stream->has_last = true;
        stream->last_topic_index = message->topic_index;
        stream->last_sqn = message->sqn;
    }
    if (stream->acknowledgement != 0 && !stream->has_item) /* without ranges */
        pass_acknowledged(stream, stream->acknowledged_sqn, stream->acknowledged_sqn, take, context);
    if (message->type != UM_LBMC_CONTROL || !stream->has_item)
        pass_item(stream, take, context, &(um_lbmc_item){.kind = UM_LBMC_ITEM_MESSAGE, .message = message});
    uint32_t left = stream->left;
    begin_message(stream);
    stream->left = left;
    if (left > 0)
        stream->phase = UM_LBMC_STREAM_PAYLOAD;
    return UM_DGRAM_OK;
}

static enum um_dgram_status next_unit(um_lbmc_stream *stream, uint8_t option, um_lbmc_take_item *take, void *context)
{
    stream->option = option;
    stream->unit_bytes = 0;
    if (option == UM_LBMC_OPTION_DATA || option == UM_LBMC_OPTION_NONE)
        return end_headers(stream, take, context);
    stream->phase = UM_LBMC_STREAM_OPTION;
    return stream->left < OPTION_HEAD_BYTES ? give_up(stream, UM_DGRAM_HDR) : UM_DGRAM_OK;
}

/* Called when the first bytes of a header are complete. */
static enum um_dgram_status check_header(um_lbmc_stream *stream)
{
    uint8_t type = stream->unit[0] & 0x0f;
    if (stream->unit[0] >> 4 != 0)
        return give_up(stream, UM_DGRAM_VERSION);
    if (!um_lbmc_has_topic(type) && type != UM_LBMC_CONTROL && type != UM_LBMC_END)
        return give_up(stream, UM_DGRAM_TYPE);
    stream->left = um_load_be16(stream->unit + 2);
    return stream->left < unit_wanted(stream) ? give_up(stream, UM_DGRAM_HDR) : UM_DGRAM_OK;
}

static enum um_dgram_status end_header(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context)
{
    stream->message = (um_lbmc_message){.type = stream->unit[0] & 0x0f};
    if (um_lbmc_has_topic(stream->message.type)) {
        stream->message.topic_index = um_load_be32(stream->unit + 4);
        stream->message.sqn = um_load_be32(stream->unit + 8);
    }
    stream->left -= stream->unit_bytes;
    return next_unit(stream, stream->unit[1], take, context);
}

static void pass_tsni(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context)
{
    for (uint32_t i = 0; i < stream->message.tsni_count; i++) {
        const uint8_t *record = stream->message.tsni + (size_t)UM_LBMC_TSNI_RECORD_BYTES * i;
        pass_item(stream, take, context,
                  &(um_lbmc_item){.kind = UM_LBMC_ITEM_TSNI,
                                  .topic_index = um_load_be32(record + TSNI_TOPIC_AT),
                                  .sqn = um_load_be32(record + TSNI_SQN_AT)});
    }
}

/* Passes on an option of persistence. Returns false for any other. */
static bool take_persistence_option(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context)
{
    enum {
        REGISTRATION_BYTES = 28,
        RESPONSE_BYTES = 24,
        ACKNOWLEDGEMENT_BYTES = 20,
        RANGE_BYTES = 12,
        KEEPALIVE_BYTES = 16,
        REFUSED_FLAG = 0x20,
        LOST_FLAG = 0x04,
    };
    const uint8_t *unit = stream->unit;
    um_lbmc_item item = {0};
    if (stream->option == UM_LBMC_OPTION_REGISTRATION && unit[1] == REGISTRATION_BYTES) {
        item = (um_lbmc_item){.kind = UM_LBMC_ITEM_REGISTRATION,
                              .topic_index = um_load_be32(unit + 12),
                              .source_reg_id = um_load_be32(unit + 16)};
    } else if (stream->option == UM_LBMC_OPTION_REGISTRATION_RESPONSE && unit[1] == RESPONSE_BYTES) {
        item = (um_lbmc_item){.kind = unit[2] & REFUSED_FLAG ? UM_LBMC_ITEM_REFUSED : UM_LBMC_ITEM_REGISTERED,
                              .topic_index = um_load_be32(unit + 12),
                              .sqn = um_load_be32(unit + 20)};
    } else if (stream->option == UM_LBMC_OPTION_KEEPALIVE && unit[1] == KEEPALIVE_BYTES) {
        item = (um_lbmc_item){.kind = UM_LBMC_ITEM_KEEPALIVE, .topic_index = um_load_be32(unit + 8)};
    } else if (stream->option == UM_LBMC_OPTION_ACKNOWLEDGEMENT && unit[1] == ACKNOWLEDGEMENT_BYTES) {
        bool is_consumption = unit[3] == 0;
        stream->acknowledged_topic = um_load_be32(unit + 8);
        stream->acknowledged_sqn = um_load_be32(unit + 16);
        stream->acknowledgement = unit[2] & LOST_FLAG ? UM_LBMC_ITEM_LOST : UM_LBMC_ITEM_STABLE;
        if (is_consumption)
            stream->acknowledgement = UM_LBMC_ITEM_CONSUMED;
        return true;
    } else if (stream->option == UM_LBMC_OPTION_RANGED_ACKNOWLEDGEMENT && unit[1] == RANGE_BYTES &&
               stream->acknowledgement != 0) {
        pass_acknowledged(stream, um_load_be32(unit + 4), um_load_be32(unit + 8), take, context);
        return true;
    } else {
        return false;
    }
    pass_item(stream, take, context, &item);
    return true;
}

/* Passes on an option that is an item. */
static void take_option(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context)
{
    enum {
        REQUEST_BYTES = 28,
        RANGE_REQUEST_BYTES = 36,
        RANGE_BYTES = 16,
        SESSION_BYTES = 8,
        INDEX_AT = 4,
        TOPIC_AT = 12
    };
    const uint8_t *unit = stream->unit;
    um_lbmc_item item = {0};
    if (take_persistence_option(stream, take, context))
        return;
    if (stream->option == UM_LBMC_OPTION_MESSAGE_REQUEST && unit[1] == REQUEST_BYTES) {
        item = (um_lbmc_item){
            .kind = UM_LBMC_ITEM_REQUEST, .topic_index = um_load_be32(unit + TOPIC_AT), .sqn = um_load_be32(unit + 16)};
    } else if (stream->option == UM_LBMC_OPTION_RANGE_REQUEST && unit[1] == RANGE_REQUEST_BYTES) {
        item = (um_lbmc_item){.kind = UM_LBMC_ITEM_RANGE_REQUEST,
                              .topic_index = um_load_be32(unit + TOPIC_AT),
                              .sqn = um_load_be32(unit + 24),
                              .request_index = um_load_be32(unit + INDEX_AT)};
    } else if (stream->option == UM_LBMC_OPTION_RANGE && unit[1] == RANGE_BYTES) {
        item = (um_lbmc_item){
            .kind = UM_LBMC_ITEM_RANGE, .sqn = um_load_be32(unit + 4), .request_index = um_load_be32(unit + 12)};
    } else if (stream->option == UM_LBMC_OPTION_TCP_SESSION && unit[1] == SESSION_BYTES) {
        item = (um_lbmc_item){
            .kind = UM_LBMC_ITEM_SESSION, .message = &stream->message, .session_id = um_load_be32(unit + INDEX_AT)};
    } else {
        return;
    }
    pass_item(stream, take, context, &item);
}

static enum um_dgram_status end_option(um_lbmc_stream *stream, um_lbmc_take_item *take, void *context)
{
    um_lbmc_message *message = &stream->message;
    enum um_dgram_status status = um_lbmc_observe_option(stream->option, stream->unit, stream->unit_bytes, message);
    if (status != UM_DGRAM_OK)
        return give_up(stream, status);
    if (stream->option == UM_LBMC_OPTION_TSNI)
        pass_tsni(stream, take, context);
    if (message->type == UM_LBMC_CONTROL)
        take_option(stream, take, context);
    /* The pointers would point into the unit. */
    message->tsni = NULL;
    message->extended = NULL;
    message->request = NULL;
    stream->left -= stream->unit_bytes;
    return next_unit(stream, stream->unit[0], take, context);
}

/* Consumes bytes of the current unit; sets *taken to their number. */
static enum um_dgram_status take_unit(um_lbmc_stream *stream, const uint8_t *data, uint32_t bytes, uint32_t *taken,
                                      um_lbmc_take_item *take, void *context)
{
    uint32_t missing = unit_wanted(stream) - stream->unit_bytes;
    *taken = bytes < missing ? bytes : missing;
    memcpy(stream->unit + stream->unit_bytes, data, *taken);
    bool had_length = stream->unit_bytes >= OPTION_HEAD_BYTES;
    stream->unit_bytes += (uint16_t)*taken;
    if (*taken < missing)
        return UM_DGRAM_OK;
    if (stream->phase == UM_LBMC_STREAM_HEADER) {
        if (!had_length) {
            enum um_dgram_status status = check_header(stream);
            if (status != UM_DGRAM_OK)
                return status;
        }
        return stream->unit_bytes < unit_wanted(stream) ? UM_DGRAM_OK : end_header(stream, take, context);
    }
    if (stream->unit[1] < OPTION_HEAD_BYTES || stream->unit[1] > stream->left)
        return give_up(stream, UM_DGRAM_HDR);
    return stream->unit_bytes < stream->unit[1] ? UM_DGRAM_OK : end_option(stream, take, context);
}

/* ---- finding the next message ---- */

static bool is_after_last(const um_lbmc_stream *stream, const um_lbmc_message *message)
{
    return stream->has_last && um_lbmc_has_topic(message->type) && message->topic_index == stream->last_topic_index &&
           message->sqn - stream->last_sqn < LAST_SQN_REACH;
}

static bool is_message_start(const um_lbmc_stream *stream, const uint8_t *data, uint32_t bytes)
{
    um_lbmc_message message;
    uint32_t at = 0, length;
    for (int whole_count = 0; whole_count < 2; whole_count++) {
        if (um_lbmc_observe(data + at, bytes - at, UM_LBMC_MESSAGE_BYTES_MAX, &message, &length) != UM_DGRAM_OK)
            return false;
        if (whole_count == 0 && is_after_last(stream, &message))
            return true;
        if (length > bytes - at)
            return false;
        at += length;
    }
    return true;
}

/* Returns the number of bytes before the first message found, or `bytes` without one. */
static uint32_t search(const um_lbmc_stream *stream, const uint8_t *data, uint32_t bytes)
{
    uint32_t at = 0;
    while (at < bytes && !is_message_start(stream, data + at, bytes - at))
        at++;
    return at;
}

/* ---- bytes ---- */

enum um_dgram_status um_lbmc_stream_take(um_lbmc_stream *stream, const uint8_t *data, uint32_t bytes,
                                         um_lbmc_take_item *take, void *context, uint64_t *passed_over)
{
    enum um_dgram_status worst = UM_DGRAM_OK;
    for (uint32_t at = 0; at < bytes;) {
        if (!stream->is_aligned) {
            uint32_t before = search(stream, data + at, bytes - at);
            *passed_over += before;
            at += before;
            if (at == bytes)
                break;
            begin_message(stream);
            stream->is_aligned = true;
        }
        uint32_t taken;
        if (stream->phase == UM_LBMC_STREAM_PAYLOAD) {
            taken = bytes - at < stream->left ? bytes - at : stream->left;
            stream->left -= taken;
            if (stream->left == 0)
                begin_message(stream);
        } else {
            enum um_dgram_status status = take_unit(stream, data + at, bytes - at, &taken, take, context);
            if (status != UM_DGRAM_OK)
                worst = status;
        }
        at += taken;
    }
    return worst;
}

bool um_lbmc_stream_lose(um_lbmc_stream *stream, uint32_t bytes)
{
    if (!stream->is_aligned)
        return false;
    if (stream->phase != UM_LBMC_STREAM_PAYLOAD || bytes > stream->left) {
        stream->is_aligned = false;
        return false;
    }
    stream->left -= bytes;
    if (stream->left == 0)
        begin_message(stream);
    return true;
}

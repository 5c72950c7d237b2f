#include "core/wire/lbmc.h"

enum {
    OPTION_HEAD_BYTES = 4,
    IGNORE_FLAG = 0x8000,
    IGNORE_FLAG_BYTE = 0x80,
    IGNORE_SUBTYPE_BYTE = 0x40,
    SEND_TIME_DATA_BYTES = 8,
    CHAIN_HEAD_BYTES = 4,    /* head of the chain option */
    CHAIN_ELEMENT_BYTES = 4, /* head of one of its elements */
    CHAIN_HOT_FAILOVER = 2,
    CHAIN_PROPERTIES = 6,
    CHAIN_PROPERTIES_BYTES = CHAIN_ELEMENT_BYTES + 4,
    CHAIN_END = 255,
    HF_OPTIONAL = 0x4000,
    HF_RESET = 0x2000,
    REQUEST_OVER_TCP = 0,
    FIRST_GROUP = 224, /* lowest first byte of a multicast or reserved address */
};

_Static_assert((int)UM_LBMC_SEND_TIME_BYTES == (int)UM_LBMC_EXTENDED_BYTES + (int)SEND_TIME_DATA_BYTES, "one option");

static enum um_dgram_status decode_fragment(const uint8_t *option, uint32_t option_length, um_lbmc_message *message)
{
    if (option_length != UM_LBMC_FRAGMENT_BYTES)
        return UM_DGRAM_HDR;
    message->flags |= UM_MESSAGE_FRAGMENT;
    message->first_sqn = um_load_be32(option + 4);
    message->offset = um_load_be32(option + 8);
    message->total = um_load_be32(option + 12);
    return UM_DGRAM_OK;
}

static enum um_dgram_status decode_batch(const uint8_t *option, um_lbmc_message *message)
{
    uint16_t flags = um_load_be16(option + 2);
    message->flags |= (flags & 0x0002 ? UM_MESSAGE_BATCH_START : 0) | (flags & 0x0001 ? UM_MESSAGE_BATCH_END : 0);
    return UM_DGRAM_OK;
}

/* Responses are sent to a port of a host, over TCP. A message whose option contains anything else is not a request. */
static enum um_dgram_status decode_request(const uint8_t *option, uint32_t option_length, um_lbmc_message *message)
{
    if (option_length != UM_LBMC_REQUEST_BYTES)
        return UM_DGRAM_HDR;
    uint8_t transport = option[3], network = option[12];
    if (transport != REQUEST_OVER_TCP || um_load_be16(option + 8) == 0 || network == 0 || network >= FIRST_GROUP)
        return UM_DGRAM_OK;
    message->flags |= UM_MESSAGE_REQUEST;
    message->request = option;
    return UM_DGRAM_OK;
}

/* Returns the element of a kind in a chain option, or NULL if there is none or the chain is malformed. */
static const uint8_t *find_element(const uint8_t *option, uint32_t option_length, uint8_t kind)
{
    uint8_t next = option[3];
    for (uint32_t at = CHAIN_HEAD_BYTES; next != CHAIN_END;) {
        if (option_length - at < CHAIN_ELEMENT_BYTES)
            return NULL;
        const uint8_t *element = option + at;
        if (element[1] < CHAIN_ELEMENT_BYTES || element[1] > option_length - at)
            return NULL;
        if (next == kind)
            return element;
        next = element[0];
        at += element[1];
    }
    return NULL;
}

static bool is_number(const uint8_t *element)
{
    return element != NULL && (element[1] == CHAIN_ELEMENT_BYTES + 4 || element[1] == CHAIN_ELEMENT_BYTES + 8);
}

static enum um_dgram_status decode_app_headers(const uint8_t *option, uint32_t option_length, um_lbmc_message *message)
{
    if (is_number(find_element(option, option_length, CHAIN_HOT_FAILOVER))) {
        message->flags |= UM_MESSAGE_HOT_FAILOVER;
        message->hot_failover = option;
    }
    const uint8_t *properties = find_element(option, option_length, CHAIN_PROPERTIES);
    if (properties != NULL && properties[1] == CHAIN_PROPERTIES_BYTES) {
        message->properties_bytes = um_load_be32(properties + CHAIN_ELEMENT_BYTES);
        message->flags |= message->properties_bytes != 0 ? UM_MESSAGE_PROPERTIES : 0;
    }
    return UM_DGRAM_OK;
}

static enum um_dgram_status decode_tsni(const uint8_t *option, uint32_t option_length, um_lbmc_message *message)
{
    uint32_t count = um_load_be16(option + 2) & ~(uint32_t)IGNORE_FLAG;
    if (option_length != UM_LBMC_TSNI_BYTES + UM_LBMC_TSNI_RECORD_BYTES * count)
        return UM_DGRAM_HDR;
    message->tsni = option + UM_LBMC_TSNI_BYTES;
    message->tsni_count = count;
    return UM_DGRAM_OK;
}

static enum um_dgram_status decode_extended(const uint8_t *option, uint32_t option_length, um_lbmc_message *message)
{
    if (option_length < UM_LBMC_EXTENDED_BYTES)
        return UM_DGRAM_HDR;
    message->extended_id = option[3];
    message->extended_subtype = um_load_be16(option + 4);
    message->extended = option + UM_LBMC_EXTENDED_BYTES;
    message->extended_length = option_length - UM_LBMC_EXTENDED_BYTES;
    if (message->extended_id == UM_LBMC_OWN_ID && message->extended_subtype == UM_LBMC_SUBTYPE_SEND_TIME &&
        message->extended_length == SEND_TIME_DATA_BYTES) {
        uint64_t sent_ns = um_load_be64(message->extended);
        message->sent_ns = sent_ns <= INT64_MAX ? (int64_t)sent_ns : 0; /* a later time is invalid */
    }
    return UM_DGRAM_OK;
}

static enum um_dgram_status decode_option(uint8_t type, const uint8_t *option, uint32_t length,
                                          um_lbmc_message *message)
{
    switch (type) {
    case UM_LBMC_OPTION_FRAGMENT:
        return decode_fragment(option, length, message);
    case UM_LBMC_OPTION_BATCH:
        return decode_batch(option, message);
    case UM_LBMC_OPTION_REQUEST:
        return decode_request(option, length, message);
    case UM_LBMC_OPTION_TSNI:
        return decode_tsni(option, length, message);
    case UM_LBMC_OPTION_EXTENDED:
        return decode_extended(option, length, message);
    case UM_LBMC_OPTION_CHAIN:
        return decode_app_headers(option, length, message);
    default:
        /* An unknown option is skipped if its flag allows that. */
        return option[2] & IGNORE_FLAG_BYTE ? UM_DGRAM_OK : UM_DGRAM_HDR;
    }
}

/* The order map stores the distance from the payload back to the option in one byte. */
static enum um_dgram_status check_request(const um_lbmc_message *message)
{
    bool is_near = !(message->flags & UM_MESSAGE_REQUEST) || message->payload - message->request <= UINT8_MAX;
    return is_near ? UM_DGRAM_OK : UM_DGRAM_HDR;
}

static enum um_dgram_status decode_chain(uint8_t next, const uint8_t *data, uint32_t at, uint32_t length,
                                         um_lbmc_message *message)
{
    while (next != UM_LBMC_OPTION_DATA && next != UM_LBMC_OPTION_NONE) {
        if (length - at < OPTION_HEAD_BYTES)
            return UM_DGRAM_HDR;
        const uint8_t *option = data + at;
        uint32_t option_length = option[1];
        if (option_length < OPTION_HEAD_BYTES || option_length > length - at)
            return UM_DGRAM_HDR;
        enum um_dgram_status status = decode_option(next, option, option_length, message);
        if (status != UM_DGRAM_OK)
            return status;
        next = option[0];
        at += option_length;
    }
    message->payload = data + at;
    message->payload_length = next == UM_LBMC_OPTION_DATA ? length - at : 0;
    return check_request(message);
}

enum um_dgram_status um_lbmc_observe_option(uint8_t type, const uint8_t *option, uint32_t length,
                                            um_lbmc_message *message)
{
    bool is_known = type == UM_LBMC_OPTION_FRAGMENT || type == UM_LBMC_OPTION_BATCH || type == UM_LBMC_OPTION_REQUEST ||
                    type == UM_LBMC_OPTION_TSNI || type == UM_LBMC_OPTION_CHAIN || type == UM_LBMC_OPTION_EXTENDED;
    message->has_tag |= type == UM_LBMC_OPTION_HMAC;
    return is_known ? decode_option(type, option, length, message) : UM_DGRAM_OK;
}

/* The same for captures: unknown options are skipped, and the capture may end inside the chain. */
static enum um_dgram_status observe_chain(const uint8_t *data, uint32_t at, uint32_t captured, uint32_t length,
                                          um_lbmc_message *message)
{
    uint8_t next = data[1];
    while (next != UM_LBMC_OPTION_DATA && next != UM_LBMC_OPTION_NONE) {
        if (length - at < OPTION_HEAD_BYTES)
            return UM_DGRAM_HDR;
        if (captured < at + OPTION_HEAD_BYTES)
            return UM_DGRAM_CUT;
        const uint8_t *option = data + at;
        uint32_t option_length = option[1];
        if (option_length < OPTION_HEAD_BYTES || option_length > length - at)
            return UM_DGRAM_HDR;
        if (option_length > captured - at)
            return UM_DGRAM_CUT;
        enum um_dgram_status status = um_lbmc_observe_option(next, option, option_length, message);
        if (status != UM_DGRAM_OK)
            return status;
        next = option[0];
        at += option_length;
    }
    message->payload = data + at;
    message->payload_length = next == UM_LBMC_OPTION_DATA ? length - at : 0;
    return check_request(message);
}

static enum um_dgram_status check_fragment(const um_lbmc_message *message)
{
    bool is_inside = message->offset < message->total && message->payload_length > 0 &&
                     message->payload_length <= message->total - message->offset;
    return is_inside && !um_serial_before(message->sqn, message->first_sqn) ? UM_DGRAM_OK : UM_DGRAM_HDR;
}

enum um_dgram_status um_lbmc_decode(const uint8_t *data, uint32_t available, um_lbmc_message *message, uint32_t *length)
{
    if (available < UM_LBMC_CONTROL_BYTES)
        return UM_DGRAM_SIZE;
    if (data[0] >> 4 != 0)
        return UM_DGRAM_VERSION;
    uint8_t type = data[0] & 0x0f;
    uint32_t message_length = um_load_be16(data + 2);
    uint32_t header_bytes = type == UM_LBMC_CONTROL ? UM_LBMC_CONTROL_BYTES : UM_LBMC_HEADER_BYTES;
    if (type != UM_LBMC_MESSAGE && type != UM_LBMC_CONTROL)
        return UM_DGRAM_TYPE;
    if (message_length > available)
        return UM_DGRAM_SIZE;
    if (message_length < header_bytes)
        return UM_DGRAM_HDR;
    *length = message_length;
    message->type = type;
    message->flags = 0;
    message->tsni = NULL;
    message->tsni_count = 0;
    message->extended = NULL;
    message->extended_length = 0;
    message->sent_ns = 0;
    if (type == UM_LBMC_MESSAGE) {
        message->topic_index = um_load_be32(data + 4);
        message->sqn = um_load_be32(data + 8);
        if (UM_LIKELY(data[1] == UM_LBMC_OPTION_DATA)) {
            message->payload = data + UM_LBMC_HEADER_BYTES;
            message->payload_length = message_length - UM_LBMC_HEADER_BYTES;
            return UM_DGRAM_OK;
        }
    }
    enum um_dgram_status status = decode_chain(data[1], data, header_bytes, message_length, message);
    if (status == UM_DGRAM_OK && (message->flags & UM_MESSAGE_FRAGMENT))
        status = type == UM_LBMC_MESSAGE ? check_fragment(message) : UM_DGRAM_HDR;
    return status;
}

enum um_dgram_status um_lbmc_observe_end(const um_lbmc_message *message)
{
    if (!(message->flags & UM_MESSAGE_FRAGMENT))
        return UM_DGRAM_OK;
    return um_lbmc_has_topic(message->type) ? check_fragment(message) : UM_DGRAM_HDR;
}

enum um_dgram_status um_lbmc_observe(const uint8_t *data, uint32_t captured, uint32_t available,
                                     um_lbmc_message *message, uint32_t *length)
{
    if (available < UM_LBMC_CONTROL_BYTES)
        return UM_DGRAM_SIZE;
    if (captured < UM_LBMC_CONTROL_BYTES)
        return UM_DGRAM_CUT;
    if (data[0] >> 4 != 0)
        return UM_DGRAM_VERSION;
    *message = (um_lbmc_message){.type = data[0] & 0x0f};
    bool has_topic = um_lbmc_has_topic(message->type);
    if (!has_topic && message->type != UM_LBMC_CONTROL && message->type != UM_LBMC_END)
        return UM_DGRAM_TYPE;
    uint32_t header_bytes = has_topic ? UM_LBMC_HEADER_BYTES : UM_LBMC_CONTROL_BYTES;
    *length = um_load_be16(data + 2);
    if (*length > available)
        return UM_DGRAM_SIZE;
    if (*length < header_bytes)
        return UM_DGRAM_HDR;
    if (captured < header_bytes)
        return UM_DGRAM_CUT;
    if (has_topic) {
        message->topic_index = um_load_be32(data + 4);
        message->sqn = um_load_be32(data + 8);
    }
    uint32_t present = captured < *length ? captured : *length;
    enum um_dgram_status status = observe_chain(data, header_bytes, present, *length, message);
    return status == UM_DGRAM_OK ? um_lbmc_observe_end(message) : status;
}

/* Writes the head of an extended option. Returns the place of its data. */
static uint8_t *write_extended_head(uint8_t *option, uint8_t next, uint8_t id, uint16_t subtype, uint32_t length)
{
    option[0] = next;
    option[1] = (uint8_t)(UM_LBMC_EXTENDED_BYTES + length);
    option[2] = IGNORE_FLAG_BYTE | IGNORE_SUBTYPE_BYTE;
    option[3] = id;
    um_store_be16(option + 4, subtype);
    um_store_be16(option + 6, 0);
    return option + UM_LBMC_EXTENDED_BYTES;
}

uint8_t *um_lbmc_write_message(uint8_t *out, const um_lbmc_layout *layout)
{
    bool is_fragment = layout->flags & UM_MESSAGE_FRAGMENT;
    uint16_t batch = layout->flags & (UM_MESSAGE_BATCH_START | UM_MESSAGE_BATCH_END);
    bool has_send_time = layout->sent_ns != 0;
    uint32_t length = um_lbmc_overhead(is_fragment, batch != 0, has_send_time) + layout->payload_length;
    um_debug_assert(length <= UM_LBMC_MESSAGE_BYTES_MAX);
    uint8_t last = has_send_time ? UM_LBMC_OPTION_EXTENDED : UM_LBMC_OPTION_DATA;
    out[0] = UM_LBMC_MESSAGE;
    out[1] = is_fragment ? UM_LBMC_OPTION_FRAGMENT : batch ? UM_LBMC_OPTION_BATCH : last;
    um_store_be16(out + 2, (uint16_t)length);
    um_store_be32(out + 4, layout->topic_index);
    um_store_be32(out + 8, layout->sqn);
    uint8_t *at = out + UM_LBMC_HEADER_BYTES;
    if (is_fragment) {
        at[0] = batch ? UM_LBMC_OPTION_BATCH : last;
        at[1] = UM_LBMC_FRAGMENT_BYTES;
        um_store_be16(at + 2, 0);
        um_store_be32(at + 4, layout->first_sqn);
        um_store_be32(at + 8, layout->offset);
        um_store_be32(at + 12, layout->total);
        at += UM_LBMC_FRAGMENT_BYTES;
    }
    if (batch) {
        at[0] = last;
        at[1] = UM_LBMC_BATCH_BYTES;
        um_store_be16(at + 2, (uint16_t)((batch & UM_MESSAGE_BATCH_START ? 0x0002 : 0) |
                                         (batch & UM_MESSAGE_BATCH_END ? 0x0001 : 0)));
        at += UM_LBMC_BATCH_BYTES;
    }
    if (has_send_time) {
        uint8_t *data = write_extended_head(at, UM_LBMC_OPTION_DATA, UM_LBMC_OWN_ID, UM_LBMC_SUBTYPE_SEND_TIME,
                                            SEND_TIME_DATA_BYTES);
        um_store_be64(data, (uint64_t)layout->sent_ns);
        at = data + SEND_TIME_DATA_BYTES;
    }
    return at;
}

/* Appends an option and writes its head. Returns the option. */
static uint8_t *add_first_option(um_lbmc_first_options *options, uint8_t type, uint32_t length)
{
    um_debug_assert(options->length + length <= UM_LBMC_FIRST_OPTIONS_BYTES_MAX);
    if (options->length == 0)
        options->type = type;
    else
        options->bytes[options->last] = type;
    options->last = options->length;
    options->length += (uint8_t)length;
    uint8_t *option = options->bytes + options->last;
    option[1] = (uint8_t)length;
    option[2] = IGNORE_FLAG_BYTE;
    return option;
}

static void add_request(um_lbmc_first_options *options, const um_request *request)
{
    uint8_t *option = add_first_option(options, UM_LBMC_OPTION_REQUEST, UM_LBMC_REQUEST_BYTES);
    option[3] = REQUEST_OVER_TCP;
    um_store_be32(option + 4, request->index);
    um_store_be16(option + 8, request->port);
    um_store_be32(option + 12, request->ip);
}

static void write_properties_element(uint8_t *element, uint8_t next, uint32_t bytes)
{
    element[0] = next;
    element[1] = CHAIN_PROPERTIES_BYTES;
    um_store_be32(element + CHAIN_ELEMENT_BYTES, bytes);
}

static void write_number_element(uint8_t *element, uint32_t element_bytes, const um_lbmc_hot_failover *number)
{
    element[0] = CHAIN_END;
    element[1] = (uint8_t)element_bytes;
    um_store_be16(element + 2, (uint16_t)((number->is_optional ? HF_OPTIONAL : 0) | (number->is_reset ? HF_RESET : 0)));
    if (number->is_64_bits)
        um_store_be64(element + CHAIN_ELEMENT_BYTES, number->sqn);
    else
        um_store_be32(element + CHAIN_ELEMENT_BYTES, (uint32_t)number->sqn);
}

/* The properties come before the number, because Wireshark's dissector reads the type of every element but the first
 * from the wrong place, and shows a number as bytes anyway. */
static void add_chain(um_lbmc_first_options *options, const um_lbmc_hot_failover *number, uint32_t properties_bytes)
{
    uint32_t of_properties = properties_bytes != 0 ? CHAIN_PROPERTIES_BYTES : 0;
    uint32_t of_number = number == NULL ? 0 : CHAIN_ELEMENT_BYTES + (number->is_64_bits ? 8 : 4);
    uint8_t *option = add_first_option(options, UM_LBMC_OPTION_CHAIN, CHAIN_HEAD_BYTES + of_properties + of_number);
    uint8_t *element = option + CHAIN_HEAD_BYTES;
    option[3] = properties_bytes != 0 ? CHAIN_PROPERTIES : CHAIN_HOT_FAILOVER;
    if (properties_bytes != 0)
        write_properties_element(element, number != NULL ? CHAIN_HOT_FAILOVER : CHAIN_END, properties_bytes);
    if (number != NULL)
        write_number_element(element + of_properties, of_number, number);
}

void um_lbmc_make_first_options(um_lbmc_first_options *options, const um_lbmc_extras *extras)
{
    memset(options, 0, sizeof *options);
    if (extras->request != NULL)
        add_request(options, extras->request);
    if (extras->hot_failover != NULL || extras->properties_bytes != 0)
        add_chain(options, extras->hot_failover, extras->properties_bytes);
}

uint32_t um_lbmc_read_hot_failover(const uint8_t *data, uint32_t length, um_lbmc_hot_failover *number)
{
    if (length < OPTION_HEAD_BYTES || data[1] < OPTION_HEAD_BYTES || data[1] > length)
        return 0;
    const uint8_t *element = find_element(data, data[1], CHAIN_HOT_FAILOVER);
    if (!is_number(element))
        return 0;
    uint16_t flags = um_load_be16(element + 2);
    number->is_64_bits = element[1] == CHAIN_ELEMENT_BYTES + 8;
    number->is_optional = flags & HF_OPTIONAL;
    number->is_reset = flags & HF_RESET;
    number->sqn =
        number->is_64_bits ? um_load_be64(element + CHAIN_ELEMENT_BYTES) : um_load_be32(element + CHAIN_ELEMENT_BYTES);
    uint32_t at = data[1];
    for (uint8_t next = data[0]; next != UM_LBMC_OPTION_DATA;) {
        if (length - at < OPTION_HEAD_BYTES || data[at + 1] < OPTION_HEAD_BYTES || data[at + 1] > length - at)
            return 0;
        next = data[at];
        at += data[at + 1];
    }
    return at;
}

/* Writes the plain message after the space for the options, then moves its header to the front. */
uint8_t *um_lbmc_write_with_options(uint8_t *out, const um_lbmc_layout *layout, const um_lbmc_first_options *options)
{
    if (options->length == 0)
        return um_lbmc_write_message(out, layout);
    uint8_t *plain = out + options->length;
    uint8_t *payload = um_lbmc_write_message(plain, layout);
    memmove(out, plain, UM_LBMC_HEADER_BYTES);
    uint8_t *first = out + UM_LBMC_HEADER_BYTES;
    memcpy(first, options->bytes, options->length);
    first[options->last] = out[1];
    out[1] = options->type;
    uint32_t length = um_load_be16(out + 2) + (uint32_t)options->length;
    um_debug_assert(length <= UM_LBMC_MESSAGE_BYTES_MAX);
    um_store_be16(out + 2, (uint16_t)length);
    return payload;
}

uint32_t um_lbmc_write_tsni(uint8_t *out, const uint32_t *topic_indices, const uint32_t *sqns, uint32_t count)
{
    assert(count >= 1 && count <= UM_LBMC_TSNI_RECORDS_MAX);
    uint32_t option_length = UM_LBMC_TSNI_BYTES + UM_LBMC_TSNI_RECORD_BYTES * count;
    out[0] = UM_LBMC_CONTROL;
    out[1] = UM_LBMC_OPTION_TSNI;
    um_store_be16(out + 2, (uint16_t)(UM_LBMC_CONTROL_BYTES + option_length));
    uint8_t *option = out + UM_LBMC_CONTROL_BYTES;
    option[0] = UM_LBMC_OPTION_NONE;
    option[1] = (uint8_t)option_length;
    um_store_be16(option + 2, (uint16_t)count);
    for (uint32_t i = 0; i < count; i++) {
        um_store_be32(option + UM_LBMC_TSNI_BYTES + 8 * i, topic_indices[i]);
        um_store_be32(option + UM_LBMC_TSNI_BYTES + 8 * i + 4, sqns[i]);
    }
    return UM_LBMC_CONTROL_BYTES + option_length;
}

uint32_t um_lbmc_write_extended(uint8_t *out, uint8_t id, uint16_t subtype, const uint8_t *data, uint32_t length)
{
    assert(length <= 255 - UM_LBMC_EXTENDED_BYTES);
    out[0] = UM_LBMC_CONTROL;
    out[1] = UM_LBMC_OPTION_EXTENDED;
    um_store_be16(out + 2, (uint16_t)(UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + length));
    memcpy(write_extended_head(out + UM_LBMC_CONTROL_BYTES, UM_LBMC_OPTION_NONE, id, subtype, length), data, length);
    return UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + length;
}

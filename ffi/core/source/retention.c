#include "core/source/retention.h"

enum {
    ENTRY_BYTES_MIN = 64, /* message size for which the index is sized */
    ENTRIES_MIN = 1024,
    ENTRIES_MAX = 1 << 26,
    TOPIC_INDEX_AT = 12, /* in a request (option 21) */
};

#define ABSENT INT64_MIN /* the sqn is taken, but its message has not been sent */

static uint32_t entry_count(const um_retention_config *config)
{
    uint64_t wanted = um_power_of_two_at_least(config->size_limit_bytes / ENTRY_BYTES_MIN);
    return wanted < ENTRIES_MIN ? ENTRIES_MIN : wanted > ENTRIES_MAX ? ENTRIES_MAX : (uint32_t)wanted;
}

static void carve(um_retention *retention, um_arena *arena, const um_retention_config *config)
{
    um_retention ignored;
    um_retention *r = retention ? retention : &ignored;
    r->store_bytes = config->size_limit_bytes + UM_LBMC_MESSAGE_BYTES_MAX;
    r->index = um_arena_take(arena, entry_count(config) * sizeof *r->index);
    r->store = um_arena_take(arena, r->store_bytes);
}

size_t um_retention_footprint(const um_retention_config *config)
{
    um_arena arena = {NULL, 0};
    carve(NULL, &arena, config);
    return arena.used_bytes;
}

static um_retention **bucket_of(const um_source_session *session, uint32_t topic_index)
{
    return &session->retentions[(topic_index * 2654435761u) >> (32 - UM_RETENTION_BUCKET_BITS)];
}

void um_retention_init(um_retention *retention, void *memory, const um_retention_config *config,
                       um_source_session *session, uint32_t topic_index, uint32_t initial_sqn)
{
    memset(retention, 0, sizeof *retention);
    um_arena arena = {memory, 0};
    retention->config = *config;
    retention->session = session;
    retention->topic_index = topic_index;
    retention->initial_sqn = retention->first_sqn = retention->next_sqn = initial_sqn;
    carve(retention, &arena, config);
    retention->index_mask = entry_count(config) - 1;
    if (session->retention_count++ == 0)
        session->retained_position = session->indexed_position =
            atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    um_retention **bucket = bucket_of(session, topic_index);
    retention->next = *bucket;
    *bucket = retention;
}

void um_retention_fini(um_retention *retention)
{
    um_retention **link = bucket_of(retention->session, retention->topic_index);
    while (*link != retention)
        link = &(*link)->next;
    *link = retention->next;
    retention->session->retention_count--;
}

static um_retained *entry_of(const um_retention *retention, uint32_t sqn)
{
    return &retention->index[sqn & retention->index_mask];
}

static bool is_overwritten(const um_retention *retention, const um_retained *entry)
{
    return entry->place < 0 && entry->place != ABSENT &&
           retention->store_head - (uint64_t)(-1 - entry->place) > retention->store_bytes;
}

/* ---- dropping the oldest message ---- */

static bool is_drop_due(const um_retention *retention, int64_t now_ns)
{
    if (retention->next_sqn - retention->first_sqn <= 1)
        return false;
    const um_retained *oldest = entry_of(retention, retention->first_sqn);
    if (um_retention_bytes(retention) > retention->config.size_limit_bytes || is_overwritten(retention, oldest))
        return true;
    uint64_t rest_bytes = retention->total_bytes - entry_of(retention, retention->first_sqn + 1)->bytes_before;
    return rest_bytes >= retention->config.size_threshold_bytes &&
           now_ns - oldest->sent_ns >= retention->config.age_threshold_ns;
}

static void drop_old(um_retention *retention, int64_t now_ns)
{
    while (is_drop_due(retention, now_ns))
        retention->first_sqn++;
}

/* ---- called by the sender ---- */

static um_retention *retention_of(const um_source_session *session, const uint8_t *message)
{
    if (message[0] != UM_LBMC_MESSAGE)
        return NULL;
    uint32_t topic_index = um_load_be32(message + 4);
    um_retention *r = *bucket_of(session, topic_index);
    while (r != NULL && r->topic_index != topic_index)
        r = r->next;
    return r;
}

static void index_message(um_retention *retention, const uint8_t *message, int64_t position, int64_t now_ns)
{
    uint32_t sqn = um_load_be32(message + 8);
    if (!retention->has_started) {
        retention->has_started = true;
        retention->first_sqn = retention->next_sqn = sqn;
    }
    if (um_serial_before(sqn, retention->first_sqn)) /* other publishers overtook it, and it is already too old */
        return;
    for (; !um_serial_before(sqn, retention->next_sqn); retention->next_sqn++) {
        if (retention->next_sqn - retention->first_sqn > retention->index_mask)
            retention->first_sqn++;
        *entry_of(retention, retention->next_sqn) = (um_retained){ABSENT, retention->total_bytes, now_ns};
    }
    entry_of(retention, sqn)->place = position;
    retention->total_bytes += um_load_be16(message + 2);
}

typedef void visit_message(um_retention *retention, const uint8_t *message, int64_t position, int64_t now_ns);

static int64_t visit_frames(um_source_session *session, int64_t from, int64_t end, int64_t now_ns, visit_message *visit)
{
    while (from < end) {
        int32_t length = um_log_frame_length(&session->log, from);
        um_debug_assert(length > 0);
        if (!um_log_frame_is_pad(&session->log, from)) {
            const uint8_t *message = um_log_at(&session->log, from) + UM_FRAME_HEADER_BYTES;
            um_retention *retention = retention_of(session, message);
            if (retention != NULL) {
                visit(retention, message, from, now_ns);
                drop_old(retention, now_ns);
            }
        }
        from += (int64_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    return from;
}

void um_retention_on_sent(um_source_session *session, int64_t now_ns)
{
    int64_t sent = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    session->indexed_position = visit_frames(session, session->indexed_position, sent, now_ns, index_message);
}

/* Copies the message to the store, where later messages will eventually overwrite it. */
static void store_message(um_retention *retention, const uint8_t *message, int64_t position, int64_t now_ns)
{
    drop_old(retention, now_ns); /* a message that is dropped needs no copy */
    uint32_t sqn = um_load_be32(message + 8), length = um_load_be16(message + 2);
    if (sqn - retention->first_sqn >= retention->next_sqn - retention->first_sqn ||
        entry_of(retention, sqn)->place != position)
        return;
    uint64_t at = retention->store_head % retention->store_bytes;
    if (at + length > retention->store_bytes) {
        retention->store_head += retention->store_bytes - at;
        at = 0;
    }
    memcpy(retention->store + at, message, length);
    entry_of(retention, sqn)->place = -1 - (int64_t)retention->store_head;
    retention->store_head += length;
}

void um_retention_before_cleaning(um_source_session *session, int64_t position)
{
    session->retained_position =
        visit_frames(session, session->retained_position, position, session->last_sent_ns, store_message);
}

/* ---- requests of receivers ---- */

/* Returns the first retained sqn within the bounds; all later sqns are within them, too. */
static uint32_t search(const um_retention *retention, uint64_t bytes_from, int64_t sent_from_ns)
{
    uint32_t low = 0, high = retention->next_sqn - retention->first_sqn;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const um_retained *entry = entry_of(retention, retention->first_sqn + middle);
        if (entry->bytes_before >= bytes_from && entry->sent_ns >= sent_from_ns)
            high = middle;
        else
            low = middle + 1;
    }
    return retention->first_sqn + low;
}

void um_retention_range(um_retention *retention, const um_range_bounds *bounds, int64_t now_ns, uint32_t *low,
                        uint32_t *high)
{
    drop_old(retention, now_ns);
    uint32_t from = retention->first_sqn, next = retention->next_sqn;
    if (bounds->has_low_sqn && um_serial_before(from, bounds->low_sqn))
        from = um_serial_before(bounds->low_sqn, next) ? bounds->low_sqn : next;
    if (bounds->has_count && next - from > bounds->count)
        from = next - bounds->count;
    if (bounds->has_bytes || bounds->has_age) {
        uint64_t bytes_from =
            bounds->has_bytes && bounds->bytes < retention->total_bytes ? retention->total_bytes - bounds->bytes : 0;
        uint32_t found = search(retention, bytes_from, bounds->has_age ? now_ns - bounds->age_ns : INT64_MIN);
        from = um_serial_before(from, found) ? found : from;
    }
    *low = from;
    *high = next - 1;
}

/* Returns the message of a sqn, or NULL if it is not retained. */
static const uint8_t *message_of(const um_retention *retention, uint32_t sqn)
{
    if (sqn - retention->first_sqn >= retention->next_sqn - retention->first_sqn)
        return NULL;
    const um_retained *entry = entry_of(retention, sqn);
    if (entry->place >= 0)
        return um_log_at(&retention->session->log, entry->place) + UM_FRAME_HEADER_BYTES;
    if (entry->place == ABSENT || is_overwritten(retention, entry))
        return NULL;
    return retention->store + (uint64_t)(-1 - entry->place) % retention->store_bytes;
}

/* Answers one request. Returns false if there is no space. */
static bool answer(um_retention *retention, um_recovery_exchange *exchange, uint32_t sqn, uint32_t request_index,
                   bool *has_sent_range)
{
    const uint8_t *message = message_of(retention, sqn);
    uint32_t space = exchange->capacity - exchange->written;
    uint8_t *out = exchange->out + exchange->written;
    if (message != NULL) {
        uint32_t length = um_load_be16(message + 2);
        if (length > space)
            return false;
        memcpy(out, message, length);
        out[0] = UM_LBMC_RECOVERED;
        exchange->written += length;
        UM_COUNT(retention->served_messages, 1);
    } else if (um_serial_before(sqn, retention->first_sqn)) {
        if (!*has_sent_range && space < UM_RECOVERY_RANGE_BYTES)
            return false;
        if (!*has_sent_range)
            exchange->written +=
                um_recovery_write_range(out, retention->first_sqn, retention->next_sqn - 1, request_index);
        *has_sent_range = true;
        UM_COUNT(retention->unavailable, 1);
    }
    UM_COUNT(retention->requests, 1);
    return true;
}

/* Returns true if the control message is a chain of requests for the topic. */
static bool is_chain(const um_retention *retention, const uint8_t *message, uint32_t length)
{
    uint32_t at = UM_LBMC_CONTROL_BYTES;
    uint8_t next = message[1];
    for (; at + UM_RECOVERY_REQUEST_BYTES <= length && next == UM_LBMC_OPTION_MESSAGE_REQUEST;
         at += UM_RECOVERY_REQUEST_BYTES) {
        const uint8_t *option = message + at;
        if (option[1] != UM_RECOVERY_REQUEST_BYTES || um_load_be32(option + TOPIC_INDEX_AT) != retention->topic_index)
            return false;
        next = option[0];
    }
    return at == length && at > UM_LBMC_CONTROL_BYTES && next == UM_LBMC_OPTION_NONE;
}

bool um_retention_serve(um_retention *retention, um_recovery_exchange *exchange)
{
    bool has_sent_range = false;
    while (exchange->length - exchange->consumed >= UM_LBMC_CONTROL_BYTES) {
        const uint8_t *message = exchange->requests + exchange->consumed;
        uint32_t length = um_load_be16(message + 2);
        if (message[0] != UM_LBMC_CONTROL || length < UM_LBMC_CONTROL_BYTES)
            return false;
        if (message[1] != UM_LBMC_OPTION_MESSAGE_REQUEST || length > exchange->length - exchange->consumed)
            return true; /* for the caller, or incomplete */
        if (length >= UM_LBMC_CONTROL_BYTES + UM_RECOVERY_REQUEST_BYTES &&
            um_load_be32(message + UM_LBMC_CONTROL_BYTES + TOPIC_INDEX_AT) != retention->topic_index)
            return true;
        if (!is_chain(retention, message, length))
            return false;
        uint32_t count = (length - UM_LBMC_CONTROL_BYTES) / UM_RECOVERY_REQUEST_BYTES;
        for (; exchange->skip < count; exchange->skip++) {
            const uint8_t *option = message + UM_LBMC_CONTROL_BYTES + exchange->skip * UM_RECOVERY_REQUEST_BYTES;
            if (!answer(retention, exchange, um_load_be32(option + 16), um_load_be32(option + 4), &has_sent_range))
                return true;
        }
        exchange->skip = 0;
        exchange->consumed += length;
    }
    return true;
}

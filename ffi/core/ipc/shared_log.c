#include "core/ipc/shared_log.h"

/* Copies between the ring and private memory. In a source-paced log a reader may copy what the writer is overwriting;
 * it then discards the copy. ThreadSanitizer, which cannot know that, gets the same copy in atomic bytes. */
#if defined(__SANITIZE_THREAD__)
#define UM_COPIES_ATOMIC_BYTES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UM_COPIES_ATOMIC_BYTES 1
#endif
#endif

#ifdef UM_COPIES_ATOMIC_BYTES
static void copy_in(uint8_t *ring, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        __atomic_store_n(ring + i, from[i], __ATOMIC_RELAXED);
}

static void copy_out(uint8_t *to, const uint8_t *ring, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = __atomic_load_n(ring + i, __ATOMIC_RELAXED);
}
#else
static void copy_in(uint8_t *ring, const uint8_t *from, uint32_t bytes)
{
    memcpy(ring, from, bytes);
}

static void copy_out(uint8_t *to, const uint8_t *ring, uint32_t bytes)
{
    memcpy(to, ring, bytes);
}
#endif

size_t um_shared_log_footprint(uint64_t capacity_bytes)
{
    bool is_valid = capacity_bytes >= UM_SHARED_CAPACITY_MIN && capacity_bytes <= UM_SHARED_CAPACITY_MAX &&
                    capacity_bytes % UM_CACHE_LINE_BYTES == 0;
    return is_valid ? UM_SHARED_LOG_HEADER_BYTES + (size_t)capacity_bytes : 0;
}

static inline uint32_t advance(uint32_t offset_bytes, uint32_t bytes, uint32_t capacity_bytes)
{
    uint64_t next = (uint64_t)offset_bytes + bytes;
    return (uint32_t)(next < capacity_bytes ? next : next - capacity_bytes);
}

/* ---- the writer ---- */

void um_shared_writer_init(um_shared_writer *writer, void *memory, uint32_t capacity_bytes)
{
    assert(um_shared_log_footprint(capacity_bytes) != 0);
    *writer = (um_shared_writer){
        .header = memory, .ring = (uint8_t *)memory + UM_SHARED_LOG_HEADER_BYTES, .capacity_bytes = capacity_bytes};
    writer->header->magic = UM_SHARED_LOG_MAGIC;
    writer->header->capacity_bytes = capacity_bytes;
}

/* Writes at an offset of the ring; returns the offset behind. */
static uint32_t put(um_shared_writer *writer, uint32_t at, const uint8_t *data, uint32_t bytes)
{
    uint32_t to_end = writer->capacity_bytes - at;
    uint32_t first = bytes < to_end ? bytes : to_end;
    copy_in(writer->ring + at, data, first);
    if (UM_UNLIKELY(first < bytes))
        copy_in(writer->ring, data + first, bytes - first);
    return advance(at, bytes, writer->capacity_bytes);
}

void um_shared_writer_append(um_shared_writer *writer, const um_part *parts, uint32_t count, uint32_t skip_bytes,
                             uint32_t length)
{
    um_debug_assert(length <= UM_SHARED_RECORD_BYTES_MAX);
    uint32_t span = um_shared_record_span(length);
    int64_t begun = writer->position + span;
    atomic_store_explicit(&writer->header->begun_position, begun, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    uint64_t head = length;
    uint32_t at = put(writer, writer->offset_bytes, (const uint8_t *)&head, sizeof head);
    at = put(writer, at, parts[0].data + skip_bytes, parts[0].length - skip_bytes);
    for (uint32_t i = 1; i < count; i++)
        at = put(writer, at, parts[i].data, parts[i].length);
    writer->position = begun;
    writer->offset_bytes = advance(writer->offset_bytes, span, writer->capacity_bytes);
    atomic_store_explicit(&writer->header->end_position, begun, memory_order_release);
}

void um_shared_writer_beat(um_shared_writer *writer)
{
    atomic_fetch_add_explicit(&writer->header->heartbeat_count, 1, memory_order_relaxed);
}

void um_shared_writer_end(um_shared_writer *writer)
{
    atomic_store_explicit(&writer->header->is_ended, 1, memory_order_release);
}

void um_shared_peer_init(um_shared_peer *peer, um_shared_reader_page *page, const um_shared_writer *writer)
{
    *peer = (um_shared_peer){.page = page, .position = writer->position};
    atomic_store_explicit(&page->position, writer->position, memory_order_relaxed);
    atomic_store_explicit(&page->wanted_position, -1, memory_order_relaxed);
}

bool um_shared_peer_update(um_shared_peer *peer, const um_shared_writer *writer)
{
    int64_t position = atomic_load_explicit(&peer->page->position, memory_order_acquire);
    if (position < peer->position || position > writer->position)
        return false;
    peer->position = position;
    return true;
}

int64_t um_shared_peer_want(um_shared_peer *peer, const um_shared_writer *writer, uint32_t space_bytes)
{
    int64_t wanted = writer->position + space_bytes - writer->capacity_bytes;
    wanted = wanted > 0 ? wanted : 0;
    atomic_store_explicit(&peer->page->wanted_position, wanted, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return wanted;
}

/* ---- a reader ---- */

bool um_shared_reader_init(um_shared_reader *reader, const void *log, um_shared_reader_page *page,
                           uint32_t capacity_bytes, int64_t position, bool is_source_paced)
{
    const um_shared_log_header *header = log;
    *reader = (um_shared_reader){.header = header,
                                 .ring = (const uint8_t *)log + UM_SHARED_LOG_HEADER_BYTES,
                                 .page = page,
                                 .capacity_bytes = capacity_bytes,
                                 .position = position,
                                 .end_position = position,
                                 .is_source_paced = is_source_paced};
    if (um_shared_log_footprint(capacity_bytes) == 0 || position < 0 || position % UM_SHARED_RECORD_ALIGNMENT != 0 ||
        header->magic != UM_SHARED_LOG_MAGIC || header->capacity_bytes != capacity_bytes)
        return false;
    reader->offset_bytes = (uint32_t)(position % capacity_bytes);
    return true;
}

static void get(const um_shared_reader *reader, uint32_t at, uint8_t *into, uint32_t bytes)
{
    uint32_t to_end = reader->capacity_bytes - at;
    uint32_t first = bytes < to_end ? bytes : to_end;
    copy_out(into, reader->ring + at, first);
    if (UM_UNLIKELY(first < bytes))
        copy_out(into + first, reader->ring, bytes - first);
}

bool um_shared_reader_has_more(um_shared_reader *reader)
{
    if (reader->position == reader->end_position)
        reader->end_position = atomic_load_explicit(&reader->header->end_position, memory_order_acquire);
    return reader->position != reader->end_position;
}

/* Returns true if the writer may have overwritten the record at the reader's position before or while it was copied. */
static bool was_overtaken(const um_shared_reader *reader)
{
    atomic_thread_fence(memory_order_acquire);
    int64_t begun = atomic_load_explicit(&reader->header->begun_position, memory_order_relaxed);
    return begun > reader->position && (uint64_t)begun - (uint64_t)reader->position > reader->capacity_bytes;
}

/* Continues at the end. Only a source-paced writer may overtake. */
static enum um_shared_read skip(um_shared_reader *reader)
{
    int64_t end = atomic_load_explicit(&reader->header->end_position, memory_order_acquire);
    if (!reader->is_source_paced || end < reader->position || end % UM_SHARED_RECORD_ALIGNMENT != 0)
        return UM_SHARED_BROKEN;
    reader->position = reader->end_position = end;
    reader->offset_bytes = (uint32_t)(end % reader->capacity_bytes);
    return UM_SHARED_OVERRUN;
}

enum um_shared_read um_shared_reader_next(um_shared_reader *reader, uint8_t *into, uint32_t *length)
{
    if (!um_shared_reader_has_more(reader))
        return UM_SHARED_EMPTY;
    if (UM_UNLIKELY(reader->end_position < reader->position))
        return UM_SHARED_BROKEN;
    int64_t unread = reader->end_position - reader->position;
    if (UM_UNLIKELY(unread % UM_SHARED_RECORD_ALIGNMENT != 0))
        return UM_SHARED_BROKEN;
    if (UM_UNLIKELY(unread > reader->capacity_bytes))
        return skip(reader);
    uint64_t head;
    get(reader, reader->offset_bytes, (uint8_t *)&head, sizeof head);
    uint32_t body = (uint32_t)head;
    bool is_possible = head <= UM_SHARED_RECORD_BYTES_MAX && um_shared_record_span(body) <= unread;
    if (UM_LIKELY(is_possible))
        get(reader, advance(reader->offset_bytes, sizeof head, reader->capacity_bytes), into, body);
    if (UM_UNLIKELY(was_overtaken(reader)))
        return skip(reader);
    if (UM_UNLIKELY(!is_possible))
        return UM_SHARED_BROKEN;
    uint32_t span = um_shared_record_span(body);
    reader->position += span;
    reader->offset_bytes = advance(reader->offset_bytes, span, reader->capacity_bytes);
    *length = body;
    return UM_SHARED_RECORD;
}

bool um_shared_reader_release(um_shared_reader *reader)
{
    um_shared_reader_page *page = reader->page;
    if (atomic_load_explicit(&page->position, memory_order_relaxed) == reader->position)
        return false;
    atomic_store_explicit(&page->position, reader->position, memory_order_release);
    if (reader->is_source_paced)
        return false;
    atomic_thread_fence(memory_order_seq_cst);
    int64_t wanted = atomic_load_explicit(&page->wanted_position, memory_order_relaxed);
    return UM_UNLIKELY(wanted >= 0) && reader->position >= wanted &&
           atomic_exchange_explicit(&page->wanted_position, -1, memory_order_acq_rel) >= 0;
}

bool um_shared_reader_begin_sleep(um_shared_reader *reader)
{
    atomic_store_explicit(&reader->page->is_sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (!um_shared_reader_has_more(reader))
        return true;
    um_shared_reader_end_sleep(reader);
    return false;
}

bool um_shared_reader_end_sleep(um_shared_reader *reader)
{
    return atomic_exchange_explicit(&reader->page->is_sleeping, 0, memory_order_acq_rel) == 0;
}

uint32_t um_shared_reader_heartbeat(const um_shared_reader *reader)
{
    return atomic_load_explicit(&reader->header->heartbeat_count, memory_order_relaxed);
}

bool um_shared_reader_has_ended(const um_shared_reader *reader)
{
    return atomic_load_explicit(&reader->header->is_ended, memory_order_acquire) != 0;
}

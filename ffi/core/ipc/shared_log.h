/* The shared log of an LBT-IPC session (UX-12): one source process writes records, any number of receiver processes of
 * the host copy them out.
 *
 *   log segment, mapped by the source (written) and by every receiver (read only; the seal forbids any other mapping)
 *
 *   | header: begun, end, heartbeat, ended | ring of `capacity` bytes: | length, body, padding | length, body, ... |
 *
 *   reader page, one for each receiver, mapped by that receiver and the source, both of which write it
 *
 *   | position | is_sleeping | wanted position |
 *
 *   The reader stores its position and sets is_sleeping, which the writer takes; the wanted position is set by the
 *   writer and taken by the reader.
 *
 * A position counts bytes from 0 forever and is a multiple of 8; its place in the ring is the position modulo the
 * capacity, and a record may wrap. All that one side stores and the other reads is a number, never an address.
 *
 *   writer:  begun = position + span; fence; record; end = begun (release)
 *   reader:  end (acquire); copy the record out; fence; begun
 *            If begun - capacity has passed the record, it was overwritten.
 *
 *   source-paced:    the writer never waits. A reader that was overtaken continues at the end: the messages between are
 *                    lost, and the gap in each topic's sequence numbers names them.
 *   receiver-paced:  the writer has the space that the slowest reader has released (um_shared_peer_*).
 *
 * Nothing from the other process is trusted. The reader copies a record before it is looked at, loads each shared value
 * once, and checks lengths and positions against what it can itself know; a log that breaks the rules is
 * UM_SHARED_BROKEN. The writer keeps its own position and never reads one back from the log. It accepts a reader's
 * position only between the last one and its own; with any other value the reader is cut off. A hostile reader can
 * damage only its own page, a hostile writer only its own session.
 *
 * Sleep: the reader sets is_sleeping, fences and checks the log once more. The writer publishes, fences and takes
 * is_sleeping: one of the two sees the other. The wanted position does the same for a writer that waits for space.
 * Waking is the owner's (ffi/io).
 *
 * Threads: one writer and one thread per reader at a time. Memory: the caller's, mapped and sealed before init.
 */
#ifndef UM_CORE_SHARED_LOG_H
#define UM_CORE_SHARED_LOG_H

#include "core/foundation/base.h"
#include "core/foundation/link.h"

enum {
    UM_SHARED_LOG_MAGIC = 0x554d4c47,
    UM_SHARED_LOG_HEADER_BYTES = 4096,
    UM_SHARED_READER_BYTES = 4096,
    UM_SHARED_RECORD_HEADER_BYTES = 8,
    UM_SHARED_RECORD_ALIGNMENT = 8,
    UM_SHARED_RECORD_BYTES_MAX = 65535, /* the longest body */
    UM_SHARED_CAPACITY_MIN = 128 * 1024,
    UM_SHARED_CAPACITY_MAX = 1 << 30,
};

typedef struct um_shared_log_header {
    uint32_t magic;
    uint32_t capacity_bytes;
    UM_CACHE_ALIGNED _Atomic int64_t begun_position;   /* the ring is being written up to this position */
    _Atomic int64_t end_position;                      /* and holds whole records up to this one */
    UM_CACHE_ALIGNED _Atomic uint32_t heartbeat_count; /* session messages (UM-67) */
    _Atomic uint32_t is_ended;
} um_shared_log_header;

typedef struct um_shared_reader_page {
    UM_CACHE_ALIGNED _Atomic int64_t position; /* stored by the reader: it has read everything before */
    UM_CACHE_ALIGNED _Atomic uint32_t is_sleeping;
    UM_CACHE_ALIGNED _Atomic int64_t wanted_position; /* wake the writer from this position on; < 0: it does not wait */
} um_shared_reader_page;

_Static_assert(sizeof(um_shared_log_header) <= UM_SHARED_LOG_HEADER_BYTES, "the header fits its page");
_Static_assert(sizeof(um_shared_reader_page) <= UM_SHARED_READER_BYTES, "the reader's values fit their page");

/* Bytes of the log segment; 0 if the capacity is out of range or no multiple of a cache line. */
size_t um_shared_log_footprint(uint64_t capacity_bytes);

/* Bytes that a record with a body of `length` bytes takes in the ring. */
static inline uint32_t um_shared_record_span(uint32_t length)
{
    return (uint32_t)um_align_up(UM_SHARED_RECORD_HEADER_BYTES + (uint64_t)length, UM_SHARED_RECORD_ALIGNMENT);
}

/* ---- the writer ---- */

typedef struct um_shared_writer {
    um_shared_log_header *header;
    uint8_t *ring;
    uint32_t capacity_bytes;
    uint32_t offset_bytes; /* position modulo capacity */
    int64_t position;
} um_shared_writer;

/* memory: footprint bytes, zeroed. */
void um_shared_writer_init(um_shared_writer *writer, void *memory, uint32_t capacity_bytes);
/* Appends one record and publishes it: `length` bytes, at most UM_SHARED_RECORD_BYTES_MAX, made of these parts without
 * the first skip_bytes of the first one. The caller has made sure of the space. */
void um_shared_writer_append(um_shared_writer *writer, const um_part *parts, uint32_t count, uint32_t skip_bytes,
                             uint32_t length);
/* Shows readers that the writer is alive. */
void um_shared_writer_beat(um_shared_writer *writer);
/* Marks the end of the log: nothing is appended any more. */
void um_shared_writer_end(um_shared_writer *writer);

/* A reader, as the writer sees it. */
typedef struct um_shared_peer {
    um_shared_reader_page *page;
    int64_t position; /* the last one that was accepted */
} um_shared_peer;

/* page: UM_SHARED_READER_BYTES, zeroed. The reader starts at the writer's position. */
void um_shared_peer_init(um_shared_peer *peer, um_shared_reader_page *page, const um_shared_writer *writer);
/* Loads the reader's position. Returns false if it is not possible: the reader is to be cut off. */
bool um_shared_peer_update(um_shared_peer *peer, const um_shared_writer *writer);
/* Bytes that the writer may append without overtaking the reader. */
static inline uint32_t um_shared_peer_space(const um_shared_peer *peer, const um_shared_writer *writer)
{
    return writer->capacity_bytes - (uint32_t)(writer->position - peer->position);
}
/* Asks the reader to wake the writer once `space_bytes`, at most the capacity, are free, and returns the position that
 * it has then reached. The caller updates the peer once more, since the reader may have released them meanwhile. */
int64_t um_shared_peer_want(um_shared_peer *peer, const um_shared_writer *writer, uint32_t space_bytes);
/* Returns true if the reader sleeps and the caller is to wake it, once per sleep. After um_shared_writer_fence. */
static inline bool um_shared_peer_take_sleep(um_shared_peer *peer)
{
    return UM_UNLIKELY(atomic_load_explicit(&peer->page->is_sleeping, memory_order_relaxed) != 0) &&
           atomic_exchange_explicit(&peer->page->is_sleeping, 0, memory_order_acq_rel) != 0;
}
/* Orders what was appended before the loads of is_sleeping. */
static inline void um_shared_writer_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* ---- a reader ---- */

typedef struct um_shared_reader {
    const um_shared_log_header *header;
    const uint8_t *ring;
    um_shared_reader_page *page;
    uint32_t capacity_bytes;
    uint32_t offset_bytes;
    int64_t position;
    int64_t end_position; /* as last loaded */
    bool is_source_paced; /* the writer may overtake */
} um_shared_reader;

enum um_shared_read {
    UM_SHARED_EMPTY = 0,
    UM_SHARED_RECORD,  /* *length bytes were copied */
    UM_SHARED_OVERRUN, /* the writer overtook: records are lost, and reading continues at the end */
    UM_SHARED_BROKEN,  /* no writer that keeps the rules leaves the log like this */
};

/* log: footprint bytes, mapped for reading; `position` as the writer announced it. Returns false if the header or the
 * position contradicts the capacity. */
bool um_shared_reader_init(um_shared_reader *reader, const void *log, um_shared_reader_page *page,
                           uint32_t capacity_bytes, int64_t position, bool is_source_paced);
/* Copies the next record into UM_SHARED_RECORD_BYTES_MAX bytes of private memory. */
enum um_shared_read um_shared_reader_next(um_shared_reader *reader, uint8_t *into, uint32_t *length);
/* Returns true if a record, or anything else that _next reports, is waiting. */
bool um_shared_reader_has_more(um_shared_reader *reader);
/* Releases the space of all that was read. Returns true if the caller is to wake the writer, once per wait. */
bool um_shared_reader_release(um_shared_reader *reader);
/* Announces that the reader will sleep. Returns false, and takes it back, if the log is not empty; the writer may have
 * sent a wake-up meanwhile. */
bool um_shared_reader_begin_sleep(um_shared_reader *reader);
/* Returns true if the writer has taken the announcement: its wake-up is on the way. */
bool um_shared_reader_end_sleep(um_shared_reader *reader);
/* Returns the count of session messages, which changes while the source lives and is idle. */
uint32_t um_shared_reader_heartbeat(const um_shared_reader *reader);
/* Returns true if the source has ended the log. Records may still be unread. */
bool um_shared_reader_has_ended(const um_shared_reader *reader);

#endif

/* One file, because links and writer share the protocol of one ring. */
#include "capture/writing/tap.h"

#include <linux/bpf.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "capture/writing/datagram_frame.h"
#include "os/clock.h"

enum {
    RECORD_ALIGNMENT = 128,
    RING_MINIMUM_BYTES = 1 << 20,
    DATAGRAM_MAX_BYTES = 65536,
    IDLE_SLEEP_NS = 1000000,
    FLUSH_SLEEPS = 100,   /* sleeps in a row before the file is flushed */
    WRITER_NICENESS = 15, /* the data path has priority */
};

/* The header of a datagram, or of a run of datagrams, in the ring. */
typedef struct tap_record {
    _Atomic uint32_t claimed_bytes; /* with this header; 0: not written yet */
    uint32_t captured_bytes;
    uint32_t length; /* of the datagram before truncation */
    uint32_t segment_length;
    int64_t time_ns;
    uint64_t drop_count; /* datagrams lost before this record was claimed */
    uint32_t queue_number;
    um_address from;
    um_address to;
    bool is_padding;
    bool is_sent;
} tap_record;

_Static_assert(sizeof(tap_record) <= RECORD_ALIGNMENT, "a header is two cache lines");

/* ---- the data path's side ---- */

static bool enter(um_tap *tap)
{
    if (!um_tap_is_running(tap))
        return false;
    atomic_fetch_add_explicit(&tap->users, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&tap->running, memory_order_seq_cst))
        return true;
    atomic_fetch_sub_explicit(&tap->users, 1, memory_order_release);
    return false;
}

static void leave(um_tap *tap)
{
    atomic_fetch_sub_explicit(&tap->users, 1, memory_order_release);
}

static tap_record *record_at(const um_tap *tap, uint64_t position)
{
    return (tap_record *)(tap->ring + (position & (tap->ring_bytes - 1)));
}

/* Returns space for a record of `bytes`, or NULL if the ring is full. A record is contiguous, so space before the
 * ring's end that is too small is skipped. */
static tap_record *claim(um_tap *tap, uint32_t bytes)
{
    uint64_t tail = atomic_load_explicit(&tap->tail, memory_order_relaxed), skipped;
    do {
        uint64_t to_end = tap->ring_bytes - (tail & (tap->ring_bytes - 1));
        skipped = to_end < bytes ? to_end : 0;
        uint64_t used = tail - atomic_load_explicit(&tap->head, memory_order_acquire);
        if (used + skipped + bytes > tap->ring_bytes)
            return NULL;
    } while (!atomic_compare_exchange_weak_explicit(&tap->tail, &tail, tail + skipped + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    if (skipped > 0) {
        tap_record *padding = record_at(tap, tail);
        padding->is_padding = true;
        atomic_store_explicit(&padding->claimed_bytes, (uint32_t)skipped, memory_order_release);
    }
    return record_at(tap, tail + skipped);
}

static void drop(um_tap *tap, uint64_t count)
{
    atomic_fetch_add_explicit(&tap->dropped_count, count, memory_order_relaxed);
}

/* Copies one datagram into the ring; `record` describes it, except for the fields that the ring fills in. */
static void append(um_tap *tap, tap_record record, const um_part *parts, uint32_t part_count)
{
    uint32_t bytes = (uint32_t)um_align_up(RECORD_ALIGNMENT + (uint64_t)record.captured_bytes, RECORD_ALIGNMENT);
    tap_record *claimed = claim(tap, bytes);
    if (claimed == NULL) {
        drop(tap, um_datagrams_in(record.length, record.segment_length));
        return;
    }
    uint8_t *out = (uint8_t *)claimed + RECORD_ALIGNMENT;
    for (uint32_t i = 0, left = record.captured_bytes; i < part_count && left > 0; i++) {
        uint32_t part = parts[i].length < left ? parts[i].length : left;
        memcpy(out, parts[i].data, part);
        out += part;
        left -= part;
    }
    claimed->captured_bytes = record.captured_bytes;
    claimed->length = record.length;
    claimed->segment_length = record.segment_length;
    claimed->time_ns = record.time_ns;
    claimed->queue_number = record.queue_number;
    claimed->drop_count = atomic_load_explicit(&tap->dropped_count, memory_order_relaxed);
    claimed->from = record.from;
    claimed->to = record.to;
    claimed->is_padding = false;
    claimed->is_sent = record.is_sent;
    atomic_store_explicit(&claimed->claimed_bytes, bytes, memory_order_release);
}

static uint32_t snapped(const um_tap *tap, uint32_t length)
{
    return tap->snap_bytes != 0 && length > tap->snap_bytes ? tap->snap_bytes : length;
}

static void append_one(um_tap *tap, tap_record record, const um_part *parts, uint32_t part_count)
{
    record.captured_bytes = snapped(tap, record.length);
    append(tap, record, parts, part_count);
}

static void append_received(um_tap *tap, const um_rx *rx)
{
    um_part whole = {rx->data, rx->length};
    tap_record record = {.length = rx->length,
                         .time_ns = rx->received_ns,
                         .queue_number = rx->queue_number,
                         .from = rx->from,
                         .to = rx->to};
    uint32_t segment = rx->segment_length != 0 ? rx->segment_length : rx->length;
    if (rx->length <= segment) {
        append_one(tap, record, &whole, 1);
        return;
    }
    if (snapped(tap, segment) == segment) {
        record.captured_bytes = rx->length;
        record.segment_length = rx->segment_length;
        append(tap, record, &whole, 1);
        return;
    }
    for (uint32_t at = 0; at < rx->length; at += segment) {
        record.length = rx->length - at < segment ? rx->length - at : segment;
        um_part part = {rx->data + at, record.length};
        append_one(tap, record, &part, 1);
    }
}

void um_tap_received(um_tap *tap, const um_rx *batch, uint32_t count)
{
    if (!enter(tap))
        return;
    for (uint32_t i = 0; i < count; i++)
        append_received(tap, &batch[i]);
    leave(tap);
}

void um_tap_datagram(um_tap *tap, bool sent, um_address from, um_address to, const uint8_t *data, uint32_t length,
                     int64_t time_ns)
{
    if (length > DATAGRAM_MAX_BYTES || !enter(tap))
        return;
    um_part part = {data, length};
    tap_record record = {.length = length, .time_ns = time_ns, .from = from, .to = to, .is_sent = sent};
    append_one(tap, record, &part, 1);
    leave(tap);
}

/* ---- the link in front of another ---- */

static void show(um_tap_link *link, um_address to, const um_tx *batch, int count, int64_t time_ns)
{
    if (count <= 0 || !enter(link->tap))
        return;
    tap_record record = {.time_ns = time_ns, .from = link->local, .to = to, .is_sent = true};
    for (int i = 0; i < count; i++) {
        record.length = batch[i].length;
        append_one(link->tap, record, batch[i].parts, batch[i].part_count);
    }
    leave(link->tap);
}

static int send_batch(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_tap_link *link = (um_tap_link *)base;
    if (!um_tap_is_running(link->tap))
        return link->next->ops->send(link->next, to, batch, count);
    /* Reclaimed frames must not be read any more, so the tap uses copies. */
    um_tx unborrowed[UM_SEND_BATCH_MAX];
    um_debug_assert(count <= UM_SEND_BATCH_MAX);
    for (uint32_t i = 0; i < count; i++) {
        unborrowed[i] = batch[i];
        unborrowed[i].borrowed = NULL;
    }
    int64_t time_ns = um_clock_wall_ns();
    int sent = link->next->ops->send(link->next, to, unborrowed, count);
    show(link, to, unborrowed, sent, time_ns);
    return sent;
}

static uint32_t borrow_frames(um_link *base, uint8_t **pieces, uint32_t count)
{
    um_link *next = ((um_tap_link *)base)->next;
    return next->ops->borrow(next, pieces, count);
}

static void return_frames(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    um_link *next = ((um_tap_link *)base)->next;
    next->ops->return_frames(next, pieces, count);
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_tap_link *link = (um_tap_link *)base;
    int64_t time_ns = um_clock_wall_ns();
    int sent = link->next->ops->send_oversize(link->next, to, datagram);
    show(link, to, datagram, sent, time_ns);
    return sent;
}

void um_tap_link_init(um_tap_link *link, um_link *next, um_tap *tap, um_address local)
{
    static const um_link_ops OPS = {send_batch, send_oversize, borrow_frames, return_frames};
    *link = (um_tap_link){.base = {.ops = &OPS,
                                   .is_faster_in_one_piece = next->is_faster_in_one_piece,
                                   .borrow_bytes = next->borrow_bytes},
                          .next = next,
                          .tap = tap,
                          .local = local};
}

/* ---- the writer's side ---- */

static void write_datagram(um_tap *tap, const tap_record *record, const uint8_t *data, uint32_t captured_bytes,
                           uint32_t length)
{
    if (!tap->has_file) {
        tap->fileless_count++;
        return;
    }
    uint8_t header[UM_IPV6_UDP_HEADER_BYTES];
    uint32_t header_bytes = um_datagram_frame(header, record->from, record->to, tap->ttl, tap->identification++, data,
                                              captured_bytes, length);
    um_pcapng_packet packet = {.time_ns = record->time_ns,
                               .wire_bytes = header_bytes + length,
                               .direction = record->is_sent ? UM_PCAPNG_OUTBOUND : UM_PCAPNG_INBOUND,
                               .drop_count = record->drop_count - tap->seen_drop_count,
                               .queue = UM_PCAPNG_UNKNOWN,
                               .verdict = UM_PCAPNG_UNKNOWN};
    if (record->queue_number != 0) { /* only XDP_REDIRECT puts a frame into a ring */
        packet.queue = record->queue_number - 1;
        packet.verdict = XDP_REDIRECT;
    }
    if (record->drop_count < tap->seen_drop_count) /* claimed before the count of a record written earlier */
        packet.drop_count = 0;
    tap->seen_drop_count += packet.drop_count;
    um_pcapng_write(&tap->writer, &packet, header, header_bytes, data, captured_bytes);
}

static void write_record(um_tap *tap, const tap_record *record)
{
    const uint8_t *data = (const uint8_t *)record + RECORD_ALIGNMENT;
    if (record->segment_length == 0) {
        write_datagram(tap, record, data, record->captured_bytes, record->length);
        return;
    }
    for (uint32_t at = 0; at < record->length; at += record->segment_length) {
        uint32_t left = record->length - at;
        uint32_t length = left < record->segment_length ? left : record->segment_length;
        write_datagram(tap, record, data + at, length, length);
    }
}

/* Counts of all files, including the open one. After a failed write, only written datagrams count. */
static um_tap_counters count_files(const um_tap *tap)
{
    um_tap_counters found = tap->ended;
    const um_pcapng_writer *writer = &tap->writer;
    if (tap->has_file) {
        uint64_t written_count = writer->error == 0 ? writer->packet_count : writer->flushed_count;
        found.written_count += written_count;
        found.dropped_count += writer->packet_count - written_count;
        found.file_bytes += writer->file_bytes;
        found.file_count++;
        if (found.error == 0)
            found.error = writer->error;
    }
    return found;
}

static void publish_counters(um_tap *tap)
{
    um_tap_counters found = count_files(tap);
    atomic_store_explicit(&tap->written_count, found.written_count, memory_order_relaxed);
    atomic_store_explicit(&tap->discarded_count, found.dropped_count + tap->fileless_count, memory_order_relaxed);
    atomic_store_explicit(&tap->error, found.error, memory_order_relaxed);
    atomic_store_explicit(&tap->file_bytes, found.file_bytes, memory_order_relaxed);
    atomic_store_explicit(&tap->file_count, found.file_count, memory_order_relaxed);
}

/* ---- files ---- */

static int begin_file(um_tap *tap, const char *path)
{
    int64_t now_ns = um_clock_wall_ns();
    int result = um_pcapng_open(&tap->writer, path != NULL ? path : um_file_series_begin(&tap->series, now_ns));
    tap->has_file = result == 0;
    if (result != 0)
        return result;
    um_pcapng_add_interface(&tap->writer, tap->interface, UM_PCAPNG_LINK_RAW, tap->interface_snap_bytes, NULL);
    tap->file_opened_ns = now_ns;
    tap->file_due_ns = um_clock_ns() + tap->rotate_ns;
    tap->file_drop_base = tap->seen_drop_count;
    return 0;
}

/* Returns true if the last file of a series, started by rotation, has neither datagrams nor drops. */
static bool is_needless(const um_tap *tap, uint64_t drop_count)
{
    return tap->is_series && tap->ended.file_count > 0 && tap->writer.packet_count == 0 && tap->writer.error == 0 &&
           drop_count == tap->file_drop_base;
}

static int drop_file(um_tap *tap)
{
    int closed = um_pcapng_close(&tap->writer), dropped = um_file_series_drop(&tap->series);
    tap->has_file = false;
    if (tap->ended.error == 0)
        tap->ended.error = closed != 0 ? closed : dropped;
    return tap->ended.error;
}

/* drop_count: datagrams dropped by the ring so far. */
static int end_file(um_tap *tap, uint64_t drop_count)
{
    if (!tap->has_file)
        return 0;
    if (is_needless(tap, drop_count))
        return drop_file(tap);
    um_pcapng_statistics statistics = {.start_ns = tap->file_opened_ns, .end_ns = um_clock_wall_ns()};
    statistics.dropped_count = drop_count - tap->file_drop_base;
    statistics.received_count = tap->writer.packet_count + statistics.dropped_count;
    um_pcapng_write_statistics(&tap->writer, &statistics);
    int result = um_pcapng_close(&tap->writer);
    tap->ended = count_files(tap);
    tap->has_file = false;
    int renamed = tap->is_series ? um_file_series_end(&tap->series) : 0;
    if (result == 0)
        result = renamed;
    if (tap->ended.error == 0)
        tap->ended.error = result;
    return tap->ended.error;
}

/* A failed file is the last: later records are lost. */
static void rotate(um_tap *tap)
{
    const um_pcapng_writer *writer = &tap->writer;
    if (!tap->is_series || !tap->has_file || writer->packet_count == 0 || writer->error != 0)
        return;
    bool is_full = tap->rotate_bytes != 0 && writer->file_bytes >= tap->rotate_bytes;
    bool is_old = tap->rotate_ns != 0 && um_clock_ns() >= tap->file_due_ns;
    if (!is_full && !is_old)
        return;
    int result = end_file(tap, tap->seen_drop_count);
    if (result == 0)
        result = begin_file(tap, NULL);
    if (tap->ended.error == 0)
        tap->ended.error = result;
    publish_counters(tap);
}

/* ---- the writer's thread ---- */

/* Records start at cache lines: only the first word of each must be zero when it is claimed again. */
static void release(um_tap *tap, uint64_t head, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += RECORD_ALIGNMENT)
        atomic_store_explicit(&record_at(tap, head + at)->claimed_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&tap->head, head + bytes, memory_order_release);
}

/* Writes the oldest record. Returns false if there is none. */
static bool write_next(um_tap *tap)
{
    uint64_t head = atomic_load_explicit(&tap->head, memory_order_relaxed);
    tap_record *record = record_at(tap, head);
    uint32_t bytes = atomic_load_explicit(&record->claimed_bytes, memory_order_acquire);
    if (bytes == 0)
        return false;
    if (!record->is_padding) {
        rotate(tap);
        write_record(tap, record);
        publish_counters(tap);
    }
    release(tap, head, bytes);
    return true;
}

static void *run(void *argument)
{
    um_tap *tap = argument;
    pthread_setname_np(pthread_self(), "umstack-tap");
    setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICENESS);
    struct timespec idle = {0, IDLE_SLEEP_NS};
    for (uint32_t sleeps = 0;;) {
        bool ending = !atomic_load_explicit(&tap->running, memory_order_acquire) &&
                      atomic_load_explicit(&tap->users, memory_order_acquire) == 0;
        if (write_next(tap)) {
            sleeps = 0;
            continue;
        }
        if (ending)
            return NULL;
        rotate(tap);
        if (++sleeps % FLUSH_SLEEPS == 0 && tap->has_file)
            um_pcapng_flush(&tap->writer);
        nanosleep(&idle, NULL);
    }
}

/* ---- starting and stopping ---- */

static int open_files(um_tap *tap, const um_tap_config *config)
{
    tap->is_series = config->file_name != NULL;
    tap->has_file = false;
    tap->rotate_bytes = config->rotate_bytes;
    tap->rotate_ns = config->rotate_ns;
    tap->seen_drop_count = tap->fileless_count = 0;
    tap->ended = (um_tap_counters){0};
    tap->interface_snap_bytes = config->snap_bytes;
    strncpy(tap->interface, config->interface, sizeof tap->interface - 1);
    if (!tap->is_series)
        return begin_file(tap, config->path);
    um_file_series_config series = {config->path, config->file_name, ".pcapng", config->keep_files};
    int result = um_file_series_open(&tap->series, &series);
    return result == 0 ? begin_file(tap, NULL) : result;
}

static int close_files(um_tap *tap, uint64_t drop_count)
{
    int result = end_file(tap, drop_count);
    um_file_series_close(&tap->series);
    return result == 0 ? tap->ended.error : result;
}

int um_tap_start(um_tap *tap, const um_tap_config *config)
{
    if (um_tap_is_running(tap))
        return -EBUSY;
    if (!um_is_power_of_two(config->ring_bytes) || config->ring_bytes < RING_MINIMUM_BYTES)
        return -EINVAL;
    void *ring = mmap(NULL, config->ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED)
        return -ENOMEM;
    int result = open_files(tap, config);
    if (result != 0) {
        um_file_series_close(&tap->series);
        munmap(ring, config->ring_bytes);
        return result;
    }
    uint32_t snap_bytes = config->snap_bytes;
    tap->ring = ring;
    tap->ring_bytes = config->ring_bytes;
    tap->snap_bytes = 0;
    if (snap_bytes != 0)
        tap->snap_bytes = snap_bytes > UM_IPV4_UDP_HEADER_BYTES ? snap_bytes - UM_IPV4_UDP_HEADER_BYTES : 1;
    tap->ttl = config->ttl;
    atomic_store(&tap->head, 0);
    atomic_store(&tap->tail, 0);
    atomic_store(&tap->dropped_count, 0);
    atomic_store(&tap->written_count, 0);
    atomic_store(&tap->discarded_count, 0);
    atomic_store(&tap->file_bytes, 0);
    atomic_store(&tap->file_count, 1);
    atomic_store(&tap->error, 0);
    atomic_store(&tap->running, true);
    /* The threads of the application handle signals. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    result = -pthread_create(&tap->thread, NULL, run, tap);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result != 0) {
        atomic_store(&tap->running, false);
        close_files(tap, 0);
        munmap(ring, config->ring_bytes);
    }
    return result;
}

int um_tap_stop(um_tap *tap, um_tap_counters *counters)
{
    if (um_tap_is_running(tap)) {
        atomic_store(&tap->running, false);
        pthread_join(tap->thread, NULL);
        int result = close_files(tap, atomic_load(&tap->dropped_count));
        publish_counters(tap);
        atomic_store(&tap->error, result);
        munmap(tap->ring, tap->ring_bytes);
    }
    um_tap_read(tap, counters);
    return counters->error;
}

void um_tap_read(const um_tap *tap, um_tap_counters *counters)
{
    uint64_t dropped_count = atomic_load(&tap->dropped_count) + atomic_load(&tap->discarded_count);
    *counters = (um_tap_counters){.written_count = atomic_load(&tap->written_count),
                                  .dropped_count = dropped_count,
                                  .file_bytes = atomic_load(&tap->file_bytes),
                                  .file_count = atomic_load(&tap->file_count),
                                  .error = atomic_load(&tap->error)};
}

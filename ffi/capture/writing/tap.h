/* A tap on a context (W6): writes the datagrams that the context sends and receives to a pcapng file, or to a series of
 * them, without delaying the data path. The data path copies datagrams into a bounded ring; a thread of the tap, at a
 * low priority, writes them. If the ring is full, a datagram is left out of the file and counted in the packet that
 * follows it (epb_dropcount) and in the statistics at the end of the file.
 *
 * Sockets deliver datagrams without headers, so the link type of the file is raw IPv4 and the IP and UDP headers are
 * generated: addresses, ports, lengths and checksums are real, the time to live is the context's. Runs of datagrams
 * that the kernel segments or coalesces are written as the single datagrams that they are on the wire. Datagrams from
 * an AF_XDP ring have their queue and verdict (XDP_REDIRECT); for those from a socket neither is known.
 *
 * Several threads send while one receives, so the ring has many producers: advancing the tail claims a record, and
 * storing its size passes it to the reader. No thread waits for another.
 *
 * Threads: um_tap_start and um_tap_stop one at a time; the rest any thread, at any time between um_tap_init and the
 * end of the memory. Memory: the ring is mapped by start and unmapped by stop. Errors: 0 or a negative errno.
 */
#ifndef UM_CAPTURE_WRITING_TAP_H
#define UM_CAPTURE_WRITING_TAP_H

#include <net/if.h>
#include <pthread.h>

#include "capture/writing/file_series.h"
#include "capture/writing/pcapng_writer.h"
#include "core/foundation/link.h"

typedef struct um_tap_config {
    const char *path;      /* the file, or the existing directory of a series */
    const char *file_name; /* first part of the names of a series; NULL: one file */
    uint64_t rotate_bytes; /* size at which a file of a series ends; 0: no limit */
    int64_t rotate_ns;     /* age at which it ends, unless it has no datagrams; 0: no limit */
    uint32_t keep_files;   /* files of a series to keep; 0: all */
    const char *interface;
    uint32_t ring_bytes; /* power of two, 1 MiB at least */
    uint32_t snap_bytes; /* captured bytes per datagram, including headers; 0: all */
    uint8_t ttl;
} um_tap_config;

typedef struct um_tap_counters {
    uint64_t written_count; /* datagrams in the file, or in all of the series */
    uint64_t dropped_count; /* datagrams missing in the file: the ring was full, or writing failed */
    uint64_t file_bytes;    /* of the file, or of all of the series */
    uint64_t file_count;    /* files started */
    int error;              /* the first error of writing, a negative errno */
} um_tap_counters;

typedef struct um_tap {
    atomic_bool running;
    _Atomic uint32_t users; /* producers that are appending */
    uint8_t *ring;
    uint64_t ring_bytes;
    uint32_t snap_bytes; /* of a datagram's payload */
    UM_CACHE_ALIGNED _Atomic uint64_t tail;
    UM_CACHE_ALIGNED _Atomic uint64_t head;
    _Atomic uint64_t dropped_count;
    _Atomic uint64_t written_count;
    _Atomic uint64_t discarded_count; /* datagrams lost by a failed write */
    _Atomic uint64_t file_bytes;
    _Atomic uint64_t file_count;
    _Atomic int error;
    /* Used by the writer only. */
    uint64_t seen_drop_count;
    um_file_series series;
    bool is_series;
    bool has_file;
    uint64_t rotate_bytes;
    int64_t rotate_ns;
    int64_t file_opened_ns;        /* wall clock */
    int64_t file_due_ns;           /* the timers' clock: when a rotated file is old */
    uint64_t file_drop_base;       /* dropped_count at the start of the file */
    um_tap_counters ended;         /* counts of the previous files */
    uint64_t fileless_count;       /* datagrams lost because no file was open */
    uint32_t interface_snap_bytes; /* the snap length in the files */
    char interface[IF_NAMESIZE];
    uint16_t identification;
    uint8_t ttl;
    um_pcapng_writer writer;
    pthread_t thread;
} um_tap;

int um_tap_start(um_tap *tap, const um_tap_config *config);
/* Writes the content of the ring, ends the thread and closes the file. Returns the first error of writing, or 0; also 0
 * if the tap does not run. */
int um_tap_stop(um_tap *tap, um_tap_counters *counters);
void um_tap_read(const um_tap *tap, um_tap_counters *counters);

static inline bool um_tap_is_running(const um_tap *tap)
{
    return atomic_load_explicit(&tap->running, memory_order_relaxed);
}

/* Records the datagrams that a link received. */
void um_tap_received(um_tap *tap, const um_rx *batch, uint32_t count);
/* Records a single datagram, sent or received. */
void um_tap_datagram(um_tap *tap, bool sent, um_address from, um_address to, const uint8_t *data, uint32_t length,
                     int64_t time_ns);

/* A link that records its sent datagrams in the tap, and otherwise passes all calls to the link behind it. */
typedef struct um_tap_link {
    um_link base;
    um_link *next;
    um_tap *tap;
    um_address local; /* source address of the link */
} um_tap_link;

void um_tap_link_init(um_tap_link *link, um_link *next, um_tap *tap, um_address local);

#endif

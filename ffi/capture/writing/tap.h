/* A tap on a context (design W6): writes what the context sends and receives to a pcapng file, or to a series of them,
 * without holding the data path up. The data path copies datagrams into a bounded ring; a thread of the tap's own, at a
 * low priority, takes them out and writes them. When the ring is full a datagram is left out of the file and counted,
 * in the packet that follows it (epb_dropcount) and in the statistics at the file's end.
 *
 * Sockets deliver datagrams without headers, so the file's link type is raw IPv4 and the IP and UDP headers are made
 * up: addresses, ports, lengths and checksums are real, the time to live is the context's. Runs of datagrams that the
 * kernel segments or coalesces are written as the single datagrams they are on the wire. What came by a ring has its
 * queue and the verdict that brought it there (XDP_REDIRECT); of what came by a socket neither is known.
 *
 * Several threads send, while one receives, so the ring has many producers: a record is claimed by moving the tail,
 * and is the reader's once its size is stored. No thread waits for another.
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
    const char *path;      /* the file; of a series the directory, which is there */
    const char *file_name; /* what the names of a series begin with; NULL: it is one file */
    uint64_t rotate_bytes; /* a file of a series is ended when it has so much; 0: whatever it has */
    int64_t rotate_ns;     /* and when it is so old; 0: whatever its age. One without datagrams goes on */
    uint32_t keep_files;   /* the last so many of a series; 0: all */
    const char *interface;
    uint32_t ring_bytes; /* power of two, 1 MiB at least */
    uint32_t snap_bytes; /* keep so much of a datagram, headers included; 0: all of it */
    uint8_t ttl;
} um_tap_config;

typedef struct um_tap_counters {
    uint64_t written_count; /* datagrams in the file, or in all of the series */
    uint64_t dropped_count; /* datagrams the file lacks: the ring was full, or writing failed */
    uint64_t file_bytes;    /* of the file, or of all of the series */
    uint64_t file_count;    /* begun */
    int error;              /* the first that writing met, a negative errno */
} um_tap_counters;

typedef struct um_tap {
    atomic_bool running;
    _Atomic uint32_t users; /* producers at work */
    uint8_t *ring;
    uint64_t ring_bytes;
    uint32_t snap_bytes; /* of a datagram's payload */
    UM_CACHE_ALIGNED _Atomic uint64_t tail;
    UM_CACHE_ALIGNED _Atomic uint64_t head;
    _Atomic uint64_t dropped_count;
    _Atomic uint64_t written_count;
    _Atomic uint64_t discarded_count; /* what a failed write cost */
    _Atomic uint64_t file_bytes;
    _Atomic uint64_t file_count;
    _Atomic int error;
    /* The writer's. */
    uint64_t seen_drop_count;
    um_file_series series;
    bool is_series;
    bool has_file;
    uint64_t rotate_bytes;
    int64_t rotate_ns;
    int64_t file_opened_ns;
    uint64_t file_drop_base;       /* of dropped_count, when the file was begun */
    um_tap_counters ended;         /* of the files before it */
    uint64_t fileless_count;       /* datagrams for which there was no file */
    uint32_t interface_snap_bytes; /* as the files say */
    char interface[IF_NAMESIZE];
    uint16_t identification;
    uint8_t ttl;
    um_pcapng_writer writer;
    pthread_t thread;
} um_tap;

int um_tap_start(um_tap *tap, const um_tap_config *config);
/* Writes what the ring has, ends the thread and closes the file. Returns the first error writing met; 0 as well when
 * the tap does not run. */
int um_tap_stop(um_tap *tap, um_tap_counters *counters);
void um_tap_read(const um_tap *tap, um_tap_counters *counters);

static inline bool um_tap_is_running(const um_tap *tap)
{
    return atomic_load_explicit(&tap->running, memory_order_relaxed);
}

/* What a link received. */
void um_tap_received(um_tap *tap, const um_rx *batch, uint32_t count);
/* One datagram by itself, sent or received. */
void um_tap_datagram(um_tap *tap, bool sent, um_address from, um_address to, const uint8_t *data, uint32_t length,
                     int64_t time_ns);

/* A link that shows the tap what it sends, and is otherwise the link behind it. */
typedef struct um_tap_link {
    um_link base;
    um_link *next;
    um_tap *tap;
    um_address local; /* whence the link sends */
} um_tap_link;

void um_tap_link_init(um_tap_link *link, um_link *next, um_tap *tap, um_address local);

#endif

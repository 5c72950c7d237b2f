/* A ring set: the AF_XDP sockets and frames of an interface, through which a context's data bypasses the kernel (W5,
 * W6). The core is built without system libraries, so it reaches a ring set only through these functions; AF_XDP
 * implements them in another library (ffi/xsk/rings.h), and the opener passes its pointer to um_context_create.
 *
 * Ownership: the ring set belongs to its opener, which closes it after the context. Links belong to the ring set; the
 * context closes each. Received memory belongs to the ring set and is valid until the next release.
 *
 * Threads: receive, release and service belong to the holder of the context lock; a link's sends to the holder of its
 * session's sender lock; all others may be called from any thread. Errors: negative errno.
 */
#ifndef UM_IO_RINGS_H
#define UM_IO_RINGS_H

#include "core/foundation/counters.h"
#include "core/foundation/link.h"

enum {
    UM_RINGS_BATCH_MAX = 64,       /* datagrams per receive call */
    UM_RINGS_DESCRIPTORS_MAX = 64, /* one per receive queue */
};

typedef struct um_rings um_rings;

/* The sender of a session's datagrams. `otherwise` sends datagrams that the ring cannot (those that the path must
 * fragment); it stays open as long as the link. */
typedef struct um_rings_sender {
    um_address from;
    uint32_t ttl;
    uint8_t traffic_class;
    um_link *otherwise;
} um_rings_sender;

typedef struct um_rings_ops {
    /* Takes available datagrams, at most UM_RINGS_BATCH_MAX; never waits. */
    int (*receive)(um_rings *rings, um_rx *batch, uint32_t max);
    /* Releases the frames of the last batch, including those without a datagram. Call it once after every receive,
     * before the next and before a thread waits for the descriptors: until then they are readable. */
    void (*release)(um_rings *rings);
    int (*open_link)(um_rings *rings, const um_rings_sender *sender, um_link **link);
    void (*close_link)(um_rings *rings, um_link *link);
    /* Stores the descriptors that become readable with datagrams, at most `max`. Returns their number. */
    uint32_t (*descriptors)(const um_rings *rings, int *fds, uint32_t max);
    /* Retries sending frames that the kernel refused; returns when the next call is due. */
    int64_t (*service)(um_rings *rings, int64_t now_ns);
    /* Adds the ring set's counters to `sum`. */
    void (*add_counters)(um_rings *rings, um_link_counters *sum);
} um_rings_ops;

/* First member of every implementation. */
struct um_rings {
    const um_rings_ops *ops;
    uint32_t receive_frames;  /* per receive queue */
    uint32_t taken_frames;    /* by the last receive call; a datagram may take several */
    bool has_more;            /* the last receive call left some datagrams */
    _Atomic uint32_t stalled; /* frames wait for service */
};

/* Adds up counters of links. Under the locks of the links' users; otherwise the counts may lag a little. */
static inline void um_link_counters_add(um_link_counters *sum, const um_link_counters *counters)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)counters;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

#endif

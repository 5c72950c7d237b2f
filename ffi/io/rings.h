/* A ring set: the AF_XDP sockets and frames of an interface, through which a context's data goes around the kernel
 * (W5, W6). The core is built without system libraries, so it reaches it only through these functions; AF_XDP
 * implements them in another library (ffi/xsk/rings.h), and the opener passes its pointer to um_context_create.
 *
 * Ownership: the ring set is its opener's, who closes it after the context. Links are the ring set's; the context
 * closes each. Received memory is the ring set's until the next release.
 *
 * Threads: receive, release and tend belong to the holder of the context lock; a link's sends to the holder of its
 * session's sender lock; the rest may be called from any thread. Errors: negative errno.
 */
#ifndef UM_IO_RINGS_H
#define UM_IO_RINGS_H

#include "core/foundation/counters.h"
#include "core/foundation/link.h"

enum {
    UM_RINGS_BATCH_MAX = 64,       /* datagrams of one receive */
    UM_RINGS_DESCRIPTORS_MAX = 64, /* one a receive queue */
};

typedef struct um_rings um_rings;

/* The sender of a session's datagrams. `otherwise` sends what the ring cannot (datagrams the path must
 * fragment); it must stay open as long as the link. */
typedef struct um_rings_sender {
    um_address from;
    uint32_t ttl;
    um_link *otherwise;
} um_rings_sender;

typedef struct um_rings_ops {
    /* Takes datagrams that are there, at most UM_RINGS_BATCH_MAX; never waits. */
    int (*receive)(um_rings *rings, um_rx *batch, uint32_t max);
    /* The last batch was handled: its frames may be filled again, and those that held no datagram. Once after every
     * receive, before the next, and before anybody waits for the descriptors: until then they are readable. */
    void (*release)(um_rings *rings);
    int (*open_link)(um_rings *rings, const um_rings_sender *sender, um_link **link);
    void (*close_link)(um_rings *rings, um_link *link);
    /* The descriptors that become readable with datagrams. Returns how many there are. */
    uint32_t (*descriptors)(const um_rings *rings, int *fds, uint32_t max);
    /* Goes on with what the kernel would not take at once; returns when the next call is due. */
    int64_t (*tend)(um_rings *rings, int64_t now_ns);
    /* Adds what the ring set has counted to `sum`. */
    void (*add_counters)(um_rings *rings, um_link_counters *sum);
} um_rings_ops;

/* First member of every implementation. */
struct um_rings {
    const um_rings_ops *ops;
    uint32_t receive_frames;  /* what one receive queue can hold */
    uint32_t taken_frames;    /* by the last receive; a datagram may take several */
    bool more;                /* the last receive left some where they were */
    _Atomic uint32_t stalled; /* something waits for tend */
};

/* Adds up what links have counted. Under the locks of their users; what a link without one counts may be a little
 * behind. */
static inline void um_link_counters_add(um_link_counters *sum, const um_link_counters *counters)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)counters;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

#endif

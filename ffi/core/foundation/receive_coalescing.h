/* Receive coalescing: how long a loop under load lets datagrams gather before it receives again, as a NIC coalesces
 * interrupts. A pass has a fixed cost, so under load fewer, larger passes leave more of the processor to the
 * application; without load the loop receives at once.
 *
 *                 HOT_DATAGRAMS within LOAD_SPAN_NS                     HOT_NS without such a load
 *     idle  ------------------------------------------->  coalescing  ----------------------------->  idle
 *
 * Over kernel sockets the interval is the configured one. A ring set holds more of a window than a socket does: there
 * the interval grows in steps of an eighth of the configured one up to the configured maximum, and is halved if enough
 * data gathered that the rings or the source's window could run out.
 *
 * Pure: times are arguments in nanoseconds. Threads: the loop's, with the context lock for um_coalescing_on_pass.
 */
#ifndef UM_CORE_RECEIVE_COALESCING_H
#define UM_CORE_RECEIVE_COALESCING_H

#include "core/foundation/base.h"

enum {
    UM_COALESCING_MIN_NS = 20000,        /* a shorter sleep takes this long anyway */
    UM_COALESCING_HOT_DATAGRAMS = 16,    /* load: this many datagrams ... */
    UM_COALESCING_LOAD_SPAN_NS = 200000, /* ... within this time */
    UM_COALESCING_HOT_NS = 1000000,      /* how long the loop coalesces after load */
};

typedef struct um_receive_coalescing {
    int64_t interval_ns;     /* configured; 0: never */
    int64_t interval_max_ns; /* configured; used only over a ring set */
    int64_t current_ns;      /* current interval over a ring set */
    int64_t hot_until_ns;
    int64_t load_since_ns;
    uint32_t load_datagrams;  /* datagrams since load_since_ns, without answers */
    uint32_t sends_seen;      /* send count at the last pass */
    uint32_t answers_due;     /* datagrams that may still arrive in answer to sends */
    uint32_t gathered_frames; /* frames from the ring set since the last interval */
    uint64_t gathered_bytes;
} um_receive_coalescing;

void um_coalescing_init(um_receive_coalescing *coalescing, int64_t interval_ns, int64_t interval_max_ns);

/* Returns true if the loop lets datagrams gather now. */
static inline bool um_coalescing_is_active(const um_receive_coalescing *coalescing, int64_t now_ns)
{
    return now_ns < coalescing->hot_until_ns && coalescing->interval_ns != 0;
}

/* Notes the frames and bytes that a receive from the ring set returned. */
static inline void um_coalescing_on_frames(um_receive_coalescing *coalescing, uint32_t frames, uint64_t bytes)
{
    coalescing->gathered_frames += frames;
    coalescing->gathered_bytes += bytes;
}

/* Returns how long to let datagrams gather now; over a ring set it depends on how many gathered since the last call.
 * ring_frames: capacity of one receive queue, 0 over kernel sockets. window_bytes: the smallest window reported to a
 * source. due_in_ns: time until the next timer, which must not wait longer than it would over sockets. */
int64_t um_coalescing_next_ns(um_receive_coalescing *coalescing, uint32_t ring_frames, uint64_t window_bytes,
                              int64_t due_in_ns);

/* Notes a pass: the datagrams it received, and how many times the context has sent so far (wraps). */
void um_coalescing_on_pass(um_receive_coalescing *coalescing, uint32_t datagrams, uint32_t send_count, int64_t now_ns);

#endif

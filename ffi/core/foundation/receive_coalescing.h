/* Receive coalescing: for how long a loop under load lets datagrams gather before it receives again, as a NIC coalesces
 * interrupts. A pass costs the same for one datagram as for many, so under load fewer, larger passes leave more of the
 * processor to the application; without load the loop receives at once.
 *
 *                 HOT_DATAGRAMS within LOAD_SPAN_NS                     HOT_NS without such a load
 *     idle  ------------------------------------------->  coalescing  ----------------------------->  idle
 *
 * Over kernel sockets the interval is the configured one. Over a ring set, which holds more than a socket's share of a
 * window, it grows by an eighth of that up to the configured maximum, and is halved when so much gathered that the
 * rings or the source's window could run out.
 *
 * Pure: times are arguments in nanoseconds, nothing is called. Threads: the loop's, under the context lock where it
 * notes passes.
 */
#ifndef UM_CORE_RECEIVE_COALESCING_H
#define UM_CORE_RECEIVE_COALESCING_H

#include "core/foundation/base.h"

enum {
    UM_COALESCING_MIN_NS = 20000,        /* a shorter sleep takes this long, too */
    UM_COALESCING_HOT_DATAGRAMS = 16,    /* so many datagrams ... */
    UM_COALESCING_LOAD_SPAN_NS = 200000, /* ... within this time are load */
    UM_COALESCING_HOT_NS = 1000000,      /* after which the loop coalesces for so long */
};

typedef struct um_receive_coalescing {
    int64_t interval_ns;     /* configured; 0: never */
    int64_t interval_max_ns; /* configured; reached over a ring set only */
    int64_t current_ns;      /* over a ring set */
    int64_t hot_until_ns;
    int64_t load_since_ns;
    uint32_t load_datagrams;  /* since then, answers apart */
    uint32_t sends_seen;      /* of the send count, by the last pass */
    uint32_t answers_due;     /* datagrams that may still come in answer to sends */
    uint32_t gathered_frames; /* of the ring set, since the last interval */
    uint64_t gathered_bytes;
} um_receive_coalescing;

void um_coalescing_init(um_receive_coalescing *coalescing, int64_t interval_ns, int64_t interval_max_ns);

/* Whether the loop lets datagrams gather now. */
static inline bool um_coalescing_is_active(const um_receive_coalescing *coalescing, int64_t now_ns)
{
    return now_ns < coalescing->hot_until_ns && coalescing->interval_ns != 0;
}

/* What a receive from the ring set took. */
static inline void um_coalescing_on_frames(um_receive_coalescing *coalescing, uint32_t frames, uint64_t bytes)
{
    coalescing->gathered_frames += frames;
    coalescing->gathered_bytes += bytes;
}

/* How long to let datagrams gather now, and what gathered since the last call is taken into account.
 * ring_frames: what one receive queue holds, 0 over kernel sockets. window_bytes: the smallest window reported to a
 * source. due_in_ns: until the next timer, which is not to wait longer than it would over sockets. */
int64_t um_coalescing_next_ns(um_receive_coalescing *coalescing, uint32_t ring_frames, uint64_t window_bytes,
                              int64_t due_in_ns);

/* After each pass: the datagrams it received, and how many times the context has sent so far (wraps). */
void um_coalescing_on_pass(um_receive_coalescing *coalescing, uint32_t datagrams, uint32_t send_count, int64_t now_ns);

#endif

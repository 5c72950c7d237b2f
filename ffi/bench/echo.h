/* The round trip of `umstack bench latency` with the core alone: the same calls as from Python, made from C.
 *
 * A client sends a message that starts with a counter on its publication and waits for it on its subscription; a server
 * returns every message of its subscription on its publication. Each end has its own context, which the calling thread
 * runs in sequential mode. Topic resolution does not run: both ends must know each other.
 *
 * Threads: the one that reads the subscription. Memory: nothing is allocated; the objects stay the caller's.
 * Errors: a negative errno or publish result.
 */
#ifndef UM_BENCH_ECHO_H
#define UM_BENCH_ECHO_H

#include "io/event_queue.h"
#include "io/publication.h"

enum {
    UM_ECHO_COUNTER_BYTES = 8,
    UM_ECHO_END_BYTES = 4, /* a message of this length ends the server */
    UM_ECHO_MESSAGE_BYTES_MAX = 9216,
};

typedef struct um_echo_config {
    uint32_t message_bytes; /* UM_ECHO_COUNTER_BYTES to UM_ECHO_MESSAGE_BYTES_MAX */
    bool busy;              /* busy polling instead of sleeping */
    int64_t timeout_ns;     /* time without a message after which either end returns -ETIMEDOUT */
} um_echo_config;

typedef struct um_echo_result {
    uint64_t message_count;   /* round trips measured, or messages returned */
    uint64_t misplaced_count; /* replies to another message than the last request */
    int64_t elapsed_ns;       /* without the warm-up */
    int64_t cpu_ns;           /* of the calling thread, without the warm-up */
} um_echo_result;

/* Makes warmup_count unmeasured round trips, then up to sample_count measured ones within duration_ns, and at least
 * one. samples_ns is the caller's, with space for sample_count; result->message_count of them are filled. Ends the
 * server. */
int um_echo_ping(um_event_queue *replies, um_publication *requests, const um_echo_config *config, uint64_t warmup_count,
                 uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_echo_result *result);

/* Serves until the client ends it. */
int um_echo_serve(um_event_queue *requests, um_publication *replies, const um_echo_config *config,
                  um_echo_result *result);

#endif

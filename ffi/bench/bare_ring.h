/* The baseline of `umstack bench ipc`: a bare ring between one producer and one consumer in shared memory, with
 * messages of one size, and neither order, loss nor topics beside the counter that each message starts with.
 *
 * Each side polls, stores its own index after every message, and loads the other's only when it seems to lack space or
 * messages. The consumer copies each message out.
 *
 * Threads: one producer and one consumer. Memory: the caller's, shared, zeroed, um_bare_ring_bytes long.
 */
#ifndef UM_BENCH_BARE_RING_H
#define UM_BENCH_BARE_RING_H

#include "bench/raw_order.h"
#include "bench/raw_round_trips.h"

enum { UM_BARE_RING_MESSAGE_BYTES_MAX = 65536 };

/* Bytes of a ring of `capacity` messages, a power of two. */
size_t um_bare_ring_bytes(uint32_t capacity, uint32_t message_bytes);
void um_bare_ring_init(void *memory, uint32_t capacity, uint32_t message_bytes);

/* Sends for this time, or up to message_count messages, and then the end. Returns the number sent. */
uint64_t um_bare_ring_send(void *memory, int64_t duration_ns, uint64_t message_count);

typedef struct um_bare_ring_result {
    uint64_t message_count;
    uint64_t misplaced_count;
    int64_t elapsed_ns; /* from the first message to the end */
} um_bare_ring_result;

/* Receives until the end. */
void um_bare_ring_receive(void *memory, um_bare_ring_result *result);

/* The round trips of um_raw_make_round_trips over a ring in each direction; ends the server. */
int um_bare_ring_ping(void *requests, void *replies, uint64_t warmup_count, uint64_t sample_count, int64_t duration_ns,
                      uint64_t *samples_ns, um_raw_ping_result *result);
/* Returns every message until the end. */
void um_bare_ring_echo(void *requests, void *replies);

#endif

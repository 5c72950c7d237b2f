/* ZeroMQ as a peer of measurements over TCP: loops in C send and receive a stream through a libzmq that is loaded at
 * run time (for example from the package pyzmq). Not part of the product.
 *
 * A stream ends with a message of one byte. Threads: each call uses a context of its own. Errors: negative errno;
 * -ENOSYS: not a libzmq, -EPROTO: a call of libzmq failed.
 */
#ifndef UM_BENCH_PEER_ZMQ_H
#define UM_BENCH_PEER_ZMQ_H

#include <stdbool.h>
#include <stdint.h>

typedef struct um_peer_zmq_config {
    bool is_published; /* XPUB and SUB, without dropping; else PUSH and PULL */
    uint32_t message_bytes;
    uint32_t high_water_mark; /* messages queued at either end */
    int64_t duration_ns;      /* of sending */
    int64_t patience_ns;      /* how long a receiver waits for a message, and XPUB for its subscriber */
} um_peer_zmq_config;

typedef struct um_peer_zmq_result {
    uint64_t messages;  /* sent, or received after the first */
    int64_t elapsed_ns; /* receiving: from the first message to the last */
    int64_t cpu_ns;     /* of this process */
    bool end_seen;
} um_peer_zmq_result;

/* Binds to the endpoint and sends; the first message waits for a receiver. */
int um_peer_zmq_send(const char *library, const char *endpoint, const um_peer_zmq_config *config,
                     um_peer_zmq_result *result);
/* Connects to the endpoint and receives until the end. */
int um_peer_zmq_receive(const char *library, const char *endpoint, const um_peer_zmq_config *config,
                        um_peer_zmq_result *result);

#endif

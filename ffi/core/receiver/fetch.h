/* The client's side of the request protocol, for one late join or one off-transport recovery (UM-136..UM-143): when to
 * connect, what to send, how to handle answers, when to request again and when to give up.
 *
 *   unconnected --um_fetch_attend: CONNECT--> connected --range requested--> awaits range --> fetches --> over
 *        ^                                        |                               |             |
 *        +- DISCONNECT: no range in time, no answer; or the peer disconnects -----+-------------+
 *
 * The fetches of many topics may share a connection to one source's context, at most one per topic (fetch_runs.h). A
 * connection on which any of them receives bytes is not disconnected, because repeating a request would not help.
 *
 * The two uses differ only in their plan: off-transport recovery needs no range first, its intervals double, and it
 * tries to connect until its message timeout. fetch_protocol.h decides which messages are requested.
 *
 * Sans-I/O: the owner has the connection (umstack/recovery, ffi/sim/request_connections.c). It calls um_fetch_step with
 * the bytes received, sends the bytes written, and acts on the result of um_fetch_attend, which it calls every few
 * milliseconds. After either call it wakes the node if wakes_node is set.
 *
 * Threads: the owner's; it holds the context lock if a controller is an argument. Memory: the owner's. Errors: -ENOENT
 * when the fetch is over, -EBADMSG for a peer that violates the protocol.
 */
#ifndef UM_CORE_FETCH_H
#define UM_CORE_FETCH_H

#include "core/receiver/fetch_protocol.h"
#include "core/receiver/node.h"
#include "core/wire/range_request.h"

typedef struct um_fetch_plan {
    bool is_otr;
    enum um_request_purpose purpose;
    uint32_t attempts_max; /* connections without progress; 0: no limit */
    uint32_t outstanding_max;
    int64_t attempt_minimum_ns; /* between connections, doubling up to the maximum */
    int64_t attempt_maximum_ns;
    int64_t request_minimum_ns; /* without progress until everything is requested again; doubles up to the maximum */
    int64_t request_maximum_ns;
    int64_t message_timeout_ns; /* without progress until the next message is given up */
    um_range_bounds bounds;
} um_fetch_plan;

/* A connection, which fetches may share. */
typedef struct um_fetch_connection {
    int64_t received_ns; /* when bytes arrived last; 0: none has */
} um_fetch_connection;

typedef struct um_fetch {
    um_session_id id; /* the source's session; set by the owner, as are topic_index, epoch and plan */
    uint32_t topic_index;
    uint32_t epoch;
    um_fetch_plan plan;

    uint32_t request_index;
    um_fetch_connection *connection; /* NULL: not connected */
    uint32_t consumed;               /* received bytes used by the last step */
    uint32_t written;                /* bytes to send, written by the last step */
    uint32_t next_sqn;               /* the first sqn not delivered */
    bool is_awaiting_range;
    bool is_starved;           /* the queue is full: call again soon */
    bool is_caught_up;         /* no message is missing now */
    bool is_left_to_transport; /* the source does not retain the next message, which has not timed out yet */
    bool is_given_up;          /* the fetch ended without success */
    bool wakes_node;           /* the last call gave up messages, or left a gap that is due earlier: um_node_wake */

    bool has_requested_range; /* on this connection */
    bool has_heard;           /* bytes have arrived since the last request */
    bool needs_retry;         /* unanswered requests must be repeated */
    bool has_attempted;
    bool has_progressed;
    bool was_awaiting_range; /* at the last progress, like progress_sqn */
    uint32_t left_over;      /* received bytes not used: an incomplete message, or one without space in the queue */
    uint32_t attempts;       /* connections since the last progress */
    uint32_t progress_sqn;
    int64_t attempt_ns;
    int64_t attempt_interval_ns;
    int64_t requested_ns;
    int64_t request_interval_ns;
    int64_t progress_ns;
} um_fetch;

/* UM_FETCH_STEP: um_fetch_step would write requests or deliver messages. */
enum um_fetch_action { UM_FETCH_WAIT, UM_FETCH_CONNECT, UM_FETCH_DISCONNECT, UM_FETCH_STEP };

/* Initializes all fields except those set by the owner. */
void um_fetch_begin(um_fetch *fetch);

/* Records that the fetch uses a connection, which the owner may have just started to open. */
void um_fetch_on_connect(um_fetch *fetch, um_fetch_connection *connection);
/* Writes the first request, that for the range, once the connection is established. Returns its length, at most
 * UM_RANGE_REQUEST_BYTES_MAX. */
uint32_t um_fetch_request_range(um_fetch *fetch, uint8_t *out);
/* Records that either side has closed the connection, or that the fetch uses it no longer. */
void um_fetch_on_disconnect(um_fetch *fetch);

/* Returns the receiver's controller and session, or NULL once the fetch is over. */
um_delivery *um_fetch_find(const um_fetch *fetch, um_node *node, const um_receiver *receiver,
                           um_receiver_session **session);

/* Handles received bytes and writes bytes to send. Returns 0, -ENOENT if the fetch is over, or -EBADMSG if the peer
 * violates the protocol, which gives the fetch up. */
int um_fetch_step(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, const uint8_t *received,
                  uint32_t length, uint8_t *out, uint32_t capacity, int64_t now_ns);

/* Returns the action that is due, an um_fetch_action, or -ENOENT if the fetch is over. */
int um_fetch_attend(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

#endif

/* Fetch: the client's side of the request protocol, for one late join or one off-transport recovery (UM-136..UM-143):
 * when to connect, what to send, what to make of what comes, when to request again and when to give up.
 *
 *   unconnected --um_fetch_attend: CONNECT--> connected --range requested--> awaits range --> fetches --> over
 *        ^                                        |                               |             |
 *        +---- DISCONNECT: no range in time, nothing heard; or the peer's end ----+-------------+
 *
 * The two differ in their plan only: off-transport recovery needs no range first, its intervals double, and it goes on
 * connecting until its message timeout. fetch_protocol.h decides which messages are requested.
 *
 * Sans-I/O: the owner has the connection (umstack/recovery, ffi/sim/request_connections.c), calls um_fetch_step with
 * what came and sends what it wrote, then does what um_fetch_attend says; again after a few milliseconds at the latest.
 *
 * Threads: that of the owner, with the context lock where a controller is an argument. Memory: the owner's.
 */
#ifndef UM_CORE_FETCH_H
#define UM_CORE_FETCH_H

#include "core/receiver/fetch_protocol.h"
#include "core/receiver/node.h"
#include "core/wire/range_request.h"

typedef struct um_fetch_plan {
    bool is_otr;
    uint32_t request_index; /* says in a capture what the connection is for */
    uint32_t attempts_max;  /* connections without progress; 0: no bound */
    uint32_t outstanding_max;
    int64_t attempt_minimum_ns; /* between connections, doubling up to the maximum */
    int64_t attempt_maximum_ns;
    int64_t request_minimum_ns; /* without progress until everything is requested again, doubling */
    int64_t request_maximum_ns;
    int64_t message_timeout_ns; /* without progress until what comes next is given up */
    um_range_bounds bounds;
} um_fetch_plan;

typedef struct um_fetch {
    um_session_id id; /* whose: set by the owner, with topic_index, epoch and plan */
    uint32_t topic_index;
    uint32_t epoch;
    um_fetch_plan plan;

    uint32_t consumed; /* of the last step: bytes of what was received */
    uint32_t written;  /* and bytes to be sent */
    uint32_t next_sqn; /* the first not delivered */
    bool is_awaiting_range;
    bool is_starved;           /* the queue is full: call again soon */
    bool is_caught_up;         /* nothing is lacking now */
    bool is_left_to_transport; /* what comes next is not retained, and its time is not up */
    bool is_given_up;          /* it is over because of that */
    bool has_given_up_some;    /* of the last um_fetch_attend: something was given up, so there may be rows to read */

    bool is_connected;
    bool has_requested_range; /* on this connection */
    bool has_heard;           /* something came since the last request */
    bool needs_retry;         /* what was requested is to be requested again */
    bool has_attempted;
    bool has_progressed;
    bool was_awaiting_range; /* at the last progress, as progress_sqn */
    uint32_t left_over;      /* bytes of what was received: half a message, or what the queue has no space for */
    uint32_t attempts;       /* since the last progress */
    uint32_t progress_sqn;
    int64_t attempt_ns;
    int64_t attempt_interval_ns;
    int64_t requested_ns;
    int64_t request_interval_ns;
    int64_t progress_ns;
} um_fetch;

enum um_fetch_action { UM_FETCH_WAIT, UM_FETCH_CONNECT, UM_FETCH_DISCONNECT };

/* Sets everything but what is the owner's to set before. */
void um_fetch_begin(um_fetch *fetch);

/* The owner has begun to connect. */
void um_fetch_on_connect(um_fetch *fetch);
/* The connection takes requests: writes the one for the range, which is the first, and returns its length, at most
 * UM_RANGE_REQUEST_BYTES_MAX. */
uint32_t um_fetch_request_range(um_fetch *fetch, uint8_t *out);
/* The connection has ended, by either side. */
void um_fetch_on_disconnect(um_fetch *fetch);

/* The controller that is fetched for a receiver; NULL once that is over. */
um_delivery *um_fetch_find(const um_fetch *fetch, um_node *node, const um_receiver *receiver,
                           um_receiver_session **session);

/* Takes what was received and writes what to send. 0, -ENOENT when the fetch is over, -EBADMSG when the peer does not
 * keep to the protocol: then it is given up. */
int um_fetch_step(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, const uint8_t *received,
                  uint32_t length, uint8_t *out, uint32_t capacity, int64_t now_ns);

/* What is due: an um_fetch_action, or -ENOENT when the fetch is over. */
int um_fetch_attend(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

#endif

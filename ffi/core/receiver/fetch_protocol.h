/* Requests and answers of a fetch (UM-136..UM-143; delivery_fetch.h draws its states): the source reports the range of
 * messages that it retains, the controller requests missing ones, oldest first, and gives up those that do not arrive.
 * Sans-I/O: requests are bytes to send on a TCP connection, answers are bytes received. fetch.h decides when to
 * connect.
 *
 * Threads: the context lock. Memory: in the controller. Complexity: linear in the messages received or requested.
 * Errors: -EBADMSG for bytes that are not the protocol's, which only a faulty or hostile peer sends.
 */
#ifndef UM_CORE_FETCH_PROTOCOL_H
#define UM_CORE_FETCH_PROTOCOL_H

#include "core/receiver/receiver_state.h"

/* Takes bytes received from the source. Returns the number of bytes used: whole messages, fewer if the queue is full or
 * a message is incomplete; -EBADMSG for bytes that are not the protocol's. */
int64_t um_fetch_protocol_receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data,
                                  uint32_t length, int64_t now_ns);

/* Writes requests for the next missing sqns, so that at most `outstanding` are requested and not delivered. Returns
 * the number of bytes. */
uint32_t um_fetch_protocol_request(um_delivery *delivery, uint32_t request_index, uint32_t outstanding, uint8_t *out,
                                   uint32_t capacity);
/* True if um_fetch_protocol_request may write requests now. */
bool um_fetch_protocol_has_requests(um_delivery *delivery, uint32_t outstanding);

/* Makes the next requests repeat those that are unanswered. */
static inline void um_fetch_protocol_retry(um_delivery *delivery)
{
    delivery->fetch.requested = delivery->next_sqn;
}

/* True if the next missing message cannot be fetched and is not lost yet. */
bool um_fetch_protocol_is_left_to_transport(um_delivery *delivery);

/* Gives the fetch up: missing messages cannot be fetched. */
void um_fetch_protocol_give_up(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

/* After the fetch was given up, declares messages lost that the source reported and that the transport has not shown
 * for one NAK generation interval. Returns when the next call is due. */
int64_t um_fetch_protocol_tick(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

/* The next message did not arrive in time. If the source sent later ones, the missing ones are not requested again and
 * the result is true; if it sent none, the fetch is given up and the result is false. */
bool um_fetch_protocol_pass_over(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

#endif

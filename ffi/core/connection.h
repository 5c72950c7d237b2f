/* A receiver's connection to the source of an LBT-RU session (UX-11): client_service.h is the source's side, and draws
 * both.
 *
 *                  +-- no answer: again after the connect interval, maximum_connect_attempts times; then the session
 * ends
 *                  v
 *     connecting --+ CREQ -------- SYN: its client id, and where the stream is ----> established -- ACK each interval
 *         ^                                                                               |
 *         +---- RST: the source knows it no longer; nothing that was received is lost ----+
 *
 * A reset ends nothing, since anybody can forge one: the receiver goes on receiving and connects anew, a reset a
 * connect interval. An answer counts only while one is expected.
 *
 * Threads: the context lock. Memory: the receiving session's. Errors: none.
 */
#ifndef UM_CORE_CONNECTION_H
#define UM_CORE_CONNECTION_H

#include "core/packet.h"

struct um_receiver_session;

enum um_connection_state {
    UM_CONNECTION_NONE = 0, /* LBT-RM */
    UM_CONNECTION_CONNECTING = 1,
    UM_CONNECTION_ESTABLISHED = 2,
};

typedef struct um_connection {
    enum um_connection_state state;
    uint32_t client_id; /* proposed, then as the source gave it */
    uint32_t attempts;  /* connection requests since the last answer */
    int64_t requested_ns;
    int64_t due_ns; /* the next connection request or acknowledgement */
} um_connection;

void um_connection_init(struct um_receiver_session *session, int64_t now_ns);
/* A session message with the SYN flag, after it has told where the stream is, as any does. */
void um_connection_on_syn(struct um_receiver_session *session, const um_packet *packet, int64_t now_ns);
void um_connection_on_reset(struct um_receiver_session *session, int64_t now_ns);
/* Returns when the next call is due; *is_refused: every attempt went without an answer. */
int64_t um_connection_tick(struct um_receiver_session *session, int64_t now_ns, bool *is_refused);

#endif

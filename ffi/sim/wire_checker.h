/* Checks what hosts put on the wire: transport sqns without holes, retransmissions that repeat the original byte for
 * byte and stay inside the window, trails that only advance, TSNIs that promise nothing unsent, topics complete
 * (UM-52, UM-65, UM-71, UM-112, UM-125, UM-128, UX-23); and of receivers, NAKs no sooner and no more often than the
 * back-offs allow (UM-117, UM-119, UM-131).
 */
#ifndef UM_SIM_WIRE_CHECKER_H
#define UM_SIM_WIRE_CHECKER_H

#include "sim/published.h"

enum {
    UM_SIM_WIRE_PORTS = 8,      /* of a host at a time */
    UM_SIM_WIRE_SQNS_MAX = 8192 /* of a session that are followed */
};

typedef struct um_sim_wire_session {
    const um_sim_session *session;
    um_sim_topic *topics;
    uint32_t topic_count;
    bool is_attacked; /* what forged session messages told of is lost anew after it was given up */
    bool is_partial;  /* LBT-RU: some data had no client to go to */
    uint32_t next_sqn;
    uint32_t trail_sqn;
    struct { /* LBT-RU, by host and port: the next it is sent as new data */
        uint16_t port;
        uint32_t next_sqn;
    } clients[UM_SIM_HOSTS_MAX][UM_SIM_WIRE_PORTS];
    uint64_t *body_hashes;                               /* by sqn - initial_sqn */
    int64_t *next_nak_ns[UM_SIM_HOSTS_MAX];              /* by host, by sqn - initial_sqn: no NAK before */
    const um_receiver_session *asking[UM_SIM_HOSTS_MAX]; /* whose NAKs those are */
} um_sim_wire_session;

/* topics: the session's, owned by the run. False when the world has no space. */
bool um_sim_wire_init(um_sim_wire_session *wire, um_sim_world *world, const um_sim_session *session,
                      um_sim_topic *topics, uint32_t topic_count);

/* A datagram that `host` sends, as a member of one of the sessions. Complains to the world. */
void um_sim_wire_on_sent(um_sim_wire_session *wires, uint32_t count, const um_sim_host *host,
                         const um_sim_datagram *datagram, const uint8_t *data);

/* A datagram `host` is about to take in. */
void um_sim_wire_on_received(um_sim_wire_session *wires, uint32_t count, const um_sim_host *host,
                             const um_sim_datagram *datagram, const uint8_t *data);

/* Everything published has been on the wire. */
void um_sim_wire_check_complete(um_sim_world *world, const um_sim_wire_session *wire);

#endif

/* Checks the datagrams that hosts send. Sources: transport sqns have no holes, retransmissions equal the original byte
 * for byte and stay inside the window, trails only advance, TSNIs advertise nothing unsent, topics are complete (UM-52,
 * UM-65, UM-71, UM-112, UM-125, UM-128, UX-23). Receivers: NAKs are no earlier and no more frequent than the back-offs
 * allow (UM-117, UM-119, UM-131).
 */
#ifndef UM_SIM_WIRE_CHECKER_H
#define UM_SIM_WIRE_CHECKER_H

#include "core/wire/datagram_piece.h"
#include "sim/published.h"

enum {
    UM_SIM_WIRE_PORTS = 8,      /* ports of a host at a time */
    UM_SIM_WIRE_SQNS_MAX = 8192 /* checked sqns of a session */
};

/* When a sqn may be NAKed again, and when that was noted; both in the local time of the host. */
typedef struct um_sim_nak_time {
    int64_t next_ns;
    int64_t noted_ns;
} um_sim_nak_time;

typedef struct um_sim_wire_session {
    const um_sim_session *session;
    um_sim_topic *topics;
    uint32_t topic_count;
    bool is_attacked; /* forged claims are lost again after they were given up */
    bool is_partial;  /* LBT-RU: some data was sent to no client */
    uint32_t next_sqn;
    uint32_t trail_sqn;
    struct { /* LBT-RU, by host and port: next sqn sent as new data */
        uint16_t port;
        uint32_t next_sqn;
    } clients[UM_SIM_HOSTS_MAX][UM_SIM_WIRE_PORTS];
    um_datagram_assembly assembly[2];                    /* datagrams in pieces: sent again, and new */
    uint64_t *body_hashes;                               /* by sqn - initial_sqn */
    um_sim_nak_time *nak_times[UM_SIM_HOSTS_MAX];        /* by host, by sqn - initial_sqn */
    const um_receiver_session *asking[UM_SIM_HOSTS_MAX]; /* the sessions of those NAKs */
} um_sim_wire_session;

/* `topics`: the session's, owned by the run. Returns false without memory. */
bool um_sim_wire_init(um_sim_wire_session *wire, um_sim_world *world, const um_sim_session *session,
                      um_sim_topic *topics, uint32_t topic_count);

/* Checks a datagram that `host` sends as a member of one of the sessions. Complains to the world. */
void um_sim_wire_on_sent(um_sim_wire_session *wires, uint32_t count, const um_sim_host *host,
                         const um_sim_datagram *datagram, const uint8_t *data);

/* Observes a datagram that `host` is about to process. */
void um_sim_wire_on_received(um_sim_wire_session *wires, uint32_t count, const um_sim_host *host,
                             const um_sim_datagram *datagram, const uint8_t *data);

/* Checks that everything published was sent. */
void um_sim_wire_check_complete(um_sim_world *world, const um_sim_wire_session *wire);

#endif

/* An attacker on the group: it sees every datagram, sends what it likes to every host from any address, and has no key.
 * A seed chooses what it does: forged session messages, NCFs, NAKs and status messages, replays of what was sent,
 * garbage, and data of sessions of its own. Forged data in the name of a source is the one thing nothing but keys could
 * help against (docs/threat-model.md), so it is left out unless the mode asks for it.
 *
 * Over LBT-RU it knows who sends to whom, from which ports, session ids and sequence numbers. It does not know client
 * ids, but those of addresses of its own, from which it may connect as often as it likes (UX-11); only what it replays
 * it has overheard. It forges connection requests, acknowledgements, resets and answers to requests, too.
 *
 * Threads: the world's. Memory: the world's. Errors: none; what the world has no space for is not sent.
 */
#ifndef UM_SIM_ADVERSARY_H
#define UM_SIM_ADVERSARY_H

#include "sim/world.h"

enum { UM_SIM_OVERHEARD_MAX = 256 };

/* Whether somebody on the group attacks. */
enum um_sim_adversary_mode {
    UM_SIM_ADVERSARY_NONE,
    UM_SIM_ADVERSARY_FORGES_CONTROL, /* everything but data in the name of a source */
    UM_SIM_ADVERSARY_FORGES_DATA,    /* that, too: a run may well fail */
    UM_SIM_ADVERSARY_END,
};

enum um_sim_attack {
    UM_SIM_ATTACK_SM,
    UM_SIM_ATTACK_NCF,
    UM_SIM_ATTACK_NAK,
    UM_SIM_ATTACK_STRANGER, /* data and session messages from its own address, or of sessions that do not exist */
    UM_SIM_ATTACK_GARBAGE,
    UM_SIM_ATTACK_STATUS,
    UM_SIM_ATTACK_REPLAY,
    UM_SIM_ATTACK_DATA,
    UM_SIM_ATTACK_LBTRM_END,
    UM_SIM_ATTACK_CREQ = UM_SIM_ATTACK_LBTRM_END,
    UM_SIM_ATTACK_ACK,
    UM_SIM_ATTACK_RST, /* to receivers and to sources */
    UM_SIM_ATTACK_SYN, /* answers to requests of receivers */
    UM_SIM_ATTACK_OWN, /* connects from addresses of its own, which fills the table of clients */
    UM_SIM_ATTACK_END,
};

/* Addresses of its own: what is sent there, it gets. Ports begin at UM_SIM_OWN_PORT. */
enum { UM_SIM_OWN_IP = 0x0a630101, UM_SIM_OWN_PORT = 14360, UM_SIM_OWN_PORTS = 200 };

typedef struct um_sim_overheard {
    um_address from;
    um_address to;
    uint32_t length;
} um_sim_overheard;

typedef struct um_sim_adversary {
    um_sim_world *world;
    um_random random;
    uint32_t attacks; /* bits of enum um_sim_attack */
    int64_t gap_ns;   /* mean time between bursts */
    uint32_t burst_max;
    uint64_t datagram_count;
    bool has_key; /* of client ids: a canary */
    um_sim_overheard overheard[UM_SIM_OVERHEARD_MAX];
    uint8_t *overheard_bytes; /* UM_SIM_DATAGRAM_BYTES each */
} um_sim_adversary;

/* False when the world has no space. */
bool um_sim_adversary_init(um_sim_adversary *adversary, um_sim_world *world, enum um_sim_adversary_mode mode,
                           uint64_t seed);

/* Whether it may make sessions end, or the source go on without receivers: messages may be lost, if reported. A
 * receiver without data believes session messages, and reports where they say the stream is to flow control. */
static inline bool um_sim_adversary_costs_messages(const um_sim_adversary *adversary, bool is_windowed)
{
    uint32_t costly = 1u << UM_SIM_ATTACK_STATUS | 1u << UM_SIM_ATTACK_REPLAY | 1u << UM_SIM_ATTACK_DATA;
    return (adversary->attacks & costly) != 0 || (is_windowed && adversary->attacks >> UM_SIM_ATTACK_SM & 1);
}

/* A datagram that a host sends: it may be replayed later. */
void um_sim_adversary_overhear(um_sim_adversary *adversary, const um_sim_datagram *datagram, const uint8_t *data);

/* Sends one burst. Returns the time until the next. */
int64_t um_sim_adversary_step(um_sim_adversary *adversary);

#endif

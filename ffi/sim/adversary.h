/* An attacker in the group: it sees every datagram, sends any datagram to every host from any address, and has no key.
 * By some seeds it is blind: it knows sessions and sequence numbers, but neither repeats a cookie nor replays.
 * A seed chooses its attacks: forged session messages, NCFs, NAKs and status messages, replays, garbage, and data of
 * its own sessions. Only keys protect against forged data with the address of a source (docs/threat-model.md), so such
 * data is excluded unless the mode requests it.
 *
 * Over LBT-RU it knows senders, receivers, ports, session ids and sequence numbers, but no client ids except those of
 * its own addresses, from which it may connect without limit (UX-11), and those in replayed datagrams. It also forges
 * connection requests, acknowledgements, resets and answers to requests.
 *
 * Threads: the world's. Memory: the world's. Errors: none; a datagram without space in the world is not sent.
 */
#ifndef UM_SIM_ADVERSARY_H
#define UM_SIM_ADVERSARY_H

#include "sim/world.h"

enum { UM_SIM_OVERHEARD_MAX = 256 };

/* The attacks that are allowed. */
enum um_sim_adversary_mode {
    UM_SIM_ADVERSARY_NONE,
    UM_SIM_ADVERSARY_FORGES_CONTROL, /* everything except data with the address of a source */
    UM_SIM_ADVERSARY_FORGES_DATA,    /* such data, too: a run may fail */
    UM_SIM_ADVERSARY_END,
};

enum um_sim_attack {
    UM_SIM_ATTACK_SM,
    UM_SIM_ATTACK_NCF,
    UM_SIM_ATTACK_NAK,
    UM_SIM_ATTACK_UNKNOWN, /* data and SMs from its own address, or of unknown sessions */
    UM_SIM_ATTACK_GARBAGE,
    UM_SIM_ATTACK_STATUS,
    UM_SIM_ATTACK_REPLAY,
    UM_SIM_ATTACK_DATA,
    UM_SIM_ATTACK_LBTRM_END,
    UM_SIM_ATTACK_CREQ = UM_SIM_ATTACK_LBTRM_END,
    UM_SIM_ATTACK_ACK,
    UM_SIM_ATTACK_RST, /* to receivers and to sources */
    UM_SIM_ATTACK_SYN, /* answers to requests of receivers */
    UM_SIM_ATTACK_OWN, /* connections from its own addresses, which fill the client table */
    UM_SIM_ATTACK_END,
};

/* Its own addresses, at which it receives. Ports start at UM_SIM_OWN_PORT. */
enum { UM_SIM_OWN_IP = 0x0a630101, UM_SIM_OWN_PORT = 14360, UM_SIM_OWN_PORTS = 200 };

typedef struct um_sim_overheard {
    um_address from;
    um_address to;
    uint32_t length;
} um_sim_overheard;

typedef struct um_sim_adversary {
    um_sim_world *world;
    um_random random;
    um_random report_random; /* of forged repair reports, so that other draws stay as they were */
    uint32_t attacks;        /* bits of enum um_sim_attack */
    int64_t gap_ns;          /* mean time between bursts */
    uint32_t burst_max;
    uint64_t datagram_count;
    bool is_blind;
    bool has_key; /* the key of client ids: a canary */
    um_sim_overheard overheard[UM_SIM_OVERHEARD_MAX];
    uint8_t *overheard_bytes; /* UM_SIM_DATAGRAM_BYTES each */
} um_sim_adversary;

/* Returns false without memory. */
bool um_sim_adversary_init(um_sim_adversary *adversary, um_sim_world *world, enum um_sim_adversary_mode mode,
                           uint64_t seed);

/* True if it has the cookie that makes an invented receiver count. */
static inline bool um_sim_adversary_can_invent(const um_sim_adversary *adversary)
{
    return !adversary->is_blind || adversary->world->transport != UM_TRANSPORT_LBTRM;
}

/* True if its attacks may end sessions or let the source advance without receivers: messages may be lost if that is
 * reported. A receiver without data accepts session messages, and reports their position to flow control. */
static inline bool um_sim_adversary_costs_messages(const um_sim_adversary *adversary, bool is_windowed)
{
    uint32_t costly = 1u << UM_SIM_ATTACK_REPLAY | 1u << UM_SIM_ATTACK_DATA;
    if (um_sim_adversary_can_invent(adversary))
        costly |= 1u << UM_SIM_ATTACK_STATUS;
    return (adversary->attacks & costly) != 0 || (is_windowed && adversary->attacks >> UM_SIM_ATTACK_SM & 1);
}

/* Records a datagram that a host sends, to replay it later. */
void um_sim_adversary_overhear(um_sim_adversary *adversary, const um_sim_datagram *datagram, const uint8_t *data);

/* Sends one burst. Returns the ns until the next one. */
int64_t um_sim_adversary_step(um_sim_adversary *adversary);

#endif

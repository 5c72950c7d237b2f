/* Path MTU discovery of a source session, after RFC 8899: the largest datagram that reaches every receiver.
 *
 * The source starts with what its interface carries, which is right on most networks. It sends probes (path_probe.h) of
 * a target size; receivers report the largest probe that has arrived in this round, in their status messages. A
 * receiver that reports smaller probes but never the target has a smaller path.
 *
 *                   newcomer: target is the size in effect, same round
 *                   raise timer: target is the interface's size, new round
 *                   suspicion: target is the size in effect, new round
 *      RESTING ---------------------------------------------------------------> CHECKING  attempt 1: the target
 *         ^                                                                     |      ^   attempts 2, 3: also smaller
 *         |<------------------ every receiver has reported the target ----------|      |          sizes
 *         |                                                                     |      | a report is still missing
 *         |                    third attempt: a receiver reports less           v      |
 *         +--- gap between passing and failing sizes is small <------------ NARROWING -+
 *                                                                   sizes between the two, the size in effect follows
 *
 * Suspicion: NAKs for datagrams that were already sent again, all of them long. Its check begins with all sizes, which
 * are also heard by receivers that do not count: those that have reported no probe (older versions; an outage when they
 * joined) and those whose path is below the floor. One that reports a size above the floor counts again, as a newcomer.
 * The raise timer runs while the size is below the interface's; its interval doubles.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: linear in the receivers. Errors: none; a
 * lost probe or report is repeated. Beyond UM_PATH_RECEIVERS_MAX receivers, further ones do not count.
 */
#ifndef UM_CORE_PATH_MTU_H
#define UM_CORE_PATH_MTU_H

#include "core/foundation/address.h"
#include "core/foundation/random.h"

enum {
    UM_PATH_RECEIVERS_MAX = 256,
    UM_PATH_SIZES_MAX = 12, /* probes of one attempt */
};

enum um_path_state { UM_PATH_RESTING, UM_PATH_CHECKING, UM_PATH_NARROWING };

/* The report of one receiver. */
typedef struct um_path_receiver {
    uint64_t id;
    um_address address;
    int64_t expires_ns;
    uint16_t round;   /* of the report; 0: none */
    uint16_t bytes;   /* largest probe that arrived in that round */
    uint8_t attempts; /* of the current step, since it is known */
    bool is_mute;     /* has never reported a probe, or has a path below the floor: does not count */
} um_path_receiver;

/* Sizes to probe now, ascending. */
typedef struct um_path_probes {
    uint32_t count;
    uint16_t sizes[UM_PATH_SIZES_MAX];
    bool wants_answer;
} um_path_probes;

typedef struct um_path_mtu {
    enum um_path_state state;
    uint32_t floor_bytes;   /* the size is never below it; 0: no discovery */
    uint32_t header_bytes;  /* of IP and UDP */
    uint32_t ceiling_bytes; /* what the interface carries */
    uint32_t bytes;         /* datagram size in effect */
    uint32_t target_bytes;
    uint32_t passing_bytes; /* NARROWING: largest size that has reached every receiver */
    uint32_t failing_bytes; /* NARROWING: smallest size that has not */
    uint32_t begun_bytes;   /* size in effect when the check began */
    um_random random;
    uint16_t round;     /* random, so that a host that cannot receive the group cannot report anything; 0: none yet */
    uint32_t attempt;   /* of the step; 0: no probe sent yet */
    uint32_t step;      /* of NARROWING */
    bool has_newcomer;  /* the report of a receiver is missing */
    bool is_suspicious; /* datagrams of the size in effect seem to be lost */
    uint32_t long_repeats;     /* successive NAKs of long datagrams that were already sent again */
    int64_t due_ns;            /* next call; UM_NEVER_NS: none is due */
    int64_t newcomers_from_ns; /* no newcomer begins a check before */
    int64_t suspicion_from_ns; /* no suspicion begins a check before */
    int64_t trust_interval_ns; /* pause after a suspicion that was wrong */
    int64_t raise_due_ns;      /* next check of the interface's size */
    int64_t raise_interval_ns;
    um_path_probes probes; /* of the last attempt */
    um_address limited_by; /* the receiver with the smallest path; port 0: none */
    uint32_t receiver_count;
    um_path_receiver receivers[UM_PATH_RECEIVERS_MAX];
} um_path_mtu;

/* `floor_bytes` 0: no discovery, the size is always the interface's. */
void um_path_mtu_init(um_path_mtu *path, uint32_t ceiling_bytes, uint32_t floor_bytes, uint32_t header_bytes,
                      uint64_t random_seed);

/* The interface carries another size now. */
void um_path_mtu_set_ceiling(um_path_mtu *path, uint32_t ceiling_bytes);

/* Notes a receiver's status message. `round` 0: it reports no probe. `interval_ns`: until its next one; 0: unknown. */
void um_path_mtu_on_status(um_path_mtu *path, um_address from, uint64_t receiver_id, uint16_t round, uint16_t bytes,
                           int64_t interval_ns, int64_t now_ns);
void um_path_mtu_on_leave(um_path_mtu *path, uint64_t receiver_id, int64_t now_ns);

/* Notes a NAK for a datagram of this length that was already sent again. */
void um_path_mtu_on_repeat(um_path_mtu *path, uint32_t datagram_bytes, int64_t now_ns);

/* Runs the timers. Returns the probes to send now, or NULL; `path->bytes` may change, `path->due_ns` is the next call.
 * `wait_ns`: time for an answer. */
const um_path_probes *um_path_mtu_tick(um_path_mtu *path, int64_t wait_ns, int64_t now_ns);

/* True if some receiver reports probes, so that it understands datagrams in pieces (datagram_piece.h). */
bool um_path_mtu_has_reports(const um_path_mtu *path);

#endif

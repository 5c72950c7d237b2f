/* The control protocol of LBT-IPC: messages of one size on a SOCK_SEQPACKET socket between a receiver and the source.
 *
 *   receiver                                         source
 *     HELLO: session, versions it can speak,
 *            the log's key if it has one     ------->
 *                                            <-------  WELCOME: version, capacity, position, pacing; descriptors: the
 *                                                      log segment, the receiver's page, and from version 4 on two
 *                                                      eventfds, one that wakes the receiver, one the source
 *                                            <-------  or REFUSED: reason, versions the source can speak; it closes
 *     TOPIC: it receives a topic, or no more,
 *            and its longest message         ------->   from version 2 on
 *     WAKE: the wanted position is reached   ------->   before version 4
 *                                            <-------  WAKE: the log is no longer empty; before version 4
 *
 * From version 4 on either side wakes the other by a write to its eventfd, and the socket carries only what is above.
 * Two processes share eventfds only if they belong to one user (io/ipc_wakeup.h has the reason), so either side speaks
 * versions below 4 only with a process of another user. Such a pair, and a peer of an earlier build, wakes by WAKE.
 *
 * A log with a key admits only receivers whose HELLO carries it: the source hands the key to whom it chooses, by a way
 * of its own (docs/driver.md). A log without key admits every receiver.
 *
 * Either side ends by closing its socket, which the kernel also does for a process that died. Data never passes here.
 *
 * Numbers are in the host's byte order: both ends are processes of one host. A message of another size, with another
 * magic, an unknown kind or a value out of range is not a message of this protocol.
 */
#ifndef UM_CORE_IPC_CONTROL_H
#define UM_CORE_IPC_CONTROL_H

#include "core/foundation/base.h"

enum {
    UM_IPC_MAGIC = 0x554d4950,
    UM_IPC_VERSION_LOW = 1, /* the versions that this build speaks */
    UM_IPC_VERSION_HIGH = 4,
    UM_IPC_VERSION_TOPICS = 2, /* the first with TOPIC */
    UM_IPC_VERSION_KEYS = 3,   /* the first with the key of a log */
    UM_IPC_VERSION_EVENTS = 4, /* the first with eventfds in place of WAKE */
    UM_IPC_CONTROL_BYTES = 40,
};

enum um_ipc_kind { UM_IPC_HELLO = 1, UM_IPC_WELCOME, UM_IPC_REFUSED, UM_IPC_WAKE, UM_IPC_TOPIC };

enum um_ipc_reason {
    UM_IPC_REASON_NONE = 0,
    UM_IPC_REASON_VERSION, /* no version in common */
    UM_IPC_REASON_SESSION, /* the socket belongs to another session */
    UM_IPC_REASON_FULL,    /* transport_lbtipc_maximum_receivers_per_transport, or the share of its user */
    UM_IPC_REASON_MEMORY,  /* the source has no memory or descriptor for the receiver's page */
    UM_IPC_REASON_KEY,     /* the log has a key, which the HELLO does not carry */
};

typedef struct um_ipc_control {
    uint32_t magic;
    uint16_t kind;         /* um_ipc_kind */
    uint16_t reason;       /* REFUSED: um_ipc_reason */
    uint16_t version_low;  /* HELLO, REFUSED: lowest version spoken; WELCOME: the one chosen */
    uint16_t version_high; /* HELLO, REFUSED: highest; WELCOME: the same as version_low */
    uint32_t session_id;
    union {
        uint32_t capacity_bytes;    /* WELCOME: of the ring */
        uint32_t message_max_bytes; /* TOPIC: the receiver drops longer messages; 0: it drops none, or does not say */
    };
    uint32_t is_source_paced; /* WELCOME: 0 or 1 */
    union {
        int64_t position; /* WELCOME: where the receiver starts */
        uint64_t key;     /* HELLO, from version 3 on: the log's key; 0: none */
    };
    uint32_t topic_index; /* TOPIC */
    uint32_t is_wanted;   /* TOPIC: 0 or 1 */
} um_ipc_control;

_Static_assert(sizeof(um_ipc_control) == UM_IPC_CONTROL_BYTES, "no padding");

/* Returns a message of this build with the kind and session, and everything else zero except the versions. */
um_ipc_control um_ipc_control_make(enum um_ipc_kind kind, uint32_t session_id);
/* Returns false if these bytes are no message. */
bool um_ipc_control_decode(const uint8_t *data, size_t length, um_ipc_control *message);
/* Returns the highest version that this build speaks with a peer that may share eventfds, or may not. */
static inline uint16_t um_ipc_highest_version(bool can_share)
{
    return can_share ? UM_IPC_VERSION_HIGH : UM_IPC_VERSION_EVENTS - 1;
}
/* Returns the highest version that both this build and the peer speak with each other; 0: none. */
uint16_t um_ipc_common_version(const um_ipc_control *peer, bool can_share);
/* Returns why a source of the session with `receiver_count` of at most `receivers_max` receivers refuses a HELLO.
 * `version` is the one in common with the receiver. `key` is that of the source's log; 0: none, and any HELLO will do.
 */
enum um_ipc_reason um_ipc_judge_hello(const um_ipc_control *hello, uint16_t version, uint32_t session_id, uint64_t key,
                                      uint32_t receiver_count, uint32_t receivers_max);

#endif

/* The control protocol of LBT-IPC: messages of one size on a SOCK_SEQPACKET socket between a receiver and the source.
 *
 *   receiver                                         source
 *     HELLO: session, versions it can speak,
 *            the log's key if it has one     ------->
 *                                            <-------  WELCOME: version, capacity, position, pacing; two descriptors:
 *                                                      the log segment and the receiver's page
 *                                            <-------  or REFUSED: reason, versions the source can speak; it closes
 *     TOPIC: it receives a topic, or no more,
 *            and its longest message         ------->   from version 2 on
 *     WAKE: the wanted position is reached   ------->
 *                                            <-------  WAKE: the log is no longer empty
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
    UM_IPC_VERSION_HIGH = 3,
    UM_IPC_VERSION_TOPICS = 2, /* the first with TOPIC */
    UM_IPC_VERSION_KEYS = 3,   /* the first with the key of a log */
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
/* Returns the highest version that both this build and the peer speak; 0: none. */
uint16_t um_ipc_common_version(const um_ipc_control *peer);
/* Returns why a source of the session with `receiver_count` of at most `receivers_max` receivers refuses a HELLO. `key`
 * is that of its log; 0: none, and any HELLO will do. */
enum um_ipc_reason um_ipc_judge_hello(const um_ipc_control *hello, uint32_t session_id, uint64_t key,
                                      uint32_t receiver_count, uint32_t receivers_max);

#endif

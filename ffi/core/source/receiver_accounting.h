/* Who NAKs how much: one account for each address that sends NAKs or status messages to a source session. The table is
 * bounded. When it is full, the stranger that was idle longest gives way, never a member or a receiver that is cut off.
 *
 * A member has reported a position and then a later one, so it follows the stream. A NAK proves nothing of its sender.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: linear in the table. Errors: NULL where
 * there is no space.
 */
#ifndef UM_CORE_RECEIVER_ACCOUNTING_H
#define UM_CORE_RECEIVER_ACCOUNTING_H

#include "core/foundation/base.h"

enum { UM_ACCOUNTS_MAX = 256 };

/* Bytes that may be retransmitted now. */
typedef struct um_repair_bucket {
    int64_t credit_bytes;
    int64_t filled_ns; /* INT64_MIN: never used, and full */
} um_repair_bucket;

typedef struct um_receiver_account {
    um_address address;
    int64_t last_seen_ns;
    int64_t last_nak_ns;   /* INT64_MIN: none yet */
    uint64_t naks;         /* sequence numbers NAKed */
    uint64_t bytes;        /* retransmitted because it NAKed first */
    uint64_t refused;      /* NAKs over its share, or after the cutoff */
    uint64_t too_late;     /* NAKs for what has left the window */
    int64_t round_trip_ns; /* as it reports; 0: it does not */
    um_repair_bucket bucket;
    int64_t over_since_ns; /* start of the time over its share */
    int64_t over_ns;       /* last refusal; INT64_MIN: none */
    int64_t noisy_ns;      /* last event of each kind; INT64_MIN: none */
    int64_t loses_ns;
    uint32_t reported_sqn;
    bool has_reported;
    bool is_member;
    bool is_new_member; /* since its last report */
    bool is_cut_off;
} um_receiver_account;

typedef struct um_receiver_accounting {
    uint32_t count;
    um_receiver_account accounts[UM_ACCOUNTS_MAX];
} um_receiver_accounting;

/* The account of an address, made if there is none. NULL when the table is full of receivers that keep their place. */
um_receiver_account *um_accounting_of(um_receiver_accounting *accounting, um_address address, int64_t now_ns);

/* A receiver reported that it has everything before `sqn`. Returns its account, or NULL. */
um_receiver_account *um_accounting_on_status(um_receiver_accounting *accounting, um_address address, uint32_t sqn,
                                             int64_t now_ns);

/* Members whose NAKs came within the last second: the repair budget is divided among them. */
uint32_t um_accounting_active_members(const um_receiver_accounting *accounting, int64_t now_ns);

/* A NAK was refused. True when the receiver has now been over its share without a second of rest for
 * `cutoff_interval_ns` (0: never), and is cut off. */
bool um_accounting_refuse(um_receiver_account *account, int64_t cutoff_interval_ns, int64_t now_ns);

#endif

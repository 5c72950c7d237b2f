/* Accounts of the receivers of a source session: one for each address that sends NAKs or status messages. The table is
 * bounded. When it is full, the account idle longest is replaced, but never that of a receiver cut off, and a member's
 * only after two idle minutes: members that restart have another address, and would fill the table. A client of a
 * stream is a member, and not idle, while it is connected.
 *
 * A member has reported a position and later a higher one, so it follows the stream. A NAK proves nothing of its
 * sender.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: linear in the table. Errors: NULL if
 * there is no space.
 */
#ifndef UM_CORE_RECEIVER_ACCOUNTING_H
#define UM_CORE_RECEIVER_ACCOUNTING_H

#include "core/foundation/address.h"
#include "core/source/topic_filter.h"
#include "core/wire/topic_report.h"

enum { UM_ACCOUNTS_MAX = 256, UM_ACCOUNT_TOPICS_MAX = 1024 };

/* Token bucket of bytes that may be retransmitted now. */
typedef struct um_repair_bucket {
    int64_t credit_bytes;
    int64_t filled_ns; /* INT64_MIN: never used, and full */
} um_repair_bucket;

typedef struct um_receiver_account {
    um_address address;
    int64_t last_seen_ns;  /* UM_NEVER_NS: it is connected */
    int64_t last_nak_ns;   /* INT64_MIN: never */
    uint64_t naks;         /* sqns NAKed */
    uint64_t bytes;        /* retransmitted because it NAKed first */
    uint64_t refused;      /* NAKs over its share, or after the cutoff */
    uint64_t too_late;     /* NAKs of datagrams that have left the window */
    int64_t round_trip_ns; /* reported by the receiver; 0: none */
    int64_t repaired_ns;   /* retransmissions sent before this have arrived or are lost; INT64_MIN: unknown */
    uint32_t repaired_end; /* of those sent at repaired_ns, the same holds for sqns before this one */
    um_repair_bucket bucket;
    int64_t over_since_ns;        /* start of the time over its share */
    int64_t over_ns;              /* last refusal; INT64_MIN: none */
    int64_t noisy_ns;             /* last UM_SOURCE_RECEIVER_NOISY event; INT64_MIN: none */
    int64_t loses_ns;             /* last UM_SOURCE_RECEIVER_LOSES event; INT64_MIN: none */
    int64_t slow_ns;              /* last UM_SOURCE_RECEIVER_SLOW event; INT64_MIN: none */
    int64_t cut_loose_ns;         /* last UM_SOURCE_RECEIVER_CUT_LOOSE event; INT64_MIN: none */
    int64_t gave_up_ns;           /* last UM_SOURCE_RECEIVER_GAVE_UP event; INT64_MIN: none */
    int64_t too_long_ns;          /* last UM_SOURCE_MESSAGE_TOO_LONG event; INT64_MIN: none */
    uint64_t given_up;            /* datagrams that it reported as given up, in all of its sessions */
    uint32_t session_given_up;    /* those of its current session */
    uint32_t session_unconfirmed; /* more that it gave up and that may still be sent again */
    uint32_t reported_sqn;
    bool has_reported;
    bool is_member;
    bool is_new_member; /* its last report made it a member */
    bool is_slow;       /* its last report has UM_STATUS_SLOW */
    bool is_cut_loose;  /* its last report has UM_STATUS_CUT_LOOSE */
    bool is_awaited;    /* the application knows that it was cut loose, and not yet that it reads again */
    bool is_cut_off;
    bool has_topics;  /* it reports its topics; otherwise it is taken to receive every topic */
    bool is_overfull; /* it reports more topics than `topics` holds, and is taken to receive every topic */
    um_topic_filter topics;
    uint32_t *message_max_bytes; /* of each topic, by its place in `topics`; 0: any length */
} um_receiver_account;

typedef struct um_receiver_accounting {
    uint32_t count;
    um_receiver_account accounts[UM_ACCOUNTS_MAX];
    uint8_t *topic_memory;
    _Atomic uint32_t message_max_bytes; /* no receiver has reported less for a topic; any thread reads it */
} um_receiver_accounting;

/* Memory of the accounts' topics, which is touched as topics are reported. */
static inline size_t um_account_topics_footprint(void)
{
    return um_topic_filter_footprint(UM_ACCOUNT_TOPICS_MAX) + (2 * UM_ACCOUNT_TOPICS_MAX + 1) * sizeof(uint32_t);
}
static inline size_t um_accounting_topics_footprint(void)
{
    return UM_ACCOUNTS_MAX * um_account_topics_footprint();
}
/* accounting: zeroed. memory: um_accounting_topics_footprint bytes, zeroed; NULL: receivers report no topics. */
void um_accounting_init(um_receiver_accounting *accounting, void *memory);

/* Finds or opens the account of an address. Returns NULL if the table is full of accounts that cannot be replaced. */
um_receiver_account *um_accounting_of(um_receiver_accounting *accounting, um_address address, int64_t now_ns);

/* Notes a receiver's report that it has everything before `sqn`. Returns its account, or NULL. */
um_receiver_account *um_accounting_on_status(um_receiver_accounting *accounting, um_address address, uint32_t sqn,
                                             int64_t now_ns);

/* Notes the number of datagrams given up in the current session of a receiver. Returns the increase. */
uint32_t um_accounting_on_given_up(um_receiver_account *account, uint32_t given_up, uint32_t unconfirmed);

/* Notes the topics that a receiver reports. NULL: it has left. A limit that no queue has (UM_QUEUE_MESSAGE_BYTES_MIN)
 * is forged, and none: every send would look for it. */
void um_accounting_on_topics(um_receiver_accounting *accounting, um_receiver_account *account,
                             const um_topic_report *report);
/* Returns the bytes of the longest message of the topic that the receiver accepts; UINT32_MAX: any, or unknown, or the
 * receiver was idle for two minutes. */
uint32_t um_account_message_max(const um_receiver_account *account, uint32_t topic_index, int64_t now_ns);

/* Returns the account of an address, or NULL. */
const um_receiver_account *um_accounting_find(const um_receiver_accounting *accounting, um_address address);
/* True if the receiver has a receiver of the topic, or does not say. */
static inline bool um_account_wants(const um_receiver_account *account, uint32_t topic_index)
{
    return account == NULL || !account->has_topics || account->is_overfull ||
           um_topic_filter_has(&account->topics, topic_index);
}

/* Number of members whose NAKs arrived within the last second: the repair budget is divided among them. */
uint32_t um_accounting_active_members(const um_receiver_accounting *accounting, int64_t now_ns);

/* Notes a refused NAK. Returns true if this cuts the receiver off: it has been over its share for `cutoff_interval_ns`
 * (0: never) without a break of a second. */
bool um_accounting_refuse(um_receiver_account *account, int64_t cutoff_interval_ns, int64_t now_ns);

#endif

/* Hot failover: one stream sent by several sources, each message with a number assigned by the application. The first
 * copy of a number is delivered, in the order of the numbers; other copies are dropped. A number is declared lost if no
 * copy of it arrives within max_delay of a later number.
 *
 *   input queues (one per context): rows of the sources in arrival order, the number's option before the payload
 *      -> slots by number: a waiting message stays in its input block -> output queue: rows for the reader
 *
 * Numbers that the application skipped on purpose are recognized by topic sequence numbers: between two messages with
 * successive topic sqns of one source, no number exists.
 *
 * Threads: the reader of the output, which is the consumer of every input. Memory: one block of footprint bytes, the
 * creator's; the inputs must outlive it. Errors: none; messages that find no space in the output wait. Complexity:
 * constant for a message in order; a gap is searched once when it is passed.
 */
#ifndef UM_CORE_HOT_FAILOVER_H
#define UM_CORE_HOT_FAILOVER_H

#include "core/delivery/message_queue.h"
#include "core/foundation/counters.h"
#include "core/wire/lbmc.h"

enum {
    UM_HF_INPUTS_MAX = 4,
    UM_HF_SOURCES = 64,    /* sources whose numbers are compared with their topic sqns: the last ones that sent */
    UM_HF_NEIGHBOURS = 64, /* messages remembered per source */
    UM_HF_GAP_MAX = 1 << 30,
};

typedef struct um_hot_failover_config {
    uint32_t capacity; /* slots: a power of two */
    int64_t max_delay_ns;
    bool delivers_optional;
    bool delivers_duplicates;
} um_hot_failover_config;

/* A message that waits for an earlier number. */
typedef struct um_hf_slot {
    um_block *block; /* NULL: the slot is free */
    uint32_t row;
    uint32_t input;
    bool has_previous;
    bool is_optional;
    uint64_t previous; /* number of the preceding message of the same source */
    int64_t arrived_ns;
} um_hf_slot;

typedef struct um_hf_neighbour {
    bool is_known;
    uint32_t topic_sqn;
    uint64_t sqn;
} um_hf_neighbour;

typedef struct um_hf_source {
    bool is_in_use;
    uint32_t number;
    uint64_t resets;
    uint64_t last_use;                          /* value of um_hot_failover.uses at its last row */
    um_hf_neighbour by_last[UM_HF_NEIGHBOURS];  /* by the topic sqn of a message's last fragment */
    um_hf_neighbour by_first[UM_HF_NEIGHBOURS]; /* by the topic sqn of a message's first fragment */
} um_hf_source;

typedef struct um_hot_failover {
    um_hot_failover_config config;
    um_message_queue out;
    um_message_queue *inputs[UM_HF_INPUTS_MAX];
    um_rows taken[UM_HF_INPUTS_MAX]; /* rows taken from each input and not yet examined */
    uint32_t input_count;
    um_hf_slot *slots;
    uint32_t held_count;
    bool has_begun;
    bool has_jumped; /* jump_sqn is valid: the last number was too far ahead to be accepted without a second one */
    uint64_t jump_sqn;
    bool is_reset_due; /* reset_source and reset_sqn are valid */
    uint32_t reset_source;
    uint64_t reset_sqn;
    uint64_t resets;   /* resets delivered */
    uint64_t next_sqn; /* every number before it is delivered, skipped or lost */
    uint64_t lowest;   /* lowest number held, if held_count is not 0 */
    int64_t now_ns;
    uint64_t uses; /* rows of sources examined */
    um_hf_source sources[UM_HF_SOURCES];
    um_hot_failover_counters counters;
} um_hot_failover;

size_t um_hot_failover_footprint(const um_hot_failover_config *config);
/* The creator also initializes the output queue afterwards: um_queue_init(&hf->out, ...). */
void um_hot_failover_init(um_hot_failover *hf, void *memory, const um_hot_failover_config *config);

/* Takes rows from the inputs and returns at most `max` rows that may be delivered. */
um_rows um_hot_failover_take(um_hot_failover *hf, uint32_t max, int64_t now_ns);
/* True if a take may find rows. */
bool um_hot_failover_is_ready(um_hot_failover *hf, int64_t now_ns);
/* Returns when the oldest gap is declared lost, or UM_NEVER_NS. */
int64_t um_hot_failover_deadline_ns(const um_hot_failover *hf);

#endif

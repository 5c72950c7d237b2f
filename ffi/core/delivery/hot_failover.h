/* Hot failover: one stream that several sources send, each message under a number that the application gives it. The
 * first copy of a number is delivered, in the order of the numbers; other copies are dropped. A number that no source
 * has brought max_delay after a later one came is declared lost.
 *
 *   input queues (one a context): rows of the sources as they arrive, the number's option before the payload
 *      -> slots by number: what waits for an earlier one stays in its input block -> output queue: what is read
 *
 * Numbers that the application left out on purpose are known by the topic sequence numbers of a source: two messages
 * that follow each other there have nothing between them.
 *
 * Threads: the reader of the output, which is the consumer of every input. Memory: one block of footprint bytes, the
 * creator's; inputs outlive it. Errors: none; what finds no space in the output waits. Complexity: constant for a
 * message in order; a gap is searched once when it is passed.
 */
#ifndef UM_CORE_HOT_FAILOVER_H
#define UM_CORE_HOT_FAILOVER_H

#include "core/delivery/message_queue.h"
#include "core/foundation/counters.h"
#include "core/wire/lbmc.h"

enum {
    UM_HF_INPUTS_MAX = 4,
    UM_HF_SOURCES = 64,    /* whose numbering is followed */
    UM_HF_NEIGHBOURS = 64, /* messages of each that are remembered */
    UM_HF_GAP_MAX = 1 << 30,
};

typedef struct um_hot_failover_config {
    uint32_t capacity; /* slots: a power of two */
    int64_t max_delay_ns;
    bool delivers_optional;
    bool delivers_duplicates;
} um_hot_failover_config;

/* A message that waits for an earlier one. */
typedef struct um_hf_slot {
    um_block *block; /* NULL: none */
    uint32_t row;
    uint32_t input;
    bool has_previous;
    bool is_optional;
    uint64_t previous; /* the number of the message before it at its source */
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
    um_hf_neighbour by_last[UM_HF_NEIGHBOURS];  /* by the topic sqn of the last fragment */
    um_hf_neighbour by_first[UM_HF_NEIGHBOURS]; /* of the first */
} um_hf_source;

typedef struct um_hot_failover {
    um_hot_failover_config config;
    um_message_queue out;
    um_message_queue *inputs[UM_HF_INPUTS_MAX];
    um_rows taken[UM_HF_INPUTS_MAX]; /* of each input, and not looked at yet */
    uint32_t input_count;
    um_hf_slot *slots;
    uint32_t held_count;
    bool has_begun;
    bool has_jumped; /* jump_sqn was too far ahead to be believed */
    uint64_t jump_sqn;
    bool is_reset_due; /* reset_sqn, of reset_source */
    uint32_t reset_source;
    uint64_t reset_sqn;
    uint64_t resets;   /* that were delivered */
    uint64_t next_sqn; /* every number before it is delivered, left out or lost */
    uint64_t lowest;   /* of those held, when held_count is not 0 */
    int64_t now_ns;
    um_hf_source sources[UM_HF_SOURCES];
    um_hot_failover_counters counters;
} um_hot_failover;

size_t um_hot_failover_footprint(const um_hot_failover_config *config);
/* The output queue's memory is the creator's, too: um_queue_init(&hf->out, ...) after this. */
void um_hot_failover_init(um_hot_failover *hf, void *memory, const um_hot_failover_config *config);

/* Takes what the inputs have and may be delivered, at most `max` rows. */
um_rows um_hot_failover_take(um_hot_failover *hf, uint32_t max, int64_t now_ns);
/* Whether a take may find rows. */
bool um_hot_failover_is_ready(um_hot_failover *hf, int64_t now_ns);
/* When the oldest gap is declared lost; UM_NEVER_NS: there is none. */
int64_t um_hot_failover_deadline_ns(const um_hot_failover *hf);

#endif

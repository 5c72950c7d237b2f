/* Checks what one delivery controller gives its application against what was published: nothing twice, nothing out of
 * order in mode 1, every payload right, no gap without a loss event, BOS first and once, EOS last and once
 * (UM-53..UM-61, UM-76, UM-99, UM-101, UM-105, UX-6, UX-7).
 */
#ifndef UM_SIM_ROW_CHECKER_H
#define UM_SIM_ROW_CHECKER_H

#include "sim/published.h"

typedef struct um_sim_row_checker {
    um_sim_world *world;
    const um_sim_topic *topic; /* NULL: not in use */
    uint32_t join;
    int32_t mode;    /* um_ordered_delivery */
    uint8_t *state;  /* by sqn - initial sqn: enum fragment_state */
    uint32_t *bytes; /* mode 0, by message: payload bytes delivered */
    bool begun;      /* a message or a loss has been seen */
    bool bos, eos;
    bool is_lied_to;   /* its peer promises what was never published: that is lost, too */
    bool has_foretold; /* such a loss has been declared, before foretold_end */
    uint32_t foretold_end;
    bool may_leave_out; /* live messages that find no place in the order map, for a source that may not retain them */
    bool no_loss;       /* a loss event is a violation */
    bool from_start;    /* the first message published is the first one delivered */
    uint32_t lowest;    /* lowest sqn seen so far */
    uint32_t expected;  /* mode 1: next sqn */
    uint64_t delivered_count;
    uint64_t loss_count;
} um_sim_row_checker;

bool um_sim_row_checker_init(um_sim_row_checker *checker, um_sim_world *world, const um_sim_topic *topic, uint32_t join,
                             int32_t mode);

/* The join follows one whose session ended: what lies between is delivered or declared lost, too. */
void um_sim_row_checker_resume(um_sim_row_checker *checker, const um_sim_row_checker *ended);

/* One row the application read. Complains to the world. */
void um_sim_check_row(um_sim_row_checker *checker, const um_block *block, uint32_t row);

/* Everything published has been delivered or declared lost, from the first thing seen on. */
void um_sim_check_complete(um_sim_row_checker *checker);

#endif

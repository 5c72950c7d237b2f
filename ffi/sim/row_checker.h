/* Compares the rows that one delivery controller delivers with the published messages: nothing twice, nothing out of
 * order in mode 1, every payload correct, no gap without a loss event, BOS first and once, EOS last and once
 * (UM-53..UM-61, UM-76, UM-99, UM-101, UM-105, UX-6, UX-7).
 */
#ifndef UM_SIM_ROW_CHECKER_H
#define UM_SIM_ROW_CHECKER_H

#include "sim/published.h"

typedef struct um_sim_row_checker {
    um_sim_world *world;
    const um_sim_topic *topic; /* NULL: unused */
    uint32_t join;
    int32_t mode;    /* um_ordered_delivery */
    uint8_t *state;  /* by sqn - initial sqn: enum fragment_state */
    uint32_t *bytes; /* mode 0, by message: payload bytes delivered */
    bool has_begun;  /* true once a message or a loss was seen */
    bool has_bos, has_eos;
    bool is_lied_to;   /* its peer advertises messages that were never published: those are lost, too */
    bool has_foretold; /* such a loss has been declared, before foretold_end */
    uint32_t foretold_end;
    bool can_leave_out;     /* live messages may be lost for lack of space in the order map */
    bool is_loss_forbidden; /* a loss event is a violation */
    bool was_cut_loose;     /* the receiver was cut loose, so losses are allowed from then on */
    bool is_from_start;     /* the first message delivered must be the first one published */
    uint32_t lowest;        /* lowest sqn seen so far */
    uint32_t expected;      /* mode 1: next sqn */
    uint64_t delivered_count;
    uint64_t loss_count;
} um_sim_row_checker;

bool um_sim_row_checker_init(um_sim_row_checker *checker, um_sim_world *world, const um_sim_topic *topic, uint32_t join,
                             int32_t mode);

/* The join follows one whose session ended: messages between the two are delivered or declared lost, too. */
void um_sim_row_checker_resume(um_sim_row_checker *checker, const um_sim_row_checker *ended);

/* Checks a row that the application has read. Complains to the world. */
void um_sim_check_row(um_sim_row_checker *checker, const um_block *block, uint32_t row);

/* Checks that everything published since the first row was delivered or declared lost. */
void um_sim_check_complete(um_sim_row_checker *checker);

#endif

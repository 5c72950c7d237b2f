/* A receiver as applications open it: messages of its sources are delivered into its event queue, which several
 * receivers may share.
 *
 * Threads: any; closing waits for the calls under way. Memory: um_subscription_open creates it, _free frees it once no
 * thread can use it. Errors: negative errno, or UM_CLOSED.
 */
#ifndef UM_IO_SUBSCRIPTION_H
#define UM_IO_SUBSCRIPTION_H

#include "core/receiver/receiver_session.h"
#include "io/event_queue.h"

typedef struct um_subscription um_subscription;

/* UM_CLOSED if the queue is closed. */
int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **subscription);
/* Rows that it has delivered stay in the queue and can be read. */
void um_subscription_close(um_subscription *subscription);
void um_subscription_free(um_subscription *subscription);

/* Maps a topic of a session to the subscription: joins the group and creates the receiving session if needed.
 * -EEXIST if it is mapped already, -EAGAIN while that session ends. */
int um_subscription_map(um_subscription *subscription, const um_receiver_session_config *session, uint32_t topic_index,
                        uint32_t source);
/* The same for a source whose messages before next_sqn the subscription has had by another session: delivery continues
 * there, so that a gap is reported. */
int um_subscription_map_resumed(um_subscription *subscription, const um_receiver_session_config *session,
                                uint32_t topic_index, uint32_t source, uint32_t next_sqn);

/* The number of a source whose controller has ended. */
typedef struct um_ended_source {
    uint32_t source;
    uint64_t rows; /* rows of the queue up to its last one; 0: it has none */
    bool has_position;
    uint32_t next_sqn; /* with has_position: everything before it was delivered or reported lost */
} um_ended_source;

/* Takes up to `max` numbers of sources that have ended, those of a closed subscription included. Returns how many. */
uint32_t um_subscription_take_ended(um_subscription *subscription, um_ended_source *out, uint32_t max);

/* Returns how many sources are mapped to it whose messages from now on are received, or reported as lost. */
uint32_t um_subscription_connected(um_subscription *subscription);

/* Stops or resumes NAKs of its sessions for it (UX-21; core/receiver/nak_cutoff.h). No effect if it is closed. */
void um_subscription_set_nak_cutoff(um_subscription *subscription, bool is_cut_off);

#endif

/* A receiver as applications open it: what it follows is delivered into an event queue, its own or one it shares.
 *
 * Threads: any; closing waits for the calls under way. Memory: um_subscription_open makes it, _free frees it once no
 * thread can use it. Errors: negative errno, or UM_CLOSED.
 */
#ifndef UM_IO_SUBSCRIPTION_H
#define UM_IO_SUBSCRIPTION_H

#include "core/receiver/receiver_session.h"
#include "io/event_queue.h"

typedef struct um_subscription um_subscription;

/* UM_CLOSED when the queue is closed. */
int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **subscription);
/* What it has delivered stays in the queue and is read. */
void um_subscription_close(um_subscription *subscription);
void um_subscription_free(um_subscription *subscription);

/* Maps a topic of a session to the subscription: joins the group and creates the receiving session where needed.
 * -EEXIST when it is mapped already, -EAGAIN while that session ends. */
int um_subscription_map(um_subscription *subscription, const um_receiver_session_config *session, uint32_t topic_index,
                        uint32_t source);

/* Its sessions do not NAK for it, or do again (UX-21; core/receiver/nak_cutoff.h). No effect on one that is closed. */
void um_subscription_set_nak_cutoff(um_subscription *subscription, bool is_cut_off);

#endif

/* Late join and recovery requests for Python, which owns the TCP connections: these calls parse and write the bytes of
 * many messages at once (core/receiver/fetch.h, core/source/retention.h).
 *
 * Threads: any. Memory: the caller's buffers. Errors: UM_CLOSED, -EBADMSG if the peer violates the protocol, -ENOENT if
 * there is nothing (more) to do.
 */
#ifndef UM_IO_LATE_JOINING_H
#define UM_IO_LATE_JOINING_H

#include "core/receiver/fetch.h"
#include "core/source/retention.h"
#include "io/publication.h"
#include "io/subscription.h"

/* Stops receiving a source that continues in another session. Returns its state: `has_position` false if nothing is
 * known of its stream; -ENOENT if it is not mapped. */
int um_subscription_unmap(um_subscription *subscription, const um_session_id *id, uint32_t topic_index,
                          bool *has_position, uint32_t *next_sqn);
/* A Store has the source's messages up to `high_sqn`: those that have not arrived are gaps from now on, which the
 * running fetch, or else off-transport recovery, fetches. -ENOENT if the source is not mapped or has not begun. */
int um_subscription_note_stored(um_subscription *subscription, const um_session_id *id, uint32_t topic_index,
                                uint32_t high_sqn);

/* As um_fetch_step; also -ENOENT if the session no longer exists. */
int um_subscription_fetch(um_subscription *subscription, um_fetch *fetch, const char *received, uint32_t length,
                          char *out, uint32_t capacity);
/* As um_fetch_attend. */
int um_subscription_attend_fetch(um_subscription *subscription, um_fetch *fetch);

/* A fetch, and what um_attend_fetches last returned for it. */
typedef struct um_attended_fetch {
    um_subscription *subscription;
    um_fetch *fetch;
    int action;
} um_attended_fetch;

/* Attends many fetches. Stores the indexes of those with an action other than UM_FETCH_WAIT; returns their number. */
uint32_t um_attend_fetches(um_attended_fetch *fetches, uint32_t count, uint32_t *due);

/* Offers late join. -EBUSY if it does so already. */
int um_publication_retain(um_publication *publication, const um_retention_config *config);
/* Stores the range of retained and requested sqns. -ENOENT if the source does not offer late join. */
int um_publication_retained(um_publication *publication, const um_range_bounds *bounds, uint32_t *low, uint32_t *high);

/* Requests of one connection and the responses to them. */
typedef struct um_served {
    uint32_t skip;     /* in and out: requests of the first message that are already answered */
    uint32_t consumed; /* bytes of requests */
    uint32_t written;
} um_served;

int um_publication_serve(um_publication *publication, um_served *served, const char *requests, uint32_t length,
                         char *out, uint32_t capacity);

#endif

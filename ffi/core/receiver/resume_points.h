/* The positions of controllers whose session ended. When the session is joined again, delivery resumes there: messages
 * in between are recovered if the source still has them and reported as lost otherwise. Without this, a session that
 * timed out in an outage, or was ended by an attacker's replayed datagrams, would lose messages without an event.
 *
 * A point is saved when an ended session is removed, and used when the same receiver joins the same topic of the same
 * session again. The number of points is bounded; the oldest is replaced.
 *
 * A resumed session that receives only datagrams from before its position ends again (UM-104): they are replayed, or
 * the source has restarted under the same identity, or the position was forged. A position from a session with little
 * data is then dropped at once, others after several such sessions.
 *
 * Threads: the context lock. Memory: one block of footprint bytes, the owner's; unused pages stay untouched.
 * Complexity: linear in the points for each mapped controller. Errors: none; dropped points are counted.
 */
#ifndef UM_CORE_RESUME_POINTS_H
#define UM_CORE_RESUME_POINTS_H

#include "core/receiver/receiver_session.h"

typedef struct um_resume_point {
    um_session_id id;
    const um_receiver *receiver; /* NULL: the entry is free */
    uint32_t topic_index;
    uint32_t next_sqn;           /* of the topic: everything before it was delivered or reported lost */
    bool has_transport;          /* transport_next_sqn is valid; false if all messages were fetched */
    uint32_t transport_next_sqn; /* of the session */
    uint32_t rounds;             /* sessions that may still end by earlier datagrams before the point is dropped */
} um_resume_point;

typedef struct um_resume_points {
    um_resume_point *points;
    uint32_t capacity;
    uint32_t used;   /* entries that were ever used */
    uint32_t oldest; /* the entry to replace when all are used */
} um_resume_points;

size_t um_resume_points_footprint(uint32_t capacity);
/* memory is zeroed. With capacity 0, without memory, no point is saved. */
void um_resume_points_init(um_resume_points *points, void *memory, uint32_t capacity);

/* Saves the positions of the controllers of an ended session. Returns how many points were dropped. */
uint32_t um_resume_points_save(um_resume_points *points, const um_receiver_session *session);

/* Makes a controller that was just mapped resume at its point, if there is one. */
void um_resume_points_apply(um_resume_points *points, um_receiver_session *session, um_delivery *delivery);

/* Removes the points of a receiver that is being destroyed. */
void um_resume_points_forget(um_resume_points *points, const um_receiver *receiver);

#endif

/* Where controllers of sessions that ended were: a session that is joined again resumes there, so that what lies
 * between is recovered where the source still has it, and reported as lost where not. Without it a session that an
 * attacker ended by replayed datagrams, or that timed out in an outage, would lose messages without an event.
 *
 * A point is saved when a session that ended is taken down, and taken when the same receiver joins the same topic of
 * the same session again. There is a bounded number; the oldest gives way.
 *
 * A session that resumes and receives nothing but datagrams from before its place ends once more (UM-104). Either they
 * are replayed, or the source has begun anew under the same identity, or the place was forged. A place that a session
 * with little data left is given up at once then, others after several such sessions.
 *
 * Threads: the context lock. Memory: one block of footprint bytes, the owner's; pages that were never used stay
 * untouched. Complexity: linear in the points for a controller that is mapped. Errors: none; points that are given up
 * are counted.
 */
#ifndef UM_CORE_RESUME_POINTS_H
#define UM_CORE_RESUME_POINTS_H

#include "core/receiver/receiver_session.h"

typedef struct um_resume_point {
    um_session_id id;
    const um_receiver *receiver; /* NULL: the place is free */
    uint32_t topic_index;
    uint32_t next_sqn;           /* of the topic: everything before it was delivered or reported lost */
    bool has_transport;          /* no: all that came was fetched */
    uint32_t transport_next_sqn; /* of the session */
    uint32_t rounds;             /* sessions that may yet end by earlier datagrams before it is taken for refuted */
} um_resume_point;

typedef struct um_resume_points {
    um_resume_point *points;
    uint32_t capacity;
    uint32_t used;   /* places that were ever taken */
    uint32_t oldest; /* the place that gives way when all are taken */
} um_resume_points;

size_t um_resume_points_footprint(uint32_t capacity);
/* Zeroed memory. Capacity 0, without memory: nothing is saved. */
void um_resume_points_init(um_resume_points *points, void *memory, uint32_t capacity);

/* Saves where the controllers of a session that ended are. Returns how many points were given up. */
uint32_t um_resume_points_save(um_resume_points *points, const um_receiver_session *session);

/* The controller, mapped just now, resumes where the receiver was, if there is a point. */
void um_resume_points_apply(um_resume_points *points, um_receiver_session *session, um_delivery *delivery);

/* The receiver is going. */
void um_resume_points_forget(um_resume_points *points, const um_receiver *receiver);

#endif

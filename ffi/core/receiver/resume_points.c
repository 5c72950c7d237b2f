#include "core/receiver/resume_points.h"

enum { ROUNDS_MAX = 8, PROVED_BY = 64 /* datagrams: as many as end a session */ };

size_t um_resume_points_footprint(uint32_t capacity)
{
    return capacity * sizeof(um_resume_point);
}

void um_resume_points_init(um_resume_points *points, void *memory, uint32_t capacity)
{
    *points = (um_resume_points){.points = memory, .capacity = capacity};
}

/* Returns a free entry, or the oldest. */
static um_resume_point *take_place(um_resume_points *points, uint32_t *gave_way)
{
    if (points->used < points->capacity)
        return &points->points[points->used++];
    for (uint32_t i = 0; i < points->capacity; i++)
        if (points->points[i].receiver == NULL)
            return &points->points[i];
    ++*gave_way;
    points->oldest = (points->oldest + 1) % points->capacity;
    return &points->points[(points->oldest + points->capacity - 1) % points->capacity];
}

/* Returns the rounds of a point of this session; 0: it must not be saved. */
static uint32_t rounds_of(const um_receiver_session *session)
{
    if (session->is_resumed && !session->has_data)
        return session->resume_rounds - (session->stray_count > 0);
    return session->counters.msgs_rcved >= PROVED_BY ? ROUNDS_MAX : 1;
}

uint32_t um_resume_points_save(um_resume_points *points, const um_receiver_session *session)
{
    uint32_t gave_way = 0, rounds = rounds_of(session);
    if (points->capacity == 0 || !session->has_ended)
        return 0;
    for (const um_delivery *d = session->controllers; d != NULL; d = d->next) {
        um_resume_point point = {.id = session->config.id,
                                 .receiver = d->receiver,
                                 .topic_index = d->topic_index,
                                 .next_sqn = d->resume_sqn,
                                 .has_transport = session->has_base,
                                 .transport_next_sqn = session->next_sqn,
                                 .rounds = rounds};
        gave_way += d->has_resume && rounds == 0;
        if (d->has_resume && rounds > 0)
            *take_place(points, &gave_way) = point;
    }
    return gave_way;
}

void um_resume_points_apply(um_resume_points *points, um_receiver_session *session, um_delivery *delivery)
{
    for (uint32_t i = 0; i < points->used; i++) {
        um_resume_point *point = &points->points[i];
        if (point->receiver != delivery->receiver || point->topic_index != delivery->topic_index ||
            !um_session_id_equal(&point->id, &session->config.id))
            continue;
        delivery->has_resume = true;
        delivery->resume_sqn = point->next_sqn;
        if (point->has_transport) {
            delivery->highest_transport_sqn = point->transport_next_sqn - 1;
            um_receiver_session_resume(session, point->transport_next_sqn, point->rounds);
        }
        point->receiver = NULL;
        return;
    }
}

void um_resume_points_forget(um_resume_points *points, const um_receiver *receiver)
{
    for (uint32_t i = 0; i < points->used; i++)
        if (points->points[i].receiver == receiver)
            points->points[i].receiver = NULL;
}

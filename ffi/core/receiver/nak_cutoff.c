#include "core/receiver/nak_cutoff.h"

#include "core/delivery/delivery_rows.h"

void um_nak_cutoff_set(um_receiver_session *session, uint32_t reasons)
{
    if (reasons == session->nak_cutoff)
        return;
    session->nak_cutoff = reasons;
    if (reasons == 0) /* the interval restarts */
        session->nak_budget.limited_ns = INT64_MIN;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next)
        d->is_nak_free = !um_receiver_session_can_nak(session);
    session->due_ns[UM_TIMER_CONTROLLERS] = INT64_MIN;
}

void um_nak_cutoff_on_receivers(um_receiver_session *session)
{
    bool all = session->controllers != NULL;
    for (const um_delivery *d = session->controllers; d != NULL && all; d = d->next)
        all = d->receiver->is_cut_off;
    uint32_t others = session->nak_cutoff & ~(uint32_t)UM_NAK_CUTOFF_RECEIVERS;
    um_nak_cutoff_set(session, others | (all ? UM_NAK_CUTOFF_RECEIVERS : 0));
}

void um_nak_cutoff_on_limited(um_receiver_session *session)
{
    const um_nak_budget *budget = &session->nak_budget;
    int64_t interval_ns = session->config.nak_cutoff_interval_ns;
    if (interval_ns == 0 || budget->limited_ns - budget->limited_since_ns < interval_ns)
        return;
    UM_COUNT(session->counters.nak_cutoffs, 1);
    um_nak_cutoff_set(session, session->nak_cutoff | UM_NAK_CUTOFF_SESSION);
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        if (d->state >= UM_DELIVERY_ENDING)
            continue;
        d->announcements_due |= UM_ANNOUNCE_NAK_CUTOFF;
        um_delivery_announce(d);
    }
}

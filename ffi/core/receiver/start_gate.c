#include "core/receiver/start_gate.h"

#include "core/delivery/delivery_controller.h"

/* Controllers mapped at the same time start at the same position, so the search is cached for all of them. */
static const um_blocker_search *search_blocker(um_receiver_session *session, uint32_t from, uint32_t before)
{
    um_blocker_search *search = &session->search;
    if (search->from == from && search->before == before && search->change_count == session->losses.change_count)
        return search;
    *search = (um_blocker_search){.from = from, .before = before, .change_count = session->losses.change_count};
    for (uint32_t i = 0; i < session->losses.count; i++) {
        uint32_t sqn = session->losses.entries[i].sqn;
        if (um_serial_before(sqn, from))
            continue;
        if (!um_serial_before(sqn, before)) {
            search->has_found_later = true;
        } else if (!search->has_found || um_serial_before(search->sqn, sqn)) {
            search->has_found = true;
            search->sqn = sqn;
        }
    }
    return search;
}

/* The newest lost datagram that may carry the topic is cached: while it is lost the result is immediate, and once it is
 * recovered, older ones usually are, too. If no such datagram was found since the controller was mapped, that is cached
 * until the next gap. */
bool um_start_gate_is_closed(um_receiver_session *session, um_delivery *delivery, uint32_t before)
{
    if (delivery->fetch.state == UM_DELIVERY_FETCH_AWAITS_RANGE)
        return true;
    if (session->losses.count == 0 || delivery->gaps_examined == session->gaps_found)
        return false;
    if (delivery->has_blocker && um_serial_before(delivery->blocker_sqn, before) &&
        um_loss_map_find(&session->losses, delivery->blocker_sqn) != NULL)
        return true;
    const um_blocker_search *search = search_blocker(session, delivery->mapped_sqn, before);
    delivery->has_blocker = search->has_found;
    delivery->blocker_sqn = search->sqn;
    if (!search->has_found && !search->has_found_later)
        delivery->gaps_examined = session->gaps_found;
    return search->has_found;
}

/* A controller starts when no datagram from before its first one is lost any more. */
void um_start_gate_open(um_receiver_session *session, int64_t now_ns)
{
    for (um_delivery *d = session->controllers; d != NULL && session->starting_count > 0; d = d->next) {
        if (d->state == UM_DELIVERY_STARTING && !um_start_gate_is_closed(session, d, d->start_sqn)) {
            session->starting_count--;
            um_delivery_start(d, d->lowest_held, now_ns);
            session->due_ns[UM_TIMER_CONTROLLERS] = now_ns; /* it may have gaps, which time out */
        }
    }
}

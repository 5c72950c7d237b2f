#include "core/delivery/fetch_live.h"

#include "core/delivery/delivery_fetch.h"
#include "core/delivery/loss_declaration.h"

/* On the first live message: missing messages between the past and it are fetched, unless the fetch was given up. */
static void meet_live(um_delivery *delivery, uint32_t end, const um_arrival *arrival)
{
    delivery->fetch.has_seen_live = true;
    if (delivery->fetch.state != UM_DELIVERY_FETCH_GIVEN_UP)
        um_delivery_fetch_to(delivery, end);
    if (delivery->state != UM_DELIVERY_RUNNING)
        return;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    um_delivery_fetch_note_missing(delivery, end - 1, arrival->now_ns);
}

/* True if the order map takes this live message. Off-transport recovery keeps as many as the map may hold, and all that
 * it would have to fetch; if messages are delivered on arrival, the map holds no payload of them. Its caching threshold
 * only starts it (C12): messages dropped at that threshold would have to be retained until they are fetched. */
static bool has_place(const um_delivery *delivery, uint32_t sqn)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    bool is_bounded = fetch->caching_proximity != 0 && delivery->held_count >= fetch->caching_proximity;
    if (fetch->kind == UM_DELIVERY_FETCH_OFF_TRANSPORT)
        return delivery->receiver->config.ordered_delivery != UM_ORDERED_SEQUENCE ||
               (um_reorder_has_quarter_free(delivery->receiver->store) &&
                (!is_bounded || um_serial_before(sqn, fetch->target)));
    bool starts = delivery->state == UM_DELIVERY_STARTING;
    int32_t ahead = um_serial_diff(sqn, starts ? delivery->lowest_held : delivery->next_sqn);
    if (ahead < 0 && starts) /* it will be fetched, because the target is behind it */
        return false;
    return ahead < (int64_t)fetch->caching_proximity;
}

void um_fetch_live_lose_to(um_delivery *delivery, uint32_t end, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (!fetch->has_lost || um_serial_before(fetch->lost_to, end))
        fetch->lost_to = end;
    fetch->has_lost = true;
    fetch->passed_to = end;
    fetch->taken_since = 0;
    um_loss_drain(delivery, now_ns, true);
}

void um_fetch_live_lose_reported(um_delivery *delivery, uint32_t end, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (!fetch->has_reported || delivery->state != UM_DELIVERY_RUNNING)
        return;
    fetch->has_reported = false;
    if (um_serial_before(fetch->reported_end, end))
        end = fetch->reported_end;
    if (!um_serial_before(delivery->next_sqn, end))
        return;
    um_delivery_fetch_note_missing(delivery, end - 1, now_ns);
    um_delivery_fetch_to(delivery, end);
    um_fetch_live_lose_to(delivery, end, now_ns);
}

bool um_fetch_live_leaves_out(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    bool was_unproved = um_delivery_fetch_is_unproved(delivery);
    um_delivery_fetch_note_shown(fetch, sqn + 1);
    if (fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE && !is_message)
        return true;
    um_delivery_fetch_end_if_complete(delivery);
    if (fetch->state == UM_DELIVERY_FETCH_IDLE)
        return false;
    if (!fetch->has_seen_live && fetch->state == UM_DELIVERY_FETCH_GIVEN_UP &&
        um_serial_before(sqn, delivery->next_sqn)) {
        bool is_other_present = is_message || sqn + 1 != delivery->next_sqn;
        if (!is_other_present || !was_unproved || um_serial_before(arrival->transport_sqn, fetch->given_up_sqn))
            return true; /* it was delivered, or sent before the fetch was given up */
        um_delivery_fetch_begin_with_live(delivery);
        return false;
    }
    if (!fetch->has_seen_live) {
        meet_live(delivery, is_message ? sqn : sqn + 1, arrival);
        um_fetch_live_lose_reported(delivery, fetch->shown_end, arrival->now_ns);
    }
    um_delivery_fetch_end_if_complete(delivery);
    if (!is_message || !um_delivery_fetch_is_running(delivery) || delivery->state == UM_DELIVERY_WAITING ||
        has_place(delivery, sqn))
        return false;
    if (delivery->state == UM_DELIVERY_STARTING && um_serial_before(sqn, delivery->lowest_held))
        return true;
    um_delivery_fetch_to(delivery, sqn + 1);
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(delivery->highest_sqn, sqn)) {
        delivery->highest_transport_sqn = arrival->transport_sqn;
        um_delivery_fetch_note_missing(delivery, sqn, arrival->now_ns);
    }
    UM_COUNT(delivery->receiver->counters.late_join_not_cached, 1);
    return true;
}

#include "core/delivery/delivery_fetch.h"

#include "core/delivery/order_map.h"

void um_delivery_fetch_begin(um_delivery *delivery, uint32_t caching_proximity)
{
    delivery->fetch = (um_delivery_fetch){.state = UM_DELIVERY_FETCH_AWAITS_RANGE,
                                          .caching_proximity = caching_proximity,
                                          .epoch = delivery->fetch.epoch + 1};
    if (!delivery->has_resume)
        return;
    delivery->fetch.kind = UM_DELIVERY_FETCH_RESUMED;
    delivery->fetch.resume_sqn = delivery->resume_sqn;
    delivery->highest_sqn = delivery->resume_sqn - 1;
}

void um_delivery_fetch_to(um_delivery *delivery, uint32_t end)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (!fetch->has_target || um_serial_before(fetch->target, end))
        fetch->target = end;
    fetch->has_target = true;
}

void um_delivery_fetch_begin_with_live(um_delivery *delivery)
{
    delivery->fetch.state = UM_DELIVERY_FETCH_IDLE;
    delivery->fetch.has_reported = false;
    delivery->state = UM_DELIVERY_WAITING;
    delivery->has_resume = delivery->has_given_up = true;
    delivery->resume_sqn = delivery->next_sqn;
    delivery->mapped_sqn = delivery->fetch.given_up_sqn; /* earlier datagrams do not show where the stream is */
}

void um_delivery_fetch_note_shown(um_delivery_fetch *fetch, uint32_t end)
{
    if (!fetch->has_shown || um_serial_before(fetch->shown_end, end))
        fetch->shown_end = end;
    fetch->has_shown = true;
}

void um_delivery_fetch_note_missing(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (!um_serial_before(delivery->highest_sqn, sqn))
        return;
    um_order_map_note_gap(delivery, delivery->highest_sqn + 1, sqn, now_ns);
    delivery->highest_sqn = sqn;
}

bool um_delivery_fetch_is_unproved(const um_delivery *delivery)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    return delivery->next_sqn == fetch->passed_to &&
           (!fetch->has_shown || um_serial_before(fetch->shown_end, delivery->next_sqn));
}

bool um_delivery_fetch_is_ahead_of_stream(const um_delivery *delivery)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    return fetch->has_seen_live && fetch->has_shown && um_delivery_fetch_is_unproved(delivery);
}

/* True if a message before the target is missing. A held message may still miss a fragment behind the target. */
static bool has_missing(um_delivery *delivery)
{
    const um_gap *gap =
        um_serial_before(delivery->next_sqn, delivery->fetch.target) ? um_order_map_oldest_gap(delivery) : NULL;
    return gap != NULL && um_serial_before(gap->first, delivery->fetch.target);
}

void um_delivery_fetch_end_if_complete(um_delivery *delivery)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    bool is_given_up = fetch->state == UM_DELIVERY_FETCH_GIVEN_UP;
    if ((fetch->state != UM_DELIVERY_FETCH_RUNNING && !is_given_up) || has_missing(delivery))
        return;
    if (um_delivery_fetch_is_ahead_of_stream(delivery) && !is_given_up)
        return; /* it will be given up, unless messages that arrive until then show that the range was true */
    if (fetch->has_seen_live || um_serial_before(fetch->target, delivery->next_sqn)) { /* delivered directly */
        fetch->state = UM_DELIVERY_FETCH_IDLE;
    } else if (is_given_up && fetch->has_lost && delivery->held_count == 0 && um_delivery_fetch_is_unproved(delivery)) {
        um_delivery_fetch_begin_with_live(delivery);
    }
}

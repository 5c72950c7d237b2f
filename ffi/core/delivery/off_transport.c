#include "core/delivery/off_transport.h"

#include "core/delivery/order_map.h"

static bool is_out(const um_delivery *delivery)
{
    return um_otr_is_offered(delivery) && delivery->state == UM_DELIVERY_RUNNING &&
           delivery->fetch.state == UM_DELIVERY_FETCH_IDLE;
}

bool um_otr_is_due(const um_delivery *delivery, const um_gap *gap, bool is_over, int64_t now_ns)
{
    const um_receiver_config *config = &delivery->receiver->config;
    return is_out(delivery) && (is_over || delivery->held_count > config->otr_caching_threshold ||
                                now_ns - gap->detected_ns >= config->otr_initial_delay_ns);
}

int64_t um_otr_due_ns(um_delivery *delivery)
{
    const um_gap *gap = is_out(delivery) ? um_order_map_oldest_gap(delivery) : NULL;
    return gap == NULL ? UM_NEVER_NS : gap->detected_ns + delivery->receiver->config.otr_initial_delay_ns;
}

void um_otr_begin(um_delivery *delivery)
{
    um_receiver *receiver = delivery->receiver;
    delivery->fetch = (um_delivery_fetch){.state = UM_DELIVERY_FETCH_RUNNING,
                                          .kind = UM_DELIVERY_FETCH_OFF_TRANSPORT,
                                          .has_seen_live = true,
                                          .has_target = true,
                                          .has_shown = true,
                                          .target = delivery->highest_sqn + 1,
                                          .shown_end = delivery->highest_sqn + 1,
                                          .requested = delivery->next_sqn,
                                          .caching_proximity = receiver->config.map_entries_max,
                                          .epoch = delivery->fetch.epoch + 1};
    UM_COUNT(receiver->counters.otr_begun, 1);
    if (receiver->has_begun_otr != NULL)
        *receiver->has_begun_otr = true;
}

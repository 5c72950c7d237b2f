/* Mapping one source to one subscription. */
#ifndef UM_TEST_MAPPING_H
#define UM_TEST_MAPPING_H

#include "io/subscription.h"

static inline int map_source(um_subscription *subscription, const um_receiver_session_config *session,
                             uint32_t topic_index, uint32_t source)
{
    um_mapping mapping = {
        .subscription = subscription, .session = session, .topic_index = topic_index, .source = source};
    um_subscriptions_map(&mapping, 1);
    return mapping.result;
}

#endif

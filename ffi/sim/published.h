/* What the publishers of a run have published: for every topic sqn the message it belongs to, and the payload every
 * message has. Checkers compare with it what is sent and what is delivered.
 */
#ifndef UM_SIM_PUBLISHED_H
#define UM_SIM_PUBLISHED_H

#include "sim/world.h"

enum { UM_SIM_FRAGMENTS_MAX = 4096 }; /* of a topic */

typedef struct um_sim_message {
    uint32_t first_sqn;
    uint32_t fragment_count;
    uint32_t length;
    uint16_t flags; /* UM_MESSAGE_BATCH_* */
} um_sim_message;

typedef struct um_sim_topic {
    uint32_t source; /* handle */
    uint32_t topic_index;
    uint32_t initial_sqn;
    bool is_timed; /* messages carry the time of sending */
    uint64_t key;
    uint32_t message_count;
    uint32_t fragment_count;
    um_sim_message *messages; /* messages_max */
    uint32_t messages_max;
    uint16_t *message_of; /* by sqn - initial_sqn */
    uint8_t *sent;        /* by sqn - initial_sqn: has been on the wire */
} um_sim_topic;

/* False when the world has no space for it. */
bool um_sim_topic_init(um_sim_topic *topic, um_sim_world *world, uint32_t source, uint32_t messages_max, uint64_t key);

/* Payload of message `number`, `length` bytes from `offset` on. The memory is the module's and never changes. */
const uint8_t *um_sim_content(const um_sim_topic *topic, uint32_t number, uint32_t offset);

/* Registers the next message. Its sqns follow on the last one's. */
void um_sim_publish_note(um_sim_topic *topic, uint32_t fragment_count, uint32_t length, uint16_t flags);

static inline uint32_t um_sim_next_published(const um_sim_topic *topic)
{
    return topic->initial_sqn + topic->fragment_count;
}

/* The message a topic sqn belongs to; NULL when none was published under it. */
static inline const um_sim_message *um_sim_message_at(const um_sim_topic *topic, uint32_t sqn)
{
    uint32_t at = sqn - topic->initial_sqn;
    return at < topic->fragment_count ? &topic->messages[topic->message_of[at]] : NULL;
}

#endif

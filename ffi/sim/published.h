/* The messages that the publishers of a run have published: the message of every topic sqn, and the payload of every
 * message. Checkers compare sent datagrams and delivered rows with it.
 */
#ifndef UM_SIM_PUBLISHED_H
#define UM_SIM_PUBLISHED_H

#include "sim/world.h"

enum { UM_SIM_FRAGMENTS_MAX = 4096 }; /* per topic */

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
    bool is_timed; /* messages carry their send time */
    uint64_t key;
    uint32_t message_count;
    uint32_t fragment_count;
    um_sim_message *messages; /* messages_max */
    uint32_t messages_max;
    uint16_t *message_of; /* by sqn - initial_sqn */
    uint8_t *sent;        /* by sqn - initial_sqn: true once sent */
} um_sim_topic;

/* Returns false without memory. */
bool um_sim_topic_init(um_sim_topic *topic, um_sim_world *world, uint32_t source, uint32_t messages_max, uint64_t key);

/* Returns the payload of message `number` from `offset` on, in constant memory of this module. */
const uint8_t *um_sim_content(const um_sim_topic *topic, uint32_t number, uint32_t offset);

/* Registers the next message. Its sqns follow those of the last one. */
void um_sim_publish_note(um_sim_topic *topic, uint32_t fragment_count, uint32_t length, uint16_t flags);

static inline uint32_t um_sim_next_published(const um_sim_topic *topic)
{
    return topic->initial_sqn + topic->fragment_count;
}

/* Returns the message that a topic sqn belongs to, or NULL if none was published with it. */
static inline const um_sim_message *um_sim_message_at(const um_sim_topic *topic, uint32_t sqn)
{
    uint32_t at = sqn - topic->initial_sqn;
    return at < topic->fragment_count ? &topic->messages[topic->message_of[at]] : NULL;
}

#endif

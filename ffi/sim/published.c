#include "sim/published.h"

enum { CONTENT_STARTS = 1 << 16, CONTENT_BYTES = CONTENT_STARTS + 64 * 1024 };

/* Every payload is a part of one fixed block of noise; its offset depends on topic and message. */
static uint8_t content[CONTENT_BYTES];
static atomic_bool content_ready;
static um_lock content_lock;

static void make_content(void)
{
    while (!um_lock_try(&content_lock))
        ;
    if (!atomic_load(&content_ready)) {
        um_random random = {0x756d737461636bu};
        for (uint32_t i = 0; i < CONTENT_BYTES; i++)
            content[i] = (uint8_t)um_random_next(&random);
        atomic_store(&content_ready, true);
    }
    um_lock_release(&content_lock);
}

bool um_sim_topic_init(um_sim_topic *topic, um_sim_world *world, uint32_t source, uint32_t messages_max, uint64_t key)
{
    const um_sim_source *of = world->sources[source];
    if (!atomic_load(&content_ready))
        make_content();
    *topic = (um_sim_topic){.source = source,
                            .topic_index = of->core.topic_index,
                            .initial_sqn = atomic_load(&of->core.next_sqn),
                            .is_timed = of->core.has_send_time,
                            .key = key,
                            .messages_max = messages_max};
    topic->messages = um_sim_take(world, messages_max * sizeof *topic->messages);
    topic->message_of = um_sim_take(world, UM_SIM_FRAGMENTS_MAX * sizeof *topic->message_of);
    topic->sent = um_sim_take(world, UM_SIM_FRAGMENTS_MAX);
    return topic->messages != NULL && topic->message_of != NULL && topic->sent != NULL;
}

const uint8_t *um_sim_content(const um_sim_topic *topic, uint32_t number, uint32_t offset)
{
    um_random random = {topic->key + number};
    return content + um_random_below(&random, CONTENT_STARTS) + offset;
}

void um_sim_publish_note(um_sim_topic *topic, uint32_t fragment_count, uint32_t length, uint16_t flags)
{
    if (topic->message_count == topic->messages_max || topic->fragment_count + fragment_count > UM_SIM_FRAGMENTS_MAX)
        return; /* the table is full: the check of the next sqns reports it */
    topic->messages[topic->message_count] =
        (um_sim_message){um_sim_next_published(topic), fragment_count, length, flags};
    for (uint32_t i = 0; i < fragment_count; i++)
        topic->message_of[topic->fragment_count + i] = (uint16_t)topic->message_count;
    topic->fragment_count += fragment_count;
    topic->message_count++;
}

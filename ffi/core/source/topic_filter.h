/* The topics of a session that one client of its source wants (source-side filtering, UX-27): a set of topic indices,
 * and messages looked at or copied through it. Threads: the holder of the sender lock. Memory: one block of footprint
 * bytes, the owner's. Complexity: constant a topic; linear in the messages. Errors: false when the set is full.
 */
#ifndef UM_CORE_TOPIC_FILTER_H
#define UM_CORE_TOPIC_FILTER_H

#include "core/wire/lbmc.h"

enum { UM_TOPIC_FILTER_TOPICS_MAX = 16384 };

typedef struct um_topic_filter {
    uint32_t *slots; /* twice the capacity; 0: free */
    uint32_t capacity;
    uint32_t count;
    bool has_zero; /* the topic index that a free slot would stand for */
} um_topic_filter;

/* capacity: in topics, a power of two, at most UM_TOPIC_FILTER_TOPICS_MAX. */
static inline size_t um_topic_filter_footprint(uint32_t capacity)
{
    return 2 * (size_t)capacity * sizeof(uint32_t);
}

/* memory: zeroed. */
void um_topic_filter_init(um_topic_filter *filter, void *memory, uint32_t capacity);
void um_topic_filter_clear(um_topic_filter *filter);
bool um_topic_filter_add(um_topic_filter *filter, uint32_t topic_index);
void um_topic_filter_remove(um_topic_filter *filter, uint32_t topic_index);
bool um_topic_filter_has(const um_topic_filter *filter, uint32_t topic_index);

/* Whether any of a run of whole messages passes: one of a wanted topic, a TSNI with a record of one, or any other
 * control message. */
bool um_topic_filter_is_wanted(const um_topic_filter *filter, const uint8_t *messages, uint32_t length);

/* Copies what passes of a run of whole messages to `out`, which has space for all of them, and returns how many bytes
 * that is. Of a TSNI only the records of wanted topics pass; other control messages pass. */
uint32_t um_topic_filter_copy(const um_topic_filter *filter, const uint8_t *messages, uint32_t length, uint8_t *out);

#endif

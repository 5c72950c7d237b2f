/* The set of topic indices that one client needs (source-side filtering, UX-27), with functions that test and filter
 * messages by it.
 *
 * Threads: the holder of the sender lock. Memory: one block of footprint bytes, the owner's. Complexity: constant per
 * topic; linear in the messages. Errors: false if the set is full.
 */
#ifndef UM_CORE_TOPIC_FILTER_H
#define UM_CORE_TOPIC_FILTER_H

#include "core/wire/lbmc.h"

enum { UM_TOPIC_FILTER_TOPICS_MAX = 16384 };

typedef struct um_topic_filter {
    uint32_t *slots; /* twice the capacity; 0: free */
    uint32_t capacity;
    uint32_t count;
    bool has_zero; /* topic index 0 is in the set; it cannot be stored in a slot */
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
/* Returns the place of a topic of the set, from 0 to 2 * capacity. No other topic has it, and it stays until a topic is
 * removed. */
uint32_t um_topic_filter_place(const um_topic_filter *filter, uint32_t topic_index);

/* Returns true if a run of whole messages contains a message of a topic in the set, a TSNI with a record of one, or any
 * other control message. */
bool um_topic_filter_is_wanted(const um_topic_filter *filter, const uint8_t *messages, uint32_t length);

/* Copies those messages to `out`, which has space for all of them, and returns the bytes copied. TSNIs are reduced to
 * the records of topics in the set. */
uint32_t um_topic_filter_copy(const um_topic_filter *filter, const uint8_t *messages, uint32_t length, uint8_t *out);

#endif

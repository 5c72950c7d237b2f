/* Topic index to delivery controllers: an open-addressing table of one receiver session (UM-7, UM-8). The controllers
 * of a topic form a list through next_of_topic.
 *
 * Threads: the context lock. Memory: slots are the owner's, at least twice as many as topics, a power of two, zeroed.
 * Complexity: expected constant. Errors: none; the owner bounds the number of topics.
 */

#ifndef UM_CORE_TOPIC_TABLE_H
#define UM_CORE_TOPIC_TABLE_H

#include "core/delivery/delivery_state.h"

typedef struct um_topic_slot {
    uint32_t topic_index;
    um_delivery *first; /* NULL: empty slot */
} um_topic_slot;

typedef struct um_topic_table {
    um_topic_slot *slots;
    uint32_t mask;
    uint32_t count;      /* topics; the owner adds one when it fills an empty slot */
    um_topic_slot *last; /* slot of the previous message, because the next one often has the same topic */
} um_topic_table;

/* The slot where a probe for the topic begins. */
static inline uint32_t um_topic_table_home(const um_topic_table *table, uint32_t topic_index)
{
    return (topic_index * 2654435761u) & table->mask;
}

/* Returns the topic's slot, or the empty one where it belongs. */
static inline um_topic_slot *um_topic_table_slot(um_topic_table *table, uint32_t topic_index)
{
    uint32_t at = um_topic_table_home(table, topic_index);
    while (table->slots[at].first != NULL && table->slots[at].topic_index != topic_index)
        at = (at + 1) & table->mask;
    return &table->slots[at];
}

/* As um_topic_table_slot, faster for successive messages of one topic. */
static inline um_topic_slot *um_topic_table_slot_of_next(um_topic_table *table, uint32_t topic_index)
{
    if (table->last->topic_index != topic_index || table->last->first == NULL)
        table->last = um_topic_table_slot(table, topic_index);
    return table->last;
}

/* Empties a slot. Later entries of its run shift back, which invalidates pointers to slots. */
void um_topic_table_remove(um_topic_table *table, um_topic_slot *slot);

#endif

#include "core/receiver/topic_table.h"

void um_topic_table_remove(um_topic_table *table, um_topic_slot *slot)
{
    uint32_t hole = (uint32_t)(slot - table->slots);
    for (uint32_t at = (hole + 1) & table->mask; table->slots[at].first != NULL; at = (at + 1) & table->mask) {
        uint32_t home = um_topic_table_home(table, table->slots[at].topic_index);
        if (((at - home) & table->mask) >= ((at - hole) & table->mask)) {
            table->slots[hole] = table->slots[at];
            hole = at;
        }
    }
    table->slots[hole].first = NULL;
    table->count--;
    table->last = &table->slots[0];
}

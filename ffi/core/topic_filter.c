#include "core/topic_filter.h"

enum { SLOT_MASK = 2 * UM_TOPIC_FILTER_TOPICS_MAX - 1 };

void um_topic_filter_init(um_topic_filter *filter, void *memory)
{
    *filter = (um_topic_filter){.slots = memory};
}

static uint32_t home_of(uint32_t topic_index)
{
    return (uint32_t)(topic_index * UINT64_C(0x9e3779b97f4a7c15) >> 32) & SLOT_MASK;
}

static uint32_t find(const um_topic_filter *filter, uint32_t topic_index)
{
    uint32_t at = home_of(topic_index);
    while (filter->slots[at] != 0 && filter->slots[at] != topic_index)
        at = (at + 1) & SLOT_MASK;
    return at;
}

bool um_topic_filter_has(const um_topic_filter *filter, uint32_t topic_index)
{
    return topic_index == 0 ? filter->has_zero : filter->slots[find(filter, topic_index)] != 0;
}

bool um_topic_filter_add(um_topic_filter *filter, uint32_t topic_index)
{
    if (um_topic_filter_has(filter, topic_index))
        return true;
    if (filter->count == UM_TOPIC_FILTER_TOPICS_MAX)
        return false;
    filter->count++;
    if (topic_index == 0)
        filter->has_zero = true;
    else
        filter->slots[find(filter, topic_index)] = topic_index;
    return true;
}

/* Linear probing, so what lies behind the hole shifts back into it. */
void um_topic_filter_remove(um_topic_filter *filter, uint32_t topic_index)
{
    if (!um_topic_filter_has(filter, topic_index))
        return;
    filter->count--;
    if (topic_index == 0) {
        filter->has_zero = false;
        return;
    }
    uint32_t hole = find(filter, topic_index);
    for (uint32_t at = (hole + 1) & SLOT_MASK; filter->slots[at] != 0; at = (at + 1) & SLOT_MASK) {
        if (((at - home_of(filter->slots[at])) & SLOT_MASK) >= ((at - hole) & SLOT_MASK)) {
            filter->slots[hole] = filter->slots[at];
            hole = at;
        }
    }
    filter->slots[hole] = 0;
}

static uint32_t copy_tsni(const um_topic_filter *filter, const um_lbmc_message *message, uint8_t *out)
{
    uint32_t topics[UM_LBMC_TSNI_RECORDS_MAX], sqns[UM_LBMC_TSNI_RECORDS_MAX], count = 0;
    for (uint32_t i = 0; i < message->tsni_count && i < UM_LBMC_TSNI_RECORDS_MAX; i++) {
        const uint8_t *record = message->tsni + UM_LBMC_TSNI_RECORD_BYTES * i;
        topics[count] = um_load_be32(record);
        sqns[count] = um_load_be32(record + 4);
        count += um_topic_filter_has(filter, topics[count]);
    }
    return count > 0 ? um_lbmc_write_tsni(out, topics, sqns, count) : 0;
}

uint32_t um_topic_filter_copy(const um_topic_filter *filter, const uint8_t *messages, uint32_t length, uint8_t *out)
{
    uint32_t copied = 0;
    um_lbmc_message message;
    for (uint32_t at = 0, message_length; at < length; at += message_length) {
        if (um_lbmc_decode(messages + at, length - at, &message, &message_length) != UM_DGRAM_OK)
            break; /* not of our own making: nothing of it is sent */
        if (message.type == UM_LBMC_CONTROL && message.tsni != NULL) {
            copied += copy_tsni(filter, &message, out + copied);
        } else if (message.type == UM_LBMC_CONTROL || um_topic_filter_has(filter, message.topic_index)) {
            memcpy(out + copied, messages + at, message_length);
            copied += message_length;
        }
    }
    return copied;
}

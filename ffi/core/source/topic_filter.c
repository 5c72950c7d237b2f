#include "core/source/topic_filter.h"

void um_topic_filter_init(um_topic_filter *filter, void *memory, uint32_t capacity)
{
    assert(um_is_power_of_two(capacity) && capacity <= UM_TOPIC_FILTER_TOPICS_MAX);
    *filter = (um_topic_filter){.slots = memory, .capacity = capacity};
}

void um_topic_filter_clear(um_topic_filter *filter)
{
    memset(filter->slots, 0, um_topic_filter_footprint(filter->capacity));
    filter->count = 0;
    filter->has_zero = false;
}

static uint32_t mask_of(const um_topic_filter *filter)
{
    return 2 * filter->capacity - 1;
}

static uint32_t home_of(const um_topic_filter *filter, uint32_t topic_index)
{
    return (uint32_t)(topic_index * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask_of(filter);
}

static uint32_t find(const um_topic_filter *filter, uint32_t topic_index)
{
    uint32_t at = home_of(filter, topic_index);
    while (filter->slots[at] != 0 && filter->slots[at] != topic_index)
        at = (at + 1) & mask_of(filter);
    return at;
}

bool um_topic_filter_has(const um_topic_filter *filter, uint32_t topic_index)
{
    return topic_index == 0 ? filter->has_zero : filter->slots[find(filter, topic_index)] != 0;
}

uint32_t um_topic_filter_place(const um_topic_filter *filter, uint32_t topic_index)
{
    return topic_index == 0 ? 2 * filter->capacity : find(filter, topic_index);
}

bool um_topic_filter_add(um_topic_filter *filter, uint32_t topic_index)
{
    if (um_topic_filter_has(filter, topic_index))
        return true;
    if (filter->count == filter->capacity)
        return false;
    filter->count++;
    if (topic_index == 0)
        filter->has_zero = true;
    else
        filter->slots[find(filter, topic_index)] = topic_index;
    return true;
}

/* Linear probing: later entries of the run shift back into the hole. */
void um_topic_filter_remove(um_topic_filter *filter, uint32_t topic_index)
{
    if (!um_topic_filter_has(filter, topic_index))
        return;
    filter->count--;
    if (topic_index == 0) {
        filter->has_zero = false;
        return;
    }
    uint32_t hole = find(filter, topic_index), mask = mask_of(filter);
    for (uint32_t at = (hole + 1) & mask; filter->slots[at] != 0; at = (at + 1) & mask) {
        if (((at - home_of(filter, filter->slots[at])) & mask) >= ((at - hole) & mask)) {
            filter->slots[hole] = filter->slots[at];
            hole = at;
        }
    }
    filter->slots[hole] = 0;
}

static bool is_control_wanted(const um_topic_filter *filter, const uint8_t *messages, uint32_t length)
{
    um_lbmc_message message;
    if (um_lbmc_decode(messages, length, &message, &length) != UM_DGRAM_OK)
        return false;
    bool is_wanted = message.tsni == NULL;
    for (uint32_t i = 0; i < message.tsni_count && !is_wanted; i++)
        is_wanted = um_topic_filter_has(filter, um_load_be32(message.tsni + UM_LBMC_TSNI_RECORD_BYTES * i));
    return is_wanted;
}

bool um_topic_filter_is_wanted(const um_topic_filter *filter, const uint8_t *messages, uint32_t length)
{
    for (uint32_t at = 0; at + UM_LBMC_CONTROL_BYTES <= length;) {
        const uint8_t *message = messages + at;
        bool is_control = (message[0] & 0x0f) == UM_LBMC_CONTROL;
        if (is_control ? is_control_wanted(filter, message, length - at)
                       : um_topic_filter_has(filter, um_load_be32(message + 4)))
            return true;
        at += um_load_be16(message + 2);
    }
    return false;
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
            break; /* malformed, so not written by this stack: the rest is not sent */
        if (message.type == UM_LBMC_CONTROL && message.tsni != NULL) {
            copied += copy_tsni(filter, &message, out + copied);
        } else if (message.type == UM_LBMC_CONTROL || um_topic_filter_has(filter, message.topic_index)) {
            memcpy(out + copied, messages + at, message_length);
            copied += message_length;
        }
    }
    return copied;
}

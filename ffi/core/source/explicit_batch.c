#include "core/source/explicit_batch.h"

#include "core/source/frame_writer.h"

static void set_open(um_source *source, bool is_open)
{
    atomic_store_explicit(&source->is_explicit_open, is_open, memory_order_relaxed);
}

static uint32_t held_span(uint32_t length)
{
    return (uint32_t)um_align_up(sizeof(um_held_record) + length, 8);
}

int um_explicit_batch_release(um_source *source, int64_t now_ns, uint32_t *actions)
{
    while (source->explicit_released < source->explicit_used) {
        um_held_record record;
        uint32_t last_sqn;
        const uint8_t *at = source->explicit_memory + source->explicit_released;
        memcpy(&record, at, sizeof record);
        int result = um_source_publish(source, at + sizeof record, record.length, (uint16_t)record.flags, false,
                                       &record, &last_sqn, now_ns, actions);
        if (result != 0)
            return result;
        source->explicit_released += held_span(record.length);
    }
    source->explicit_used = source->explicit_released = 0;
    return 0;
}

static int64_t hold(um_source *source, const uint8_t *data, uint32_t length, uint16_t batch_flags, int64_t now_ns)
{
    uint32_t body_max = atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
    uint32_t count = um_fragmentation_plan(source, body_max, length, batch_flags != 0).count;
    um_held_record record = {length, um_source_take_sqns(source, count), body_max, batch_flags, now_ns};
    atomic_fetch_add_explicit(&source->held_fragments, count, memory_order_relaxed);
    memcpy(source->explicit_memory + source->explicit_used, &record, sizeof record);
    memcpy(source->explicit_memory + source->explicit_used + sizeof record, data, length);
    source->explicit_used += held_span(length);
    return (int64_t)(record.sqn + count - 1);
}

/* Holds a message until the end of the batch, a flush, or lack of space (UM-39: a batch may be split). */
int64_t um_explicit_batch_send(um_source *source, const uint8_t *data, uint32_t length, uint32_t flags, int64_t now_ns,
                               uint32_t *actions)
{
    bool is_end = flags & (UM_SEND_END_BATCH | UM_SEND_FLUSH);
    bool is_full = source->explicit_used + held_span(length) > source->explicit_capacity;
    uint16_t batch_flags = (flags & UM_SEND_START_BATCH ? UM_MESSAGE_BATCH_START : 0) |
                           (flags & UM_SEND_END_BATCH ? UM_MESSAGE_BATCH_END : 0);
    if (!is_end && !is_full) {
        set_open(source, true);
        return hold(source, data, length, batch_flags, now_ns);
    }
    int result = um_explicit_batch_release(source, now_ns, actions);
    uint32_t sqn = 0;
    if (result == 0)
        result =
            um_source_publish(source, data, length, batch_flags, flags & UM_SEND_FLUSH, NULL, &sqn, now_ns, actions);
    if (result == 0)
        set_open(source, !(flags & UM_SEND_END_BATCH));
    return result == 0 ? (int64_t)sqn : result;
}

bool um_explicit_batch_first_sqn(const um_source *source, uint32_t *sqn)
{
    um_held_record record;
    if (source->explicit_released == source->explicit_used)
        return false;
    memcpy(&record, source->explicit_memory + source->explicit_released, sizeof record);
    *sqn = record.sqn;
    return true;
}

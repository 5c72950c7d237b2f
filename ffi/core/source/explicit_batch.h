/* Explicit batches of a source (UM-34..UM-40): messages that are held, with their sqns, until the batch ends.
 *
 * Threads: the holder of explicit_lock; um_explicit_batch_is_open: any. Memory: explicit_memory of the source, bounded
 * by explicit_capacity; a batch that does not fit is published in parts. Complexity: linear in the bytes. Errors: a
 * um_publish_result; messages that could not be published stay held.
 */

#ifndef UM_CORE_EXPLICIT_BATCH_H
#define UM_CORE_EXPLICIT_BATCH_H

#include "core/source/source_state.h"

static inline bool um_explicit_batch_is_open(const um_source *source)
{
    return atomic_load_explicit(&source->is_explicit_open, memory_order_relaxed);
}

/* Holds or publishes one message of a batch. Returns the sqn of its last fragment or a um_publish_result. */
int64_t um_explicit_batch_send(um_source *source, const uint8_t *data, uint32_t length, uint32_t flags, int64_t now_ns,
                               uint32_t *actions);

/* Publishes the held messages. Returns 0, or the um_publish_result of the first one refused. */
int um_explicit_batch_release(um_source *source, int64_t now_ns, uint32_t *actions);

/* Stores the first held sqn. Returns false if there is none. */
bool um_explicit_batch_first_sqn(const um_source *source, uint32_t *sqn);

#endif

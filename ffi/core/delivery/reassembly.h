/* Reassembly of fragmented messages from the order map (UM-53..UM-57). A message is complete when the bytes counted for
 * it reach its length; then its fragments are checked to be contiguous. Private to the controller's files.
 *
 * Threads: the context lock. Memory: the queue's row; fragments stay in the reorder buffer until the caller removes
 * them. Complexity: linear in the fragments of the message. Errors: fragments that contradict each other are refused
 * and counted.
 */

#ifndef UM_CORE_REASSEMBLY_H
#define UM_CORE_REASSEMBLY_H

#include "core/delivery/delivery_state.h"

enum um_assembly { UM_ASSEMBLY_DELIVERED, UM_ASSEMBLY_INCOMPLETE, UM_ASSEMBLY_REFUSED, UM_ASSEMBLY_QUEUE_FULL };

/* Counts the bytes of a fragment for its message. Returns false if there is no space. A fragment whose message starts
 * before next_sqn is an orphan; it is only held to be passed, so that all entries are in [next_sqn, highest_sqn]. */
bool um_reassembly_count(um_delivery *delivery, const um_reorder_entry *fragment);

/* The row of one entry of the order map. */
static inline um_row um_reassembly_row(const um_delivery *delivery, const um_reorder_entry *entry)
{
    return (um_row){.flags = entry->flags,
                    .sequence_number = entry->sqn,
                    .first_sequence_number = entry->first_sqn,
                    .fragment_offset = entry->fragment_offset,
                    .message_length = entry->total,
                    .source = delivery->source,
                    .received_ns = entry->received_ns,
                    .sent_ns = entry->sent_ns};
}

/* Appends an entry as one row: a whole message, or a single fragment (ordered_delivery 0). Returns false if there is no
 * space. */
bool um_reassembly_append_entry(um_delivery *delivery, const um_reorder_entry *entry);

/* Delivers the message that starts at `first` if it is complete, and sets *last_sqn. Its entries stay. */
enum um_assembly um_reassembly_deliver(um_delivery *delivery, um_reorder_entry *first, uint32_t *last_sqn);

#endif

/* Builds datagrams from frames in the publication log (UM-16..UM-27; AE-38..AE-41): selects the frames of the next
 * datagram, and offers them to the link as parts, by reference if possible, else copied.
 *
 * Threads: the holder of the sender lock. Memory: parts point into the log, the staging buffer or staged datagrams, and
 * are valid until the slot is built again. Complexity: linear in the frames of the datagram. Errors: none.
 */

#ifndef UM_CORE_DATAGRAM_BUILDING_H
#define UM_CORE_DATAGRAM_BUILDING_H

#include "core/source/source_state.h"

/* Returns the LBMC bytes of the run of frames at `position` that makes up the next datagram, or 0 if nothing is ready;
 * *span is set to the log bytes of the run. */
uint32_t um_datagram_next_run(um_source_session *session, int64_t position, int64_t limit, uint32_t body_max,
                              uint32_t *span);

/* Returns the staged datagram at `position` if another one follows it directly, else NULL: then read the log. */
const um_staged_datagram *um_datagram_next_staged(um_source_session *session, int64_t position, int64_t limit);

/* Builds the datagram `sent` as `tx` in slot `slot` of the batch, from the staged copy if there is one. */
void um_datagram_build(um_source_session *session, const um_sent *sent, uint32_t sqn, bool is_retransmission,
                       uint32_t slot, um_tx *tx);

/* um_datagram_build for a datagram that is known to be staged. */
void um_datagram_build_staged(um_source_session *session, const um_staged_datagram *staged, uint32_t sqn,
                              bool is_retransmission, uint32_t slot, um_tx *tx);

/* Iterates over the LBMC messages of a datagram, in contiguous runs of whole messages. */
typedef struct um_datagram_reader {
    const um_sent *sent;
    const um_staged_datagram *staged; /* one run; NULL: one run per frame in the log */
    uint32_t at;
} um_datagram_reader;

um_datagram_reader um_datagram_read(um_source_session *session, const um_sent *sent);
bool um_datagram_read_next(um_source_session *session, um_datagram_reader *reader, const uint8_t **messages,
                           uint32_t *length);

#endif

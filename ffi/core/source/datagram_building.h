/* From frames in the publication log to one datagram (UM-16..UM-27; AE-38..AE-41): which frames make up the next one,
 * and the parts that the link is offered, copied where it must be and referenced where they lie otherwise.
 *
 * Threads: the holder of the sender lock. Memory: parts point into the log, the staging buffer or what a publisher has
 * staged; they stay valid until the slot is built anew. Complexity: linear in the frames of the datagram. Errors: none.
 */

#ifndef UM_CORE_DATAGRAM_BUILDING_H
#define UM_CORE_DATAGRAM_BUILDING_H

#include "core/source/source_state.h"

/* The LBMC bytes of the run of frames at `position` that makes up the next datagram, 0 when nothing is ready; *span is
 * their length in the log. */
uint32_t um_datagram_next_run(um_source_session *session, int64_t position, int64_t limit, uint32_t body_max,
                              uint32_t *span);

/* The staged datagram at `position` that another one follows directly, NULL where the log has to be looked at. */
const um_staged_datagram *um_datagram_next_staged(um_source_session *session, int64_t position, int64_t limit);

/* Builds the datagram of `sent` in slot `slot` of the batch as `tx`: from the staged copy where there is one. */
void um_datagram_build(um_source_session *session, const um_sent *sent, uint32_t sqn, bool retransmission,
                       uint32_t slot, um_tx *tx);

/* The same for a datagram that is known to be staged. */
void um_datagram_build_staged(um_source_session *session, const um_staged_datagram *staged, uint32_t sqn,
                              bool retransmission, uint32_t slot, um_tx *tx);

/* Reads the LBMC messages of a datagram in the pieces that they lie in: each a run of whole messages. */
typedef struct um_datagram_reader {
    const um_sent *sent;
    const um_staged_datagram *staged; /* it lies there in one piece; NULL: frame by frame in the log */
    uint32_t at;
} um_datagram_reader;

um_datagram_reader um_datagram_read(um_source_session *session, const um_sent *sent);
bool um_datagram_read_next(um_source_session *session, um_datagram_reader *reader, const uint8_t **messages,
                           uint32_t *length);

#endif

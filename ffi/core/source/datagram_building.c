#include "core/source/datagram_building.h"

enum { RUNS_AHEAD = 4 }; /* distance, in datagrams, of the frame to prefetch */

/* Finds the longest run of whole committed frames from `position` that fits one datagram and ends by `limit`
 * (AE-38..AE-41). Padding is skipped. A single frame larger than the datagram (built before the MTU shrank) is a run.
 */
uint32_t um_datagram_next_run(um_source_session *session, int64_t position, int64_t limit, uint32_t body_max,
                              uint32_t *span)
{
    int64_t at = position;
    uint32_t bytes = 0;
    while (at < limit) {
        int32_t frame_length = um_log_frame_length(&session->log, at);
        if (frame_length <= 0)
            break;
        uint32_t frame_span = (uint32_t)um_align_up((uint32_t)frame_length, UM_FRAME_ALIGNMENT);
        if (UM_LIKELY(!um_log_frame_is_pad(&session->log, at))) {
            uint32_t message = (uint32_t)frame_length - UM_FRAME_HEADER_BYTES;
            if (at + frame_span > limit || (bytes > 0 && bytes + message > body_max))
                break;
            bytes += message;
        }
        at += frame_span;
        if (bytes > body_max)
            break;
    }
    /* The frame was written a batch ago and has probably left the caches since. */
    if (session->staged.count == 0)
        __builtin_prefetch(um_log_at(&session->log, at + RUNS_AHEAD * (at - position)), 1, 3);
    *span = (uint32_t)(at - position);
    return bytes;
}

/* Needs no read of the log: each staged datagram is committed and larger than half a datagram, so if another one
 * follows directly, no second frame joins the first. */
const um_staged_datagram *um_datagram_next_staged(um_source_session *session, int64_t position, int64_t limit)
{
    const um_staged_datagram *here = um_staged_at(&session->staged, position);
    if (here == NULL || session->staged.next + 1 == session->staged.count)
        return NULL;
    int64_t end = position + um_align_up(here->bytes, UM_FRAME_ALIGNMENT);
    bool is_followed = um_staged_entry(&session->staged, session->staged.next + 1)->position == end;
    return is_followed && end <= limit ? here : NULL;
}

static uint32_t count_frames(um_source_session *session, const um_sent *sent, uint32_t at_most)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < sent->span && count <= at_most;) {
        int32_t length = um_log_frame_length(&session->log, sent->position + at);
        count += !um_log_frame_is_pad(&session->log, sent->position + at);
        at += (uint32_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    return count;
}

static void copy_frames(um_source_session *session, const um_sent *sent, uint8_t *out)
{
    for (uint32_t at = 0; at < sent->span;) {
        const uint8_t *frame = um_log_at(&session->log, sent->position + at);
        int32_t length = um_log_frame_length(&session->log, sent->position + at);
        if (!um_log_frame_is_pad(&session->log, sent->position + at)) {
            memcpy(out, frame + UM_FRAME_HEADER_BYTES, (size_t)length - UM_FRAME_HEADER_BYTES);
            out += length - UM_FRAME_HEADER_BYTES;
        }
        at += (uint32_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
}

static uint32_t reference_frames(um_source_session *session, const um_sent *sent, um_part *parts)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < sent->span;) {
        const uint8_t *frame = um_log_at(&session->log, sent->position + at);
        int32_t length = um_log_frame_length(&session->log, sent->position + at);
        if (!um_log_frame_is_pad(&session->log, sent->position + at))
            parts[count++] =
                (um_part){frame + UM_FRAME_HEADER_BYTES, (uint32_t)length - (uint32_t)UM_FRAME_HEADER_BYTES};
        at += (uint32_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    return count;
}

um_datagram_reader um_datagram_read(um_source_session *session, const um_sent *sent)
{
    const um_staged_datagram *staged =
        um_staged_find(&session->staged, sent->position, UM_FRAMING_DATA_BYTES + sent->length);
    return (um_datagram_reader){sent, staged, 0};
}

bool um_datagram_read_next(um_source_session *session, um_datagram_reader *reader, const uint8_t **messages,
                           uint32_t *length)
{
    const um_sent *sent = reader->sent;
    bool is_found = false;
    if (reader->staged != NULL) {
        is_found = reader->at == 0;
        *messages = um_staged_data(&session->staged, reader->staged) + UM_FRAMING_DATA_BYTES;
        *length = sent->length;
        reader->at = sent->span;
    }
    while (reader->at < sent->span && !is_found) {
        int64_t position = sent->position + reader->at;
        int32_t frame_length = um_log_frame_length(&session->log, position);
        is_found = !um_log_frame_is_pad(&session->log, position);
        *messages = (const uint8_t *)um_log_at(&session->log, position) + UM_FRAME_HEADER_BYTES;
        *length = (uint32_t)frame_length - UM_FRAME_HEADER_BYTES;
        reader->at += (uint32_t)um_align_up((uint32_t)frame_length, UM_FRAME_ALIGNMENT);
    }
    return is_found;
}

_Static_assert((int)UM_FRAME_HEADER_BYTES == (int)UM_FRAMING_DATA_BYTES, "a transport header replaces a frame header");

/* Returns true if the datagram is one frame, which is sent in place from the log. */
static bool is_single(const um_source_session *session, const um_sent *sent)
{
    uint32_t word = atomic_load_explicit(um_log_state_at(&session->log, sent->position), memory_order_acquire);
    return word == um_frame_word(UM_FRAME_HEADER_BYTES + (int32_t)sent->length, UM_FRAME_DATA);
}

/* Returns true if the link is given references to the frames in the log; else the datagram is copied to the staging
 * buffer. */
static bool is_sent_from_log(um_source_session *session, const um_sent *sent)
{
    if (session->link->is_faster_in_one_piece)
        return false;
    uint32_t gather_max = session->config.coalesce_threshold < UM_DATAGRAM_PARTS_MAX - 1
                              ? session->config.coalesce_threshold
                              : UM_DATAGRAM_PARTS_MAX - 1;
    return count_frames(session, sent, gather_max) <= gather_max;
}

/* Writes the transport header in front of contiguous bytes: a whole datagram, or only the header as its first part. */
static void build_whole(um_source_session *session, uint8_t *datagram, uint32_t length, uint32_t sqn,
                        bool is_retransmission, uint32_t slot, um_tx *tx)
{
    um_part *part = session->parts + (size_t)slot * UM_DATAGRAM_PARTS_MAX;
    um_framing_write_data(session->config.transport, datagram, session->config.session_id, session->config.nak_port,
                          sqn, session->trail_sqn, is_retransmission);
    if (slot == 0)
        session->staged_bytes = 0;
    *part = (um_part){datagram, length};
    *tx = (um_tx){.parts = part, .part_count = 1, .length = length};
    if (UM_UNLIKELY(session->clients.selections != NULL)) {
        session->clients.selections[slot].header = datagram;
        tx->selection = &session->clients.selections[slot];
    }
}

void um_datagram_build_staged(um_source_session *session, const um_staged_datagram *staged, uint32_t sqn,
                              bool is_retransmission, uint32_t slot, um_tx *tx)
{
    build_whole(session, um_staged_data(&session->staged, staged), staged->bytes, sqn, is_retransmission, slot, tx);
    tx->borrowed = um_staged_borrowed(&session->staged, staged);
}

void um_datagram_build(um_source_session *session, const um_sent *sent, uint32_t sqn, bool is_retransmission,
                       uint32_t slot, um_tx *tx)
{
    uint32_t length = UM_FRAMING_DATA_BYTES + sent->length;
    const um_staged_datagram *staged = um_staged_find(&session->staged, sent->position, length);
    if (staged != NULL) {
        um_datagram_build_staged(session, staged, sqn, is_retransmission, slot, tx);
    } else if (is_single(session, sent)) {
        build_whole(session, um_log_at(&session->log, sent->position), length, sqn, is_retransmission, slot, tx);
    } else if (is_sent_from_log(session, sent)) {
        build_whole(session, session->headers + (size_t)slot * UM_FRAMING_DATA_BYTES, UM_FRAMING_DATA_BYTES, sqn,
                    is_retransmission, slot, tx);
        tx->part_count += reference_frames(session, sent, session->parts + (size_t)slot * UM_DATAGRAM_PARTS_MAX + 1);
        tx->length = length;
    } else {
        um_debug_assert(length <= session->config.datagram_max_bytes);
        uint8_t *copied = session->staging + (slot == 0 ? 0 : session->staged_bytes);
        copy_frames(session, sent, copied + UM_FRAMING_DATA_BYTES);
        build_whole(session, copied, length, sqn, is_retransmission, slot, tx);
        session->staged_bytes += length;
    }
}

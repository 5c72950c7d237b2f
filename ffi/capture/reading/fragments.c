#include "capture/reading/fragments.h"

#include <assert.h>

static size_t address_bytes(const um_captured_frame *frame)
{
    return frame->ip_version == 4 ? 4 : 16;
}

static bool is_joined(const um_fragmented *datagram)
{
    return datagram->state == UM_FRAGMENTED_WHOLE || datagram->state == UM_FRAGMENTED_INCOMPLETE ||
           datagram->state == UM_FRAGMENTED_REFUSED;
}

static bool is_of(const um_fragmented *datagram, const um_capture_packet *packet, const um_captured_frame *frame)
{
    const um_captured_frame *first = &datagram->frame;
    return (datagram->state == UM_FRAGMENTED_PENDING || datagram->state == UM_FRAGMENTED_CLOSED) &&
           first->fragment_id == frame->fragment_id && datagram->packet.interface == packet->interface &&
           first->ip_version == frame->ip_version && (first->ip_version == 6 || first->protocol == frame->protocol) &&
           first->vlan == frame->vlan && first->inner_vlan == frame->inner_vlan &&
           memcmp(datagram->addresses[0], frame->source, address_bytes(frame)) == 0 &&
           memcmp(datagram->addresses[1], frame->destination, address_bytes(frame)) == 0;
}

/* Returns the fragment's datagram, a pending one before a closed one, or NULL without one. */
static um_fragmented *find(um_fragments *fragments, const um_capture_packet *packet, const um_captured_frame *frame)
{
    um_fragmented *closed = NULL;
    for (uint32_t i = 0; i < fragments->datagram_count; i++) {
        um_fragmented *one = &fragments->datagrams[i];
        if (!is_of(one, packet, frame))
            continue;
        if (one->state == UM_FRAGMENTED_PENDING)
            return one;
        closed = one;
    }
    return closed;
}

/* Returns the datagram of this state that was idle longest, or NULL without one. */
static um_fragmented *oldest(um_fragments *fragments, enum um_fragmented_state state)
{
    um_fragmented *found = NULL;
    for (uint32_t i = 0; i < fragments->datagram_count; i++) {
        um_fragmented *one = &fragments->datagrams[i];
        if (one->state == state && (found == NULL || one->used < found->used))
            found = one;
    }
    return found;
}

static um_fragmented *free_datagram(um_fragments *fragments)
{
    for (uint32_t i = 0; i < fragments->datagram_count; i++) {
        if (fragments->datagrams[i].state == UM_FRAGMENTED_FREE)
            return &fragments->datagrams[i];
    }
    if (fragments->datagram_count < UM_FRAGMENTS_DATAGRAMS_MAX)
        return &fragments->datagrams[fragments->datagram_count];
    return oldest(fragments, UM_FRAGMENTED_CLOSED);
}

/* ---- the hold ---- */

static void release(um_fragments *fragments, uint32_t i)
{
    um_fragment_piece gone = fragments->pieces[i];
    uint32_t behind = gone.at + gone.held_bytes;
    memmove(fragments->hold + gone.at, fragments->hold + behind, fragments->hold_bytes - behind);
    fragments->hold_bytes -= gone.held_bytes;
    fragments->piece_count--;
    memmove(fragments->pieces + i, fragments->pieces + i + 1, sizeof *fragments->pieces * (fragments->piece_count - i));
    for (uint32_t k = i; k < fragments->piece_count; k++)
        fragments->pieces[k].at -= gone.held_bytes;
}

/* Pieces are in the order of the hold; those of a complete datagram are mostly its last. */
static void release_all(um_fragments *fragments, uint32_t datagram)
{
    for (uint32_t i = fragments->piece_count; i-- > 0;) {
        if (fragments->pieces[i].datagram == datagram)
            release(fragments, i);
    }
}

static void join(um_fragments *fragments, um_fragmented *datagram, enum um_fragmented_state state)
{
    assert(datagram->state == UM_FRAGMENTED_PENDING);
    datagram->state = state;
    fragments->joined_count++;
    fragments->findings.refused_count += state == UM_FRAGMENTED_REFUSED;
}

static void give_up(um_fragments *fragments, um_fragmented *datagram)
{
    join(fragments, datagram, UM_FRAGMENTED_INCOMPLETE);
    fragments->findings.missing_count++;
}

static bool has_space(um_fragments *fragments)
{
    return fragments->piece_count < UM_FRAGMENTS_PIECES_MAX &&
           UM_FRAGMENTS_HOLD_BYTES - fragments->hold_bytes >= UM_FRAGMENTS_DATAGRAM_BYTES_MAX &&
           free_datagram(fragments) != NULL;
}

/* Makes space for the next fragment: joined datagrams release theirs when they are taken. */
static void make_space(um_fragments *fragments)
{
    if (fragments->joined_count > 0 || has_space(fragments))
        return;
    um_fragmented *datagram = oldest(fragments, UM_FRAGMENTED_PENDING);
    assert(datagram != NULL);
    join(fragments, datagram, UM_FRAGMENTED_INCOMPLETE);
    fragments->findings.displaced_count++;
}

/* ---- one fragment ---- */

enum agreement { FITS, IS_COPY, IS_OF_ANOTHER, CONTRADICTS };

static bool has_bytes_of(const um_fragments *fragments, const um_fragment_piece *piece, const um_captured_frame *frame)
{
    return piece->held_bytes == frame->payload_captured_bytes &&
           memcmp(fragments->hold + piece->at, frame->payload, piece->held_bytes) == 0;
}

static enum agreement agreement_of(const um_fragments *fragments, const um_fragmented *datagram,
                                   const um_captured_frame *frame)
{
    uint32_t start = frame->fragment_offset, end = start + frame->payload_bytes;
    uint32_t index = (uint32_t)(datagram - fragments->datagrams), total = datagram->total_bytes;
    bool contradicts = total != 0 && (frame->is_last_fragment ? end != total : end >= total);
    for (uint32_t i = 0; i < fragments->piece_count; i++) {
        const um_fragment_piece *piece = &fragments->pieces[i];
        if (piece->datagram != index)
            continue;
        uint32_t piece_end = piece->offset + piece->bytes;
        if (piece->offset == start && piece_end == end)
            return has_bytes_of(fragments, piece, frame) ? IS_COPY : IS_OF_ANOTHER;
        contradicts |= (piece->offset < end && start < piece_end) || (frame->is_last_fragment && piece_end > end);
    }
    return contradicts ? CONTRADICTS : FITS;
}

static bool is_idle(const um_fragmented *datagram, const um_capture_packet *packet)
{
    return datagram->packet.is_timed && packet->is_timed && packet->time_ns > datagram->packet.time_ns &&
           (uint64_t)packet->time_ns - (uint64_t)datagram->packet.time_ns > UM_FRAGMENTS_IDLE_NS;
}

static um_fragmented *begin(um_fragments *fragments, const um_capture_packet *packet, uint64_t position,
                            const um_captured_frame *frame)
{
    um_fragmented *datagram = free_datagram(fragments);
    assert(datagram != NULL);
    uint32_t index = (uint32_t)(datagram - fragments->datagrams);
    if (index >= fragments->datagram_count)
        fragments->datagram_count = index + 1;
    *datagram =
        (um_fragmented){.state = UM_FRAGMENTED_PENDING, .position = position, .packet = *packet, .frame = *frame};
    memcpy(datagram->addresses[0], frame->source, address_bytes(frame));
    memcpy(datagram->addresses[1], frame->destination, address_bytes(frame));
    datagram->packet.data = NULL;
    datagram->packet.frame_bytes = 0;
    datagram->packet.captured_bytes = 0;
    datagram->packet.has_drop_count = false;
    datagram->packet.drop_count = 0;
    datagram->frame.start = NULL;
    datagram->frame.source = NULL;
    datagram->frame.destination = NULL;
    datagram->frame.payload = NULL;
    datagram->frame.fragment_count = 0;
    return datagram;
}

/* Lengths of a damaged file may add up to more than a column holds. */
static uint32_t add_bytes(uint32_t a, uint32_t b)
{
    return b > INT32_MAX - a ? INT32_MAX : a + b;
}

static void add_piece(um_fragments *fragments, um_fragmented *datagram, const um_capture_packet *packet,
                      const um_captured_frame *frame)
{
    assert(fragments->piece_count < UM_FRAGMENTS_PIECES_MAX &&
           UM_FRAGMENTS_HOLD_BYTES - fragments->hold_bytes >= frame->payload_captured_bytes);
    fragments->pieces[fragments->piece_count++] =
        (um_fragment_piece){.datagram = (uint32_t)(datagram - fragments->datagrams),
                            .offset = frame->fragment_offset,
                            .bytes = frame->payload_bytes,
                            .held_bytes = frame->payload_captured_bytes,
                            .at = fragments->hold_bytes};
    memcpy(fragments->hold + fragments->hold_bytes, frame->payload, frame->payload_captured_bytes);
    fragments->hold_bytes += frame->payload_captured_bytes;
    datagram->used = ++fragments->fragment_count;
    datagram->received_bytes += frame->payload_bytes;
    /* Only the header of the first fragment names the protocol reliably (RFC 8200). */
    if (frame->fragment_offset == 0)
        datagram->frame.protocol = frame->protocol;
    if (frame->is_last_fragment)
        datagram->total_bytes = frame->fragment_offset + frame->payload_bytes;
    datagram->frame.fragment_count += frame->fragment_count;
    datagram->packet.frame_bytes = add_bytes(datagram->packet.frame_bytes, packet->frame_bytes);
    datagram->packet.captured_bytes = add_bytes(datagram->packet.captured_bytes, packet->captured_bytes);
    datagram->packet.is_timed = packet->is_timed;
    datagram->packet.time_ns = packet->time_ns;
    datagram->packet.has_drop_count |= packet->has_drop_count;
    datagram->packet.drop_count += packet->has_drop_count ? packet->drop_count : 0;
}

static bool hold(um_fragments *fragments, const um_capture_packet *packet, uint64_t position,
                 const um_captured_frame *frame)
{
    um_fragmented *datagram = find(fragments, packet, frame);
    if (datagram != NULL && datagram->state == UM_FRAGMENTED_CLOSED) {
        if (!is_idle(datagram, packet) && frame->fragment_offset != 0)
            return false;
        datagram->state = UM_FRAGMENTED_FREE;
        datagram = NULL;
    } else if (datagram != NULL) {
        enum agreement agreement = is_idle(datagram, packet) ? IS_OF_ANOTHER : agreement_of(fragments, datagram, frame);
        if (agreement == CONTRADICTS)
            join(fragments, datagram, UM_FRAGMENTED_REFUSED);
        if (agreement == CONTRADICTS || agreement == IS_COPY)
            return false;
        if (agreement == IS_OF_ANOTHER) {
            give_up(fragments, datagram);
            datagram = NULL;
        }
    }
    if (datagram == NULL)
        datagram = begin(fragments, packet, position, frame);
    add_piece(fragments, datagram, packet, frame);
    if (datagram->received_bytes == datagram->total_bytes)
        join(fragments, datagram, UM_FRAGMENTED_WHOLE);
    return true;
}

bool um_fragments_hold(um_fragments *fragments, const um_capture_packet *packet, uint64_t position,
                       const um_captured_frame *frame)
{
    assert(fragments->joined_count == 0 && frame->status == UM_CAPTURED_FRAGMENT);
    bool held = hold(fragments, packet, position, frame);
    make_space(fragments);
    return held;
}

/* ---- joined datagrams ---- */

/* Copies the pieces from the datagram's start up to the first missing one. Returns the bytes that they have on the
 * wire; *captured: the bytes copied, up to the first that was not captured. */
static uint32_t copy_joined(um_fragments *fragments, uint32_t datagram, uint32_t *captured)
{
    uint32_t end = 0;
    bool is_cut = false;
    *captured = 0;
    for (uint32_t i = 0; i < fragments->piece_count;) {
        const um_fragment_piece *piece = &fragments->pieces[i];
        if (piece->datagram != datagram || piece->offset != end) {
            i++;
            continue;
        }
        if (!is_cut) {
            memcpy(fragments->joined + end, fragments->hold + piece->at, piece->held_bytes);
            *captured += piece->held_bytes;
            is_cut = piece->held_bytes < piece->bytes;
        }
        end += piece->bytes;
        i = 0;
    }
    return end;
}

static um_fragmented *next_joined(um_fragments *fragments)
{
    um_fragmented *found = NULL;
    for (uint32_t i = 0; i < fragments->datagram_count; i++) {
        um_fragmented *one = &fragments->datagrams[i];
        if (is_joined(one) && (found == NULL || one->used < found->used))
            found = one;
    }
    return found;
}

static void take(um_fragments *fragments, um_fragmented *from, um_joined_datagram *into)
{
    uint32_t index = (uint32_t)(from - fragments->datagrams), captured;
    into->packet = from->packet;
    into->position = from->position;
    into->frame = from->frame;
    memcpy(into->addresses, from->addresses, sizeof into->addresses);
    into->frame.source = into->addresses[0];
    into->frame.destination = into->addresses[1];
    into->frame.is_incomplete = from->state != UM_FRAGMENTED_WHOLE;
    uint32_t bytes = copy_joined(fragments, index, &captured);
    if (bytes > 0 && from->state != UM_FRAGMENTED_REFUSED)
        um_captured_frame_decode_joined(&into->frame, fragments->joined, captured, bytes);
    release_all(fragments, index);
    from->state = UM_FRAGMENTED_CLOSED;
    fragments->joined_count--;
}

bool um_fragments_pop(um_fragments *fragments, um_joined_datagram *datagram)
{
    while (UM_UNLIKELY(fragments->joined_count > 0)) {
        take(fragments, next_joined(fragments), datagram);
        /* A fragmented tunnel may carry fragments. Each join needs two of them, so this ends. */
        bool is_inner = datagram->frame.status == UM_CAPTURED_FRAGMENT && !datagram->frame.is_incomplete;
        bool held = is_inner && hold(fragments, &datagram->packet, datagram->position, &datagram->frame);
        make_space(fragments);
        if (!held)
            return true;
    }
    return false;
}

bool um_fragments_give_up(um_fragments *fragments)
{
    for (uint32_t i = 0; i < fragments->datagram_count; i++) {
        if (fragments->datagrams[i].state == UM_FRAGMENTED_PENDING)
            give_up(fragments, &fragments->datagrams[i]);
    }
    return fragments->joined_count > 0;
}

void um_fragments_read_findings(const um_fragments *fragments, um_fragment_findings *findings)
{
    *findings = fragments->findings;
}

/* ---- storing and loading ---- */

typedef struct stored_head {
    uint64_t fragment_count;
    uint32_t datagram_count;
    uint32_t piece_count;
    uint32_t hold_bytes;
    uint32_t reserved; /* keeps the length a multiple of eight bytes */
} stored_head;

uint64_t um_fragments_stored_bytes(const um_fragments *fragments)
{
    if (fragments->datagram_count == 0)
        return 0;
    return sizeof(stored_head) + sizeof *fragments->datagrams * fragments->datagram_count +
           sizeof *fragments->pieces * fragments->piece_count + fragments->hold_bytes;
}

void um_fragments_store(const um_fragments *fragments, uint8_t *out, uint64_t capacity)
{
    assert(fragments->joined_count == 0);
    stored_head head = {fragments->fragment_count, fragments->datagram_count, fragments->piece_count,
                        fragments->hold_bytes, 0};
    if (fragments->datagram_count == 0 || capacity < um_fragments_stored_bytes(fragments))
        return;
    memcpy(out, &head, sizeof head);
    out += sizeof head;
    memcpy(out, fragments->datagrams, sizeof *fragments->datagrams * fragments->datagram_count);
    out += sizeof *fragments->datagrams * fragments->datagram_count;
    memcpy(out, fragments->pieces, sizeof *fragments->pieces * fragments->piece_count);
    out += sizeof *fragments->pieces * fragments->piece_count;
    memcpy(out, fragments->hold, fragments->hold_bytes);
}

bool um_fragments_load(um_fragments *fragments, const uint8_t *stored, uint64_t bytes)
{
    stored_head head;
    if (bytes < sizeof head)
        return bytes == 0;
    memcpy(&head, stored, sizeof head);
    if (head.datagram_count > UM_FRAGMENTS_DATAGRAMS_MAX || head.piece_count > UM_FRAGMENTS_PIECES_MAX ||
        head.hold_bytes > UM_FRAGMENTS_HOLD_BYTES ||
        bytes != sizeof head + sizeof *fragments->datagrams * head.datagram_count +
                     sizeof *fragments->pieces * head.piece_count + head.hold_bytes)
        return false;
    fragments->fragment_count = head.fragment_count;
    fragments->datagram_count = head.datagram_count;
    fragments->piece_count = head.piece_count;
    fragments->hold_bytes = head.hold_bytes;
    stored += sizeof head;
    memcpy(fragments->datagrams, stored, sizeof *fragments->datagrams * head.datagram_count);
    stored += sizeof *fragments->datagrams * head.datagram_count;
    memcpy(fragments->pieces, stored, sizeof *fragments->pieces * head.piece_count);
    stored += sizeof *fragments->pieces * head.piece_count;
    memcpy(fragments->hold, stored, head.hold_bytes);
    return true;
}

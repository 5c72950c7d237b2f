#include "authentication/tagging_link.h"

#include "core/wire/lbtrm.h"
#include "os/clock.h"
#include "os/memory.h"

static bool is_data(const um_tx *tx)
{
    return (tx->parts[0].data[0] & 0x0f) == UM_LBTRM_DATA;
}

static bool passes_untagged(const um_tagging_link *link, const um_tx *tx)
{
    return link->sends_data && link->scope == UM_AUTHENTICATE_CONTROL && is_data(tx);
}

static uint8_t *copy_parts(uint8_t *out, const um_tx *tx)
{
    for (uint32_t i = 0; i < tx->part_count; i++) {
        memcpy(out, tx->parts[i].data, tx->parts[i].length);
        out += tx->parts[i].length;
    }
    return out;
}

/* Copies the datagram and its trailer to `out`, as slot `slot` of the batch. */
static bool tag(um_tagging_link *link, const um_tx *tx, uint32_t slot, uint8_t *out, int64_t wall_ns)
{
    uint8_t *trailer = copy_parts(out, tx);
    link->stamp = link->sends_data ? um_stamp_next(link->stamp, wall_ns) : um_stamp_follow(link->stamp, wall_ns);
    um_trailer_write(trailer, link->mac.key_id, link->stamp);
    link->parts[slot] = (um_part){out, tx->length + UM_TRAILER_BYTES};
    link->batch[slot] = (um_tx){.parts = &link->parts[slot], .part_count = 1, .length = tx->length + UM_TRAILER_BYTES};
    return um_mac_seal(&link->mac, link->local, out, tx->length + UM_TRAILER_COVERED_BYTES);
}

/* A source's batch holds only DATA or one control message. */
static const um_tx *tagged(um_tagging_link *link, const um_tx *batch, uint32_t count)
{
    if (count > 0 && passes_untagged(link, &batch[0]))
        return batch;
    int64_t wall_ns = um_clock_wall_ns();
    uint8_t *out = link->buffer;
    for (uint32_t i = 0; i < count; i++) {
        um_debug_assert(out + batch[i].length + UM_TRAILER_BYTES <= link->buffer + link->buffer_bytes);
        if (!tag(link, &batch[i], i, out, wall_ns)) {
            link->error = -EIO;
            return NULL;
        }
        out += batch[i].length + UM_TRAILER_BYTES;
    }
    return link->batch;
}

static int send(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_tagging_link *link = (um_tagging_link *)base;
    const um_tx *out = tagged(link, batch, count);
    return out == NULL ? link->error : link->next->ops->send(link->next, to, out, count);
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_tagging_link *link = (um_tagging_link *)base;
    const um_tx *out = tagged(link, datagram, 1);
    return out == NULL ? link->error : link->next->ops->send_oversize(link->next, to, out);
}

static uint32_t borrow(um_link *base, uint8_t **pieces, uint32_t count)
{
    um_link *next = ((um_tagging_link *)base)->next;
    return next->ops->borrow(next, pieces, count);
}

static void return_frames(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    um_link *next = ((um_tagging_link *)base)->next;
    next->ops->return_frames(next, pieces, count);
}

static const um_link_ops OPS = {
    .send = send, .send_oversize = send_oversize, .borrow = borrow, .return_frames = return_frames};

int um_tagging_link_set_key(um_tagging_link *link, const um_key *key, const um_mac_session *session)
{
    um_mac mac;
    int result = um_mac_open(&mac, session != NULL ? UM_MAC_SESSION : UM_MAC_CONTROL, key, session);
    if (result != 0)
        return result;
    um_mac_close(&link->mac);
    link->mac = mac;
    return 0;
}

int um_tagging_link_begin_session(um_tagging_link *link, const um_key *key, const um_mac_session *session)
{
    int result = um_tagging_link_set_key(link, key, session);
    if (result == 0)
        link->stamp = um_stamp_follow(link->stamp, 0);
    return result;
}

int um_tagging_link_open(um_tagging_link *link, um_link *next, const um_key *key, enum um_mac_purpose purpose,
                         enum um_authentication_scope scope, const um_mac_session *session, um_address local,
                         uint32_t datagram_max_bytes, uint64_t random)
{
    /* Datagrams that are copied with their trailer may have any number of parts, but use no borrowed frames. */
    bool copies_data = purpose == UM_MAC_SESSION && scope == UM_AUTHENTICATE_ALL;
    link->base = (um_link){.ops = &OPS,
                           .is_faster_in_one_piece = !copies_data && next->is_faster_in_one_piece,
                           .borrow_bytes = copies_data ? 0 : next->borrow_bytes};
    link->next = next;
    link->mac = (um_mac){0};
    link->local = local;
    link->scope = scope;
    link->sends_data = purpose == UM_MAC_SESSION;
    link->stamp = random & (((uint64_t)1 << UM_STAMP_COUNT_BITS) - 1);
    link->error = 0;
    link->buffer_bytes = UM_SEND_BATCH_MAX * ((size_t)datagram_max_bytes + UM_TRAILER_BYTES);
    link->buffer = um_map(link->buffer_bytes);
    if (link->buffer == NULL)
        return -ENOMEM;
    int result = um_tagging_link_set_key(link, key, session);
    if (result != 0)
        um_tagging_link_close(link);
    return result;
}

void um_tagging_link_close(um_tagging_link *link)
{
    um_mac_close(&link->mac);
    um_unmap(link->buffer, link->buffer_bytes);
    link->buffer = NULL;
}

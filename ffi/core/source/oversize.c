#include "core/source/oversize.h"

#include "core/wire/datagram_piece.h"

enum { HEAD_BYTES = UM_LBTRM_SM_BYTES + UM_DATAGRAM_PIECE_BYTES, SQN_AT = 8, FLAGS_AT = 16 };

/* Makes parts of `length` bytes of the datagram from `from` on. Returns their number. */
static uint32_t cut(const um_tx *datagram, uint32_t from, uint32_t length, um_part *parts)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < datagram->part_count && length > 0; i++) {
        um_part part = datagram->parts[i];
        if (from >= part.length) {
            from -= part.length;
            continue;
        }
        uint32_t here = part.length - from < length ? part.length - from : length;
        parts[count++] = (um_part){part.data + from, here};
        length -= here;
        from = 0;
    }
    assert(length == 0);
    return count;
}

static int send_piece(um_source_session *session, const um_tx *datagram, const um_datagram_piece *piece)
{
    const um_source_session_config *config = &session->config;
    uint8_t head[HEAD_BYTES];
    uint32_t at = um_lbtrm_write_sm(head, config->session_id, config->nak_port, session->sm_sqn++,
                                    session->next_sqn - 1, session->trail_sqn);
    at += um_datagram_piece_encode(head + at, piece);
    um_part parts[1 + UM_DATAGRAM_PARTS_MAX] = {{head, at}};
    uint32_t length = um_datagram_piece_length(piece);
    uint32_t count = 1 + cut(datagram, um_datagram_piece_offset(piece), length, parts + 1);
    um_tx tx = {.parts = parts, .part_count = count, .length = at + length};
    return session->link->ops->send(session->link, config->group, &tx, 1);
}

int um_oversize_send(um_source_session *session, const um_tx *datagram)
{
    const um_path_mtu *path = &session->path;
    uint32_t space = path->bytes - session->config.control_trailer_bytes - HEAD_BYTES;
    uint32_t count = (datagram->length + space - 1) / space;
    bool is_path = path->bytes < path->ceiling_bytes && um_path_mtu_has_reports(path);
    if (!is_path || count > UM_DATAGRAM_PIECES_MAX)
        return session->link->ops->send_oversize(session->link, session->config.group, datagram);
    um_datagram_piece piece = {um_load_be32(datagram->parts[0].data + SQN_AT), datagram->length, 0, (uint8_t)count,
                               NULL};
    bool is_retransmission = datagram->parts[0].data[FLAGS_AT] & UM_LBTRM_FLAG_RETRANSMISSION;
    um_cut_datagram *cut = &session->cut[is_retransmission];
    if (cut->sqn == piece.sqn && cut->count == count)
        piece.index = cut->next;
    cut->count = 0;
    for (; piece.index < count; piece.index++) {
        int sent = send_piece(session, datagram, &piece);
        if (sent <= 0) {
            *cut = (um_cut_datagram){piece.sqn, piece.count, piece.index};
            return sent;
        }
    }
    UM_COUNT(session->counters.datagrams_sent_in_pieces, 1);
    return 1;
}

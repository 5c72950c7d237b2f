#include "core/wire/datagram_piece.h"

enum { VERSION = 1 };

uint32_t um_datagram_piece_encode(uint8_t *out, const um_datagram_piece *piece)
{
    uint8_t data[UM_DATAGRAM_PIECE_DATA_BYTES] = {VERSION, piece->index, piece->count};
    um_store_be32(data + 4, piece->sqn);
    um_store_be16(data + 8, (uint16_t)piece->total_bytes);
    return um_lbmc_write_extended(out, UM_LBMC_OWN_ID, UM_DATAGRAM_PIECE_OPTION_SUBTYPE, data, sizeof data);
}

bool um_datagram_piece_decode(const um_lbmc_message *message, uint32_t message_bytes, const uint8_t *body,
                              uint32_t body_bytes, um_datagram_piece *piece)
{
    if (message->type != UM_LBMC_CONTROL || message->extended == NULL || message->extended_id != UM_LBMC_OWN_ID ||
        message->extended_subtype != UM_DATAGRAM_PIECE_OPTION_SUBTYPE ||
        message->extended_length != UM_DATAGRAM_PIECE_DATA_BYTES || message->extended[0] != VERSION)
        return false;
    *piece = (um_datagram_piece){.sqn = um_load_be32(message->extended + 4),
                                 .total_bytes = um_load_be16(message->extended + 8),
                                 .index = message->extended[1],
                                 .count = message->extended[2],
                                 .data = body + message_bytes};
    if (piece->count == 0 || piece->count > UM_DATAGRAM_PIECES_MAX || piece->index >= piece->count ||
        um_datagram_piece_offset(piece) >= piece->total_bytes)
        return false;
    return body_bytes - message_bytes >= um_datagram_piece_length(piece);
}

bool um_datagram_assembly_add(um_datagram_assembly *assembly, const void *owner, const um_datagram_piece *piece)
{
    bool is_next = assembly->owner == owner && assembly->sqn == piece->sqn && assembly->count == piece->count &&
                   assembly->total_bytes == piece->total_bytes && assembly->missing != 0;
    if (!is_next) {
        assembly->owner = owner;
        assembly->sqn = piece->sqn;
        assembly->count = piece->count;
        assembly->total_bytes = piece->total_bytes;
        assembly->missing = UINT64_MAX >> (UM_DATAGRAM_PIECES_MAX - piece->count);
    }
    memcpy(assembly->memory + um_datagram_piece_offset(piece), piece->data, um_datagram_piece_length(piece));
    assembly->missing &= ~(UINT64_C(1) << piece->index);
    return assembly->missing == 0;
}

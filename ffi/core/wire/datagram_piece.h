/* Datagrams in pieces: a datagram that was built before its path became smaller is sent as several session messages,
 * each with a control message and a piece of the datagram behind it (layout: docs/wire.md). IP does not help: the
 * sender's kernel fragments for its own interface only. All pieces but the last have the same length.
 *
 * One datagram at a time is assembled for all sessions of a context; a piece of another one replaces it, and NAKs
 * request it again. Pure, except the assembly. Threads: any; the assembly: the context lock.
 */
#ifndef UM_CORE_DATAGRAM_PIECE_H
#define UM_CORE_DATAGRAM_PIECE_H

#include "core/wire/framing.h"
#include "core/wire/lbmc.h"

enum {
    UM_DATAGRAM_PIECE_OPTION_SUBTYPE = 11, /* under UM_LBMC_OWN_ID */
    UM_DATAGRAM_PIECE_DATA_BYTES = 12,
    UM_DATAGRAM_PIECE_BYTES = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_DATAGRAM_PIECE_DATA_BYTES,
    UM_DATAGRAM_PIECES_MAX = 64,
    UM_DATAGRAM_ASSEMBLY_BYTES = 65536, /* the longest datagram */
};

typedef struct um_datagram_piece {
    uint32_t sqn;         /* of the datagram */
    uint32_t total_bytes; /* length of the datagram */
    uint8_t index;
    uint8_t count;
    const uint8_t *data;
} um_datagram_piece;

static inline uint32_t um_datagram_piece_offset(const um_datagram_piece *piece)
{
    return piece->index * ((piece->total_bytes + piece->count - 1) / piece->count);
}

/* Length of the piece. */
static inline uint32_t um_datagram_piece_length(const um_datagram_piece *piece)
{
    uint32_t each = (piece->total_bytes + piece->count - 1) / piece->count;
    uint32_t left = piece->total_bytes - um_datagram_piece_offset(piece);
    return left < each ? left : each;
}

/* Writes the control message, which the bytes of the piece follow; returns its length. */
uint32_t um_datagram_piece_encode(uint8_t *out, const um_datagram_piece *piece);

/* `body`: the control message, `message_bytes` long, and what follows it. Returns false if it is not a well-formed
 * piece. */
bool um_datagram_piece_decode(const um_lbmc_message *message, uint32_t message_bytes, const uint8_t *body,
                              uint32_t body_bytes, um_datagram_piece *piece);

typedef struct um_datagram_assembly {
    uint8_t *memory; /* UM_DATAGRAM_ASSEMBLY_BYTES, backed by pages when first used */
    const void *owner;
    uint32_t sqn;
    uint32_t total_bytes;
    uint32_t count;
    uint64_t missing; /* a bit for each piece */
} um_datagram_assembly;

/* Adds a piece. Returns true if the datagram is complete: it is then at `memory`. */
bool um_datagram_assembly_add(um_datagram_assembly *assembly, const void *owner, const um_datagram_piece *piece);

#endif

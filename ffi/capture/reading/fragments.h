/* Joins the IP fragments of a capture, IPv4 and IPv6, to the datagrams that they form.
 *
 *   hold(fragment) --> pending --> all bytes there, in any order --> joined: whole
 *                              --> idle too long, space needed,   --> joined: incomplete, the start if it is there
 *                                  its id used again, end of file
 *                              --> fragments that overlap        --> joined: refused, without content
 *
 * A datagram belongs to one capture point: its fragments share addresses, protocol, id, interface and VLAN tags. After
 * each hold() the caller takes the joined datagrams with pop(); one hold() may cause several. A copy of a fragment, as
 * mirror ports make them, is not held. Memory and time are bounded: if space is needed, the datagram that was idle
 * longest is given up.
 *
 * Sans-I/O, no allocation; memory is the caller's, zero at the start of a file, and holds no pointers between calls.
 * One thread at a time. Complexity: linear in the pending datagrams and the pieces of the fragment's datagram.
 */
#ifndef UM_CAPTURE_READING_FRAGMENTS_H
#define UM_CAPTURE_READING_FRAGMENTS_H

#include "capture/reading/frame.h"
#include "capture/reading/packet.h"

enum {
    UM_FRAGMENTS_DATAGRAMS_MAX = 64,
    UM_FRAGMENTS_PIECES_MAX = 1024,
    UM_FRAGMENTS_DATAGRAM_BYTES_MAX = 65536,
    UM_FRAGMENTS_HOLD_BYTES = 1 << 20,
    UM_FRAGMENTS_IDLE_NS = 1000000000, /* without a fragment for longer, a datagram is given up */
};

enum um_fragmented_state {
    UM_FRAGMENTED_FREE,
    UM_FRAGMENTED_PENDING,
    UM_FRAGMENTED_WHOLE,      /* joined, as the next two */
    UM_FRAGMENTED_INCOMPLETE, /* fragments are missing */
    UM_FRAGMENTED_REFUSED,    /* fragments contradict each other */
    UM_FRAGMENTED_CLOSED,     /* taken by the caller; later copies of its fragments are recognized */
};

typedef struct um_fragmented {
    enum um_fragmented_state state;
    uint64_t used; /* number of its latest fragment */
    uint64_t position;
    uint32_t received_bytes;
    uint32_t total_bytes;     /* 0: the last fragment is missing */
    uint8_t addresses[2][16]; /* source, destination; IPv4: the first four bytes */
    um_capture_packet packet; /* of its first captured fragment, with the time of the latest, and lengths added up */
    um_captured_frame frame;  /* of its first captured fragment */
} um_fragmented;

typedef struct um_fragment_piece {
    uint32_t datagram;
    uint32_t offset;
    uint32_t bytes;
    uint32_t held_bytes; /* captured bytes of these */
    uint32_t at;         /* offset in the hold */
} um_fragment_piece;

typedef struct um_fragment_findings {
    uint64_t missing_count;   /* datagrams given up because fragments are missing */
    uint64_t displaced_count; /* datagrams given up because space was needed */
    uint64_t refused_count;   /* datagrams with contradicting fragments */
} um_fragment_findings;

typedef struct um_fragments {
    uint64_t fragment_count;
    uint32_t datagram_count; /* up to the last used one */
    uint32_t joined_count;
    uint32_t piece_count;
    uint32_t hold_bytes;
    um_fragment_findings findings; /* since the fragments were loaded */
    um_fragmented datagrams[UM_FRAGMENTS_DATAGRAMS_MAX];
    um_fragment_piece pieces[UM_FRAGMENTS_PIECES_MAX];
    uint8_t hold[UM_FRAGMENTS_HOLD_BYTES];
    uint8_t joined[UM_FRAGMENTS_DATAGRAM_BYTES_MAX];
} um_fragments;

/* A joined datagram, decoded. It points into the fragments and itself until the next call. */
typedef struct um_joined_datagram {
    um_capture_packet packet; /* without data */
    uint64_t position;        /* of its first captured fragment, in the file */
    um_captured_frame frame;
    uint8_t addresses[2][16];
} um_joined_datagram;

/* Takes a frame with the status of a fragment; `position`: of its packet in the file. Returns false if it is not held,
 * because it is a copy or contradicts its datagram. No datagram may be joined before. */
bool um_fragments_hold(um_fragments *fragments, const um_capture_packet *packet, uint64_t position,
                       const um_captured_frame *frame);

/* Takes the next joined datagram. Returns false without one. */
bool um_fragments_pop(um_fragments *fragments, um_joined_datagram *datagram);

/* Gives up all pending datagrams, at the end of a file. Returns true if a datagram is joined. */
bool um_fragments_give_up(um_fragments *fragments);

/* Copies the findings since the fragments were initialized or loaded. */
void um_fragments_read_findings(const um_fragments *fragments, um_fragment_findings *findings);

/* The state as bytes, as with um_streams. No datagram may be joined. */
uint64_t um_fragments_stored_bytes(const um_fragments *fragments);
void um_fragments_store(const um_fragments *fragments, uint8_t *out, uint64_t capacity);
bool um_fragments_load(um_fragments *fragments, const uint8_t *stored, uint64_t bytes);

#endif

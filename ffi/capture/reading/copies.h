/* Recognizes copies of a packet: a mirror of several switch ports, or a capture of several interfaces of a host, shows
 * a packet more than once at one capture point, within microseconds.
 *
 * A packet is repeated if one of the UM_COPIES_PACKETS_MAX packets before it, at the same interface and within
 * UM_COPIES_WITHIN_NS, has the same bytes from the IP addresses on: addresses, ports, checksum, and the first bytes of
 * the payload, which hold the sequence number. Fields that a switch or router changes (Ethernet, tags, tunnels, TTL)
 * do not count. The id of an IPv4 packet does: TCP segments that are sent again have another one.
 *
 * A repeated packet is a copy, because the protocols send the same bytes again after a millisecond or more: their
 * intervals are whole milliseconds. The exceptions are packets that answer others (status messages, NCFs, filter
 * reports, acknowledgements of TCP), and NAKs and retransmissions, which are repeated at once if they are known to be
 * lost. These are copies where many packets are repeated, as a mirror does.
 *
 * Sans-I/O, no allocation; memory is the caller's, zero at the start of a file, and holds no pointers. One thread at a
 * time. Complexity: constant for most packets that are not repeated; otherwise linear in the packets within
 * UM_COPIES_WITHIN_NS, at most UM_COPIES_PACKETS_MAX.
 */
#ifndef UM_CAPTURE_READING_COPIES_H
#define UM_CAPTURE_READING_COPIES_H

#include "capture/reading/frame.h"
#include "capture/reading/packet.h"

enum {
    UM_COPIES_PACKETS_MAX = 128, /* a power of two */
    UM_COPIES_WITHIN_NS = 100000,
    UM_COPIES_ALIKE = 1024,        /* entries of `alike`, a power of two */
    UM_COPIES_PAYLOAD_BYTES = 128, /* bytes of the payload that are compared */
    UM_COPIES_MIRRORED_MIN = 2,    /* repeated packets that are a mirror's, if every third is repeated */
};

/* A packet that later ones are compared with. */
typedef struct um_copied_packet {
    uint64_t fingerprint; /* of its bytes */
    int64_t time_ns;
    int32_t interface;
    bool is_repeated;
    bool is_evidence; /* of a mirror, if it is repeated: not a short answer of a receiver */
} um_copied_packet;

typedef struct um_copies {
    uint32_t evidence_count; /* of the packets below; the next one, too */
    uint32_t repeated_count; /* of these */
    uint64_t packet_count;   /* number of the next packet; packet i is at i % UM_COPIES_PACKETS_MAX */
    um_copied_packet packets[UM_COPIES_PACKETS_MAX];
    uint8_t alike[UM_COPIES_ALIKE]; /* number of them by fingerprint, modulo the entries: usually none is alike */
} um_copies;

/* A packet without a time or an interface, or without UDP, TCP or a fragment of them, is never repeated. */
typedef struct um_copy_found {
    bool is_repeated;
    bool is_mirrored; /* many packets before it were repeated */
} um_copy_found;

/* Takes the next packet. */
um_copy_found um_copies_take(um_copies *copies, const um_capture_packet *packet, const um_captured_frame *frame);

/* Returns true if it has taken so many packets that those before them, if there were any, would change nothing: the
 * packets that it holds were compared with others that it took. */
bool um_copies_is_settled(const um_copies *copies);

/* The state as bytes, as with um_streams. */
uint64_t um_copies_stored_bytes(const um_copies *copies);
void um_copies_store(const um_copies *copies, uint8_t *out, uint64_t capacity);
bool um_copies_load(um_copies *copies, const uint8_t *stored, uint64_t bytes);

#endif

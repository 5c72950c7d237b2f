/* Counts first transmissions while decoding, instead of making rows of them: frequent packets become facts here, rare
 * ones stay rows. Copies of packets of any kind (copies.h) are only counted. docs/facts.md describes the facts; Python
 * merges a tally into its own.
 *
 * First transmissions with these in common are a stream: interface, source and its port, destination, session and
 * window of time. For LBT-RU, where each receiver gets a copy, also the block of sqns, by which facts count copies once
 * (umstack/facts/sessions.py). Sans-I/O; memory is the caller's. One thread at a time may use a tally.
 */
#ifndef UM_CAPTURE_READING_TALLY_H
#define UM_CAPTURE_READING_TALLY_H

#include "core/foundation/base.h"

enum {
    UM_TALLY_STREAMS_MAX = 1024,
    UM_TALLY_SLOTS = 8192,               /* of the tables of sizes and topics; a power of two */
    UM_TALLY_PACKET_MESSAGES_MAX = 1024, /* a datagram with more messages stays a row */
    UM_TALLY_BUCKET_NS = 1000000,        /* rates are counted per millisecond */
    UM_TALLY_BLOCK_BITS = 8,             /* sqns per block */
    UM_TALLY_MARK_SQNS = 64,             /* topic sqns that are multiples of this are marked */
};

#define UM_TALLY_UNICAST 0x80000000u

typedef struct um_tally_stream {
    int32_t interface;
    uint64_t key; /* session id << 32; below it 0 for LBT-RM, UM_TALLY_UNICAST and the block for LBT-RU */
    uint8_t source[4];
    uint8_t destination[4];
    uint16_t destination_port;
    uint16_t port;     /* of the source: the NAK port of LBT-RM, the UDP port of LBT-RU */
    int64_t window_ns; /* start of its window; INT64_MIN without windows */
    int64_t window_end_ns;
    int64_t first_ns;
    int64_t last_ns;
    uint64_t packet_count;
    uint64_t message_count;
    uint64_t message_bytes;
    uint64_t udp_bytes;
    uint32_t rate;      /* index of its latest um_tally_rate */
    uint32_t reference; /* index of its latest um_tally_reference */
} um_tally_stream;

typedef struct um_tally_send {
    int64_t time_ns;
    uint32_t sqn;
    uint32_t stream;
} um_tally_send;

/* A millisecond of a stream; it has several if packets are out of order. */
typedef struct um_tally_rate {
    int64_t start_ns;
    uint32_t stream;
    uint32_t datagram_count;
    uint64_t bytes; /* bytes of frames */
} um_tally_rate;

/* The earliest sqn of an epoch of a stream; an epoch has several if packets are out of order. */
typedef struct um_tally_reference {
    int64_t epoch;
    int64_t time_ns;
    uint32_t sqn;
    uint32_t stream;
} um_tally_reference;

/* Datagrams of one length and number of messages. Without datagrams, the slot is free. */
typedef struct um_tally_size {
    uint32_t stream;
    uint32_t udp_bytes;
    uint32_t message_count;
    uint32_t datagram_count;
    uint64_t message_bytes;
    uint64_t frame_bytes;
} um_tally_size;

/* A topic of a stream. Without fragments, the slot is free. */
typedef struct um_tally_topic {
    uint32_t stream;
    uint32_t topic_index;
    uint32_t lowest_sqn;
    uint32_t highest_sqn;
    int64_t first_ns;
    int64_t last_ns;
    uint64_t message_count; /* messages whose first fragment was counted */
    uint64_t fragment_count;
    uint64_t payload_bytes;
} um_tally_topic;

/* When a marked topic sqn was sent. */
typedef struct um_tally_mark {
    int64_t time_ns;
    uint32_t stream;
    uint32_t topic_index;
    uint32_t sqn;
} um_tally_mark;

/* Copies of packets at an interface in a window of time. */
typedef struct um_tally_copies {
    int64_t window_ns; /* as of a stream */
    int32_t interface;
    uint64_t packet_count;
} um_tally_copies;

typedef struct um_tally {
    /* Set by the caller before the first packet. */
    int64_t window_ns; /* length of the windows of time; 0: none */
    int64_t epoch_ns;  /* length of an epoch, which has one reference */
    uint32_t send_capacity;
    um_tally_stream *streams; /* UM_TALLY_STREAMS_MAX */
    um_tally_send *sends;     /* send_capacity entries, like the next two */
    um_tally_rate *rates;
    um_tally_reference *references;
    um_tally_size *sizes;    /* UM_TALLY_SLOTS, zeroed */
    um_tally_topic *topics;  /* UM_TALLY_SLOTS, zeroed */
    um_tally_mark *marks;    /* send_capacity entries, and UM_TALLY_PACKET_MESSAGES_MAX */
    um_tally_copies *copies; /* UM_TALLY_STREAMS_MAX */

    /* Set by the tally. */
    uint32_t stream_count;
    uint32_t latest_stream;
    uint32_t send_count;
    uint32_t rate_count;
    uint32_t reference_count;
    uint32_t size_count;
    uint32_t topic_count;
    uint32_t mark_count;
    uint32_t copies_count;
} um_tally;

/* Empties the tally. */
void um_tally_begin(um_tally *tally);

/* Returns true if another packet may not fit. */
bool um_tally_full(const um_tally *tally);

#endif

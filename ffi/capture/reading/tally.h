/* Counts first sendings where they are decoded, instead of making rows of them: what is frequent in a capture becomes
 * facts here, what is rare stays a row. docs/facts.md says what the facts are; a tally is emptied into those of Python.
 *
 * A stream is what first sendings have in common: where they were captured, who sent them where, in which session, and
 * in which window of time; of LBT-RU, where each receiver is sent a copy, also in which block of numbers, by which
 * facts count once what was sent several times (umstack/facts/sessions.py). Sans-I/O; memory is the caller's. One
 * thread at a time may use a tally.
 */
#ifndef UM_CAPTURE_READING_TALLY_H
#define UM_CAPTURE_READING_TALLY_H

#include "core/foundation/base.h"

enum {
    UM_TALLY_STREAMS_MAX = 1024,
    UM_TALLY_SLOTS = 8192,               /* of a table of sizes, or of topics; a power of two */
    UM_TALLY_PACKET_MESSAGES_MAX = 1024, /* a datagram with more messages stays a row */
    UM_TALLY_BUCKET_NS = 1000000,        /* rates are counted by milliseconds */
    UM_TALLY_BLOCK_BITS = 8,             /* numbers of a block */
};

#define UM_TALLY_UNICAST 0x80000000u

typedef struct um_tally_stream {
    int32_t interface;
    uint64_t key; /* session id << 32, and below it 0 of LBT-RM, UM_TALLY_UNICAST and the block of LBT-RU */
    uint8_t source[4];
    uint8_t destination[4];
    uint16_t destination_port;
    int64_t window_ns; /* when its window begins; 0 where time is not divided */
    int64_t window_end_ns;
    int64_t first_ns;
    int64_t last_ns;
    uint64_t packet_count;
    uint64_t message_count;
    uint64_t message_bytes;
    uint64_t udp_bytes;
    uint32_t rate;      /* index of its latest one */
    uint32_t reference; /* index of its latest one */
} um_tally_stream;

typedef struct um_tally_send {
    int64_t time_ns;
    uint32_t sqn;
    uint32_t stream;
} um_tally_send;

/* A millisecond of a stream; one that is come back to has several. */
typedef struct um_tally_rate {
    int64_t start_ns;
    uint32_t stream;
    uint32_t datagram_count;
    uint64_t bytes; /* of frames */
} um_tally_rate;

/* The earliest number of a minute of a stream; a minute that is come back to has several. */
typedef struct um_tally_reference {
    int64_t epoch;
    int64_t time_ns;
    uint32_t sqn;
    uint32_t stream;
} um_tally_reference;

/* Datagrams with messages, of one length and number of messages. No datagrams: a free slot. */
typedef struct um_tally_size {
    uint32_t stream;
    uint32_t udp_bytes;
    uint32_t message_count;
    uint32_t datagram_count;
    uint64_t message_bytes;
    uint64_t frame_bytes;
} um_tally_size;

/* A topic of a stream. No fragments: a free slot. */
typedef struct um_tally_topic {
    uint32_t stream;
    uint32_t topic_index;
    uint32_t lowest_sqn;
    uint32_t highest_sqn;
    int64_t first_ns;
    int64_t last_ns;
    uint64_t message_count; /* messages that begin in the datagrams */
    uint64_t fragment_count;
    uint64_t payload_bytes;
} um_tally_topic;

typedef struct um_tally {
    /* The caller's, set before the first packet. */
    int64_t window_ns; /* time is divided into windows of so much; 0: not */
    int64_t epoch_ns;  /* numbers have a reference for each so long a time */
    uint32_t send_capacity;
    um_tally_stream *streams; /* UM_TALLY_STREAMS_MAX */
    um_tally_send *sends;     /* send_capacity, as are the next two */
    um_tally_rate *rates;
    um_tally_reference *references;
    um_tally_size *sizes;   /* UM_TALLY_SLOTS, zero */
    um_tally_topic *topics; /* UM_TALLY_SLOTS, zero */

    /* Ours: how much there is. */
    uint32_t stream_count;
    uint32_t latest_stream;
    uint32_t send_count;
    uint32_t rate_count;
    uint32_t reference_count;
    uint32_t size_count;
    uint32_t topic_count;
} um_tally;

/* Empties the tally. */
void um_tally_begin(um_tally *tally);

/* Whether another packet may not fit. */
bool um_tally_full(const um_tally *tally);

#endif

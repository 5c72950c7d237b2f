/* Follows TCP connections through a capture and takes the LBMC messages out of them: recovery (the request protocol of
 * late join and off-transport recovery), LBT-TCP, and whatever else is LBMC back to back.
 *
 *   segment --> connection, direction --> next in order?  yes --> lbmc_stream --> items
 *                                                         again --> dropped
 *                                                         later --> held, until what lies before it comes,
 *                                                                   is acknowledged, or there is no space
 *
 * What a retransmitted segment repeats is taken once. Bytes that never come are a gap: the stream goes on behind it,
 * where it finds the next message, and the findings say how many bytes there were. Of what is longer than its captured
 * part the rest is a gap, too. The table and what is held are bounded; the connection that was idle longest makes way.
 *
 * A connection belongs to the interface it was captured at: one that passes two is two. Its source is the end whose
 * port is one of `ports`. Sans-I/O, no allocation; memory is the caller's, and zero at the beginning of a file. It
 * holds no pointers. One thread at a time. Complexity: linear in the bytes, and in the connections for a segment of
 * another one than the last.
 */
#ifndef UM_CAPTURE_READING_STREAMS_H
#define UM_CAPTURE_READING_STREAMS_H

#include "capture/reading/frame.h"
#include "capture/reading/lbmc_stream.h"

enum {
    UM_STREAMS_CONNECTIONS_MAX = 128,
    UM_STREAMS_HELD_MAX = 64,
    UM_STREAMS_HOLD_BYTES = 128 << 10,
};

/* What a connection is for, by the range request that its receiver begins with (docs/wire.md). */
enum um_stream_purpose {
    UM_STREAM_PURPOSE_UNKNOWN,
    UM_STREAM_LATE_JOIN,
    UM_STREAM_OFF_TRANSPORT,
    UM_STREAM_PURPOSES,
};

enum um_stream_direction_name { UM_STREAM_FROM_SOURCE, UM_STREAM_FROM_RECEIVER, UM_STREAM_DIRECTIONS };

typedef struct um_stream_direction {
    bool is_known; /* next_sqn is */
    bool is_ended; /* its FIN was seen */
    bool is_acknowledged;
    uint32_t next_sqn;
    uint32_t acknowledged_sqn; /* by the other end: a gap before it is passed with this end's next segment */
    um_lbmc_stream messages;
} um_stream_direction;

typedef struct um_stream_connection {
    uint64_t used; /* the number of the segment it was used by last; 0: free */
    int32_t interface;
    uint8_t ip_version;
    uint8_t purpose;
    bool is_session; /* of LBT-TCP: its receiver names one, or its source sends messages that were not requested */
    bool is_named;   /* session_id is known */
    uint16_t source_port;
    uint16_t receiver_port;
    uint8_t source[16]; /* of version 4 the first four bytes */
    uint8_t receiver[16];
    uint32_t topic_index; /* that was requested last */
    uint32_t session_id;
    um_stream_direction directions[UM_STREAM_DIRECTIONS];
} um_stream_connection;

/* A segment that is ahead of its stream. */
typedef struct um_stream_held {
    uint16_t connection;
    uint16_t direction;
    uint32_t sqn;
    uint32_t bytes;      /* on the wire */
    uint32_t held_bytes; /* of these, captured */
    uint32_t at;         /* in the hold */
} um_stream_held;

typedef struct um_stream_findings {
    uint64_t gap_count;
    uint64_t gap_bytes;       /* which belong to no message that was found */
    uint64_t displaced_count; /* connections that made way for others */
    uint64_t unlisted_count;  /* messages beyond those that a row has space for */
} um_stream_findings;

typedef struct um_streams {
    uint16_t port_low;  /* TCP ports of sources */
    uint16_t port_high; /* 0: no connection is followed */
    uint64_t segment_count;
    uint32_t connection_count; /* up to the last one that is used */
    uint32_t latest;
    uint32_t held_count;
    uint32_t hold_bytes;
    um_stream_findings findings; /* since the streams were loaded */
    um_stream_connection connections[UM_STREAMS_CONNECTIONS_MAX];
    um_stream_held held[UM_STREAMS_HELD_MAX];
    uint8_t hold[UM_STREAMS_HOLD_BYTES];
} um_streams;

typedef struct um_stream_taken {
    enum um_dgram_status status; /* what is wrong with its messages, if anything is */
    enum um_stream_purpose purpose;
    bool from_source;
    bool is_session;
    bool is_named;
    uint32_t session_id;
} um_stream_taken;

/* Follow connections whose source has a port from low to high; 0: none, as at first. */
void um_streams_set_ports(um_streams *streams, uint16_t port_low, uint16_t port_high);

/* What was found since the streams began, or were loaded. */
void um_streams_read_findings(const um_streams *streams, um_stream_findings *findings);

/* Whether one of a frame's ports is a source's. */
static inline bool um_streams_has_ports(const um_streams *streams, const um_captured_frame *frame)
{
    return streams->port_high != 0 &&
           ((frame->source_port >= streams->port_low && frame->source_port <= streams->port_high) ||
            (frame->destination_port >= streams->port_low && frame->destination_port <= streams->port_high));
}

/* Whether a frame is a segment of a connection that is followed, and all of its TCP header is there. */
bool um_streams_has(const um_streams *streams, const um_captured_frame *frame);

/* Takes such a segment. Items come of it, and of what was held behind it. */
um_stream_taken um_streams_take(um_streams *streams, int32_t interface, const um_captured_frame *frame,
                                um_lbmc_take_item *take, void *context);

/* The same for a frame that becomes no row, whatever it is. */
void um_streams_follow(um_streams *streams, int32_t interface, int32_t link_type, const uint8_t *data,
                       uint32_t captured_bytes);

/* The state as bytes, for a reader that goes on elsewhere: its length, and the bytes themselves, `capacity` of them at
 * most. Of this version and this kind of machine; 0: there is nothing to be told. */
uint64_t um_streams_stored_bytes(const um_streams *streams);
void um_streams_store(const um_streams *streams, uint8_t *out, uint64_t capacity);
/* False, and nothing is loaded, where the bytes are not what um_streams_store wrote. */
bool um_streams_load(um_streams *streams, const uint8_t *stored, uint64_t bytes);

#endif

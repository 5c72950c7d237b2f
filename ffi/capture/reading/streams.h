/* Follows TCP connections through a capture and extracts their LBMC messages: recovery (the request protocol of late
 * join and off-transport recovery), LBT-TCP, and any other LBMC back to back.
 *
 *   segment --> connection, direction --> next in order?  yes --> lbmc_stream --> items
 *                                                         again --> dropped
 *                                                         later --> held, until the bytes before it arrive or are
 *                                                                   acknowledged, or space runs out
 *
 * Bytes repeated by a retransmitted segment are processed once. Bytes that never arrive are a gap: the stream continues
 * at the next message behind it, and the findings count the missing bytes. The uncaptured rest of a segment is a gap,
 * too. The table and the held bytes are bounded; the connection that was idle longest is evicted.
 *
 * A connection belongs to the interface where it was captured: on two interfaces it counts twice. Its source is the end
 * whose port is in `ports`. Sans-I/O, no allocation; memory is the caller's, zero at the start of a file, and holds no
 * pointers. One thread at a time. Complexity: linear in the bytes, and in the connections for a segment of another
 * connection than the last one.
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

/* The purpose of a connection: by the range request that its receiver sends first, or a Store's by a registration,
 * acknowledgement or keepalive (docs/wire.md). A Store takes the place of the source. */
enum um_stream_purpose {
    UM_STREAM_PURPOSE_UNKNOWN,
    UM_STREAM_LATE_JOIN,
    UM_STREAM_OFF_TRANSPORT,
    UM_STREAM_TO_STORE,
    UM_STREAM_PURPOSES,
};

enum um_stream_direction_name { UM_STREAM_FROM_SOURCE, UM_STREAM_FROM_RECEIVER, UM_STREAM_DIRECTIONS };

typedef struct um_stream_direction {
    bool is_known; /* next_sqn is known */
    bool is_ended; /* its FIN was seen */
    bool is_acknowledged;
    uint32_t next_sqn;
    uint32_t acknowledged_sqn; /* acknowledged by the other end: this end's next segment skips a gap before it */
    um_lbmc_stream messages;
} um_stream_direction;

typedef struct um_stream_connection {
    uint64_t used; /* number of its last segment; 0: free */
    int32_t interface;
    uint8_t ip_version;
    uint8_t purpose;
    bool is_session; /* LBT-TCP: the receiver sends a session id, or the source sends unrequested messages */
    bool is_named;   /* session_id is known */
    uint16_t source_port;
    uint16_t receiver_port;
    uint8_t source[16]; /* IPv4: the first four bytes */
    uint8_t receiver[16];
    uint32_t topic_index; /* topic of the last request */
    uint32_t range_index; /* request index of the last range request */
    uint32_t range_topic; /* and its topic */
    uint32_t session_id;
    uint32_t registered_topic; /* topic of the last registration */
    uint32_t source_reg_id;    /* and the source's registration id: a receiver names its topic by it */
    um_stream_direction directions[UM_STREAM_DIRECTIONS];
} um_stream_connection;

/* A held segment: it is ahead of its stream. */
typedef struct um_stream_held {
    uint16_t connection;
    uint16_t direction;
    uint32_t sqn;
    uint32_t bytes;      /* bytes on the wire */
    uint32_t held_bytes; /* captured bytes of these */
    uint32_t at;         /* offset in the hold */
} um_stream_held;

typedef struct um_stream_findings {
    uint64_t gap_count;
    uint64_t gap_bytes;       /* bytes outside any message found */
    uint64_t displaced_count; /* connections evicted for others */
    uint64_t unlisted_count;  /* messages that did not fit their row */
} um_stream_findings;

typedef struct um_streams {
    uint16_t port_low;  /* TCP ports of sources */
    uint16_t port_high; /* 0: no connections of sources are followed */
    uint16_t store_low; /* TCP ports of Stores */
    uint16_t store_high;
    uint64_t segment_count;
    uint32_t connection_count; /* up to the last used one */
    uint32_t latest;
    uint32_t held_count;
    uint32_t hold_bytes;
    um_stream_findings findings; /* findings since the streams were loaded */
    um_stream_connection connections[UM_STREAMS_CONNECTIONS_MAX];
    um_stream_held held[UM_STREAMS_HELD_MAX];
    uint8_t hold[UM_STREAMS_HOLD_BYTES];
} um_streams;

typedef struct um_stream_taken {
    enum um_dgram_status status; /* fault of its messages */
    enum um_stream_purpose purpose;
    bool is_from_source;
    bool is_session;
    bool is_named;
    uint32_t session_id;
} um_stream_taken;

/* Sets the ranges of the ports of sources and Stores whose connections are followed; 0, the initial value: none. */
void um_streams_set_ports(um_streams *streams, uint16_t port_low, uint16_t port_high, uint16_t store_low,
                          uint16_t store_high);

/* Copies the findings since the streams were initialized or loaded. */
void um_streams_read_findings(const um_streams *streams, um_stream_findings *findings);

/* Returns true for a port of sources or Stores. */
static inline bool um_streams_has_port(const um_streams *streams, uint16_t port)
{
    return port != 0 && ((port >= streams->port_low && port <= streams->port_high) ||
                         (port >= streams->store_low && port <= streams->store_high));
}

/* Returns true if a port of the frame is one of sources or Stores. */
static inline bool um_streams_has_ports(const um_streams *streams, const um_captured_frame *frame)
{
    return um_streams_has_port(streams, frame->source_port) || um_streams_has_port(streams, frame->destination_port);
}

/* Returns true if the frame is a segment of a followed connection, with a complete TCP header. */
bool um_streams_has(const um_streams *streams, const um_captured_frame *frame);

/* Processes such a segment, and held segments that follow it; calls back for each item. */
um_stream_taken um_streams_take(um_streams *streams, int32_t interface, const um_captured_frame *frame,
                                um_lbmc_take_item *take, void *context);

/* Describes the connection of a copy of a segment, which changes nothing. */
um_stream_taken um_streams_connection_of(um_streams *streams, int32_t interface, const um_captured_frame *frame);

/* The same for any frame that does not become a row. */
void um_streams_follow(um_streams *streams, int32_t interface, const um_captured_frame *frame);

/* The state as bytes, for a reader that continues elsewhere: their number, and the bytes themselves, at most
 * `capacity`. Valid for this version and kind of machine only; 0: there is no state. */
uint64_t um_streams_stored_bytes(const um_streams *streams);
void um_streams_store(const um_streams *streams, uint8_t *out, uint64_t capacity);
/* Returns false and loads nothing if um_streams_store did not write the bytes. */
bool um_streams_load(um_streams *streams, const uint8_t *stored, uint64_t bytes);

#endif

/* Rows of decoded packets, as columns in the caller's memory in the layout of Arrow: values, int32 offsets, validity
 * and booleans as bitmaps with the lowest bit first. docs/capture.md explains every column.
 */
#ifndef UM_CAPTURE_READING_ROWS_H
#define UM_CAPTURE_READING_ROWS_H

#include "capture/reading/container.h"
#include "capture/reading/frame.h"

typedef struct um_tally um_tally; /* tally.h */

enum {
    UM_PACKETS_ADDRESS_BYTES_MAX = 48,
    UM_PACKETS_STATUS_BYTES_MAX = 48,
    UM_PACKETS_TYPE_BYTES_MAX = 8,
    UM_PACKETS_REASON_BYTES_MAX = 16,
    UM_PACKETS_RECOVERY_BYTES_MAX = 16,
    UM_PACKETS_TRANSPORT_BYTES_MAX = 8,
    UM_PACKETS_KIND_BYTES_MAX = 16,
    UM_PACKETS_VERDICT_BYTES_MAX = 16,
    UM_PACKETS_TEXT_SLACK_BYTES = 64,    /* extra bytes of text buffers, because copies have a fixed size */
    UM_PACKETS_MULTIPLE = 64,            /* capacities are multiples of this */
    UM_PACKETS_PACKET_ITEMS_MAX = 16384, /* minimum capacity: more messages or sqns than a datagram can hold */
    UM_PACKETS_RESOLUTION_BYTES_MAX = 65536 + sizeof(uint32_t[2]), /* maximum of one datagram of topic resolution */
};

/* The bits of `present`: one per column or group of columns, each with a bitmap of the caller. */
enum um_packet_rows_bit {
    UM_PACKETS_TIME,
    UM_PACKETS_VLAN,
    UM_PACKETS_INNER_VLAN,
    UM_PACKETS_QUEUE,
    UM_PACKETS_DROPPED,
    UM_PACKETS_VERDICT,
    UM_PACKETS_IP,             /* both addresses */
    UM_PACKETS_PORTS,          /* both ports */
    UM_PACKETS_UDP,            /* UDP bytes */
    UM_PACKETS_TCP,            /* TCP bytes, TCP flags */
    UM_PACKETS_TRANSPORT,      /* transport */
    UM_PACKETS_RECOVERY,       /* recovery */
    UM_PACKETS_TYPE,           /* packet type */
    UM_PACKETS_SESSION,        /* session id */
    UM_PACKETS_NAK_PORT,       /* NAK port */
    UM_PACKETS_CLIENT,         /* client id */
    UM_PACKETS_ACK,            /* ACK sqn */
    UM_PACKETS_FLAGS,          /* transport flags */
    UM_PACKETS_DATA,           /* transport sqn, retransmission */
    UM_PACKETS_SM,             /* SM sqn, lead */
    UM_PACKETS_TRAIL,          /* trail sqn */
    UM_PACKETS_LIST,           /* sqns */
    UM_PACKETS_NCF,            /* NCF reason */
    UM_PACKETS_MESSAGES,       /* messages */
    UM_PACKETS_STATUS,         /* next sqn, window, group tag, receiver id */
    UM_PACKETS_IP_FRAGMENT,    /* a boolean's value; IP fragments */
    UM_PACKETS_RETRANSMISSION, /* a boolean's value */
    UM_PACKETS_COPY,           /* a boolean's value */
    UM_PACKETS_TO_SOURCE,      /* a boolean's value; null if the type is null */
    UM_PACKETS_BITS,
};

enum um_packet_rows_message_bit {
    UM_PACKETS_MESSAGE_TOPIC,  /* topic index, topic sqn */
    UM_PACKETS_MESSAGE_LENGTH, /* first sqn, fragment offset, message length */
    UM_PACKETS_MESSAGE_SENT,   /* send time */
    UM_PACKETS_MESSAGE_BITS,
};

typedef struct um_packet_rows_text {
    int32_t *offsets; /* row_capacity + 1 */
    char *data;
} um_packet_rows_text;

typedef struct um_packet_rows {
    /* Set by the caller before the first row. */
    uint32_t row_capacity;
    uint32_t message_capacity;
    uint32_t sqn_capacity;
    int64_t *position;
    int64_t *time_ns;
    int32_t *interface_id;
    int32_t *link_type;
    int32_t *frame_bytes;
    int32_t *captured_bytes;
    int32_t *vlan;
    int32_t *inner_vlan;
    int64_t *queue;
    int64_t *dropped;
    um_packet_rows_text verdict;
    um_packet_rows_text source_address;
    int32_t *source_port;
    um_packet_rows_text destination_address;
    int32_t *destination_port;
    int32_t *ip_fragments;
    int32_t *udp_bytes;
    int32_t *tcp_bytes;
    int32_t *tcp_flags;
    um_packet_rows_text recovery;
    um_packet_rows_text transport;
    um_packet_rows_text status;
    um_packet_rows_text packet_type;
    int64_t *session_id;
    int32_t *nak_port;
    int64_t *client_id;
    int64_t *ack_sqn;
    int32_t *transport_flags;
    int64_t *transport_sqn;
    int64_t *sm_sqn;
    int64_t *lead_sqn;
    int64_t *trail_sqn;
    um_packet_rows_text ncf_reason;
    int32_t *sqn_offsets; /* row_capacity + 1 */
    int64_t *sqns;
    int32_t *message_offsets; /* row_capacity + 1 */
    int64_t *topic_index;
    int64_t *topic_sqn;
    int64_t *first_sqn;
    int64_t *fragment_offset;
    int64_t *message_length;
    int32_t *payload_bytes;
    int64_t *sent_ns;
    um_packet_rows_text kind; /* kinds of messages: message_capacity + 1 offsets */
    int64_t *next_sqn;
    int64_t *window_bytes;
    int64_t *group_tag;
    int64_t *receiver_id;
    uint32_t *present;        /* scratch, a word per row */
    uint8_t *message_present; /* scratch, a byte per message */
    /* Datagrams of topic resolution, unchanged and back to back: row and length, each a uint32_t in host byte order,
     * and the payload. They are rare, and columns cannot hold their content. With a capacity of 0, none is stored. */
    uint8_t *resolution;
    uint32_t resolution_capacity;
    uint8_t *bitmaps[UM_PACKETS_BITS];
    uint8_t *message_bitmaps[UM_PACKETS_MESSAGE_BITS];

    /* Set by these functions. */
    uint32_t row_count;
    uint32_t message_count;
    uint32_t sqn_count;
    uint32_t resolution_bytes;
    uint32_t set_counts[UM_PACKETS_BITS]; /* set bits of each bitmap */
    uint32_t message_set_counts[UM_PACKETS_MESSAGE_BITS];
} um_packet_rows;

/* The ports that identify UDP datagrams by destination. On another port, a datagram is LBT-RM if every length in it
 * agrees, and LBT-RU if also its source port is one of LBT-RU. */
typedef struct um_packet_rows_ports {
    uint16_t lbtrm_low;
    uint16_t lbtrm_high;
    uint16_t lbtru_low; /* ports of sources and receivers */
    uint16_t lbtru_high;
    uint16_t resolution_low;
    uint16_t resolution_high;
} um_packet_rows_ports; /* the TCP ports belong to the streams (streams.h) */

enum { UM_PACKET_SELECTION_VALUES_MAX = 16 };

typedef struct um_packet_destination {
    uint8_t ip_version;
    uint8_t address[16]; /* IPv4: the first four bytes */
} um_packet_destination;

/* Selects the packets that become rows; a packet without a selected field is omitted. All zero: every packet. */
typedef struct um_packet_selection {
    bool by_time;
    int64_t time_low_ns;    /* inclusive */
    int64_t time_high_ns;   /* inclusive */
    uint32_t types;         /* a bit for each um_packet_row_type; 0: any */
    uint32_t session_count; /* 0: any */
    uint32_t sessions[UM_PACKET_SELECTION_VALUES_MAX];
    uint32_t destination_count; /* 0: any */
    um_packet_destination destinations[UM_PACKET_SELECTION_VALUES_MAX];
} um_packet_selection;

typedef struct um_packet_rows_options {
    um_packet_rows_ports ports;
    bool only_ours; /* omit packets of other protocols */
    um_packet_selection selection;
    um_tally *tally; /* counts first transmissions, which then do not become rows; NULL: none */
} um_packet_rows_options;

/* Empties the rows. */
void um_packet_rows_begin(um_packet_rows *rows);

/* Fills the bitmaps, after which the rows can be read. */
void um_packet_rows_finish(um_packet_rows *rows);

/* Decodes packets of [data, data + length) that start before `until`, from *at on, and the datagrams that fragments of
 * earlier ones form, until the rows or the tally are full (UM_CAPTURE_FULL); *at moves behind the decoded packets.
 * `base`: position of the window in the file. Never returns PACKET. */
enum um_capture_step um_packet_rows_decode(um_capture_reader *reader, um_packet_rows *rows,
                                           const um_packet_rows_options *options, const uint8_t *data, uint64_t length,
                                           uint64_t base, uint64_t until, uint64_t *at);

#endif

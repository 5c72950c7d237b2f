/* Captures as columns. Contracts: ffi/capture/container.h, ffi/capture/rows.h. */
#include "capture/rows.h"

enum {
    UM_CAPTURE_NAME_BYTES,
    UM_CAPTURE_RECORD_BYTES_MAX,
    UM_PACKETS_ADDRESS_BYTES_MAX,
    UM_PACKETS_STATUS_BYTES_MAX,
    UM_PACKETS_TYPE_BYTES_MAX,
    UM_PACKETS_REASON_BYTES_MAX,
    UM_PACKETS_KIND_BYTES_MAX,
    UM_PACKETS_VERDICT_BYTES_MAX,
    UM_PACKETS_TEXT_SLACK_BYTES,
    UM_PACKETS_MULTIPLE,
    UM_PACKETS_PACKET_ITEMS_MAX,
    UM_PACKETS_RESOLUTION_BYTES_MAX,
    ...
};

enum um_capture_format { UM_CAPTURE_UNKNOWN, UM_CAPTURE_PCAP, UM_CAPTURE_PCAPNG, ... };

enum um_capture_step {
    UM_CAPTURE_PACKET,
    UM_CAPTURE_INCOMPLETE,
    UM_CAPTURE_FULL,
    UM_CAPTURE_ENDED,
    UM_CAPTURE_FOREIGN,
    UM_CAPTURE_DAMAGED,
    ...
};

enum um_packet_rows_bit {
    UM_PACKETS_TIME,
    UM_PACKETS_VLAN,
    UM_PACKETS_INNER_VLAN,
    UM_PACKETS_QUEUE,
    UM_PACKETS_DROPPED,
    UM_PACKETS_VERDICT,
    UM_PACKETS_IP,
    UM_PACKETS_UDP,
    UM_PACKETS_TYPE,
    UM_PACKETS_SESSION,
    UM_PACKETS_FLAGS,
    UM_PACKETS_DATA,
    UM_PACKETS_SM,
    UM_PACKETS_TRAIL,
    UM_PACKETS_LIST,
    UM_PACKETS_NCF,
    UM_PACKETS_MESSAGES,
    UM_PACKETS_STATUS,
    UM_PACKETS_IP_FRAGMENT,
    UM_PACKETS_RETRANSMISSION,
    UM_PACKETS_BITS,
    ...
};

enum um_packet_rows_message_bit { UM_PACKETS_MESSAGE_TOPIC, UM_PACKETS_MESSAGE_LENGTH, UM_PACKETS_MESSAGE_BITS, ... };

typedef struct um_capture_interface {
    int32_t link_type;
    uint32_t snap_bytes;
    uint8_t resolution;
    int64_t offset_s;
    uint64_t drop_count;
    bool has_statistics;
    uint64_t packet_drop_count;
    char name[...];
    ...;
} um_capture_interface;

typedef struct um_capture_findings {
    uint64_t packet_count;
    uint64_t section_count;
    uint64_t unknown_block_count;
    uint32_t unknown_block_type;
    uint64_t unknown_block_position;
    uint64_t clock_step_count;
    int64_t clock_step_max_ns;
    uint64_t clock_step_position;
    uint64_t timeless_count;
    uint64_t unknown_link_count;
    int32_t unknown_link_type;
    uint64_t cut_count;
    uint64_t left_out_interface_count;
    ...;
} um_capture_findings;

typedef struct um_capture_reader {
    enum um_capture_format format;
    bool swapped;
    uint32_t section_first;
    uint32_t interface_count;
    um_capture_findings findings;
    um_capture_interface interfaces[...];
    ...;
} um_capture_reader;

typedef struct um_packet_rows_text {
    int32_t *offsets;
    char *data;
    ...;
} um_packet_rows_text;

typedef struct um_packet_rows {
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
    int32_t *udp_bytes;
    um_packet_rows_text status;
    um_packet_rows_text packet_type;
    int64_t *session_id;
    int32_t *nak_port;
    int32_t *transport_flags;
    int64_t *transport_sqn;
    int64_t *sm_sqn;
    int64_t *lead_sqn;
    int64_t *trail_sqn;
    um_packet_rows_text ncf_reason;
    int32_t *sqn_offsets;
    int64_t *sqns;
    int32_t *message_offsets;
    int64_t *topic_index;
    int64_t *topic_sqn;
    int64_t *first_sqn;
    int64_t *fragment_offset;
    int64_t *message_length;
    int32_t *payload_bytes;
    um_packet_rows_text kind;
    int64_t *next_sqn;
    int64_t *window_bytes;
    int64_t *group_tag;
    int64_t *receiver_id;
    uint32_t *present;
    uint8_t *message_present;
    uint8_t *resolution;
    uint32_t resolution_capacity;
    uint8_t *bitmaps[...];
    uint8_t *message_bitmaps[...];
    uint32_t row_count;
    uint32_t message_count;
    uint32_t sqn_count;
    uint32_t resolution_bytes;
    uint32_t set_counts[...];
    uint32_t message_set_counts[...];
    ...;
} um_packet_rows;

typedef struct um_packet_rows_ports {
    uint16_t lbtrm_low;
    uint16_t lbtrm_high;
    uint16_t resolution_low;
    uint16_t resolution_high;
    ...;
} um_packet_rows_ports;

enum { UM_PACKET_SELECTION_VALUES_MAX = 16 };

typedef struct um_packet_destination {
    uint8_t ip_version;
    uint8_t address[16];
} um_packet_destination;

typedef struct um_packet_selection {
    bool by_time;
    int64_t time_low_ns;
    int64_t time_high_ns;
    uint32_t types;
    uint32_t session_count;
    uint32_t sessions[UM_PACKET_SELECTION_VALUES_MAX];
    uint32_t destination_count;
    um_packet_destination destinations[UM_PACKET_SELECTION_VALUES_MAX];
} um_packet_selection;

typedef struct um_packet_rows_options {
    um_packet_rows_ports ports;
    bool only_ours;
    um_packet_selection selection;
    ...;
} um_packet_rows_options;

void um_capture_reader_init(um_capture_reader *reader);
int um_capture_add_interface(um_capture_reader *reader, const um_capture_interface *interface);
enum um_capture_step um_capture_skip(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t until,
                                     uint64_t *at);
void um_packet_rows_begin(um_packet_rows *rows);
void um_packet_rows_finish(um_packet_rows *rows);
enum um_capture_step um_packet_rows_decode(um_capture_reader *reader, um_packet_rows *rows,
                                           const um_packet_rows_options *options, const uint8_t *data, uint64_t length,
                                           uint64_t base, uint64_t until, uint64_t *at);

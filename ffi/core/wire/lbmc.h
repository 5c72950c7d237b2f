/* LBMC messages, the topic layer inside a DATA datagram (W1). Big endian, back to back, no padding. A message is a
 * header, a chain of options and a payload; control messages have only options.
 */
#ifndef UM_CORE_LBMC_H
#define UM_CORE_LBMC_H

#include "core/wire/lbtrm.h"

/* UM_LBMC_PROACTIVE occurs only in captures. */
enum um_lbmc_type {
    UM_LBMC_MESSAGE = 0,
    UM_LBMC_END = 1, /* end of the transport */
    UM_LBMC_PROACTIVE = 2,
    UM_LBMC_RECOVERED = 10, /* late join and recovery */
    UM_LBMC_CONTROL = 8,
};

enum um_lbmc_option {
    UM_LBMC_OPTION_DATA = 0, /* end of the chain: payload follows */
    UM_LBMC_OPTION_FRAGMENT = 1,
    UM_LBMC_OPTION_BATCH = 2,
    UM_LBMC_OPTION_CHAIN = 7, /* application headers: hot failover sequence number, message properties */
    UM_LBMC_OPTION_REQUEST = 4,
    UM_LBMC_OPTION_REGISTRATION = 18, /* persistence: these five; umstack/store/wire has them all */
    UM_LBMC_OPTION_REGISTRATION_RESPONSE = 19,
    UM_LBMC_OPTION_ACKNOWLEDGEMENT = 20,
    UM_LBMC_OPTION_KEEPALIVE = 22,
    UM_LBMC_OPTION_RANGED_ACKNOWLEDGEMENT = 24,
    UM_LBMC_OPTION_MESSAGE_REQUEST = 21, /* recovery: requests one message */
    UM_LBMC_OPTION_RANGE = 30,           /* recovery: the range that is retained */
    UM_LBMC_OPTION_TSNI = 32,
    UM_LBMC_OPTION_RANGE_REQUEST = 78,
    UM_LBMC_OPTION_TCP_SESSION = 107, /* core/wire/tcp_control.h */
    UM_LBMC_OPTION_HMAC = 98,         /* the authentication trailer: core/wire/authentication.h */
    UM_LBMC_OPTION_EXTENDED = 254,
    UM_LBMC_OPTION_NONE = 255, /* end of the chain: no payload */
};

enum {
    UM_LBMC_HEADER_BYTES = 12,
    UM_LBMC_CONTROL_BYTES = 4,
    UM_LBMC_FRAGMENT_BYTES = 16,
    UM_LBMC_BATCH_BYTES = 4,
    UM_LBMC_REQUEST_BYTES = 16,
    UM_LBMC_TSNI_BYTES = 4, /* before the records */
    UM_LBMC_TSNI_RECORD_BYTES = 8,
    UM_LBMC_TSNI_RECORDS_MAX = 31, /* the option length is one byte */
    UM_LBMC_EXTENDED_BYTES = 8,    /* before the data */
    UM_LBMC_SEND_TIME_BYTES = 16,  /* an extended option with 8 bytes of data */
    UM_LBMC_MESSAGE_BYTES_MAX = 65535,
    UM_LBMC_PER_DATAGRAM_MAX = 5457, /* messages without payload in the largest datagram */
};

/* The id of umstack's extended options, and a subtype. */
enum {
    UM_LBMC_OWN_ID = 85,
    UM_LBMC_SUBTYPE_SEND_TIME = 4,
};

/* Flags of a message; the batch ones have the values of UM's receive flags (UM-37). */
enum {
    UM_MESSAGE_BATCH_START = 0x1,
    UM_MESSAGE_BATCH_END = 0x2,
    UM_MESSAGE_FRAGMENT = 0x4,
    UM_MESSAGE_RETRANSMIT = 0x8,    /* recovered by late join, from before the receiver joined (UM-140) */
    UM_MESSAGE_OTR = 0x20,          /* recovered off transport (UM-142); UM's value, 0x2000, exceeds the eight bits of a
                                       row */
    UM_MESSAGE_HOT_FAILOVER = 0x10, /* has a hot failover sequence number */
    UM_MESSAGE_HF_DUPLICATE = 0x80, /* another copy of it was delivered */
    UM_MESSAGE_REQUEST = 0x40,      /* its sender waits for responses */
    UM_MESSAGE_PROPERTIES =
        0x1000, /* has message properties (core/wire/message_properties.h); in rows above the kind */
};

/* The address at which the sender of a request waits for responses, and its number for the request. */
typedef struct um_request {
    uint32_t index;
    uint32_t ip;
    uint16_t port;
} um_request;

typedef struct um_lbmc_message {
    uint8_t type;
    uint16_t flags;
    uint32_t topic_index;
    uint32_t sqn;
    uint32_t first_sqn; /* fragment: topic sqn of the message's first fragment */
    uint32_t offset;    /* fragment: payload bytes before it */
    uint32_t total;     /* fragment: payload bytes of the whole message */
    const uint8_t *payload;
    uint32_t payload_length;
    const uint8_t *tsni; /* records, tsni_count of them; NULL without the option */
    uint32_t tsni_count;
    const uint8_t *extended; /* data of an extended option; NULL without it */
    uint32_t extended_length;
    uint8_t extended_id;
    uint16_t extended_subtype;
    const uint8_t *request;      /* UM_MESSAGE_REQUEST: the option, at most UINT8_MAX bytes before the payload */
    const uint8_t *hot_failover; /* UM_MESSAGE_HOT_FAILOVER: the chain option */
    uint32_t properties_bytes; /* UM_MESSAGE_PROPERTIES: length at the end of the whole message's payload, unchecked */
    bool has_tag;              /* um_lbmc_observe: has an HMAC option, like the authentication trailer */
    int64_t sent_ns;           /* the publisher's wall clock at sending; 0: not in the message */
} um_lbmc_message;

/* Decodes the message at the start of [data, data + available) and stores its length, by which the caller advances.
 * After any status but UM_DGRAM_OK the rest of the datagram must be discarded. */
enum um_dgram_status um_lbmc_decode(const uint8_t *data, uint32_t available, um_lbmc_message *message,
                                    uint32_t *length);

/* The same for captures: data holds the first `captured` of `available` bytes, every message type is accepted, unknown
 * options are skipped. payload_length is that of the datagram. UM_DGRAM_CUT: the message's headers are incomplete. */
enum um_dgram_status um_lbmc_observe(const uint8_t *data, uint32_t captured, uint32_t available,
                                     um_lbmc_message *message, uint32_t *length);

/* Returns true if messages of the type have a topic. */
static inline bool um_lbmc_has_topic(uint8_t type)
{
    return type == UM_LBMC_MESSAGE || type == UM_LBMC_PROACTIVE || type == UM_LBMC_RECOVERED;
}

/* The parts of um_lbmc_observe, for incremental readers: decodes one complete option of `length` bytes into the
 * message, or skips it; and checks the message after its last option. */
enum um_dgram_status um_lbmc_observe_option(uint8_t type, const uint8_t *option, uint32_t length,
                                            um_lbmc_message *message);
enum um_dgram_status um_lbmc_observe_end(const um_lbmc_message *message);

/* Header bytes of a message with these options (W4). */
static inline uint32_t um_lbmc_overhead(bool is_fragment, bool is_batch, bool has_send_time)
{
    return UM_LBMC_HEADER_BYTES + (is_fragment ? UM_LBMC_FRAGMENT_BYTES : 0) + (is_batch ? UM_LBMC_BATCH_BYTES : 0) +
           (has_send_time ? UM_LBMC_SEND_TIME_BYTES : 0);
}

/* Header and options of a data message (type 0). */
typedef struct um_lbmc_layout {
    uint32_t topic_index;
    uint32_t sqn;
    uint16_t flags;
    uint32_t first_sqn;
    uint32_t offset;
    uint32_t total;
    uint32_t payload_length;
    int64_t sent_ns; /* 0: without the option */
} um_lbmc_layout;

/* Writes header and options. Returns the place of the payload. */
uint8_t *um_lbmc_write_message(uint8_t *out, const um_lbmc_layout *layout);

/* A hot failover sequence number and its flags. */
typedef struct um_lbmc_hot_failover {
    uint64_t sqn;
    bool is_64_bits;
    bool is_optional;
    bool is_reset; /* the message has no payload; the next number is sqn */
} um_lbmc_hot_failover;

/* Optional parts of a message. */
typedef struct um_lbmc_extras {
    const um_request *request;                /* NULL: no request */
    const um_lbmc_hot_failover *hot_failover; /* NULL: no number */
    uint32_t properties_bytes;                /* length of the properties at the end of its payload; 0: none */
} um_lbmc_extras;

enum { UM_LBMC_FIRST_OPTIONS_BYTES_MAX = 40 };

/* Their encoded options, which come first in a message. um_lbmc_write_with_options sets the first byte of the last. */
typedef struct um_lbmc_first_options {
    uint8_t type;   /* type of the first option */
    uint8_t length; /* bytes of all options; 0: none */
    uint8_t last;   /* offset of the last option */
    uint8_t bytes[UM_LBMC_FIRST_OPTIONS_BYTES_MAX];
} um_lbmc_first_options;

void um_lbmc_make_first_options(um_lbmc_first_options *options, const um_lbmc_extras *extras);

/* Reads the number from options and payload that start with its option. Returns the bytes before the payload, or 0 if
 * they are incomplete. */
uint32_t um_lbmc_read_hot_failover(const uint8_t *data, uint32_t length, um_lbmc_hot_failover *number);

/* Like um_lbmc_write_message, but with these options, which lengthen the message by options->length. */
uint8_t *um_lbmc_write_with_options(uint8_t *out, const um_lbmc_layout *layout, const um_lbmc_first_options *options);

static inline uint8_t *um_lbmc_write_request(uint8_t *out, const um_lbmc_layout *layout, const um_request *request)
{
    um_lbmc_first_options options;
    um_lbmc_make_first_options(&options, &(um_lbmc_extras){.request = request});
    return um_lbmc_write_with_options(out, layout, &options);
}

static inline um_request um_lbmc_read_request(const uint8_t *option)
{
    return (um_request){um_load_be32(option + 4), um_load_be32(option + 12), um_load_be16(option + 8)};
}

/* Writes a control message with one TSNI option of count records; returns its length. */
uint32_t um_lbmc_write_tsni(uint8_t *out, const uint32_t *topic_indices, const uint32_t *sqns, uint32_t count);

/* Writes a control message with one extended option; returns its length. */
uint32_t um_lbmc_write_extended(uint8_t *out, uint8_t id, uint16_t subtype, const uint8_t *data, uint32_t length);

#endif

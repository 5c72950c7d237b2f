/* LBMR, the datagrams of topic resolution (design W1; docs/wire.md): a header with two counts, topic queries (TQR: a
 * name), topic advertisements (TIR: a name and how to join its session), packet options. Big endian. Only what is
 * needed to take records in; wildcard queries and requests are decoded in Python, which encodes everything.
 *
 * A reader walks through the records of one datagram. No state, any thread. Memory: the caller's; names and options
 * point into the datagram. Errors: a datagram with anything malformed is false as a whole.
 */
#ifndef UM_CORE_LBMR_H
#define UM_CORE_LBMR_H

#include "core/wire/session_id.h"

enum {
    UM_LBMR_HEADER_BYTES = 4,
    UM_LBMR_NAME_BYTES_MAX = 246, /* without its NUL */
    UM_LBMR_TIR_FIXED_BYTES = 8,  /* transport, length of its information, TTL, topic index: behind the name */
    UM_LBMR_TIR_BYTES_MIN = 2 + UM_LBMR_TIR_FIXED_BYTES,
    UM_LBMR_QUERIES_MAX = 255,
    UM_LBMR_DATAGRAM_BYTES_MAX = 65507,
    UM_LBMR_RECORDS_MAX = UM_LBMR_QUERIES_MAX + UM_LBMR_DATAGRAM_BYTES_MAX / UM_LBMR_TIR_BYTES_MIN,
};

typedef struct um_lbmr_name {
    const uint8_t *text; /* not ended, not checked to be UTF-8 */
    uint32_t bytes;      /* 1 to UM_LBMR_NAME_BYTES_MAX */
} um_lbmr_name;

/* Where a record lies in a datagram. */
typedef struct um_lbmr_place {
    uint32_t offset;
    uint32_t bytes;
} um_lbmr_place;

typedef struct um_lbmr_advertisement {
    um_lbmr_name topic;
    const uint8_t *options; /* with the one that has their total length */
    uint32_t options_bytes; /* 0: none */
    uint32_t topic_index;
    uint16_t ttl;          /* 0: the source is being closed */
    bool is_joinable;      /* such a session could exist, of a transport that this stack has; else it is not decoded */
    um_session_id session; /* of transports without a session id that is 0, and so is the group of those without one */
} um_lbmr_advertisement;

typedef struct um_lbmr_reader {
    const uint8_t *at;
    const uint8_t *end;
    uint32_t query_count;         /* of the header */
    uint32_t advertisement_count; /* of the header: more than a datagram has space for, perhaps */
    bool has_packet_options;
} um_lbmr_reader;

/* Stands before the first query. False: no header, another version, or another type of datagram. */
bool um_lbmr_begin(um_lbmr_reader *reader, const uint8_t *data, uint32_t bytes);

/* The record at which the reader stands, behind which it stands then. The caller reads so many queries, then so many
 * advertisements as the header says. */
bool um_lbmr_read_query(um_lbmr_reader *reader, um_lbmr_name *topic);
bool um_lbmr_read_advertisement(um_lbmr_reader *reader, um_lbmr_advertisement *advertisement);

/* What follows the last record. */
bool um_lbmr_read_packet_options(um_lbmr_reader *reader);

/* Whether a datagram of queries and advertisements is well-formed, to its end. `reader` stands before the first query
 * then. Linear in the bytes. */
bool um_lbmr_check(um_lbmr_reader *reader, const uint8_t *data, uint32_t bytes);

/* Whether such a session could exist: a host's address and a port; of LBT-RM an id and a group as well. */
bool um_lbmr_is_joinable(const um_session_id *session);

#endif

/* LBMR, the datagrams of topic resolution (W1; docs/wire.md): a header with two counts, topic queries (TQR: a name),
 * topic advertisements (TIR: a name and how to join its session), packet options. Big endian. Decodes only queries and
 * advertisements; Python decodes wildcard queries and requests, and encodes everything.
 *
 * A reader iterates over the records of one datagram. No state, any thread. Memory: the caller's; names and options
 * point into the datagram. Errors: false; a datagram with a malformed record is rejected as a whole.
 */
#ifndef UM_CORE_LBMR_H
#define UM_CORE_LBMR_H

#include "core/wire/session_id.h"

enum {
    UM_LBMR_HEADER_BYTES = 4,
    UM_LBMR_VERSION_MAX = 1,      /* both versions have the same layout; contexts behind a DRO send 1 */
    UM_LBMR_NAME_BYTES_MAX = 246, /* without its NUL */
    UM_LBMR_TIR_FIXED_BYTES = 8,  /* after the name: transport, length of its information, TTL, topic index */
    UM_LBMR_TIR_BYTES_MIN = 2 + UM_LBMR_TIR_FIXED_BYTES,
    UM_LBMR_QUERIES_MAX = 255,
    UM_LBMR_DATAGRAM_BYTES_MAX = 65507,
    UM_LBMR_RECORDS_MAX = UM_LBMR_QUERIES_MAX + UM_LBMR_DATAGRAM_BYTES_MAX / UM_LBMR_TIR_BYTES_MIN,
};

typedef struct um_lbmr_name {
    const uint8_t *text; /* not NUL-terminated, not checked to be UTF-8 */
    uint32_t bytes;      /* 1 to UM_LBMR_NAME_BYTES_MAX */
} um_lbmr_name;

/* The place of a record in a datagram. */
typedef struct um_lbmr_place {
    uint32_t offset;
    uint32_t bytes;
} um_lbmr_place;

typedef struct um_lbmr_advertisement {
    um_lbmr_name topic;
    const uint8_t *options; /* including the one with their total length */
    uint32_t options_bytes; /* 0: none */
    uint32_t topic_index;
    uint16_t ttl;          /* 0: the source is being closed */
    bool is_joinable;      /* `session` is decoded: a possible session of a transport that this stack supports */
    um_session_id session; /* session id and group are 0 for transports without them */
} um_lbmr_advertisement;

typedef struct um_lbmr_reader {
    const uint8_t *at;
    const uint8_t *end;
    uint32_t query_count;         /* count in the header */
    uint32_t advertisement_count; /* count in the header; may be more than a datagram can hold */
    bool has_packet_options;
} um_lbmr_reader;

/* Returns true if the first byte of a datagram has a supported version. */
static inline bool um_lbmr_knows_version(uint8_t first)
{
    return first >> 4 <= UM_LBMR_VERSION_MAX;
}

/* Places the reader before the first query. Returns false for a missing header, another version or type. */
bool um_lbmr_begin(um_lbmr_reader *reader, const uint8_t *data, uint32_t bytes);

/* Reads the next record. The caller reads query_count queries, then advertisement_count advertisements. */
bool um_lbmr_read_query(um_lbmr_reader *reader, um_lbmr_name *topic);
bool um_lbmr_read_advertisement(um_lbmr_reader *reader, um_lbmr_advertisement *advertisement);

/* Reads the options after the last record. */
bool um_lbmr_read_packet_options(um_lbmr_reader *reader);

/* Returns true if a datagram of queries and advertisements is well-formed as a whole, and places `reader` before the
 * first query. Linear in the bytes. */
bool um_lbmr_check(um_lbmr_reader *reader, const uint8_t *data, uint32_t bytes);

/* Returns true if the session is possible: a host's address and a port; for LBT-RM also an id and a group. */
bool um_lbmr_is_joinable(const um_session_id *session);

#endif

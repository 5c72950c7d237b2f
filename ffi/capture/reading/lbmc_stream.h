/* Extracts LBMC messages from a byte stream, one direction of a TCP connection, as its bytes arrive. It works header by
 * header and option by option, so at most one of these is stored between two calls; payloads are counted, never stored.
 * Recovery (late join, off-transport recovery) and LBT-TCP are LBMC back to back, so this reads both.
 *
 * If bytes are missing or malformed, the stream searches for a place where messages start: one followed by two whole
 * messages, or a message with the topic of the last one and a similar sqn.
 *
 * Sans-I/O, no allocation; memory is the caller's and holds no pointer between calls, so it may be copied. One thread
 * at a time. Complexity: linear in the bytes. Format: docs/wire.md.
 */
#ifndef UM_CAPTURE_READING_LBMC_STREAM_H
#define UM_CAPTURE_READING_LBMC_STREAM_H

#include "core/wire/lbmc.h"

enum { UM_LBMC_STREAM_UNIT_BYTES = 256 }; /* longest header or option: an option's length is one byte */

enum um_lbmc_stream_phase { UM_LBMC_STREAM_HEADER, UM_LBMC_STREAM_OPTION, UM_LBMC_STREAM_PAYLOAD };

typedef struct um_lbmc_stream {
    bool is_aligned; /* the next byte belongs to `phase` */
    bool has_last;
    bool has_item;           /* the current control message has had an item */
    uint8_t acknowledgement; /* enum um_lbmc_item_kind of the ranges of the current acknowledgement; 0: none */
    uint8_t phase;
    uint8_t option; /* type of the current option */
    uint16_t unit_bytes;
    uint32_t left; /* bytes of the message behind the consumed units */
    uint32_t last_topic_index;
    uint32_t last_sqn;
    uint32_t acknowledged_topic; /* of the current acknowledgement */
    uint32_t acknowledged_sqn;
    um_lbmc_message message; /* the current one; its pointers are NULL */
    uint8_t unit[UM_LBMC_STREAM_UNIT_BYTES];
} um_lbmc_stream;

enum um_lbmc_item_kind {
    UM_LBMC_ITEM_MESSAGE,       /* of any type: see message.type */
    UM_LBMC_ITEM_TSNI,          /* a record of a TSNI */
    UM_LBMC_ITEM_REQUEST,       /* request of a message (option 21) */
    UM_LBMC_ITEM_RANGE_REQUEST, /* request of the range (option 78); sqn: its lower bound, 0: none */
    UM_LBMC_ITEM_RANGE,         /* the retained range (option 30), which starts at sqn */
    UM_LBMC_ITEM_SESSION,       /* a control message with an LBT-TCP session id (option 107) */
    UM_LBMC_ITEM_REGISTRATION,  /* a client registers with a Store (option 18) */
    UM_LBMC_ITEM_REGISTERED,    /* the Store's answer (option 19); sqn: the highest that it has */
    UM_LBMC_ITEM_REFUSED,       /* the same with an error */
    UM_LBMC_ITEM_STABLE,        /* a range that a Store acknowledges (options 20 and 24) */
    UM_LBMC_ITEM_LOST,          /* a range that a Store has given up */
    UM_LBMC_ITEM_CONSUMED,      /* what a receiver has consumed (option 20) */
    UM_LBMC_ITEM_KEEPALIVE,     /* of a client or Store (option 22) */
};

typedef struct um_lbmc_item {
    enum um_lbmc_item_kind kind;
    const um_lbmc_message *message; /* of UM_LBMC_ITEM_MESSAGE and UM_LBMC_ITEM_SESSION */
    uint32_t topic_index;           /* of the others except UM_LBMC_ITEM_RANGE, which has a request index */
    uint32_t session_id;            /* of UM_LBMC_ITEM_SESSION */
    uint32_t sqn;
    uint32_t first_sqn;     /* of UM_LBMC_ITEM_STABLE and UM_LBMC_ITEM_LOST; sqn is the last */
    uint32_t source_reg_id; /* of UM_LBMC_ITEM_REGISTRATION by a receiver */
    uint32_t request_index; /* of UM_LBMC_ITEM_RANGE_REQUEST and UM_LBMC_ITEM_RANGE */
} um_lbmc_item;

/* Called for each item in the order of the stream; for a message, once its headers are complete. */
typedef void um_lbmc_take_item(void *context, const um_lbmc_item *item);

/* Starts a stream. `aligned`: the first byte is the first of a message. */
void um_lbmc_stream_init(um_lbmc_stream *stream, bool aligned);

/* Consumes the next bytes and adds the number of bytes outside any message to *passed_over. A result other than
 * UM_DGRAM_OK is a fault in the content of the stream, which then searches for the next message. */
enum um_dgram_status um_lbmc_stream_take(um_lbmc_stream *stream, const uint8_t *data, uint32_t bytes,
                                         um_lbmc_take_item *take, void *context, uint64_t *passed_over);

/* Skips missing bytes. Returns false if the stream must search for the next message behind them. */
bool um_lbmc_stream_lose(um_lbmc_stream *stream, uint32_t bytes);

#endif

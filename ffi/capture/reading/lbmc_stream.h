/* Takes LBMC messages out of a byte stream, one direction of a TCP connection, as its bytes come: header by header and
 * option by option, so that what is kept between two calls is one of these at most, and payloads are counted and never
 * kept. Recovery (late join, off-transport recovery) and LBT-TCP are LBMC back to back, so both are read by this.
 *
 * Where bytes are missing, or make no sense, the stream searches for a place where messages begin: one behind which
 * two whole messages follow, or one with the topic and about the number of the last.
 *
 * Sans-I/O, no allocation; memory is the caller's and holds no pointer between calls: it may be copied. One thread at a
 * time. Complexity: linear in the bytes. Source: wire-lbtrm sections 4 and 6, docs/wire.md.
 */
#ifndef UM_CAPTURE_READING_LBMC_STREAM_H
#define UM_CAPTURE_READING_LBMC_STREAM_H

#include "core/wire/lbmc.h"

enum { UM_LBMC_STREAM_UNIT_BYTES = 256 }; /* a header or an option: an option's length is one byte */

enum um_lbmc_stream_phase { UM_LBMC_STREAM_HEADER, UM_LBMC_STREAM_OPTION, UM_LBMC_STREAM_PAYLOAD };

typedef struct um_lbmc_stream {
    bool aligned; /* the next byte is known to be of `phase` */
    bool has_last;
    bool has_told; /* something of the control message under way */
    uint8_t phase;
    uint8_t option; /* the type of the option under way */
    uint16_t unit_bytes;
    uint32_t left; /* bytes of the message behind the units that were taken */
    uint32_t last_topic_index;
    uint32_t last_sqn;
    um_lbmc_message message; /* under way; its pointers are NULL */
    uint8_t unit[UM_LBMC_STREAM_UNIT_BYTES];
} um_lbmc_stream;

enum um_lbmc_item_kind {
    UM_LBMC_ITEM_MESSAGE,       /* of any type: see message.type */
    UM_LBMC_ITEM_TSNI,          /* a record of a TSNI */
    UM_LBMC_ITEM_REQUEST,       /* a message is requested (option 21) */
    UM_LBMC_ITEM_RANGE_REQUEST, /* the range is requested (option 78); sqn: from there on, 0: not bounded */
    UM_LBMC_ITEM_RANGE,         /* the range that is retained (option 30), whose first number is sqn */
    UM_LBMC_ITEM_SESSION,       /* a control message that names a session of LBT-TCP (option 107) */
};

typedef struct um_lbmc_item {
    enum um_lbmc_item_kind kind;
    const um_lbmc_message *message; /* of UM_LBMC_ITEM_MESSAGE and UM_LBMC_ITEM_SESSION */
    uint32_t topic_index;           /* of the others but UM_LBMC_ITEM_RANGE, which names none */
    uint32_t session_id;            /* of UM_LBMC_ITEM_SESSION */
    uint32_t sqn;
    uint32_t request_index; /* of UM_LBMC_ITEM_RANGE_REQUEST */
} um_lbmc_item;

/* Called for each item in the stream's order; a message comes when the last byte of its headers has. */
typedef void um_lbmc_take_item(void *context, const um_lbmc_item *item);

/* Begins a stream. aligned: the first byte is the first of a message. */
void um_lbmc_stream_init(um_lbmc_stream *stream, bool aligned);

/* Takes the next bytes and adds to *passed_over how many belong to no message that was found. Whatever but
 * UM_DGRAM_OK is a fault of the stream's content, behind which it goes on searching. */
enum um_dgram_status um_lbmc_stream_take(um_lbmc_stream *stream, const uint8_t *data, uint32_t bytes,
                                         um_lbmc_take_item *take, void *context, uint64_t *passed_over);

/* So many bytes are not there. False when the stream has to search for the next message behind them. */
bool um_lbmc_stream_lose(um_lbmc_stream *stream, uint32_t bytes);

#endif

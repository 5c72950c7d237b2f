/* Messages of source-side filtering over LBT-RU (UX-27), besides the header field of DATA with the number of datagrams
 * passed over before it. Both are LBMC control messages in DATA datagrams (layout: docs/wire.md):
 *
 *   client                                   source
 *     interest ----------------------------->    the topics that the client needs, as in LBT-TCP (tcp_control.h)
 *             <----------------- filter report   sqns passed over, and the version of the interest in force
 *
 * A filter report is a datagram for one receiver and takes no sqn: it looks like a retransmission from before the
 * transmission window, so receivers that do not know it drop it as a duplicate.
 *
 * Pure. Threads: any. Decoders read only inside the packet. Errors: false if a message is incomplete.
 */
#ifndef UM_CORE_INTEREST_MESSAGE_H
#define UM_CORE_INTEREST_MESSAGE_H

#include "core/wire/lbmc.h"
#include "core/wire/lbtru.h"
#include "core/wire/tcp_control.h"

enum {
    UM_INTEREST_OPTION_SUBTYPE = 5, /* under UM_LBMC_OWN_ID */
    UM_FILTER_REPORT_OPTION_SUBTYPE = 6,
    UM_INTEREST_PARTS_MAX = 64,
    UM_INTEREST_PART_TOPICS_MAX = 64,
    UM_INTEREST_DATA_BYTES = 8,
    UM_FILTER_REPORT_DATA_BYTES = 20,
    UM_INTEREST_HEAD_BYTES = UM_LBTRU_HEADER_BYTES + 8 + UM_LBTRU_OPTIONS_BYTES_MAX + UM_LBMC_CONTROL_BYTES +
                             UM_LBMC_EXTENDED_BYTES + UM_INTEREST_DATA_BYTES,
    UM_INTEREST_BYTES_MAX = UM_INTEREST_HEAD_BYTES + UM_INTEREST_PART_TOPICS_MAX * UM_TCP_SSF_REQUEST_BYTES,
    UM_FILTER_REPORT_BYTES =
        UM_LBTRU_DATA_BYTES + UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_FILTER_REPORT_DATA_BYTES,
};

/* One part of a version. All its parts together are the topics that the client needs. */
typedef struct um_interest_part {
    uint32_t version; /* not 0 */
    uint8_t part;     /* index, less than part_count */
    uint8_t part_count;
    bool needs_all; /* the client needs every topic: no topics follow */
} um_interest_part;

typedef struct um_filter_report {
    uint32_t first_sqn; /* the client does not need `count` datagrams from here on */
    uint32_t count;
    uint32_t version;   /* version of its interest in force; 0: none, so the client is sent everything */
    uint32_t since_sqn; /* first datagram for which that version is in force */
} um_filter_report;

/* Writes a part without topics, and one more topic. Each returns the bytes written. */
uint32_t um_interest_write(uint8_t *out, const um_lbtru_options *options, uint32_t sqn, const um_interest_part *part);
uint32_t um_interest_add_topic(uint8_t *out, const um_lbtru_options *options, uint32_t topic_index);

/* Returns false if the packet is not an interest. *topics is set for um_interest_next_topic. */
bool um_interest_decode(const um_packet *packet, um_interest_part *part, um_packet *topics);
/* Reads the next topic of the part. Returns false if there are no more. */
bool um_interest_next_topic(um_packet *topics, uint32_t *topic_index);

/* trail_sqn: of the session's window. */
uint32_t um_filter_report_write(uint8_t *out, uint32_t session_id, uint32_t trail_sqn, const um_filter_report *report);
bool um_filter_report_decode(const um_packet *packet, um_filter_report *report);

#endif

/* What travels for source-side filtering over LBT-RU (UX-27), beside DATA that says how many datagrams before it were
 * passed over. Both are control messages of LBMC in DATA datagrams (layout: docs/wire.md):
 *
 *   client                                   source
 *                  <---- filter report ----    the numbers that it is to pass over; the version of its interest in
 * force interest --------------------------->    the topics that it wants, as LBT-TCP has them (tcp_control.h)
 *
 * A filter report is a datagram for one receiver that takes no number: it looks like a retransmission from before the
 * transmission window, so that who does not know it drops it as a duplicate.
 *
 * Pure. Threads: any. Decoders read only inside the packet. Errors: false for what is not whole.
 */
#ifndef UM_CORE_INTEREST_MESSAGE_H
#define UM_CORE_INTEREST_MESSAGE_H

#include "core/wire/lbmc.h"
#include "core/wire/lbtru.h"
#include "core/wire/tcp_control.h"

enum {
    UM_INTEREST_OPTION_SUBTYPE = 5, /* of UM_LBMC_OWN_ID */
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

/* One part of a version; all of them together are what the client wants. */
typedef struct um_interest_part {
    uint32_t version; /* not 0 */
    uint8_t part;     /* of part_count */
    uint8_t part_count;
    bool needs_all; /* whatever the topic: no topics follow */
} um_interest_part;

typedef struct um_filter_report {
    uint32_t first_sqn; /* `count` datagrams from here on hold nothing for the client */
    uint32_t count;
    uint32_t version;   /* of its interest that is in force; 0: none, and it is sent everything */
    uint32_t since_sqn; /* since this datagram */
} um_filter_report;

/* Writes a part without topics. Returns its length, behind which um_interest_add_topic goes on. */
uint32_t um_interest_write(uint8_t *out, const um_lbtru_options *options, uint32_t sqn, const um_interest_part *part);
uint32_t um_interest_add_topic(uint8_t *out, const um_lbtru_options *options, uint32_t topic_index);

/* False when the packet is no interest. *topics: what um_interest_next_topic reads on. */
bool um_interest_decode(const um_packet *packet, um_interest_part *part, um_packet *topics);
/* The next topic of the part; false when there are no more. */
bool um_interest_next_topic(um_packet *topics, uint32_t *topic_index);

/* trail_sqn: of the session's window. */
uint32_t um_filter_report_write(uint8_t *out, uint32_t session_id, uint32_t trail_sqn, const um_filter_report *report);
bool um_filter_report_decode(const um_packet *packet, um_filter_report *report);

#endif

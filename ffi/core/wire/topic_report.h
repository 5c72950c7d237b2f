/* A receiver's topics and the length of the messages that it accepts, behind its status message, or
 * its request over TCP: an LBMC control message with an extended option that older sources ignore (layout:
 * docs/wire.md). So a source counts the receivers of
 * each topic, and not only those of its session, and reports messages that a receiver drops because they are too long.
 * A report that is the first one replaces what the receiver has reported; others add to it.
 *
 * Pure. Threads: any. The decoder reads only inside the packet. Errors: false if there is no report.
 */
#ifndef UM_CORE_TOPIC_REPORT_H
#define UM_CORE_TOPIC_REPORT_H

#include "core/wire/framing.h"
#include "core/wire/lbmc.h"

enum {
    UM_TOPIC_REPORT_OPTION_SUBTYPE = 13, /* under UM_LBMC_OWN_ID */
    UM_TOPIC_REPORT_VERSION = 2,
    UM_TOPIC_REPORT_HEAD_BYTES = 4,
    UM_TOPIC_REPORT_TOPIC_BYTES = 8,
    UM_TOPIC_REPORT_TOPICS_MAX = 30,
    UM_TOPIC_REPORT_LBMC_BYTES_MAX = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_TOPIC_REPORT_HEAD_BYTES +
                                     UM_TOPIC_REPORT_TOPIC_BYTES * UM_TOPIC_REPORT_TOPICS_MAX,
};

typedef struct um_reported_topic {
    uint32_t topic_index;
    uint32_t message_max_bytes; /* the receiver drops longer messages of the topic; 0: it drops none */
} um_reported_topic;

typedef struct um_topic_report {
    bool is_first; /* the receiver has no topics but those of this report and of later ones */
    uint32_t count;
    um_reported_topic topics[UM_TOPIC_REPORT_TOPICS_MAX];
} um_topic_report;

/* Returns the bytes written. */
uint32_t um_topic_report_write(uint8_t *out, const um_topic_report *report);
/* Finds the report in a status message. */
bool um_topic_report_decode(const um_packet *packet, um_topic_report *report);

#endif

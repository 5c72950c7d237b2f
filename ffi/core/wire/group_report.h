/* Group reports: a source sends its receivers their number and longest round trip, for the spread of
 * their NAKs. LBT-RM has no such message, so it is an extended option of an LBMC control message in a DATA datagram of
 * the session, like a TSNI (layout: docs/wire.md). Pure. Threads: any.
 */
#ifndef UM_CORE_GROUP_REPORT_H
#define UM_CORE_GROUP_REPORT_H

#include "core/wire/lbmc.h"

enum {
    UM_GROUP_REPORT_OPTION_SUBTYPE = 2, /* under UM_STATUS_OPTION_ID */
    UM_GROUP_REPORT_VERSION = 1,
    UM_GROUP_REPORT_DATA_BYTES = 12,
    UM_GROUP_REPORT_BYTES = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_GROUP_REPORT_DATA_BYTES,
};

typedef struct um_group_report {
    uint32_t receivers;
    int64_t round_trip_ns; /* encoded in microseconds; 0: not measured */
    bool is_unlimited;     /* the source has no flow control, so it needs few status messages */
} um_group_report;

/* A round trip as it is encoded: microseconds, at least 1 if it is measured. */
uint32_t um_round_trip_us(int64_t round_trip_ns);

/* Writes the LBMC message; returns its length. */
uint32_t um_group_report_encode(uint8_t *out, const um_group_report *report);
/* Returns false if the message is not a well-formed group report. */
bool um_group_report_decode(const um_lbmc_message *message, um_group_report *report);

#endif

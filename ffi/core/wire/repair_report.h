/* Repair reports: a source lists the retransmissions that it has sent recently, so that a receiver that misses one
 * knows that it was lost (lost_repairs.h). LBT-RM has no such message, so an extended option of an LBMC control message
 * follows a session message, as a path probe does (layout: docs/wire.md). Pure. Threads: any.
 */
#ifndef UM_CORE_REPAIR_REPORT_H
#define UM_CORE_REPAIR_REPORT_H

#include "core/wire/framing.h"
#include "core/wire/lbmc.h"

enum {
    UM_REPAIR_REPORT_OPTION_SUBTYPE = 12, /* under UM_LBMC_OWN_ID */
    UM_REPAIR_REPORT_ENTRIES_MAX = 24,    /* an option has at most 255 bytes */
    UM_REPAIR_REPORT_HEAD_BYTES = 4,
    UM_REPAIR_REPORT_ENTRY_BYTES = 8,
    UM_REPAIR_REPORT_BYTES_MAX = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_REPAIR_REPORT_HEAD_BYTES +
                                 UM_REPAIR_REPORT_ENTRIES_MAX * UM_REPAIR_REPORT_ENTRY_BYTES,
};

/* A retransmission and how long before the report it was sent, encoded in microseconds, rounded down. */
typedef struct um_repair_report_entry {
    uint32_t sqn;
    int64_t age_ns;
} um_repair_report_entry;

typedef struct um_repair_report {
    uint32_t count;
    um_repair_report_entry entries[UM_REPAIR_REPORT_ENTRIES_MAX];
} um_repair_report;

/* Writes the control message; returns its length. */
uint32_t um_repair_report_encode(uint8_t *out, const um_repair_report *report);
/* Returns false if the message is not a well-formed report. */
bool um_repair_report_decode(const um_lbmc_message *message, um_repair_report *report);

#endif

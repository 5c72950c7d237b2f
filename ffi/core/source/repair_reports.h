/* Sends repair reports: which retransmissions were sent, so that a receiver that lost one NAKs it again at once
 * (wire/repair_report.h, receiver/lost_repairs.h).
 *
 *                    a member's NAK is accepted                   sent a while ago, and new data is sent
 *     +--------+ ---------------------------------> +---------+ ------------------------------------------> reported
 *     | absent |                                    | pending |
 *     +--------+ <--------------------------------- +---------+ --- it waits in the retransmit queue, or was sent just
 *                 left the window, or 24 newer ones      ^     |    now: a later report has it
 *                                                        +-----+
 *
 * A report follows new data by an eighth of the shortest round trip after the retransmission, at least
 * UM_RECOVERY_FLOOR_NS / 4, so that one lost burst does not take both. Reports are at least that far apart, and each
 * has a retransmission that no earlier one had, so they are fewer than retransmissions. NAKs of non-members cause none.
 * Without new data none is sent: the back-off finds the loss of the last retransmission. With a configured ignore
 * interval (recovery_timing fixed) nothing is reported.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: linear in the pending ones, at most
 * UM_REPAIR_REPORT_ENTRIES_MAX. Errors: a report that the link does not accept is not repeated.
 */
#ifndef UM_CORE_REPAIR_REPORTS_H
#define UM_CORE_REPAIR_REPORTS_H

#include "core/source/source_state.h"

/* A NAK of a member for this sqn was accepted: its retransmission will be sent. */
void um_repair_reports_add(um_source_session *session, uint32_t sqn, int64_t now_ns);

/* New data was sent: sends a report if one is due. */
void um_repair_reports_send(um_source_session *session, int64_t now_ns);

#endif

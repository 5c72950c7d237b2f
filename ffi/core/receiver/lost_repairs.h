/* Finds lost retransmissions from what has arrived, without waiting for a timer, as QUIC (RFC 9002) and RACK (RFC 8985)
 * do for data.
 *
 *                                    a retransmission NAKed later arrives,
 *     +-----------+  NAK   +-------+  or the source reports this one        +---------+
 *     | not NAKed | -----> | NAKed | -------------------------------------> | doubted |
 *     +-----------+        +-------+                                        +---------+
 *                            ^  ^                                             |     |
 *                            |  |      NAK: the reordering time has passed    |     | enough have arrived
 *                            |  +---------------------------------------------+     v
 *                            |           NAK, at once                     +-------------+
 *                            +------------------------------------------- | repair lost |
 *                                                                         +-------------+
 *
 * NAKs list their numbers in ascending order, and a source serves NAKs in order, the lowest waiting number first. So if
 * a number is missing and the retransmission of a higher one that was NAKed in the same or a later datagram arrives,
 * the network has lost the lower one's retransmission or reordered it: it is doubted. It is NAKed again once more
 * such retransmissions have arrived than the path has reordered datagrams, at least UM_REORDERED_BY_MIN, or
 * after the time by which the path reorders, at least a quarter of its shortest round trip. UM_RECOVERY_FLOOR_NS must
 * have passed since the last NAK or NCF.
 *
 * After the last retransmission none arrives that could show its loss. With its next new data the source therefore
 * sends a repair report of the retransmissions before it (source/repair_reports.h). If one of them is missing here, and
 * was sent at least a round trip after the last NAK for it, it is doubted, too. The time since it was sent counts as
 * reordering time. Reports may be forged: they bring at most four NAKs of each loss forward, each by less than a
 * back-off.
 *
 * In every state the back-off still applies: it finds what neither shows.
 *
 * An NCF with reason ignored is sent after the retransmission. If it arrives first, the next NAK waits only until the
 * source serves it, at least for the back-off (nak_timers.c): a forged NCF causes no NAK.
 *
 * Only with measured timers. The NAK follows the evidence (repair_evidence.h), without which the source might ignore
 * it.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the losses that are doubted, each of which is
 * doubted a bounded number of times per NAK. Errors: none.
 */
#ifndef UM_CORE_LOST_REPAIRS_H
#define UM_CORE_LOST_REPAIRS_H

#include "core/receiver/receiver_state.h"
#include "core/wire/repair_report.h"

/* True if the session looks for lost retransmissions: its timers are measured. */
bool um_lost_repairs_is_measured(const um_receiver_session *session);

/* A NAK for this loss is being sent. Called in the order of the numbers in the NAK. */
void um_lost_repairs_on_nak(um_receiver_session *session, um_loss *loss);

/* The retransmission of this loss has arrived. */
void um_lost_repairs_on_repaired(um_receiver_session *session, const um_loss *loss, int64_t now_ns);

/* The source reports retransmissions that it has sent. */
void um_lost_repairs_on_report(um_receiver_session *session, const um_repair_report *report, int64_t now_ns);

/* True if the loss is NAKed because of evidence, not because of its timer. */
bool um_lost_repairs_has_evidence(const um_loss *loss);

/* Sends the evidence to the source, before the NAKs that rely on it. */
void um_lost_repairs_send_evidence(um_receiver_session *session);

#endif

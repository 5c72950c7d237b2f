/* Status messages from a receiver session to its source for flow control: its position and the window it offers
 * (AE-15..AE-18). They are sent at an interval, after a quarter of the window, when a gap closes, and when a small
 * window opens again. Without news the interval doubles up to its maximum, as that of session messages; each status
 * message carries it, so that the source does not take a quiet receiver for a dead one. Control messages are no news.
 *
 *     REPORTING (status_quiet_ns is 0)  --sent without news-->  QUIET (doubles)  --news-->  REPORTING
 *
 * A source without flow control (group report) needs no positions: after the first data reported, data is no news.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the session's queues. Errors: none; the next
 * interval makes up for a lost message.
 */

#ifndef UM_CORE_STATUS_REPORTS_H
#define UM_CORE_STATUS_REPORTS_H

#include "core/receiver/receiver_state.h"
#include "core/wire/path_probe.h"

/* Sends a status message if one is due. Returns when the next call is due. */
int64_t um_status_reports_tick(um_receiver_session *session, int64_t now_ns);

/* Sends a status message if one became due by a batch of datagrams. */
void um_status_reports_after_batch(um_receiver_session *session, int64_t now_ns);

/* True if messages since the last status message are worth another one. */
bool um_status_reports_has_news(const um_receiver_session *session);

/* Makes a quiet receiver report soon if the path had been away: the source may have removed it. Takes the cookie, and
 * reports soon if it is new. Called before the session's last activity is updated. */
void um_status_reports_on_session_message(um_receiver_session *session, const um_packet *packet, int64_t now_ns);

/* Datagrams that the session has given up. Those that off-transport recovery delivers later are not lost, so a session
 * whose receivers all use it counts the messages instead that it failed to recover. */
typedef struct um_session_losses {
    uint32_t given_up;    /* known from data to exist; grows during the session */
    uint32_t unconfirmed; /* known from session messages only; data that follows confirms them as lost or sent again */
} um_session_losses;

um_session_losses um_status_reports_losses(const um_receiver_session *session);

/* Notes a path probe (path_probe.h): the status message that reports it is sent soon, at a random time because every
 * receiver answers. */
void um_status_reports_on_probe(um_receiver_session *session, const um_path_probe *probe, int64_t now_ns);

/* Sends the last status message, which also closes a connection of LBT-RU. */
void um_status_reports_leave(um_receiver_session *session);

#endif

/* The topics of a session and the longest messages that their receivers accept, reported to its source behind status
 * messages (core/wire/topic_report.h). Status messages may be lost, so topics are reported again and again, in rounds:
 * up to UM_TOPIC_REPORT_TOPICS_MAX topics with each message, those that were never reported first and without delay. A
 * session with no more topics than that reports all of them each time.
 *
 * Over connections each topic is reported once, behind its request, and again when its longest message changes.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the topics. Errors: none.
 */
#ifndef UM_CORE_TOPIC_REPORTS_H
#define UM_CORE_TOPIC_REPORTS_H

#include "core/receiver/receiver_state.h"

/* Call this after a controller was mapped. */
void um_topic_reports_on_mapped(um_receiver_session *session);
/* Reports all topics again, because one was unmapped, or the source may have ignored the earlier reports. */
void um_topic_reports_restart(um_receiver_session *session);

/* Returns the bytes that every receiver of the topic accepts in a message; 0: any, or there is no receiver. `first`:
 * the topic's first controller, or NULL. */
uint32_t um_topic_reports_message_max(const um_delivery *first);

/* Writes the next report: UM_TOPIC_REPORT_LBMC_BYTES_MAX bytes at most. Returns the bytes written. */
uint32_t um_topic_reports_write(um_receiver_session *session, uint8_t *out);

#endif

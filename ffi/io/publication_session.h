/* A source session as applications open it (um_publication_session_open in context.h): a publication log with its
 * sender, sockets and links. Sources publish into it (publication.h).
 *
 * Threads: any. Memory: see um_publication_session_memory. Errors: negative errno.
 */
#ifndef UM_IO_PUBLICATION_SESSION_H
#define UM_IO_PUBLICATION_SESSION_H

#include <stddef.h>
#include <stdint.h>

#include "core/source/receiver_accounting.h"
#include "core/source/source_events.h"

typedef struct um_publication_session um_publication_session;

/* Limits the datagrams of this session to this UDP payload from now on. */
void um_publication_session_limit_datagram(um_publication_session *session, uint32_t bytes);
/* Adds this number of receivers that get the session's messages another way, or removes them if it is negative. While
 * flow control min or max counts no other receiver, the session continues for them. Any thread. */
void um_publication_session_add_local(um_publication_session *session, int32_t change);
/* Returns the address that receives control messages or connections; um_context_follow_interface changes it. */
um_address um_publication_session_local(const um_publication_session *session);
/* Returns the memory of the session's log. It stays mapped after um_publication_session_shut, because an application
 * may still be writing into a claim. The caller passes it to um_unmap when that cannot happen any more. */
void *um_publication_session_memory(const um_publication_session *session, size_t *bytes);
/* Copies the events after the first `read_count` to `out`, oldest first, at most UM_SOURCE_EVENTS_MAX. Returns how many
 * were copied; *count is the number of events so far, the next read_count. */
uint32_t um_publication_session_events(um_publication_session *session, uint64_t read_count, um_source_event *out,
                                       uint64_t *count);
/* Copies the accounts of receivers that sent NAKs or status messages to `out`, which has space for UM_ACCOUNTS_MAX.
 * Returns how many; none over a stream. */
uint32_t um_publication_session_accounts(um_publication_session *session, um_receiver_account *out);
/* Stops or resumes serving NAKs of this address (UX-21). Returns false if there is no space for another account. */
bool um_publication_session_cut_off(um_publication_session *session, um_address receiver, bool is_cut_off);
/* With keys, if the wall clock was set back so far that receivers would refuse the session's tags for a while: gives
 * the session this new identifier, under which it continues, adds UM_SOURCE_CLOCK_SET_BACK and returns 1; otherwise 0.
 */
int um_publication_session_follow_clock(um_publication_session *session, uint32_t session_id);
/* Adds UM_SOURCE_INTERFACE_CHANGED with this number. A longer name of the interface is cut. */
void um_publication_session_note_interface(um_publication_session *session, const char *interface, uint64_t change);
/* Closes a session without publications: its retransmissions end with it (UM-90). */
void um_publication_session_shut(um_publication_session *session);

#endif

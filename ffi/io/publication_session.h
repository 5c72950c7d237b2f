/* A source session as applications open it (um_publication_session_open in context.h): a publication log and its
 * sender, with sockets and links of its own. Sources publish into it (publication.h).
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

/* Datagrams of this session carry at most so many bytes of UDP payload from now on. */
void um_publication_session_limit_datagram(um_publication_session *session, uint32_t bytes);
/* The session's log and what belongs to it: stays mapped after um_publication_session_shut, since an application may
 * still be writing into a claim. The caller gives it to um_unmap when that cannot be. */
void *um_publication_session_memory(const um_publication_session *session, size_t *bytes);
/* The events after the first `read_count`, at most UM_SOURCE_EVENTS_MAX, the oldest first. Returns how many there are
 * in `out`; *count: how many there were ever, which is the next read_count. */
uint32_t um_publication_session_events(um_publication_session *session, uint64_t read_count, um_source_event *out,
                                       uint64_t *count);
/* The accounts of those that sent NAKs or status messages into `out`, which has space for UM_ACCOUNTS_MAX. Returns how
 * many. */
uint32_t um_publication_session_accounts(um_publication_session *session, um_receiver_account *out);
/* NAKs of this address are served no longer, or again (UX-21). False when there is no space for one more account. */
bool um_publication_session_cut_off(um_publication_session *session, um_address receiver, bool is_cut_off);
/* Closes a session without publications: its retransmissions end with it (UM-90). */
void um_publication_session_shut(um_publication_session *session);

#endif

/* A source session as applications open it (um_session_open in context.h): a publication log and its sender, with
 * sockets and links of its own. Sources publish into it (publication.h).
 *
 * Threads: any. Memory: see um_session_memory. Errors: negative errno.
 */
#ifndef UM_IO_PUBLICATION_SESSION_H
#define UM_IO_PUBLICATION_SESSION_H

#include <stddef.h>
#include <stdint.h>

typedef struct um_publication_session um_publication_session;

/* Datagrams of this session carry at most so many bytes of UDP payload from now on. */
void um_session_limit_datagram(um_publication_session *session, uint32_t bytes);
/* The session's log and what belongs to it: stays mapped after um_session_shut, since an application may still be
 * writing into a claim. The caller gives it to um_unmap when that cannot be. */
void *um_session_memory(const um_publication_session *session, size_t *bytes);
/* Closes a session without publications: its retransmissions end with it (UM-90). */
void um_session_shut(um_publication_session *session);

#endif

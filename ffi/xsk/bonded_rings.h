/* The ring sets on the members of a bond, combined into one: it receives from all members and sends by one at a time.
 *
 * A fail-over only selects another member to send by. Datagrams that arrive meanwhile are received, because every
 * member has rings. If no member can send (the bond has none that is up, or the active one was added later), the socket
 * link sends instead, over the path that the kernel chooses. Datagrams in the send ring of a member that fails are lost
 * and recovered like all others. Frames are not lent to publishers: a frame borrowed from one member could not leave by
 * another.
 *
 * Ownership: the members belong to their opener, which closes them after this. Threads: um_bonded_rings_send_by any,
 * creation and freeing the opener's; for the rest see io/rings.h. Memory: one allocation. Errors: negative errno.
 */
#ifndef UM_XSK_BONDED_RINGS_H
#define UM_XSK_BONDED_RINGS_H

#include "io/rings.h"

enum {
    UM_BONDED_MEMBERS_MAX = 8,
    UM_BONDED_BY_SOCKET = -1, /* no member sends */
};

typedef struct um_bonded_rings um_bonded_rings;

/* -EINVAL if there is no member, too many members, or more queues than a context watches (UM_RINGS_DESCRIPTORS_MAX).
 * The socket link sends until um_bonded_rings_send_by is called. */
int um_bonded_rings_create(um_rings *const *members, uint32_t count, um_bonded_rings **created);
void um_bonded_rings_free(um_bonded_rings *bonded);
um_rings *um_bonded_rings_base(um_bonded_rings *bonded);

/* Selects the member that sends from now on, counted from 0, or UM_BONDED_BY_SOCKET. */
void um_bonded_rings_send_by(um_bonded_rings *bonded, int32_t member);
int32_t um_bonded_rings_sends_by(const um_bonded_rings *bonded);

#endif

/* The ring sets on the members of a bond as one: receives from all members, sends by one at a time.
 *
 * A fail-over only changes the member used for sending, so no datagram that arrives meanwhile is missed. If no member
 * with a ring set may send (the bond has no member that is up, or uses one added later), the socket link sends, and the
 * kernel chooses the path. Datagrams in the send ring of a failed member are lost with it and retransmitted as usual.
 * Frames are not lent to publishers: a frame borrowed from one member could not be sent by another.
 *
 * Ownership: the members are the opener's, who closes them after this. Threads: um_bonded_rings_send_by any, creation
 * and freeing the opener's; the rest is io/rings.h's. Memory: one allocation. Errors: negative errno.
 */
#ifndef UM_XSK_BONDED_RINGS_H
#define UM_XSK_BONDED_RINGS_H

#include "io/rings.h"

enum {
    UM_BONDED_MEMBERS_MAX = 8,
    UM_BONDED_BY_SOCKET = -1, /* no member sends */
};

typedef struct um_bonded_rings um_bonded_rings;

/* -EINVAL without a member, with too many, or with more queues than a context watches (UM_RINGS_DESCRIPTORS_MAX). The
 * socket link sends until um_bonded_rings_send_by. */
int um_bonded_rings_create(um_rings *const *members, uint32_t count, um_bonded_rings **created);
void um_bonded_rings_free(um_bonded_rings *bonded);
um_rings *um_bonded_rings_base(um_bonded_rings *bonded);

/* Sets the member, counted from 0, that sends from now on; UM_BONDED_BY_SOCKET: none. */
void um_bonded_rings_send_by(um_bonded_rings *bonded, int32_t member);
int32_t um_bonded_rings_sends_by(const um_bonded_rings *bonded);

#endif

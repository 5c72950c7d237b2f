/* The ring sets on the members of a bond as one: received from all of them, sent by one at a time.
 *
 * A fail-over is nothing but another member to send by, and none of what arrives meanwhile is missed for want of rings.
 * Where no member of ours may send (the bond has none that is up, or one that came later), the socket link does, whose
 * way the kernel chooses. What was put into the send ring of a member that fails is lost with it, and repaired as
 * everything that is lost. Frames are not lent to publishers: one that was borrowed from a member could not leave by
 * another.
 *
 * Ownership: the members are their opener's, who closes them after this. Threads: um_bonded_rings_send_by any, creation
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

/* The member, counted from 0, that what is sent from now on leaves by; UM_BONDED_BY_SOCKET: none. */
void um_bonded_rings_send_by(um_bonded_rings *bonded, int32_t member);
int32_t um_bonded_rings_sends_by(const um_bonded_rings *bonded);

#endif

/* What identifies a transport session on the wire (reference 1; wire page 3). */
#ifndef UM_CORE_SESSION_ID_H
#define UM_CORE_SESSION_ID_H

#include "core/base.h"

typedef struct um_session_id {
    um_address source; /* address, and the port NAKs go to */
    um_address group;  /* multicast group and destination port */
    uint32_t session_id;
} um_session_id;

static inline bool um_session_id_equal(const um_session_id *a, const um_session_id *b)
{
    return a->session_id == b->session_id && um_address_equal(a->source, b->source) &&
           um_address_equal(a->group, b->group);
}

#endif

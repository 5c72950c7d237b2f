/* The identity of a transport session on the wire (docs/wire.md). */
#ifndef UM_CORE_SESSION_ID_H
#define UM_CORE_SESSION_ID_H

#include "core/foundation/address.h"

enum um_transport { UM_TRANSPORT_LBTRM = 0, UM_TRANSPORT_LBTRU = 1, UM_TRANSPORT_TCP = 2 };

typedef struct um_session_id {
    um_address source; /* the port receives NAKs; LBT-RU: it also sends the data; TCP: it accepts connections */
    um_address group;  /* LBT-RM: multicast group and destination port; else zero */
    uint32_t session_id;
    enum um_transport transport;
} um_session_id;

static inline bool um_session_id_equal(const um_session_id *a, const um_session_id *b)
{
    return a->session_id == b->session_id && a->transport == b->transport && um_address_equal(a->source, b->source) &&
           um_address_equal(a->group, b->group);
}

#endif

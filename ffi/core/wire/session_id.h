/* The identity of a transport session on the wire (docs/wire.md). */
#ifndef UM_CORE_SESSION_ID_H
#define UM_CORE_SESSION_ID_H

#include "core/foundation/address.h"

enum um_transport {
    UM_TRANSPORT_LBTRM = 0,
    UM_TRANSPORT_LBTRU = 1,
    UM_TRANSPORT_TCP = 2,
    UM_TRANSPORT_LBTIPC = 3,
};

/* Returns true for transports that deliver messages whole and in order, so that a gap means they were not sent. */
static inline bool um_transport_is_stream(enum um_transport transport)
{
    return transport == UM_TRANSPORT_TCP || transport == UM_TRANSPORT_LBTIPC;
}

typedef struct um_session_id {
    um_address source; /* the port receives NAKs; LBT-RU: it also sends the data; TCP: it accepts connections; LBT-IPC:
                          the host id and the transport id */
    um_address group;  /* LBT-RM: multicast group and destination port; else zero */
    uint32_t session_id;
    enum um_transport transport;
    uint64_t log_key; /* LBT-IPC: what the source's log admits receivers by; 0: none. Part of the identity, so that a
                         receiver with a wrong key does not take the place of one with the right key. */
} um_session_id;

static inline bool um_session_id_equal(const um_session_id *a, const um_session_id *b)
{
    return a->session_id == b->session_id && a->transport == b->transport && a->log_key == b->log_key &&
           um_address_equal(a->source, b->source) && um_address_equal(a->group, b->group);
}

#endif

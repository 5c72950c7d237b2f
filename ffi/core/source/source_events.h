/* What a source session has to tell its application about receivers: a ring of the newest events. A reader keeps the
 * number of the last event it has read; what the ring no longer holds it has missed.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_SOURCE_EVENTS_H
#define UM_CORE_SOURCE_EVENTS_H

#include "core/foundation/base.h"

enum { UM_SOURCE_EVENTS_MAX = 64 };

enum um_source_event_kind {
    UM_SOURCE_RECEIVER_STALLED = 1,  /* count: ns for which it held the sender; it no longer counts */
    UM_SOURCE_RECEIVER_RETURNED = 2, /* it advances again and counts */
    UM_SOURCE_RECEIVER_NOISY = 3,    /* it NAKs more than its share; count: NAKs refused so far */
    UM_SOURCE_RECEIVER_CUT_OFF = 4,  /* its NAKs are no longer served; count: NAKs refused so far */
    UM_SOURCE_RECEIVER_LOSES = 5, /* it NAKs what has left the window; count: such NAKs so far. Over TCP, source-paced:
                                     it is too slow; count: messages it has lost so far */
    UM_SOURCE_RECEIVER_KNOWN = 6, /* flow control knows it, or without one: it reports progress */
    UM_SOURCE_RECEIVER_GONE = 7,  /* it has left; count: ns it was idle when it timed out, else 0 */
    UM_SOURCE_CLIENT_CONNECTED = 8, /* LBT-RU, TCP; count: clients there are then */
    UM_SOURCE_CLIENT_DISCONNECTED =
        9, /* it left, acknowledged nothing for the timeout, or its connection failed; count: clients left */
    UM_SOURCE_CLIENT_REFUSED = 10, /* TCP, with keys on one side or different ones: count: its um_tag_status */
};

typedef struct um_source_event {
    uint32_t kind;
    um_address receiver;
    uint64_t count;
} um_source_event;

typedef struct um_source_events {
    uint64_t count; /* ever */
    um_source_event ring[UM_SOURCE_EVENTS_MAX];
} um_source_events;

static inline void um_source_events_add(um_source_events *events, enum um_source_event_kind kind, um_address receiver,
                                        uint64_t count)
{
    events->ring[events->count++ % UM_SOURCE_EVENTS_MAX] = (um_source_event){(uint32_t)kind, receiver, count};
}

#endif

/* Events of a source session about its receivers, for the application: a ring of the newest. A reader keeps the number
 * of the last event it has read; events that the ring no longer holds are missed.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_SOURCE_EVENTS_H
#define UM_CORE_SOURCE_EVENTS_H

#include "core/foundation/address.h"

enum {
    UM_SOURCE_EVENTS_MAX = 64,
    UM_SOURCE_INTERFACE_BYTES = 16, /* the kernel's limit of an interface's name, with its NUL */
};

enum um_source_event_kind {
    UM_SOURCE_RECEIVER_STALLED = 1,    /* no longer counts for flow control; count: ns for which it held the sender */
    UM_SOURCE_RECEIVER_RETURNED = 2,   /* advances again and counts */
    UM_SOURCE_RECEIVER_NOISY = 3,      /* NAKs more than its share; count: NAKs refused so far */
    UM_SOURCE_RECEIVER_CUT_OFF = 4,    /* its NAKs are no longer served; count: NAKs refused so far */
    UM_SOURCE_RECEIVER_LOSES = 5,      /* NAKs datagrams that have left the window; count: such NAKs so far. TCP,
                                          source-paced: too slow; count: messages it has lost so far */
    UM_SOURCE_RECEIVER_KNOWN = 6,      /* known to flow control, or without flow control: reports progress */
    UM_SOURCE_RECEIVER_GONE = 7,       /* has left; count: ns it was idle if it timed out, else 0 */
    UM_SOURCE_CLIENT_CONNECTED = 8,    /* LBT-RU, TCP; count: clients then */
    UM_SOURCE_CLIENT_DISCONNECTED = 9, /* left, did not acknowledge for the timeout, or its connection failed; count:
                                          clients left */
    UM_SOURCE_CLIENT_REFUSED = 10,     /* TCP: keys differ, or only one side has keys; count: um_tag_status */
    UM_SOURCE_RECEIVER_SLOW = 11,      /* its queue is full and holds the source back */
    UM_SOURCE_RECEIVER_CUT_LOOSE = 12, /* its queue was full for too long: it drops messages and holds nothing back */
    UM_SOURCE_RECEIVER_GAVE_UP = 13,   /* lost datagrams for good; count: such datagrams so far */
    UM_SOURCE_PATH_CHANGED = 14,       /* the datagram size that reaches every receiver; count: bytes; the receiver with
                                          the smallest path, or none if it is the interface's */
    UM_SOURCE_CLOCK_SET_BACK = 15,     /* the clock was set back, so the session began again; count: ns; no receiver */
    UM_SOURCE_INTERFACE_CHANGED = 16,  /* the interface of this name; count: the owner's number of the change */
    UM_SOURCE_MESSAGE_TOO_LONG = 17,   /* a sent message is longer than the receiver accepts; count: its limit, bytes */
};

/* Minimum interval between events of one kind about one receiver. */
static const int64_t UM_SOURCE_EVENT_GAP_NS = 10000000000;

typedef struct um_source_event {
    uint32_t kind;
    um_address receiver;
    uint64_t count;
    char interface[UM_SOURCE_INTERFACE_BYTES]; /* UM_SOURCE_INTERFACE_CHANGED only; ends with NUL */
} um_source_event;

typedef struct um_source_events {
    uint64_t count; /* events ever added */
    um_source_event ring[UM_SOURCE_EVENTS_MAX];
} um_source_events;

/* Returns true unless the last event of this kind, at *last_ns (INT64_MIN: none), is too recent; then notes this one.
 */
static inline bool um_source_event_is_due(int64_t *last_ns, int64_t now_ns)
{
    if (*last_ns != INT64_MIN && now_ns - *last_ns < UM_SOURCE_EVENT_GAP_NS)
        return false;
    *last_ns = now_ns;
    return true;
}

static inline void um_source_events_add(um_source_events *events, enum um_source_event_kind kind, um_address receiver,
                                        uint64_t count)
{
    events->ring[events->count++ % UM_SOURCE_EVENTS_MAX] = (um_source_event){(uint32_t)kind, receiver, count, ""};
}

#endif

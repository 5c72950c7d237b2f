/* Moves the messages of an event queue to publications: the data path of the driver (docs/driver.md). Each source whose
 * rows are in the queue has a publication, which the owner sets when the first row of the source comes.
 *
 *   queue of a receiver ---> relay ---> one publication per source
 *
 * A relay that keeps numbers publishes each message under its topic sequence numbers: numbers lost on the way into the
 * queue are a gap for the readers of the publication, which report exactly these lost. A gap at the end, which no
 * message shows, is announced at once. Otherwise the publication numbers the messages. Requests, properties, hot
 * failover numbers and, with kept numbers, send times pass. The receivers of the queue are configured with
 * is_hot_failover, so that the option of a hot failover number precedes its payload.
 *
 * A publication that is held back holds the relay, and with it the queue.
 *
 * Threads: one at a time; the relayed count from any. Either each relay has a thread, which waits in um_relay_run, or
 * one thread runs all relays and the loop of their context, which is in sequential mode, by um_relays_run. Memory:
 * um_relay_open maps it; the queue and the publications outlive it. Errors: negative errno.
 */
#ifndef UM_IO_RELAY_H
#define UM_IO_RELAY_H

#include "io/context.h"
#include "io/event_queue.h"
#include "io/publication.h"

enum { UM_RELAY_SOURCES_MAX = 4096 }; /* the numbers of a queue's sources that a relay serves: 0 .. this - 1 */

typedef struct um_relay um_relay;

enum um_relay_result {
    UM_RELAY_IDLE = 0, /* every row that came was moved */
    UM_RELAY_HELD,     /* a publication still refuses the next message; call again */
    UM_RELAY_UNKNOWN,  /* the next row is of a source without publication: set one, or ignore it, and call again */
    UM_RELAY_ENDED,    /* the source has ended, and is without publication again */
    /* The next rows follow with the next call. */
    UM_RELAY_NAK_CUTOFF, /* the source's session has stopped its NAKs */
    UM_RELAY_STALE_TAGS, /* datagrams of the source with stale tags were dropped */
};

typedef struct um_relay_counters {
    uint64_t messages;
    uint64_t bytes;
    uint64_t lost;    /* messages that the queue reported lost */
    uint64_t refused; /* messages that no publication took: too long, or of a source beyond UM_RELAY_SOURCES_MAX */
} um_relay_counters;

/* 0 or -ENOMEM. message_max_bytes: the longest message of the queue, with its properties. */
int um_relay_open(um_event_queue *queue, bool keeps_numbers, uint32_t message_max_bytes, um_relay **relay);
void um_relay_close(um_relay *relay);

/* Sets where the messages of a source go; NULL: nowhere, they are ignored. -EINVAL for a number out of range. */
int um_relay_set(um_relay *relay, uint32_t source, um_publication *publication);
/* Forgets where they go, as if none of its rows had come. For a number that is used for another source. */
void um_relay_forget(um_relay *relay, uint32_t source);
/* Moves rows until the queue is empty, waiting up to timeout_ns for the first row, and up to that or 100 ms for a
 * publication. A closed queue ends the wait. Returns a um_relay_result; *source is the source that it is about. */
int um_relay_run(um_relay *relay, int64_t timeout_ns, uint32_t *source);
/* Runs the relays of a context in sequential mode, and its loop between them, for timeout_ns. Ends earlier for a relay
 * that needs its owner, and when a descriptor of um_relays_watch is readable. *relay: the index of the relay that was
 * run last, from which the next call continues; 0 first. Returns UM_RELAY_UNKNOWN or a later um_relay_result for that
 * relay and *source, else UM_RELAY_IDLE. */
int um_relays_run(um_context *context, um_relay *const *relays, uint32_t count, int64_t timeout_ns, uint32_t *relay,
                  uint32_t *source);
/* Makes um_relays_run end when the descriptor is readable. It is watched until it is closed. */
int um_relays_watch(um_context *context, int fd);
/* Returns the topic sequence number after the last message of the source that was moved or reported lost; -1: none. */
int64_t um_relay_reached(const um_relay *relay, uint32_t source);
/* Returns true while messages wait for a publication. Any thread. */
bool um_relay_is_held(const um_relay *relay);
/* Copies the counters. Any thread. */
void um_relay_read_counters(const um_relay *relay, um_relay_counters *out);

#endif

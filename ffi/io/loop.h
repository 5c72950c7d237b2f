/* The loop of a context: passes that sleep until an event, receive, run the timers that are due, and wake the readers.
 * Internal to ffi/io; above everything that it drives.
 *
 * Threads: any number at once; the state below is guarded by the context lock, which a pass takes itself and releases
 * while it waits. In embedded mode the context's thread runs it, in sequential mode the threads that process events,
 * read or wait to send.
 */
#ifndef UM_IO_LOOP_H
#define UM_IO_LOOP_H

#include "core/foundation/adaptive_spin.h"
#include "core/foundation/receive_coalescing.h"
#include "io/event_queue_private.h"
#include "io/loop_leader.h"
#include "io/publication_session_private.h"
#include "io/receiving.h"

typedef struct um_loop_config {
    bool busy_wait;
    bool ipc_busy_wait; /* the same while sessions over LBT-IPC are received */
    int64_t spin_ns;    /* how long to poll after the last event before sleeping */
} um_loop_config;

typedef struct um_loop {
    um_loop_config config;
    um_reactor *reactor;
    um_links *links;
    um_receiving *receiving;
    um_publication_sessions *sessions;
    um_event_queues *queues;
    um_loop_leader *leader;
    um_receive_coalescing coalescing;
    um_adaptive_spin spin; /* of threads that donate themselves */
    int64_t spin_until_ns;
    int64_t last_poll_ns;
    int64_t next_due_ns;
    uint32_t last_batch; /* datagrams of the last pass: the next does not sleep unless 0 */
} um_loop;

/* Runs one pass: receives, timers, wake-ups. wait_until_ns 0: do not sleep. Returns datagrams handled. */
int64_t um_loop_pass(um_loop *loop, int64_t wait_until_ns);

#endif

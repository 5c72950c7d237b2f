/* The parts of a context. */
#ifndef UM_IO_CONTEXT_PRIVATE_H
#define UM_IO_CONTEXT_PRIVATE_H

#include "io/context.h"
#include "io/loop.h"
#include "io/subscription_private.h"

struct um_context {
    um_reactor reactor; /* first, so that a reactor's pass finds its context */
    um_links links;
    um_receiving receiving;
    um_event_queues queues;
    um_publication_sessions sessions;
    um_loop_leader leader;
    um_loop loop;
    um_gate gate;
    pthread_t thread;
    atomic_bool is_stopping;
};

#endif

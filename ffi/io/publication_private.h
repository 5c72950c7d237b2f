/* The fields of a source, for the files of ffi/io. */
#ifndef UM_IO_PUBLICATION_PRIVATE_H
#define UM_IO_PUBLICATION_PRIVATE_H

#include "core/source/retention.h"
#include "io/gate.h"
#include "io/publication.h"
#include "io/publication_session_private.h"

struct um_publication {
    um_source core;
    um_publication_session *session;
    size_t memory_bytes; /* of this object and its explicit batch */
    um_gate gate;
    atomic_bool is_held;     /* refuses new messages for now */
    um_retention *retention; /* NULL: no late join is offered */
    size_t retention_bytes;
};

/* Returns true for the result of a send that may succeed later. */
static inline bool um_is_held_back(int64_t result)
{
    return result == UM_BACK_PRESSURED || result == UM_NOT_CONNECTED || result == UM_RATE_LIMITED;
}

#endif

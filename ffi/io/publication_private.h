/* What the files of ffi/io know of a source. */
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
    um_retention *retention; /* NULL: it does not offer late join */
    size_t retention_bytes;
};

#endif

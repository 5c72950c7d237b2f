/* The keys of a context: the key sets of its topic patterns, and the authentication options. Internal to ffi/io.
 *
 * Threads: the context lock. Memory: in the context; secrets are wiped when it is closed.
 */
#ifndef UM_IO_AUTHENTICATION_H
#define UM_IO_AUTHENTICATION_H

#include "authentication/mac.h"

enum { UM_KEY_SETS_MAX = 64 };

typedef struct um_authentication {
    enum um_authentication_scope scope;
    int64_t tolerance_ns;
    um_key_set sets[UM_KEY_SETS_MAX]; /* key set n of a session is sets[n - 1] */
} um_authentication;

/* Returns the keys of a session; NULL: its datagrams carry no tags. */
static inline const um_key_set *um_authentication_keys(const um_authentication *authentication, uint32_t key_set)
{
    if (key_set == 0 || authentication->scope == UM_AUTHENTICATE_NONE)
        return NULL;
    return &authentication->sets[key_set - 1];
}

#endif

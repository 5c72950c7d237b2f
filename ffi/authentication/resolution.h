/* Authenticated topic resolution: appends the trailer to sent datagrams and checks received ones. The sockets are
 * Python's.
 *
 * Threads: one at a time. Memory: opened and closed by the caller. Errors: NULL, or a negative errno.
 */
#ifndef UM_AUTHENTICATION_RESOLUTION_H
#define UM_AUTHENTICATION_RESOLUTION_H

#include "authentication/mac.h"

typedef struct um_resolution_tags um_resolution_tags;

/* `local` is the address that datagrams are sent from. NULL: out of memory. */
um_resolution_tags *um_resolution_tags_open(const um_key_set *keys, int64_t tolerance_ns, um_address local,
                                            uint64_t random);
void um_resolution_tags_close(um_resolution_tags *tags);
int um_resolution_tags_set_keys(um_resolution_tags *tags, const um_key_set *keys);
/* Writes the trailer, UM_TRAILER_BYTES, behind the `length` bytes of a datagram. */
int um_resolution_tags_append(um_resolution_tags *tags, char *data, uint32_t length);
/* Returns the um_tag_status of a datagram of `length` bytes, of which the last UM_TRAILER_BYTES are the trailer. */
int um_resolution_tags_verify(um_resolution_tags *tags, um_address from, const char *data, uint32_t length);

#endif

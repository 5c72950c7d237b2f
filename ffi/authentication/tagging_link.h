/* A link that appends the authentication trailer to what it sends, and is otherwise the link behind it (W6). It
 * copies the datagrams of a batch one behind the other, each with its trailer: a tag over one piece is made sooner, and
 * the link behind sends one piece sooner, than what the copy takes.
 *
 * Every datagram offered gets a stamp of its own, also one that is offered again because the link behind was full, and
 * one that is sent again: no stamp is used twice.
 *
 * Threads: those of the session that sends through it, one at a time. Memory: a buffer of a batch and contexts of
 * libcrypto, between _open and _close. Errors: 0 or a negative errno.
 */
#ifndef UM_AUTHENTICATION_TAGGING_LINK_H
#define UM_AUTHENTICATION_TAGGING_LINK_H

#include "authentication/mac.h"
#include "core/foundation/link.h"

typedef struct um_tagging_link {
    um_link base;
    um_link *next;
    um_mac mac;
    um_address local;                   /* whence the link sends */
    enum um_authentication_scope scope; /* UM_AUTHENTICATE_CONTROL: DATA passes as it is */
    bool sends_data;                    /* a source's: its DATA is not control */
    uint64_t stamp;                     /* the last */
    int error;                          /* -EIO: libcrypto failed, nothing was sent */
    uint8_t *buffer;                    /* UM_SEND_BATCH_MAX datagrams and trailers */
    size_t buffer_bytes;
    um_part parts[UM_SEND_BATCH_MAX];
    um_tx batch[UM_SEND_BATCH_MAX];
} um_tagging_link;

/* `purpose` UM_MAC_SESSION: a source's link, of this session; UM_MAC_CONTROL: a receiver's, session NULL. No datagram
 * is longer than `datagram_max_bytes` without its trailer. The stamps begin at a count drawn from `random`. */
int um_tagging_link_open(um_tagging_link *link, um_link *next, const um_key *key, enum um_mac_purpose purpose,
                         enum um_authentication_scope scope, const um_mac_session *session, um_address local,
                         uint32_t datagram_max_bytes, uint64_t random);
void um_tagging_link_close(um_tagging_link *link);
/* From now on tags are made with this key; stamps go on. */
int um_tagging_link_set_key(um_tagging_link *link, const um_key *key, const um_mac_session *session);

#endif

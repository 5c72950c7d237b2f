/* A link that appends the authentication trailer to the datagrams sent through it, and otherwise passes calls to the
 * link behind it (W6). It copies the datagrams of a batch end to end, each with its trailer: making a tag over one
 * piece and sending one piece save more time than the copy costs.
 *
 * Every datagram offered gets a new stamp, also when it is offered again because the link behind was full, or
 * retransmitted: no stamp is used twice.
 *
 * Threads: those of the session that sends through it, one at a time. Memory: a buffer for one batch and contexts of
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
    um_address local;                   /* the address that the link sends from */
    enum um_authentication_scope scope; /* UM_AUTHENTICATE_CONTROL: DATA gets no tag */
    bool sends_data;                    /* belongs to a source: its DATA is not control */
    uint64_t stamp;                     /* the last one used; a session's never repeats under its key */
    int error;                          /* -EIO: libcrypto failed, nothing was sent */
    uint8_t *buffer;                    /* UM_SEND_BATCH_MAX datagrams and trailers */
    size_t buffer_bytes;
    um_part parts[UM_SEND_BATCH_MAX];
    um_tx batch[UM_SEND_BATCH_MAX];
} um_tagging_link;

/* `purpose` is UM_MAC_SESSION for a source's link, with its session, or UM_MAC_CONTROL for a receiver's, with session
 * NULL. No datagram is longer than `datagram_max_bytes` without its trailer. The first stamp is derived from `random`.
 */
int um_tagging_link_open(um_tagging_link *link, um_link *next, const um_key *key, enum um_mac_purpose purpose,
                         enum um_authentication_scope scope, const um_mac_session *session, um_address local,
                         uint32_t datagram_max_bytes, uint64_t random);
void um_tagging_link_close(um_tagging_link *link);
/* From now on tags are made with this key; stamps continue. */
int um_tagging_link_set_key(um_tagging_link *link, const um_key *key, const um_mac_session *session);
/* The same for a new session, whose stamps follow the clock as it is now. */
int um_tagging_link_begin_session(um_tagging_link *link, const um_key *key, const um_mac_session *session);

#endif

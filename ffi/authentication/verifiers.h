/* The verifiers behind core/wire/authentication.h. One checks the datagrams of a source to its group. The other checks
 * datagrams that several senders, distinguished by address, send to one socket: receivers to a source, and all contexts
 * to the resolution group.
 *
 * Order of the checks: the trailer exists, its key is known, the tag is right, its time is fresh, the datagram was not
 * received before. A datagram with a wrong tag leaves no state behind.
 *
 * Threads: the one that receives. Memory: inside; contexts of libcrypto between _open and _close, and the senders'
 * table. Complexity: constant, except that a new sender replaces the one idle for longest if the table is full.
 * Errors: 0 or a negative errno.
 */
#ifndef UM_AUTHENTICATION_VERIFIERS_H
#define UM_AUTHENTICATION_VERIFIERS_H

#include "authentication/mac.h"

enum {
    UM_SESSION_WINDOW_LOG2 = 12, /* how many datagrams late one from a source may arrive */
    UM_SENDERS_MAX = 1024,       /* power of two */
};

/* The keys that are accepted. */
typedef struct um_accepted {
    um_mac macs[UM_KEYS_PER_SET];
    uint32_t count;
} um_accepted;

typedef struct um_session_verifier {
    um_verifier base;
    enum um_authentication_scope scope;
    int64_t tolerance_ns;
    um_mac_session session;
    um_accepted accepted;
    uint64_t window[1 << UM_SESSION_WINDOW_LOG2];
} um_session_verifier;

int um_session_verifier_open(um_session_verifier *verifier, const um_key_set *keys, enum um_authentication_scope scope,
                             int64_t tolerance_ns, const um_mac_session *session);
int um_session_verifier_set_keys(um_session_verifier *verifier, const um_key_set *keys);
void um_session_verifier_close(um_session_verifier *verifier);

/* One of several senders to a socket. */
typedef struct um_known_sender {
    um_address address;
    um_sender_window window; /* empty: the entry is free */
} um_known_sender;

typedef struct um_senders_verifier {
    um_verifier base;
    enum um_mac_purpose purpose;
    int64_t tolerance_ns;
    um_accepted accepted;
    uint64_t forgotten_stamp; /* newest stamp of all replaced senders: a new sender's stamp must be newer */
    uint32_t sender_count;
    um_known_sender *senders; /* UM_SENDERS_MAX */
} um_senders_verifier;

int um_senders_verifier_open(um_senders_verifier *verifier, const um_key_set *keys, enum um_mac_purpose purpose,
                             int64_t tolerance_ns);
int um_senders_verifier_set_keys(um_senders_verifier *verifier, const um_key_set *keys);
void um_senders_verifier_close(um_senders_verifier *verifier);

#endif

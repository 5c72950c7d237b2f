/* Keys and the tags made with them, by libcrypto (docs/authentication.md has the measurements behind the choice).
 *
 * Datagrams of a source to its group have AES-128-GMAC, the fastest available, because half of a session's cost is per
 * byte. The nonce is the trailer's key identifier and stamp. The key is derived for the session and depends on its
 * random identifier. Stamps of a sender ascend, so no nonce is used twice, not even by a retransmission.
 *
 * With a key that encrypts they have AES-256-GCM instead, under a key of their own: their payloads are encrypted, their
 * headers are not. The nonce is the same.
 *
 * Everything else has HMAC-SHA256, cut to the tag's size. It needs no nonce, so that several senders can share the key,
 * and is rare enough to be slower.
 *
 * A tag covers the origin as well: a datagram sent from one address for one purpose is refused from any other.
 *
 * Threads: one at a time uses a um_mac. Memory: um_mac_open allocates contexts of libcrypto, um_mac_close frees them.
 * Errors: 0 or a negative errno.
 */
#ifndef UM_AUTHENTICATION_MAC_H
#define UM_AUTHENTICATION_MAC_H

#include "authentication/cipher.h"
#include "core/wire/framing.h"

enum {
    UM_KEY_BYTES = 32,
    UM_KEYS_PER_SET = 2,
    UM_DERIVED_KEY_BYTES = 32,
};

typedef struct um_key {
    uint8_t id;
    bool encrypts; /* payloads, too; the same for all keys of a context */
    uint8_t secret[UM_KEY_BYTES];
} um_key;

/* The keys in use for one pattern of topics, or for topic resolution: tags are made with the first; all are accepted.
 */
typedef struct um_key_set {
    uint32_t count;
    um_key keys[UM_KEYS_PER_SET];
} um_key_set;

/* Returns the key with this id, or NULL. */
static inline const um_key *um_key_set_find(const um_key_set *set, uint8_t id)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->keys[i].id == id)
            return &set->keys[i];
    return NULL;
}

enum um_mac_purpose {
    UM_MAC_SESSION = 1,    /* a source to its group */
    UM_MAC_CONTROL = 2,    /* a receiver to the source */
    UM_MAC_RESOLUTION = 3, /* topic resolution */
};

/* The properties of a session that its source's tags cover. */
typedef struct um_mac_session {
    um_address source; /* address and NAK port */
    um_address group;
    uint32_t session_id;
    enum um_transport transport; /* where the messages of a datagram begin */
} um_mac_session;

typedef struct um_mac {
    uint8_t key_id;
    enum um_transport transport;
    um_gmac gmac;     /* for UM_MAC_SESSION */
    um_cipher cipher; /* for UM_MAC_SESSION, if the key encrypts */
    void *hmac;       /* EVP_MAC_CTX, for the other purposes */
} um_mac;

/* Derives a separate key for each purpose: HMAC-SHA256 of `purpose` under the key of the file, UM_DERIVED_KEY_BYTES.
 * Returns false if libcrypto fails. */
bool um_key_derive(const um_key *key, const uint8_t *purpose, size_t length, uint8_t *derived);

/* `session` is used only for UM_MAC_SESSION. */
int um_mac_open(um_mac *mac, enum um_mac_purpose purpose, const um_key *key, const um_mac_session *session);
void um_mac_close(um_mac *mac);

static inline bool um_mac_encrypts(const um_mac *mac)
{
    return mac->cipher.sealing != NULL;
}

/* Writes the tag over `length` bytes: a datagram and the UM_TRAILER_COVERED_BYTES of its trailer. `from` is the
 * sender's address; a session's tags are bound to the session instead. Returns false, with `tag` undefined, if
 * libcrypto fails. */
bool um_mac_tag(um_mac *mac, um_address from, const uint8_t *covered, uint32_t length, uint8_t *tag);
/* The same, with the tag behind the covered bytes, where it belongs. If the key encrypts, the payloads are encrypted in
 * place and the trailer is marked. */
bool um_mac_seal(um_mac *mac, um_address from, uint8_t *covered, uint32_t length);
/* Returns true if the tag in the trailer of a datagram matches this key, which must encrypt as the trailer states.
 * Takes the same time for every wrong tag. Encrypted payloads are decrypted in place; they are undefined if the tag is
 * wrong. */
bool um_mac_is_correct(um_mac *mac, um_address from, const uint8_t *data, uint32_t length, const um_trailer *trailer);

/* Name and version of the library, as `umstack --version` prints them. */
const char *um_mac_library(void);

#endif

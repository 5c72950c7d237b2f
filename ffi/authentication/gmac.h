/* AES-128-GMAC by libcrypto for one key. The caller never uses a nonce twice.
 *
 * Threads: one at a time uses a um_gmac. Memory: um_gmac_open allocates a context of libcrypto, um_gmac_close frees it.
 */
#ifndef UM_AUTHENTICATION_GMAC_H
#define UM_AUTHENTICATION_GMAC_H

#include "core/wire/authentication.h"

enum {
    UM_GMAC_KEY_BYTES = 16,
    UM_GMAC_NONCE_BYTES = 12,
};

typedef struct um_gmac {
    void *context; /* EVP_CIPHER_CTX; NULL: closed */
} um_gmac;

typedef struct um_gmac_piece {
    const uint8_t *data;
    uint32_t length;
} um_gmac_piece;

/* 0 or -ENOMEM. */
int um_gmac_open(um_gmac *gmac, const uint8_t *key);
void um_gmac_close(um_gmac *gmac);
/* Writes UM_TAG_BYTES. False when libcrypto fails, which leaves `tag` undefined. */
bool um_gmac_tag(um_gmac *gmac, const uint8_t *nonce, const uint8_t *covered, uint32_t length, uint8_t *tag);
/* The same over pieces, as if they were contiguous. */
bool um_gmac_tag_pieces(um_gmac *gmac, const uint8_t *nonce, const um_gmac_piece *pieces, uint32_t count, uint8_t *tag);

#endif

/* AES-256-GCM by libcrypto over messages whose headers stay readable: payloads are encrypted in place, everything else
 * is covered by the tag. The caller never uses a nonce twice with a key.
 *
 * Threads: one at a time uses a um_cipher. Memory: contexts of libcrypto and two buffers, backed by pages when first
 * used, between _open and _close. Errors: 0 or -ENOMEM; false if libcrypto fails or a tag is wrong.
 */
#ifndef UM_AUTHENTICATION_CIPHER_H
#define UM_AUTHENTICATION_CIPHER_H

#include "authentication/gmac.h"

enum { UM_CIPHER_KEY_BYTES = 32 };

typedef struct um_cipher {
    void *sealing;     /* EVP_CIPHER_CTX; NULL: closed */
    void *opening;     /* EVP_CIPHER_CTX */
    uint8_t *headers;  /* the headers of the messages, end to end */
    uint8_t *payloads; /* their payloads, end to end */
} um_cipher;

/* A datagram with its trailer, or a record: messages between other bytes. At most UM_RECORD_BYTES_MAX of messages. */
typedef struct um_cipher_text {
    um_gmac_piece before;
    uint8_t *messages;
    uint32_t messages_bytes;
    um_gmac_piece behind;
} um_cipher_text;

int um_cipher_open(um_cipher *cipher, const uint8_t *key);
void um_cipher_close(um_cipher *cipher);
/* Encrypts the payloads and writes UM_TAG_BYTES to `tag`. */
bool um_cipher_seal(um_cipher *cipher, const uint8_t *nonce, const um_cipher_text *text, uint8_t *tag);
/* Decrypts the payloads. Returns false if the tag is wrong; the payloads are then undefined. */
bool um_cipher_unseal(um_cipher *cipher, const uint8_t *nonce, const um_cipher_text *text, const uint8_t *tag);

#endif

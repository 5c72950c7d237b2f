#include "authentication/cipher.h"

#include <openssl/evp.h>

#include "core/wire/payload_walk.h"
#include "core/wire/stream_record.h"
#include "os/memory.h"

enum { BUFFER_BYTES = UM_RECORD_BYTES_MAX };

static EVP_CIPHER_CTX *open_context(const uint8_t *key, int encrypts)
{
    EVP_CIPHER *algorithm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    EVP_CIPHER_CTX *context = algorithm == NULL ? NULL : EVP_CIPHER_CTX_new();
    bool is_ready = context != NULL && EVP_CipherInit_ex2(context, algorithm, key, NULL, encrypts, NULL) == 1;
    EVP_CIPHER_free(algorithm);
    if (is_ready)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

int um_cipher_open(um_cipher *cipher, const uint8_t *key)
{
    *cipher = (um_cipher){.sealing = open_context(key, 1),
                          .opening = open_context(key, 0),
                          .headers = um_map(BUFFER_BYTES),
                          .payloads = um_map(BUFFER_BYTES)};
    if (cipher->sealing && cipher->opening && cipher->headers && cipher->payloads)
        return 0;
    um_cipher_close(cipher);
    return -ENOMEM;
}

void um_cipher_close(um_cipher *cipher)
{
    EVP_CIPHER_CTX_free(cipher->sealing);
    EVP_CIPHER_CTX_free(cipher->opening);
    um_unmap(cipher->headers, BUFFER_BYTES);
    um_unmap(cipher->payloads, BUFFER_BYTES);
    *cipher = (um_cipher){0};
}

/* The payloads of a text: in place if there is one at most, else collected in the cipher's buffer. */
typedef struct collected {
    uint8_t *payloads;
    uint32_t payloads_bytes;
    bool is_in_place;
    um_gmac_piece headers[2];
} collected;

static collected collect(const um_cipher *cipher, const um_cipher_text *text)
{
    uint32_t at = 0, offset, length, end = 0, headers = 0, payloads = 0;
    if (!um_payload_next(text->messages, text->messages_bytes, &at, &offset, &length) ||
        at == text->messages_bytes) /* the usual datagram of one message */
        return (collected){
            text->messages + offset,
            length,
            true,
            {{text->messages, offset}, {text->messages + offset + length, text->messages_bytes - offset - length}}};
    do {
        memcpy(cipher->headers + headers, text->messages + end, offset - end);
        headers += offset - end;
        memcpy(cipher->payloads + payloads, text->messages + offset, length);
        payloads += length;
        end = offset + length;
    } while (um_payload_next(text->messages, text->messages_bytes, &at, &offset, &length));
    return (collected){cipher->payloads,
                       payloads,
                       false,
                       {{cipher->headers, headers}, {text->messages + end, text->messages_bytes - end}}};
}

static void put_back(const collected *changed, const um_cipher_text *text)
{
    uint32_t at = 0, offset, length;
    const uint8_t *from = changed->payloads;
    if (changed->is_in_place)
        return;
    while (um_payload_next(text->messages, text->messages_bytes, &at, &offset, &length)) {
        memcpy(text->messages + offset, from, length);
        from += length;
    }
}

static bool cover(EVP_CIPHER_CTX *context, um_gmac_piece piece)
{
    int ignored;
    return piece.length == 0 || EVP_CipherUpdate(context, NULL, &ignored, piece.data, (int)piece.length) == 1;
}

/* Covers all but the payloads, and encrypts or decrypts these. */
static bool transform(EVP_CIPHER_CTX *context, const uint8_t *nonce, const um_cipher_text *text, const collected *parts)
{
    int ignored;
    return EVP_CipherInit_ex2(context, NULL, NULL, nonce, -1, NULL) == 1 && cover(context, text->before) &&
           cover(context, parts->headers[0]) && cover(context, parts->headers[1]) && cover(context, text->behind) &&
           (parts->payloads_bytes == 0 ||
            EVP_CipherUpdate(context, parts->payloads, &ignored, parts->payloads, (int)parts->payloads_bytes) == 1);
}

bool um_cipher_seal(um_cipher *cipher, const uint8_t *nonce, const um_cipher_text *text, uint8_t *tag)
{
    collected parts = collect(cipher, text);
    uint8_t nothing[EVP_MAX_BLOCK_LENGTH];
    int ignored;
    if (!transform(cipher->sealing, nonce, text, &parts) ||
        EVP_CipherFinal_ex(cipher->sealing, nothing, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(cipher->sealing, EVP_CTRL_AEAD_GET_TAG, UM_TAG_BYTES, tag) != 1)
        return false;
    put_back(&parts, text);
    return true;
}

bool um_cipher_unseal(um_cipher *cipher, const uint8_t *nonce, const um_cipher_text *text, const uint8_t *tag)
{
    collected parts = collect(cipher, text);
    uint8_t nothing[EVP_MAX_BLOCK_LENGTH], expected[UM_TAG_BYTES];
    int ignored;
    memcpy(expected, tag, UM_TAG_BYTES);
    if (!transform(cipher->opening, nonce, text, &parts) ||
        EVP_CIPHER_CTX_ctrl(cipher->opening, EVP_CTRL_AEAD_SET_TAG, UM_TAG_BYTES, expected) != 1 ||
        EVP_CipherFinal_ex(cipher->opening, nothing, &ignored) != 1)
        return false;
    put_back(&parts, text);
    return true;
}

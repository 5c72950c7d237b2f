#include "authentication/gmac.h"

#include <openssl/evp.h>

enum { WHOLE_BYTES = 16 }; /* GMAC's output, later cut to the tag's size */

int um_gmac_open(um_gmac *gmac, const uint8_t *key)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-128-GCM", NULL);
    EVP_CIPHER_CTX *context = cipher == NULL ? NULL : EVP_CIPHER_CTX_new();
    bool ready = context != NULL && EVP_EncryptInit_ex2(context, cipher, key, NULL, NULL) == 1;
    EVP_CIPHER_free(cipher);
    if (!ready) {
        EVP_CIPHER_CTX_free(context);
        context = NULL;
    }
    gmac->context = context;
    return ready ? 0 : -ENOMEM;
}

void um_gmac_close(um_gmac *gmac)
{
    EVP_CIPHER_CTX_free(gmac->context);
    gmac->context = NULL;
}

bool um_gmac_tag_pieces(um_gmac *gmac, const uint8_t *nonce, const um_gmac_piece *pieces, uint32_t count, uint8_t *tag)
{
    EVP_CIPHER_CTX *context = gmac->context;
    uint8_t whole[WHOLE_BYTES];
    int ignored;
    if (EVP_EncryptInit_ex2(context, NULL, NULL, nonce, NULL) != 1)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (EVP_EncryptUpdate(context, NULL, &ignored, pieces[i].data, (int)pieces[i].length) != 1)
            return false;
    if (EVP_EncryptFinal_ex(context, whole, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, WHOLE_BYTES, whole) != 1)
        return false;
    memcpy(tag, whole, UM_TAG_BYTES);
    return true;
}

bool um_gmac_tag(um_gmac *gmac, const uint8_t *nonce, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    return um_gmac_tag_pieces(gmac, nonce, &(um_gmac_piece){covered, length}, 1, tag);
}

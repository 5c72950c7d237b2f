#include "authentication/mac.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

enum {
    SHA256_BYTES = 32,
    GMAC_KEY_BYTES = 16,
    GMAC_TAG_BYTES = 16, /* cut to the tag's size afterwards */
    NONCE_BYTES = 12,
    NONCE_USED_BYTES = 8, /* key identifier and stamp, with which what is covered ends */
    LABEL_BYTES_MAX = 64,
};

static const char *const LABELS[] = {
    [UM_MAC_SESSION] = "umstack session", [UM_MAC_CONTROL] = "umstack control", [UM_MAC_RESOLUTION] = "umstack lbmr"};

static EVP_MAC_CTX *open_hmac(const uint8_t *key, size_t key_bytes)
{
    EVP_MAC *algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = algorithm == NULL ? NULL : EVP_MAC_CTX_new(algorithm);
    EVP_MAC_free(algorithm); /* the context has its own reference */
    OSSL_PARAM digest[2] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char[]){"SHA256"}, 0),
                            OSSL_PARAM_construct_end()};
    if (context != NULL && EVP_MAC_init(context, key, key_bytes, digest) == 1)
        return context;
    EVP_MAC_CTX_free(context);
    return NULL;
}

static EVP_CIPHER_CTX *open_gmac(const uint8_t *key)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(NULL, "AES-128-GCM", NULL);
    EVP_CIPHER_CTX *context = cipher == NULL ? NULL : EVP_CIPHER_CTX_new();
    bool ready = context != NULL && EVP_EncryptInit_ex2(context, cipher, key, NULL, NULL) == 1;
    EVP_CIPHER_free(cipher);
    if (ready)
        return context;
    EVP_CIPHER_CTX_free(context);
    return NULL;
}

static uint8_t *put_address(uint8_t *out, um_address address)
{
    um_store_be32(out, address.ip);
    um_store_be16(out + 4, address.port);
    return out + 6;
}

/* A key of its own for each purpose and session: HMAC-SHA256 of what it is for, under the key of the file. */
static bool derive(enum um_mac_purpose purpose, const um_key *key, const um_mac_session *session, uint8_t *derived)
{
    uint8_t label[LABEL_BYTES_MAX];
    size_t length = strlen(LABELS[purpose]), derived_bytes;
    memcpy(label, LABELS[purpose], length);
    if (session != NULL) {
        uint8_t *end = put_address(put_address(label + length, session->source), session->group);
        um_store_be32(end, session->session_id);
        length = (size_t)(end + 4 - label);
    }
    EVP_MAC_CTX *hmac = open_hmac(key->secret, UM_KEY_BYTES);
    bool done = hmac != NULL && EVP_MAC_update(hmac, label, length) == 1 &&
                EVP_MAC_final(hmac, derived, &derived_bytes, SHA256_BYTES) == 1;
    EVP_MAC_CTX_free(hmac);
    return done;
}

int um_mac_open(um_mac *mac, enum um_mac_purpose purpose, const um_key *key, const um_mac_session *session)
{
    uint8_t derived[SHA256_BYTES];
    *mac = (um_mac){.key_id = key->id};
    if (derive(purpose, key, session, derived)) {
        if (purpose == UM_MAC_SESSION)
            mac->gmac = open_gmac(derived);
        else
            mac->hmac = open_hmac(derived, SHA256_BYTES);
    }
    OPENSSL_cleanse(derived, sizeof derived);
    return mac->gmac != NULL || mac->hmac != NULL ? 0 : -ENOMEM;
}

void um_mac_close(um_mac *mac)
{
    EVP_CIPHER_CTX_free(mac->gmac);
    EVP_MAC_CTX_free(mac->hmac);
    *mac = (um_mac){0};
}

static bool gmac_tag(EVP_CIPHER_CTX *context, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    uint8_t nonce[NONCE_BYTES] = {0}, whole[GMAC_TAG_BYTES];
    int ignored;
    memcpy(nonce, covered + length - NONCE_USED_BYTES, NONCE_USED_BYTES);
    if (EVP_EncryptInit_ex2(context, NULL, NULL, nonce, NULL) != 1 ||
        EVP_EncryptUpdate(context, NULL, &ignored, covered, (int)length) != 1 ||
        EVP_EncryptFinal_ex(context, whole, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, GMAC_TAG_BYTES, whole) != 1)
        return false;
    memcpy(tag, whole, UM_TAG_BYTES);
    return true;
}

static bool hmac_tag(EVP_MAC_CTX *context, um_address from, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    uint8_t origin[6], whole[SHA256_BYTES];
    size_t ignored;
    put_address(origin, from);
    if (EVP_MAC_init(context, NULL, 0, NULL) != 1 || EVP_MAC_update(context, origin, sizeof origin) != 1 ||
        EVP_MAC_update(context, covered, length) != 1 || EVP_MAC_final(context, whole, &ignored, sizeof whole) != 1)
        return false;
    memcpy(tag, whole, UM_TAG_BYTES);
    return true;
}

bool um_mac_tag(um_mac *mac, um_address from, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    return mac->gmac != NULL ? gmac_tag(mac->gmac, covered, length, tag)
                             : hmac_tag(mac->hmac, from, covered, length, tag);
}

bool um_mac_is_right(um_mac *mac, um_address from, const uint8_t *data, uint32_t length, const um_trailer *trailer)
{
    uint8_t tag[UM_TAG_BYTES];
    return um_mac_tag(mac, from, data, length - UM_TAG_BYTES, tag) &&
           CRYPTO_memcmp(tag, trailer->tag, UM_TAG_BYTES) == 0;
}

const char *um_mac_library(void)
{
    return OpenSSL_version(OPENSSL_VERSION_STRING);
}

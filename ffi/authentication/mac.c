#include "authentication/mac.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

enum {
    SHA256_BYTES = UM_DERIVED_KEY_BYTES,
    NONCE_USED_BYTES = 8, /* key identifier and stamp, the last covered bytes */
    LABEL_BYTES_MAX = 64,
    ADDRESS_BYTES_MAX = UM_IPV4_BYTES + UM_IPV6_BYTES + 2,
};

static const char *const LABELS[] = {
    [UM_MAC_SESSION] = "umstack session", [UM_MAC_CONTROL] = "umstack control", [UM_MAC_RESOLUTION] = "umstack lbmr"};

static const char ENCRYPTED_LABEL[] = "umstack encrypted session";

static EVP_MAC_CTX *open_hmac(const uint8_t *key, size_t key_bytes)
{
    EVP_MAC *algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = algorithm == NULL ? NULL : EVP_MAC_CTX_new(algorithm);
    EVP_MAC_free(algorithm); /* the context holds its own reference */
    OSSL_PARAM digest[2] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char[]){"SHA256"}, 0),
                            OSSL_PARAM_construct_end()};
    if (context != NULL && EVP_MAC_init(context, key, key_bytes, digest) == 1)
        return context;
    EVP_MAC_CTX_free(context);
    return NULL;
}

/* Writes an address and a port: 4 bytes and 2. Four zero bytes, which are no IPv4 address, precede the 16 of IPv6. */
static uint8_t *put_address(uint8_t *out, um_address address)
{
    bool is_ipv6 = um_ip_is_v6(address.ip);
    um_store_be32(out, is_ipv6 ? 0 : um_ip_v4(address.ip));
    out += UM_IPV4_BYTES;
    if (is_ipv6) {
        um_ip_store_v6(out, address.ip);
        out += UM_IPV6_BYTES;
    }
    um_store_be16(out, address.port);
    return out + 2;
}

bool um_key_derive(const um_key *key, const uint8_t *purpose, size_t length, uint8_t *derived)
{
    size_t derived_bytes;
    EVP_MAC_CTX *hmac = open_hmac(key->secret, UM_KEY_BYTES);
    bool done = hmac != NULL && EVP_MAC_update(hmac, purpose, length) == 1 &&
                EVP_MAC_final(hmac, derived, &derived_bytes, SHA256_BYTES) == 1;
    EVP_MAC_CTX_free(hmac);
    return done;
}

static bool derive(enum um_mac_purpose purpose, const um_key *key, const um_mac_session *session, uint8_t *derived)
{
    uint8_t label[LABEL_BYTES_MAX];
    const char *name = session != NULL && key->encrypts ? ENCRYPTED_LABEL : LABELS[purpose];
    size_t length = strlen(name);
    memcpy(label, name, length);
    if (session != NULL) {
        uint8_t *end = put_address(put_address(label + length, session->source), session->group);
        um_store_be32(end, session->session_id);
        length = (size_t)(end + 4 - label);
    }
    return um_key_derive(key, label, length, derived);
}

int um_mac_open(um_mac *mac, enum um_mac_purpose purpose, const um_key *key, const um_mac_session *session)
{
    uint8_t derived[SHA256_BYTES];
    *mac = (um_mac){.key_id = key->id, .transport = session != NULL ? session->transport : UM_TRANSPORT_LBTRM};
    if (derive(purpose, key, session, derived)) {
        if (purpose == UM_MAC_SESSION && key->encrypts)
            um_cipher_open(&mac->cipher, derived);
        else if (purpose == UM_MAC_SESSION)
            um_gmac_open(&mac->gmac, derived);
        else
            mac->hmac = open_hmac(derived, SHA256_BYTES);
    }
    OPENSSL_cleanse(derived, sizeof derived);
    return mac->gmac.context != NULL || um_mac_encrypts(mac) || mac->hmac != NULL ? 0 : -ENOMEM;
}

void um_mac_close(um_mac *mac)
{
    um_gmac_close(&mac->gmac);
    um_cipher_close(&mac->cipher);
    EVP_MAC_CTX_free(mac->hmac);
    *mac = (um_mac){0};
}

/* Writes the nonce of a datagram whose covered bytes end here. */
static void put_nonce(uint8_t nonce[UM_GMAC_NONCE_BYTES], const uint8_t *covered, uint32_t length)
{
    memset(nonce, 0, UM_GMAC_NONCE_BYTES);
    memcpy(nonce, covered + length - NONCE_USED_BYTES, NONCE_USED_BYTES);
}

static bool gmac_tag(um_gmac *gmac, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    uint8_t nonce[UM_GMAC_NONCE_BYTES];
    put_nonce(nonce, covered, length);
    return um_gmac_tag(gmac, nonce, covered, length, tag);
}

static bool hmac_tag(EVP_MAC_CTX *context, um_address from, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    uint8_t origin[ADDRESS_BYTES_MAX], whole[SHA256_BYTES];
    size_t ignored, origin_bytes = (size_t)(put_address(origin, from) - origin);
    if (EVP_MAC_init(context, NULL, 0, NULL) != 1 || EVP_MAC_update(context, origin, origin_bytes) != 1 ||
        EVP_MAC_update(context, covered, length) != 1 || EVP_MAC_final(context, whole, &ignored, sizeof whole) != 1)
        return false;
    memcpy(tag, whole, UM_TAG_BYTES);
    return true;
}

bool um_mac_tag(um_mac *mac, um_address from, const uint8_t *covered, uint32_t length, uint8_t *tag)
{
    return mac->gmac.context != NULL ? gmac_tag(&mac->gmac, covered, length, tag)
                                     : hmac_tag(mac->hmac, from, covered, length, tag);
}

/* The parts of a datagram and the covered bytes of its trailer. Returns false if it is none of this transport. */
static bool text_of(const um_mac *mac, uint8_t *covered, uint32_t length, um_cipher_text *text)
{
    um_packet packet;
    uint32_t datagram_bytes = length - UM_TRAILER_COVERED_BYTES;
    if (um_framing_decode(mac->transport, covered, datagram_bytes, &packet) != UM_DGRAM_OK)
        return false;
    uint32_t begin = packet.body_length > 0 ? (uint32_t)(packet.body - covered) : datagram_bytes;
    uint32_t end = packet.body_length > 0 ? begin + packet.body_length : datagram_bytes;
    *text = (um_cipher_text){{covered, begin}, covered + begin, end - begin, {covered + end, length - end}};
    return true;
}

bool um_mac_seal(um_mac *mac, um_address from, uint8_t *covered, uint32_t length)
{
    if (!um_mac_encrypts(mac))
        return um_mac_tag(mac, from, covered, length, covered + length);
    um_cipher_text text;
    uint8_t nonce[UM_GMAC_NONCE_BYTES];
    um_trailer_mark_encrypted(covered + length - UM_TRAILER_COVERED_BYTES);
    put_nonce(nonce, covered, length);
    return text_of(mac, covered, length, &text) && um_cipher_seal(&mac->cipher, nonce, &text, covered + length);
}

static bool unseal(um_mac *mac, uint8_t *covered, uint32_t length, const uint8_t *tag)
{
    um_cipher_text text;
    uint8_t nonce[UM_GMAC_NONCE_BYTES];
    put_nonce(nonce, covered, length);
    return text_of(mac, covered, length, &text) && um_cipher_unseal(&mac->cipher, nonce, &text, tag);
}

bool um_mac_is_correct(um_mac *mac, um_address from, const uint8_t *data, uint32_t length, const um_trailer *trailer)
{
    uint8_t tag[UM_TAG_BYTES];
    if (um_mac_encrypts(mac))
        return unseal(mac, (uint8_t *)(uintptr_t)data, length - UM_TAG_BYTES, trailer->tag);
    return um_mac_tag(mac, from, data, length - UM_TAG_BYTES, tag) &&
           CRYPTO_memcmp(tag, trailer->tag, UM_TAG_BYTES) == 0;
}

const char *um_mac_library(void)
{
    return OpenSSL_version(OPENSSL_VERSION_STRING);
}

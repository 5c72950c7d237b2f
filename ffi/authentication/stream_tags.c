#include "authentication/stream_tags.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdlib.h>

#include "os/memory.h"

enum { CONNECTION_BYTES_MAX = 1000 };

static const char *const LABELS[] = {[UM_STREAM_REQUESTS] = "umstack request",
                                     [UM_STREAM_RESPONSES] = "umstack response",
                                     [UM_STREAM_SESSION] = "umstack tcp",
                                     [UM_STREAM_STORE] = "umstack store"};
static const char CHECK_LABEL[] = "umstack key check";
enum {
    LABEL_BYTES_MAX = 20,
    ENCRYPTED = 2, /* in the byte behind the label */
};

/* One direction of a connection. */
typedef struct direction {
    um_key key;
    um_gmac gmac;
    um_cipher cipher; /* instead of gmac, if the key encrypts */
    uint64_t next;    /* number of the next record */
} direction;

struct um_stream_tags {
    um_record_verifier base;
    enum um_stream_kind kind;
    bool is_server;
    bool names_key; /* the next record names its key, because it differs from the last record's */
    direction sent;
    direction received;
    um_key_set accepted;
    uint32_t connection_bytes;
    uint8_t connection[CONNECTION_BYTES_MAX];
};

int um_stream_greeting_write(uint8_t *out, const um_stream_greeting *greeting)
{
    uint8_t nonce[UM_GREETING_NONCE_BYTES];
    if (RAND_bytes(nonce, sizeof nonce) != 1)
        return -EIO;
    um_stream_greeting_put(out, greeting, nonce);
    return 0;
}

uint32_t um_stream_key_check(const um_key *key)
{
    uint8_t derived[UM_DERIVED_KEY_BYTES] = {0};
    um_key_derive(key, (const uint8_t *)CHECK_LABEL, sizeof CHECK_LABEL - 1, derived);
    return um_load_be32(derived);
}

/* ---- keys ---- */

static bool is_same_key(const um_key *one, const um_key *other)
{
    return one->id == other->id && CRYPTO_memcmp(one->secret, other->secret, UM_KEY_BYTES) == 0;
}

/* Opens what makes or checks the tags of a direction. */
static bool open_direction(const um_stream_tags *tags, const um_key *key, bool from_server, direction *opened)
{
    uint8_t purpose[LABEL_BYTES_MAX + 1 + CONNECTION_BYTES_MAX], derived[UM_DERIVED_KEY_BYTES];
    size_t label_bytes = strlen(LABELS[tags->kind]);
    memcpy(purpose, LABELS[tags->kind], label_bytes);
    purpose[label_bytes] = (uint8_t)(from_server | (key->encrypts ? ENCRYPTED : 0));
    memcpy(purpose + label_bytes + 1, tags->connection, tags->connection_bytes);
    bool is_open =
        um_key_derive(key, purpose, label_bytes + 1 + tags->connection_bytes, derived) &&
        (key->encrypts ? um_cipher_open(&opened->cipher, derived) : um_gmac_open(&opened->gmac, derived)) == 0;
    OPENSSL_cleanse(derived, sizeof derived);
    return is_open;
}

static void close_direction(direction *of)
{
    um_gmac_close(&of->gmac);
    um_cipher_close(&of->cipher);
}

/* Changes a direction's key; its record numbers continue. */
static bool change_key(um_stream_tags *tags, direction *of, const um_key *key)
{
    direction opened = {.key = *key, .next = of->next};
    if (!open_direction(tags, key, of == &tags->sent ? tags->is_server : !tags->is_server, &opened))
        return false;
    close_direction(of);
    *of = opened;
    return true;
}

static enum um_tag_status verify(um_record_verifier *base, const uint8_t *record)
{
    return (enum um_tag_status)um_stream_tags_verify((um_stream_tags *)base, record);
}

um_stream_tags *um_stream_tags_open(const um_key *key, enum um_stream_kind kind, bool is_server,
                                    const uint8_t *connection, uint32_t length)
{
    um_stream_tags *tags = length > CONNECTION_BYTES_MAX ? NULL : um_allocate(sizeof *tags);
    if (tags == NULL)
        return NULL;
    *tags = (um_stream_tags){.base = {verify}, .kind = kind, .is_server = is_server, .connection_bytes = length};
    tags->accepted = (um_key_set){1, {*key}};
    memcpy(tags->connection, connection, length);
    if (change_key(tags, &tags->sent, key) && change_key(tags, &tags->received, key))
        return tags;
    um_stream_tags_close(tags);
    return NULL;
}

um_stream_tags *um_stream_tags_open_session(const um_key *key, bool is_server, const uint8_t *client,
                                            const uint8_t *source, um_address at)
{
    uint8_t connection[2 * UM_RECORD_HEADER_BYTES + 6];
    memcpy(connection, client, UM_RECORD_HEADER_BYTES);
    memcpy(connection + UM_RECORD_HEADER_BYTES, source, UM_RECORD_HEADER_BYTES);
    um_store_be32(connection + (size_t)2 * UM_RECORD_HEADER_BYTES, um_ip_v4(at.ip));
    um_store_be16(connection + (size_t)2 * UM_RECORD_HEADER_BYTES + 4, at.port);
    return um_stream_tags_open(key, UM_STREAM_SESSION, is_server, connection, sizeof connection);
}

void um_stream_tags_close(um_stream_tags *tags)
{
    if (tags == NULL)
        return;
    close_direction(&tags->sent);
    close_direction(&tags->received);
    OPENSSL_cleanse(tags, sizeof *tags);
    free(tags);
}

int um_stream_tags_set_keys(um_stream_tags *tags, const um_key_set *keys)
{
    tags->accepted = *keys;
    if (is_same_key(&tags->sent.key, &keys->keys[0]))
        return 0;
    tags->names_key = true;
    return change_key(tags, &tags->sent, &keys->keys[0]) ? 0 : -ENOMEM;
}

um_record_verifier *um_stream_tags_verifier(um_stream_tags *tags)
{
    return &tags->base;
}

/* ---- records ---- */

/* The tag covers the header up to the tag, and the messages behind it. The nonce starts with the lower half of the
 * record number, which is the part that the header contains. */
static void put_nonce(uint8_t nonce[UM_GMAC_NONCE_BYTES], uint64_t number)
{
    memset(nonce, 0, UM_GMAC_NONCE_BYTES);
    um_store_be32(nonce, (uint32_t)number);
    um_store_be32(nonce + 4, (uint32_t)(number >> 32));
}

static bool make_tag(um_gmac *gmac, uint64_t number, const uint8_t *header, const uint8_t *messages, uint32_t length,
                     uint8_t *tag)
{
    uint8_t nonce[UM_GMAC_NONCE_BYTES];
    put_nonce(nonce, number);
    const um_gmac_piece pieces[] = {{header, UM_RECORD_COVERED_BYTES}, {messages, length}};
    return um_gmac_tag_pieces(gmac, nonce, pieces, 2, tag);
}

static um_cipher_text text_of(const uint8_t *header, uint8_t *messages, uint32_t length)
{
    return (um_cipher_text){{header, UM_RECORD_COVERED_BYTES}, messages, length, {NULL, 0}};
}

/* Encrypts the payloads and makes the tag, or only makes the tag. */
static bool seal(direction *of, uint64_t number, const uint8_t *header, uint8_t *messages, uint32_t length,
                 uint8_t *tag)
{
    uint8_t nonce[UM_GMAC_NONCE_BYTES];
    um_cipher_text text = text_of(header, messages, length);
    if (!of->key.encrypts)
        return make_tag(&of->gmac, number, header, messages, length, tag);
    put_nonce(nonce, number);
    return um_cipher_seal(&of->cipher, nonce, &text, tag);
}

bool um_stream_tags_encrypt(const um_stream_tags *tags)
{
    return tags->sent.key.encrypts;
}

int um_stream_tags_head(um_stream_tags *tags, uint8_t *header, uint8_t *messages, uint32_t length)
{
    uint64_t number = tags->sent.next++;
    um_stream_record_write(header, tags->names_key ? tags->sent.key.id : 0, length, (uint32_t)number);
    tags->names_key = false;
    return seal(&tags->sent, number, header, messages, length, header + UM_RECORD_COVERED_BYTES) ? 0 : -EIO;
}

int um_stream_tags_seal(um_stream_tags *tags, uint8_t *record, uint32_t length)
{
    return um_stream_tags_head(tags, record, record + UM_RECORD_HEADER_BYTES, length);
}

/* Returns the key that the record was made with, or NULL if it is not in use. */
static const um_key *key_of(const um_stream_tags *tags, const um_stream_record *record)
{
    for (uint32_t i = 0; i < tags->accepted.count; i++) {
        const um_key *key = &tags->accepted.keys[i];
        if (record->key_id != 0 ? key->id == record->key_id : is_same_key(key, &tags->received.key))
            return key;
    }
    return NULL;
}

/* Checks the tag, and decrypts the payloads. */
static bool is_tag_right(direction *of, uint64_t number, const uint8_t *header, const um_stream_record *record)
{
    uint8_t tag[UM_TAG_BYTES], nonce[UM_GMAC_NONCE_BYTES];
    uint8_t *messages = (uint8_t *)(uintptr_t)header + UM_RECORD_HEADER_BYTES;
    um_cipher_text text = text_of(header, messages, record->messages_bytes);
    put_nonce(nonce, number);
    if (of->key.encrypts)
        return um_cipher_unseal(&of->cipher, nonce, &text, record->tag);
    return make_tag(&of->gmac, number, header, messages, record->messages_bytes, tag) &&
           CRYPTO_memcmp(tag, record->tag, UM_TAG_BYTES) == 0;
}

int um_stream_tags_verify(um_stream_tags *tags, const uint8_t *data)
{
    direction *received = &tags->received;
    um_stream_record record = um_stream_record_read(data);
    const um_key *key = key_of(tags, &record);
    if (key == NULL)
        return UM_TAG_KEY_UNKNOWN;
    if (!is_same_key(key, &received->key) && !change_key(tags, received, key))
        return UM_TAG_WRONG;
    /* The number with this lower half that is nearest to the expected one. */
    uint64_t number = received->next + (uint64_t)(int64_t)(int32_t)(record.number - (uint32_t)received->next);
    if (!is_tag_right(received, number, data, &record))
        return UM_TAG_WRONG;
    if (number != received->next)
        return UM_TAG_REPLAYED;
    received->next++;
    return UM_TAG_OK;
}

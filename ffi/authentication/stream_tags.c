#include "authentication/stream_tags.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdlib.h>

#include "os/memory.h"

static const uint8_t HEADER[] = {0x08, 0x62, 0x00, 0x1c, 0xff, 0x18, 0x80};

enum {
    KIND_AT = sizeof HEADER,
    LENGTH_AT = KIND_AT + 1,
    NUMBER_AT = LENGTH_AT + 4,
    TAG_AT = NUMBER_AT + 4,
    SUBJECT_AT = NUMBER_AT,
    KEY_ID_AT = TAG_AT,
    NONCE_AT = KEY_ID_AT + 1,
    PURPOSE_BYTES_MAX = 1024,
};

static const char *const LABELS[] = {
    [UM_STREAM_REQUESTS] = "umstack request", [UM_STREAM_RESPONSES] = "umstack response"};
static const char CHECK_LABEL[] = "umstack key check";

/* One direction of a connection. */
typedef struct direction {
    um_gmac gmac;
    uint64_t next; /* number of the next record */
} direction;

struct um_stream_tags {
    direction sent;
    direction received;
};

/* ---- greetings ---- */

int um_stream_greeting_write(char *out, const um_stream_greeting *greeting)
{
    uint8_t *at = (uint8_t *)out;
    memcpy(at, HEADER, sizeof HEADER);
    at[KIND_AT] = (uint8_t)greeting->kind;
    um_store_be32(at + LENGTH_AT, 0);
    um_store_be32(at + SUBJECT_AT, greeting->subject);
    at[KEY_ID_AT] = greeting->key_id;
    return RAND_bytes(at + NONCE_AT, UM_RECORD_HEADER_BYTES - NONCE_AT) == 1 ? 0 : -EIO;
}

bool um_stream_greeting_read(const char *data, um_stream_greeting *greeting)
{
    const uint8_t *at = (const uint8_t *)data;
    if (memcmp(at, HEADER, sizeof HEADER) != 0 || at[KIND_AT] >= UM_STREAM_KINDS || um_load_be32(at + LENGTH_AT) != 0)
        return false;
    *greeting = (um_stream_greeting){(enum um_stream_kind)at[KIND_AT], um_load_be32(at + SUBJECT_AT), at[KEY_ID_AT]};
    return true;
}

uint32_t um_stream_key_check(const um_key *key)
{
    uint8_t derived[UM_DERIVED_KEY_BYTES] = {0};
    um_key_derive(key, (const uint8_t *)CHECK_LABEL, sizeof CHECK_LABEL - 1, derived);
    return um_load_be32(derived);
}

/* ---- records ---- */

static bool open_direction(direction *opened, const um_key *key, enum um_stream_kind kind, bool from_server,
                           const char *connection, uint32_t length)
{
    uint8_t purpose[PURPOSE_BYTES_MAX], derived[UM_DERIVED_KEY_BYTES];
    uint32_t label_bytes = (uint32_t)strlen(LABELS[kind]);
    if (length > PURPOSE_BYTES_MAX - label_bytes - 1)
        return false;
    memcpy(purpose, LABELS[kind], label_bytes);
    purpose[label_bytes] = from_server;
    memcpy(purpose + label_bytes + 1, connection, length);
    bool open =
        um_key_derive(key, purpose, label_bytes + 1 + length, derived) && um_gmac_open(&opened->gmac, derived) == 0;
    OPENSSL_cleanse(derived, sizeof derived);
    return open;
}

um_stream_tags *um_stream_tags_open(const um_key *key, enum um_stream_kind kind, bool is_server, const char *connection,
                                    uint32_t length)
{
    um_stream_tags *tags = um_allocate(sizeof *tags);
    if (tags == NULL)
        return NULL;
    if (open_direction(&tags->sent, key, kind, is_server, connection, length) &&
        open_direction(&tags->received, key, kind, !is_server, connection, length))
        return tags;
    um_stream_tags_close(tags);
    return NULL;
}

void um_stream_tags_close(um_stream_tags *tags)
{
    if (tags == NULL)
        return;
    um_gmac_close(&tags->sent.gmac);
    um_gmac_close(&tags->received.gmac);
    free(tags);
}

/* The tag of the direction's next record covers the header up to it and the messages behind it: both pieces in one, the
 * tag's place left out. Of the nonce the lower half of the number comes first, which is all of it in the header. */
static bool make_tag(direction *of, uint64_t number, const uint8_t *record, uint32_t length, uint8_t *tag)
{
    uint8_t nonce[UM_GMAC_NONCE_BYTES] = {0};
    um_store_be32(nonce, (uint32_t)number);
    um_store_be32(nonce + 4, (uint32_t)(number >> 32));
    const um_gmac_piece pieces[] = {{record, TAG_AT}, {record + UM_RECORD_HEADER_BYTES, length}};
    return um_gmac_tag_pieces(&of->gmac, nonce, pieces, 2, tag);
}

int um_stream_tags_seal(um_stream_tags *tags, char *record, uint32_t length)
{
    uint8_t *header = (uint8_t *)record;
    uint64_t number = tags->sent.next++;
    memcpy(header, HEADER, sizeof HEADER);
    header[KIND_AT] = 0;
    um_store_be32(header + LENGTH_AT, length);
    um_store_be32(header + NUMBER_AT, (uint32_t)number);
    return make_tag(&tags->sent, number, header, length, header + TAG_AT) ? 0 : -EIO;
}

int64_t um_stream_record_bytes(const char *received, uint32_t length)
{
    uint32_t compared = length < sizeof HEADER ? length : (uint32_t)sizeof HEADER;
    if (memcmp(received, HEADER, compared) != 0)
        return -EBADMSG;
    if (length < UM_RECORD_HEADER_BYTES)
        return -EAGAIN;
    uint32_t messages_bytes = um_load_be32((const uint8_t *)received + LENGTH_AT);
    if (messages_bytes > UM_RECORD_BYTES_MAX)
        return -EBADMSG;
    return messages_bytes == 0 ? 0 : (int64_t)UM_RECORD_HEADER_BYTES + messages_bytes;
}

/* The number whose lower half the header has, of those the one next to what is expected. */
static uint64_t number_of(const direction *of, const uint8_t *header)
{
    return of->next + (uint64_t)(int64_t)(int32_t)(um_load_be32(header + NUMBER_AT) - (uint32_t)of->next);
}

int um_stream_tags_verify(um_stream_tags *tags, const char *record)
{
    const uint8_t *header = (const uint8_t *)record;
    uint8_t tag[UM_TAG_BYTES];
    uint32_t length = um_load_be32(header + LENGTH_AT);
    uint64_t number = number_of(&tags->received, header);
    if (!make_tag(&tags->received, number, header, length, tag) ||
        CRYPTO_memcmp(tag, header + TAG_AT, UM_TAG_BYTES) != 0)
        return UM_TAG_WRONG;
    if (number != tags->received.next)
        return UM_TAG_REPLAYED;
    tags->received.next++;
    return UM_TAG_OK;
}

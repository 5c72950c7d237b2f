#include "authentication/stream_tags.h"

#include <openssl/crypto.h>
#include <stdlib.h>

#include "os/memory.h"

static const uint8_t HEADER[] = {0x08, 0x62, 0x00, 0x1c, 0xff, 0x18, 0x80, 0x00};

enum {
    LENGTH_AT = sizeof HEADER,
    NUMBER_AT = LENGTH_AT + 4,
    TAG_AT = NUMBER_AT + 4,
    PURPOSE_BYTES_MAX = 1024,
};

/* One direction of a connection. */
typedef struct direction {
    um_gmac gmac;
    uint64_t next; /* number of the next record */
} direction;

struct um_stream_tags {
    direction sent;
    direction received;
};

static bool open_direction(direction *opened, const um_key *key, bool from_server, const char *connection,
                           uint32_t length)
{
    static const char LABEL[] = "umstack request";
    uint8_t purpose[PURPOSE_BYTES_MAX], derived[UM_DERIVED_KEY_BYTES];
    uint32_t label_bytes = sizeof LABEL - 1;
    if (length > PURPOSE_BYTES_MAX - label_bytes - 1)
        return false;
    memcpy(purpose, LABEL, label_bytes);
    purpose[label_bytes] = from_server;
    memcpy(purpose + label_bytes + 1, connection, length);
    bool open =
        um_key_derive(key, purpose, label_bytes + 1 + length, derived) && um_gmac_open(&opened->gmac, derived) == 0;
    OPENSSL_cleanse(derived, sizeof derived);
    return open;
}

um_stream_tags *um_stream_tags_open(const um_key *key, bool is_server, const char *connection, uint32_t length)
{
    um_stream_tags *tags = um_allocate(sizeof *tags);
    if (tags == NULL)
        return NULL;
    if (open_direction(&tags->sent, key, is_server, connection, length) &&
        open_direction(&tags->received, key, !is_server, connection, length))
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

/* The tag covers the header up to it and the messages behind it: both pieces in one, the tag's place left out. */
static bool make_tag(direction *of, const uint8_t *record, uint32_t length, uint8_t *tag)
{
    uint8_t nonce[UM_GMAC_NONCE_BYTES] = {0};
    memcpy(nonce, record + NUMBER_AT, 4);
    const um_gmac_piece pieces[] = {{record, TAG_AT}, {record + UM_RECORD_HEADER_BYTES, length}};
    return um_gmac_tag_pieces(&of->gmac, nonce, pieces, 2, tag);
}

int um_stream_tags_seal(um_stream_tags *tags, char *record, uint32_t length)
{
    uint8_t *header = (uint8_t *)record;
    if (tags->sent.next > UINT32_MAX)
        return -EOVERFLOW;
    memcpy(header, HEADER, sizeof HEADER);
    um_store_be32(header + LENGTH_AT, length);
    um_store_be32(header + NUMBER_AT, (uint32_t)tags->sent.next);
    tags->sent.next++;
    return make_tag(&tags->sent, header, length, header + TAG_AT) ? 0 : -EIO;
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

int um_stream_tags_verify(um_stream_tags *tags, const char *record)
{
    const uint8_t *header = (const uint8_t *)record;
    uint8_t tag[UM_TAG_BYTES];
    uint32_t length = um_load_be32(header + LENGTH_AT);
    if (!make_tag(&tags->received, header, length, tag) || CRYPTO_memcmp(tag, header + TAG_AT, UM_TAG_BYTES) != 0)
        return UM_TAG_WRONG;
    if (um_load_be32(header + NUMBER_AT) != tags->received.next)
        return UM_TAG_REPLAYED;
    tags->received.next++;
    return UM_TAG_OK;
}

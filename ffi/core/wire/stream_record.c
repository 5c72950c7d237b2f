#include "core/wire/stream_record.h"

#include "core/wire/lbmc.h"

enum {
    OPTION_BYTES = UM_RECORD_HEADER_BYTES - UM_LBMC_CONTROL_BYTES,
    FLAG_IGNORE = 0x80,
    HEAD_BYTES = 7,
    KIND_AT = HEAD_BYTES,
    KEY_AT = HEAD_BYTES,
    LENGTH_AT = 8,
    NUMBER_AT = 12,
    SUBJECT_AT = 12,
    GREETED_KEY_AT = 16,
    NONCE_AT = 17,
    ENCRYPTED = 0x80, /* in the kind */
};

static const uint8_t HEAD[HEAD_BYTES] = {UM_LBMC_CONTROL,     UM_LBMC_OPTION_HMAC, 0,          UM_RECORD_HEADER_BYTES,
                                         UM_LBMC_OPTION_NONE, OPTION_BYTES,        FLAG_IGNORE};

void um_stream_greeting_put(uint8_t *out, const um_stream_greeting *greeting, const uint8_t *nonce)
{
    memcpy(out, HEAD, HEAD_BYTES);
    out[KIND_AT] = (uint8_t)((uint8_t)greeting->kind | (greeting->is_encrypted ? ENCRYPTED : 0));
    um_store_be32(out + LENGTH_AT, 0);
    um_store_be32(out + SUBJECT_AT, greeting->subject);
    out[GREETED_KEY_AT] = greeting->key_id;
    memcpy(out + NONCE_AT, nonce, UM_GREETING_NONCE_BYTES);
}

bool um_stream_greeting_read(const uint8_t *data, um_stream_greeting *greeting)
{
    uint8_t kind = data[KIND_AT] & (uint8_t)~ENCRYPTED;
    if (memcmp(data, HEAD, HEAD_BYTES) != 0 || kind >= UM_STREAM_KINDS || um_load_be32(data + LENGTH_AT) != 0)
        return false;
    *greeting = (um_stream_greeting){(enum um_stream_kind)kind, um_load_be32(data + SUBJECT_AT), data[GREETED_KEY_AT],
                                     (data[KIND_AT] & ENCRYPTED) != 0};
    return true;
}

void um_stream_record_write(uint8_t *out, uint8_t key_id, uint32_t messages_bytes, uint32_t number)
{
    memcpy(out, HEAD, HEAD_BYTES);
    out[KEY_AT] = key_id;
    um_store_be32(out + LENGTH_AT, messages_bytes);
    um_store_be32(out + NUMBER_AT, number);
}

um_stream_record um_stream_record_read(const uint8_t *data)
{
    return (um_stream_record){data[KEY_AT], um_load_be32(data + LENGTH_AT), um_load_be32(data + NUMBER_AT),
                              data + UM_RECORD_COVERED_BYTES};
}

int64_t um_stream_record_bytes(const uint8_t *received, uint32_t length)
{
    if (memcmp(received, HEAD, length < HEAD_BYTES ? length : HEAD_BYTES) != 0)
        return -EBADMSG;
    if (length < UM_RECORD_HEADER_BYTES)
        return -EAGAIN;
    uint32_t messages_bytes = um_load_be32(received + LENGTH_AT);
    if (messages_bytes > UM_RECORD_BYTES_MAX)
        return -EBADMSG;
    return messages_bytes == 0 ? 0 : (int64_t)UM_RECORD_HEADER_BYTES + messages_bytes;
}

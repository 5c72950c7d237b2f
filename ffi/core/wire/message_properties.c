#include "core/wire/message_properties.h"

enum { COUNT_AT = 4, VALUE_OFFSET_AT = 4, TYPE_AT = 12 };

static uint32_t load32(const uint8_t *data, bool is_little)
{
    uint32_t value = um_load_be32(data);
    return is_little ? __builtin_bswap32(value) : value;
}

/* The names and values of a block, behind the table of its properties. */
typedef struct values {
    const uint8_t *block;
    uint32_t start;
    uint32_t end;
    uint32_t left_bytes; /* not taken by a name or a value yet: overlapping ones take more than there are */
} values;

static bool take(values *values, uint32_t offset, uint32_t bytes)
{
    if (offset < values->start || offset >= values->end || bytes > values->end - offset || bytes > values->left_bytes)
        return false;
    values->left_bytes -= bytes;
    return true;
}

/* Takes the text at `offset` and its NUL; returns its length without it, or -1. It reads no more than it takes. */
static int64_t take_text(values *values, uint32_t offset)
{
    if (!take(values, offset, 1))
        return -1;
    uint32_t most = values->end - offset <= values->left_bytes ? values->end - offset : values->left_bytes + 1;
    const uint8_t *end = memchr(values->block + offset, 0, most);
    if (end == NULL)
        return -1;
    uint32_t length = (uint32_t)(end - (values->block + offset));
    values->left_bytes -= length;
    return length;
}

static bool take_value(values *values, uint32_t offset, uint32_t type)
{
    static const uint8_t size_of[] = {
        [UM_PROPERTY_BOOLEAN] = 1, [UM_PROPERTY_BYTE] = 1,  [UM_PROPERTY_SHORT] = 2,  [UM_PROPERTY_INT] = 4,
        [UM_PROPERTY_LONG] = 8,    [UM_PROPERTY_FLOAT] = 4, [UM_PROPERTY_DOUBLE] = 8,
    };
    if (type == UM_PROPERTY_STRING)
        return take_text(values, offset) >= 0;
    uint32_t size = type < sizeof size_of ? size_of[type] : 0;
    return size == 0 || take(values, offset, size);
}

bool um_message_properties_is_sound(const uint8_t *block, uint32_t bytes)
{
    if (bytes < UM_PROPERTIES_HEAD_BYTES || bytes > UM_PROPERTIES_BYTES_MAX)
        return false;
    bool is_little = um_load_be32(block) != UM_PROPERTIES_MAGIC;
    if (load32(block, is_little) != UM_PROPERTIES_MAGIC)
        return false;
    uint32_t count = um_load_be16(block + COUNT_AT);
    if (is_little)
        count = __builtin_bswap16((uint16_t)count);
    if (count > (bytes - UM_PROPERTIES_HEAD_BYTES) / UM_PROPERTY_BYTES)
        return false;
    uint32_t start = UM_PROPERTIES_HEAD_BYTES + UM_PROPERTY_BYTES * count;
    values values = {block, start, bytes, bytes - start};
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *property = block + UM_PROPERTIES_HEAD_BYTES + (size_t)UM_PROPERTY_BYTES * i;
        int64_t name_length = take_text(&values, load32(property, is_little));
        if (name_length < 1 || name_length > UM_PROPERTY_NAME_BYTES_MAX ||
            !take_value(&values, load32(property + VALUE_OFFSET_AT, is_little), load32(property + TYPE_AT, is_little)))
            return false;
    }
    return true;
}

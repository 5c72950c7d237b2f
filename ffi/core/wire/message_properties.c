#include "core/wire/message_properties.h"

enum { COUNT_AT = 4, VALUE_OFFSET_AT = 4, TYPE_AT = 12 };

static uint32_t load32(const uint8_t *data, bool is_little)
{
    uint32_t value = um_load_be32(data);
    return is_little ? __builtin_bswap32(value) : value;
}

/* Length of the NUL-terminated text at `offset`; -1: no NUL in the block. */
static int64_t text_length(const uint8_t *block, uint32_t bytes, uint32_t offset)
{
    if (offset >= bytes)
        return -1;
    const uint8_t *end = memchr(block + offset, 0, bytes - offset);
    return end == NULL ? -1 : end - (block + offset);
}

static bool is_value_inside(const uint8_t *block, uint32_t bytes, uint32_t offset, uint32_t type)
{
    static const uint8_t size_of[] = {
        [UM_PROPERTY_BOOLEAN] = 1, [UM_PROPERTY_BYTE] = 1,  [UM_PROPERTY_SHORT] = 2,  [UM_PROPERTY_INT] = 4,
        [UM_PROPERTY_LONG] = 8,    [UM_PROPERTY_FLOAT] = 4, [UM_PROPERTY_DOUBLE] = 8,
    };
    if (type == UM_PROPERTY_STRING)
        return text_length(block, bytes, offset) >= 0;
    uint32_t size = type < sizeof size_of ? size_of[type] : 0;
    return size == 0 || (offset < bytes && size <= bytes - offset);
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
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *property = block + UM_PROPERTIES_HEAD_BYTES + (size_t)UM_PROPERTY_BYTES * i;
        int64_t name_length = text_length(block, bytes, load32(property, is_little));
        if (name_length < 1 || name_length > UM_PROPERTY_NAME_BYTES_MAX ||
            !is_value_inside(block, bytes, load32(property + VALUE_OFFSET_AT, is_little),
                             load32(property + TYPE_AT, is_little)))
            return false;
    }
    return true;
}

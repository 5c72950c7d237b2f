/* Message properties: names with typed values that accompany a message's payload. They are the last bytes of the whole
 * message's payload; an element of its chain option (core/wire/lbmc.h) carries their length. Values are read and
 * written above the core, which delivers only blocks that it has checked.
 *
 *   head (8):      magic 4 | number of properties 2 | version and type 1 | 0 1
 *   each (16):     offset of the name 4 | offset of the value 4 | hash 4 | type 4
 *   then:          names and strings, each with a NUL, and the other values
 *
 * Offsets count from the start of the head. The byte order of the magic is that of the whole block.
 *
 * Source: Wireshark's dissector. Threads: any. Memory: none. Errors: false. Complexity: linear in the block's bytes.
 */
#ifndef UM_CORE_MESSAGE_PROPERTIES_H
#define UM_CORE_MESSAGE_PROPERTIES_H

#include "core/foundation/base.h"

enum {
    UM_PROPERTIES_MAGIC = 0xabacdaba,
    UM_PROPERTIES_HEAD_BYTES = 8,
    UM_PROPERTY_BYTES = 16, /* without its name and its value */
    UM_PROPERTY_NAME_BYTES_MAX = 250,
    UM_PROPERTIES_BYTES_MAX = 65535, /* whole block */
};

enum um_property_type {
    UM_PROPERTY_BOOLEAN = 1,
    UM_PROPERTY_BYTE = 2,
    UM_PROPERTY_SHORT = 3,
    UM_PROPERTY_INT = 4,
    UM_PROPERTY_LONG = 5,
    UM_PROPERTY_FLOAT = 6,
    UM_PROPERTY_DOUBLE = 7,
    UM_PROPERTY_STRING = 8,
};

/* Returns true if a block can be read: it is within the bound, its properties, their names and values are inside it,
 * names and strings end inside it, and names and values together are no longer than the space behind the table, so that
 * overlaps cannot make a small block into much text. Values of unknown types are not checked, and a name may occur
 * twice. */
bool um_message_properties_is_sound(const uint8_t *block, uint32_t bytes);

#endif

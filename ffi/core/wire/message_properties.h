/* Message properties: names with typed values beside a message's payload. They are the last bytes of the whole
 * message's payload; an element of its chain option (core/wire/lbmc.h) says how many. Values are read and written above
 * the core, which delivers no block that it has not checked.
 *
 *   head (8):      magic 4 | number of properties 2 | version and type 1 | 0 1
 *   each (16):     offset of the name 4 | offset of the value 4 | hash 4 | type 4
 *   then:          names and strings, each with a NUL, and the other values as they are
 *
 * Offsets count from the head. The magic is in the byte order of everything in the block.
 *
 * Source: Wireshark's dissector. Threads: any. Memory: none. Errors: false. Complexity: linear in the properties and in
 * the bytes of their names and strings.
 */
#ifndef UM_CORE_MESSAGE_PROPERTIES_H
#define UM_CORE_MESSAGE_PROPERTIES_H

#include "core/foundation/base.h"

enum {
    UM_PROPERTIES_MAGIC = 0xabacdaba,
    UM_PROPERTIES_HEAD_BYTES = 8,
    UM_PROPERTY_BYTES = 16, /* beside its name and its value */
    UM_PROPERTY_NAME_BYTES_MAX = 250,
    UM_PROPERTIES_BYTES_MAX = 65535, /* of a block */
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

/* Whether a block can be read: it is within the bound, its properties, their names and their values lie in it, and
 * names and strings end in it. The value of a type that is none of ours is not looked at, and a name may come twice. */
bool um_message_properties_is_sound(const uint8_t *block, uint32_t bytes);

#endif

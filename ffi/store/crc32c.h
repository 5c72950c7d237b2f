/* CRC-32C (Castagnoli), the checksum of the Store's records: by the processor's instruction if it has one, otherwise by
 * a table. Any thread. Cannot fail.
 */
#ifndef UM_STORE_CRC32C_H
#define UM_STORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues a checksum over more bytes; a new one starts from 0. */
uint32_t um_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif

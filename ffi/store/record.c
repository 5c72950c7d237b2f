#include "store/record.h"

#include "store/crc32c.h"

uint32_t um_store_salt(uint64_t store_id)
{
    return um_crc32c(0, &store_id, sizeof store_id);
}

uint32_t um_store_record_checksum(const um_store_record *record, uint32_t salt, uint64_t position)
{
    uint32_t crc = um_crc32c(salt, &position, sizeof position);
    return um_crc32c(crc, (const uint8_t *)record + sizeof record->checksum,
                     UM_STORE_RECORD_HEADER_BYTES - sizeof record->checksum + um_store_record_message_bytes(record));
}

uint64_t um_store_record_sqn_count(const um_store_record *record)
{
    if (!(um_store_record_flags(record) & UM_STORE_RECORD_LOST))
        return 1;
    uint64_t count = 0;
    if (um_store_record_message_bytes(record) == sizeof count)
        memcpy(&count, record + 1, sizeof count);
    return count > UINT32_MAX ? 0 : count;
}

bool um_store_record_is_valid(const uint8_t *data, uint64_t bytes, uint32_t salt, uint64_t position)
{
    if (bytes < UM_STORE_RECORD_HEADER_BYTES)
        return false;
    const um_store_record *record = (const void *)data;
    uint32_t message_bytes = um_store_record_message_bytes(record);
    return message_bytes <= UM_STORE_MESSAGE_BYTES_MAX && record->source < UM_STORE_SOURCES_MAX &&
           um_store_record_flags(record) <= (UM_STORE_RECORD_ENDS_COMMIT | UM_STORE_RECORD_LOST) &&
           um_store_record_bytes(message_bytes) <= bytes && um_store_record_sqn_count(record) != 0 &&
           record->checksum == um_store_record_checksum(record, salt, position);
}

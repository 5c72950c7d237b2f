#include "store/segment.h"

#include "store/crc32c.h"
#include "store/record.h"

static const uint8_t HEADER_MAGIC[8] = {'U', 'M', 'S', 'T', 'O', 'R', 'E', '\n'};
static const uint8_t TRAILER_MAGIC[8] = {'U', 'M', 'F', 'O', 'O', 'T', 'E', 'R'};

void um_store_segment_header_finish(um_store_segment_header *header)
{
    memcpy(header->magic, HEADER_MAGIC, sizeof header->magic);
    header->version = UM_STORE_FORMAT_VERSION;
    header->checksum = um_crc32c(0, header, offsetof(um_store_segment_header, checksum));
}

void um_store_trailer_finish(um_store_trailer *trailer)
{
    memcpy(trailer->magic, TRAILER_MAGIC, sizeof trailer->magic);
    trailer->checksum = um_crc32c(0, trailer, offsetof(um_store_trailer, checksum));
}

int um_store_segment_header_check(const um_store_segment_header *header)
{
    if (memcmp(header->magic, HEADER_MAGIC, sizeof header->magic) != 0 ||
        header->checksum != um_crc32c(0, header, offsetof(um_store_segment_header, checksum)))
        return -EBADMSG;
    return header->version == UM_STORE_FORMAT_VERSION ? 0 : -EPROTONOSUPPORT;
}

int um_store_trailer_check(const um_store_trailer *trailer)
{
    return memcmp(trailer->magic, TRAILER_MAGIC, sizeof trailer->magic) == 0 &&
                   trailer->checksum == um_crc32c(0, trailer, offsetof(um_store_trailer, checksum))
               ? 0
               : -EBADMSG;
}

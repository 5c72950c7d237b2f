#include "authentication/resolution.h"

#include <stdlib.h>

#include "authentication/verifiers.h"
#include "os/clock.h"
#include "os/memory.h"

struct um_resolution_tags {
    um_mac mac;
    um_address local;
    uint64_t stamp;
    um_senders_verifier verifier;
};

um_resolution_tags *um_resolution_tags_open(const um_key_set *keys, int64_t tolerance_ns, um_address local,
                                            uint64_t random)
{
    um_resolution_tags *tags = um_allocate(sizeof *tags);
    if (tags == NULL)
        return NULL;
    tags->local = local;
    tags->stamp = random & (((uint64_t)1 << UM_STAMP_COUNT_BITS) - 1);
    bool open = um_mac_open(&tags->mac, UM_MAC_RESOLUTION, &keys->keys[0], NULL) == 0;
    if (open && um_senders_verifier_open(&tags->verifier, keys, UM_MAC_RESOLUTION, tolerance_ns) == 0)
        return tags;
    um_mac_close(&tags->mac);
    free(tags);
    return NULL;
}

void um_resolution_tags_close(um_resolution_tags *tags)
{
    um_mac_close(&tags->mac);
    um_senders_verifier_close(&tags->verifier);
    free(tags);
}

int um_resolution_tags_set_keys(um_resolution_tags *tags, const um_key_set *keys)
{
    um_mac mac;
    int result = um_mac_open(&mac, UM_MAC_RESOLUTION, &keys->keys[0], NULL);
    if (result != 0)
        return result;
    result = um_senders_verifier_set_keys(&tags->verifier, keys);
    um_mac_close(result == 0 ? &tags->mac : &mac);
    if (result == 0)
        tags->mac = mac;
    return result;
}

int um_resolution_tags_append(um_resolution_tags *tags, char *data, uint32_t length)
{
    uint8_t *covered = (uint8_t *)data;
    uint32_t covered_bytes = length + UM_TRAILER_COVERED_BYTES;
    tags->stamp = um_stamp_follow(tags->stamp, um_clock_wall_ns());
    um_trailer_write(covered + length, tags->mac.key_id, tags->stamp);
    return um_mac_tag(&tags->mac, tags->local, covered, covered_bytes, covered + covered_bytes) ? 0 : -EIO;
}

int um_resolution_tags_verify(um_resolution_tags *tags, um_address from, const char *data, uint32_t length)
{
    um_verifier *verifier = &tags->verifier.base;
    return (int)verifier->verify(verifier, from, (const uint8_t *)data, &length, um_clock_wall_ns());
}

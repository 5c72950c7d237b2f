/* SipHash-2-4 (Aumasson and Bernstein 2012): a hash that cannot be predicted without the key. A source derives the ids
 * of its clients from it, and tables keyed by values from the network are indexed by it. No state, any thread.
 */
#ifndef UM_CORE_SIPHASH_H
#define UM_CORE_SIPHASH_H

#include "core/foundation/base.h"

typedef struct um_siphash_key {
    uint64_t k0, k1;
} um_siphash_key;

static inline uint64_t um_siphash_turn(uint64_t v, uint32_t bits)
{
    return v << bits | v >> (64 - bits);
}

static inline void um_siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = um_siphash_turn(v[1], 13) ^ v[0];
    v[3] = um_siphash_turn(v[3], 16) ^ v[2];
    v[0] = um_siphash_turn(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = um_siphash_turn(v[1], 17) ^ v[2];
    v[3] = um_siphash_turn(v[3], 21) ^ v[0];
    v[2] = um_siphash_turn(v[2], 32);
}

static inline uint64_t um_siphash_bytes(um_siphash_key key, const uint8_t *data, size_t bytes)
{
    uint64_t v[4] = {key.k0 ^ 0x736f6d6570736575u, key.k1 ^ 0x646f72616e646f6du, key.k0 ^ 0x6c7967656e657261u,
                     key.k1 ^ 0x7465646279746573u};
    uint64_t last = (uint64_t)bytes << 56;
    for (bool is_last = false; !is_last;) {
        uint64_t word = 0;
        is_last = bytes < sizeof word;
        memcpy(&word, data, is_last ? bytes : sizeof word);
        word |= is_last ? last : 0;
        v[3] ^= word;
        um_siphash_round(v);
        um_siphash_round(v);
        v[0] ^= word;
        data += is_last ? 0 : sizeof word;
        bytes -= is_last ? 0 : sizeof word;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        um_siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The hash of the eight octets of `word`, the least significant first. */
static inline uint64_t um_siphash(um_siphash_key key, uint64_t word)
{
    return um_siphash_bytes(key, (const uint8_t *)&word, sizeof word);
}

#endif

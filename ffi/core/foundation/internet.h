/* Offsets of the fields of Ethernet, IPv4, IPv6 and UDP headers, and the Internet checksum (RFC 1071), alone or
 * combined with a copy.
 *
 * A sum is the unfolded one's complement sum of the octets in memory order: words are not byte-swapped, and a folded
 * sum is stored unchanged. Sums of parts can be added if every part but the last has an even length; for a part that
 * starts at an odd offset, um_internet_sum_at adjusts the sum. No state, any thread; memory is the caller's.
 */
#ifndef UM_CORE_INTERNET_H
#define UM_CORE_INTERNET_H

#include "core/foundation/base.h"

enum {
    UM_MAC_BYTES = 6,
    UM_ETHERTYPE_AT = 12,
    UM_ETHERNET_HEADER_BYTES = 14,
    UM_VLAN_TAG_BYTES = 4,
    UM_ETHERTYPE_IPV4 = 0x0800,
    UM_ETHERTYPE_VLAN = 0x8100,
    UM_ETHERTYPE_IPV6 = 0x86dd,
    UM_ETHERTYPE_SERVICE_VLAN = 0x88a8,

    UM_IPV4_HEADER_BYTES = 20, /* without options */
    UM_IPV4_VERSION_AND_LENGTH = 0x45,
    UM_IPV4_TRAFFIC_CLASS_AT = 1,
    UM_IPV4_LENGTH_AT = 2,
    UM_IPV4_IDENTIFICATION_AT = 4,
    UM_IPV4_FRAGMENT_AT = 6,
    UM_IPV4_TTL_AT = 8,
    UM_IPV4_PROTOCOL_AT = 9,
    UM_IPV4_CHECKSUM_AT = 10,
    UM_IPV4_FROM_AT = 12,
    UM_IPV4_TO_AT = 16,
    UM_IPV4_DONT_FRAGMENT = 0x4000,
    UM_IPV4_FRAGMENT_MASK = 0x3fff, /* more-fragments and the offset */
    UM_IPV4_OFFSET_MASK = 0x1fff,
    UM_PROTOCOL_UDP = 17,

    UM_IPV6_HEADER_BYTES = 40, /* without extension headers */
    UM_IPV6_VERSION = 0x60,
    UM_IPV6_LENGTH_AT = 4,
    UM_IPV6_PROTOCOL_AT = 6,
    UM_IPV6_HOPS_AT = 7,
    UM_IPV6_FROM_AT = 8,
    UM_IPV6_TO_AT = 24,

    UM_UDP_HEADER_BYTES = 8,
    UM_UDP_TO_AT = 2,
    UM_UDP_LENGTH_AT = 4,
    UM_UDP_CHECKSUM_AT = 6,
    UM_IPV4_UDP_HEADER_BYTES = UM_IPV4_HEADER_BYTES + UM_UDP_HEADER_BYTES,
    UM_IPV6_UDP_HEADER_BYTES = UM_IPV6_HEADER_BYTES + UM_UDP_HEADER_BYTES,
};

static inline uint64_t um_internet_add(uint64_t sum, uint64_t word)
{
    sum += word;
    return sum + (sum < word);
}

/* Sums fewer than eight octets. It avoids one wide load: a load that overlaps recent smaller stores stalls until they
 * have reached the cache. */
static inline uint64_t um_internet_tail(const uint8_t *data, uint32_t length)
{
    uint32_t four = 0;
    uint16_t two = 0, one = 0;
    if (length & 4) {
        memcpy(&four, data, sizeof four);
        data += sizeof four;
    }
    if (length & 2) {
        memcpy(&two, data, sizeof two);
        data += sizeof two;
    }
    if (length & 1)
        memcpy(&one, data, 1);
    return (uint64_t)four + two + one;
}

/* A sum of many words. The high halves of the 64-bit words are summed separately, so that no lane needs a carry and the
 * vectors of any processor can be used: `all` wraps, but `all` minus `high` << 32 is the sum of the low halves. */
typedef uint64_t um_internet_vector __attribute__((vector_size(16)));

typedef struct um_internet_lanes {
    um_internet_vector all, other_all, high, other_high;
} um_internet_lanes;

static inline um_internet_vector um_internet_load(const uint8_t *data)
{
    um_internet_vector words;
    memcpy(&words, data, sizeof words);
    return words;
}

static inline void um_internet_lanes_add(um_internet_lanes *lanes, um_internet_vector words,
                                         um_internet_vector other_words)
{
    lanes->all += words;
    lanes->other_all += other_words;
    lanes->high += words >> 32;
    lanes->other_high += other_words >> 32;
}

static inline uint64_t um_internet_lanes_total(const um_internet_lanes *lanes)
{
    um_internet_vector all = lanes->all + lanes->other_all, high = lanes->high + lanes->other_high;
    all += high - (high << 32);
    return um_internet_add(all[0], all[1]);
}

/* Adds the octets to a sum; copies them unless `to` is NULL. */
static inline uint64_t um_internet_run(uint8_t *to, const uint8_t *data, uint32_t length, uint64_t sum)
{
    um_internet_lanes lanes = {0};
    enum { WORDS_BYTES = sizeof(um_internet_vector) };
    for (; length >= 2 * WORDS_BYTES; data += 2 * WORDS_BYTES, length -= 2 * WORDS_BYTES) {
        um_internet_vector words = um_internet_load(data), other_words = um_internet_load(data + WORDS_BYTES);
        if (to != NULL) {
            memcpy(to, &words, WORDS_BYTES);
            memcpy(to + WORDS_BYTES, &other_words, WORDS_BYTES);
            to += 2 * WORDS_BYTES;
        }
        um_internet_lanes_add(&lanes, words, other_words);
    }
    sum = um_internet_add(sum, um_internet_lanes_total(&lanes));
    if (to != NULL)
        memcpy(to, data, length);
    uint64_t word = 0;
    for (; length >= sizeof word; data += sizeof word, length -= (uint32_t)sizeof word) {
        memcpy(&word, data, sizeof word);
        sum = um_internet_add(sum, word);
    }
    return um_internet_add(sum, um_internet_tail(data, length));
}

/* Adds the octets to a sum. */
static inline uint64_t um_internet_sum(const uint8_t *data, uint32_t length, uint64_t sum)
{
    return um_internet_run(NULL, data, length, sum);
}

/* The same; also copies the octets. */
static inline uint64_t um_internet_copy(uint8_t *to, const uint8_t *data, uint32_t length, uint64_t sum)
{
    return um_internet_run(to, data, length, sum);
}

/* The sum of a part that starts `offset` octets into the whole: an odd offset swaps the octets of each word. */
static inline uint64_t um_internet_sum_at(uint64_t sum, uint32_t offset)
{
    return offset % 2 == 0 ? sum : sum << 8 | sum >> 56;
}

static inline uint16_t um_internet_fold(uint64_t sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* The checksum to store in a header: with it the whole sums up to all ones. */
static inline uint16_t um_internet_checksum(uint64_t sum)
{
    return (uint16_t)~um_internet_fold(sum);
}

/* The same for UDP, where 0 means that there is no checksum (RFC 768). */
static inline uint16_t um_internet_udp_checksum(uint64_t sum)
{
    uint16_t checksum = um_internet_checksum(sum);
    return checksum == 0 ? UINT16_MAX : checksum;
}

/* A 16-bit field in memory order. */
static inline uint16_t um_internet_word(uint16_t v)
{
    return __builtin_bswap16(v);
}

/* The sum of the pseudo header of UDP over IPv4 (RFC 768): both addresses, the protocol, the length. */
static inline uint64_t um_internet_pseudo_sum(const uint8_t *ip, uint32_t udp_bytes)
{
    uint64_t sum = (uint64_t)um_internet_word(UM_PROTOCOL_UDP) + um_internet_word((uint16_t)udp_bytes);
    return um_internet_sum(ip + UM_IPV4_FROM_AT, 8, sum);
}

#endif

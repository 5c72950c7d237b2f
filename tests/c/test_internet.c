/* The Internet checksum against an octet-by-octet one. */
#include "core/foundation/internet.h"
#include "core/foundation/random.h"
#include "support.h"

enum { BYTES_MAX = 300 };

static uint16_t naive_sum(const uint8_t *data, uint32_t length)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < length; i++)
        sum += i % 2 == 0 ? (uint32_t)data[i] << 8 : data[i];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static void fill(um_random *random, uint8_t *data, uint32_t length)
{
    bool all_ones = um_random_below(random, 4) == 0; /* every addition carries */
    for (uint32_t i = 0; i < length; i++)
        data[i] = all_ones ? 0xff : (uint8_t)um_random_below(random, 256);
}

TEST("W6", "sums and copies any length at any alignment, and reads no octet beyond")
{
    um_random random = {check_seed()};
    for (uint32_t length = 0; length <= BYTES_MAX; length++) {
        uint32_t shift = length % 17;
        uint8_t *from = zeroed(um_align_up(shift + length + 1, UM_CACHE_LINE_BYTES));
        uint8_t *to = zeroed(um_align_up(length + 1, UM_CACHE_LINE_BYTES));
        fill(&random, from + shift, length);
        to[length] = 0x77;
        uint16_t expected = naive_sum(from + shift, length);
        CHECK_EQ(um_internet_word(um_internet_fold(um_internet_sum(from + shift, length, 0))), expected);
        CHECK_EQ(um_internet_word(um_internet_fold(um_internet_copy(to, from + shift, length, 0))), expected);
        CHECK_BYTES(to, from + shift, length);
        CHECK_EQ(to[length], 0x77);
        free(from);
        free(to);
    }
}

TEST("W6", "sums of parts of any length add up, also at odd offsets")
{
    um_random random = {check_seed()};
    uint8_t data[BYTES_MAX];
    for (int round = 0; round < 2000; round++) {
        uint32_t length = 1 + (uint32_t)um_random_below(&random, BYTES_MAX);
        fill(&random, data, length);
        uint64_t sum = 0;
        for (uint32_t at = 0, bytes; at < length; at += bytes) {
            bytes = 1 + (uint32_t)um_random_below(&random, length - at);
            sum = um_internet_add(sum, um_internet_sum_at(um_internet_sum(data + at, bytes, 0), at));
        }
        CHECK_EQ(um_internet_word(um_internet_fold(sum)), naive_sum(data, length));
    }
}

TEST("W6", "a UDP checksum is never 0")
{
    const uint8_t ones[] = {0xff, 0xff};
    CHECK_EQ(um_internet_checksum(um_internet_sum(ones, sizeof ones, 0)), 0);
    CHECK_EQ(um_internet_udp_checksum(um_internet_sum(ones, sizeof ones, 0)), 0xffff);
    CHECK_EQ(um_internet_udp_checksum(0), 0xffff);
}

CHECK_MAIN

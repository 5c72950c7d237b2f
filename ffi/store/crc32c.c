#include "store/crc32c.h"

#include <string.h>

/* The remainders of the 16 values of four bits, for the reversed polynomial 0x82f63b78. */
static const uint32_t NIBBLES[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t bytes)
{
    for (; bytes; bytes--) {
        crc ^= *data++;
        crc = crc >> 4 ^ NIBBLES[crc & 15];
        crc = crc >> 4 ^ NIBBLES[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t bytes)
{
    uint64_t wide = crc;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; bytes; bytes--)
        crc = _mm_crc32_u8(crc, *data++);
    return crc;
}

static int has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>

__attribute__((target("+crc"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; bytes; bytes--)
        crc = __crc32cb(crc, *data++);
    return crc;
}

static int has_instruction(void)
{
    return (getauxval(AT_HWCAP) & 1u << 7) != 0; /* HWCAP_CRC32 */
}
#else
static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t bytes)
{
    return by_table(crc, data, bytes);
}

static int has_instruction(void)
{
    return 0;
}
#endif

uint32_t um_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    crc = ~crc;
    return ~(has_instruction() ? by_instruction(crc, data, bytes) : by_table(crc, data, bytes));
}

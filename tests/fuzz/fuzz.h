/* Shared by the fuzzers: functions that read choices from the input, a condition that must hold, and a bound on the
 * time of one call. An input is a program: each byte, or a few, select an operation and its operands; behind the end of
 * the input all choices are 0.
 */
#ifndef UM_TESTS_FUZZ_H
#define UM_TESTS_FUZZ_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/foundation/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
} fuzz_input;

static inline uint8_t take_u8(fuzz_input *input)
{
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->at++;
}

static inline uint16_t take_u16(fuzz_input *input)
{
    uint8_t high = take_u8(input);
    return (uint16_t)(high << 8 | take_u8(input));
}

static inline uint32_t take_u32(fuzz_input *input)
{
    uint16_t high = take_u16(input);
    return (uint32_t)high << 16 | take_u16(input);
}

/* Reads a distance: mostly small, sometimes up to the largest. */
static inline uint32_t take_distance(fuzz_input *input)
{
    uint8_t choice = take_u8(input);
    if (choice < 200)
        return choice % 16;
    if (choice < 250)
        return take_u16(input);
    return take_u32(input);
}

/* Reads at most `most` bytes of the input unchanged. */
static inline fuzz_input take_bytes(fuzz_input *input, size_t most)
{
    fuzz_input bytes = {input->at, most < input->left ? most : input->left};
    input->at += bytes.left;
    input->left -= bytes.left;
    return bytes;
}

static inline void *fuzz_zeroed(size_t bytes)
{
    void *memory = aligned_alloc(UM_CACHE_LINE_BYTES, um_align_up(bytes, UM_CACHE_LINE_BYTES));
    REQUIRE(bytes > 0 && memory != NULL);
    return memset(memory, 0, bytes);
}

/* Maximum CPU time of this thread for one call of the core. Instrumented code is several times slower than the product,
 * where this stands for 50 ms. */
#define CALL_MAX_NS (INT64_C(300) * 1000000)

static inline int64_t thread_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#define BOUNDED(call)                                                                                                  \
    do {                                                                                                               \
        int64_t started_ns_ = thread_time_ns();                                                                        \
        call;                                                                                                          \
        REQUIRE(thread_time_ns() - started_ns_ < CALL_MAX_NS);                                                         \
    } while (0)

#endif

/* Definitions shared by every file of the core: result codes, serial arithmetic, big-endian access, arenas and the
 * small lock. The core is sans-I/O (W2): it makes no system call, reads no clock and allocates nothing. Time is an
 * int64_t count of nanoseconds from the caller; memory is passed once, at init, in the size that the object's footprint
 * function returns.
 */
#ifndef UM_CORE_BASE_H
#define UM_CORE_BASE_H

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define UM_CACHE_LINE_BYTES 64
#define UM_CACHE_ALIGNED _Alignas(UM_CACHE_LINE_BYTES)
#define UM_LIKELY(x) __builtin_expect(!!(x), 1)
#define UM_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* No deadline: later than any time a caller can pass. */
#define UM_NEVER_NS INT64_MAX

static inline int64_t um_earliest_ns(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* Clamps the value. If the ceiling is below the floor, the ceiling wins. */
static inline int64_t um_between_ns(int64_t value_ns, int64_t floor_ns, int64_t ceiling_ns)
{
    value_ns = value_ns < floor_ns ? floor_ns : value_ns;
    return value_ns < ceiling_ns ? value_ns : ceiling_ns;
}

#ifdef UM_DEBUG
#define um_debug_assert(x) assert(x)
#else
#define um_debug_assert(x) ((void)0)
#endif

/* Results of an attempt to publish (AE-14). The publisher handles them; they are not faults. Faults are negative errno
 * values, whose magnitudes are far smaller. */
enum um_publish_result {
    UM_NOT_CONNECTED = -1001,         /* flow control knows no receiver (AE-12) */
    UM_BACK_PRESSURED = -1002,        /* the publication limit is reached (AE-13) */
    UM_ADMIN_ACTION = -1003,          /* a term is being rotated: try again at once (AE-30) */
    UM_CLOSED = -1004,                /* the session is closed */
    UM_MAX_POSITION_EXCEEDED = -1005, /* the log has used up its position space */
    UM_RATE_LIMITED = -1006,          /* the data rate limiter is blocked (UX-1) */
};

/* Serial arithmetic on 32-bit sequence numbers (UX-22): the sign of the difference gives the order. */
static inline int32_t um_serial_diff(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b);
}
static inline bool um_serial_before(uint32_t a, uint32_t b)
{
    return um_serial_diff(a, b) < 0;
}

static inline uint16_t um_load_be16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap16(v);
}

static inline uint32_t um_load_be32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap32(v);
}

static inline uint64_t um_load_be64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap64(v);
}

static inline void um_store_be16(uint8_t *p, uint16_t v)
{
    v = __builtin_bswap16(v);
    memcpy(p, &v, sizeof v);
}

static inline void um_store_be32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, sizeof v);
}

static inline void um_store_be64(uint8_t *p, uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(p, &v, sizeof v);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "byte swaps assume a little-endian host");

static inline uint64_t um_align_up(uint64_t v, uint64_t power_of_two)
{
    return (v + power_of_two - 1) & ~(power_of_two - 1);
}

static inline bool um_is_power_of_two(uint64_t v)
{
    return v != 0 && (v & (v - 1)) == 0;
}

static inline uint64_t um_power_of_two_at_least(uint64_t v)
{
    return v <= 1 ? 1 : (uint64_t)1 << (64 - __builtin_clzll(v - 1));
}

/* Carves one block of memory into cache-aligned parts. With base NULL it only measures, so one function both lays an
 * object out and computes its footprint. */
typedef struct um_arena {
    uint8_t *base;
    size_t used_bytes;
} um_arena;

static inline void *um_arena_take(um_arena *arena, size_t bytes)
{
    void *part = arena->base ? arena->base + arena->used_bytes : NULL;
    arena->used_bytes += um_align_up(bytes, UM_CACHE_LINE_BYTES);
    return part;
}

/* A lock that is held for a few microseconds at most. Taking it is an acquire, releasing it a release operation.
 * Waiting for it is up to the caller's layer, which may yield. */
typedef struct um_lock {
    atomic_bool is_held;
} um_lock;

static inline bool um_lock_try(um_lock *lock)
{
    return !atomic_load_explicit(&lock->is_held, memory_order_relaxed) &&
           !atomic_exchange_explicit(&lock->is_held, true, memory_order_acquire);
}

static inline void um_lock_release(um_lock *lock)
{
    atomic_store_explicit(&lock->is_held, false, memory_order_release);
}

/* Prefetches all lines at once into the second-level cache; the first-level cache allows too few outstanding requests.
 */
static inline void um_prefetch(const uint8_t *data, uint32_t length)
{
    for (uint32_t at = 0; at < length; at += UM_CACHE_LINE_BYTES)
        __builtin_prefetch(data + at, 0, 2);
}

/* Counters have one writer at a time and many readers: a plain addition is enough. */
#define UM_COUNT(counter, n) ((counter) += (uint64_t)(n))

#endif

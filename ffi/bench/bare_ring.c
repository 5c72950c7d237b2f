#include "bench/bare_ring.h"

#include "os/clock.h"

enum { HEADER_BYTES = 4 * UM_CACHE_LINE_BYTES, MESSAGES_BETWEEN_CLOCKS = 256 };
static const uint64_t END = UINT64_MAX; /* the counter of the last message */

typedef struct bare_ring {
    uint32_t capacity;
    uint32_t message_bytes;
    UM_CACHE_ALIGNED _Atomic uint64_t head; /* messages written */
    uint64_t known_tail;                    /* producer only */
    UM_CACHE_ALIGNED _Atomic uint64_t tail; /* messages read */
    uint64_t known_head;                    /* consumer only */
} bare_ring;
_Static_assert(sizeof(bare_ring) <= HEADER_BYTES, "the header fits");

size_t um_bare_ring_bytes(uint32_t capacity, uint32_t message_bytes)
{
    return HEADER_BYTES + (size_t)capacity * message_bytes;
}

void um_bare_ring_init(void *memory, uint32_t capacity, uint32_t message_bytes)
{
    bare_ring *ring = memory;
    assert(um_is_power_of_two(capacity) && message_bytes >= sizeof(uint64_t));
    assert(message_bytes <= UM_BARE_RING_MESSAGE_BYTES_MAX);
    *ring = (bare_ring){.capacity = capacity, .message_bytes = message_bytes};
}

static uint8_t *slot(bare_ring *ring, uint64_t index)
{
    return (uint8_t *)ring + HEADER_BYTES + (size_t)(index & (ring->capacity - 1)) * ring->message_bytes;
}

static void push(bare_ring *ring, uint8_t *message, uint64_t counter)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    while (head - ring->known_tail == ring->capacity)
        ring->known_tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    memcpy(message, &counter, sizeof counter);
    memcpy(slot(ring, head), message, ring->message_bytes);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

static uint64_t pop(bare_ring *ring, uint8_t *message)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed), counter;
    while (tail == ring->known_head)
        ring->known_head = atomic_load_explicit(&ring->head, memory_order_acquire);
    memcpy(message, slot(ring, tail), ring->message_bytes);
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    memcpy(&counter, message, sizeof counter);
    return counter;
}

uint64_t um_bare_ring_send(void *memory, int64_t duration_ns, uint64_t message_count)
{
    uint8_t message[UM_BARE_RING_MESSAGE_BYTES_MAX] = {0};
    int64_t end_ns = um_clock_ns() + duration_ns;
    uint64_t sent = 0;
    while (sent < message_count && (sent % MESSAGES_BETWEEN_CLOCKS != 0 || um_clock_ns() < end_ns))
        push(memory, message, sent++);
    push(memory, message, END);
    return sent;
}

void um_bare_ring_receive(void *memory, um_bare_ring_result *result)
{
    uint8_t message[UM_BARE_RING_MESSAGE_BYTES_MAX];
    uint64_t counter = pop(memory, message);
    int64_t start_ns = um_clock_ns();
    *result = (um_bare_ring_result){0};
    for (; counter != END; counter = pop(memory, message))
        result->misplaced_count += counter != result->message_count++;
    result->elapsed_ns = um_clock_ns() - start_ns;
}

typedef struct client {
    void *requests;
    void *replies;
    uint8_t message[UM_BARE_RING_MESSAGE_BYTES_MAX];
} client;

static int round_trip(void *end, bool is_reaching, uint64_t counter, um_raw_ping_result *result)
{
    client *c = end;
    (void)is_reaching;
    push(c->requests, c->message, counter);
    result->stale_count += pop(c->replies, c->message) != counter;
    return 1;
}

int um_bare_ring_ping(void *requests, void *replies, uint64_t warmup_count, uint64_t sample_count, int64_t duration_ns,
                      uint64_t *samples_ns, um_raw_ping_result *result)
{
    client end = {.requests = requests, .replies = replies};
    um_raw_client raw = {.end = &end, .round_trip = round_trip};
    int status = um_raw_make_round_trips(&raw, warmup_count, sample_count, duration_ns, samples_ns, result);
    push(requests, end.message, END);
    return status;
}

void um_bare_ring_echo(void *requests, void *replies)
{
    uint8_t message[UM_BARE_RING_MESSAGE_BYTES_MAX];
    for (uint64_t counter = pop(requests, message); counter != END; counter = pop(requests, message))
        push(replies, message, counter);
}

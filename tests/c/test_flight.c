/* The messages of a persistent source in flight. */
#include <pthread.h>
#include <sched.h>

#include "io/flight.h"
#include "support.h"

enum { STORES = 3, QUORUM = 2, MODEL = 4096, PAGE_EDGE = 255 };

static const int32_t one_byte[] = {0, 1};

static int64_t send_one(um_flight *flight, int64_t now_ns)
{
    uint64_t sqn = um_flight_next_sqn(flight);
    int64_t taken = um_flight_reserve(flight, "x", one_byte, 1, 0, false, now_ns);
    if (taken > 0)
        um_flight_confirm(flight, sqn, sqn, now_ns);
    return taken;
}

static um_flight *opened(uint64_t first_sqn)
{
    um_flight *flight = um_flight_create(STORES, QUORUM);
    CHECK(flight);
    CHECK_EQ(send_one(flight, 0), 0); /* nothing is allowed before the limits are known */
    um_flight_begin(flight, first_sqn);
    um_flight_limit(flight, UINT64_MAX, UINT64_MAX);
    return flight;
}

TEST("UP-57", "a message is within both limits, or the only one in flight")
{
    um_flight *flight = opened(0);
    int32_t offsets[] = {0, 10, 30, 130};
    char data[130] = {0};
    um_flight_limit(flight, 2, 1000);
    CHECK_EQ(um_flight_reserve(flight, data, offsets, 3, 0, false, 0), 2);
    CHECK_EQ(um_flight_count(flight), 2);
    CHECK_EQ(um_flight_bytes(flight), 30 + 2 * UM_LBMC_HEADER_BYTES);
    CHECK(!um_flight_has_space(flight, 0, 0));
    CHECK_EQ(um_flight_reserve(flight, data, offsets + 2, 1, 0, true, 0), 1);
    um_flight_withdraw(flight, 0);
    CHECK_EQ(um_flight_count(flight), 0);
    CHECK_EQ(um_flight_next_sqn(flight), 0);
    um_flight_limit(flight, 5, 50);
    CHECK_EQ(um_flight_reserve(flight, data, offsets + 2, 1, 0, false, 0), 1); /* 112 bytes */
    CHECK_EQ(um_flight_reserve(flight, data, offsets, 1, 0, false, 0), 0);
    um_flight_free(flight);
}

/* Checks that the message that is due is this part of `data`, with properties of 6 bytes at the end of the whole. */
static void check_fragment(um_flight *flight, uint64_t sqn, const char *data, uint32_t offset, uint32_t bytes,
                           uint32_t total)
{
    um_flight_due due;
    um_lbmc_message message;
    uint32_t length;
    CHECK(um_flight_next_due(flight, sqn, -1, 0, 7, &due));
    CHECK_EQ(due.sqn, sqn);
    CHECK_EQ(um_lbmc_observe(due.message, due.message_bytes, due.message_bytes, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(length, due.message_bytes);
    CHECK_EQ(message.type, UM_LBMC_PROACTIVE);
    CHECK_EQ(message.flags, UM_MESSAGE_FRAGMENT | UM_MESSAGE_PROPERTIES);
    CHECK_EQ(message.sqn, (uint32_t)sqn);
    CHECK_EQ(message.first_sqn, (uint32_t)(sqn - offset / 10));
    CHECK(message.offset == offset && message.total == total && message.payload_length == bytes);
    CHECK_EQ(message.properties_bytes, 6);
    CHECK(memcmp(message.payload, data + offset, bytes) == 0);
}

TEST("UP-9", "a long message has a number for each fragment, and each is repeated by itself")
{
    um_flight *flight = opened(UINT32_MAX - 1); /* the numbers on the wire wrap inside the message */
    char data[25];
    for (uint32_t i = 0; i < sizeof data; i++)
        data[i] = (char)i;
    int32_t offsets[] = {0, sizeof data};
    um_flight_result results[1];
    uint64_t first = UINT32_MAX - 1, at = first + 1;
    um_flight_split(flight, 10);
    CHECK_EQ(um_flight_reserve(flight, data, offsets, 1, 6, false, 0), 1);
    CHECK_EQ(um_flight_next_sqn(flight), first + 3);
    CHECK_EQ(um_flight_count(flight), 3);
    um_flight_confirm(flight, first, first + 2, 0);
    for (uint32_t i = 0; i < 3; i++)
        check_fragment(flight, first + i, data, 10 * i, i < 2 ? 10 : 5, 25);
    CHECK_EQ(um_flight_note(flight, &at, first + 1, 3, false, 0, results, 1), 1);
    CHECK_EQ(um_flight_count(flight), 2);
    check_fragment(flight, first + 2, data, 20, 5, 25);
    um_flight_free(flight);
}

TEST("UP-57", "the limits hold for all fragments of a message together, with their headers")
{
    um_flight *flight = opened(0);
    char data[30] = {0};
    int32_t offsets[] = {0, 30};
    uint32_t overhead = UM_LBMC_HEADER_BYTES + UM_LBMC_FRAGMENT_BYTES;
    um_flight_split(flight, 10);
    um_flight_limit(flight, 3, UINT64_MAX);
    CHECK_EQ(send_one(flight, 0), 1);
    CHECK(!um_flight_has_space(flight, 30, 0));
    CHECK_EQ(um_flight_reserve(flight, data, offsets, 1, 0, false, 0), 0);
    CHECK_EQ(um_flight_next_sqn(flight), 1);
    um_flight_limit(flight, 4, UM_LBMC_HEADER_BYTES + 1 + 3 * overhead + 30);
    CHECK(um_flight_has_space(flight, 30, 0));
    CHECK(!um_flight_has_space(flight, 30, 1)); /* properties need an option in each fragment */
    CHECK_EQ(um_flight_reserve(flight, data, offsets, 1, 0, false, 0), 1);
    CHECK_EQ(um_flight_bytes(flight), UM_LBMC_HEADER_BYTES + 1 + 3 * overhead + 30);
    um_flight_withdraw(flight, 1);
    CHECK_EQ(um_flight_count(flight), 1);
    um_flight_free(flight);
}

TEST("UP-56", "offsets of messages ascend within the data, and the first longer message is found")
{
    CHECK_EQ(um_flight_check((int32_t[]){0, 3, 6}, 2, 6, 3), 2);
    CHECK_EQ(um_flight_check((int32_t[]){0, 3, 7, 8}, 3, 8, 3), 1);
    CHECK_EQ(um_flight_check((int32_t[]){0, 3, 6}, 2, 5, 3), -EINVAL);
    CHECK_EQ(um_flight_check((int32_t[]){-1, 3}, 1, 6, 9), -EINVAL);
    CHECK_EQ(um_flight_check((int32_t[]){0, 5, 3}, 2, 6, 9), -EINVAL);
    CHECK_EQ(um_flight_check((int32_t[]){0, 9, 3}, 2, 6, 9), -EINVAL);
}

TEST("UP-53", "sent messages are due after an interval, and expire")
{
    um_flight *flight = opened(7);
    um_flight_due due;
    CHECK_EQ(um_flight_reserve(flight, "x", one_byte, 1, 0, false, 5), 1);
    CHECK(!um_flight_next_due(flight, 0, 100, 100, 7, &due)); /* it is being sent */
    um_flight_confirm(flight, 7, 7, 10);
    CHECK(!um_flight_next_due(flight, 0, 9, 9, 7, &due));
    CHECK(um_flight_next_due(flight, 0, 9, 10, 7, &due));
    CHECK(due.sqn == 7 && !due.has_expired && !due.stores);
    CHECK_EQ(due.message_bytes, UM_LBMC_HEADER_BYTES + 1);
    CHECK(due.message[0] == UM_LBMC_PROACTIVE && due.message[UM_LBMC_HEADER_BYTES] == 'x');
    um_flight_repeated(flight, 7, 20);
    CHECK(!um_flight_next_due(flight, 0, 9, 19, 7, &due));
    CHECK(!um_flight_next_due(flight, 8, 9, 20, 7, &due));
    CHECK(um_flight_next_due(flight, 0, 10, 19, 7, &due));
    CHECK(due.has_expired);
    um_flight_remove(flight, 7);
    CHECK_EQ(um_flight_count(flight), 0);
    um_flight_free(flight);
}

TEST("UP-53", "a message is due while one of the given Stores misses it")
{
    um_flight *flight = opened(0);
    um_flight_due due;
    um_flight_result results[1];
    uint64_t at = 0;
    CHECK_EQ(send_one(flight, 0), 1);
    CHECK_EQ(um_flight_note(flight, &at, 0, 1, false, 0, results, 1), 0);
    CHECK(!um_flight_next_due(flight, 0, -1, 0, 0, &due));
    CHECK(!um_flight_next_due(flight, 0, -1, 0, 1, &due));
    CHECK(um_flight_next_due(flight, 0, -1, 0, 3, &due));
    CHECK_EQ(due.stores, 1);
    CHECK(um_flight_next_due(flight, 0, 0, 0, 0, &due)); /* it expires all the same */
    um_flight_free(flight);
}

TEST("UP-62", "messages at enough Stores stay until enough receivers have confirmed them")
{
    um_flight *flight = opened(0);
    um_flight_confirm_delivery(flight, 0);
    for (int i = 0; i < 4; i++)
        send_one(flight, 1);
    um_flight_result results[4];
    uint64_t at = 0;
    CHECK_EQ(um_flight_note(flight, &at, 2, 3, false, 0, results, 4), 0);
    um_flight_confirm_delivery(flight, 2);
    at = 0;
    CHECK_EQ(um_flight_note(flight, &at, 3, 0, false, 0, results, 4), 1);
    CHECK(results[0].first_sqn == 0 && results[0].last_sqn == 1 && results[0].is_stable);
    um_flight_confirm_delivery(flight, 4);
    at = 0;
    CHECK_EQ(um_flight_note(flight, &at, 3, 0, false, 0, results, 4), 1);
    CHECK_EQ(results[0].last_sqn, 2);
    CHECK_EQ(um_flight_count(flight), 1);
    um_flight_free(flight);
}

TEST("UP-55", "numbers are taken back, also of messages that a Store acknowledged before they were sent")
{
    um_flight *flight = opened(PAGE_EDGE);
    um_flight_result results[1];
    uint64_t at = PAGE_EDGE;
    CHECK_EQ(send_one(flight, 0), 1);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(um_flight_reserve(flight, "x", one_byte, 1, 0, false, 0), 1);
    CHECK_EQ(um_flight_note(flight, &at, PAGE_EDGE + 2, 3, false, 0, results, 1), 1);
    CHECK_EQ(results[0].last_sqn, PAGE_EDGE + 2);
    um_flight_withdraw(flight, PAGE_EDGE + 1);
    CHECK_EQ(um_flight_next_sqn(flight), PAGE_EDGE + 1);
    CHECK_EQ(um_flight_count(flight), 0);
    CHECK_EQ(send_one(flight, 0), 1);
    CHECK_EQ(um_flight_oldest_sqn(flight), PAGE_EDGE + 1);
    um_flight_free(flight);
}

TEST("UP-52", "after the end no message gets a number")
{
    um_flight *flight = opened(0);
    CHECK_EQ(send_one(flight, 0), 1);
    um_flight_end(flight);
    CHECK_EQ(um_flight_reserve(flight, "x", one_byte, 1, 0, false, 0), 0);
    CHECK_EQ(um_flight_reserve(flight, "x", one_byte, 1, 0, true, 0), 0);
    CHECK_EQ(um_flight_count(flight), 1);
    um_flight_free(flight);
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A model of the flight: for each number, whether it is in flight, and the Stores that have it or gave it up. */
typedef struct model {
    bool is_in_flight[MODEL];
    uint64_t acknowledged[MODEL];
    uint64_t lost[MODEL];
    uint64_t count;
} model;

/* Notes it in the model and compares the ranges that the flight returned. */
static void note_both(um_flight *flight, model *m, uint64_t first, uint64_t last, uint64_t store, bool is_lost,
                      uint64_t required)
{
    um_flight_result results[4];
    uint64_t at = first, expected = first;
    while (at <= last) {
        uint32_t count = um_flight_note(flight, &at, last, store, is_lost, required, results, 4);
        for (uint32_t i = 0; i < count; i++)
            for (uint64_t sqn = results[i].first_sqn; sqn <= results[i].last_sqn; sqn++, expected++) {
                for (; expected < sqn; expected++)
                    if (m->is_in_flight[expected])
                        *(is_lost ? &m->lost[expected] : &m->acknowledged[expected]) |= store;
                CHECK(m->is_in_flight[sqn]);
                *(is_lost ? &m->lost[sqn] : &m->acknowledged[sqn]) |= store;
                bool is_stable = __builtin_popcountll(m->acknowledged[sqn]) >= QUORUM &&
                                 (m->acknowledged[sqn] & required) == required;
                CHECK_EQ(results[i].is_stable, is_stable);
                CHECK(is_stable || __builtin_popcountll(m->lost[sqn]) > STORES - QUORUM);
                m->is_in_flight[sqn] = false;
                m->count--;
            }
    }
    for (; expected <= last; expected++)
        if (m->is_in_flight[expected])
            *(is_lost ? &m->lost[expected] : &m->acknowledged[expected]) |= store;
    for (uint64_t sqn = first; sqn <= last; sqn++) {
        bool is_stable =
            __builtin_popcountll(m->acknowledged[sqn]) >= QUORUM && (m->acknowledged[sqn] & required) == required;
        CHECK(!m->is_in_flight[sqn] || (!is_stable && __builtin_popcountll(m->lost[sqn]) <= STORES - QUORUM));
    }
}

TEST("UP-52", "random acknowledgements, in any order and with old messages that stay")
{
    uint64_t seed = check_seed();
    for (uint32_t round = 0; round < 50; round++) {
        um_flight *flight = opened(0);
        static model m;
        memset(&m, 0, sizeof m);
        uint64_t next = 0, oldest_kept = round % 2 ? 0 : UINT64_MAX; /* in every second round, number 0 stays */
        while (next < MODEL - 64) {
            uint32_t count = 1 + (uint32_t)(draw(&seed) % 40);
            for (uint32_t i = 0; i < count; i++, next++) {
                CHECK_EQ(send_one(flight, 0), 1);
                m.is_in_flight[next] = true;
                m.count++;
            }
            if (draw(&seed) % 4 == 0) { /* some that could not be sent */
                CHECK_EQ(um_flight_reserve(flight, "x", one_byte, 1, 0, false, 0), 1);
                um_flight_withdraw(flight, next);
            }
            for (uint32_t i = 0; i < 4; i++) {
                uint64_t reach = draw(&seed) % 300, first = reach > next ? 0 : next - reach;
                uint64_t last = first + draw(&seed) % (next - first + 1);
                last = last >= next ? next - 1 : last;
                first += first == oldest_kept;
                if (first <= last)
                    note_both(flight, &m, first, last, 1ULL << draw(&seed) % STORES, draw(&seed) % 10 == 0,
                              draw(&seed) % 4);
            }
            CHECK_EQ(um_flight_next_sqn(flight), next);
            CHECK_EQ(um_flight_count(flight), m.count);
            CHECK_EQ(um_flight_bytes(flight), m.count * (1 + UM_LBMC_HEADER_BYTES));
        }
        uint64_t sqn = 0, found = 0;
        for (uint64_t at = 0; um_flight_next(flight, at, &sqn); at = sqn + 1, found++)
            CHECK(m.is_in_flight[sqn]);
        CHECK_EQ(found, m.count);
        um_flight_free(flight);
    }
}

#ifdef UM_FEWER_ROUNDS
enum { ROUNDS = 20000 };
#else
enum { ROUNDS = 200000 };
#endif

static void *acknowledge(void *argument)
{
    um_flight *flight = argument;
    um_flight_result results[8];
    um_flight_due due;
    for (uint64_t stable = 0; stable < ROUNDS;) {
        uint64_t at = 0, end = um_flight_next_sqn(flight), left = 0;
        while (end && at < end) {
            uint32_t count = um_flight_note(flight, &at, end - 1, 3, false, 0, results, 8);
            for (uint32_t i = 0; i < count; i++)
                left += results[i].last_sqn - results[i].first_sqn + 1;
        }
        stable += left;
        CHECK(!um_flight_next_due(flight, 0, -1, -1, 7, &due));
    }
    return NULL;
}

static void *send_and_withdraw(void *argument)
{
    um_flight *flight = argument;
    um_flight_result results[1];
    for (uint64_t sqn = 0; sqn < ROUNDS; sqn++) {
        CHECK_EQ(um_flight_reserve(flight, "x", one_byte, 1, 0, false, 0), 1);
        um_flight_withdraw(flight, sqn);
        uint64_t at = sqn;
        CHECK_EQ(send_one(flight, 0), 1);
        CHECK_EQ(um_flight_note(flight, &at, sqn, 3, false, 0, results, 1), 1);
    }
    return NULL;
}

TEST("UP-53", "the oldest number is never behind that of a message sent later")
{
    um_flight *flight = opened(0);
    pthread_t other;
    CHECK_EQ(pthread_create(&other, NULL, send_and_withdraw, flight), 0);
    for (uint64_t oldest = 0, sqn; oldest < ROUNDS;) {
        oldest = um_flight_oldest_sqn(flight);
        if (um_flight_next(flight, 0, &sqn))
            CHECK(sqn >= oldest);
    }
    pthread_join(other, NULL);
    um_flight_free(flight);
}

TEST("UP-55", "one thread sends while another acknowledges")
{
    um_flight *flight = opened(0);
    um_flight_limit(flight, 1000, UINT64_MAX);
    pthread_t other;
    CHECK_EQ(pthread_create(&other, NULL, acknowledge, flight), 0);
    for (uint32_t sent = 0; sent < ROUNDS;) {
        int64_t taken = um_flight_reserve(flight, "x", one_byte, 1, 0, false, 0);
        CHECK(taken >= 0);
        sent += (uint32_t)taken;
        if (taken)
            um_flight_confirm(flight, sent - 1, sent - 1, 0);
        else
            sched_yield();
    }
    pthread_join(other, NULL);
    CHECK_EQ(um_flight_count(flight), 0);
    um_flight_free(flight);
}

CHECK_MAIN

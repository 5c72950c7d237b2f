/* The loss map against a plain array. */
#include "core/foundation/random.h"
#include "core/receiver/loss_map.h"
#include "support.h"

enum { CAPACITY = 64 };

typedef struct map_fixture {
    um_loss_map map;
    void *memory;
} map_fixture;

static map_fixture *map_open(uint32_t capacity)
{
    map_fixture *f = zeroed(sizeof *f);
    f->memory = zeroed(um_loss_map_footprint(capacity));
    um_loss_map_init(&f->map, f->memory, capacity);
    return f;
}

static void map_close(map_fixture *f)
{
    free(f->memory);
    free(f);
}

TEST("UM-116 UM-118 UM-121", "a sqn is found until it is removed")
{
    map_fixture *f = map_open(CAPACITY);
    CHECK(um_loss_map_find(&f->map, 0) == NULL);
    CHECK(um_loss_map_first(&f->map) == NULL);
    CHECK(um_loss_map_add(&f->map, 7, 100, 150));
    um_loss *loss = um_loss_map_find(&f->map, 7);
    CHECK(loss != NULL && loss == um_loss_map_first(&f->map));
    CHECK_EQ(loss->detected_ns, 100);
    CHECK_EQ(loss->deadline_ns, 150);
    CHECK_EQ(loss->naks_sent, 0);
    um_loss_map_remove(&f->map, loss);
    CHECK(um_loss_map_find(&f->map, 7) == NULL);
    CHECK(um_loss_map_first(&f->map) == NULL);
    map_close(f);
}

TEST("UM-116", "a full map refuses another sqn")
{
    map_fixture *f = map_open(CAPACITY);
    for (uint32_t i = 0; i < CAPACITY; i++)
        CHECK(um_loss_map_add(&f->map, i * 3, i, i));
    CHECK(!um_loss_map_add(&f->map, 1000, 0, 0));
    um_loss_map_remove(&f->map, um_loss_map_find(&f->map, 30));
    CHECK(um_loss_map_add(&f->map, 1000, 0, 0));
    CHECK_EQ(um_loss_map_footprint(CAPACITY + 1), 0);
    CHECK_EQ(um_loss_map_footprint(0), 0);
    map_close(f);
}

TEST("UX-22", "the lowest sqn is found across the wrap of the number space")
{
    map_fixture *f = map_open(CAPACITY);
    um_loss_map_add(&f->map, 3, 0, 0);
    um_loss_map_add(&f->map, UINT32_MAX - 1, 0, 5);
    um_loss_map_add(&f->map, 0, 0, 2);
    CHECK_EQ(um_loss_map_lowest(&f->map), UINT32_MAX - 1);
    um_loss_map_remove(&f->map, um_loss_map_find(&f->map, UINT32_MAX - 1));
    CHECK_EQ(um_loss_map_lowest(&f->map), 0);
    map_close(f);
}

/* The list must hold these sqns, whatever entries have moved. */
static void check_list(const um_loss_map *map, const uint32_t *sqns, uint32_t count)
{
    uint32_t at = map->oldest_naked, before = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(at != 0);
        CHECK_EQ(map->entries[at - 1].sqn, sqns[i]);
        CHECK_EQ(map->entries[at - 1].older, before);
        before = at;
        at = map->entries[at - 1].newer;
    }
    CHECK_EQ(at, 0);
    CHECK_EQ(map->newest_naked, before);
}

TEST("UM-122", "NAKed losses are listed in the order of their NAKs while losses are removed, which moves entries")
{
    enum { LOSSES = 50 };
    for (uint64_t seed = 1; seed <= 200; seed++) {
        map_fixture *f = map_open(CAPACITY);
        um_random random = {seed};
        uint32_t listed[LOSSES], count = 0;
        for (uint32_t sqn = 0; sqn < LOSSES; sqn++)
            um_loss_map_add(&f->map, sqn, 0, (int64_t)um_random_below(&random, 1000));
        for (uint32_t step = 0; step < 300; step++) {
            uint32_t sqn = (uint32_t)um_random_below(&random, LOSSES), kept = 0;
            um_loss *loss = um_loss_map_find(&f->map, sqn);
            uint32_t action = (uint32_t)um_random_below(&random, 16);
            if (loss == NULL)
                continue;
            for (uint32_t i = 0; i < count; i++)
                if (listed[i] != sqn)
                    listed[kept++] = listed[i];
            count = kept;
            if (action == 0) {
                um_loss_map_remove(&f->map, loss);
            } else if (action < 4) {
                um_loss_map_unlist(&f->map, loss);
            } else {
                um_loss_map_list(&f->map, loss);
                listed[count++] = sqn;
            }
            check_list(&f->map, listed, count);
        }
        map_close(f);
    }
}

/* ---- random operations ---- */

typedef struct model {
    um_loss losses[CAPACITY];
    uint32_t count;
} model;

static um_loss *model_find(model *m, uint32_t sqn)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->losses[i].sqn == sqn)
            return &m->losses[i];
    return NULL;
}

static void check_same(um_loss_map *map, model *m)
{
    CHECK_EQ(map->count, m->count);
    int64_t earliest = INT64_MAX;
    uint32_t lowest = m->losses[0].sqn;
    for (uint32_t i = 0; i < m->count; i++) {
        const um_loss *expected = &m->losses[i];
        const um_loss *loss = um_loss_map_find(map, expected->sqn);
        CHECK(loss != NULL && loss->sqn == expected->sqn);
        CHECK_EQ(loss->detected_ns, expected->detected_ns);
        CHECK_EQ(loss->deadline_ns, expected->deadline_ns);
        CHECK_EQ(loss->naks_sent, expected->naks_sent);
        earliest = expected->deadline_ns < earliest ? expected->deadline_ns : earliest;
        lowest = um_serial_before(expected->sqn, lowest) ? expected->sqn : lowest;
    }
    CHECK(m->count == 0 || um_loss_map_first(map)->deadline_ns == earliest);
    CHECK(m->count == 0 || um_loss_map_lowest(map) == lowest);
}

static void operate(um_loss_map *map, model *m, um_random *random, uint32_t base)
{
    uint32_t sqn = base + (uint32_t)um_random_below(random, 200);
    int64_t deadline_ns = (int64_t)um_random_below(random, 50); /* a small range, so that many are equal */
    um_loss *expected = model_find(m, sqn);
    um_loss *loss = um_loss_map_find(map, sqn);
    CHECK((loss != NULL) == (expected != NULL));
    if (loss == NULL) {
        CHECK_EQ(um_loss_map_add(map, sqn, deadline_ns / 2, deadline_ns), m->count < CAPACITY);
        if (m->count < CAPACITY)
            m->losses[m->count++] = (um_loss){.sqn = sqn, .detected_ns = deadline_ns / 2, .deadline_ns = deadline_ns};
    } else if (um_random_below(random, 2) == 0) {
        um_loss_map_reschedule(map, loss, deadline_ns);
        loss->naks_sent++;
        expected->deadline_ns = deadline_ns;
        expected->naks_sent++;
    } else {
        um_loss_map_remove(map, loss);
        *expected = m->losses[--m->count];
    }
}

TEST("UM-116 UM-119 UM-121 UX-22", "random operations match a model, anywhere in the number space")
{
    um_random random = {check_seed()};
    uint32_t bases[] = {0, UINT32_MAX - 100, (1u << 31) - 100, 12345678};
    for (uint32_t b = 0; b < 4; b++) {
        map_fixture *f = map_open(CAPACITY);
        model m = {.count = 0};
        for (uint32_t i = 0; i < 20000; i++) {
            operate(&f->map, &m, &random, bases[b]);
            if (i % 7 == 0)
                check_same(&f->map, &m);
        }
        map_close(f);
    }
}

TEST("UM-116", "numbers with the same hash are all found")
{
    map_fixture *f = map_open(CAPACITY);
    uint32_t together[CAPACITY], count = 0;
    for (uint32_t sqn = 0; count < CAPACITY; sqn++)
        if (((uint64_t)(sqn * 2654435761u) * (2 * CAPACITY)) >> 32 == 2 * CAPACITY - 1)
            together[count++] = sqn;
    um_random random = {check_seed()};
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < CAPACITY; i++)
            CHECK(um_loss_map_add(&f->map, together[i], 0, i));
        for (uint32_t left = CAPACITY; left > 0; left--) {
            uint32_t at = (uint32_t)um_random_below(&random, left);
            um_loss_map_remove(&f->map, um_loss_map_find(&f->map, together[at]));
            CHECK(um_loss_map_find(&f->map, together[at]) == NULL);
            uint32_t gone = together[at];
            together[at] = together[left - 1];
            together[left - 1] = gone;
            for (uint32_t i = 0; i + 1 < left; i++)
                CHECK(um_loss_map_find(&f->map, together[i]) != NULL);
        }
    }
    map_close(f);
}

TEST("UM-116", "removing the first entry repeatedly yields all entries by deadline")
{
    enum { MANY = 4096 };
    map_fixture *f = map_open(MANY);
    um_random random = {check_seed()};
    for (uint32_t i = 0; i < MANY; i++)
        um_loss_map_add(&f->map, i, 0, (int64_t)um_random_below(&random, 1000000));
    int64_t previous = 0;
    for (um_loss *loss; (loss = um_loss_map_first(&f->map)) != NULL;) {
        CHECK(loss->deadline_ns >= previous);
        previous = loss->deadline_ns;
        um_loss_map_remove(&f->map, loss);
    }
    map_close(f);
}

CHECK_MAIN

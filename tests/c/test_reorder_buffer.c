/* The reorder buffer against a plain array: entries, cells shared by the messages of a datagram, and exhaustion. */
#include "core/delivery/reorder_buffer.h"
#include "core/foundation/random.h"
#include "core/wire/lbmc.h"
#include "support.h"

enum { CELLS = 8, CELL_BYTES = 256, ENTRIES = 32 };

typedef struct store_fixture {
    um_reorder_buffer store;
    void *memory;
} store_fixture;

static store_fixture *store_open(void)
{
    store_fixture *f = zeroed(sizeof *f);
    f->memory = zeroed(um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES));
    um_reorder_init(&f->store, f->memory, CELLS, CELL_BYTES, ENTRIES);
    return f;
}

static void store_close(store_fixture *f)
{
    free(f->memory);
    free(f);
}

TEST("", "an impossible configuration is refused")
{
    CHECK(um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES) > CELLS * CELL_BYTES);
    CHECK_EQ(um_reorder_footprint(0, CELL_BYTES, ENTRIES), 0);
    CHECK_EQ(um_reorder_footprint(CELLS, 0, ENTRIES), 0);
    CHECK_EQ(um_reorder_footprint(CELLS, 65536, ENTRIES), 0);
    CHECK_EQ(um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES + 1), 0);
}

TEST("UM-9", "messages of one datagram share its copy, which is freed with the last of them")
{
    store_fixture *f = store_open();
    uint8_t datagram[100];
    memset(datagram, 7, sizeof datagram);
    um_reorder_begin_datagram(&f->store, datagram, sizeof datagram);
    um_reorder_entry *holds[4];
    for (uint32_t i = 0; i < 4; i++) {
        holds[i] = um_reorder_add(&f->store, 1, i);
        datagram[20 * i] = (uint8_t)i;
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK(um_reorder_attach(&f->store, holds[i], datagram + 20 * i, 20));
    um_reorder_end_datagram(&f->store);
    memset(datagram, 0, sizeof datagram);
    CHECK_EQ(f->store.cells_used, 1);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(um_reorder_payload(&f->store, holds[i])[0], i);
        CHECK_EQ(um_reorder_payload(&f->store, holds[i])[19], 7);
    }
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(f->store.cells_used, 1);
        um_reorder_remove(&f->store, holds[i]);
    }
    CHECK_EQ(f->store.cells_used, 0);
    CHECK_EQ(f->store.entries_used, 0);
    store_close(f);
}

TEST("UM-10", "running out of cells, or of entries, is reported")
{
    store_fixture *f = store_open();
    uint8_t datagram[10] = {0};
    for (uint32_t i = 0; i <= CELLS; i++) {
        um_reorder_begin_datagram(&f->store, datagram, sizeof datagram);
        CHECK_EQ(um_reorder_attach(&f->store, um_reorder_add(&f->store, 1, i), datagram, 10), i < CELLS);
        um_reorder_end_datagram(&f->store);
    }
    for (uint32_t i = CELLS + 1; i < ENTRIES; i++)
        CHECK(um_reorder_add(&f->store, 2, i) != NULL);
    CHECK(um_reorder_add(&f->store, 3, 0) == NULL);
    um_reorder_detach(&f->store, um_reorder_find(&f->store, 1, 0));
    um_reorder_begin_datagram(&f->store, datagram, sizeof datagram);
    CHECK(um_reorder_attach(&f->store, um_reorder_find(&f->store, 1, CELLS), datagram, 10));
    store_close(f);
}

TEST("", "a datagram longer than the longest cell is refused, not cut")
{
    store_fixture *f = store_open();
    static uint8_t datagram[UM_LBMC_MESSAGE_BYTES_MAX + 1];
    um_reorder_begin_datagram(&f->store, datagram, sizeof datagram);
    um_reorder_entry *hold = um_reorder_add(&f->store, 1, 1);
    CHECK(!um_reorder_attach(&f->store, hold, datagram, 1));
    CHECK_EQ(hold->state, UM_REORDER_EXPECTED);
    store_close(f);
}

TEST("UM-9", "a copy freed in the middle of its datagram is made again")
{
    store_fixture *f = store_open();
    uint8_t datagram[16] = "abcdefgh";
    um_reorder_begin_datagram(&f->store, datagram, sizeof datagram);
    um_reorder_entry *first = um_reorder_add(&f->store, 1, 1), *second = um_reorder_add(&f->store, 1, 2);
    CHECK(um_reorder_attach(&f->store, first, datagram, 4));
    um_reorder_detach(&f->store, first);
    CHECK_EQ(f->store.cells_used, 0);
    CHECK(um_reorder_attach(&f->store, second, datagram + 4, 4));
    CHECK_BYTES(um_reorder_payload(&f->store, second), (const uint8_t *)"efgh", 4);
    CHECK_EQ(f->store.cells_used, 1);
    store_close(f);
}

/* ---- random operations ---- */

typedef struct kept {
    uint32_t owner, sqn;
    uint32_t datagram; /* 0: no payload */
    uint8_t payload[32];
    uint32_t length;
} kept;

typedef struct model {
    kept entries[ENTRIES];
    uint32_t count;
} model;

static uint32_t cells_of(const model *m)
{
    uint32_t cells = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        bool seen = m->entries[i].datagram == 0;
        for (uint32_t j = 0; j < i && !seen; j++)
            seen = m->entries[j].datagram == m->entries[i].datagram;
        cells += !seen;
    }
    return cells;
}

static void check_same(um_reorder_buffer *store, const model *m)
{
    CHECK_EQ(store->entries_used, m->count);
    CHECK_EQ(store->cells_used, cells_of(m));
    for (uint32_t i = 0; i < m->count; i++) {
        const kept *k = &m->entries[i];
        const um_reorder_entry *hold = um_reorder_find(store, k->owner, k->sqn);
        CHECK(hold != NULL && hold->owner == k->owner && hold->sqn == k->sqn);
        CHECK_EQ(hold->state, k->datagram ? UM_REORDER_PAYLOAD : UM_REORDER_EXPECTED);
        if (k->datagram != 0)
            CHECK_BYTES(um_reorder_payload(store, hold), k->payload, k->length);
    }
}

/* Up to six operations while one datagram is being delivered. */
static void deliver(um_reorder_buffer *store, model *m, um_random *random, uint32_t number)
{
    uint8_t datagram[CELL_BYTES];
    for (uint32_t i = 0; i < sizeof datagram; i++)
        datagram[i] = (uint8_t)um_random_next(random);
    um_reorder_begin_datagram(store, datagram, 64 + (uint32_t)um_random_below(random, CELL_BYTES - 64));
    for (uint32_t i = (uint32_t)um_random_below(random, 6); i > 0; i--) {
        uint32_t owner = 1 + (uint32_t)um_random_below(random, 3), at = 0;
        uint32_t sqn = UINT32_MAX - 10 + (uint32_t)um_random_below(random, 20);
        while (at < m->count && (m->entries[at].owner != owner || m->entries[at].sqn != sqn))
            at++;
        um_reorder_entry *hold = um_reorder_find(store, owner, sqn);
        CHECK((hold != NULL) == (at < m->count));
        if (hold == NULL) {
            CHECK((um_reorder_add(store, owner, sqn) != NULL) == (m->count < ENTRIES));
            if (m->count < ENTRIES)
                m->entries[m->count++] = (kept){.owner = owner, .sqn = sqn};
        } else if (m->entries[at].datagram == 0) {
            kept *k = &m->entries[at];
            uint32_t offset = (uint32_t)um_random_below(random, 32);
            k->length = 1 + (uint32_t)um_random_below(random, 32);
            memcpy(k->payload, datagram + offset, k->length);
            k->datagram = number;
            bool space = cells_of(m) <= CELLS;
            k->datagram = space ? number : 0;
            CHECK_EQ(um_reorder_attach(store, hold, datagram + offset, k->length), space);
        } else if (um_random_below(random, 2) == 0) {
            um_reorder_detach(store, hold);
            m->entries[at].datagram = 0;
        } else {
            um_reorder_remove(store, hold);
            m->entries[at] = m->entries[--m->count];
        }
    }
    um_reorder_end_datagram(store);
}

TEST("UM-9 UM-10 UX-22", "random operations match a model")
{
    um_random random = {check_seed()};
    for (uint32_t run = 0; run < 20; run++) {
        store_fixture *f = store_open();
        model m = {.count = 0};
        for (uint32_t number = 1; number <= 1500; number++) {
            deliver(&f->store, &m, &random, number);
            check_same(&f->store, &m);
        }
        store_close(f);
    }
}

/* One cell in 16 is large, for messages received over TCP; here there is one. */
TEST("", "a message longer than a datagram uses a large cell and none of the small ones")
{
    enum { LONGEST = UM_LBMC_MESSAGE_BYTES_MAX };
    store_fixture *f = store_open();
    uint8_t *message = zeroed(LONGEST);
    for (uint32_t round = 0; round < 3; round++) {
        um_reorder_entry *kept = um_reorder_add(&f->store, 1, 0), *refused = um_reorder_add(&f->store, 1, 1);
        memset(message, (int)round + 1, LONGEST);
        um_reorder_begin_datagram(&f->store, message, LONGEST);
        CHECK(um_reorder_attach(&f->store, kept, message, LONGEST));
        um_reorder_begin_datagram(&f->store, message, CELL_BYTES + 1);
        CHECK(!um_reorder_attach(&f->store, refused, message, CELL_BYTES + 1));
        um_reorder_begin_datagram(&f->store, message, CELL_BYTES);
        CHECK(um_reorder_attach(&f->store, refused, message, CELL_BYTES));
        um_reorder_end_datagram(&f->store);
        memset(message, 0, LONGEST);
        CHECK_EQ(um_reorder_payload(&f->store, kept)[0], round + 1);
        CHECK_EQ(um_reorder_payload(&f->store, kept)[LONGEST - 1], round + 1);
        CHECK_EQ(f->store.cells_used, 2);
        CHECK(!um_reorder_has_quarter_free(&f->store));
        um_reorder_remove(&f->store, kept);
        um_reorder_remove(&f->store, refused);
        CHECK_EQ(f->store.cells_used, 0);
        CHECK(um_reorder_has_quarter_free(&f->store));
    }
    free(message);
    store_close(f);
}

CHECK_MAIN

/* Operations on a loss map, against a plain array. */
#include "fuzz.h"

#include "core/receiver/loss_map.h"

enum { CAPACITY = 16 };

static um_loss model[CAPACITY];
static uint32_t model_count;

static um_loss *model_find(uint32_t sqn)
{
    for (uint32_t i = 0; i < model_count; i++)
        if (model[i].sqn == sqn)
            return &model[i];
    return NULL;
}

static void check_same(um_loss_map *map)
{
    REQUIRE(map->count == model_count);
    int64_t earliest_ns = INT64_MAX;
    for (uint32_t i = 0; i < model_count; i++) {
        const um_loss *loss = um_loss_map_find(map, model[i].sqn);
        REQUIRE(loss != NULL && loss->sqn == model[i].sqn && loss->deadline_ns == model[i].deadline_ns);
        earliest_ns = loss->deadline_ns < earliest_ns ? loss->deadline_ns : earliest_ns;
    }
    const um_loss *first = um_loss_map_first(map);
    REQUIRE(model_count == 0 ? first == NULL : first->deadline_ns == earliest_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t *memory;
    um_loss_map map;
    size_t bytes = um_loss_map_footprint(CAPACITY);
    if (memory == NULL)
        memory = fuzz_zeroed(bytes);
    memset(memory, 0, bytes);
    um_loss_map_init(&map, memory, CAPACITY);
    model_count = 0;
    fuzz_input input = {data, size};
    uint32_t base = take_u32(&input);
    while (input.left > 0) {
        uint8_t choice = take_u8(&input);
        uint32_t sqn = base + take_distance(&input);
        int64_t deadline_ns = take_u8(&input);
        um_loss *expected = model_find(sqn);
        um_loss *loss = um_loss_map_find(&map, sqn);
        REQUIRE((loss != NULL) == (expected != NULL));
        if (loss == NULL) {
            REQUIRE(um_loss_map_add(&map, sqn, 0, deadline_ns) == (model_count < CAPACITY));
            if (model_count < CAPACITY)
                model[model_count++] = (um_loss){.sqn = sqn, .deadline_ns = deadline_ns};
        } else if (choice & 1) {
            um_loss_map_reschedule(&map, loss, deadline_ns);
            expected->deadline_ns = deadline_ns;
        } else {
            um_loss_map_remove(&map, loss);
            *expected = model[--model_count];
        }
        check_same(&map);
    }
    return 0;
}

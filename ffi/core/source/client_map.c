#include "core/source/client_map.h"

static size_t set_words(uint32_t capacity)
{
    return (capacity + 63) / 64;
}

static void carve(um_client_map *map, um_arena *arena, const um_client_map_config *config)
{
    um_client_map ignored;
    um_client_map *m = map ? map : &ignored;
    size_t capacity = config->capacity;
    m->clients = um_arena_take(arena, capacity * sizeof *m->clients);
    m->buckets = um_arena_take(arena, um_power_of_two_at_least(config->buckets) * sizeof *m->buckets);
    m->filters = NULL;
    m->selections = NULL;
    if (!config->has_filter)
        return;
    m->filters = um_arena_take(arena, capacity * um_topic_filter_footprint(UM_CLIENT_TOPICS_MAX));
    m->selections = um_arena_take(arena, UM_SEND_BATCH_MAX * sizeof *m->selections);
    uint64_t *sets = um_arena_take(arena, UM_SEND_BATCH_MAX * set_words(config->capacity) * sizeof *sets);
    for (uint32_t i = 0; i < UM_SEND_BATCH_MAX && map != NULL; i++)
        m->selections[i].clients = sets + i * set_words(config->capacity);
}

size_t um_client_map_footprint(const um_client_map_config *config)
{
    um_arena arena = {NULL, 0};
    if (config->capacity > 0)
        carve(NULL, &arena, config);
    return arena.used_bytes;
}

void um_client_map_init(um_client_map *map, void *memory, const um_client_map_config *config)
{
    *map = (um_client_map){.capacity = config->capacity, .key = config->key};
    if (config->capacity == 0)
        return;
    assert(config->capacity <= UM_CLIENTS_MAX);
    um_arena arena = {memory, 0};
    carve(map, &arena, config);
    map->bucket_mask = (uint32_t)um_power_of_two_at_least(config->buckets) - 1;
    for (uint32_t i = 0; i <= map->bucket_mask; i++)
        map->buckets[i] = UM_CLIENTS_MAX;
    for (uint32_t i = 0; i < config->capacity && config->has_filter; i++)
        um_topic_filter_init(&map->clients[i].interest.filter, map->filters + 2 * (size_t)UM_CLIENT_TOPICS_MAX * i,
                             UM_CLIENT_TOPICS_MAX);
}

/* Returns the link (bucket or `next`) that refers to the client of this address, or the end of its bucket. */
static uint32_t *place_of(um_client_map *map, um_address address)
{
    uint64_t key = um_address_key(address) * 0x9e3779b97f4a7c15u;
    uint32_t *place = &map->buckets[(uint32_t)(key >> 32) & map->bucket_mask];
    while (*place != UM_CLIENTS_MAX && !um_address_equal(map->clients[*place].address, address))
        place = &map->clients[*place].next;
    return place;
}

um_client *um_client_map_find(um_client_map *map, um_address address)
{
    if (map->count == 0)
        return NULL;
    uint32_t at = *place_of(map, address);
    return at == UM_CLIENTS_MAX ? NULL : &map->clients[at];
}

um_client *um_client_map_add(um_client_map *map, um_address address, int64_t now_ns)
{
    if (map->count == map->capacity)
        return NULL;
    uint32_t *place = place_of(map, address);
    um_debug_assert(*place == UM_CLIENTS_MAX);
    *place = map->count;
    um_client *client = &map->clients[map->count++];
    um_topic_filter filter = client->interest.filter;
    if (map->filters != NULL)
        um_topic_filter_clear(&filter);
    *client = (um_client){.address = address,
                          .connected_ns = now_ns,
                          .acknowledged_ns = now_ns,
                          .interest.filter = filter,
                          .next = UM_CLIENTS_MAX};
    return client;
}

void um_client_map_remove(um_client_map *map, um_client *client)
{
    um_client *last = &map->clients[map->count - 1];
    map->behind_count -= client->behind > 0;
    *place_of(map, client->address) = client->next;
    if (client != last) {
        um_topic_filter unused = client->interest.filter;
        *place_of(map, last->address) = (uint32_t)(client - map->clients);
        *client = *last;
        last->interest.filter = unused;
    }
    map->count--;
}

#include "core/client_map.h"

static void carve(um_client_map *map, um_arena *arena, uint32_t capacity, uint32_t buckets)
{
    um_client_map ignored;
    um_client_map *m = map ? map : &ignored;
    m->clients = um_arena_take(arena, capacity * sizeof *m->clients);
    m->buckets = um_arena_take(arena, um_power_of_two_at_least(buckets) * sizeof *m->buckets);
}

size_t um_client_map_footprint(uint32_t capacity, uint32_t buckets)
{
    um_arena arena = {NULL, 0};
    if (capacity > 0)
        carve(NULL, &arena, capacity, buckets);
    return arena.used_bytes;
}

void um_client_map_init(um_client_map *map, void *memory, uint32_t capacity, uint32_t buckets, um_siphash_key key)
{
    *map = (um_client_map){.capacity = capacity, .key = key};
    if (capacity == 0)
        return;
    assert(capacity <= UM_CLIENTS_MAX);
    um_arena arena = {memory, 0};
    carve(map, &arena, capacity, buckets);
    map->bucket_mask = (uint32_t)um_power_of_two_at_least(buckets) - 1;
    for (uint32_t i = 0; i <= map->bucket_mask; i++)
        map->buckets[i] = UM_CLIENTS_MAX;
}

/* The place that refers to the client of this address, or the end of its bucket. */
static uint32_t *place_of(um_client_map *map, um_address address)
{
    uint64_t key = ((uint64_t)address.ip << 16 | address.port) * 0x9e3779b97f4a7c15u;
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
    *client = (um_client){.address = address, .acknowledged_ns = now_ns, .next = UM_CLIENTS_MAX};
    return client;
}

void um_client_map_remove(um_client_map *map, um_client *client)
{
    um_client *last = &map->clients[map->count - 1];
    map->behind_count -= client->behind > 0;
    *place_of(map, client->address) = client->next;
    if (client != last) {
        *place_of(map, last->address) = (uint32_t)(client - map->clients);
        *client = *last;
    }
    map->count--;
}

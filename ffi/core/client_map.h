/* The clients of an LBT-RU source session: receivers that have connected, by the address their datagrams come from.
 *
 * A client is known by its address and proves that it receives there: its id is a keyed hash of the address, which the
 * source sends there and which the client has to return (client_service.h). So an address that is not in the map costs
 * no memory, and a forged one gets into it only from where its answer goes.
 *
 * Threads: the holder of the sender lock. Memory: the session's; um_client_map_footprint bytes. Complexity: constant,
 * with as many buckets as clients. Errors: a full map takes nobody.
 */
#ifndef UM_CORE_CLIENT_MAP_H
#define UM_CORE_CLIENT_MAP_H

#include "core/siphash.h"

enum { UM_CLIENTS_MAX = 4096 };

typedef struct um_client {
    um_address address;
    int64_t acknowledged_ns;
    uint32_t acknowledged_sqn;
    uint32_t unsent; /* of the last send, from its end: what the link did not take for it */
    uint32_t behind; /* datagrams before the session's next sqn that it is yet to be sent */
    uint32_t next;   /* in its bucket; UM_CLIENTS_MAX: the last */
} um_client;

typedef struct um_client_map {
    uint32_t capacity; /* 0: not a session with clients */
    uint32_t bucket_mask;
    uint32_t count;
    uint32_t behind_count; /* clients with something behind */
    um_client *clients;    /* dense */
    uint32_t *buckets;
    um_siphash_key key;
} um_client_map;

size_t um_client_map_footprint(uint32_t capacity, uint32_t buckets);
/* memory: footprint bytes, NULL with capacity 0. buckets: rounded up to a power of two. */
void um_client_map_init(um_client_map *map, void *memory, uint32_t capacity, uint32_t buckets, um_siphash_key key);

/* NULL: no client. The pointer is good until a client is removed. */
um_client *um_client_map_find(um_client_map *map, um_address address);
/* Precondition: it is not in the map. NULL: the map is full. */
um_client *um_client_map_add(um_client_map *map, um_address address, int64_t now_ns);
/* The last client takes its place. */
void um_client_map_remove(um_client_map *map, um_client *client);

/* The id that a client of this address has. */
static inline uint32_t um_client_map_id(const um_client_map *map, um_address address)
{
    return (uint32_t)um_siphash(map->key, (uint64_t)address.ip << 16 | address.port);
}

#endif

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

#include "core/foundation/link.h"
#include "core/foundation/siphash.h"
#include "core/source/topic_filter.h"

enum { UM_CLIENTS_MAX = 4096, UM_CLIENT_TOPICS_MAX = 1024 };

/* What a client wants (source-side filtering, UX-27; client_interest.h), as a numbered version in parts. Until all
 * parts of the newest have come, and without any, it is sent everything. */
typedef struct um_client_interest {
    um_topic_filter filter;
    uint32_t version; /* 0: it has said nothing */
    uint32_t part_count;
    uint64_t parts;     /* that have come, a bit each */
    uint32_t since_sqn; /* what is sent from here on is as this version wants it */
    bool is_filtered;
} um_client_interest;

typedef struct um_client {
    um_address address;
    int64_t acknowledged_ns;
    uint32_t acknowledged_sqn;
    uint32_t unsent; /* of the last send, from its end: what the link did not take for it */
    uint32_t behind; /* datagrams before the session's next sqn that it is yet to be sent */
    uint32_t passed; /* datagrams before those that it did not want, and was not told of */
    uint32_t passed_bytes;
    um_client_interest interest; /* where the source filters */
    uint32_t next;               /* in its bucket; UM_CLIENTS_MAX: the last */
} um_client;

typedef struct um_client_map {
    uint32_t capacity; /* 0: not a session with clients */
    uint32_t bucket_mask;
    uint32_t count;
    uint32_t behind_count; /* clients with something behind */
    um_client *clients;    /* dense */
    uint32_t *buckets;
    uint32_t *filters;        /* slots of each client's; NULL, as the next: the source does not filter */
    um_selection *selections; /* UM_SEND_BATCH_MAX, for what is sent at once */
    um_siphash_key key;
} um_client_map;

typedef struct um_client_map_config {
    uint32_t capacity; /* 0: no clients */
    uint32_t buckets;  /* rounded up to a power of two */
    bool has_filter;
    um_siphash_key key;
} um_client_map_config;

size_t um_client_map_footprint(const um_client_map_config *config);
/* memory: footprint bytes, zeroed; NULL with capacity 0. */
void um_client_map_init(um_client_map *map, void *memory, const um_client_map_config *config);

/* Words of a set of clients. */
static inline uint32_t um_client_map_words(const um_client_map *map)
{
    return (map->capacity + 63) / 64;
}

static inline bool um_client_map_is_in(const uint64_t *set, uint32_t place)
{
    return set[place / 64] >> place % 64 & 1;
}

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

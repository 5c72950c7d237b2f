/* The clients of an LBT-RU source session: receivers that have connected, keyed by the address they send from.
 *
 * A client proves that it receives at its address: its id is a keyed hash of the address, which the source sends there
 * and the client returns (client_service.h). So an address that is not in the map costs no memory, and a forged address
 * enters the map only if the forger sees the datagrams sent to it.
 *
 * Threads: the holder of the sender lock. Memory: um_client_map_footprint bytes, the session's. Complexity: constant,
 * with as many buckets as clients. Errors: a full map refuses clients.
 */
#ifndef UM_CORE_CLIENT_MAP_H
#define UM_CORE_CLIENT_MAP_H

#include "core/foundation/link.h"
#include "core/foundation/siphash.h"
#include "core/source/topic_filter.h"

enum { UM_CLIENTS_MAX = 4096, UM_CLIENT_TOPICS_MAX = 1024 };

/* The topics that a client needs (source-side filtering, UX-27; client_interest.h), as a numbered version in parts. A
 * client is sent every datagram until all parts of its newest version have arrived. */
typedef struct um_client_interest {
    um_topic_filter filter;
    uint32_t version; /* 0: none received */
    uint32_t part_count;
    uint64_t parts;     /* bitmap of the parts received */
    uint32_t since_sqn; /* datagrams from here on are filtered by this version */
    bool needs_all;     /* a part received so far needs every topic, or has more topics than there is space for */
    bool is_filtered;
} um_client_interest;

typedef struct um_client {
    um_address address;
    int64_t connected_ns;
    int64_t acknowledged_ns;
    uint32_t acknowledged_sqn;
    uint32_t unsent; /* datagrams at the end of the last send that the link did not accept for it */
    uint32_t behind; /* datagrams before the session's next sqn that must still be sent to it */
    uint32_t passed; /* datagrams before those that it did not need and that were not reported to it */
    uint32_t passed_bytes;
    um_client_interest interest; /* unused unless the source filters */
    uint32_t next;               /* next client of its bucket; UM_CLIENTS_MAX: none */
} um_client;

typedef struct um_client_map {
    uint32_t capacity; /* 0: a session without clients */
    uint32_t bucket_mask;
    uint32_t count;
    uint32_t behind_count; /* clients whose `behind` is not 0 */
    um_client *clients;    /* dense */
    uint32_t *buckets;
    uint32_t *filters;        /* slots of the clients' topic filters; NULL if the source does not filter */
    um_selection *selections; /* UM_SEND_BATCH_MAX, one per datagram of a batch; NULL if the source does not filter */
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

/* Number of 64-bit words in a set of clients. */
static inline uint32_t um_client_map_words(const um_client_map *map)
{
    return (map->capacity + 63) / 64;
}

static inline bool um_client_map_is_in(const uint64_t *set, uint32_t place)
{
    return set[place / 64] >> place % 64 & 1;
}

/* Returns NULL if the address is not a client's. The pointer is valid until a client is removed. */
um_client *um_client_map_find(um_client_map *map, um_address address);
/* Precondition: the address is not in the map. Returns NULL if the map is full. */
um_client *um_client_map_add(um_client_map *map, um_address address, int64_t now_ns);
/* Moves the last client into the freed place. */
void um_client_map_remove(um_client_map *map, um_client *client);

/* The client id of this address. */
static inline uint32_t um_client_map_id(const um_client_map *map, um_address address)
{
    return (uint32_t)um_siphash(map->key, um_address_key(address));
}

#endif

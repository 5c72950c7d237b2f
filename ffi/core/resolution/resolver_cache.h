/* The resolver cache: the advertised sources, of topics with and without a receiver here (UX-16). It also selects the
 * records of a topic resolution datagram that the owner must handle. Most records are repeated, or for topics without a
 * receiver here: the cache handles those alone.
 *
 *     query            passed to the owner if it may have a source of the topic
 *     advertisement    known and settled: ignored
 *                      the topic may have a receiver here, or the advertisement has or had options, or it is new while
 *                      `needs_all`: added and passed to the owner, again each time until the owner settles it
 *                      any other: added, and settled at once
 *                      first time that a session's own address advertises it: as if not settled
 *     the last one     (TTL 0) removed; passed to the owner under the same conditions
 *     not joinable     counted
 *
 * The cache is bounded: the source added longest ago is evicted, unless it has been advertised again since; then it is
 * spared once. Topics with a source or a receiver here are tracked approximately: none is missed, but a few other
 * topics may be passed to the owner, which must check that itself.
 *
 * Threads: one at a time. Memory: one block of footprint bytes, the owner's; pages that were never used stay untouched.
 * Complexity: expected constant per record even for crafted records, because the tables are indexed by keyed hashes;
 * removal of sessions is linear in the sources. Errors: false for a datagram that is malformed or of another type.
 */
#ifndef UM_CORE_RESOLVER_CACHE_H
#define UM_CORE_RESOLVER_CACHE_H

#include "core/foundation/siphash.h"
#include "core/resolution/lbmr.h"

typedef struct um_resolver_cache um_resolver_cache;

enum { UM_RESOLVER_SESSIONS_MAX = 1024 };

/* Reasons for the owner's interest in a topic. */
enum um_topic_interest { UM_TOPIC_HAS_SOURCE = 0, UM_TOPIC_HAS_RECEIVER = 1, UM_TOPIC_INTERESTS = 2 };

/* The contents of a datagram. */
typedef struct um_resolver_intake {
    uint32_t query_count;
    uint32_t advertisement_count;
    uint32_t ignored_count; /* advertisements of sessions that cannot be joined */
    uint32_t owner_queries; /* number of queries at the start of `records`, without their NUL; advertisements follow */
    uint32_t owner_records; /* records for the owner */
    um_lbmr_place records[UM_LBMR_RECORDS_MAX];
} um_resolver_intake;

/* A source of a topic. */
typedef struct um_known_source {
    um_session_id session;
    um_ip advertiser; /* that of um_resolver_cache_take */
    uint32_t topic_index;
} um_known_source;

/* sources_max: at least 1. */
size_t um_resolver_cache_footprint(uint32_t sources_max);
/* memory: zeroed. `key`: secret and random, so that topics cannot be crafted to share a bucket. */
um_resolver_cache *um_resolver_cache_init(void *memory, uint32_t sources_max, um_siphash_key key);

/* Handles a whole datagram of queries and advertisements from `advertiser`. Returns false, without a change, if it is
 * malformed or of another type. A source keeps its first advertiser, until its own address advertises it. */
bool um_resolver_cache_take(um_resolver_cache *cache, const uint8_t *data, uint32_t bytes, um_ip advertiser,
                            um_resolver_intake *intake);

/* Settles an advertisement: the owner has handled it, and it is not passed to the owner again until it changes.
 * `record`: its bytes in the datagram. */
void um_resolver_cache_settle(um_resolver_cache *cache, const uint8_t *record, uint32_t bytes);
/* Makes all advertisements unsettled. */
void um_resolver_cache_unsettle(um_resolver_cache *cache);

/* Adds or removes an interest of the owner in a topic. Each add must be matched by one remove. */
void um_resolver_cache_add_interest(um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                    enum um_topic_interest interest);
void um_resolver_cache_remove_interest(um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                       enum um_topic_interest interest);
/* If true, every advertisement that is not settled is passed to the owner. */
void um_resolver_cache_set_needs_all(um_resolver_cache *cache, bool needs_all);

/* Removes the sources of these sessions, at most UM_RESOLVER_SESSIONS_MAX. */
void um_resolver_cache_remove_sessions(um_resolver_cache *cache, const um_session_id *sessions, uint32_t count);

uint32_t um_resolver_cache_count(const um_resolver_cache *cache);
/* Number of sources evicted so far. */
uint64_t um_resolver_cache_evictions(const um_resolver_cache *cache);
/* Stores at most `space` sources of a topic, in the order of their first advertisements. Returns how many it has. */
uint32_t um_resolver_cache_sources_of(const um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                      um_known_source *found, uint32_t space);
/* Stores the names of topics, each with its NUL, as far as there is space. `*cursor` is 0 for the first call and is
 * advanced by each. Returns the bytes stored; 0: no more topics, or no space for the next name. Every topic that is
 * known from the first call to the last is stored once. */
uint32_t um_resolver_cache_topics(const um_resolver_cache *cache, uint32_t *cursor, char *names, uint32_t space);

#endif

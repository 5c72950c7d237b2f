/* The resolver cache: sources that were advertised, of topics with and without a receiver here (UX-16), and which
 * records of a datagram of topic resolution the owner has to look at. Most of what a network says is repeated, or is
 * about topics of others: that is taken in here, and costs the owner nothing a record.
 *
 *     query            the owner's, when it may have a source of the topic
 *     advertisement    what is known and settled: nobody's
 *                      of a topic that may have a receiver here, or with options now or before: the owner's, until it
 *                      settles it; every other one that is new as well while `needs_all`
 *                      any other: it is in the cache then, and settled
 *     the last one     it is in the cache no more; the owner's under the same conditions
 *     not joinable     counted
 *
 * Bounded: the source that was added longest ago makes space, unless it was advertised again since: then it is spared
 * once. Which topics have a source or a receiver here is known approximately: no such topic is missed, a few others are
 * taken for one, and the owner finds out when it looks.
 *
 * Threads: one at a time. Memory: one block of footprint bytes, the owner's; pages that were never used stay untouched.
 * Complexity: expected constant a record, whatever it is, because the tables are indexed by keyed hashes; removal of
 * sessions is linear in the sources. Errors: false for a datagram that is anything else, or malformed.
 */
#ifndef UM_CORE_RESOLVER_CACHE_H
#define UM_CORE_RESOLVER_CACHE_H

#include "core/foundation/siphash.h"
#include "core/resolution/lbmr.h"

typedef struct um_resolver_cache um_resolver_cache;

enum { UM_RESOLVER_SESSIONS_MAX = 1024 };

/* Why a topic is of interest to the owner. */
enum um_topic_interest { UM_TOPIC_HAS_SOURCE = 0, UM_TOPIC_HAS_RECEIVER = 1, UM_TOPIC_INTERESTS = 2 };

/* What was in a datagram. */
typedef struct um_resolver_intake {
    uint32_t query_count;
    uint32_t advertisement_count;
    uint32_t ignored_count; /* advertisements of sessions that cannot be joined */
    uint32_t owner_queries; /* the first of `records`, without their NUL; those that follow are advertisements */
    uint32_t owner_records;
    um_lbmr_place records[UM_LBMR_RECORDS_MAX];
} um_resolver_intake;

/* A source of a topic. */
typedef struct um_known_source {
    um_session_id session;
    uint32_t topic_index;
} um_known_source;

/* sources_max: at least 1. */
size_t um_resolver_cache_footprint(uint32_t sources_max);
/* Zeroed memory. `key` is secret and random: with it nobody makes topics that share a place in a table. */
um_resolver_cache *um_resolver_cache_init(void *memory, uint32_t sources_max, um_siphash_key key);

/* Takes in a datagram of queries and advertisements, as a whole. False: it is none, or malformed; nothing has changed.
 */
bool um_resolver_cache_take(um_resolver_cache *cache, const uint8_t *data, uint32_t bytes, um_resolver_intake *intake);

/* Nothing is left to be done about an advertisement that was the owner's: it is not its again before it changes.
 * `record`: as it was in the datagram. */
void um_resolver_cache_settle(um_resolver_cache *cache, const uint8_t *record, uint32_t bytes);
/* All that is settled may concern the owner once more. */
void um_resolver_cache_unsettle(um_resolver_cache *cache);

/* The owner has begun to be interested in a topic, or has ceased: as many calls of one as of the other. */
void um_resolver_cache_add_interest(um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                    enum um_topic_interest interest);
void um_resolver_cache_remove_interest(um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                       enum um_topic_interest interest);
/* Whether every advertisement that is not settled is the owner's. */
void um_resolver_cache_set_needs_all(um_resolver_cache *cache, bool needs_all);

/* The sources of these sessions, UM_RESOLVER_SESSIONS_MAX at most, are known no more. */
void um_resolver_cache_remove_sessions(um_resolver_cache *cache, const um_session_id *sessions, uint32_t count);

uint32_t um_resolver_cache_count(const um_resolver_cache *cache);
/* How many sources have made space. */
uint64_t um_resolver_cache_evictions(const um_resolver_cache *cache);
/* The sources of a topic, in the order of their first advertisements, `space` of them at most. Returns how many it has.
 */
uint32_t um_resolver_cache_sources_of(const um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                      um_known_source *found, uint32_t space);
/* The names of topics, each with its NUL, so many as there is space for. `*cursor` is 0 at first, and where to go on
 * then. Returns how many bytes they are; 0: there are no more, or there is no space for the next. Every topic that is
 * known from the first call to the last is found once. */
uint32_t um_resolver_cache_topics(const um_resolver_cache *cache, uint32_t *cursor, char *names, uint32_t space);

#endif

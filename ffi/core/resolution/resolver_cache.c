/* One file, because adding or removing a source changes both tables, its topic's ring, the list by age and the free
 * numbers together. */
#include "core/resolution/resolver_cache.h"

enum {
    NONE = 0,
    BUCKETS_MIN = 256,
    INTEREST_PLACES = 65536,
    SESSION_PLACES = 2 * UM_RESOLVER_SESSIONS_MAX,
    AT_ONCE = 32, /* advertisements whose entries are prefetched together: the table is larger than the caches */
};

/* The fields that every advertisement is compared with; most names end within two cache lines. Sources are numbered
 * from 1. */
typedef struct source {
    UM_CACHE_ALIGNED uint64_t hash; /* hash of topic, topic index and session */
    uint64_t options_hash;          /* 0: none */
    uint32_t next_of_hash;          /* next in its bucket of the source table, or next free number */
    uint32_t settled_in;            /* round in which it was settled; 0: never */
    um_session_id session;
    uint32_t topic_index;
    bool was_repeated;  /* advertised again since it was added or spared */
    bool is_own;        /* the session's own address has advertised it */
    uint8_t name_bytes; /* 0: free */
    uint8_t name[UM_LBMR_NAME_BYTES_MAX];
} source;

/* Links between sources. The sources of a topic form a ring in the order of their first advertisements; the first one,
 * the topic's head, is in the topic table. */
typedef struct links {
    uint64_t topic_hash;         /* hash of the name */
    uint32_t next_of_topic_hash; /* head: next in its bucket of the topic table */
    uint32_t next_of_topic;
    uint32_t previous_of_topic;
    uint32_t older;
    uint32_t newer;
    bool is_head;
    um_ip advertiser;
} links;

struct um_resolver_cache {
    um_siphash_key key;
    source *sources;
    links *links;
    uint32_t *source_buckets;
    uint32_t *topic_buckets;
    uint8_t *interests[UM_TOPIC_INTERESTS]; /* number of topics by topic hash; UINT8_MAX is final */
    uint32_t sources_max;
    uint32_t bucket_mask;
    uint32_t used;  /* numbers ever used */
    uint32_t free;  /* head of the list of free numbers */
    uint32_t count; /* number of sources */
    uint32_t oldest;
    uint32_t newest;
    uint32_t round;
    bool needs_all;
    bool has_evicted_options; /* the owner may have options of sources that were evicted */
    uint64_t evictions;
};

/* An advertisement that has been read but not looked up. */
typedef struct arrival {
    um_lbmr_advertisement advertisement;
    uint64_t topic_hash;
    uint64_t hash;
    const uint8_t *start;
    uint32_t bytes;
} arrival;

static um_resolver_cache *layout(um_arena *arena, uint32_t sources_max)
{
    uint64_t buckets = um_power_of_two_at_least(sources_max < BUCKETS_MIN ? BUCKETS_MIN : sources_max);
    um_resolver_cache *cache = um_arena_take(arena, sizeof *cache);
    source *sources = um_arena_take(arena, ((size_t)sources_max + 1) * sizeof *sources);
    links *of_sources = um_arena_take(arena, ((size_t)sources_max + 1) * sizeof *of_sources);
    uint32_t *source_buckets = um_arena_take(arena, buckets * sizeof *source_buckets);
    uint32_t *topic_buckets = um_arena_take(arena, buckets * sizeof *topic_buckets);
    uint8_t *interests = um_arena_take(arena, (size_t)UM_TOPIC_INTERESTS * INTEREST_PLACES);
    if (cache != NULL) {
        cache->sources = sources;
        cache->links = of_sources;
        cache->source_buckets = source_buckets;
        cache->topic_buckets = topic_buckets;
        for (uint32_t i = 0; i < UM_TOPIC_INTERESTS; i++)
            cache->interests[i] = interests + (size_t)i * INTEREST_PLACES;
    }
    return cache;
}

size_t um_resolver_cache_footprint(uint32_t sources_max)
{
    um_arena arena = {0};
    layout(&arena, sources_max);
    return arena.used_bytes;
}

um_resolver_cache *um_resolver_cache_init(void *memory, uint32_t sources_max, um_siphash_key key)
{
    assert(sources_max >= 1 && sources_max < UINT32_MAX);
    um_arena arena = {.base = memory};
    um_resolver_cache *cache = layout(&arena, sources_max);
    cache->key = key;
    cache->sources_max = sources_max;
    cache->bucket_mask = BUCKETS_MIN - 1;
    cache->round = 1;
    return cache;
}

/* Hashes */

static uint64_t hash_of_topic(const um_resolver_cache *cache, um_lbmr_name topic)
{
    return um_siphash_bytes(cache->key, topic.text, topic.bytes);
}

/* Hash of a session id and two further values. */
static uint64_t hash_of_session(const um_resolver_cache *cache, const um_session_id *id, uint64_t word, uint32_t half)
{
    uint64_t words[] = {
        id->source.ip.high,
        id->source.ip.low,
        id->group.ip.high,
        id->group.ip.low,
        (uint64_t)id->session_id << 32 | (uint32_t)id->source.port << 16 | id->group.port,
        (uint64_t)half << 32 | id->transport,
        word,
    };
    return um_siphash_bytes(cache->key, (const uint8_t *)words, sizeof words);
}

static void hash_arrival(const um_resolver_cache *cache, arrival *found)
{
    const um_lbmr_advertisement *advertisement = &found->advertisement;
    found->topic_hash = hash_of_topic(cache, advertisement->topic);
    found->hash = hash_of_session(cache, &advertisement->session, found->topic_hash, advertisement->topic_index);
}

/* Returns 0 if there are no options. */
static uint64_t hash_of_options(const um_resolver_cache *cache, const um_lbmr_advertisement *advertisement)
{
    if (advertisement->options_bytes == 0)
        return 0;
    return um_siphash_bytes(cache->key, advertisement->options, advertisement->options_bytes) | 1;
}

/* Interest */

static uint8_t *interest_place(const um_resolver_cache *cache, uint64_t topic_hash, enum um_topic_interest interest)
{
    return &cache->interests[interest][topic_hash % INTEREST_PLACES];
}

void um_resolver_cache_add_interest(um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                    enum um_topic_interest interest)
{
    uint8_t *place = interest_place(cache, hash_of_topic(cache, (um_lbmr_name){name, bytes}), interest);
    if (*place < UINT8_MAX)
        ++*place;
}

void um_resolver_cache_remove_interest(um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                       enum um_topic_interest interest)
{
    uint8_t *place = interest_place(cache, hash_of_topic(cache, (um_lbmr_name){name, bytes}), interest);
    assert(*place > 0);
    if (*place < UINT8_MAX)
        --*place;
}

void um_resolver_cache_set_needs_all(um_resolver_cache *cache, bool needs_all)
{
    cache->needs_all = needs_all;
}

/* The tables */

static uint32_t *source_bucket(const um_resolver_cache *cache, uint64_t hash)
{
    return &cache->source_buckets[hash & cache->bucket_mask];
}

static uint32_t *topic_bucket(const um_resolver_cache *cache, uint64_t topic_hash)
{
    return &cache->topic_buckets[topic_hash & cache->bucket_mask];
}

static bool has_name(const source *one, um_lbmr_name topic)
{
    return one->name_bytes == topic.bytes && memcmp(one->name, topic.text, topic.bytes) == 0;
}

static uint32_t find_head(const um_resolver_cache *cache, um_lbmr_name topic, uint64_t topic_hash)
{
    uint32_t at = *topic_bucket(cache, topic_hash);
    while (at != NONE && (cache->links[at].topic_hash != topic_hash || !has_name(&cache->sources[at], topic)))
        at = cache->links[at].next_of_topic_hash;
    return at;
}

static uint32_t find(const um_resolver_cache *cache, const um_lbmr_advertisement *wanted, uint64_t hash)
{
    uint32_t at = *source_bucket(cache, hash);
    while (at != NONE) {
        const source *one = &cache->sources[at];
        if (one->hash == hash && one->topic_index == wanted->topic_index && has_name(one, wanted->topic) &&
            um_session_id_equal(&one->session, &wanted->session))
            break;
        at = one->next_of_hash;
    }
    return at;
}

static void push_source(um_resolver_cache *cache, uint32_t number)
{
    uint32_t *bucket = source_bucket(cache, cache->sources[number].hash);
    cache->sources[number].next_of_hash = *bucket;
    *bucket = number;
}

static void push_head(um_resolver_cache *cache, uint32_t number)
{
    links *its = &cache->links[number];
    uint32_t *bucket = topic_bucket(cache, its->topic_hash);
    its->is_head = true;
    its->next_of_topic_hash = *bucket;
    *bucket = number;
}

/* Doubles the buckets once there are as many sources as buckets, so that few sources touch little memory. */
static void grow(um_resolver_cache *cache)
{
    size_t bytes = ((size_t)cache->bucket_mask + 1) * sizeof *cache->source_buckets;
    memset(cache->source_buckets, 0, bytes);
    memset(cache->topic_buckets, 0, bytes);
    cache->bucket_mask = 2 * cache->bucket_mask + 1;
    for (uint32_t number = 1; number <= cache->used; number++)
        if (cache->sources[number].name_bytes > 0) {
            push_source(cache, number);
            if (cache->links[number].is_head)
                push_head(cache, number);
        }
}

/* Ages */

static void unlink_by_age(um_resolver_cache *cache, uint32_t number)
{
    const links *its = &cache->links[number];
    *(its->newer != NONE ? &cache->links[its->newer].older : &cache->newest) = its->older;
    *(its->older != NONE ? &cache->links[its->older].newer : &cache->oldest) = its->newer;
}

static void make_newest(um_resolver_cache *cache, uint32_t number)
{
    links *its = &cache->links[number];
    its->older = cache->newest;
    its->newer = NONE;
    *(cache->newest != NONE ? &cache->links[cache->newest].newer : &cache->oldest) = number;
    cache->newest = number;
}

/* Adding and removing */

static void unlink_head(um_resolver_cache *cache, uint32_t number)
{
    links *its = &cache->links[number];
    uint32_t *at = topic_bucket(cache, its->topic_hash);
    while (*at != number)
        at = &cache->links[*at].next_of_topic_hash;
    *at = its->next_of_topic_hash;
    its->is_head = false;
    if (its->next_of_topic != number)
        push_head(cache, its->next_of_topic);
}

static void discard(um_resolver_cache *cache, uint32_t number)
{
    source *one = &cache->sources[number];
    const links *its = &cache->links[number];
    uint32_t *at = source_bucket(cache, one->hash);
    while (*at != number)
        at = &cache->sources[*at].next_of_hash;
    *at = one->next_of_hash;
    if (its->is_head)
        unlink_head(cache, number);
    cache->links[its->previous_of_topic].next_of_topic = its->next_of_topic;
    cache->links[its->next_of_topic].previous_of_topic = its->previous_of_topic;
    unlink_by_age(cache, number);
    one->name_bytes = 0;
    one->next_of_hash = cache->free;
    cache->free = number;
    cache->count--;
}

/* Evicts the oldest source that was not advertised again. A source that was is spared and becomes the newest; moving
 * each source at every advertisement would touch three other entries. Sparing clears the flag, so the loop ends. */
static void make_space(um_resolver_cache *cache)
{
    while (cache->sources[cache->oldest].was_repeated) {
        uint32_t spared = cache->oldest;
        cache->sources[spared].was_repeated = false;
        unlink_by_age(cache, spared);
        make_newest(cache, spared);
    }
    cache->has_evicted_options |= cache->sources[cache->oldest].options_hash != 0;
    discard(cache, cache->oldest);
    cache->evictions++;
}

static uint32_t take_number(um_resolver_cache *cache)
{
    if (cache->count == cache->sources_max)
        make_space(cache);
    uint32_t number = cache->free;
    if (number == NONE)
        return ++cache->used;
    cache->free = cache->sources[number].next_of_hash;
    return number;
}

static void join_topic(um_resolver_cache *cache, uint32_t number, um_lbmr_name topic, uint64_t topic_hash)
{
    uint32_t head = find_head(cache, topic, topic_hash);
    uint32_t next = head == NONE ? number : head;
    uint32_t previous = head == NONE ? number : cache->links[head].previous_of_topic;
    cache->links[number] = (links){.topic_hash = topic_hash, .next_of_topic = next, .previous_of_topic = previous};
    cache->links[previous].next_of_topic = number;
    cache->links[next].previous_of_topic = number;
    if (head == NONE)
        push_head(cache, number);
}

static uint32_t insert(um_resolver_cache *cache, const arrival *found, um_ip advertiser)
{
    um_lbmr_name topic = found->advertisement.topic;
    uint32_t number = take_number(cache);
    if (cache->count > cache->bucket_mask)
        grow(cache);
    source *one = &cache->sources[number];
    one->hash = found->hash;
    one->options_hash = 0;
    one->settled_in = 0;
    one->session = found->advertisement.session;
    one->topic_index = found->advertisement.topic_index;
    one->is_own = um_ip_equal(advertiser, one->session.source.ip);
    one->was_repeated = false;
    one->name_bytes = (uint8_t)topic.bytes;
    memcpy(one->name, topic.text, topic.bytes);
    push_source(cache, number);
    join_topic(cache, number, topic, found->topic_hash);
    cache->links[number].advertiser = advertiser;
    make_newest(cache, number);
    cache->count++;
    return number;
}

/* Datagrams */

static bool can_have_receiver(const um_resolver_cache *cache, const arrival *found)
{
    return *interest_place(cache, found->topic_hash, UM_TOPIC_HAS_RECEIVER) > 0;
}

/* Handles the last advertisement of a source. Returns true if it is passed to the owner. */
static bool take_last(um_resolver_cache *cache, const arrival *found, uint32_t number)
{
    bool had_options = number == NONE ? cache->has_evicted_options : cache->sources[number].options_hash != 0;
    if (number != NONE)
        discard(cache, number);
    return had_options || can_have_receiver(cache, found);
}

/* Handles an advertisement. Returns true if it is passed to the owner. */
static bool take_source(um_resolver_cache *cache, const arrival *found, um_ip advertiser)
{
    uint64_t options_hash = hash_of_options(cache, &found->advertisement);
    uint32_t number = find(cache, &found->advertisement, found->hash);
    if (found->advertisement.ttl == 0)
        return take_last(cache, found, number);
    bool had_options = cache->has_evicted_options;
    bool is_new = number == NONE;
    if (is_new)
        number = insert(cache, found, advertiser);
    source *one = &cache->sources[number];
    if (!is_new) {
        one->was_repeated = true;
        if (UM_UNLIKELY(!one->is_own) && um_ip_equal(advertiser, one->session.source.ip)) {
            one->is_own = true;
            one->settled_in = 0;
            cache->links[number].advertiser = advertiser;
        }
        if (one->settled_in == cache->round && one->options_hash == options_hash)
            return false;
        had_options = one->options_hash != 0;
    }
    one->options_hash = options_hash;
    bool is_for_owner = had_options || options_hash != 0 || cache->needs_all || can_have_receiver(cache, found);
    one->settled_in = is_for_owner ? 0 : cache->round;
    return is_for_owner;
}

static void note(um_resolver_intake *intake, const uint8_t *data, const uint8_t *start, uint32_t bytes)
{
    assert(intake->owner_records < UM_LBMR_RECORDS_MAX);
    intake->records[intake->owner_records++] = (um_lbmr_place){(uint32_t)(start - data), bytes};
}

/* The datagram has been checked, so every record can be read. */
static void take_queries(um_resolver_cache *cache, um_lbmr_reader *reader, const uint8_t *data,
                         um_resolver_intake *intake)
{
    um_lbmr_name topic = {0};
    for (uint32_t i = 0; i < reader->query_count; i++) {
        (void)um_lbmr_read_query(reader, &topic);
        if (*interest_place(cache, hash_of_topic(cache, topic), UM_TOPIC_HAS_SOURCE) > 0)
            note(intake, data, topic.text, topic.bytes);
    }
    intake->owner_queries = intake->owner_records;
}

/* Reads the next joinable advertisement and hashes it. Returns false if there are no more. */
static bool read_arrival(const um_resolver_cache *cache, um_lbmr_reader *reader, uint32_t *left,
                         um_resolver_intake *intake, arrival *found)
{
    while (*left > 0) {
        --*left;
        found->start = reader->at;
        (void)um_lbmr_read_advertisement(reader, &found->advertisement);
        found->bytes = (uint32_t)(reader->at - found->start);
        if (found->advertisement.is_joinable) {
            hash_arrival(cache, found);
            return true;
        }
        intake->ignored_count++;
    }
    return false;
}

static void take_advertisements(um_resolver_cache *cache, um_lbmr_reader *reader, const uint8_t *data, um_ip advertiser,
                                um_resolver_intake *intake)
{
    arrival found[AT_ONCE];
    uint32_t left = reader->advertisement_count;
    uint32_t count;
    do {
        for (count = 0; count < AT_ONCE && read_arrival(cache, reader, &left, intake, &found[count]); count++)
            __builtin_prefetch(source_bucket(cache, found[count].hash));
        for (uint32_t i = 0; i < count; i++) {
            const source *first = &cache->sources[*source_bucket(cache, found[i].hash)];
            um_prefetch((const uint8_t *)first, 2 * UM_CACHE_LINE_BYTES);
        }
        for (uint32_t i = 0; i < count; i++)
            if (take_source(cache, &found[i], advertiser))
                note(intake, data, found[i].start, found[i].bytes);
    } while (count == AT_ONCE);
}

bool um_resolver_cache_take(um_resolver_cache *cache, const uint8_t *data, uint32_t bytes, um_ip advertiser,
                            um_resolver_intake *intake)
{
    um_lbmr_reader reader;
    if (bytes > UM_LBMR_DATAGRAM_BYTES_MAX || !um_lbmr_check(&reader, data, bytes))
        return false;
    intake->query_count = reader.query_count;
    intake->advertisement_count = reader.advertisement_count;
    intake->ignored_count = 0;
    intake->owner_queries = 0;
    intake->owner_records = 0;
    take_queries(cache, &reader, data, intake);
    take_advertisements(cache, &reader, data, advertiser, intake);
    return true;
}

void um_resolver_cache_settle(um_resolver_cache *cache, const uint8_t *record, uint32_t bytes)
{
    um_lbmr_reader reader = {.at = record, .end = record + bytes};
    arrival found;
    if (!um_lbmr_read_advertisement(&reader, &found.advertisement))
        return;
    hash_arrival(cache, &found);
    uint32_t number = find(cache, &found.advertisement, found.hash);
    if (number != NONE && cache->sources[number].options_hash == hash_of_options(cache, &found.advertisement))
        cache->sources[number].settled_in = cache->round;
}

void um_resolver_cache_unsettle(um_resolver_cache *cache)
{
    if (++cache->round != 0)
        return;
    for (uint32_t number = 1; number <= cache->used; number++)
        cache->sources[number].settled_in = 0;
    cache->round = 1;
}

/* Looks a session up in `places`, a hash table of numbers of `sessions`, from 1. *place: its place, or a free one. */
static bool find_session(const um_resolver_cache *cache, const uint16_t *places, const um_session_id *sessions,
                         const um_session_id *wanted, uint32_t *place)
{
    *place = (uint32_t)hash_of_session(cache, wanted, 0, 0) % SESSION_PLACES;
    for (; places[*place] != 0; *place = (*place + 1) % SESSION_PLACES)
        if (um_session_id_equal(&sessions[places[*place] - 1], wanted))
            return true;
    return false;
}

void um_resolver_cache_remove_sessions(um_resolver_cache *cache, const um_session_id *sessions, uint32_t count)
{
    uint16_t places[SESSION_PLACES] = {0};
    uint32_t place;
    assert(count <= UM_RESOLVER_SESSIONS_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (!find_session(cache, places, sessions, &sessions[i], &place))
            places[place] = (uint16_t)(i + 1);
    for (uint32_t number = 1; number <= cache->used; number++) {
        source *one = &cache->sources[number];
        if (one->name_bytes > 0 && find_session(cache, places, sessions, &one->session, &place))
            discard(cache, number);
    }
}

/* Queries */

uint32_t um_resolver_cache_count(const um_resolver_cache *cache)
{
    return cache->count;
}

uint64_t um_resolver_cache_evictions(const um_resolver_cache *cache)
{
    return cache->evictions;
}

uint32_t um_resolver_cache_sources_of(const um_resolver_cache *cache, const uint8_t *name, uint32_t bytes,
                                      um_known_source *found, uint32_t space)
{
    um_lbmr_name topic = {name, bytes};
    uint32_t head = find_head(cache, topic, hash_of_topic(cache, topic));
    uint32_t count = 0;
    if (head == NONE)
        return 0;
    uint32_t at = head;
    do {
        const source *one = &cache->sources[at];
        if (count < space)
            found[count] = (um_known_source){one->session, cache->links[at].advertiser, one->topic_index};
        count++;
        at = cache->links[at].next_of_topic;
    } while (at != head);
    return count;
}

uint32_t um_resolver_cache_topics(const um_resolver_cache *cache, uint32_t *cursor, char *names, uint32_t space)
{
    uint32_t bytes = 0;
    for (; *cursor < cache->used; ++*cursor) {
        const source *one = &cache->sources[*cursor + 1];
        if (one->name_bytes == 0 || !cache->links[*cursor + 1].is_head)
            continue;
        if (bytes + one->name_bytes + 1u > space)
            break;
        memcpy(names + bytes, one->name, one->name_bytes);
        names[bytes + one->name_bytes] = 0;
        bytes += one->name_bytes + 1u;
    }
    return bytes;
}

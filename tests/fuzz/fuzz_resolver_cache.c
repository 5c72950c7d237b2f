/* The resolver cache, and a resolution daemon's relayed records: raw datagrams, and well-formed ones of
 * a few topics and sessions, some with options, while interests change and sessions end. Checked: records for the
 * owner are inside the datagram, known sources are bounded, listed once and found by topic, and no record of
 * interest to the owner is missed.
 */
#include "fuzz.h"

#include "core/resolution/relayed_records.h"
#include "core/resolution/resolver_cache.h"

enum { SOURCES_MAX = 6, TOPICS = 5, DATAGRAM_MAX = 1500, NAMES_MAX = SOURCES_MAX * (UM_LBMR_NAME_BYTES_MAX + 1) };

static const char *const TOPIC_NAMES[TOPICS] = {"a", "b", "orders", "orders.eu", "a topic with a name that is longer"};

typedef struct world {
    um_resolver_cache *cache;
    uint32_t interests[UM_TOPIC_INTERESTS][TOPICS];
    bool needs_all;
    um_resolver_intake intake;
    um_relayed_records *relayed;
    um_relayed_part part;
} world;

static world w;
static uint8_t *memory;
static uint8_t *relayed_memory;

static const uint8_t *name_of(uint32_t topic)
{
    return (const uint8_t *)TOPIC_NAMES[topic];
}

static uint32_t bytes_of(uint32_t topic)
{
    return (uint32_t)strlen(TOPIC_NAMES[topic]);
}

static void begin(void)
{
    size_t bytes = um_resolver_cache_footprint(SOURCES_MAX);
    if (memory == NULL)
        memory = fuzz_zeroed(bytes);
    memset(memory, 0, bytes);
    memset(&w, 0, sizeof w);
    w.cache = um_resolver_cache_init(memory, SOURCES_MAX, (um_siphash_key){1, 2});
    if (relayed_memory == NULL)
        relayed_memory = fuzz_zeroed(um_relayed_records_footprint());
    w.relayed = um_relayed_records_init(relayed_memory, (um_siphash_key){1, 2});
    um_relayed_records_forget(w.relayed);
}

/* The known sources, listed by topic: as many as are counted, each topic once. */
static void check_known(void)
{
    char names[NAMES_MAX];
    uint32_t cursor = 0, found = 0;
    uint32_t bytes = um_resolver_cache_topics(w.cache, &cursor, names, sizeof names);
    for (uint32_t at = 0; at < bytes; at += (uint32_t)strlen(names + at) + 1) {
        um_known_source sources[SOURCES_MAX];
        uint32_t length = (uint32_t)strlen(names + at);
        uint32_t count =
            um_resolver_cache_sources_of(w.cache, (const uint8_t *)names + at, length, sources, SOURCES_MAX);
        REQUIRE(length > 0 && length <= UM_LBMR_NAME_BYTES_MAX && count > 0 && count <= SOURCES_MAX);
        for (uint32_t i = 0; i < count; i++)
            REQUIRE(um_lbmr_is_joinable(&sources[i].session));
        for (uint32_t other = 0; other < at; other += (uint32_t)strlen(names + other) + 1)
            REQUIRE(strcmp(names + at, names + other) != 0);
        found += count;
    }
    REQUIRE(found == um_resolver_cache_count(w.cache) && found <= SOURCES_MAX);
    REQUIRE(um_resolver_cache_topics(w.cache, &cursor, names, sizeof names) == 0);
}

static bool is_of_interest(um_lbmr_name name, enum um_topic_interest interest)
{
    for (uint32_t topic = 0; topic < TOPICS; topic++)
        if (w.interests[interest][topic] > 0 && name.bytes == bytes_of(topic) &&
            memcmp(name.text, name_of(topic), name.bytes) == 0)
            return true;
    return false;
}

/* Every record of interest is passed to the owner, in the order of the datagram. Advertisements may be settled, so
 * only last advertisements are certain. */
static void check_owners(const uint8_t *data, uint32_t bytes)
{
    um_lbmr_reader reader;
    um_lbmr_name topic;
    um_lbmr_advertisement found;
    uint32_t next = 0;
    REQUIRE(um_lbmr_check(&reader, data, bytes));
    REQUIRE(w.intake.query_count == reader.query_count && w.intake.advertisement_count == reader.advertisement_count);
    for (uint32_t i = 0; i < reader.query_count; i++) {
        REQUIRE(um_lbmr_read_query(&reader, &topic));
        bool is_given = next < w.intake.owner_queries && data + w.intake.records[next].offset == topic.text;
        REQUIRE(is_given || !is_of_interest(topic, UM_TOPIC_HAS_SOURCE));
        next += is_given;
    }
    REQUIRE(next == w.intake.owner_queries);
    for (uint32_t i = 0; i < reader.advertisement_count; i++) {
        const uint8_t *start = reader.at;
        REQUIRE(um_lbmr_read_advertisement(&reader, &found));
        bool is_given = next < w.intake.owner_records && data + w.intake.records[next].offset == start;
        REQUIRE(!is_given || (found.is_joinable && start + w.intake.records[next].bytes == reader.at));
        REQUIRE(is_given || found.ttl > 0 || !found.is_joinable || !is_of_interest(found.topic, UM_TOPIC_HAS_RECEIVER));
        next += is_given;
    }
    REQUIRE(next == w.intake.owner_records);
}

/* Records are ascending in the datagram; an immediate repetition relays none. */
static void relay(const uint8_t *data, uint32_t bytes, bool is_well_formed)
{
    um_lbmr_reader reader;
    for (uint32_t turn = 0; turn < 2; turn++) {
        bool is_taken = um_relayed_records_take(w.relayed, data, bytes, 7, 0, turn, &w.part);
        REQUIRE(is_taken == is_well_formed);
        if (!is_taken)
            return;
        uint32_t end = UM_LBMR_HEADER_BYTES;
        REQUIRE(um_lbmr_check(&reader, data, bytes) && w.part.query_count <= w.part.record_count);
        REQUIRE(w.part.record_count + w.part.left_out_count == reader.query_count + reader.advertisement_count);
        for (uint32_t i = 0; i < w.part.record_count; i++) {
            REQUIRE(w.part.records[i].offset >= end && w.part.records[i].bytes > 0);
            end = w.part.records[i].offset + w.part.records[i].bytes;
            REQUIRE(end <= bytes);
        }
        REQUIRE(turn > 0 || w.part.left_out_count == 0);
    }
}

static void take(const uint8_t *data, uint32_t bytes)
{
    um_lbmr_reader reader;
    bool is_taken = false;
    bool is_well_formed = um_lbmr_check(&reader, data, bytes);
    uint32_t before = um_resolver_cache_count(w.cache);
    BOUNDED(is_taken = um_resolver_cache_take(w.cache, data, bytes, um_ip_of_v4(bytes % 3), &w.intake));
    REQUIRE(is_taken == is_well_formed);
    if (is_taken)
        check_owners(data, bytes);
    else
        REQUIRE(um_resolver_cache_count(w.cache) == before);
    relay(data, bytes, is_well_formed);
    check_known();
}

static uint32_t put_session(uint8_t *to, uint8_t choice)
{
    static const uint8_t lbtrm[] = {0x10, 16, 0, 60, 0, 0, 0, 1, 10, 0, 0, 1, 224, 9, 9, 9, 0, 0, 0, 7, 1, 1, 2, 2};
    static const uint8_t lbtru[] = {0x01, 10, 0, 60, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 7, 1, 1};
    static const uint8_t tcp[] = {0x00, 6, 0, 60, 0, 0, 0, 1, 10, 0, 0, 1, 1, 1};
    static const uint8_t *const all[] = {lbtrm, lbtru, tcp};
    static const uint8_t lengths[] = {sizeof lbtrm, sizeof lbtru, sizeof tcp};
    static const uint8_t options[] = {0, 4, 0, 7, 9, 3, 5};
    uint32_t fixed = UM_LBMR_TIR_FIXED_BYTES, length = lengths[choice % 3];
    const uint8_t *from = all[choice % 3];
    memcpy(to, from, fixed);
    to[3] = choice & 0x80 ? 0 : 60;
    to[7] = choice >> 2 & 3;
    bool has_options = choice & 0x40;
    if (has_options) {
        to[0] |= 0x80;
        memcpy(to + fixed, options, sizeof options);
        to[fixed + 6] = choice >> 4 & 1;
        fixed += sizeof options;
    }
    memcpy(to + fixed, from + UM_LBMR_TIR_FIXED_BYTES, length - UM_LBMR_TIR_FIXED_BYTES);
    to[fixed + 3] = 1 + (choice >> 4 & 3);
    return fixed + length - UM_LBMR_TIR_FIXED_BYTES;
}

static void take_made(fuzz_input *input)
{
    uint8_t data[DATAGRAM_MAX] = {0};
    uint32_t at = UM_LBMR_HEADER_BYTES, count = take_u8(input) % 16;
    data[1] = take_u8(input) % 4;
    data[3] = (uint8_t)count;
    for (uint32_t i = 0; i < data[1] + count; i++) {
        uint32_t topic = take_u8(input) % TOPICS;
        memcpy(data + at, name_of(topic), bytes_of(topic) + 1);
        at += bytes_of(topic) + 1;
        if (i >= data[1])
            at += put_session(data + at, take_u8(input));
        REQUIRE(at < DATAGRAM_MAX);
    }
    take(data, at);
    for (uint32_t i = w.intake.owner_queries; i < w.intake.owner_records; i++)
        if (take_u8(input) & 1)
            um_resolver_cache_settle(w.cache, data + w.intake.records[i].offset, w.intake.records[i].bytes);
}

static void change_interest(uint8_t choice)
{
    uint32_t topic = (choice >> 2) % TOPICS;
    enum um_topic_interest interest = choice & 1 ? UM_TOPIC_HAS_SOURCE : UM_TOPIC_HAS_RECEIVER;
    if (choice & 2) {
        um_resolver_cache_add_interest(w.cache, name_of(topic), bytes_of(topic), interest);
        w.interests[interest][topic]++;
    } else if (w.interests[interest][topic] > 0) {
        um_resolver_cache_remove_interest(w.cache, name_of(topic), bytes_of(topic), interest);
        w.interests[interest][topic]--;
    }
}

static void end_sessions(fuzz_input *input)
{
    um_known_source sources[SOURCES_MAX];
    um_session_id ended[SOURCES_MAX];
    uint32_t topic = take_u8(input) % TOPICS;
    uint32_t count = um_resolver_cache_sources_of(w.cache, name_of(topic), bytes_of(topic), sources, SOURCES_MAX);
    uint32_t some = count == 0 ? 0 : 1 + take_u8(input) % count;
    for (uint32_t i = 0; i < some; i++)
        ended[i] = sources[i].session;
    um_resolver_cache_remove_sessions(w.cache, ended, some);
    uint32_t left = um_resolver_cache_sources_of(w.cache, name_of(topic), bytes_of(topic), sources, SOURCES_MAX);
    REQUIRE(left + some <= count);
    for (uint32_t i = 0; i < left; i++)
        for (uint32_t j = 0; j < some; j++)
            REQUIRE(!um_session_id_equal(&sources[i].session, &ended[j]));
    check_known();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    begin();
    while (input.left > 0) {
        uint8_t choice = take_u8(&input);
        fuzz_input raw;
        switch (choice % 8) {
        case 0:
            raw = take_bytes(&input, take_u16(&input) % DATAGRAM_MAX);
            take(raw.at, (uint32_t)raw.left);
            break;
        case 1:
            change_interest(choice >> 3);
            break;
        case 2:
            end_sessions(&input);
            break;
        case 3:
            um_resolver_cache_unsettle(w.cache);
            break;
        case 4:
            um_resolver_cache_set_needs_all(w.cache, choice & 8);
            break;
        default:
            take_made(&input);
        }
    }
    return 0;
}

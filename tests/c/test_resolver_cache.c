/* LBMR and the resolver cache: bytes at their bounds, and the cost of a datagram. tests/unit/test_resolver_cache.py
 * compares its behaviour with a model. */
#include "core/resolution/resolver_cache.h"
#include "support.h"

enum { SPACE = 4096 };

static const um_ip ADVERTISER = {0, UM_IPV4_MAPPED | 0x0a000009};

static const uint8_t LBTRM[] = {0x10, 16, 0, 60, 0, 0, 0, 1, 10, 0, 0, 1, 224, 9, 9, 9, 0, 0, 0, 7, 1, 1, 2, 2};

typedef struct datagram {
    uint8_t data[SPACE];
    uint32_t bytes;
} datagram;

static datagram datagram_of(uint8_t queries, uint8_t advertisements)
{
    return (datagram){.data = {0, queries, 0, advertisements}, .bytes = UM_LBMR_HEADER_BYTES};
}

static void put(datagram *to, const void *data, uint32_t bytes)
{
    CHECK(to->bytes + bytes <= SPACE);
    memcpy(to->data + to->bytes, data, bytes);
    to->bytes += bytes;
}

static void put_name(datagram *to, char letter, uint32_t bytes)
{
    char name[SPACE];
    memset(name, letter, bytes);
    name[bytes] = 0;
    put(to, name, bytes + 1);
}

/* In a block of the exact size, so that AddressSanitizer detects a read beyond it. */
static bool check(const datagram *made, uint32_t bytes)
{
    um_lbmr_reader reader;
    uint8_t *exact = malloc(bytes + (bytes == 0));
    memcpy(exact, made->data, bytes);
    bool is_well_formed = um_lbmr_check(&reader, exact, bytes);
    free(exact);
    return is_well_formed;
}

static um_resolver_cache *cache_of(uint32_t sources_max, uint8_t **memory)
{
    *memory = zeroed(um_resolver_cache_footprint(sources_max));
    return um_resolver_cache_init(*memory, sources_max, (um_siphash_key){3, 4});
}

TEST("W1", "a topic resolution datagram cut anywhere is malformed")
{
    static const uint8_t options[] = {0, 4, 0, 7, 9, 3, 5}, packet_options[] = {5, 3, 1, 0x80, 4, 0, 7};
    datagram made = datagram_of(1, 2);
    made.data[0] = 8;
    put_name(&made, 'q', 10);
    put_name(&made, 'a', 10);
    put(&made, LBTRM, sizeof LBTRM);
    put_name(&made, 'b', 10);
    uint32_t transport_at = made.bytes;
    put(&made, LBTRM, 8);
    made.data[transport_at] |= 0x80;
    put(&made, options, sizeof options);
    put(&made, LBTRM + 8, sizeof LBTRM - 8);
    put(&made, packet_options, sizeof packet_options);
    CHECK(check(&made, made.bytes));
    for (uint32_t bytes = 0; bytes < made.bytes; bytes++)
        CHECK(!check(&made, bytes));
}

TEST("W1", "names of topics have 1 to 246 bytes")
{
    static const struct {
        uint32_t bytes;
        bool is_right;
    } cases[] = {{0, false}, {1, true}, {246, true}, {247, false}, {1000, false}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        datagram query = datagram_of(1, 0), advertisement = datagram_of(0, 1);
        put_name(&query, 'q', cases[i].bytes);
        put_name(&advertisement, 'a', cases[i].bytes);
        put(&advertisement, LBTRM, sizeof LBTRM);
        CHECK_EQ(check(&query, query.bytes), cases[i].is_right);
        CHECK_EQ(check(&advertisement, advertisement.bytes), cases[i].is_right);
    }
}

TEST("W1", "another version, another type and a count without records are refused")
{
    uint8_t *memory;
    um_resolver_cache *cache = cache_of(4, &memory);
    um_resolver_intake *intake = zeroed(sizeof *intake);
    static const uint8_t refused[][4] = {{0x20}, {0xf0}, {1}, {2}, {7}, {0, 1}, {0, 0, 0, 1}, {0, 0, 0xff, 0xff}, {8}};
    for (uint32_t i = 0; i < sizeof refused / sizeof *refused; i++)
        CHECK(!um_resolver_cache_take(cache, refused[i], 4, ADVERTISER, intake));
    static const uint8_t keepalive[4] = {0};
    CHECK(um_resolver_cache_take(cache, keepalive, 4, ADVERTISER, intake));
    CHECK_EQ(intake->owner_records, 0);
    static const uint8_t later_keepalive[4] = {0x10};
    CHECK(um_resolver_cache_take(cache, later_keepalive, 4, ADVERTISER, intake));
    free(intake);
    free(memory);
}

TEST("UX-16", "a cache grows to its bound, and every source is found")
{
    enum { SOURCES = 1000 };
    uint8_t *memory;
    um_resolver_cache *cache = cache_of(SOURCES, &memory);
    um_resolver_intake *intake = zeroed(sizeof *intake);
    um_known_source found[2];
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < SOURCES + 10; i++) {
            datagram made = datagram_of(0, 1);
            put(&made, &(char[]){'t', (char)(1 + i / 200), (char)(1 + i % 200), 0}, 4);
            put(&made, LBTRM, sizeof LBTRM);
            CHECK(um_resolver_cache_take(cache, made.data, made.bytes, ADVERTISER, intake));
            CHECK_EQ(um_resolver_cache_sources_of(cache, made.data + 4, 3, found, 2), 1);
            CHECK_EQ(found[0].session.session_id, 7);
        }
    CHECK_EQ(um_resolver_cache_count(cache), SOURCES);
    CHECK_EQ(um_resolver_cache_evictions(cache), SOURCES + 20);
    free(intake);
    free(memory);
}

TEST("UX-16", "a source keeps its first advertiser until its own address advertises it, which the owner handles once")
{
    const um_ip own = um_ip_of_v4(0x0a000001), other = um_ip_of_v4(0x0a000008);
    const struct {
        um_ip from;
        bool is_for_owner;
        um_ip advertiser;
    } steps[] = {
        {other, true, other}, {ADVERTISER, false, other}, {own, true, own}, {own, false, own}, {other, false, own}};
    uint8_t *memory;
    um_resolver_cache *cache = cache_of(4, &memory);
    um_resolver_intake *intake = zeroed(sizeof *intake);
    um_known_source found[1];
    datagram made = datagram_of(0, 1);
    put(&made, "t", 2);
    put(&made, LBTRM, sizeof LBTRM);
    um_resolver_cache_add_interest(cache, made.data + 4, 1, UM_TOPIC_HAS_RECEIVER);
    for (uint32_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        CHECK(um_resolver_cache_take(cache, made.data, made.bytes, steps[i].from, intake));
        CHECK_EQ(intake->owner_records, steps[i].is_for_owner);
        um_resolver_cache_settle(cache, made.data + 4, made.bytes - 4);
        CHECK_EQ(um_resolver_cache_sources_of(cache, made.data + 4, 1, found, 1), 1);
        CHECK(um_ip_equal(found[0].advertiser, steps[i].advertiser));
    }
    free(intake);
    free(memory);
}

CHECK_MAIN

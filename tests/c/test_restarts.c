/* Restarts of sources, receivers, sessions, clients and senders, with fabricated times: every table that they fill
 * stays within its bound (docs/bounded-tables.md), no live peer is forgotten, and none is taken for another one.
 * Publishers of hot failover restart in test_hot_failover.c.
 *
 * UMSTACK_RESTARTS=1000000 in the environment: this number in each test instead of RESTARTS.
 */
#include "authentication/verifiers.h"
#include "core/delivery/delivery_controller.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "core/resolution/resolver_cache.h"
#include "core/source/receiver_census.h"
#include "core/source/stall_penalties.h"
#include "support.h"

enum { RESTARTS = 20000, LONG_RUN_SECONDS = 3600, STEP_NS = 10 * NS_PER_MS };

static uint32_t restarts(void)
{
    const char *text = getenv("UMSTACK_RESTARTS");
    if (text == NULL)
        return RESTARTS;
    alarm(LONG_RUN_SECONDS);
    return (uint32_t)strtoul(text, NULL, 10);
}

/* ---- sources, received ---- */

enum {
    HOSTS = 16,
    LIVES = 1024,        /* remembered: more than are alive and can be resumed */
    MESSAGES = 3,        /* per life */
    POINTS = 512,        /* of ended sessions */
    RESUMED_AFTER = 300, /* restarts: the session has ended, and its position is still known */
    RESUME_EVERY = 50,
    NAK_PORT = 30000,
    TOPIC = 7,
};

/* A session from its first datagram until it has ended. */
typedef struct life {
    um_receiver_session session;
    um_delivery delivery;
    void *memory;
    um_session_id id;
    uint32_t number;
    uint32_t next_transport_sqn;
    uint32_t next_sqn; /* of the topic, to be sent */
    uint32_t expected; /* to be delivered */
    bool is_open;
    bool has_begun;
} life;

typedef struct audience {
    um_node node;
    capture_link link;
    um_message_queue queue;
    um_receiver receiver;
    void *memory[3];
    life *lives; /* LIVES */
    uint64_t delivered;
    int64_t now_ns;
} audience;

static um_receiver_session_config session_config(const um_session_id *id)
{
    return (um_receiver_session_config){.id = *id,
                                        .nak_generation_ns = 10 * (int64_t)NS_PER_S,
                                        .activity_timeout_ns = NS_PER_S,
                                        .datagram_max_bytes = 1472,
                                        .loss_capacity = 16,
                                        .topic_capacity = 1,
                                        .window_bytes = 1 << 16,
                                        .status_interval_ns = 200 * NS_PER_MS,
                                        .random_seed = id->session_id};
}

static audience *open_audience(void)
{
    enum { CELLS = 64, ENTRIES = 64, BLOCKS = 4, ROWS = 64, BLOCK_BYTES = 8192 };
    audience *a = zeroed(sizeof *a);
    a->now_ns = NS_PER_S;
    a->link.base.ops = &capture_ops; /* full: it records nothing */
    um_node_init(&a->node);
    a->memory[0] = zeroed(um_reorder_footprint(CELLS, 1472, ENTRIES));
    um_reorder_init(&a->node.store, a->memory[0], CELLS, 1472, ENTRIES);
    a->memory[1] = zeroed(um_resume_points_footprint(POINTS));
    um_resume_points_init(&a->node.resume_points, a->memory[1], POINTS);
    a->memory[2] = zeroed(um_queue_footprint(BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN));
    um_queue_init(&a->queue, a->memory[2], BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    CHECK(um_node_add_queue(&a->node, &a->queue));
    a->receiver = (um_receiver){.config = {.ordered_delivery = UM_ORDERED_SEQUENCE, .burst_loss_max = 1 << 20},
                                .queue = &a->queue,
                                .store = &a->node.store,
                                .context_counters = &a->node.counters};
    a->lives = zeroed(LIVES * sizeof *a->lives);
    return a;
}

static void close_audience(audience *a)
{
    for (uint32_t i = 0; i < 3; i++)
        free(a->memory[i]);
    free(a->lives);
    free(a);
}

static um_session_id identity(uint32_t number)
{
    um_address source = um_address_of_v4(0x0a090001 + number % HOSTS, NAK_PORT);
    return (um_session_id){source, UM_ADDRESS_V4(0xe00a0a0a, 14400), number + 1, UM_TRANSPORT_LBTRM, 0};
}

static void join(audience *a, life *l)
{
    um_receiver_session_config config = session_config(&l->id);
    l->memory = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(&l->session, l->memory, &config, &a->link.base, &a->node.store, a->now_ns);
    CHECK(um_node_add_session(&a->node, &l->session));
    um_delivery_init(&l->delivery, &a->receiver, l->number, l->number, TOPIC, config.nak_generation_ns);
    um_resume_points_apply(&a->node.resume_points, &l->session, &l->delivery);
    CHECK(um_receiver_session_map(&l->session, &l->delivery, a->now_ns));
    l->is_open = true;
    l->has_begun = false;
}

static void leave(audience *a, life *l)
{
    um_receiver_session_unmap(&l->session, &l->delivery);
    um_node_remove_session(&a->node, &l->session);
    free(l->memory);
    l->is_open = false;
}

static void receive_at(audience *a, const life *l, uint32_t transport_sqn, uint32_t sqn)
{
    uint8_t out[256] = {0};
    um_lbtrm_write_data(out, l->id.session_id, NAK_PORT, transport_sqn, transport_sqn, false);
    um_lbmc_layout layout = {.topic_index = TOPIC, .sqn = sqn, .payload_length = 4};
    uint8_t *payload = um_lbmc_write_message(out + UM_LBTRM_DATA_BYTES, &layout);
    um_store_be32(payload, l->number);
    um_rx rx = {.data = out,
                .length = (uint32_t)(payload + 4 - out),
                .from = {l->id.source.ip, 5555},
                .to = l->id.group,
                .received_ns = a->now_ns};
    um_node_on_data(&a->node, &rx, a->now_ns);
}

static void receive_messages(audience *a, life *l)
{
    for (uint32_t i = 0; i < MESSAGES; i++)
        receive_at(a, l, l->next_transport_sqn++, l->next_sqn++);
}

/* Reads every row; each belongs to a life, whose messages come once and in order. */
static void read_all(audience *a)
{
    for (um_rows rows; (rows = um_queue_take(&a->queue, 1)).count > 0; um_queue_release(rows.block, 1)) {
        const um_block *block = rows.block;
        life *l = &a->lives[block->sources[rows.first] % LIVES];
        enum um_row_kind kind = um_row_kind_of(block->flags[rows.first]);
        CHECK(l->is_open && l->number == block->sources[rows.first]);
        if (kind == UM_ROW_BEGINNING_OF_SESSION) {
            CHECK(!l->has_begun);
            l->has_begun = true;
        } else if (kind == UM_ROW_MESSAGE) {
            CHECK(l->has_begun);
            CHECK_EQ(block->sequence_numbers[rows.first], l->expected);
            CHECK_EQ(um_load_be32(block->payload + block->offsets[rows.first]), l->number);
            l->expected++;
            a->delivered++;
        } else {
            CHECK_EQ(kind, UM_ROW_END_OF_SESSION);
            CHECK_EQ(l->expected, l->next_sqn);
        }
    }
}

/* Lets the clock run, and removes the sessions that have ended. */
static void pass(audience *a)
{
    a->now_ns += STEP_NS;
    um_node_tick(&a->node, a->now_ns);
    read_all(a);
    for (um_receiver_session *ended; (ended = um_node_finished_session(&a->node)) != NULL;) {
        CHECK(um_resume_points_save(&a->node.resume_points, ended) == 0 || a->node.resume_points.used == POINTS);
        leave(a, (life *)(void *)ended); /* the session is its first member */
    }
    CHECK(a->node.session_count < UM_NODE_SESSIONS_MAX);
    CHECK(a->node.resume_points.used <= POINTS);
}

TEST("W1 UM-104", "restarts of sources: each message of each life once, in order, and a session that returns resumes")
{
    audience *a = open_audience();
    uint64_t sent = 0, resumed = 0;
    for (uint32_t number = 0, count = restarts(); number < count; number++) {
        life *l = &a->lives[number % LIVES];
        CHECK(!l->is_open);
        *l = (life){.id = identity(number),
                    .number = number,
                    .next_transport_sqn = number * 2654435761u,
                    .next_sqn = number * 40503u,
                    .expected = number * 40503u};
        join(a, l);
        CHECK(!l->session.is_resumed);
        receive_messages(a, l);
        sent += MESSAGES;
        life *old = &a->lives[(number - RESUMED_AFTER) % LIVES];
        if (number >= RESUMED_AFTER && number % RESUME_EVERY == 0) {
            CHECK(!old->is_open);
            join(a, old);
            CHECK(old->session.is_resumed);
            receive_at(a, old, old->next_transport_sqn - 1, old->next_sqn - 1); /* delivered in its first life */
            receive_messages(a, old);
            sent += MESSAGES;
            resumed++;
        }
        pass(a);
    }
    for (int64_t until_ns = a->now_ns + 2 * (int64_t)NS_PER_S; a->now_ns < until_ns;)
        pass(a);
    CHECK_EQ(a->node.session_count, 0);
    CHECK_EQ(a->delivered, sent);
    CHECK(resumed > 0);
    close_audience(a);
}

TEST("W1", "sources that are advertised and send nothing displace no session with data")
{
    enum { FLOODED = LIVES - 8, SENDING = 8, ELSEWHERE = 1 << 30 };
    audience *a = open_audience();
    for (uint32_t i = 0; i < SENDING; i++) {
        life *l = &a->lives[FLOODED + i];
        *l = (life){.id = identity(ELSEWHERE + i), .number = FLOODED + i};
        join(a, l);
    }
    for (uint32_t number = 0, count = restarts(); number < count; number++) {
        life *l = &a->lives[number % FLOODED];
        um_session_id id = identity(number);
        if (l->is_open) /* its source is advertised no longer */
            leave(a, l);
        for (um_receiver_session *old;
             (old = um_node_evictable(&a->node, id.source.ip, a->node.session_count == UM_NODE_SESSIONS_MAX)) !=
             NULL;) {
            CHECK(old->config.id.session_id <= number); /* none of those that send */
            leave(a, (life *)(void *)old);
        }
        *l = (life){.id = id, .number = number % FLOODED};
        join(a, l);
        CHECK(a->node.session_count <= HOSTS * UM_NODE_IDLE_PER_SOURCE_MAX + SENDING);
        receive_messages(a, &a->lives[FLOODED + number % SENDING]);
        read_all(a);
        a->now_ns += NS_PER_MS;
    }
    for (uint32_t i = 0; i < SENDING; i++)
        CHECK(a->lives[FLOODED + i].is_open && a->lives[FLOODED + i].expected == a->lives[FLOODED + i].next_sqn);
    CHECK_EQ(a->delivered, MESSAGES * (uint64_t)restarts());
    for (uint32_t i = 0; i < LIVES; i++)
        if (a->lives[i].is_open)
            leave(a, &a->lives[i]);
    close_audience(a);
}

TEST("", "sources that are contacted in vain displace no address that answers, and cost no more than the budget")
{
    enum { ANSWERING = 32, PER_S = 500 };
    um_first_contacts *contacts = zeroed(sizeof *contacts);
    const um_ip advertiser = um_ip_of_v4(0x0a000001);
    uint64_t made = 0;
    int64_t now_ns = 1;
    uint32_t count = restarts();
    for (uint32_t number = 0; number < count; number++, now_ns += NS_PER_S / PER_S) {
        um_ip answering = um_ip_of_v4(1 + number % ANSWERING), silent = um_ip_of_v4(0x0b000000 + number);
        for (uint32_t again = 0; again < 2 * UM_CONTACT_FREE_ATTEMPTS;
             again++) /* without a limit, after its first answer */
            CHECK(um_first_contact_wait_ns(contacts, answering, answering, now_ns) == 0 || number < ANSWERING);
        um_first_contact_answered(contacts, answering, now_ns);
        CHECK_EQ(um_first_contact_wait_ns(contacts, silent, advertiser, now_ns),
                 0); /* an honest newcomer's is not delayed */
        made += um_first_contact_wait_ns(contacts, silent, advertiser, now_ns) == 0;
        CHECK(contacts->all.spent <= UM_CONTACT_ALL_MAX);
    }
    CHECK(made <= UM_CONTACT_BUDGET_MAX + 1 + (uint64_t)(now_ns / NS_PER_S + 1) * UM_CONTACT_BUDGET_PER_S);
    CHECK(made >= (uint64_t)(now_ns / NS_PER_S) * UM_CONTACT_BUDGET_PER_S);
    free(contacts);
}

/* ---- sources, advertised ---- */

#define LOCAL um_ip_of_v4(0x0a000001)

/* A datagram with one advertisement of a topic "tN", over a session of LBT-RM. TTL 0: its last one. */
static uint32_t write_advertisement(uint8_t *out, uint32_t topic, uint32_t session, bool is_last)
{
    uint8_t record[] = {0x10, 16,   0,   is_last ? 0 : 60, 0, 0, 0, TOPIC, 10, 0, 0, 1, 224, 9, 9, 9, 0, 0, 0, 0, 1,
                        1,    0x38, 0x36};
    um_store_be32(record + 16, session);
    memcpy(out, (uint8_t[]){0, 0, 0, 1}, UM_LBMR_HEADER_BYTES);
    uint32_t at = UM_LBMR_HEADER_BYTES + (uint32_t)sprintf((char *)out + UM_LBMR_HEADER_BYTES, "t%u", topic) + 1;
    memcpy(out + at, record, sizeof record);
    return at + (uint32_t)sizeof record;
}

TEST("UX-16", "restarts of advertised sources: those advertised again are known, and the table keeps its bound")
{
    enum { SOURCES = 256, TOPICS = 64, LASTING = 16, DATAGRAM = 64, FOUND = 64 };
    uint8_t *memory = zeroed(um_resolver_cache_footprint(SOURCES)), out[DATAGRAM];
    um_resolver_cache *cache = um_resolver_cache_init(memory, SOURCES, (um_siphash_key){3, 4});
    um_resolver_intake *intake = zeroed(sizeof *intake);
    uint32_t count = restarts(), last_ones = 0;
    for (uint32_t number = 0; number < count; number++) {
        uint32_t topic = LASTING + number % TOPICS, session = 1 + LASTING + number, lasting = number % LASTING;
        um_known_source found[FOUND];
        CHECK(um_resolver_cache_take(cache, out, write_advertisement(out, topic, session, false), LOCAL, intake));
        CHECK(um_resolver_cache_take(cache, out, write_advertisement(out, lasting, 1 + lasting, false), LOCAL, intake));
        CHECK(um_resolver_cache_count(cache) <= SOURCES);
        CHECK_EQ(um_resolver_cache_sources_of(cache, out + UM_LBMR_HEADER_BYTES, lasting < 10 ? 2 : 3, found, FOUND),
                 1);
        CHECK_EQ(found[0].session.session_id, 1 + lasting);
        char name[8];
        uint32_t name_bytes = (uint32_t)sprintf(name, "t%u", topic);
        uint32_t known = um_resolver_cache_sources_of(cache, (uint8_t *)name, name_bytes, found, FOUND);
        CHECK(known >= 1 && known <= FOUND);
        CHECK_EQ(found[known - 1].session.session_id, session); /* the others are its earlier lives */
        for (uint32_t i = 0; i + 1 < known; i++)
            CHECK(found[i].session.session_id < session && (session - found[i].session.session_id) % TOPICS == 0);
        if (number % 3 == 0) { /* a source that is closed, instead of killed */
            CHECK(um_resolver_cache_take(cache, out, write_advertisement(out, topic, session, true), LOCAL, intake));
            CHECK_EQ(um_resolver_cache_sources_of(cache, (uint8_t *)name, name_bytes, found, FOUND), known - 1);
            last_ones++;
        }
    }
    CHECK_EQ(um_resolver_cache_count(cache) + um_resolver_cache_evictions(cache) + last_ones, count + LASTING);
    free(intake);
    free(memory);
}

/* ---- receivers of a source ---- */

static um_address receiver_address(uint32_t number)
{
    return um_address_of_v4(0x0a0a0001 + number % 64, (uint16_t)(1024 + number / 64 % 60000));
}

static int64_t first_limit(uint32_t number)
{
    return number * (int64_t)1000 + number % 500;
}

TEST("AE-19 AE-20", "restarts of receivers: those killed hold the source for the timeout, and then no longer")
{
    enum { LEAVES_AFTER = 10, TIMEOUT_STEPS = 100, STAYING = 1 };
    um_flow_control *flow = zeroed(sizeof *flow);
    um_flow_init(flow, UM_FLOW_MIN, 0, 0, TIMEOUT_STEPS * (int64_t)STEP_NS);
    int64_t now_ns = NS_PER_S;
    uint32_t count = restarts(), oldest = 0;
    for (uint32_t number = 0; number < count; number++, now_ns += STEP_NS) {
        int64_t staying = first_limit(number) - 1;
        um_flow_on_status(flow, STAYING, 0, staying, now_ns);
        um_flow_on_status(flow, 2 + number, 0, first_limit(number), now_ns);
        CHECK(um_flow_is_known(flow, STAYING) && um_flow_is_known(flow, 2 + number));
        if (number >= LEAVES_AFTER && number % 2 == 0) /* the others are killed, and say nothing */
            um_flow_on_leave(flow, 2 + number - LEAVES_AFTER);
        um_flow_expire(flow, now_ns);
        for (; !um_flow_is_known(flow, 2 + oldest); oldest++)
            CHECK(number - oldest >= (oldest % 2 == 0 ? LEAVES_AFTER : TIMEOUT_STEPS));
        CHECK(number - oldest <= TIMEOUT_STEPS);
        CHECK_EQ(um_flow_limit(flow), oldest == number ? staying : first_limit(oldest));
    }
    CHECK_EQ(flow->refused_count, 0);
    free(flow);
}

TEST("UM-129", "restarts of receivers: each that follows becomes a member, and one that stays keeps its account")
{
    enum { STAYING = 8, REPORTS = 2, BETWEEN_NS = NS_PER_S };
    um_receiver_accounting *accounting = zeroed(sizeof *accounting);
    int64_t now_ns = NS_PER_S;
    uint32_t count = restarts();
    for (uint32_t number = 0; number < count; number++, now_ns += BETWEEN_NS) {
        um_receiver_account *staying =
            um_accounting_on_status(accounting, um_address_of_v4(1, (uint16_t)(1 + number % STAYING)), number, now_ns);
        CHECK(staying != NULL && staying->is_member == (number >= STAYING));
        CHECK_EQ(staying->naks++, number / STAYING);
        um_receiver_account *account = NULL;
        for (uint32_t i = 0; i < REPORTS; i++) {
            account = um_accounting_on_status(accounting, receiver_address(number), number + i, now_ns);
            CHECK(account != NULL);
            CHECK_EQ(account->is_member, i > 0);
        }
        CHECK_EQ(account->naks++, 0); /* the account of no earlier one */
        CHECK(accounting->count <= UM_ACCOUNTS_MAX);
    }
    free(accounting);
}

TEST("UM-50", "restarts of receivers: the size follows those alive")
{
    enum { CEILING = 8972, NARROW = 1472, FLOOR = 552, HEADERS = 28, WAIT_NS = 10 * NS_PER_MS, LASTING = 1 };
    um_path_mtu *path = zeroed(sizeof *path);
    um_path_mtu_init(path, CEILING, FLOOR, HEADERS, 1);
    int64_t now_ns = NS_PER_S;
    uint32_t count = restarts();
    for (uint32_t number = 0; number < count; number++, now_ns += STEP_NS * 10) {
        const um_path_probes *probes = um_path_mtu_tick(path, WAIT_NS, now_ns);
        uint16_t largest = 0;
        for (uint32_t i = 0; probes != NULL && i < probes->count; i++)
            largest = probes->sizes[i] <= NARROW && probes->sizes[i] > largest ? probes->sizes[i] : largest;
        uint16_t round = largest > 0 ? path->round : 0;
        um_path_mtu_on_status(path, receiver_address(LASTING), LASTING, round, largest, NS_PER_S, now_ns);
        um_path_mtu_on_status(path, receiver_address(2 + number), 2 + number, round, largest, 0, now_ns);
        if (number % 2 == 0)
            um_path_mtu_on_leave(path, 2 + number, now_ns);
        CHECK(path->receiver_count <= UM_PATH_RECEIVERS_MAX);
        CHECK(number < 1000 || (path->bytes >= FLOOR && path->bytes <= NARROW));
    }
    free(path);
}

TEST("", "restarts of receivers: the census counts those of the last seconds")
{
    enum { PER_SECOND = 100 };
    um_receiver_census *census = zeroed(sizeof *census);
    um_census_init(census, NS_PER_S);
    int64_t now_ns = NS_PER_S;
    uint32_t count = restarts();
    for (uint32_t number = 0; number < count; number++, now_ns += NS_PER_S / PER_SECOND) {
        um_census_on_status(census, number * UINT64_C(0x9e3779b97f4a7c15), NS_PER_MS, now_ns);
        um_census_advance(census, now_ns);
        CHECK(um_census_receivers(census) <= PER_SECOND + 1);
        CHECK(number < 2 * PER_SECOND || um_census_receivers(census) >= PER_SECOND - 10);
    }
    free(census);
}

/* ---- clients ---- */

TEST("UM-140", "restarts of clients: each has its own entry until it leaves, and a full map refuses")
{
    enum { CLIENTS = 64, PORTS = 60000 };
    um_client_map_config config = {.capacity = CLIENTS, .buckets = CLIENTS, .key = {5, 6}};
    um_client_map *map = zeroed(sizeof *map);
    void *memory = zeroed(um_client_map_footprint(&config));
    um_client_map_init(map, memory, &config);
    um_random random = {9};
    uint32_t alive[CLIENTS], alive_count = 0, refused = 0, count = restarts();
    for (uint32_t number = 0; number < count; number++) {
        um_client *client = um_client_map_add(map, receiver_address(number), number);
        CHECK_EQ(client == NULL, alive_count == CLIENTS);
        refused += client == NULL;
        if (client != NULL) {
            client->acknowledged_sqn = number;
            alive[alive_count++] = number;
        }
        while (alive_count > 0 && um_random_below(&random, 2) == 0) {
            uint32_t leaving = (uint32_t)um_random_below(&random, alive_count);
            um_client_map_remove(map, um_client_map_find(map, receiver_address(alive[leaving])));
            CHECK(um_client_map_find(map, receiver_address(alive[leaving])) == NULL);
            alive[leaving] = alive[--alive_count];
        }
        CHECK_EQ(map->count, alive_count);
        for (uint32_t i = 0; i < alive_count; i++)
            CHECK_EQ(um_client_map_find(map, receiver_address(alive[i]))->acknowledged_sqn, alive[i]);
    }
    CHECK(refused < count);
    free(memory);
    free(map);
}

TEST("", "restarts of stalled clients: a penalty lasts, unless more addresses stall than there are places")
{
    enum { STALLED = UM_STALL_PENALTIES_MAX, TIMEOUT_NS = NS_PER_S };
    um_stall_penalties *penalties = zeroed(sizeof *penalties);
    int64_t now_ns = NS_PER_S;
    for (uint32_t number = 0, count = restarts(); number < count; number++, now_ns += TIMEOUT_NS / 10) {
        um_ip ip = um_ip_of_v4(1 + number % STALLED);
        int64_t until_ns = um_stall_penalties_add(penalties, ip, TIMEOUT_NS, now_ns);
        CHECK(until_ns - now_ns >= TIMEOUT_NS && until_ns - now_ns <= (int64_t)TIMEOUT_NS << UM_STALL_DOUBLINGS_MAX);
        CHECK_EQ(um_stall_penalties_until_ns(penalties, ip, now_ns), until_ns);
        CHECK_EQ(um_stall_penalties_until_ns(penalties, um_ip_of_v4(1 + STALLED), now_ns), 0);
    }
    free(penalties);
}

/* ---- senders with keys ---- */

TEST("", "restarts of senders with keys: each datagram is accepted once, and one that stays is never refused")
{
    enum { LENGTH = 20, KEPT = 512, RECENT = 512, STAYING_EVERY = 8 };
    static uint8_t kept[KEPT][LENGTH + UM_TRAILER_BYTES];
    static um_address from[KEPT];
    um_key key = {.id = 7, .secret = {1, 2, 3}};
    um_key_set keys = {1, {key}};
    um_senders_verifier *verifier = zeroed(sizeof *verifier);
    um_mac mac;
    int64_t wall_ns = (int64_t)1800000000 * NS_PER_S;
    uint64_t stamp = 0, staying_stamp = 0;
    CHECK_EQ(um_senders_verifier_open(verifier, &keys, UM_MAC_CONTROL, 60 * (int64_t)NS_PER_S), 0);
    CHECK_EQ(um_mac_open(&mac, UM_MAC_CONTROL, &key, NULL), 0);
    um_random random = {11};
    for (uint32_t number = 0, count = restarts(); number < count; number++, wall_ns += STEP_NS) {
        bool stays = number % STAYING_EVERY == 0;
        uint32_t at = number % KEPT, length = LENGTH + UM_TRAILER_BYTES;
        from[at] = stays ? um_address_of_v4(1, 1) : receiver_address(number);
        uint64_t *own = stays ? &staying_stamp : &stamp; /* a restarted sender begins at a count of its own */
        *own = um_stamp_follow(stays ? *own : um_random_next(&random), wall_ns);
        memset(kept[at], (int)number, LENGTH);
        um_trailer_write(kept[at] + LENGTH, key.id, *own);
        CHECK(um_mac_seal(&mac, from[at], kept[at], LENGTH + UM_TRAILER_COVERED_BYTES));
        enum um_tag_status status = verifier->base.verify(&verifier->base, from[at], kept[at], &length, wall_ns);
        CHECK_EQ(status, UM_TAG_OK);
        uint32_t again = (uint32_t)um_random_below(&random, number < KEPT ? number + 1 : KEPT);
        length = LENGTH + UM_TRAILER_BYTES;
        CHECK_EQ(verifier->base.verify(&verifier->base, from[again], kept[again], &length, wall_ns), UM_TAG_REPLAYED);
        CHECK(verifier->sender_count <= UM_SENDERS_MAX);
    }
    um_mac_close(&mac);
    um_senders_verifier_close(verifier);
    free(verifier);
}

CHECK_MAIN

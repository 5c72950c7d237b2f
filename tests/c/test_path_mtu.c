/* Path MTU discovery: receivers behind paths of different sizes, with fabricated times. */
#include "core/source/path_mtu.h"
#include "core/source/retransmission.h"
#include "core/wire/datagram_piece.h"
#include "core/wire/path_probe.h"
#include "support.h"

enum { RECEIVERS = 3, FLOOR = 1200, JUMBO = 8972, ETHERNET = 1472, WAIT_NS = 100 * NS_PER_MS };

typedef struct network {
    um_path_mtu path;
    int64_t now_ns;
    uint32_t path_bytes[RECEIVERS]; /* 0: no datagram arrives; UINT32_MAX: arrives, but is never reported */
    uint16_t round[RECEIVERS];
    uint16_t bytes[RECEIVERS];
    uint32_t probes;
    uint32_t answers;
} network;

static um_address address_of(uint32_t i)
{
    return um_address_of_v4(0x0a000002 + i, 40000);
}

static void report(network *n, uint32_t i)
{
    n->answers++;
    um_path_mtu_on_status(&n->path, address_of(i), 100 + i, n->round[i], n->bytes[i], 0, n->now_ns);
}

static void deliver(network *n, const um_path_probes *probes, uint32_t i)
{
    bool has_news = probes->wants_answer && n->round[i] == n->path.round;
    for (uint32_t k = 0; k < probes->count; k++) {
        if (n->path_bytes[i] == UINT32_MAX || probes->sizes[k] > n->path_bytes[i])
            continue;
        if (n->round[i] != n->path.round || probes->sizes[k] > n->bytes[i]) {
            n->round[i] = n->path.round;
            n->bytes[i] = probes->sizes[k];
            has_news = true;
        }
    }
    if (has_news)
        report(n, i);
}

/* Runs the timers for this long, while every receiver in [0, count) answers and sends a status message each 200 ms. */
static void run(network *n, uint32_t count, int64_t duration_ns)
{
    int64_t end_ns = n->now_ns + duration_ns;
    for (; n->now_ns < end_ns; n->now_ns += 10 * NS_PER_MS) {
        const um_path_probes *probes = um_path_mtu_tick(&n->path, WAIT_NS, n->now_ns);
        for (uint32_t k = 1; probes != NULL && k < probes->count; k++)
            CHECK(probes->sizes[k - 1] < probes->sizes[k]);
        n->probes += probes != NULL ? probes->count : 0;
        for (uint32_t i = 0; i < count; i++) {
            if (probes != NULL)
                deliver(n, probes, i);
            if (n->now_ns / NS_PER_MS % 200 == 0)
                report(n, i);
        }
    }
}

static network open_network(uint32_t interface_bytes, uint32_t path_bytes)
{
    network n = {.now_ns = NS_PER_S};
    um_path_mtu_init(&n.path, interface_bytes, FLOOR, UM_IPV4_UDP_HEADER_BYTES, 1);
    for (uint32_t i = 0; i < RECEIVERS; i++)
        n.path_bytes[i] = path_bytes;
    return n;
}

TEST("UM-50 W4", "receivers that get the interface's size cost one probe, and then none")
{
    network n = open_network(ETHERNET, ETHERNET);
    run(&n, 2, NS_PER_S);
    CHECK_EQ(n.probes, 1);
    CHECK_EQ(n.path.bytes, ETHERNET);
    run(&n, 2, 60 * (int64_t)NS_PER_S);
    CHECK_EQ(n.probes, 1);
    CHECK_EQ(n.path.due_ns, UM_NEVER_NS);
    uint16_t round = n.path.round;
    run(&n, 3, NS_PER_S); /* only the newcomer answers */
    CHECK_EQ(n.probes, 2);
    CHECK_EQ(n.path.round, round);
}

TEST("UM-50 W4", "the slowest path is found to 16 bytes within half a second, and used at once")
{
    static const uint32_t paths[] = {1200, 1252, 1300, 1472, 1473, 2000, 4000, 8900, 8971};
    for (uint32_t k = 0; k < sizeof paths / sizeof paths[0]; k++) {
        network n = open_network(JUMBO, JUMBO);
        n.path_bytes[1] = paths[k];
        run(&n, 3, 320 * NS_PER_MS);
        CHECK(n.path.bytes <= paths[k]);
        CHECK(um_address_equal(n.path.limited_by, address_of(1)));
        run(&n, 3, 2 * (int64_t)NS_PER_S);
        CHECK(n.path.bytes <= paths[k] && paths[k] - n.path.bytes <= 16);
        CHECK_EQ(n.path.state, UM_PATH_RESTING);
    }
}

TEST("UM-50 W4", "the size is never below the floor, whatever a receiver reports")
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = 700;
    run(&n, 3, 3 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, JUMBO); /* it cannot be served: its path is below the floor */
    n = open_network(JUMBO, ETHERNET);
    um_path_mtu_on_status(&n.path, address_of(0), 100, 0, 0, 0, n.now_ns);
    um_path_mtu_tick(&n.path, WAIT_NS, n.now_ns);
    um_path_mtu_on_status(&n.path, address_of(0), 100, n.path.round, 1, 0, n.now_ns);
    run(&n, 0, NS_PER_S);
    CHECK(n.path.bytes >= FLOOR);
}

TEST("UM-50 W4", "the size grows when the path does, and when the receiver with the smallest path leaves")
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = ETHERNET;
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
    n.path_bytes[1] = JUMBO;
    run(&n, 3, 7 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, JUMBO);

    n.path_bytes[2] = ETHERNET;
    n.path.is_suspicious = true;
    n.path.due_ns = n.path.suspicion_from_ns;
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
    um_path_mtu_on_leave(&n.path, 102, n.now_ns);
    run(&n, 2, NS_PER_S);
    CHECK_EQ(n.path.bytes, JUMBO);
}

TEST("UM-50 W4", "a path that stays small is tried less and less often")
{
    network n = open_network(JUMBO, ETHERNET);
    run(&n, 3, 10 * (int64_t)NS_PER_S);
    uint32_t first_probes = n.probes;
    run(&n, 3, 700 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
    CHECK(n.probes - first_probes < 8 * 60);
    CHECK(n.path.raise_interval_ns > 300 * (int64_t)NS_PER_S);
}

TEST("UM-50 W4", "a path that shrinks is noticed by repeated NAKs of long datagrams, not by those of short ones")
{
    network n = open_network(JUMBO, JUMBO);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    n.path_bytes[0] = ETHERNET;
    uint32_t probes = n.probes;
    for (uint32_t i = 0; i < 20; i++)
        um_path_mtu_on_repeat(&n.path, i % 3 == 2 ? 200 : JUMBO, n.now_ns);
    run(&n, 3, NS_PER_S);
    CHECK_EQ(n.probes, probes);
    for (uint32_t i = 0; i < 3; i++)
        um_path_mtu_on_repeat(&n.path, JUMBO, n.now_ns);
    run(&n, 3, 310 * NS_PER_MS);
    CHECK_EQ(n.path.bytes, ETHERNET);
    CHECK(um_address_equal(n.path.limited_by, address_of(0)));
}

TEST("UM-50 W4", "receivers that report no probes, or nothing any more, hold nothing back")
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = UINT32_MAX; /* an older version */
    run(&n, 3, 3 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, JUMBO);
    CHECK_EQ(n.path.state, UM_PATH_RESTING);
    CHECK(!n.path.has_newcomer);
    CHECK(um_path_mtu_has_reports(&n.path));

    n.path_bytes[2] = ETHERNET; /* its path shrinks, then it ends without a word */
    n.path.is_suspicious = true;
    n.path.due_ns = n.now_ns;
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
    run(&n, 2, 60 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, JUMBO);
}

TEST("UM-50 W4", "an outage of everything during a check changes nothing")
{
    network n = open_network(JUMBO, ETHERNET);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
    for (uint32_t i = 0; i < RECEIVERS; i++)
        n.path_bytes[i] = 0;
    run(&n, 3, 20 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
}

TEST("UM-50 W4", "a receiver that reports less than the floor holds nothing back")
{
    network n = open_network(JUMBO, JUMBO);
    for (uint32_t i = 0; i < 200; i++) {
        run(&n, 2, 10 * NS_PER_MS);
        um_path_mtu_on_status(&n.path, address_of(2), 102, n.path.round, 1, 0, n.now_ns);
    }
    CHECK_EQ(n.path.bytes, JUMBO);
    CHECK_EQ(n.path.state, UM_PATH_RESTING);
}

TEST("UM-50 W4", "a receiver that could not report a probe when it joined counts when it can")
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = 0;
    run(&n, 3, 3 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, JUMBO);
    n.path_bytes[1] = ETHERNET;
    for (uint32_t i = 0; i < 3; i++)
        um_path_mtu_on_repeat(&n.path, JUMBO, n.now_ns);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
    CHECK(um_address_equal(n.path.limited_by, address_of(1)));
}

TEST("UM-50 W4", "a report that comes after the check is a newcomer's, if its receiver did not count")
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = 0;
    run(&n, 2, 3 * (int64_t)NS_PER_S);
    n.path_bytes[1] = ETHERNET;
    for (uint32_t i = 0; i < 3; i++)
        um_path_mtu_on_repeat(&n.path, JUMBO, n.now_ns);
    run(&n, 1, 50 * NS_PER_MS);
    CHECK_EQ(n.path.state, UM_PATH_RESTING);
    um_path_mtu_on_status(&n.path, address_of(1), 101, n.path.round, ETHERNET, 0, n.now_ns);
    run(&n, 2, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(n.path.bytes, ETHERNET);
}

TEST("UM-50 W4", "a receiver that joins late in a check keeps the size from growing until it has reported")
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = n.path_bytes[2] = 1300;
    run(&n, 2, 2 * (int64_t)NS_PER_S);
    n.path_bytes[1] = 4000;
    while (n.path.state != UM_PATH_CHECKING || n.path.attempt < 3)
        run(&n, 2, 10 * NS_PER_MS);
    report(&n, 2);
    for (uint32_t i = 0; i < 300; i++) {
        run(&n, 3, 10 * NS_PER_MS);
        CHECK(n.path.bytes <= 1300);
    }
    CHECK(n.path.bytes > 1300 - 16);
}

TEST("UM-50 W4", "without receivers another size of the interface is used at once")
{
    network n = open_network(ETHERNET, ETHERNET);
    um_path_mtu_set_ceiling(&n.path, JUMBO);
    CHECK_EQ(n.path.bytes, JUMBO);
    um_path_mtu_set_ceiling(&n.path, ETHERNET);
    CHECK_EQ(n.path.bytes, ETHERNET);
}

TEST("UM-50 W4", "another size of the interface is checked at once")
{
    network n = open_network(JUMBO, ETHERNET);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    for (uint32_t i = 0; i < RECEIVERS; i++)
        n.path_bytes[i] = JUMBO;
    um_path_mtu_set_ceiling(&n.path, 4000); /* smaller, but the path has become larger */
    CHECK_EQ(n.path.bytes, ETHERNET);
    run(&n, 3, 310 * NS_PER_MS);
    CHECK_EQ(n.path.bytes, 4000);

    n.path_bytes[1] = 4000;
    um_path_mtu_set_ceiling(&n.path, JUMBO);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    CHECK(n.path.bytes <= 4000 && n.path.bytes >= 4000 - 16);
}

TEST("UM-50 W4", "repeated NAKs of datagrams longer than the size in effect raise no suspicion")
{
    network n = open_network(JUMBO, ETHERNET);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    for (uint32_t i = 0; i < 20; i++)
        um_path_mtu_on_repeat(&n.path, JUMBO, n.now_ns);
    CHECK(!n.path.is_suspicious);
}

TEST("UM-50 W4", "receivers that ended without a word leave their place to others")
{
    network n = open_network(JUMBO, JUMBO);
    for (uint32_t i = 0; i <= UM_PATH_RECEIVERS_MAX; i++)
        um_path_mtu_on_status(&n.path, address_of(i), 100 + i, 0, 0, 0, n.now_ns);
    CHECK_EQ(n.path.receiver_count, UM_PATH_RECEIVERS_MAX);
    n.now_ns += 10 * (int64_t)NS_PER_S - 1;
    um_path_mtu_on_status(&n.path, address_of(0), 1, 0, 0, 0, n.now_ns);
    CHECK_EQ(n.path.receiver_count, UM_PATH_RECEIVERS_MAX);
    um_path_mtu_on_status(&n.path, address_of(0), 1, 0, 0, 0, ++n.now_ns);
    CHECK_EQ(n.path.receiver_count, 1);
    n.now_ns += 60 * (int64_t)NS_PER_S;
    report(&n, 0);
    um_path_mtu_on_status(&n.path, address_of(0), 1, 0, 0, 0, n.now_ns);
    CHECK_EQ(n.path.receiver_count, 2);
}

TEST("UM-50 W4", "without discovery the size is the interface's")
{
    um_path_mtu path;
    um_path_mtu_init(&path, JUMBO, 0, UM_IPV4_UDP_HEADER_BYTES, 1);
    um_path_mtu_on_status(&path, address_of(0), 100, 0, 0, 0, NS_PER_S);
    CHECK(um_path_mtu_tick(&path, WAIT_NS, NS_PER_S) == NULL);
    um_path_mtu_set_ceiling(&path, ETHERNET);
    CHECK_EQ(path.bytes, ETHERNET);
    CHECK_EQ(path.due_ns, UM_NEVER_NS);
}

TEST("UM-50 W4", "a report of an earlier round, or of less than before in this one, changes nothing")
{
    network n = open_network(JUMBO, ETHERNET);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    uint16_t earlier = n.path.round;
    n.path.raise_due_ns = n.now_ns;
    n.path.due_ns = n.now_ns;
    const um_path_probes *probes = um_path_mtu_tick(&n.path, WAIT_NS, n.now_ns);
    CHECK(probes != NULL && n.path.round != earlier);
    for (uint32_t i = 0; i < 3; i++) /* late answers to a probe of a time when the path was longer */
        um_path_mtu_on_status(&n.path, address_of(i), 100 + i, earlier, JUMBO, 0, n.now_ns);
    um_path_mtu_tick(&n.path, WAIT_NS, n.path.due_ns);
    CHECK_EQ(n.path.bytes, ETHERNET);
    CHECK_EQ(n.path.state, UM_PATH_CHECKING);
    for (uint32_t i = 0; i < 3; i++) {
        um_path_mtu_on_status(&n.path, address_of(i), 100 + i, n.path.round, JUMBO, 0, n.now_ns);
        um_path_mtu_on_status(&n.path, address_of(i), 100 + i, n.path.round, ETHERNET, 0, n.now_ns);
        um_path_mtu_on_status(&n.path, address_of(i), 100 + i, earlier, ETHERNET, 0, n.now_ns);
    }
    um_path_mtu_tick(&n.path, WAIT_NS, n.path.due_ns);
    CHECK_EQ(n.path.bytes, JUMBO);
}

/* ---- sessions ---- */

static fixture *jumbo_session(void)
{
    um_source_session_config config = default_config();
    config.term_length = config.window_bytes = 1 << 20;
    config.datagram_max_bytes = JUMBO;
    config.path_floor_bytes = FLOOR;
    config.adaptive_timers = UM_ADAPTIVE_REPORTS;
    return session_open(&config);
}

static um_path_probe probe_at(fixture *f, uint32_t i)
{
    um_packet packet = packet_at(f, i);
    um_lbmc_message message;
    um_path_probe probe;
    uint32_t length;
    CHECK_EQ(packet.type, UM_LBTRM_SM);
    CHECK_EQ(um_lbmc_decode(packet.body, packet.body_length, &message, &length), UM_DGRAM_OK);
    CHECK(um_path_probe_decode(&message, &probe));
    CHECK_EQ(probe.bytes, f->link.datagrams[i].length);
    return probe;
}

/* A receiver behind a path of this size reports what the probes in the link show; the session follows. */
static void settle(fixture *f, uint32_t path_bytes)
{
    status(f, (um_status_message){.receiver_id = 7, .next_sqn = f->session->next_sqn, .window_bytes = 1 << 20});
    for (uint32_t step = 0; step < 20; step++, f->now_ns += WAIT_NS) {
        um_source_session_tick(f->session, f->now_ns);
        um_status_message answer = {.receiver_id = 7, .next_sqn = f->session->next_sqn, .window_bytes = 1 << 20};
        for (uint32_t i = 0; i < f->link.count; i++) {
            um_packet packet = packet_at(f, i);
            if (packet.type != UM_LBTRM_SM || packet.body_length == 0)
                continue;
            um_path_probe probe = probe_at(f, i);
            if (probe.bytes <= path_bytes && probe.bytes >= answer.probe_bytes) {
                answer.probe_round = probe.round;
                answer.probe_bytes = probe.bytes;
            }
        }
        capture_clear(&f->link);
        status(f, answer);
    }
}

TEST("UM-50 W4", "a session sends padded session messages, follows their answers and reports the new size")
{
    fixture *f = jumbo_session();
    um_source *source = source_open(f, 5, 0);
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->link.count, 0); /* nobody is known */
    settle(f, ETHERNET);
    CHECK_EQ(f->session->path.bytes, ETHERNET);
    const um_source_event *event = &f->session->events.ring[(f->session->events.count - 1) % UM_SOURCE_EVENTS_MAX];
    CHECK_EQ(event->kind, UM_SOURCE_PATH_CHANGED);
    CHECK_EQ(event->count, ETHERNET);
    CHECK(um_address_equal(event->receiver, f->from));
    CHECK(send_bytes(f, source, 8000, 1, UM_SEND_FLUSH) >= 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 6);
    for (uint32_t i = 0; i < f->link.count; i++)
        CHECK(f->link.datagrams[i].length <= ETHERNET && !f->link.datagrams[i].oversize);
    session_close(f);
}

TEST("UM-50 W4", "a path that grows again is no longer limited by a receiver")
{
    fixture *f = jumbo_session();
    source_open(f, 5, 0);
    settle(f, ETHERNET);
    f->now_ns += 7 * (int64_t)NS_PER_S;
    settle(f, JUMBO);
    CHECK_EQ(f->session->path.bytes, JUMBO);
    const um_source_event *event = &f->session->events.ring[(f->session->events.count - 1) % UM_SOURCE_EVENTS_MAX];
    CHECK_EQ(event->kind, UM_SOURCE_PATH_CHANGED);
    CHECK_EQ(event->count, JUMBO);
    CHECK(um_address_equal(event->receiver, (um_address){0}));
    session_close(f);
}

TEST("UM-50 W4", "the trailer that is added to a probe is a part of its size")
{
    enum { TRAILER = 28 };
    um_source_session_config config = default_config();
    config.term_length = config.window_bytes = 1 << 20;
    config.datagram_max_bytes = JUMBO;
    config.path_floor_bytes = FLOOR;
    config.adaptive_timers = UM_ADAPTIVE_REPORTS;
    config.data_trailer_bytes = config.control_trailer_bytes = TRAILER;
    fixture *f = session_open(&config);
    source_open(f, 5, 0);
    status(f, (um_status_message){.receiver_id = 7, .next_sqn = f->session->next_sqn, .window_bytes = 1 << 20});
    f->now_ns += WAIT_NS;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->link.count, 1);
    um_packet packet = packet_at(f, 0);
    um_lbmc_message message;
    um_path_probe probe;
    uint32_t length;
    CHECK_EQ(um_lbmc_decode(packet.body, packet.body_length, &message, &length), UM_DGRAM_OK);
    CHECK(um_path_probe_decode(&message, &probe));
    CHECK_EQ(probe.bytes, JUMBO);
    CHECK_EQ(f->link.datagrams[0].length + TRAILER, JUMBO);
    session_close(f);
}

/* A datagram that was sent before its path shrank, as it was on the wire. */
typedef struct long_datagram {
    uint32_t sqn;
    uint32_t body_bytes;
    uint8_t body[JUMBO];
} long_datagram;

static long_datagram send_and_shrink(fixture *f)
{
    um_source *source = source_open(f, 5, 0);
    CHECK(send_bytes(f, source, 8000, 1, UM_SEND_FLUSH) >= 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    um_packet packet = packet_at(f, 0);
    long_datagram sent = {.sqn = packet.sqn, .body_bytes = packet.body_length};
    memcpy(sent.body, packet.body, packet.body_length);
    settle(f, ETHERNET);
    return sent;
}

static um_datagram_piece piece_at(fixture *f, uint32_t i)
{
    um_packet packet = packet_at(f, i);
    um_lbmc_message message;
    um_datagram_piece piece;
    uint32_t length;
    CHECK(f->link.datagrams[i].length <= ETHERNET && !f->link.datagrams[i].oversize);
    CHECK_EQ(packet.type, UM_LBTRM_SM);
    CHECK_EQ(um_lbmc_decode(packet.body, packet.body_length, &message, &length), UM_DGRAM_OK);
    CHECK(um_datagram_piece_decode(&message, length, packet.body, packet.body_length, &piece));
    CHECK(!um_datagram_piece_decode(&message, length, packet.body, packet.body_length - 1, &piece));
    return piece;
}

static void check_is_whole(const um_datagram_assembly *assembly, const long_datagram *sent)
{
    um_packet packet;
    CHECK_EQ(um_lbtrm_decode(assembly->memory, assembly->total_bytes, &packet), UM_DGRAM_OK);
    CHECK(packet.flags & UM_LBTRM_FLAG_RETRANSMISSION);
    CHECK_EQ(packet.sqn, sent->sqn);
    CHECK_EQ(packet.body_length, sent->body_bytes);
    CHECK(memcmp(packet.body, sent->body, sent->body_bytes) == 0);
}

TEST("UM-50 W4", "a datagram from before the path shrank is sent again in pieces, which make it whole in any order")
{
    fixture *f = jumbo_session();
    long_datagram sent = send_and_shrink(f);
    nak_one(f, sent.sqn);
    CHECK_EQ(f->link.count, 6);
    um_datagram_assembly assembly = {.memory = zeroed(UM_DATAGRAM_ASSEMBLY_BYTES)};
    for (uint32_t i = f->link.count; i-- > 0;) {
        um_datagram_piece piece = piece_at(f, i);
        CHECK_EQ(um_datagram_assembly_add(&assembly, f, &piece), i == 0);
        if (i > 0)
            CHECK(!um_datagram_assembly_add(&assembly, f, &piece)); /* a duplicate */
    }
    check_is_whole(&assembly, &sent);
    CHECK_EQ(f->session->counters.datagrams_sent_in_pieces, 1);
    free(assembly.memory);
    session_close(f);
}

TEST("UM-50 W4", "a link that takes one piece at a time is given each piece once")
{
    fixture *f = jumbo_session();
    long_datagram sent = send_and_shrink(f);
    um_datagram_assembly assembly = {.memory = zeroed(UM_DATAGRAM_ASSEMBLY_BYTES)};
    f->link.space = 1;
    nak_one(f, sent.sqn);
    for (uint32_t i = 0; i < 6; i++) {
        CHECK_EQ(f->link.count, i + 1);
        um_datagram_piece piece = piece_at(f, i);
        CHECK_EQ(piece.index, i);
        CHECK_EQ(um_datagram_assembly_add(&assembly, f, &piece), i == 5);
        CHECK_EQ(f->session->counters.datagrams_sent_in_pieces, i == 5);
        f->link.space = 1;
        um_retransmission_pump(f->session, f->now_ns);
    }
    CHECK_EQ(f->link.count, 6);
    check_is_whole(&assembly, &sent);
    free(assembly.memory);
    session_close(f);
}

TEST("UM-50 W4", "suspicions that were wrong begin checks less and less often")
{
    network n = open_network(JUMBO, JUMBO);
    run(&n, 3, 2 * (int64_t)NS_PER_S);
    uint32_t checks[2] = {0};
    for (uint32_t minute = 0; minute < 2; minute++) {
        uint32_t before = n.probes;
        for (int64_t end_ns = n.now_ns + 60 * (int64_t)NS_PER_S; n.now_ns < end_ns;) {
            um_path_mtu_on_repeat(&n.path, JUMBO, n.now_ns);
            run(&n, 3, 50 * NS_PER_MS);
        }
        checks[minute] = n.probes - before;
    }
    CHECK_EQ(n.path.bytes, JUMBO);
    CHECK(checks[0] > checks[1] && checks[1] > 0 && checks[0] <= 100);
}

/* Opens a network with a check in which the third receiver reports only the floor, when `attempt` has been sent: the
 * larger probes of that attempt were lost. */
static network open_late_report(uint32_t attempt)
{
    network n = open_network(JUMBO, JUMBO);
    n.path_bytes[1] = ETHERNET;
    while (n.path.state != UM_PATH_CHECKING || n.path.attempt < attempt)
        run(&n, 2, 10 * NS_PER_MS);
    n.round[2] = n.path.round;
    n.bytes[2] = FLOOR;
    report(&n, 2);
    return n;
}

TEST("UM-50 W4", "the report of a receiver that has heard one attempt does not limit the size")
{
    for (uint32_t attempt = 2; attempt <= 3; attempt++) {
        network n = open_late_report(attempt);
        while (n.path.state == UM_PATH_CHECKING)
            run(&n, 2, 10 * NS_PER_MS);
        for (uint32_t i = 0; i < 200; i++) {
            run(&n, 3, 10 * NS_PER_MS);
            CHECK(n.path.bytes == JUMBO || n.path.bytes > ETHERNET - 200);
        }
    }
}

CHECK_MAIN

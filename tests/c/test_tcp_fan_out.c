/* The fan-out of a source over TCP, on pairs of sockets: each client reads the messages sent, in pieces of any size;
 * source-paced, it reads some of them, each whole.
 */
#include <fcntl.h>
#include <sys/socket.h>

#include "core/foundation/random.h"
#include "core/wire/tcp_control.h"
#include "io/tcp_fan_out.h"
#include "support.h"

enum { CLIENTS = 3, BACKLOG = UM_TCP_BACKLOG_MIN, STREAM_MAX = 16 << 20, TOPICS = 4 };

typedef struct client_end {
    int fd;
    uint8_t *got;
    uint32_t length;
} client_end;

typedef struct fan_out_fixture {
    um_source_session session;
    um_tcp_fan_out fan_out;
    client_end ends[CLIENTS];
    um_random random;
    uint32_t next_sqn;
    uint8_t *sent;
    uint32_t sent_bytes;
    uint32_t sent_messages;
} fan_out_fixture;

static fan_out_fixture *fixture_open(bool is_source_paced, bool has_filter)
{
    fan_out_fixture *f = zeroed(sizeof *f);
    f->random.state = check_seed();
    f->sent = zeroed(STREAM_MAX);
    CHECK_EQ(um_tcp_fan_out_open(&f->fan_out, &f->session, is_source_paced, false, BACKLOG), 0);
    for (int i = 0; i < CLIENTS; i++) {
        int pair[2], small = 4096;
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
        CHECK_EQ(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
        um_tcp_client *client = &f->fan_out.clients[i];
        client->state = UM_TCP_CLIENT_GREETING;
        client->fd = pair[0];
        f->fan_out.client_limit = CLIENTS;
        CHECK_EQ(um_tcp_fan_out_join(&f->fan_out, client, has_filter, 0), 0);
        f->ends[i] = (client_end){.fd = pair[1], .got = zeroed(STREAM_MAX)};
    }
    CHECK_EQ(f->session.stream_client_count, CLIENTS);
    return f;
}

static void fixture_close(fan_out_fixture *f)
{
    um_tcp_fan_out_close(&f->fan_out);
    CHECK_EQ(f->session.stream_client_count, 0);
    for (int i = 0; i < CLIENTS; i++) {
        close(f->ends[i].fd);
        free(f->ends[i].got);
    }
    free(f->sent);
    free(f);
}

/* One datagram of some messages, header first, in `out`. Returns its bytes. */
static uint32_t write_datagram(fan_out_fixture *f, uint8_t *out)
{
    uint32_t bytes = UM_LBTRM_DATA_BYTES, count = 1 + (uint32_t)um_random_below(&f->random, 8);
    um_lbtrm_write_data(out, 1, 2, 3, 3, false);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t payload = (uint32_t)um_random_below(&f->random, 300);
        um_lbmc_layout layout = {.topic_index = f->next_sqn % TOPICS, .sqn = f->next_sqn, .payload_length = payload};
        memset(um_lbmc_write_message(out + bytes, &layout), (int)f->next_sqn, payload);
        bytes += UM_LBMC_HEADER_BYTES + payload;
        f->next_sqn++;
    }
    return bytes;
}

/* Offers a batch of datagrams, in one part or two, until the link accepts all of it or none. */
static uint32_t send_batch(fan_out_fixture *f)
{
    static uint8_t memory[16][4096];
    um_part parts[16][2];
    um_tx batch[16];
    uint32_t count = 1 + (uint32_t)um_random_below(&f->random, 16), before = f->next_sqn, messages[16];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = write_datagram(f, memory[i]);
        parts[i][0] = (um_part){memory[i], UM_LBTRM_DATA_BYTES};
        parts[i][1] = (um_part){memory[i] + UM_LBTRM_DATA_BYTES, length - UM_LBTRM_DATA_BYTES};
        batch[i] = (um_tx){.parts = parts[i], .part_count = 2, .length = length};
        if (um_random_below(&f->random, 2) == 0) {
            parts[i][0].length = length;
            batch[i].part_count = 1;
        }
        messages[i] = f->next_sqn - before;
    }
    int taken = f->fan_out.base.ops->send(&f->fan_out.base, (um_address){0}, batch, count);
    CHECK(taken >= 0 && taken <= (int)count);
    for (int i = 0; i < taken; i++) {
        memcpy(f->sent + f->sent_bytes, memory[i] + UM_LBTRM_DATA_BYTES, batch[i].length - UM_LBTRM_DATA_BYTES);
        f->sent_bytes += batch[i].length - UM_LBTRM_DATA_BYTES;
    }
    f->next_sqn = before + (taken > 0 ? messages[taken - 1] : 0);
    f->sent_messages = f->next_sqn;
    return (uint32_t)taken;
}

/* A client reads at most this many bytes; the fan-out then uses the space. */
static void read_some(fan_out_fixture *f, int number, uint32_t most)
{
    client_end *end = &f->ends[number];
    ssize_t got = recv(end->fd, end->got + end->length, most, MSG_DONTWAIT);
    end->length += got > 0 ? (uint32_t)got : 0;
    um_tcp_fan_out_flush(&f->fan_out, &f->fan_out.clients[number], 0);
}

static void read_all(fan_out_fixture *f)
{
    for (int i = 0; i < CLIENTS; i++) {
        for (uint32_t before = UINT32_MAX; before != f->ends[i].length || f->fan_out.clients[i].backlog.used > 0;) {
            before = f->ends[i].length;
            read_some(f, i, STREAM_MAX - f->ends[i].length);
        }
    }
    CHECK_EQ(um_tcp_fan_out_backlog_bytes(&f->fan_out), 0);
}

TEST("", "receiver-paced: every client reads every message accepted, and the slowest holds the source")
{
    fan_out_fixture *f = fixture_open(false, false);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < 3000 && f->sent_bytes < STREAM_MAX - (1 << 20); i++) {
        refused += send_batch(f) == 0;
        for (int k = 0; k < CLIENTS; k++)
            if (um_random_below(&f->random, (uint32_t)(k + 1)) == 0)
                read_some(f, k, (uint32_t)um_random_below(&f->random, 20000) + 1);
        CHECK(um_tcp_fan_out_backlog_bytes(&f->fan_out) <= CLIENTS * BACKLOG);
    }
    CHECK(refused > 0);
    CHECK(f->fan_out.counters.short_sends > 0);
    read_all(f);
    for (int i = 0; i < CLIENTS; i++) {
        CHECK_EQ(f->ends[i].length, f->sent_bytes);
        CHECK_BYTES(f->ends[i].got, f->sent, f->sent_bytes);
    }
    CHECK_EQ(f->session.counters.client_messages_lost, 0);
    fixture_close(f);
}

/* Checks for whole messages with ascending sqns. Returns how many; `topic`: the only topic, or TOPICS. */
static uint32_t check_messages(const client_end *end, uint32_t topic)
{
    uint32_t count = 0, length, next = 0;
    um_lbmc_message message;
    for (uint32_t at = 0; at < end->length; at += length, count++) {
        CHECK_EQ(um_lbmc_decode(end->got + at, end->length - at, &message, &length), UM_DGRAM_OK);
        CHECK(message.sqn >= next && (topic == TOPICS || message.topic_index == topic));
        for (uint32_t i = 0; i < message.payload_length; i++)
            CHECK_EQ(message.payload[i], (uint8_t)message.sqn);
        next = message.sqn + 1;
    }
    return count;
}

TEST("", "source-paced: a slow client loses whole messages, each counted, and is reported; a fast one loses none")
{
    fan_out_fixture *f = fixture_open(true, false);
    for (uint32_t i = 0; i < 3000 && f->sent_bytes < STREAM_MAX - (1 << 20); i++) {
        CHECK(send_batch(f) > 0);
        for (uint32_t before = UINT32_MAX; before != f->ends[0].length;) {
            before = f->ends[0].length;
            read_some(f, 0, 1 << 20);
        }
        read_some(f, 1, 3000);
    }
    read_all(f);
    CHECK_EQ(f->ends[0].length, f->sent_bytes);
    uint32_t slow = check_messages(&f->ends[1], TOPICS), idle = check_messages(&f->ends[2], TOPICS);
    CHECK(idle < slow && slow < f->sent_messages);
    CHECK_EQ(f->session.counters.client_messages_lost, 2 * f->sent_messages - slow - idle);
    CHECK_EQ(f->fan_out.clients[2].lost_messages, f->sent_messages - idle);
    CHECK(f->session.events.count >= 2);
    CHECK_EQ(f->session.events.ring[0].kind, UM_SOURCE_RECEIVER_LOSES);
    fixture_close(f);
}

TEST("", "source-paced: control messages that a slow client does not get are not counted as lost messages")
{
    enum { CONTROLS = 100 };
    fan_out_fixture *f = fixture_open(true, false);
    um_tcp_client *slow = &f->fan_out.clients[0];
    while (slow->lost_messages == 0)
        send_batch(f);
    uint8_t datagram[UM_LBTRM_DATA_BYTES + CONTROLS * UM_LBMC_CONTROL_BYTES];
    um_lbtrm_write_data(datagram, 1, 2, 3, 3, false);
    for (uint32_t i = 0; i < CONTROLS; i++)
        um_tcp_write_nothing(datagram + UM_LBTRM_DATA_BYTES + i * UM_LBMC_CONTROL_BYTES);
    um_part part = {datagram, sizeof datagram};
    um_tx tx = {.parts = &part, .part_count = 1, .length = sizeof datagram};
    uint64_t lost = slow->lost_messages, lost_by_all = f->session.counters.client_messages_lost;
    while (um_byte_ring_space(&slow->backlog) >= UM_LBMC_CONTROL_BYTES)
        CHECK_EQ(f->fan_out.base.ops->send(&f->fan_out.base, (um_address){0}, &tx, 1), 1);
    CHECK_EQ(f->fan_out.base.ops->send(&f->fan_out.base, (um_address){0}, &tx, 1), 1);
    CHECK_EQ(slow->lost_messages, lost);
    CHECK_EQ(f->session.counters.client_messages_lost, lost_by_all);
    fixture_close(f);
}

TEST("", "receiver-paced: a client with a penalty does not hold the source until it is over and all is read")
{
    fan_out_fixture *f = fixture_open(false, false);
    um_tcp_client *stalled = &f->fan_out.clients[2];
    stalled->waited_from_ns = UM_NEVER_NS;
    for (uint32_t i = 0; i < 1000; i++) {
        CHECK(send_batch(f) > 0);
        for (int k = 0; k < 2; k++)
            for (uint32_t before = UINT32_MAX; before != f->ends[k].length;) {
                before = f->ends[k].length;
                read_some(f, k, 1 << 20);
            }
    }
    CHECK(stalled->lost_messages > 0);
    CHECK_EQ(f->ends[0].length, f->sent_bytes);
    stalled->waited_from_ns = 1; /* the wait is over, and the backlog is full */
    CHECK(send_batch(f) > 0);
    read_all(f);
    CHECK_EQ(check_messages(&f->ends[2], TOPICS), f->sent_messages - stalled->lost_messages);
    uint64_t lost = stalled->lost_messages;
    for (uint32_t i = 0; i < 1000; i++) { /* it has read everything: it holds the source again, and loses no more */
        send_batch(f);
        for (int k = 0; k < 2; k++)
            read_some(f, k, 1 << 20);
    }
    CHECK_EQ(send_batch(f), 0);
    read_all(f);
    CHECK_EQ(stalled->lost_messages, lost);
    fixture_close(f);
}

TEST("UX-27", "a filtered client reads its topics, whole and in order")
{
    fan_out_fixture *f = fixture_open(false, true);
    CHECK(um_topic_filter_add(&f->fan_out.clients[0].filter, 1));
    for (uint32_t topic = 0; topic < TOPICS; topic++)
        CHECK(um_topic_filter_add(&f->fan_out.clients[1].filter, topic));
    for (uint32_t i = 0; i < 500; i++) {
        send_batch(f);
        for (int k = 0; k < CLIENTS; k++)
            read_some(f, k, 20000);
    }
    read_all(f);
    CHECK(check_messages(&f->ends[0], 1) > 0);
    CHECK_EQ(f->ends[1].length, f->sent_bytes);
    CHECK_BYTES(f->ends[1].got, f->sent, f->sent_bytes);
    CHECK_EQ(f->ends[2].length, 0);
    fixture_close(f);
}

TEST("", "a client that leaves does not affect the others")
{
    fan_out_fixture *f = fixture_open(false, false);
    close(f->ends[1].fd);
    for (uint32_t i = 0; i < 200; i++) {
        send_batch(f);
        read_some(f, 0, 1 << 16);
        read_some(f, 2, 1 << 16);
    }
    CHECK(f->fan_out.clients[1].has_failed);
    um_tcp_fan_out_leave(&f->fan_out, &f->fan_out.clients[1]);
    f->ends[1].fd = open("/dev/null", O_RDONLY);
    CHECK_EQ(f->session.stream_client_count, CLIENTS - 1);
    for (int i = 0; i < CLIENTS; i += 2)
        while (f->fan_out.clients[i].backlog.used > 0)
            read_some(f, i, 1 << 16);
    read_some(f, 0, 1 << 20);
    read_some(f, 2, 1 << 20);
    CHECK_EQ(f->ends[0].length, f->sent_bytes);
    CHECK_EQ(f->ends[2].length, f->sent_bytes);
    fixture_close(f);
}

CHECK_MAIN

/* Passing the loop between the context's thread and waiting readers, on the loopback interface. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>

#include "core/foundation/random.h"
#include "core/wire/lbtrm.h"
#include "io/context_private.h"
#include "io/statistics.h"
#include "mapping.h"
#include "os/clock.h"
#include "support.h"

enum {
    MTU_BYTES = 1472,
    SESSION = 77,
    QUEUES = 2,
    PAYLOAD_BYTES = 8,
    PORT = 14410,
#ifdef UM_FEWER_ROUNDS
    MESSAGES = 1500,
#else
    MESSAGES = 6000,
#endif
};

static const int64_t LONG_NS = 20 * (int64_t)NS_PER_S; /* longer than any wait that passes the test */

/* A context with a queue and a subscription per topic, and a socket that acts as the source. */
typedef struct leading {
    um_context *context;
    um_event_queue *queues[QUEUES];
    um_subscription *subscriptions[QUEUES];
    int source;
    uint16_t nak_port;
    um_address group;
    uint32_t next_sqn;
    uint32_t next_topic_sqn[QUEUES];
} leading;

static um_receiver_session_config session_config(const leading *f, um_address group)
{
    return (um_receiver_session_config){
        .id = {um_address_of_v4(INADDR_LOOPBACK, f->nak_port), group, SESSION, UM_TRANSPORT_LBTRM, 0},
        .nak_initial_backoff_ns = NS_PER_MS,
        .nak_backoff_ns = 50 * NS_PER_MS,
        .nak_generation_ns = 300 * NS_PER_MS, /* how long a gap delays topics that start behind it */
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .send_naks = true,
        .datagram_max_bytes = MTU_BYTES,
        .loss_capacity = 1024,
        .topic_capacity = 16,
        .window_bytes = 1 << 20,
        .status_interval_ns = NS_PER_S,
        .random_seed = 1,
    };
}

static void open_source(leading *f)
{
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof local;
    f->source = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(f->source >= 0);
    CHECK_EQ(bind(f->source, (struct sockaddr *)&local, sizeof local), 0);
    CHECK_EQ(setsockopt(f->source, IPPROTO_IP, IP_MULTICAST_IF, &local.sin_addr, sizeof local.sin_addr), 0);
    CHECK_EQ(getsockname(f->source, (struct sockaddr *)&local, &length), 0);
    f->nak_port = ntohs(local.sin_port);
    /* Each process uses its own groups, because tests run concurrently. */
    f->group = um_address_of_v4(0xef630000 | f->nak_port, PORT);
}

static leading *leading_open(void)
{
    um_context_config config = {
        .interface = "lo",
        .interface_ip = um_ip_of_v4(INADDR_LOOPBACK),
        .ttl = 0,
        .receiver_buffer_bytes = 1 << 20,
        .receive_batch = 16,
        .adaptive_spin_ns = 100000,
        .coalesce_ns = 300000,
        .coalesce_max_ns = 300000,
        .rate_interval_ns = NS_PER_MS,
        .hold_datagrams = 256,
        .hold_messages = 1024,
        .datagram_max_bytes = MTU_BYTES,
        .random_seed = 1,
    };
    um_event_queue_config queue = {
        .block_count = 4,
        .block_rows = 4096,
        .block_bytes = 1 << 20,
        .message_max_bytes = UM_QUEUE_MESSAGE_BYTES_MIN,
        .hold_ns = UM_NEVER_NS,
    };
    um_receiver_config receiver = {.ordered_delivery = UM_ORDERED_SEQUENCE, .burst_loss_max = 8};
    leading *f = zeroed(sizeof *f);
    open_source(f);
    CHECK_EQ(um_context_create(&config, &f->context), 0);
    um_receiver_session_config session = session_config(f, f->group);
    for (uint32_t q = 0; q < QUEUES; q++) {
        CHECK_EQ(um_event_queue_open(f->context, &queue, &f->queues[q]), 0);
        CHECK_EQ(um_subscription_open(f->queues[q], &receiver, &f->subscriptions[q]), 0);
        CHECK_EQ(map_source(f->subscriptions[q], &session, q, q), 0);
    }
    CHECK_EQ(um_context_start(f->context), 0);
    return f;
}

static void leading_close(leading *f)
{
    um_context_close(f->context);
    for (uint32_t q = 0; q < QUEUES; q++) {
        um_subscription_free(f->subscriptions[q]);
        um_event_queue_free(f->queues[q]);
    }
    um_context_free(f->context);
    close(f->source);
    free(f);
}

/* Sends a message of the topic in one datagram; its payload is its number. */
static void send_to(leading *f, uint32_t topic, um_address group, uint32_t topic_sqn)
{
    uint8_t out[MTU_BYTES] = {0};
    um_lbtrm_write_data(out, SESSION, f->nak_port, f->next_sqn, 0, false);
    f->next_sqn++;
    um_lbmc_layout layout = {.topic_index = topic, .sqn = topic_sqn, .payload_length = PAYLOAD_BYTES};
    uint8_t *payload = um_lbmc_write_message(out + UM_LBTRM_DATA_BYTES, &layout);
    memcpy(payload, &topic_sqn, sizeof topic_sqn);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr = {htonl(um_ip_v4(group.ip))}, .sin_port = htons(group.port)};
    size_t bytes = (size_t)(payload + PAYLOAD_BYTES - out);
    CHECK_EQ(sendto(f->source, out, bytes, 0, (struct sockaddr *)&to, sizeof to), (ssize_t)bytes);
}

static void send_message(leading *f, uint32_t topic)
{
    send_to(f, topic, f->group, f->next_topic_sqn[topic]++);
}

/* Checks that the rows continue with `expected`; events are skipped. */
static void check_rows(const um_rows *rows, uint32_t *expected)
{
    for (uint32_t i = rows->first; i < rows->first + rows->count; i++) {
        uint32_t number;
        if (um_row_kind_of(rows->block->flags[i]) != UM_ROW_MESSAGE)
            continue;
        memcpy(&number, rows->block->payload + rows->block->offsets[i], sizeof number);
        CHECK_EQ(number, (*expected)++);
    }
    um_queue_release(rows->block, rows->count);
}

/* Reads without waiting in the queue, so that only another thread can have received the message. */
static void take_until(um_event_queue *queue, uint32_t *next, uint32_t end)
{
    um_rows rows;
    while (*next != end) {
        if (um_event_queue_take(queue, 64, &rows) > 0)
            check_rows(&rows, next);
        else
            sched_yield();
    }
}

static bool is_led(const leading *f)
{
    return atomic_load(&f->context->leader.is_led);
}

static bool is_waiting(const leading *f, uint32_t q)
{
    return atomic_load(&f->queues[q]->waiting) != 0;
}

static void await_led(const leading *f, bool led)
{
    while (is_led(f) != led)
        sched_yield();
}

static uint64_t passes_led(leading *f)
{
    uint64_t values[UM_STATISTICS_FIELDS_MAX];
    um_statistics_context(f->context, values);
    return ((um_context_counters *)values)->loop_passes_led;
}

/* ---- readers ---- */

typedef struct reader {
    pthread_t thread;
    leading *f;
    uint32_t queue;
    uint32_t next; /* the number of the next message */
    uint32_t end;
    int64_t timeout_ns; /* of each poll; 0: short, varying timeouts */
    uint32_t polls;
} reader;

static void *read_all(void *argument)
{
    reader *r = argument;
    um_random random = {r->queue + 1};
    while (r->next != r->end) {
        um_rows rows;
        int64_t wait_ns = r->timeout_ns ? r->timeout_ns : (int64_t)um_random_below(&random, 2 * NS_PER_MS);
        r->polls++;
        if (um_event_queue_poll(r->f->queues[r->queue], 16, wait_ns, &rows) > 0)
            check_rows(&rows, &r->next);
    }
    return NULL;
}

/* Polls once; something other than the timeout must end the poll. */
static void *poll_once(void *argument)
{
    reader *r = argument;
    um_rows rows;
    if (um_event_queue_poll(r->f->queues[r->queue], 16, LONG_NS, &rows) > 0)
        check_rows(&rows, &r->next);
    return NULL;
}

static void start(reader *r, void *(*function)(void *))
{
    CHECK_EQ(pthread_create(&r->thread, NULL, function, r), 0);
}

static void pause_randomly(um_random *random)
{
    struct timespec wait = {0, (long)um_random_below(random, 150000)};
    if (um_random_below(random, 3) > 0)
        nanosleep(&wait, NULL);
}

TEST("", "each message reaches its reader once and in order while readers and the context's thread take turns")
{
    leading *f = leading_open();
    reader readers[QUEUES] = {{.f = f, .queue = 0, .end = MESSAGES}, {.f = f, .queue = 1, .end = MESSAGES}};
    um_random random = {3};
    for (uint32_t q = 0; q < QUEUES; q++)
        start(&readers[q], read_all);
    for (uint32_t i = 0; i < QUEUES * MESSAGES; i++) {
        send_message(f, i % QUEUES);
        pause_randomly(&random);
    }
    for (uint32_t q = 0; q < QUEUES; q++)
        pthread_join(readers[q].thread, NULL);
    CHECK(passes_led(f) > 0);
    leading_close(f);
}

TEST("UM-13", "while no reader waits, the context's thread receives, however the last wait ended")
{
    leading *f = leading_open();
    uint32_t next = 0;
    um_rows rows;
    for (uint32_t round = 0; round < 3; round++) {
        reader waiting = {.f = f, .queue = 0, .next = next, .end = next + 1};
        if (round == 0) { /* ended by a row */
            start(&waiting, poll_once);
            await_led(f, true);
            send_message(f, 0);
            pthread_join(waiting.thread, NULL);
            next = waiting.next;
            if (next == 0) /* the BOS event arrived alone */
                take_until(f->queues[0], &next, 1);
        } else if (round == 1) { /* ended by its timeout */
            CHECK_EQ(um_event_queue_poll(f->queues[0], 16, 3 * NS_PER_MS, &rows), 0);
        } else { /* ended by unblocking */
            start(&waiting, poll_once);
            await_led(f, true);
            um_context_unblock(f->context);
            pthread_join(waiting.thread, NULL);
        }
        CHECK(!is_led(f));
        uint64_t before = passes_led(f);
        for (uint32_t i = 0; i < 20; i++)
            send_message(f, 0);
        take_until(f->queues[0], &next, next + 20);
        CHECK_EQ(passes_led(f), before);
    }
    leading_close(f);
}

TEST("", "the leader receives for its followers, and one of them leads after it")
{
    leading *f = leading_open();
    reader first = {.f = f, .queue = 0, .end = 1, .timeout_ns = LONG_NS};
    reader second = {.f = f, .queue = 1, .end = 2, .timeout_ns = LONG_NS};
    start(&first, read_all);
    await_led(f, true);
    start(&second, read_all);
    while (!is_waiting(f, 1))
        sched_yield();
    uint64_t before = passes_led(f);
    send_message(f, 1);
    while (passes_led(f) == before)
        sched_yield();
    send_message(f, 0);
    pthread_join(first.thread, NULL);
    await_led(f, true);
    send_message(f, 1);
    pthread_join(second.thread, NULL);
    leading_close(f);
}

TEST("", "closing a queue ends the wait of the leading reader")
{
    leading *f = leading_open();
    reader waiting = {.f = f, .queue = 0};
    start(&waiting, poll_once);
    await_led(f, true);
    um_subscription_close(f->subscriptions[0]);
    um_event_queue_close(f->queues[0]);
    pthread_join(waiting.thread, NULL);
    uint32_t next = 0;
    send_message(f, 1);
    take_until(f->queues[1], &next, 1);
    leading_close(f);
}

static void on_signal(int number)
{
    (void)number;
}

TEST("", "a signal ends the wait of the leading reader")
{
    struct sigaction action = {.sa_handler = on_signal};
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    leading *f = leading_open();
    reader waiting = {.f = f, .queue = 0};
    start(&waiting, poll_once);
    while (!is_led(f) || !is_waiting(f, 0))
        sched_yield();
    /* A signal that arrives just before the reader sleeps does not end the sleep, so repeat it. */
    while (is_led(f)) {
        pthread_kill(waiting.thread, SIGUSR1);
        sched_yield();
    }
    pthread_join(waiting.thread, NULL);
    leading_close(f);
}

TEST("UM-93", "a gap found by the leader is NAKed on time while the leader keeps waiting")
{
    leading *f = leading_open();
    uint8_t datagram[UM_DATAGRAM_BYTES_MAX];
    struct timeval limit = {20, 0};
    reader waiting = {.f = f, .queue = 0, .end = 1, .timeout_ns = LONG_NS};
    start(&waiting, read_all);
    await_led(f, true);
    send_message(f, 1);
    f->next_sqn++;
    f->next_topic_sqn[1]++;
    send_message(f, 1);
    CHECK_EQ(setsockopt(f->source, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    um_packet packet = {0};
    do {
        ssize_t length = recv(f->source, datagram, sizeof datagram, 0);
        CHECK(length > 0);
        CHECK_EQ(um_lbtrm_decode(datagram, (uint32_t)length, &packet), UM_DGRAM_OK);
    } while (packet.type != UM_LBTRM_NAK);
    CHECK(is_led(f));
    send_message(f, 0);
    pthread_join(waiting.thread, NULL);
    leading_close(f);
}

TEST("", "a group joined while a reader leads is received")
{
    leading *f = leading_open();
    um_address other = {f->group.ip, PORT + 1};
    reader waiting = {.f = f, .queue = 0, .end = 1, .timeout_ns = LONG_NS};
    start(&waiting, read_all);
    await_led(f, true);
    um_receiver_session_config session = session_config(f, other);
    CHECK_EQ(map_source(f->subscriptions[1], &session, 9, 1), 0);
    f->next_sqn = 0;
    send_to(f, 9, other, 0);
    uint32_t next = 0;
    take_until(f->queues[1], &next, 1);
    CHECK(is_led(f));
    f->next_sqn = 0;
    send_message(f, 0);
    pthread_join(waiting.thread, NULL);
    leading_close(f);
}

TEST("", "a group left while a reader leads is closed, and the reader keeps leading the others")
{
    leading *f = leading_open();
    um_address other = {f->group.ip, PORT + 1};
    um_receiver_config receiver = {.ordered_delivery = UM_ORDERED_SEQUENCE, .burst_loss_max = 8};
    um_receiver_session_config session = session_config(f, other);
    um_subscription *leaving;
    CHECK_EQ(um_subscription_open(f->queues[1], &receiver, &leaving), 0);
    CHECK_EQ(map_source(leaving, &session, 9, 1), 0);
    reader waiting = {.f = f, .queue = 0, .end = 1, .timeout_ns = LONG_NS};
    start(&waiting, read_all);
    await_led(f, true);
    int fd = f->context->receiving.groups[1].link.fd;
    um_subscription_close(leaving);
    um_subscription_free(leaving);
    while (fcntl(fd, F_GETFD) != -1 || !is_led(f)) /* it leads again; it is woken only if it already waited for fd */
        sched_yield();
    send_message(f, 1);
    uint32_t next = 0;
    take_until(f->queues[1], &next, 1);
    struct timespec wait = {0, 20 * NS_PER_MS};
    uint64_t before = passes_led(f);
    nanosleep(&wait, NULL);
    CHECK(passes_led(f) - before < 10);
    send_message(f, 0);
    pthread_join(waiting.thread, NULL);
    leading_close(f);
}

TEST("", "a wait for a descriptor leads too, and ends when the queue behind it gets rows")
{
    leading *f = leading_open();
    uint32_t next = 0;
    CHECK(!um_event_queue_arm(f->queues[0]));
    CHECK(um_context_wait(f->context, um_event_queue_descriptor(f->queues[0]), NS_PER_MS));
    send_message(f, 0);
    CHECK(um_context_wait(f->context, um_event_queue_descriptor(f->queues[0]), LONG_NS));
    take_until(f->queues[0], &next, 1);
    CHECK(!is_led(f));
    leading_close(f);
}

CHECK_MAIN

/* Whole contexts on the loopback interface, used by many threads at once. Runs under AddressSanitizer and under
 * ThreadSanitizer, which detects shared data accessed without its lock.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "io/context_private.h"
#include "io/publication.h"
#include "io/relay.h"
#include "io/statistics.h"
#include "io/subscription.h"
#include "mapping.h"
#include "os/clock.h"
#include "os/memory.h"
#include "support.h"

#ifdef UM_FEWER_ROUNDS /* ThreadSanitizer is ten times slower */
enum { MESSAGES = 3000, OPENINGS = 20 };
#else
enum { MESSAGES = 20000, OPENINGS = 60 };
#endif

enum {
    SESSIONS = 2,
    PUBLISHERS = 4, /* over all sessions, each with a topic */
    READERS = 2,
    DATAGRAM_BYTES = 1472,
    LOOPBACK = 0x7f000001,
    TIMEOUT_S = 50,
};

typedef struct world {
    um_context *context;
    um_publication_session *sessions[SESSIONS];
    um_source_session_config session_configs[SESSIONS];
    um_publication *publications[PUBLISHERS];
    um_event_queue *queues[READERS];
    um_subscription *subscriptions[READERS];
    atomic_uint readers_done;
    atomic_uint drained; /* messages */
    atomic_bool stop;
} world;

/* Addresses for this process only, because tests run concurrently. */
static um_address group_of(uint32_t number)
{
    uint32_t process = (uint32_t)getpid();
    return um_address_of_v4(0xefc00000 | (process & 0x3fff) << 8 | number, (uint16_t)(30000 + process % 5000));
}

static um_context *context_open(bool embedded)
{
    um_context_config config = {
        .interface = "lo",
        .interface_ip = um_ip_of_v4(LOOPBACK),
        .receive_batch = 32,
        .gso = true,
        .gro = true,
        .adaptive_spin_ns = embedded ? 0 : 20000,
        .coalesce_ns = 50000,
        .coalesce_max_ns = 500000,
        .rate_interval_ns = 10 * (int64_t)NS_PER_MS,
        .hold_datagrams = 16384,
        .hold_messages = 65536,
        .datagram_max_bytes = DATAGRAM_BYTES,
    };
    um_context *context;
    CHECK_EQ(um_context_create(&config, &context), 0);
    if (embedded)
        CHECK_EQ(um_context_start(context), 0);
    return context;
}

static void session_open_on(world *w, uint32_t number, enum um_flow_control_policy flow_policy)
{
    um_source_session_config *config = &w->session_configs[number];
    *config = default_config();
    config->session_id = 0x5eed0000 + number;
    config->group = group_of(number + 1);
    config->term_length = 1 << 20;
    config->window_bytes = 1 << 20;
    config->batch_interval_ns = 2 * (int64_t)NS_PER_MS;
    config->sm_minimum_interval_ns = 10 * (int64_t)NS_PER_MS;
    config->flow_policy = flow_policy;
    CHECK_EQ(um_publication_session_open(w->context, config, 20000, 29999, &w->sessions[number]), 0);
    um_publication_session_limit_datagram(w->sessions[number], DATAGRAM_BYTES);
}

static um_event_queue *queue_open(um_context *context, uint32_t blocks, uint32_t bytes)
{
    um_event_queue_config config = {.block_count = blocks,
                                    .block_rows = 1024,
                                    .block_bytes = bytes,
                                    .message_max_bytes = UM_QUEUE_MESSAGE_BYTES_MIN,
                                    .hold_ns = UM_NEVER_NS};
    um_event_queue *queue;
    CHECK_EQ(um_event_queue_open(context, &config, &queue), 0);
    return queue;
}

static um_receiver_session_config receiver_config(um_session_id id)
{
    return (um_receiver_session_config){
        .id = id,
        .nak_initial_backoff_ns = NS_PER_MS,
        .nak_backoff_ns = 2 * (int64_t)NS_PER_MS,
        .nak_suppress_ns = 5 * (int64_t)NS_PER_MS,
        .nak_generation_ns = 20 * (int64_t)NS_PER_S,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .send_naks = true,
        .datagram_max_bytes = DATAGRAM_BYTES,
        .loss_capacity = 16384,
        .topic_capacity = 64,
        .window_bytes = 1 << 17,
        .status_interval_ns = NS_PER_MS,
        .receiver_id = 1,
        .random_seed = 1,
    };
}

static um_subscription *subscription_open(um_event_queue *queue)
{
    um_receiver_config config = {.ordered_delivery = UM_ORDERED_SEQUENCE, .burst_loss_max = 1024};
    um_subscription *subscription;
    CHECK_EQ(um_subscription_open(queue, &config, &subscription), 0);
    return subscription;
}

static um_subscription *subscribe(world *w, um_event_queue *queue)
{
    um_subscription *subscription = subscription_open(queue);
    for (uint32_t topic = 0; topic < PUBLISHERS; topic++) {
        const um_source_session_config *of = &w->session_configs[topic % SESSIONS];
        um_receiver_session_config session = receiver_config((um_session_id){
            um_address_of_v4(LOOPBACK, of->nak_port), of->group, of->session_id, UM_TRANSPORT_LBTRM, 0});
        CHECK_EQ(map_source(subscription, &session, topic, topic), 0);
    }
    return subscription;
}

static world *world_open_with(bool embedded, enum um_flow_control_policy flow_policy, uint32_t block_bytes)
{
    world *w = zeroed(sizeof *w);
    w->context = context_open(embedded);
    for (uint32_t i = 0; i < SESSIONS; i++)
        session_open_on(w, i, flow_policy);
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        um_source_config source = {.topic_index = i, .explicit_capacity = 4096, .tsni_interval_ns = NS_PER_S};
        CHECK_EQ(um_publication_open(w->sessions[i % SESSIONS], &source, &w->publications[i]), 0);
    }
    for (uint32_t i = 0; i < READERS; i++) {
        w->queues[i] = queue_open(w->context, 8, block_bytes);
        w->subscriptions[i] = subscribe(w, w->queues[i]);
    }
    return w;
}

static world *world_open(bool embedded)
{
    return world_open_with(embedded, UM_FLOW_MIN, 1 << 17);
}

static void world_close(world *w)
{
    for (uint32_t i = 0; i < READERS; i++) {
        um_subscription_close(w->subscriptions[i]);
        um_subscription_free(w->subscriptions[i]);
        um_event_queue_close(w->queues[i]);
        um_event_queue_free(w->queues[i]);
    }
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        um_publication_close(w->publications[i]);
        um_publication_free(w->publications[i]);
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        size_t bytes;
        void *memory = um_publication_session_memory(w->sessions[i], &bytes);
        um_publication_session_shut(w->sessions[i]);
        um_unmap(memory, bytes);
    }
    um_context_close(w->context);
    um_context_free(w->context);
    free(w);
}

/* ---- threads ---- */

typedef struct actor {
    pthread_t thread;
    world *world;
    uint32_t number;
} actor;

/* A message contains its number in its topic; every seventh is flushed, and every 64 are sent in one call. */
static void *publish(void *argument)
{
    const actor *a = argument;
    um_publication *publication = a->world->publications[a->number];
    for (uint32_t i = 0; i < MESSAGES;) {
        uint32_t batch[64][4], count = i % 3 == 0 && i + 64 <= MESSAGES ? 64 : 1;
        uint32_t lengths[64];
        for (uint32_t k = 0; k < count; k++) {
            batch[k][0] = i + k;
            batch[k][1] = batch[k][2] = batch[k][3] = a->number;
            lengths[k] = sizeof batch[k];
        }
        bool last = i + count == MESSAGES;
        int64_t sent =
            um_publication_send_many(publication, (const char *)batch, count * sizeof batch[0], lengths, NULL, count,
                                     last || i % 7 == 0 ? UM_SEND_FLUSH : 0, TIMEOUT_S * (int64_t)NS_PER_S);
        CHECK(sent > 0);
        i += (uint32_t)sent;
    }
    CHECK_EQ(um_publication_flush(publication), 0);
    return NULL;
}

/* Reads until all messages of all topics have been received, each topic in order and without a loss. */
static void *read_all(void *argument)
{
    const actor *a = argument;
    world *w = a->world;
    uint32_t next[PUBLISHERS] = {0};
    int64_t end_ns = um_clock_ns() + TIMEOUT_S * (int64_t)NS_PER_S;
    for (uint64_t seen = 0; seen < (uint64_t)PUBLISHERS * MESSAGES;) {
        um_rows rows;
        um_event_queue_poll(w->queues[a->number], 256, 20 * (int64_t)NS_PER_MS, &rows);
        CHECK(um_clock_ns() < end_ns);
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
            uint32_t kind = um_row_kind_of(rows.block->flags[i]), message[4];
            CHECK(kind == UM_ROW_MESSAGE || kind == UM_ROW_BEGINNING_OF_SESSION);
            if (kind != UM_ROW_MESSAGE)
                continue;
            CHECK_EQ(um_rows_copy(rows.block, i, (uint8_t *)message, sizeof message), sizeof message);
            CHECK(message[1] < PUBLISHERS);
            CHECK_EQ(message[0], next[message[1]]++);
            seen++;
        }
        if (rows.count > 0)
            um_queue_release(rows.block, rows.count);
    }
    atomic_fetch_add(&w->readers_done, 1);
    return NULL;
}

static void look_once(world *w)
{
    uint64_t out[UM_STATISTICS_FIELDS_MAX];
    um_session_id id;
    CHECK(um_statistics_context(w->context, out) > 0);
    CHECK(um_statistics_link(w->context, out) > 0);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        um_statistics_source_transport(w->sessions[i], out);
        um_statistics_receiver_transport(w->context, i, &id, out);
        um_statistics_recovery_histogram(w->context, i, out);
    }
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        um_statistics_source(w->publications[i], out);
        um_publication_drained(w->publications[i]);
        um_publication_connected(w->publications[i]);
    }
    for (uint32_t i = 0; i < READERS; i++)
        um_statistics_receiver(w->subscriptions[i], out);
}

static void *look(void *argument)
{
    const actor *a = argument;
    while (!atomic_load(&a->world->stop)) {
        look_once(a->world);
        sched_yield();
    }
    return NULL;
}

/* Opens and closes a second subscription. It starts in the middle of the stream, so its rows are not checked. */
static void *open_and_close(void *argument)
{
    const actor *a = argument;
    world *w = a->world;
    for (uint32_t i = 0; i < OPENINGS && !atomic_load(&w->stop); i++) {
        um_event_queue *queue = queue_open(w->context, 8, 1 << 17);
        um_subscription *subscription = subscribe(w, queue);
        for (uint32_t k = 0; k < 5; k++) {
            um_rows rows;
            if (um_event_queue_poll(queue, 64, NS_PER_MS, &rows) > 0)
                um_queue_release(rows.block, rows.count);
        }
        um_subscription_close(subscription);
        um_subscription_free(subscription);
        um_event_queue_close(queue);
        um_event_queue_free(queue);
    }
    return NULL;
}

static void *donate(void *argument)
{
    const actor *a = argument;
    while (!atomic_load(&a->world->stop))
        um_context_process(a->world->context, 2 * (int64_t)NS_PER_MS);
    return NULL;
}

static void start(actor *actors, uint32_t count, world *w, void *(*does)(void *))
{
    for (uint32_t i = 0; i < count; i++) {
        actors[i] = (actor){.world = w, .number = i};
        CHECK_EQ(pthread_create(&actors[i].thread, NULL, does, &actors[i]), 0);
    }
}

static void join(actor *actors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pthread_join(actors[i].thread, NULL);
}

/* Runs publishers and readers until everything has been read, beside threads that run `beside` until stopped. */
static void run(world *w, void *(*const *beside)(void *), uint32_t beside_count)
{
    actor publishers[PUBLISHERS], readers[READERS], others[4];
    for (uint32_t i = 0; i < beside_count; i++)
        start(&others[i], 1, w, beside[i]);
    start(readers, READERS, w, read_all);
    start(publishers, PUBLISHERS, w, publish);
    join(publishers, PUBLISHERS);
    join(readers, READERS);
    atomic_store(&w->stop, true);
    join(others, beside_count);
    CHECK_EQ(atomic_load(&w->readers_done), READERS);
}

TEST("UM-13 W8", "embedded: publishers, readers, statistics, and subscriptions opened and closed")
{
    world *w = world_open(true);
    run(w, (void *(*const[])(void *)){look, open_and_close}, 2);
    world_close(w);
}

TEST("UM-14 W8", "sequential: readers, publishers and two other threads run the loop in turn")
{
    world *w = world_open(false);
    run(w, (void *(*const[])(void *)){donate, donate, look}, 3);
    world_close(w);
}

static void wait_a_while(void)
{
    struct timespec a_while = {0, 5 * NS_PER_MS};
    nanosleep(&a_while, NULL);
}

static void *process_unending(void *argument)
{
    const actor *a = argument;
    um_context_process(a->world->context, -1);
    return NULL;
}

static void *poll_unending(void *argument)
{
    const actor *a = argument;
    um_rows rows;
    while (!atomic_load(&a->world->stop))
        if (um_event_queue_poll(a->world->queues[a->number], 64, -1, &rows) > 0)
            um_queue_release(rows.block, rows.count);
    return NULL;
}

static void await_sleepers(um_context *context, uint32_t count)
{
    uint32_t asleep;
    do {
        wait_a_while();
        um_reactor_lock(&context->reactor);
        asleep = context->reactor.sleepers;
        um_reactor_unlock(&context->reactor);
    } while (asleep != count);
}

static void await_readers(um_context *context, uint32_t count)
{
    while (atomic_load(&context->queues.waiting_count) != count)
        wait_a_while();
}

/* An idle context: no timer wakes a thread that misses its wake-up. */
static void unblock_sequential(void)
{
    enum { PROCESSING = 8 }; /* the first thread woken takes the wake-up of most others */
    world w = {.context = context_open(false)};
    actor processing[PROCESSING];
    start(processing, PROCESSING, &w, process_unending);
    await_sleepers(w.context, PROCESSING);
    um_context_unblock(w.context);
    join(processing, PROCESSING);
    um_context_close(w.context);
    um_context_free(w.context);
}

static void unblock_embedded(void)
{
    world *w = world_open(true);
    actor reading[READERS];
    start(reading, READERS, w, poll_unending);
    await_readers(w->context, READERS);
    atomic_store(&w->stop, true);
    um_context_unblock(w->context);
    join(reading, READERS);
    world_close(w);
}

TEST("UM-14", "unblocking ends the calls of all threads that wait without a timeout, in both modes")
{
    for (uint32_t round = 0; round < OPENINGS; round++) {
        unblock_sequential();
        unblock_embedded();
    }
}

static void *poll_once(void *argument)
{
    const actor *a = argument;
    um_rows rows;
    while (um_event_queue_poll(a->world->queues[a->number], 64, -1, &rows) > 0)
        um_queue_release(rows.block, rows.count);
    return NULL;
}

TEST("UM-14", "closing a queue ends its reader's call while other threads stay in the loop")
{
    for (uint32_t round = 0; round < OPENINGS; round++) {
        bool embedded = round % 2;
        world *w = world_open(embedded);
        actor processing[2], reading;
        if (!embedded)
            start(processing, 2, w, process_unending);
        um_event_queue *queue = w->queues[0];
        start(&reading, 1, w, poll_once);
        wait_a_while();
        um_subscription_close(w->subscriptions[0]);
        um_subscription_free(w->subscriptions[0]);
        um_event_queue_close(queue);
        join(&reading, 1);
        um_event_queue_free(queue);
        w->queues[0] = queue_open(w->context, 8, 1 << 17);
        w->subscriptions[0] = subscribe(w, w->queues[0]);
        if (!embedded)
            await_sleepers(w->context, 2); /* both sleep */
        um_context_unblock(w->context);
        if (!embedded)
            join(processing, 2);
        world_close(w);
    }
}

TEST("UM-14", "a request to run the loop later outlives the pass that takes it")
{
    um_context *context = context_open(false);
    int64_t now_ns = um_clock_ns(), requested_ns = now_ns + 500 * NS_PER_MS;
    um_reactor_wake_by(&context->reactor, requested_ns);
    um_loop_pass(&context->loop, 0);
    CHECK(um_clock_ns() < requested_ns);
    um_loop_pass(&context->loop, now_ns + 20 * (int64_t)NS_PER_S);
    int64_t woken_ns = um_clock_ns();
    CHECK(woken_ns >= requested_ns);
    CHECK(woken_ns < now_ns + 10 * (int64_t)NS_PER_S);
    um_context_close(context);
    um_context_free(context);
}

/* ---- a full queue ---- */

static uint64_t passes(const world *w)
{
    uint64_t out[UM_STATISTICS_FIELDS_MAX];
    um_statistics_context(w->context, out);
    return ((const um_context_counters *)out)->loop_iterations;
}

static bool is_full(const world *w, uint32_t number)
{
    uint64_t out[UM_STATISTICS_FIELDS_MAX];
    um_statistics_receiver(w->subscriptions[number], out);
    return ((const um_receiver_counters *)out)->queue_full_pauses > 0;
}

/* Reads a queue until no row has arrived for a while. */
static void *drain_own(void *argument)
{
    const actor *a = argument;
    world *w = a->world;
    uint32_t messages = 0;
    um_rows rows;
    while (um_event_queue_poll(w->queues[a->number], 256, 300 * (int64_t)NS_PER_MS, &rows) > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++)
            messages += um_row_kind_of(rows.block->flags[i]) == UM_ROW_MESSAGE;
        um_queue_release(rows.block, rows.count);
    }
    atomic_fetch_add(&w->drained, messages);
    return NULL;
}

TEST("", "while a queue is full and datagrams wait in the socket, the loop sleeps, then it continues")
{
    enum { WATCHED_MS = 200, PASSES_A_MS_MAX = 20 };
    world *w = world_open_with(true, UM_FLOW_NONE, 1 << 14);
    uint32_t sent = 0, more = 20; /* datagrams that stay in the socket */
    while (more > 0) {
        uint32_t message[256] = {sent++};
        CHECK(um_publication_send(w->publications[0], (const char *)message, sizeof message, UM_SEND_FLUSH, 0) >= 0);
        more -= is_full(w, 0) && is_full(w, 1);
        if (sent % 20 == 0)
            wait_a_while();
        CHECK(sent < 600); /* size of the window */
    }
    wait_a_while();
    uint64_t before = passes(w);
    struct timespec watched = {0, WATCHED_MS * NS_PER_MS};
    nanosleep(&watched, NULL);
    uint64_t after = passes(w);
    printf("    %" PRIu64 " passes in %d ms\n", after - before, WATCHED_MS);
    CHECK(after - before < WATCHED_MS * PASSES_A_MS_MAX);
    actor readers[READERS]; /* both queues are full */
    start(readers, READERS, w, drain_own);
    join(readers, READERS);
    CHECK_EQ(atomic_load(&w->drained), READERS * sent);
    world_close(w);
}

TEST("UX-12", "groups are listed without the connections of LBT-IPC and TCP, which no datagram reaches")
{
    um_context *context = context_open(false);
    um_event_queue *queue = queue_open(context, 8, 1 << 17);
    um_subscription *subscription = subscription_open(queue);
    const um_session_id ids[] = {
        {um_address_of_v4(LOOPBACK, 5), {{0}, 0}, 0x5eed0001, UM_TRANSPORT_LBTIPC, 0},
        {um_address_of_v4(LOOPBACK, 5), {{0}, 0}, 0x5eed0002, UM_TRANSPORT_TCP, 0},
        {um_address_of_v4(LOOPBACK, 5), group_of(1), 0x5eed0003, UM_TRANSPORT_LBTRM, 0},
    };
    um_address groups[4];
    for (uint32_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        um_receiver_session_config session = receiver_config(ids[i]);
        CHECK_EQ(map_source(subscription, &session, i, i), 0);
    }
    CHECK_EQ(um_context_groups(context, groups, 4), 1);
    CHECK(um_address_equal(groups[0], group_of(1)));
    um_context_close(context);
    um_subscription_free(subscription);
    um_event_queue_free(queue);
    um_context_free(context);
}

/* ---- the path of the driver: log of an application, queue, relay, log for its receivers ---- */

enum { FIRST_LOG, SECOND_LOG, LOGS, HELLO = UINT32_MAX };

typedef struct relaying {
    um_context *contexts[LOGS + 1]; /* the application with the source, the driver, the application that receives */
    um_publication_session *sessions[LOGS];
    um_source_session_config configs[LOGS];
    um_publication *publications[LOGS];
    um_event_queue *queues[LOGS]; /* behind each log */
    um_subscription *subscriptions[LOGS];
    um_relay *relay;
    atomic_bool is_attached, stop;
} relaying;

static void log_open(relaying *r, uint32_t number)
{
    um_source_session_config *config = &r->configs[number];
    *config = default_config();
    config->session_id = (uint32_t)getpid() * LOGS + number;
    config->window_bytes = 0;
    um_ipc_source_config ipc = {.transport_id = 20000,
                                .capacity_bytes = UM_SHARED_CAPACITY_MIN,
                                .receivers_max = 1,
                                .key = 7 + number,
                                .sm_interval_ns = 10 * (int64_t)NS_PER_MS};
    um_source_config source = {.topic_index = 1, .explicit_capacity = 4096, .tsni_interval_ns = NS_PER_S};
    CHECK_EQ(um_publication_session_open_ipc(r->contexts[number], config, &ipc, &r->sessions[number]), 0);
    um_publication_session_limit_datagram(r->sessions[number], DATAGRAM_BYTES);
    CHECK_EQ(um_publication_open(r->sessions[number], &source, &r->publications[number]), 0);
    r->queues[number] = queue_open(r->contexts[number + 1], 8, 1 << 17);
    r->subscriptions[number] = subscription_open(r->queues[number]);
    um_receiver_session_config session = receiver_config((um_session_id){
        um_address_of_v4(LOOPBACK, config->nak_port), {{0}, 0}, config->session_id, UM_TRANSPORT_LBTIPC, ipc.key});
    session.connection_timeout_ns = TIMEOUT_S * (int64_t)NS_PER_S;
    CHECK_EQ(map_source(r->subscriptions[number], &session, 1, 0), 0);
}

static void log_close(relaying *r, uint32_t number)
{
    size_t bytes;
    void *memory = um_publication_session_memory(r->sessions[number], &bytes);
    um_subscription_close(r->subscriptions[number]);
    um_subscription_free(r->subscriptions[number]);
    um_event_queue_close(r->queues[number]);
    um_event_queue_free(r->queues[number]);
    um_publication_close(r->publications[number]);
    um_publication_free(r->publications[number]);
    um_publication_session_shut(r->sessions[number]);
    um_unmap(memory, bytes);
}

static void *run_relay(void *argument)
{
    relaying *r = argument;
    uint32_t source;
    while (!atomic_load(&r->stop))
        if (um_relay_run(r->relay, NS_PER_MS, &source) == UM_RELAY_UNKNOWN)
            CHECK_EQ(um_relay_set(r->relay, source, r->publications[SECOND_LOG]), 0);
    return NULL;
}

/* Repeats a greeting until it has come through both logs, which have no reader before, then sends the messages. */
static void *send_through(void *argument)
{
    relaying *r = argument;
    int64_t timeout_ns = TIMEOUT_S * (int64_t)NS_PER_S;
    for (uint32_t i = HELLO; i == HELLO || i < MESSAGES;) {
        CHECK(um_publication_send(r->publications[FIRST_LOG], (const char *)&i, sizeof i, UM_SEND_FLUSH, timeout_ns) >=
              0);
        if (i != HELLO || atomic_load(&r->is_attached))
            i++;
        else
            usleep(1000);
    }
    return NULL;
}

TEST("UX-12 W13", "messages pass from log to log by a relay, while other threads read what it has reached")
{
    relaying *r = zeroed(sizeof *r);
    for (uint32_t i = 0; i <= LOGS; i++)
        r->contexts[i] = context_open(true);
    for (uint32_t i = 0; i < LOGS; i++)
        log_open(r, i);
    CHECK_EQ(um_relay_open(r->queues[FIRST_LOG], true, UM_QUEUE_MESSAGE_BYTES_MIN, &r->relay), 0);
    pthread_t relay, sender;
    CHECK_EQ(pthread_create(&relay, NULL, run_relay, r), 0);
    CHECK_EQ(pthread_create(&sender, NULL, send_through, r), 0);
    int64_t end_ns = um_clock_ns() + TIMEOUT_S * (int64_t)NS_PER_S;
    int64_t before = -1;
    for (uint32_t next = 0; next < MESSAGES;) {
        um_rows rows;
        um_event_queue_poll(r->queues[SECOND_LOG], 256, 20 * (int64_t)NS_PER_MS, &rows);
        CHECK(um_clock_ns() < end_ns);
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
            uint32_t message;
            if (um_row_kind_of(rows.block->flags[i]) != UM_ROW_MESSAGE) {
                CHECK_EQ(um_row_kind_of(rows.block->flags[i]), UM_ROW_BEGINNING_OF_SESSION);
                continue;
            }
            CHECK_EQ(um_rows_copy(rows.block, i, (uint8_t *)&message, sizeof message), sizeof message);
            CHECK_EQ(message, message == HELLO && next == 0 ? HELLO : next++);
            atomic_store(&r->is_attached, true);
        }
        if (rows.count > 0)
            um_queue_release(rows.block, rows.count);
        um_relay_counters counters;
        um_relay_read_counters(r->relay, &counters);
        int64_t reached = um_relay_reached(r->relay, 0);
        CHECK(reached >= before && counters.lost == 0 && counters.refused == 0);
        before = reached;
    }
    CHECK_EQ(pthread_join(sender, NULL), 0);
    atomic_store(&r->stop, true);
    CHECK_EQ(pthread_join(relay, NULL), 0);
    um_relay_close(r->relay);
    for (uint32_t i = LOGS; i-- > 0;)
        log_close(r, i);
    for (uint32_t i = 0; i <= LOGS; i++) {
        um_context_close(r->contexts[i]);
        um_context_free(r->contexts[i]);
    }
    free(r);
}

CHECK_MAIN

/* Publishing from several threads at once. Runs under AddressSanitizer and under ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>

#include "core/foundation/random.h"
#include "support.h"

#ifdef UM_FEWER_ROUNDS /* ThreadSanitizer is ten times slower */
enum { FRAMES = 20000, MESSAGES = 4000, ROUNDS = 3000, CLEANINGS = 300 };
#else
enum { FRAMES = 100000, MESSAGES = 25000, ROUNDS = 20000, CLEANINGS = 2000 };
#endif
enum { TERM = UM_LOG_TERM_BYTES_MIN, THREADS = 4, BODY_MAX = 300 };

/* ---- frames: claim and commit against one conductor ---- */

typedef struct publisher {
    pthread_t thread;
    um_publication_log *log;
    uint32_t number;
} publisher;

/* A body contains its writer and the number of the frame, and repeats a byte that depends on both. */
static uint8_t filler(uint32_t number, uint32_t count)
{
    return (uint8_t)(count * 7 + number * 61 + 1);
}

static um_claim claim_waiting(um_publication_log *log, uint32_t length)
{
    um_claim claim;
    while (um_log_claim(log, um_frame_span(length), &claim) != 0)
        sched_yield();
    return claim;
}

/* Every fifth frame is borrowed and returned; before every fiftieth one a claim is aborted. */
static void *publish_frames(void *argument)
{
    publisher *p = argument;
    um_random random = {p->number};
    for (uint32_t i = 0; i < FRAMES; i++) {
        uint32_t length = 8 + (uint32_t)um_random_below(&random, BODY_MAX - 8);
        if (i % 50 == 0) {
            um_claim unwanted = claim_waiting(p->log, length);
            um_frame_borrow(p->log, unwanted.frames, length);
            CHECK(um_log_abort(p->log, &unwanted));
        }
        um_claim claim = claim_waiting(p->log, length);
        bool borrowed = i % 5 == 0;
        if (borrowed)
            um_frame_borrow(p->log, claim.frames, length);
        else
            um_frame_begin(p->log, claim.frames, length);
        uint8_t *body = claim.frames + UM_FRAME_HEADER_BYTES;
        memcpy(body, &p->number, 4);
        memcpy(body + 4, &i, 4);
        memset(body + 8, filler(p->number, i), length - 8);
        if (borrowed)
            CHECK(um_frame_return(p->log, claim.frames, length));
        um_frame_publish(p->log, claim.frames, length);
    }
    return NULL;
}

static void check_frame(const uint8_t *frame, int32_t length, uint32_t *next)
{
    const uint8_t *body = frame + UM_FRAME_HEADER_BYTES;
    uint32_t number, count;
    memcpy(&number, body, 4);
    memcpy(&count, body + 4, 4);
    CHECK(number < THREADS);
    CHECK_EQ(count, next[number]);
    next[number]++;
    for (int32_t i = 8; i < length - UM_FRAME_HEADER_BYTES; i++)
        CHECK_EQ(body[i], filler(number, count));
}

TEST("AE-7 AE-11 AE-26 AE-27 AE-28 AE-30 AE-36 AE-48",
     "every frame of four threads is read once, whole and in its thread's order")
{
    um_publication_log *log = zeroed(sizeof *log);
    void *memory = zeroed(um_log_footprint(TERM));
    um_log_init(log, memory, TERM, UINT32_MAX - 5, NS_PER_S);
    atomic_store(&log->is_connected, true);
    um_log_conduct(log, 0, 0);
    publisher publishers[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        publishers[i] = (publisher){.log = log, .number = i};
        pthread_create(&publishers[i].thread, NULL, publish_frames, &publishers[i]);
    }
    uint32_t next[THREADS] = {0};
    int64_t position = 0;
    for (uint64_t seen = 0; seen < (uint64_t)THREADS * FRAMES;) {
        int32_t length = um_log_frame_length(log, position);
        if (length <= 0) {
            um_log_conduct(log, position, 4096);
            sched_yield();
            continue;
        }
        if (!um_log_frame_is_pad(log, position)) {
            check_frame(um_log_at(log, position), length, next);
            seen++;
        }
        position += (int64_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
        int64_t ahead = um_log_tail(log) - atomic_load(&log->publication_limit);
        CHECK(ahead < (int64_t)um_frame_span(BODY_MAX)); /* one claim straddles the limit, not one per thread */
        um_log_conduct(log, position, UINT32_MAX);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(publishers[i].thread, NULL);
    CHECK_EQ(um_log_tail(log), position);
    free(memory);
    free(log);
}

/* ---- cleaning: the first word is zeroed last ---- */

enum { CLEANED_WORDS = 256, CLEANED_BYTES = CLEANED_WORDS * UM_FRAME_ALIGNMENT };

typedef struct cleaning {
    um_publication_log *log;
    atomic_int asked;
    atomic_int done;
} cleaning;

/* In each round, waits until the first word is zero: then all later words must be zero. */
static void *watch_cleaning(void *argument)
{
    cleaning *c = argument;
    for (int round = 1; round <= CLEANINGS; round++) {
        while (atomic_load(&c->asked) != round)
            sched_yield();
        while (atomic_load_explicit(&c->log->states[0], memory_order_acquire) != 0)
            sched_yield();
        for (uint32_t i = 1; i < CLEANED_WORDS; i++)
            CHECK_EQ(atomic_load_explicit(&c->log->states[i], memory_order_relaxed), 0);
        atomic_store(&c->done, round);
    }
    return NULL;
}

TEST("AE-48", "the first word of a cleaned range is zeroed last")
{
    cleaning c = {.log = zeroed(sizeof *c.log)};
    void *memory = zeroed(um_log_footprint(TERM));
    um_log_init(c.log, memory, TERM, 1, NS_PER_S);
    atomic_store(&c.log->active_term_count, 1);
    atomic_store(&c.log->tails[1], 2ull << 32 | CLEANED_BYTES);
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch_cleaning, &c);
    for (int round = 1; round <= CLEANINGS; round++) {
        for (uint32_t i = 0; i < CLEANED_WORDS; i++)
            atomic_store(&c.log->states[i], um_frame_word(UM_FRAME_ALIGNMENT, UM_FRAME_DATA));
        c.log->clean_position = 0;
        atomic_store(&c.asked, round);
        um_log_conduct(c.log, TERM + CLEANED_BYTES, CLEANED_BYTES);
        CHECK_EQ(c.log->clean_position, CLEANED_BYTES);
        while (atomic_load(&c.done) != round)
            sched_yield();
    }
    pthread_join(watcher, NULL);
    free(memory);
    free(c.log);
}

/* ---- messages: senders run inline by the publisher that gets the lock (W8) ---- */

typedef struct counting_link {
    um_link base;
    uint64_t messages;
    uint32_t next_sqn;
    uint32_t next[THREADS]; /* per topic */
    bool shared_topic;
    uint64_t topic_sqn_sum;
} counting_link;

static int counting_send(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    counting_link *link = (counting_link *)(void *)base;
    (void)to;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t datagram[2048];
        uint32_t length = 0, message_length;
        for (uint32_t p = 0; p < batch[i].part_count; p++) {
            CHECK(length + batch[i].parts[p].length <= sizeof datagram);
            memcpy(datagram + length, batch[i].parts[p].data, batch[i].parts[p].length);
            length += batch[i].parts[p].length;
        }
        um_packet packet;
        um_lbmc_message message;
        CHECK_EQ(um_lbtrm_decode(datagram, length, &packet), UM_DGRAM_OK);
        CHECK_EQ(packet.sqn, link->next_sqn++);
        for (uint32_t at = 0; at < packet.body_length; at += message_length) {
            CHECK_EQ(um_lbmc_decode(packet.body + at, packet.body_length - at, &message, &message_length), UM_DGRAM_OK);
            if (!link->shared_topic) {
                CHECK(message.topic_index < THREADS);
                CHECK_EQ(message.sqn, link->next[message.topic_index]++);
            }
            link->topic_sqn_sum += message.sqn;
            for (uint32_t b = 1; b < message.payload_length; b++)
                CHECK_EQ(message.payload[b], message.payload[0]);
            link->messages++;
        }
    }
    return (int)count;
}

static const um_link_ops counting_ops = {.send = counting_send};

typedef struct inline_publisher {
    pthread_t thread;
    um_source_session *session;
    um_source *source;
    uint32_t number;
    atomic_int *round; /* of the lost wake-up test */
} inline_publisher;

/* The steps of a publishing thread after a send. */
static void run_inline(um_source_session *session)
{
    while (um_source_session_has_pending(session) && um_lock_try(&session->sender_lock)) {
        um_source_session_send(session, NS_PER_S, 16);
        um_lock_release(&session->sender_lock);
    }
}

static void send_one(inline_publisher *p, const uint8_t *data, uint32_t length, uint32_t flags)
{
    uint32_t actions = 0;
    while (um_source_send(p->source, data, length, flags, NS_PER_S, &actions) < 0) {
        if (actions & UM_ACTION_RUN_SENDER)
            run_inline(p->session);
        sched_yield();
    }
    if (actions & UM_ACTION_RUN_SENDER)
        run_inline(p->session);
}

static void *publish_messages(void *argument)
{
    inline_publisher *p = argument;
    um_random random = {p->number};
    uint8_t data[BODY_MAX];
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t length = 1 + (uint32_t)um_random_below(&random, BODY_MAX - 1);
        memset(data, filler(p->number, i), length);
        send_one(p, data, length, i % 3 == 0 || i == MESSAGES - 1 ? UM_SEND_FLUSH : 0);
    }
    return NULL;
}

enum { PIECE = 8, PIECE_BYTES_MAX = 1400 };

/* Publishes a piece as a context does: staged as datagrams if the sender is free, else as usual. */
static int64_t send_piece(inline_publisher *p, um_messages *messages, uint64_t *done_bytes)
{
    uint32_t actions = 0;
    bool holds = um_lock_try(&p->session->sender_lock);
    messages->staged = holds ? &p->session->staged : NULL;
    int64_t done = um_source_send_many(p->source, messages, UM_SEND_FLUSH, NS_PER_S, &actions, done_bytes);
    if (holds) {
        um_source_session_send(p->session, NS_PER_S, 16);
        um_lock_release(&p->session->sender_lock);
    }
    run_inline(p->session);
    return done;
}

static void *publish_pieces(void *argument)
{
    inline_publisher *p = argument;
    um_random random = {p->number};
    uint8_t data[PIECE * PIECE_BYTES_MAX];
    for (uint32_t i = 0; i < MESSAGES; i += PIECE) {
        uint32_t lengths[PIECE], used = 0, done = 0;
        for (uint32_t k = 0; k < PIECE; used += lengths[k++]) {
            lengths[k] = 1 + (uint32_t)um_random_below(&random, k % 4 == 0 ? 100 : PIECE_BYTES_MAX);
            memset(data + used, filler(p->number, i + k), lengths[k]);
        }
        const uint8_t *at = data;
        while (done < PIECE) {
            um_messages messages = {.data = at, .lengths = lengths + done, .count = PIECE - done};
            uint64_t done_bytes;
            int64_t result = send_piece(p, &messages, &done_bytes);
            done += result > 0 ? (uint32_t)result : 0;
            at += result > 0 ? done_bytes : 0;
            if (result < 0)
                sched_yield();
        }
    }
    return NULL;
}

typedef struct inline_fixture {
    um_source_session *session;
    um_rate_limits limits;
    counting_link link;
    um_source *sources[THREADS];
    void *memory;
} inline_fixture;

static inline_fixture *inline_open(uint32_t source_count)
{
    inline_fixture *f = zeroed(sizeof *f);
    um_source_session_config config = default_config();
    f->session = zeroed(sizeof *f->session);
    f->link.base.ops = &counting_ops;
    f->memory = zeroed(um_source_session_footprint(&config));
    um_source_session_init(f->session, f->memory, &config, &f->link.base, &f->limits, NS_PER_S);
    for (uint32_t i = 0; i < source_count; i++) {
        um_source_config source = {.topic_index = i, .explicit_capacity = 64};
        f->sources[i] = zeroed(sizeof(um_source));
        um_source_init(f->sources[i], zeroed(64), &source, f->session);
    }
    return f;
}

static void inline_close(inline_fixture *f)
{
    while (f->session->sources != NULL)
        source_close(f->session->sources);
    free(f->memory);
    free(f->session);
    free(f);
}

static void publish_from_all(inline_fixture *f, bool shared_topic, void *(*publish)(void *))
{
    inline_publisher publishers[THREADS];
    f->link.shared_topic = shared_topic;
    for (uint32_t i = 0; i < THREADS; i++) {
        publishers[i] =
            (inline_publisher){.session = f->session, .source = f->sources[shared_topic ? 0 : i], .number = i};
        pthread_create(&publishers[i].thread, NULL, publish, &publishers[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(publishers[i].thread, NULL);
    CHECK_EQ(f->link.messages, (uint64_t)THREADS * MESSAGES);
    CHECK_EQ(atomic_load(&f->session->sender_position), um_log_tail(&f->session->log));
}

TEST("AE-11 AE-26 UM-4 UM-54", "four threads, a topic each: everything flushed has been sent when they finish")
{
    inline_fixture *f = inline_open(THREADS);
    publish_from_all(f, false, publish_messages);
    inline_close(f);
}

TEST("AE-26 UX-23", "four threads on one topic: every sequence number once")
{
    inline_fixture *f = inline_open(1);
    publish_from_all(f, true, publish_messages);
    uint64_t n = (uint64_t)THREADS * MESSAGES;
    CHECK_EQ(f->link.topic_sqn_sum, n * (n - 1) / 2);
    inline_close(f);
}

TEST("AE-11 AE-26 W9", "four threads, a topic each, stage datagrams and send for each other")
{
    inline_fixture *f = inline_open(THREADS);
    publish_from_all(f, false, publish_pieces);
    inline_close(f);
}

static void *send_unflushed(void *argument)
{
    inline_publisher *p = argument;
    for (int round = 1; round <= ROUNDS; round++) {
        while (atomic_load(p->round) != 2 * round - 1)
            sched_yield();
        send_one(p, (const uint8_t *)"aaaa", 4, 0);
        atomic_fetch_add(p->round, 1);
    }
    return NULL;
}

TEST("AE-11 UM-27", "a flush covers a frame that another thread has claimed but not committed")
{
    inline_fixture *f = inline_open(2);
    atomic_int round = 0;
    inline_publisher other = {.session = f->session, .source = f->sources[1], .round = &round};
    inline_publisher own = {.session = f->session, .source = f->sources[0]};
    pthread_create(&other.thread, NULL, send_unflushed, &other);
    for (int i = 1; i <= ROUNDS; i++) {
        atomic_store(&round, 2 * i - 1);
        for (int spin = 0; spin < i % 200; spin++)
            atomic_signal_fence(memory_order_seq_cst);
        send_one(&own, (const uint8_t *)"bbbbb", 5, UM_SEND_FLUSH);
        while (atomic_load(&round) != 2 * i)
            sched_yield();
        CHECK(atomic_load(&f->session->sender_position) >= atomic_load(&f->session->flush_limit));
    }
    pthread_join(other.thread, NULL);
    inline_close(f);
}

CHECK_MAIN

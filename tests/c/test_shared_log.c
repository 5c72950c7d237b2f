/* The shared log of LBT-IPC. Runs under AddressSanitizer and under ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "core/foundation/random.h"
#include "core/ipc/shared_log.h"
#include "support.h"

#ifdef UM_FEWER_ROUNDS
enum { RECORDS = 4000, SLEEPS = 3000 };
#else
enum { RECORDS = 60000, SLEEPS = 10000 };
#endif
enum { CAPACITY = UM_SHARED_CAPACITY_MIN, READERS = 3, SKIPPED = 20 };

typedef struct log_fixture {
    void *memory;
    um_shared_writer writer;
    um_shared_reader_page *pages[READERS];
    um_shared_peer peers[READERS];
    um_shared_reader readers[READERS];
} log_fixture;

static log_fixture *log_open(bool is_source_paced)
{
    log_fixture *f = zeroed(sizeof *f);
    f->memory = zeroed(um_shared_log_footprint(CAPACITY));
    um_shared_writer_init(&f->writer, f->memory, CAPACITY);
    for (int i = 0; i < READERS; i++) {
        f->pages[i] = zeroed(UM_SHARED_READER_BYTES);
        um_shared_peer_init(&f->peers[i], f->pages[i], &f->writer);
        CHECK(um_shared_reader_init(&f->readers[i], f->memory, f->pages[i], CAPACITY, 0, is_source_paced));
    }
    return f;
}

static void log_close(log_fixture *f)
{
    for (int i = 0; i < READERS; i++)
        free(f->pages[i]);
    free(f->memory);
    free(f);
}

/* Record n: its number, then bytes that depend on number and place, so that a record mixed from two is detected. */
static uint32_t length_of(uint32_t n)
{
    uint32_t draw = n * 2654435761u >> 16;
    return 4 + (n % 50 == 0 ? draw % (UM_SHARED_RECORD_BYTES_MAX - 3) : draw % 700);
}

static uint8_t byte_of(uint32_t n, uint32_t at)
{
    return (uint8_t)(n * 31 + at * 7);
}

static void append(um_shared_writer *writer, uint32_t n)
{
    static uint8_t memory[SKIPPED + UM_SHARED_RECORD_BYTES_MAX];
    uint8_t *body = memory + SKIPPED; /* behind a transport header, which no record contains */
    uint32_t length = length_of(n), cut = 4 + (length - 4) / 3;
    memcpy(body, &n, sizeof n);
    for (uint32_t i = sizeof n; i < length; i++)
        body[i] = byte_of(n, i);
    um_part parts[2] = {{body - SKIPPED, SKIPPED + cut}, {body + cut, length - cut}};
    um_shared_writer_append(writer, parts, 2, SKIPPED, length);
}

static uint32_t number_of(const uint8_t *body, uint32_t length)
{
    uint32_t n;
    CHECK(length >= sizeof n);
    memcpy(&n, body, sizeof n);
    CHECK_EQ(length, length_of(n));
    for (uint32_t i = sizeof n; i < length; i++)
        CHECK_EQ(body[i], byte_of(n, i));
    return n;
}

TEST("UX-12", "an impossible capacity is refused")
{
    CHECK_EQ(um_shared_log_footprint(CAPACITY), CAPACITY + UM_SHARED_LOG_HEADER_BYTES);
    CHECK_EQ(um_shared_log_footprint(CAPACITY - 64), 0);
    CHECK_EQ(um_shared_log_footprint(CAPACITY + 8), 0);
    CHECK_EQ(um_shared_log_footprint((uint64_t)UM_SHARED_CAPACITY_MAX + 64), 0);
}

TEST("UX-12", "records of every length come out whole, also across the end of the ring")
{
    log_fixture *f = log_open(false);
    uint8_t *body = zeroed(UM_SHARED_RECORD_BYTES_MAX);
    uint32_t length;
    for (uint32_t n = 0; n < 3000; n++) {
        append(&f->writer, n);
        for (int i = 0; i < READERS; i++) {
            CHECK_EQ(um_shared_reader_next(&f->readers[i], body, &length), UM_SHARED_RECORD);
            CHECK_EQ(number_of(body, length), n);
            CHECK_EQ(um_shared_reader_next(&f->readers[i], body, &length), UM_SHARED_EMPTY);
            um_shared_reader_release(&f->readers[i]);
            CHECK(um_shared_peer_update(&f->peers[i], &f->writer));
            CHECK_EQ(um_shared_peer_space(&f->peers[i], &f->writer), CAPACITY);
        }
    }
    CHECK(f->writer.position > 10 * (int64_t)CAPACITY);
    free(body);
    log_close(f);
}

TEST("UX-12", "a reader that is about to sleep finds what was appended since it last looked")
{
    log_fixture *f = log_open(false);
    um_shared_reader *reader = &f->readers[0];
    CHECK(um_shared_reader_begin_sleep(reader));
    CHECK(um_shared_peer_take_sleep(&f->peers[0])); /* the writer wakes it */
    CHECK(um_shared_reader_end_sleep(reader));
    append(&f->writer, 1);
    CHECK(!um_shared_reader_begin_sleep(reader));
    CHECK(!um_shared_peer_take_sleep(&f->peers[0])); /* it is awake */
    log_close(f);
}

/* ---- threads ---- */

typedef struct reading {
    um_shared_reader *reader;
    uint32_t read;
    uint32_t lost;
    bool is_slow;
} reading;

static void *read_all(void *argument)
{
    reading *r = argument;
    uint8_t *body = zeroed(UM_SHARED_RECORD_BYTES_MAX);
    uint32_t length, next = 0;
    while (next < RECORDS) {
        switch (um_shared_reader_next(r->reader, body, &length)) {
        case UM_SHARED_EMPTY:
            um_shared_reader_release(r->reader);
            if (um_shared_reader_has_ended(r->reader) && !um_shared_reader_has_more(r->reader)) {
                r->lost += RECORDS - next;
                next = RECORDS;
            }
            sched_yield();
            break;
        case UM_SHARED_RECORD: {
            uint32_t n = number_of(body, length);
            CHECK(n >= next);
            r->lost += n - next;
            r->read++;
            next = n + 1;
            if (n % 64 == 0)
                um_shared_reader_release(r->reader);
            while (r->is_slow && r->read == 1 && !um_shared_reader_has_ended(r->reader))
                sched_yield();
            break;
        }
        case UM_SHARED_OVERRUN:
            CHECK(r->reader->is_source_paced);
            break;
        case UM_SHARED_BROKEN:
            CHECK(!"the log is sound");
        }
    }
    free(body);
    return NULL;
}

static bool has_space(log_fixture *f, uint32_t span)
{
    for (int i = 0; i < READERS; i++) {
        CHECK(um_shared_peer_update(&f->peers[i], &f->writer));
        if (um_shared_peer_space(&f->peers[i], &f->writer) < span)
            return false;
    }
    return true;
}

static void run(log_fixture *f, reading *readings, bool is_source_paced)
{
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) {
        readings[i] = (reading){.reader = &f->readers[i], .is_slow = is_source_paced && i == 0};
        CHECK_EQ(pthread_create(&threads[i], NULL, read_all, &readings[i]), 0);
    }
    for (uint32_t n = 0; n < RECORDS; n++) {
        while (!is_source_paced && !has_space(f, um_shared_record_span(length_of(n))))
            sched_yield();
        append(&f->writer, n);
        if (n % 256 == 0)
            sched_yield();
    }
    um_shared_writer_end(&f->writer);
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

TEST("UX-12", "receiver-paced: every reader gets every record while another thread writes")
{
    log_fixture *f = log_open(false);
    reading readings[READERS];
    run(f, readings, false);
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(readings[i].read, RECORDS);
    log_close(f);
}

TEST("UX-12", "source-paced: a reader gets whole records in order, or counts exactly those it lost")
{
    log_fixture *f = log_open(true);
    reading readings[READERS];
    run(f, readings, true);
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(readings[i].read + readings[i].lost, RECORDS);
    CHECK(readings[0].lost > 0); /* it reads one record, and the rest after the writer has finished */
    log_close(f);
}

typedef struct sleeping {
    log_fixture *f;
    sem_t wakes;   /* of the reader */
    sem_t granted; /* of the writer */
    uint32_t wake_count;
} sleeping;

static void *read_asleep(void *argument)
{
    sleeping *s = argument;
    um_shared_reader *reader = &s->f->readers[0];
    uint8_t *body = zeroed(UM_SHARED_RECORD_BYTES_MAX);
    uint32_t length, next = 0;
    while (next < SLEEPS) {
        if (um_shared_reader_next(reader, body, &length) == UM_SHARED_RECORD) {
            CHECK_EQ(number_of(body, length), next);
            next++;
            continue;
        }
        if (um_shared_reader_release(reader))
            sem_post(&s->granted);
        if (um_shared_reader_begin_sleep(reader)) {
            sem_wait(&s->wakes); /* or the wake-up of an earlier sleep that was taken back */
            um_shared_reader_end_sleep(reader);
        }
    }
    if (um_shared_reader_release(reader))
        sem_post(&s->granted);
    free(body);
    return NULL;
}

/* Waits for space; the reader posts `granted` once it has released the wanted space. */
static void wait_for_space(sleeping *s, uint32_t span)
{
    log_fixture *f = s->f;
    CHECK(um_shared_peer_update(&f->peers[0], &f->writer));
    while (um_shared_peer_space(&f->peers[0], &f->writer) < span) {
        um_shared_peer_want(&f->peers[0], &f->writer, CAPACITY / 2);
        CHECK(um_shared_peer_update(&f->peers[0], &f->writer));
        if (um_shared_peer_space(&f->peers[0], &f->writer) < CAPACITY / 2)
            sem_wait(&s->granted);
        CHECK(um_shared_peer_update(&f->peers[0], &f->writer));
    }
}

TEST("UX-12", "a sleeping reader and a waiting writer are always woken")
{
    sleeping s = {.f = log_open(false)};
    pthread_t thread;
    sem_init(&s.wakes, 0, 0);
    sem_init(&s.granted, 0, 0);
    CHECK_EQ(pthread_create(&thread, NULL, read_asleep, &s), 0);
    for (uint32_t n = 0; n < SLEEPS; n++) {
        wait_for_space(&s, um_shared_record_span(length_of(n)));
        append(&s.f->writer, n);
        um_shared_writer_fence();
        if (um_shared_peer_take_sleep(&s.f->peers[0])) {
            s.wake_count++;
            sem_post(&s.wakes);
        }
        if (n % 8 == 0)
            sched_yield();
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(s.wake_count > 0);
    sem_destroy(&s.wakes);
    sem_destroy(&s.granted);
    log_close(s.f);
}

/* ---- the other process lies ---- */

TEST("UX-12", "a log that breaks the rules is found broken")
{
    static const int64_t ENDS[] = {-8, INT64_MIN, 12, 4096 + 1, CAPACITY + 8, INT64_MAX, INT64_MAX - 7};
    static const uint64_t HEADS[] = {UM_SHARED_RECORD_BYTES_MAX + 1, 4096, UINT32_MAX, UINT64_MAX, UINT64_C(1) << 32};
    uint8_t *body = zeroed(UM_SHARED_RECORD_BYTES_MAX);
    uint32_t length;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        log_fixture *f = log_open(false);
        atomic_store(&f->writer.header->end_position, ENDS[i]);
        CHECK_EQ(um_shared_reader_next(&f->readers[0], body, &length), UM_SHARED_BROKEN);
        log_close(f);
    }
    for (size_t i = 0; i < sizeof HEADS / sizeof *HEADS; i++) {
        log_fixture *f = log_open(false);
        memcpy(f->writer.ring, &HEADS[i], sizeof HEADS[i]);
        atomic_store(&f->writer.header->end_position, 1024);
        CHECK_EQ(um_shared_reader_next(&f->readers[0], body, &length), UM_SHARED_BROKEN);
        log_close(f);
    }
    free(body);
}

TEST("UX-12", "an overrun in a receiver-paced log is a broken log, in a source-paced one a loss")
{
    for (int is_source_paced = 0; is_source_paced <= 1; is_source_paced++) {
        log_fixture *f = log_open(is_source_paced);
        uint8_t *body = zeroed(UM_SHARED_RECORD_BYTES_MAX);
        uint32_t length, n = 0;
        append(&f->writer, n++);
        CHECK(um_shared_reader_has_more(&f->readers[0])); /* it has loaded an end that is overtaken now */
        while (f->writer.position <= CAPACITY)
            append(&f->writer, n++);
        enum um_shared_read expected = is_source_paced ? UM_SHARED_OVERRUN : UM_SHARED_BROKEN;
        CHECK_EQ(um_shared_reader_next(&f->readers[0], body, &length), expected);
        CHECK_EQ(um_shared_reader_next(&f->readers[1], body, &length), expected);
        if (is_source_paced) {
            append(&f->writer, n);
            CHECK_EQ(um_shared_reader_next(&f->readers[0], body, &length), UM_SHARED_RECORD);
            CHECK_EQ(number_of(body, length), n);
        }
        free(body);
        log_close(f);
    }
}

TEST("UX-12", "a segment that contradicts what its source said is refused")
{
    log_fixture *f = log_open(false);
    um_shared_reader reader;
    CHECK(!um_shared_reader_init(&reader, f->memory, f->pages[0], CAPACITY + 64, 0, false));
    CHECK(!um_shared_reader_init(&reader, f->memory, f->pages[0], 0, 0, false));
    CHECK(!um_shared_reader_init(&reader, f->memory, f->pages[0], CAPACITY, -8, false));
    CHECK(!um_shared_reader_init(&reader, f->memory, f->pages[0], CAPACITY, 4, false));
    f->writer.header->magic++;
    CHECK(!um_shared_reader_init(&reader, f->memory, f->pages[0], CAPACITY, 0, false));
    log_close(f);
}

TEST("UX-12", "a reader's position that goes back, or beyond the end, is refused")
{
    log_fixture *f = log_open(false);
    append(&f->writer, 1);
    atomic_store(&f->pages[0]->position, f->writer.position);
    CHECK(um_shared_peer_update(&f->peers[0], &f->writer));
    atomic_store(&f->pages[0]->position, f->writer.position - 8);
    CHECK(!um_shared_peer_update(&f->peers[0], &f->writer));
    atomic_store(&f->pages[0]->position, f->writer.position + 8);
    CHECK(!um_shared_peer_update(&f->peers[0], &f->writer));
    CHECK_EQ(um_shared_peer_space(&f->peers[0], &f->writer), CAPACITY);
    log_close(f);
}

CHECK_MAIN

/* The publication log by itself: claims, commits, rotation, limits, cleaning, unblocking. */
#include "core/source/publication_log.h"

#include "support.h"

enum { TERM = UM_LOG_TERM_BYTES_MIN, TIMEOUT_S = 16 };

typedef struct log_fixture {
    um_publication_log log;
    uint8_t *memory;
} log_fixture;

static log_fixture *log_open(uint32_t initial_term_id)
{
    log_fixture *f = zeroed(sizeof *f);
    f->memory = zeroed(um_log_footprint(TERM));
    um_log_init(&f->log, f->memory, TERM, initial_term_id, TIMEOUT_S * (int64_t)NS_PER_S);
    return f;
}

/* A log with known receivers, and the limit that results. */
static log_fixture *log_open_connected(uint32_t initial_term_id)
{
    log_fixture *f = log_open(initial_term_id);
    atomic_store(&f->log.is_connected, true);
    um_log_conduct(&f->log, 0, 0);
    return f;
}

static void log_close(log_fixture *f)
{
    free(f->memory);
    free(f);
}

static um_claim claim(log_fixture *f, uint32_t length)
{
    um_claim claim = {0};
    CHECK_EQ(um_log_claim(&f->log, length, &claim), 0);
    CHECK_EQ(claim.length, length);
    return claim;
}

/* Claims and publishes a frame of `span` bytes filled with `value`. */
static um_claim publish(log_fixture *f, uint32_t span, uint8_t value)
{
    um_claim c = claim(f, span);
    um_frame_begin(&f->log, c.frames, span - UM_FRAME_HEADER_BYTES);
    memset(c.frames + UM_FRAME_HEADER_BYTES, value, span - UM_FRAME_HEADER_BYTES);
    um_frame_publish(&f->log, c.frames, span - UM_FRAME_HEADER_BYTES);
    return c;
}

/* The same, across the end of a term. */
static void publish_next(log_fixture *f, uint32_t span)
{
    um_claim c;
    int result = um_log_claim(&f->log, span, &c);
    CHECK(result == 0 || result == UM_ADMIN_ACTION);
    if (result == 0)
        um_frame_publish(&f->log, c.frames, span - UM_FRAME_HEADER_BYTES);
}

/* Publishes frames of `span` bytes up to `position`; the conductor follows. */
static void fill_to(log_fixture *f, int64_t position, uint32_t span)
{
    while (um_log_tail(&f->log) < position) {
        um_claim c;
        int64_t left = position - um_log_tail(&f->log);
        int result = um_log_claim(&f->log, left < span ? (uint32_t)left : span, &c);
        CHECK(result == 0 || result == UM_ADMIN_ACTION);
        if (result == 0) {
            memset(c.frames + UM_FRAME_HEADER_BYTES, 0xee, c.length - UM_FRAME_HEADER_BYTES);
            um_frame_publish(&f->log, c.frames, c.length - UM_FRAME_HEADER_BYTES);
        }
        um_log_conduct(&f->log, um_log_tail(&f->log), UINT32_MAX);
    }
}

static bool all_zero(const uint8_t *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != 0)
            return false;
    return true;
}

/* True if no frame starts in [from, from + bytes). */
static bool is_clean(const um_publication_log *log, int64_t from, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i += UM_FRAME_ALIGNMENT)
        if (atomic_load(um_log_state_at(log, from + i)) != 0)
            return false;
    return true;
}

TEST("AE-2 AE-3", "a new log has three zeroed terms and is not connected")
{
    log_fixture *f = log_open(1005);
    CHECK_EQ(um_log_footprint(TERM), 3 * TERM + 3 * TERM / UM_FRAME_ALIGNMENT * sizeof(um_frame_state));
    CHECK(all_zero(f->memory, um_log_footprint(TERM)));
    CHECK(!atomic_load(&f->log.is_connected));
    CHECK_EQ(atomic_load(&f->log.active_term_count), 0);
    CHECK_EQ(f->log.initial_term_id, 1005);
    log_close(f);
}

TEST("AE-2", "term length is a power of two between 64 KiB and 1 GiB")
{
    CHECK_EQ(um_log_footprint(TERM / 2), 0);
    CHECK_EQ(um_log_footprint(TERM + 1), 0);
    CHECK_EQ(um_log_footprint(3 * TERM), 0);
    CHECK_EQ(um_log_footprint(1u << 31), 0);
    CHECK_EQ(um_log_footprint(0), 0);
    CHECK(um_log_footprint(1u << 30) > (size_t)3 << 30);
}

TEST("AE-4", "initial tails")
{
    log_fixture *f = log_open_connected(1005);
    CHECK_EQ(atomic_load(&f->log.tails[0]), 0x3ed00000000);
    CHECK_EQ(atomic_load(&f->log.tails[1]) >> 32, 1003);
    CHECK_EQ(atomic_load(&f->log.tails[2]) >> 32, 1004);
    claim(f, 64);
    CHECK_EQ(atomic_load(&f->log.tails[0]), 0x3ed00000040);
    log_close(f);
}

TEST("AE-5 AE-6 AE-22 AE-25", "positions count every byte claimed, from 0, committed or not")
{
    log_fixture *f = log_open_connected(7);
    int64_t expected = 0;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t span = UM_FRAME_ALIGNMENT * (1 + i % 40);
        um_claim c;
        CHECK_EQ(um_log_tail(&f->log), expected);
        if (um_log_claim(&f->log, span, &c) == UM_ADMIN_ACTION) {
            expected = (expected / TERM + 1) * TERM;
            continue;
        }
        CHECK_EQ(c.position, expected);
        CHECK(c.frames == f->memory + expected % (3 * TERM));
        expected += span;
        um_log_conduct(&f->log, expected, UINT32_MAX);
    }
    log_close(f);
}

TEST("AE-7 AE-24", "one claim may straddle the limit, the next is refused")
{
    log_fixture *f = log_open_connected(1);
    CHECK_EQ(atomic_load(&f->log.publication_limit), TERM / 2);
    claim(f, TERM / 8);
    claim(f, TERM / 8);
    claim(f, TERM / 8);
    claim(f, TERM / 8 - 64);
    um_claim straddling = claim(f, TERM / 8);
    CHECK_EQ(straddling.position, TERM / 2 - 64);
    um_claim refused;
    CHECK_EQ(um_log_claim(&f->log, 64, &refused), UM_BACK_PRESSURED);
    CHECK_EQ(um_log_tail(&f->log), TERM / 2 - 64 + TERM / 8);
    log_close(f);
}

TEST("AE-12", "nothing can be claimed before a connection")
{
    log_fixture *f = log_open(1);
    um_claim c;
    um_log_conduct(&f->log, 0, 0);
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_NOT_CONNECTED);
    CHECK_EQ(um_log_tail(&f->log), 0);
    CHECK_EQ(atomic_load(&f->log.publication_limit), 0);
    log_close(f);
}

TEST("AE-13 AE-21", "a connected log that was not conducted yet is back-pressured")
{
    log_fixture *f = log_open(1);
    um_claim c;
    atomic_store(&f->log.is_connected, true);
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_BACK_PRESSURED);
    um_log_conduct(&f->log, 0, 0);
    claim(f, 64);
    log_close(f);
}

/* A log whose next claim reaches the maximum position. */
static log_fixture *log_open_at_end(void)
{
    log_fixture *f = log_open_connected(1005);
    uint32_t last_term = INT32_MAX - 1;
    atomic_store(&f->log.active_term_count, last_term);
    atomic_store(&f->log.tails[last_term % 3], (uint64_t)(1005 + last_term) << 32 | (TERM - 64));
    f->log.clean_position = (int64_t)last_term * TERM - TERM;
    atomic_store(&f->log.writable_end, f->log.clean_position + 3 * TERM);
    um_log_conduct(&f->log, (int64_t)last_term * TERM + TERM - 64, 0);
    return f;
}

TEST("AE-14", "closed is reported before the end of positions, and that before back-pressure")
{
    log_fixture *f = log_open_at_end();
    um_claim c;
    CHECK_EQ(claim(f, 64).position, (int64_t)INT32_MAX * TERM - 64);
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_MAX_POSITION_EXCEEDED);
    atomic_store(&f->log.publication_limit, 0);
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_MAX_POSITION_EXCEEDED);
    atomic_store(&f->log.is_closed, true);
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_CLOSED);
    log_close(f);
}

TEST("AE-23", "the limit is half a term ahead, moves forward only, and drops to the sender without receivers")
{
    log_fixture *f = log_open_connected(1);
    fill_to(f, 1024, 256);
    CHECK_EQ(atomic_load(&f->log.publication_limit), 1024 + TERM / 2);
    um_log_conduct(&f->log, 512, 0);
    CHECK_EQ(atomic_load(&f->log.publication_limit), 1024 + TERM / 2);
    atomic_store(&f->log.is_connected, false);
    um_log_conduct(&f->log, 1024, 0);
    CHECK_EQ(atomic_load(&f->log.publication_limit), 1024);
    atomic_store(&f->log.is_connected, true);
    um_log_conduct(&f->log, 1024, 0);
    CHECK_EQ(atomic_load(&f->log.publication_limit), 1024 + TERM / 2);
    log_close(f);
}

TEST("AE-27 AE-28 AE-29", "a length is negative until the commit, zero where nothing was written")
{
    log_fixture *f = log_open_connected(1);
    CHECK_EQ(um_log_frame_length(&f->log, 0), 0);
    um_claim c = claim(f, um_frame_span(21));
    CHECK_EQ(c.length, 64);
    CHECK_EQ(um_log_frame_length(&f->log, 0), 0);
    um_frame_begin(&f->log, c.frames, 21);
    CHECK_EQ(um_log_frame_length(&f->log, 0), -41);
    um_frame_publish(&f->log, c.frames, 21);
    CHECK_EQ(um_log_frame_length(&f->log, 0), 41);
    CHECK(!um_log_frame_is_pad(&f->log, 0));
    log_close(f);
}

TEST("AE-30", "a claim across the end pads the rest and moves to the next term")
{
    log_fixture *f = log_open_connected(1005);
    fill_to(f, TERM - 128, 64);
    um_claim c;
    CHECK_EQ(um_log_claim(&f->log, 192, &c), UM_ADMIN_ACTION);
    CHECK_EQ(um_log_frame_length(&f->log, TERM - 128), 128);
    CHECK(um_log_frame_is_pad(&f->log, TERM - 128));
    CHECK_EQ(atomic_load(&f->log.active_term_count), 1);
    CHECK_EQ(atomic_load(&f->log.tails[1]), (uint64_t)1006 << 32);
    CHECK_EQ(um_log_tail(&f->log), TERM);
    CHECK_EQ(claim(f, 192).position, TERM);
    log_close(f);
}

TEST("AE-30", "a term filled to the last byte needs no padding")
{
    log_fixture *f = log_open_connected(1005);
    fill_to(f, TERM - 128, 64);
    CHECK_EQ(claim(f, 128).position, TERM - 128);
    CHECK_EQ(um_log_tail(&f->log), TERM);
    CHECK_EQ(atomic_load(&f->log.active_term_count), 0);
    um_claim c;
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_ADMIN_ACTION);
    CHECK_EQ(um_log_frame_length(&f->log, TERM - 128), 0); /* not committed yet */
    CHECK_EQ(um_log_frame_length(&f->log, TERM), 0);
    CHECK_EQ(claim(f, 64).position, TERM);
    log_close(f);
}

TEST("AE-30 AE-35", "a publisher that dies while it closes a term does not stop the others")
{
    log_fixture *f = log_open_connected(1005);
    fill_to(f, TERM - 128, 64);
    atomic_store(&f->log.tails[0], (uint64_t)1005 << 32 | (TERM + 64)); /* closed, but neither padded nor rotated */
    CHECK_EQ(um_log_tail(&f->log), TERM);
    um_claim c;
    CHECK_EQ(um_log_claim(&f->log, 64, &c), UM_ADMIN_ACTION);
    CHECK_EQ(claim(f, 64).position, TERM);
    um_log_unblock(&f->log, TERM - 128, 0);
    for (int64_t s = 4; s <= TIMEOUT_S; s += 4)
        CHECK_EQ(um_log_unblock(&f->log, TERM - 128, s * NS_PER_S), s == TIMEOUT_S);
    CHECK_EQ(um_log_frame_length(&f->log, TERM - 128), 128);
    CHECK(um_log_frame_is_pad(&f->log, TERM - 128));
    log_close(f);
}

TEST("AE-5 AE-30 UX-22", "the term id wraps within twenty terms")
{
    log_fixture *f = log_open_connected(UINT32_MAX - 3);
    fill_to(f, 20 * (int64_t)TERM + 4096, 1088);
    CHECK_EQ(atomic_load(&f->log.active_term_count), 20);
    CHECK_EQ(atomic_load(&f->log.tails[20 % 3]) >> 32, 16);
    CHECK_EQ(um_log_tail(&f->log), 20 * (int64_t)TERM + 4096);
    log_close(f);
}

TEST("AE-32 AE-34", "a borrowed frame cannot be read before it is returned and published")
{
    log_fixture *f = log_open_connected(1);
    um_claim c = claim(f, um_frame_span(100));
    um_frame_borrow(&f->log, c.frames, 100);
    CHECK_EQ(um_log_frame_length(&f->log, 0), -120);
    CHECK(um_frame_return(&f->log, c.frames, 100));
    CHECK_EQ(um_log_frame_length(&f->log, 0), -120);
    CHECK(!um_frame_return(&f->log, c.frames, 100));
    um_frame_publish(&f->log, c.frames, 100);
    CHECK_EQ(um_log_frame_length(&f->log, 0), 120);
    log_close(f);
}

/* Checks once per second; returns the second at which unblocking happened. */
static int64_t unblocked_after(log_fixture *f, int64_t position)
{
    for (int64_t s = 100; s < 200; s++)
        if (um_log_unblock(&f->log, position, s * NS_PER_S))
            return s - 100;
    return -1;
}

TEST("AE-35", "an abandoned claim becomes padding of its length, and a late commit fails")
{
    log_fixture *f = log_open_connected(1);
    um_claim c = claim(f, um_frame_span(100));
    um_frame_borrow(&f->log, c.frames, 100);
    publish(f, 64, 1);
    CHECK_EQ(um_log_unblock_due_ns(&f->log), UM_NEVER_NS);
    CHECK_EQ(unblocked_after(f, 0), TIMEOUT_S);
    CHECK_EQ(um_log_frame_length(&f->log, 0), um_frame_span(100));
    CHECK(um_log_frame_is_pad(&f->log, 0));
    CHECK_EQ(f->log.unblocked_count, 1);
    CHECK(!um_frame_return(&f->log, c.frames, 100));
    CHECK(!um_log_abort(&f->log, &c));
    CHECK_EQ(um_log_frame_length(&f->log, 0), um_frame_span(100));
    CHECK_EQ(um_log_frame_length(&f->log, um_frame_span(100)), 64);
    log_close(f);
}

TEST("AE-35", "a commit in time keeps its frame")
{
    log_fixture *f = log_open_connected(1);
    um_claim c = claim(f, um_frame_span(100));
    um_frame_borrow(&f->log, c.frames, 100);
    for (int64_t s = 0; s < TIMEOUT_S; s++)
        CHECK(!um_log_unblock(&f->log, 0, s * NS_PER_S));
    CHECK(um_frame_return(&f->log, c.frames, 100));
    CHECK(!um_log_unblock(&f->log, 0, 1000 * (int64_t)NS_PER_S)); /* being committed */
    um_frame_publish(&f->log, c.frames, 100);
    CHECK(!um_log_unblock(&f->log, 0, 2000 * (int64_t)NS_PER_S));
    CHECK(!um_log_frame_is_pad(&f->log, 0));
    CHECK_EQ(f->log.unblocked_count, 0);
    log_close(f);
}

TEST("AE-35", "a hole without a claim becomes padding up to the next frame")
{
    log_fixture *f = log_open_connected(1);
    claim(f, 512);
    um_claim next = claim(f, 64);
    um_frame_begin(&f->log, next.frames, 64 - UM_FRAME_HEADER_BYTES);
    CHECK_EQ(unblocked_after(f, 0), TIMEOUT_S);
    CHECK_EQ(um_log_frame_length(&f->log, 0), 512);
    CHECK(um_log_frame_is_pad(&f->log, 0));
    CHECK_EQ(um_log_frame_length(&f->log, 512), -64);
    log_close(f);
}

TEST("AE-35", "a hole without a later frame ends at the tail")
{
    log_fixture *f = log_open_connected(1);
    publish(f, 64, 1);
    claim(f, 1024);
    CHECK_EQ(unblocked_after(f, 64), TIMEOUT_S);
    CHECK_EQ(um_log_frame_length(&f->log, 64), 1024);
    CHECK_EQ(um_log_frame_length(&f->log, 64 + 1024), 0);
    log_close(f);
}

TEST("AE-35", "a claim at the end of its term is unblocked")
{
    log_fixture *f = log_open_connected(1);
    fill_to(f, TERM - 256, 64);
    um_claim c = claim(f, 256);
    um_frame_borrow(&f->log, c.frames, 256 - UM_FRAME_HEADER_BYTES);
    um_claim refused;
    CHECK_EQ(um_log_claim(&f->log, 64, &refused), UM_ADMIN_ACTION);
    publish(f, 64, 1);
    CHECK_EQ(unblocked_after(f, TERM - 256), TIMEOUT_S);
    CHECK_EQ(um_log_frame_length(&f->log, TERM - 256), 256);
    CHECK_EQ(um_log_frame_length(&f->log, TERM), 64);
    log_close(f);
}

TEST("AE-35", "a frame that the stack is writing is never unblocked")
{
    log_fixture *f = log_open_connected(1);
    um_claim c = claim(f, 64);
    um_frame_begin(&f->log, c.frames, 56);
    CHECK_EQ(unblocked_after(f, 0), -1);
    log_close(f);
}

TEST("AE-35", "unobserved time does not count")
{
    log_fixture *f = log_open_connected(1);
    um_claim c = claim(f, um_frame_span(100));
    um_frame_borrow(&f->log, c.frames, 100);
    CHECK(!um_log_unblock(&f->log, 0, 0));
    CHECK_EQ(um_log_unblock_due_ns(&f->log), TIMEOUT_S / 4 * (int64_t)NS_PER_S);
    CHECK(!um_log_unblock(&f->log, 0, 3600 * (int64_t)NS_PER_S)); /* the process was stopped */
    CHECK(um_frame_return(&f->log, c.frames, 100));
    log_close(f);
}

TEST("AE-35", "the clock starts again for the next frame")
{
    log_fixture *f = log_open_connected(1);
    um_claim first = claim(f, 64), second = claim(f, 64);
    um_frame_borrow(&f->log, first.frames, 56);
    um_frame_borrow(&f->log, second.frames, 56);
    for (int64_t s = 0; s < TIMEOUT_S; s++)
        CHECK(!um_log_unblock(&f->log, 0, s * NS_PER_S));
    CHECK(um_frame_return(&f->log, first.frames, 56));
    um_frame_publish(&f->log, first.frames, 56);
    CHECK_EQ(unblocked_after(f, 64), TIMEOUT_S);
    log_close(f);
}

TEST("AE-36", "an aborted claim becomes padding")
{
    log_fixture *f = log_open_connected(1);
    um_claim c = claim(f, um_frame_span(100));
    um_frame_borrow(&f->log, c.frames, 100);
    CHECK(um_log_abort(&f->log, &c));
    CHECK_EQ(um_log_frame_length(&f->log, 0), um_frame_span(100));
    CHECK(um_log_frame_is_pad(&f->log, 0));
    CHECK(!um_log_abort(&f->log, &c));
    log_close(f);
}

TEST("AE-45 AE-46 AE-47", "cleaning stops one term behind the sender")
{
    log_fixture *f = log_open_connected(1);
    fill_to(f, TERM, 64);
    CHECK_EQ(f->log.clean_position, 0);
    CHECK(!is_clean(&f->log, 0, 64));
    fill_to(f, TERM + 1024, 1024);
    CHECK_EQ(f->log.clean_position, 1024);
    CHECK(is_clean(&f->log, 0, 1024));
    CHECK(!is_clean(&f->log, 1024, 64));
    fill_to(f, 3 * TERM, 1024);
    CHECK(is_clean(&f->log, 0, 2 * TERM));
    CHECK(!is_clean(&f->log, 2 * TERM, 64));
    log_close(f);
}

TEST("AE-29 AE-45", "old bytes in reused space are not taken for a frame")
{
    log_fixture *f = log_open_connected(1);
    memset(f->memory, 0x7f, 3 * TERM); /* as messages of an earlier round would leave it */
    CHECK_EQ(um_log_frame_length(&f->log, 0), 0);
    um_claim c = claim(f, 128);
    um_frame_begin(&f->log, c.frames, 100);
    CHECK_EQ(um_log_frame_length(&f->log, 0), -120);
    um_frame_publish(&f->log, c.frames, 100);
    CHECK_EQ(um_log_frame_length(&f->log, 128), 0);
    log_close(f);
}

TEST("AE-48 AE-49", "cleaning keeps to its budget, at any frame boundaries")
{
    log_fixture *f = log_open_connected(1);
    fill_to(f, TERM, 64);
    while (um_log_tail(&f->log) < TERM + TERM / 4)
        publish_next(f, 1024);
    for (uint32_t i = 1; i <= 10; i++) {
        um_log_conduct(&f->log, TERM + TERM / 4, 200);
        CHECK_EQ(f->log.clean_position, 192 * i);
        CHECK(is_clean(&f->log, 0, 192 * i));
        CHECK(!is_clean(&f->log, 192 * i, 64));
    }
    um_log_conduct(&f->log, TERM + TERM / 4, 64); /* one word */
    CHECK_EQ(f->log.clean_position, 1984);
    um_log_conduct(&f->log, TERM + TERM / 4, 63);
    CHECK_EQ(f->log.clean_position, 1984);
    log_close(f);
}

TEST("AE-45 AE-48", "cleaning stops at the end of a term and continues in the next")
{
    log_fixture *f = log_open_connected(1);
    fill_to(f, 2 * TERM - 64, 64);
    int64_t cleaned = f->log.clean_position;
    CHECK_EQ(cleaned, TERM - 64);
    fill_to(f, 2 * TERM, 64);
    while (um_log_tail(&f->log) < 2 * TERM + 4096)
        publish_next(f, 1024);
    um_log_conduct(&f->log, 2 * TERM + 4096, UINT32_MAX);
    CHECK_EQ(f->log.clean_position, TERM + 4096);
    log_close(f);
}

/* A log of long terms with the publishers at `position`; everything before it is in use. */
static void long_log_init(um_publication_log *log, uint8_t *memory, uint32_t term_length, int64_t position)
{
    um_log_init(log, memory, term_length, 1, NS_PER_S);
    uint32_t term = (uint32_t)(position / term_length);
    memset(memory, 0xee, um_log_footprint(term_length));
    atomic_store(&log->is_connected, true);
    atomic_store(&log->active_term_count, term);
    atomic_store(&log->tails[term % 3], (uint64_t)(1 + term) << 32 | (uint64_t)(position % term_length));
    atomic_store(&log->writable_end, position);
    log->clean_position = position - 3 * (int64_t)term_length;
}

enum { LONG_TERM = 4 << 20 };

TEST("AE-45 AE-46 AE-47 AE-48",
     "in long terms cleaning keeps just ahead of the publishers, in steps, and never nearer to "
     "the sender than a term")
{
    um_publication_log log;
    uint8_t *memory = zeroed(um_log_footprint(LONG_TERM));
    int64_t tail = 3 * (int64_t)LONG_TERM + 4096, sent = tail - 1024;
    long_log_init(&log, memory, LONG_TERM, tail);
    for (uint32_t bytes = 64, cleaned = 0; bytes < 1600; bytes += 64) {
        um_log_conduct(&log, sent, bytes);
        cleaned += bytes;
        CHECK_EQ(log.clean_position, 4096 + cleaned);
        CHECK(is_clean(&log, 4096, cleaned));
        CHECK(!is_clean(&log, 4096 + cleaned, 64));
    }
    CHECK(um_log_needs_cleaning(&log, sent));
    um_log_conduct(&log, sent, UINT32_MAX);
    CHECK(!um_log_needs_cleaning(&log, sent));
    CHECK_EQ(atomic_load(&log.writable_end), tail + UM_LOG_CLEAN_AHEAD_BYTES);
    CHECK(!is_clean(&log, 4096 + UM_LOG_CLEAN_AHEAD_BYTES, 64));
    CHECK_EQ(atomic_load(&log.publication_limit), sent + LONG_TERM / 2);
    um_log_conduct(&log, tail - 2 * (int64_t)LONG_TERM - 64, UINT32_MAX); /* a term not sent yet is not cleaned */
    CHECK_EQ(atomic_load(&log.writable_end), tail + UM_LOG_CLEAN_AHEAD_BYTES);
    free(memory);
}

TEST("AE-7 AE-23 AE-48",
     "a claim that meets unclean space is refused, and cleaning then makes space for claims of its length")
{
    um_publication_log log;
    uint8_t *memory = zeroed(um_log_footprint(LONG_TERM));
    int64_t tail = 3 * (int64_t)LONG_TERM + 4096;
    long_log_init(&log, memory, LONG_TERM, tail);
    um_log_conduct(&log, tail, UINT32_MAX);
    um_claim c;
    uint32_t length = 2 * UM_LOG_CLEAN_AHEAD_BYTES;
    CHECK_EQ(um_log_claim(&log, length, &c), UM_BACK_PRESSURED);
    CHECK_EQ(um_log_tail(&log), tail);
    CHECK(um_log_needs_cleaning(&log, tail));
    um_log_conduct(&log, tail, UINT32_MAX);
    CHECK_EQ(um_log_claim(&log, length, &c), 0);
    CHECK(is_clean(&log, c.position, length));
    CHECK(um_log_needs_cleaning(&log, tail));
    um_log_conduct(&log, tail,
                   UINT32_MAX); /* the sender does not advance: publishers continue up to the publication limit */
    while (um_log_claim(&log, 4096, &c) == 0) {
        CHECK(is_clean(&log, c.position, c.length));
        if (um_log_needs_cleaning(&log, tail))
            um_log_conduct(&log, tail, 64 * 1024);
    }
    CHECK_EQ(um_log_tail(&log), tail + LONG_TERM / 2);
    free(memory);
}

CHECK_MAIN

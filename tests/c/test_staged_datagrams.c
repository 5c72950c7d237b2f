/* Staged datagrams, in the ring buffer or in frames borrowed from the link, have the same bytes as
 * the log. */
#include "core/foundation/random.h"
#include "core/source/source.h"
#include "core/source/source_session.h"
#include "support.h"

/* ---- the ring ---- */

enum { MODEL_MAX = 4 * UM_STAGED_MAX };

typedef struct staged_model {
    int64_t position;
    uint32_t bytes;
    uint8_t filler;
} staged_model;

static um_staged_datagrams *ring_open(void)
{
    static um_link lends_nothing;
    um_staged_datagrams *staged = zeroed(sizeof *staged);
    staged->memory = zeroed(um_staged_footprint());
    staged->link = &lends_nothing;
    return staged;
}

TEST("AE-38", "a staged datagram is found until it is dropped, and is not overwritten")
{
    um_random random = {check_seed()};
    um_staged_datagrams *staged = ring_open();
    static staged_model model[MODEL_MAX];
    uint32_t oldest = 0, count = 0, refused = 0, wrapped = 0;
    int64_t position = 0;
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t bytes = 500 + (uint32_t)um_random_below(&random, 9000);
        uint32_t before = staged->end;
        um_staged_space space = um_staged_make_space(staged, 1, bytes);
        if (space.datagrams > 0 && space.bytes >= bytes) {
            wrapped += staged->end < before;
            staged_model *added = &model[(oldest + count++) % MODEL_MAX];
            *added = (staged_model){position, bytes, (uint8_t)um_random_next(&random)};
            memset(um_staged_data(staged, um_staged_add(staged, position, bytes)), added->filler, bytes);
            position += UM_FRAME_ALIGNMENT * (1 + (int64_t)um_random_below(&random, 200));
        } else {
            refused++;
        }
        CHECK_EQ(staged->count, count);
        for (uint32_t i = 0; i < count; i++) {
            const staged_model *m = &model[(oldest + i) % MODEL_MAX];
            const um_staged_datagram *entry = um_staged_find(staged, m->position, m->bytes);
            CHECK(entry != NULL);
            const uint8_t *found = um_staged_data(staged, entry);
            CHECK(found[0] == m->filler && found[m->bytes / 2] == m->filler && found[m->bytes - 1] == m->filler);
        }
        CHECK(um_staged_find(staged, position, bytes) == NULL);
        CHECK(count == 0 || um_staged_find(staged, model[oldest % MODEL_MAX].position, 1) == NULL);
        uint32_t sent = um_random_below(&random, 4) == 0 ? (uint32_t)um_random_below(&random, 9) : 0;
        sent = sent < count ? sent : count;
        if (sent == 0)
            continue;
        oldest += sent;
        count -= sent;
        um_staged_drop_sent(staged, count > 0 ? model[oldest % MODEL_MAX].position : position);
        CHECK(um_staged_find(staged, model[(oldest - 1) % MODEL_MAX].position, bytes) == NULL);
    }
    CHECK(refused > 100 && wrapped > 100);
    free(staged->memory);
    free(staged);
}

TEST("", "the ring holds a maximum number of datagrams, however small")
{
    um_staged_datagrams *staged = ring_open();
    for (int64_t i = 0; i < UM_STAGED_MAX; i++) {
        CHECK(um_staged_make_space(staged, 1, 100).datagrams > 0);
        um_staged_add(staged, i * UM_FRAME_ALIGNMENT, 100);
    }
    CHECK_EQ(um_staged_make_space(staged, 1, 100).datagrams, 0);
    um_staged_drop_sent(staged, UM_FRAME_ALIGNMENT);
    CHECK_EQ(um_staged_make_space(staged, 1, 100).datagrams, 1);
    free(staged->memory);
    free(staged);
}

/* ---- a session that sends them ---- */

enum { COUNT = 3000 };

typedef struct batch {
    uint8_t *data;
    uint32_t lengths[COUNT];
} batch;

/* Mostly messages that fill a datagram, some small, some longer than a datagram. */
static batch *batch_make(um_random *random)
{
    batch *b = zeroed(sizeof *b);
    uint32_t total = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t kind = (uint32_t)um_random_below(random, 20);
        b->lengths[i] = kind == 0   ? 1441 + (uint32_t)um_random_below(random, 2000)
                        : kind == 1 ? (uint32_t)um_random_below(random, 100)
                                    : 700 + (uint32_t)um_random_below(random, 741);
        total += b->lengths[i];
    }
    b->data = malloc(total);
    for (uint32_t i = 0; i < total; i++)
        b->data[i] = (uint8_t)um_random_next(random);
    return b;
}

/* A log large enough to avoid back-pressure, whatever the link accepts. */
static um_source_session_config config_8m(void)
{
    um_source_session_config config = default_config();
    config.term_length = 8 << 20;
    config.window_bytes = 1 << 20;
    return config;
}

/* Sends the batch in pieces of `at_once`, after each as much as the link has space for. Returns the number staged. */
static uint32_t send_in_pieces(fixture *f, const batch *b, bool stages, uint32_t at_once, um_random *random)
{
    um_source *source = source_open(f, 7, 0);
    const uint8_t *data = b->data;
    uint32_t done = 0, laid = 0;
    while (done < COUNT) {
        um_messages messages = {.data = data, .lengths = b->lengths + done};
        messages.count = COUNT - done < at_once ? COUNT - done : at_once;
        messages.staged = stages ? &f->session->staged : NULL;
        uint32_t before = f->session->staged.count;
        uint64_t done_bytes;
        int64_t result = um_source_send_many(source, &messages, UM_SEND_FLUSH, f->now_ns, &f->actions, &done_bytes);
        CHECK(result > 0);
        laid += f->session->staged.count - before;
        done += (uint32_t)result;
        data += done_bytes;
        f->link.space = (uint32_t)um_random_below(random, 2 * at_once);
        f->link.borrowed_max = (uint32_t)um_random_below(random, 2 * UM_STAGED_BORROWED_MAX);
        run_sender(f);
        CHECK_EQ(f->link.borrowed, f->session->staged.borrowed_count);
    }
    f->link.space = UINT32_MAX;
    run_sender(f);
    return laid;
}

static void check_same_bodies(fixture *a, uint32_t i, fixture *b, uint32_t j)
{
    um_packet pa = packet_at(a, i), pb = packet_at(b, j);
    CHECK_EQ(pa.sqn, pb.sqn);
    CHECK_EQ(pa.body_length, pb.body_length);
    CHECK_BYTES(pa.body, pb.body, pa.body_length);
}

static void check_same_datagrams(fixture *a, fixture *b)
{
    CHECK_EQ(a->link.count, b->link.count);
    for (uint32_t i = 0; i < b->link.count; i++)
        check_same_bodies(a, i, b, i);
}

TEST("W9 AE-38 UM-42", "the same datagrams are sent, staged or not, however many the link accepts at once")
{
    um_random random = {check_seed()};
    batch *b = batch_make(&random);
    for (uint32_t at_once = 1; at_once <= 100; at_once += 33) {
        um_source_session_config config = config_8m();
        fixture *usual = session_open(&config), *staged = session_open(&config);
        um_random same = random;
        CHECK_EQ(send_in_pieces(usual, b, false, at_once, &random), 0);
        CHECK(send_in_pieces(staged, b, true, at_once, &same) > COUNT / 10);
        CHECK(usual->link.count > COUNT / 2);
        check_same_datagrams(staged, usual);
        session_close(usual);
        session_close(staged);
    }
    free(b->data);
    free(b);
}

/* The link lends frames for datagrams of the usual size. */
static fixture *lending_open(const um_source_session_config *config)
{
    fixture *f = session_open(config);
    f->link.base.borrow_bytes = UM_LBTRM_DATA_BYTES + config->datagram_max_bytes;
    f->link.borrowed_max = UINT32_MAX;
    return f;
}

TEST("W6 AE-38", "in borrowed frames the same datagrams are sent with their sums, and no frame stays borrowed")
{
    um_random random = {check_seed()};
    batch *b = batch_make(&random);
    for (uint32_t at_once = 1; at_once <= 100; at_once += 33) {
        um_source_session_config config = config_8m();
        fixture *usual = session_open(&config), *lending = lending_open(&config);
        um_random same = random;
        send_in_pieces(usual, b, true, at_once, &random);
        CHECK(send_in_pieces(lending, b, true, at_once, &same) > COUNT / 10);
        CHECK(lending->link.sent_from_borrowed > COUNT / 10);
        CHECK_EQ(lending->link.borrowed, 0);
        check_same_datagrams(lending, usual);
        session_close(usual);
        session_close(lending);
    }
    free(b->data);
    free(b);
}

static void send_alike(fixture *f, uint32_t count, uint32_t bytes)
{
    static uint8_t data[64 * 1500];
    uint32_t lengths[64];
    uint64_t done_bytes;
    for (uint32_t i = 0; i < count; i++)
        lengths[i] = bytes;
    um_source *source = f->session->sources != NULL ? f->session->sources : source_open(f, 7, 0);
    um_messages messages = {.data = data, .lengths = lengths, .count = count, .staged = &f->session->staged};
    CHECK_EQ(um_source_send_many(source, &messages, UM_SEND_FLUSH, f->now_ns, &f->actions, &done_bytes), count);
}

TEST("W4 W6", "frames that cannot be sent in place are returned: the MTU shrank, or the session closes")
{
    um_source_session_config config = config_8m();
    fixture *f = lending_open(&config);
    send_alike(f, 20, 1400);
    CHECK_EQ(f->link.borrowed, 20);
    um_source_session_set_datagram_max(f->session, 1000);
    run_sender(f);
    CHECK_EQ(f->link.count, 20);
    CHECK(f->link.datagrams[19].oversize);
    CHECK_EQ(f->link.borrowed, 0);
    send_alike(f, 20, 900);
    CHECK_EQ(f->link.borrowed, 20);
    um_staged_drop_sent(&f->session->staged, INT64_MAX);
    CHECK_EQ(f->link.borrowed, 0);
    session_close(f);
}

TEST("W4 W6", "datagrams larger than a frame are staged in the ring, after those in borrowed frames")
{
    um_source_session_config config = config_8m();
    fixture *f = lending_open(&config);
    um_source_session_set_datagram_max(f->session, 1000);
    f->link.base.borrow_bytes = 1024;
    send_alike(f, 20, 900);
    CHECK_EQ(um_staged_make_space(&f->session->staged, 5, 1000).datagrams, 5);
    CHECK_EQ(f->link.borrowed, 25);
    CHECK_EQ(um_staged_make_space(&f->session->staged, 5, 1472).bytes, 0);
    um_source_session_set_datagram_max(f->session, 1472);
    for (int i = 0; i < 3; i++)
        send_alike(f, 60, 1400);
    CHECK_EQ(f->link.borrowed, 20);
    run_sender(f);
    CHECK_EQ(f->link.borrowed, 0);
    send_alike(f, 20, 1400);
    CHECK_EQ(f->link.borrowed, 0);
    CHECK_EQ(f->session->staged.count, 20);
    um_source_session_set_datagram_max(f->session, 1000);
    send_alike(f, 20, 900);
    CHECK_EQ(f->link.borrowed, 20);
    run_sender(f);
    CHECK_EQ(f->link.borrowed, 0);
    CHECK_EQ(f->link.count, 20 + 180 + 20 + 20);
    session_close(f);
}

TEST("UM-125 AE-47", "a staged datagram is retransmitted from the log")
{
    um_random random = {check_seed()};
    batch *b = batch_make(&random);
    um_source_session_config config = config_8m();
    fixture *f = session_open(&config);
    CHECK(send_in_pieces(f, b, true, 64, &random) > COUNT / 10);
    CHECK_EQ(f->session->staged.count, 0);
    memset(f->session->staged.memory, 0, UM_STAGED_BYTES);
    uint32_t sent = f->link.count, window = f->session->next_sqn - f->session->trail_sqn;
    CHECK(window > 500 && window < sent);
    for (uint32_t back = 1; back <= window; back++) {
        nak_one(f, f->session->next_sqn - back);
        CHECK_EQ(f->link.count, sent + back);
        CHECK(packet_at(f, sent + back - 1).flags & UM_LBTRM_FLAG_RETRANSMISSION);
        check_same_bodies(f, sent + back - 1, f, sent - back);
    }
    session_close(f);
    free(b->data);
    free(b);
}

CHECK_MAIN

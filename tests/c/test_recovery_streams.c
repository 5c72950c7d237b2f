/* Off-transport recovery of random streams: every message is delivered once, in order, or reported lost, whatever the
 * transport and the peer do.
 */
#include "core/receiver/fetch_protocol.h"
#include "recovering.h"

typedef struct fuzzed {
    recovering *f;
    um_random random;
    uint32_t stuck; /* steps without progress */
    uint32_t last_next;
    uint32_t last_requested;
    bool is_hostile;
} fuzzed;

static bool one_in(fuzzed *z, uint32_t n)
{
    return um_random_below(&z->random, n) == 0;
}

static void make_fragments(fuzzed *z)
{
    for (uint32_t i = 0; i < STREAM_MAX;) {
        uint32_t count = one_in(z, 4) ? 2 + (uint32_t)um_random_below(&z->random, 3) : 1;
        count = count > STREAM_MAX - i ? 1 : count;
        for (uint32_t k = 0; k < count; k++)
            z->f->starts[i + k] = i, z->f->fragments[i + k] = count;
        i += count;
    }
}

/* Answers most requests, some twice, some never. */
static void answer_some(fuzzed *z)
{
    recovering *f = z->f;
    uint32_t indices[2048], count = requests(f, 60, indices, 2048);
    bool has_answered = false;
    for (uint32_t r = 0; r < count; r++) {
        if (z->is_hostile && one_in(z, 20))
            continue;
        if (indices[r] >= f->retained_from && indices[r] < f->sent) {
            answer_message(f, indices[r]);
            if (z->is_hostile && one_in(z, 20))
                answer_message(f, indices[r]);
        } else if (indices[r] < f->sent && !has_answered) {
            answer_range(f, f->base + f->retained_from, f->base + f->sent - 1);
            has_answered = true;
        }
        if (z->is_hostile && one_in(z, 100))
            answer_message(f, (uint32_t)um_random_below(&z->random, f->sent));
        if (z->is_hostile && one_in(z, 500)) /* the connection is lost */
            f->from_peer_bytes = 0;
    }
}

/* Does one step of umstack/recovery. */
static void serve(fuzzed *z)
{
    recovering *f = z->f;
    if (!is_fetching(f)) {
        f->from_peer_bytes = 0;
        z->stuck = 0;
        return;
    }
    answer_some(z);
    if (f->from_peer_bytes > 0 && take(f) < 0)
        f->from_peer_bytes = 0;
    bool progresses = f->delivery->next_sqn != z->last_next || um_fetch_protocol_is_left_to_transport(f->delivery);
    z->last_next = f->delivery->next_sqn;
    z->stuck = progresses ? 0 : z->stuck + 1;
    if (z->stuck % 20 == 19)
        um_fetch_protocol_retry(f->delivery);
    if (z->stuck == 400 && is_fetching(f)) {
        um_fetch_protocol_pass_over(f->session, f->delivery, f->now_ns);
        z->stuck = 0;
    }
}

/* Runs one stream with random loss, retransmissions, outages and answers; then every message must be accounted for. */
static void run_stream(uint64_t seed, um_ordered_delivery mode, bool bounded, bool is_hostile)
{
    fuzzed z = {.random = {.state = seed}, .is_hostile = is_hostile};
    recovering *f = z.f = recovering_open(mode, (uint32_t)um_random_next(&z.random), true);
    f->is_honest = !is_hostile;
    if (mode == UM_ORDERED_SEQUENCE)
        make_fragments(&z);
    uint32_t outage = 0, pending = 0, pendings[STREAM_MAX];
    stream(f, f->fragments[0], false); /* the first message starts the stream */
    while (f->sent + 20 < STREAM_MAX) {
        if (outage == 0 && one_in(&z, 200))
            outage = 1 + (uint32_t)um_random_below(&z.random, one_in(&z, 4) ? 900 : 30);
        f->sent++;
        if (outage > 0 || one_in(&z, 50))
            pendings[pending++] = f->sent - 1;
        else
            arrive(f, f->sent - 1, false);
        outage -= outage > 0;
        if (pending > 0 && outage == 0 && one_in(&z, 6)) { /* the transport recovers one */
            uint32_t at = (uint32_t)um_random_below(&z.random, pending);
            arrive(f, pendings[at], true);
            pendings[at] = pendings[--pending];
        }
        if (bounded && f->sent > 400)
            f->retained_from = f->sent - 400;
        if (one_in(&z, 3)) {
            pass(f, 1 + (int64_t)um_random_below(&z.random, 4));
            serve(&z);
        }
        read_all(f);
    }
    z.is_hostile = false;
    uint32_t end = f->sent + f->fragments[f->sent] - (f->sent - f->starts[f->sent]);
    for (; f->sent < end; f->sent++) /* the last message arrives whole */
        ;
    for (uint32_t i = f->starts[end - 1]; i < end; i++)
        arrive(f, i, false);
    for (uint32_t step = 0; step < 3000 && f->delivered + f->lost < f->sent; step++) {
        pass(f, 1);
        serve(&z);
    }
    for (uint32_t i = 0; i < f->sent && mode == UM_ORDERED_SEQUENCE; i++) {
        if (f->fates[i] == LOST) {
            CHECK(bounded || is_hostile);
        } else if (f->fates[i] == UNKNOWN) { /* of a message that misses another fragment, which is reported */
            bool is_reported = false;
            for (uint32_t k = 0; k < f->fragments[i]; k++)
                is_reported |= f->fates[f->starts[i] + k] == LOST;
            CHECK(is_reported);
        }
    }
    if (!bounded && !is_hostile)
        CHECK_EQ(f->delivered, f->sent);
    recovering_close(f);
}

enum { SEEDS = 8 };

TEST("UM-101 UM-142", "random streams from an honest peer that retains everything are delivered completely")
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_stream(seed, seed % 4 == 0 ? UM_ORDERED_ARRIVAL : UM_ORDERED_SEQUENCE, false, false);
}

TEST("UM-101 UM-141 UM-142",
     "random streams from a peer that retains little: each message is delivered once, in order, or lost")
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_stream(seed, UM_ORDERED_SEQUENCE, true, false);
}

TEST("UM-101 UM-142", "random streams from a peer that sends false ranges, repeats, skips and disconnects")
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_stream(seed, seed % 4 == 0 ? UM_ORDERED_ARRIVAL : UM_ORDERED_SEQUENCE, seed % 2, true);
}

CHECK_MAIN

#include "sim/publisher.h"

enum { MANY_MAX = 8, MANY_SMALL_MAX = 64, MANY_BYTES_MAX = 8192, GROUP_MAX = 6, PPM = 1000000, MS = 1000000 };

static bool chance(um_sim_publisher *publisher, uint32_t ppm)
{
    return ppm != 0 && um_random_below(publisher->random, PPM) < ppm;
}

static uint32_t up_to(um_sim_publisher *publisher, uint32_t most)
{
    return 1 + (uint32_t)um_random_below(publisher->random, most);
}

static const um_sim_session *session_of(const um_sim_publisher *publisher)
{
    return publisher->world->sources[publisher->topic->source]->session;
}

/* LBMC bytes that fit a datagram now, by the path, the options of the run and path MTU discovery. */
static uint32_t body_max(const um_sim_publisher *publisher)
{
    const um_sim_session *session = session_of(publisher);
    uint32_t path = session->host->config.path_bytes, configured = session->core.config.datagram_max_bytes;
    uint32_t most = path < configured ? path : configured, found = session->core.path.bytes;
    return (found < most ? found : most) - UM_LBTRM_DATA_BYTES;
}

/* Header bytes of a message outside an explicit batch. */
static uint32_t overhead(const um_sim_publisher *publisher)
{
    return um_lbmc_overhead(false, false, publisher->topic->is_timed);
}

static uint32_t fragments_of(const um_sim_publisher *publisher, uint32_t length, bool batch)
{
    uint32_t most = body_max(publisher);
    uint32_t option = batch ? UM_LBMC_BATCH_BYTES : 0;
    if (overhead(publisher) + option + length <= most)
        return 1;
    uint32_t chunk = most - overhead(publisher) - UM_LBMC_FRAGMENT_BYTES - option;
    return (length + chunk - 1) / chunk;
}

static uint16_t batch_flags(uint32_t send_flags)
{
    return (uint16_t)((send_flags & UM_SEND_START_BATCH ? UM_MESSAGE_BATCH_START : 0) |
                      (send_flags & UM_SEND_END_BATCH ? UM_MESSAGE_BATCH_END : 0));
}

static void complain(um_sim_publisher *publisher, const char *what, int64_t got, int64_t expected)
{
    um_sim_complain(publisher->world, "t=%lld ns: source %u: %s %lld, expected %lld",
                    (long long)publisher->world->now_ns, publisher->topic->source, what, (long long)got,
                    (long long)expected);
}

/* Registers the message of an accepted send and checks its sqns. */
static void accept(um_sim_publisher *publisher, uint32_t length, uint32_t send_flags, uint32_t fragment_count,
                   uint32_t last_sqn)
{
    um_sim_topic *topic = publisher->topic;
    um_sim_publish_note(topic, fragment_count, length, batch_flags(send_flags));
    if (last_sqn != um_sim_next_published(topic) - 1)
        complain(publisher, "a send returns sqn", last_sqn, um_sim_next_published(topic) - 1);
}

static void check_next_sqn(um_sim_publisher *publisher)
{
    uint32_t next_sqn = um_sim_next_sqn(publisher->world, (int)publisher->topic->source);
    if (next_sqn != um_sim_next_published(publisher->topic))
        complain(publisher, "the next sqn is", next_sqn, um_sim_next_published(publisher->topic));
}

static int64_t refused(um_sim_publisher *publisher, int64_t result)
{
    publisher->refused_count++;
    check_next_sqn(publisher);
    if (result != UM_BACK_PRESSURED && result != UM_NOT_CONNECTED && result != UM_RATE_LIMITED)
        complain(publisher, "a send ends with", result, 0);
    return 50000 + (int64_t)um_random_below(publisher->random, 2 * MS);
}

static int64_t pause(um_sim_publisher *publisher)
{
    check_next_sqn(publisher);
    return 1 + (int64_t)um_random_below(publisher->random, 2 * (uint64_t)publisher->plan->gap_ns);
}

/* ---- ways to publish ---- */

static void choose_message(um_sim_publisher *publisher)
{
    const um_sim_publisher_plan *plan = publisher->plan;
    bool last = publisher->topic->message_count + 1 == plan->message_count;
    publisher->length = up_to(publisher, plan->message_bytes_max);
    publisher->flags = chance(publisher, plan->flush_ppm) ? UM_SEND_FLUSH : 0;
    if (publisher->group_left == 0 && chance(publisher, plan->batch_ppm)) {
        publisher->group_left = up_to(publisher, GROUP_MAX);
        publisher->flags |= UM_SEND_START_BATCH;
    }
    if (publisher->group_left > 0 && (publisher->group_left == 1 || last))
        publisher->flags |= UM_SEND_END_BATCH;
}

static int64_t send_one(um_sim_publisher *publisher)
{
    um_sim_topic *topic = publisher->topic;
    if (publisher->length == 0)
        choose_message(publisher);
    uint32_t length = publisher->length;
    const uint8_t *data = um_sim_content(topic, topic->message_count, 0);
    int64_t result = um_sim_send(publisher->world, (int)topic->source, data, length, publisher->flags);
    if (result < 0)
        return refused(publisher, result);
    uint32_t fragments = fragments_of(publisher, length, batch_flags(publisher->flags) != 0);
    accept(publisher, length, publisher->flags, fragments, (uint32_t)result);
    publisher->length = 0;
    publisher->group_left -= publisher->group_left > 0;
    if (publisher->flags & UM_SEND_END_BATCH)
        publisher->group_left = 0;
    return pause(publisher);
}

/* Size of the largest message that is batched and not fragmented. */
static uint32_t many_bytes_max(const um_sim_publisher *publisher)
{
    uint32_t most = body_max(publisher) - overhead(publisher);
    most = most < publisher->plan->message_bytes_max ? most : publisher->plan->message_bytes_max;
    return most < MANY_BYTES_MAX ? most : MANY_BYTES_MAX;
}

/* Sends small or large messages; large ones are staged as datagrams. */
static int64_t send_many(um_sim_publisher *publisher)
{
    um_sim_topic *topic = publisher->topic;
    uint8_t data[MANY_MAX * MANY_BYTES_MAX];
    uint32_t most = many_bytes_max(publisher), small = most < MANY_SMALL_MAX ? most : MANY_SMALL_MAX;
    bool large = chance(publisher, PPM / 2);
    uint32_t lengths[MANY_MAX], used = 0;
    uint32_t count = publisher->plan->message_count - topic->message_count;
    count = up_to(publisher, count < MANY_MAX ? count : MANY_MAX);
    for (uint32_t i = 0; i < count; i++) {
        lengths[i] = up_to(publisher, small);
        if (large && !chance(publisher, PPM / 8))
            lengths[i] = most + 1 - lengths[i];
        memcpy(data + used, um_sim_content(topic, topic->message_count + i, 0), lengths[i]);
        used += lengths[i];
    }
    uint32_t flags = chance(publisher, publisher->plan->flush_ppm) ? UM_SEND_FLUSH : 0;
    int64_t result = um_sim_send_many(publisher->world, (int)topic->source, data, lengths, count, flags);
    if (result < 0)
        return refused(publisher, result);
    for (uint32_t i = 0; i < (uint32_t)result; i++)
        accept(publisher, lengths[i], 0, 1, um_sim_next_published(topic));
    return pause(publisher);
}

static int64_t begin_claim(um_sim_publisher *publisher)
{
    uint32_t most = body_max(publisher) - overhead(publisher);
    uint32_t length = up_to(publisher, publisher->plan->message_bytes_max);
    publisher->claim_length = length < most ? length : most;
    um_sim_topic *topic = publisher->topic;
    const uint8_t *data = um_sim_content(topic, topic->message_count, 0);
    int result = um_sim_claim(publisher->world, (int)topic->source, data, publisher->claim_length);
    if (result != 0)
        return refused(publisher, result);
    publisher->has_claim = true;
    publisher->is_abandoned = chance(publisher, publisher->plan->abandon_ppm);
    int64_t unblock_ns = session_of(publisher)->core.config.unblock_timeout_ns;
    return publisher->is_abandoned ? 2 * unblock_ns
                                   : (int64_t)um_random_below(publisher->random, (uint64_t)unblock_ns / 8);
}

static int64_t end_claim(um_sim_publisher *publisher)
{
    um_sim_topic *topic = publisher->topic;
    publisher->has_claim = false;
    if (chance(publisher, PPM / 10)) {
        um_sim_abort(publisher->world, (int)topic->source);
        return pause(publisher);
    }
    int64_t result = um_sim_commit(publisher->world, (int)topic->source, UM_SEND_FLUSH);
    if (result == UM_CLOSED) /* padding replaced it, which is right only after a long time */
        return publisher->is_abandoned ? pause(publisher) : refused(publisher, result);
    if (result < 0)
        return refused(publisher, result);
    accept(publisher, publisher->claim_length, 0, 1, (uint32_t)result);
    return pause(publisher);
}

int64_t um_sim_publisher_step(um_sim_publisher *publisher)
{
    const um_sim_publisher_plan *plan = publisher->plan;
    if (publisher->has_claim)
        return end_claim(publisher);
    if (publisher->topic->message_count == plan->message_count) {
        int64_t result = um_sim_flush(publisher->world, (int)publisher->topic->source);
        publisher->is_done = result >= 0;
        return publisher->is_done ? -1 : refused(publisher, result);
    }
    bool free_choice = publisher->group_left == 0 && publisher->length == 0;
    if (free_choice && chance(publisher, plan->claim_ppm))
        return begin_claim(publisher);
    if (free_choice && chance(publisher, plan->many_ppm))
        return send_many(publisher);
    return send_one(publisher);
}

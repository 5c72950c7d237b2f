#include "sim/request_peer.h"

enum { PPM = 1000000, OPTION_REQUEST = 21, FAR_SQNS = 1 << 20, NEAR_SQNS = 200 };

static bool chance(um_sim_world *world, uint32_t ppm)
{
    return ppm != 0 && !world->has_true_peers && um_random_below(&world->peer_random, PPM) < ppm;
}

static uint32_t below(um_sim_world *world, uint64_t bound)
{
    return (uint32_t)um_random_below(&world->peer_random, bound);
}

static const um_sim_peer_faults *faults_of(const um_sim_join_state *join)
{
    return &join->source->session->host->peer_faults;
}

void um_sim_peer_accept(um_sim_world *world, um_sim_join_state *join)
{
    const um_sim_peer_faults *faults = faults_of(join);
    um_sim_connection *connection = join->connection;
    connection->stalls_until_ns = 0;
    connection->bytes_left = UINT32_MAX;
    if (chance(world, faults->stall_ppm)) {
        connection->stalls_from_ns = world->now_ns + below(world, (uint64_t)faults->stall_ns);
        connection->stalls_until_ns = connection->stalls_from_ns + below(world, (uint64_t)faults->stall_ns);
    }
    if (chance(world, faults->disconnect_ppm))
        connection->bytes_left = below(world, faults->disconnect_bytes);
}

static uint32_t answer_range(um_sim_world *world, um_sim_join_state *join, const um_range_request *request,
                             uint8_t *out)
{
    uint32_t low, high;
    um_retention_range(join->source->retention, &request->bounds, um_sim_local_ns(join->source->session->host), &low,
                       &high);
    if (chance(world, faults_of(join)->lie_ppm)) {
        uint32_t reach = chance(world, PPM / 8) ? FAR_SQNS : NEAR_SQNS;
        low += below(world, 2 * reach) - reach;
        high += below(world, 2 * reach) - reach;
    }
    return um_recovery_write_range(out, low, high, request->request_index);
}

/* Answers a request that was never sent, for any retained sqn; some answers carry another topic. */
static uint32_t answer_unasked(um_sim_world *world, um_retention *retention, uint8_t *out, uint32_t capacity)
{
    uint32_t count = retention->next_sqn - retention->first_sqn;
    uint8_t message[UM_LBMC_CONTROL_BYTES + UM_RECOVERY_REQUEST_BYTES] = {UM_LBMC_CONTROL, OPTION_REQUEST};
    uint8_t *option = message + UM_LBMC_CONTROL_BYTES;
    um_store_be16(message + 2, sizeof message);
    option[0] = UM_LBMC_OPTION_NONE;
    option[1] = UM_RECOVERY_REQUEST_BYTES;
    um_store_be32(option + 12, retention->topic_index);
    um_store_be32(option + 16, retention->first_sqn + below(world, count));
    um_recovery_exchange exchange = {.requests = message, .length = sizeof message, .out = out, .capacity = capacity};
    if (count == 0 || !um_retention_serve(retention, &exchange))
        return 0;
    if (exchange.written > 0 && out[0] == UM_LBMC_RECOVERED && chance(world, PPM / 2))
        um_store_be32(out + 4, retention->topic_index + 1);
    return exchange.written;
}

/* Distorts true answers: some are omitted, some repeated, some answer no request. */
static uint32_t misbehave(um_sim_world *world, um_sim_join_state *join, const uint8_t *true_answers, uint32_t length,
                          uint8_t *out)
{
    const um_sim_peer_faults *faults = faults_of(join);
    uint32_t written = 0;
    for (uint32_t at = 0, bytes; at < length; at += bytes) {
        bytes = um_load_be16(true_answers + at + 2);
        if (written + 2 * bytes > UM_SIM_ANSWER_BYTES_MAX)
            break; /* omitted */
        uint32_t times = chance(world, faults->omit_ppm) ? 0 : chance(world, faults->repeat_ppm) ? 2 : 1;
        for (; times > 0; times--, written += bytes)
            memcpy(out + written, true_answers + at, bytes);
        if (chance(world, faults->unasked_ppm))
            written += answer_unasked(world, join->source->retention, out + written, UM_SIM_ANSWER_BYTES_MAX - written);
    }
    return written;
}

static uint32_t answer_messages(um_sim_world *world, um_sim_join_state *join, um_recovery_exchange *exchange,
                                uint8_t *out)
{
    uint8_t true_answers[UM_LBMC_MESSAGE_BYTES_MAX];
    exchange->skip = join->connection->skip;
    exchange->out = true_answers;
    exchange->capacity = exchange->capacity < sizeof true_answers ? exchange->capacity : sizeof true_answers;
    if (!um_retention_serve(join->source->retention, exchange))
        um_sim_complain(world, "t=%lld ns: a request of join %u is not well-formed", (long long)world->now_ns,
                        join->index);
    join->connection->skip = exchange->skip;
    if (world->watcher.on_answers != NULL)
        world->watcher.on_answers(world->watcher.owner, true_answers, exchange->written);
    return misbehave(world, join, true_answers, exchange->written, out);
}

bool um_sim_peer_answer(um_sim_world *world, um_sim_join_state *join, const uint8_t *requests, uint32_t length,
                        uint32_t space, um_sim_answers *answers)
{
    um_sim_connection *connection = join->connection;
    uint32_t whole = length < UM_LBMC_CONTROL_BYTES ? UINT32_MAX : um_load_be16(requests + 2);
    answers->length = answers->consumed = 0;
    if (whole > length || space < UM_RECOVERY_RANGE_BYTES)
        return true;
    if (!connection->has_range) {
        um_range_request request;
        if (!um_range_request_read(requests, whole, &request) || request.topic_index != join->core.topic_index) {
            um_sim_complain(world, "t=%lld ns: join %u does not request a range first", (long long)world->now_ns,
                            join->index);
            return false;
        }
        connection->has_range = true;
        answers->consumed = whole;
        answers->length = answer_range(world, join, &request, answers->bytes);
    } else {
        uint32_t most = faults_of(join)->answer_bytes;
        um_recovery_exchange exchange = {
            .requests = requests, .length = length, .capacity = most != 0 && most < space ? most : space};
        answers->length = answer_messages(world, join, &exchange, answers->bytes);
        answers->consumed = exchange.consumed;
    }
    if (chance(world, faults_of(join)->garbage_ppm))
        for (uint32_t i = 0; i < answers->length; i++)
            answers->bytes[i] = (uint8_t)below(world, 256);
    bool goes_on = answers->length <= connection->bytes_left;
    if (!goes_on)
        answers->length = connection->bytes_left;
    connection->bytes_left -= answers->length;
    return goes_on;
}

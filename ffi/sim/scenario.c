#include "sim/scenario.h"

#include <stdio.h>

#include "sim/draws.h"

enum { MS = 1000000, US = 1000, PPM = 1000000, FLOW_TAG = 7, HEADERS_BYTES = 48, MESSAGE_BYTES_MAX = 4096 };

/* Flow control lets a sender go no further than the transmission window, which must hold one frame. */
enum { WINDOW_BYTES_MIN = MESSAGE_BYTES_MAX + HEADERS_BYTES + UM_FRAME_HEADER_BYTES + UM_FRAME_ALIGNMENT };

static const int64_t LONG_NS = (int64_t)600 * 1000 * MS;
/* Outlasts every fault, but ends a receiver whose reset was lost. */
static const int64_t FORGET_NS = (int64_t)2 * 1000 * MS;

#define PICK(random, array) ((array)[um_random_below((random), sizeof(array) / sizeof(array)[0])])

/* Half of all sequence numbers start so close to the end that they wrap (UX-22). */
static uint32_t draw_sqn(um_random *random)
{
    if (um_draw_percent(random, 50))
        return 0u - um_draw_between(random, 1, 120);
    return um_draw_percent(random, 50) ? 0 : (uint32_t)um_random_next(random);
}

static uint32_t term_bytes(um_random *random)
{
    static const uint32_t TERMS[] = {1 << 16, 1 << 16, 1 << 17, 1 << 18};
    return PICK(random, TERMS);
}

static void draw_flow(const um_sim_scenario *scenario, um_source_session_config *session, um_random *random)
{
    static const enum um_flow_control_policy POLICIES[] = {UM_FLOW_NONE, UM_FLOW_NONE, UM_FLOW_MIN, UM_FLOW_MAX,
                                                           UM_FLOW_TAGGED};
    session->flow_policy = scenario->kind == UM_SIM_WINDOWED ? UM_FLOW_MIN : PICK(random, POLICIES);
    session->flow_group_tag = FLOW_TAG;
    session->flow_group_minimum_size = 1;
    um_random cookies = {session->session_id}; /* separate, so that other draws stay as they were */
    session->flow_cookie = session->flow_policy == UM_FLOW_NONE ? 0 : um_random_next(&cookies) | 1;
    session->flow_receiver_timeout_ns =
        scenario->kind == UM_SIM_HARSH ? um_draw_between_ns(random, 100 * MS, 400 * MS) : FORGET_NS;
}

static void draw_session(const um_sim_scenario *scenario, uint32_t index, um_source_session_config *session,
                         um_random *random)
{
    static const uint32_t DATAGRAMS[] = {500, 576, 1000, 1472, 1472, 1472, 4000, 8000};
    static const uint32_t MINIMA[] = {1, 1, 100, 1000, 2048, 8192};
    uint32_t group = um_draw_percent(random, 70) ? index : 0; /* sometimes two sessions share a group */
    *session = (um_source_session_config){.session_id = (uint32_t)um_random_next(random) | 1,
                                          .nak_port = (uint16_t)(14390 + index),
                                          .group = um_address_of_v4(0xe00a0a0a + group, 14400),
                                          .initial_sqn = draw_sqn(random),
                                          .initial_term_id = (uint32_t)um_random_next(random),
                                          .term_length = term_bytes(random),
                                          .datagram_max_bytes = PICK(random, DATAGRAMS),
                                          .coalesce_threshold = um_draw_between(random, 0, 15),
                                          .batch_minimum_bytes = PICK(random, MINIMA),
                                          .batch_interval_ns = um_draw_between_ns(random, 3 * MS, 40 * MS),
                                          .ignore_interval_ns = um_draw_between_ns(random, 0, 60 * MS),
                                          .sm_minimum_interval_ns = um_draw_between_ns(random, 4 * MS, 40 * MS),
                                          .unblock_timeout_ns = um_draw_between_ns(random, 20 * MS, 100 * MS)};
    session->sm_maximum_interval_ns = session->sm_minimum_interval_ns * um_draw_between(random, 1, 10);
    session->adaptive_timers = session->session_id >> 1 & 7;
    session->window_bytes =
        scenario->kind == UM_SIM_HARSH      ? um_draw_between(random, WINDOW_BYTES_MIN, session->term_length)
        : scenario->kind == UM_SIM_WINDOWED ? um_draw_between(random, 24 * 1024, session->term_length)
                                            : session->term_length;
    session->path_floor_bytes = session->session_id & 8 ? UM_DATAGRAM_BYTES_MIN : 0;
    draw_flow(scenario, session, random);
}

static uint32_t message_bytes(const um_source_session_config *session, um_random *random)
{
    static const uint32_t SIZES[] = {16, 100, 100, 600, 1400, MESSAGE_BYTES_MAX};
    uint32_t most = session->term_length / 16;
    uint32_t size = PICK(random, SIZES);
    return size < most ? size : most;
}

static void draw_publisher(const um_sim_scenario *scenario, const um_source_session_config *session, uint32_t topics,
                           uint32_t index, um_sim_publisher_plan *plan, um_random *random)
{
    static const uint32_t FLUSHES[] = {0, PPM / 20, PPM / 4, PPM};
    plan->source = (um_source_config){.topic_index = um_draw_between(random, 1, 1000) * 16 + index,
                                      .initial_sqn = draw_sqn(random),
                                      .tsni_interval_ns = um_draw_between_ns(random, 40 * MS, 150 * MS),
                                      .explicit_capacity = um_draw_between(random, 2048, 16384),
                                      .has_send_time = index % 2 == 1};
    plan->message_bytes_max = message_bytes(session, random);
    plan->message_count = um_draw_between(random, 5, 80);
    if (plan->message_bytes_max <= 100 &&
        um_draw_percent(random, 20)) /* many small ones, to fill tables rather than windows */
        plan->message_count = um_draw_between(random, 200, 800);
    if (scenario->kind == UM_SIM_ROOMY) {
        /* The window holds all that this session ever sends, including idle TSNIs. */
        uint32_t budget = session->term_length / 4 / topics;
        uint32_t most = budget / (plan->message_bytes_max + 4 * HEADERS_BYTES);
        plan->message_count = plan->message_count < most ? plan->message_count : most + 1;
    }
    plan->start_ns = um_draw_between_ns(random, 0, 40 * MS);
    plan->gap_ns = um_draw_between_ns(random, 20 * US, 4 * MS);
    plan->flush_ppm = PICK(random, FLUSHES);
    if (plan->message_count > 100)
        plan->gap_ns = um_draw_between_ns(random, 5 * US, 100 * US);
    plan->batch_ppm = um_draw_percent(random, 25) ? PPM / 10 : 0;
    plan->many_ppm = um_draw_percent(random, 30) ? PPM / 4 : 0;
    plan->claim_ppm = um_draw_percent(random, 30) ? PPM / 4 : 0;
    plan->abandon_ppm = um_draw_percent(random, 30) ? PPM / 10 : 0;
}

static void draw_host(const um_sim_scenario *scenario, um_sim_host_config *host, um_random *random)
{
    static const int64_t SLICES[] = {5 * MS, 10 * MS, 20 * MS};
    bool harsh = scenario->kind == UM_SIM_HARSH;
    *host = (um_sim_host_config){.rate_interval_ns = PICK(random, SLICES),
                                 .path_bytes = 8972,
                                 .datagram_max_bytes = 8000,
                                 .hold_datagrams = harsh ? um_draw_between(random, 8, 512) : 4096,
                                 .hold_messages = harsh ? 64u << um_draw_between(random, 0, 6) : 16384,
                                 .inbox_datagrams = um_draw_between(random, 64, 2048),
                                 .receive_batch = um_draw_between(random, 1, 32),
                                 .clock_offset_ns = um_draw_between_ns(random, 0, (int64_t)1 << 50),
                                 .clock_drift_ppm = (int32_t)um_draw_between(random, 0, 400) - 200};
    if (um_draw_percent(random, 30)) {
        host->data_rate_bps = um_draw_between(random, 8, 100) * 1000000ull;
        host->retransmit_rate_bps =
            um_draw_percent(random, 70) ? host->data_rate_bps / um_draw_between(random, 2, 8) : 0;
    }
    if (um_draw_percent(random, 40)) {
        host->link_bps = um_draw_between(random, 20, 1000) * 1000000ull;
        host->link_queue_ns = um_draw_between_ns(random, 100 * US, 4 * MS);
    }
    host->link_refuse_ppm = um_draw_percent(random, 20) ? um_draw_between(random, 1, PPM / 20) : 0;
}

static void draw_faults(um_sim_faults *faults, um_random *random)
{
    um_random paths = {
        um_random_next(&(um_random){random->state})}; /* separate, so that other draws stay as they were */
    *faults = (um_sim_faults){.delay_ns = um_draw_between_ns(random, 5 * US, 3 * MS)};
    faults->jitter_ns = um_draw_percent(random, 50) ? um_draw_between_ns(random, 0, faults->delay_ns) : 0;
    faults->loss_ppm = um_draw_percent(random, 70) ? um_draw_between(random, 0, PPM / 7) : 0;
    if (um_draw_percent(random, 30)) {
        faults->burst_begin_ppm = um_draw_between(random, 1, PPM / 100);
        faults->burst_end_ppm = um_draw_between(random, PPM / 20, PPM / 2);
    }
    faults->duplicate_ppm = um_draw_percent(random, 30) ? um_draw_between(random, 0, PPM / 10) : 0;
    if (um_draw_percent(random, 40)) {
        faults->reorder_ppm = um_draw_between(random, 0, PPM / 8);
        faults->reorder_ns = um_draw_between_ns(random, 1 * US, 5 * MS);
    }
    faults->corrupt_ppm = um_draw_percent(random, 20) ? um_draw_between(random, 0, PPM / 50) : 0;
    faults->replay_ppm = um_draw_percent(random, 25) ? um_draw_between(random, 0, PPM / 20) : 0;
    faults->garbage_ppm = um_draw_percent(random, 25) ? um_draw_between(random, 0, PPM / 20) : 0;
    faults->path_bytes = um_draw_percent(&paths, 25) ? um_draw_between(&paths, UM_DATAGRAM_BYTES_MIN, 2000) : 0;
}

static void draw_transport(const um_sim_scenario *scenario, um_receiver_session_config *transport, um_random *random)
{
    bool harsh = scenario->kind == UM_SIM_HARSH;
    *transport = (um_receiver_session_config){
        .nak_initial_backoff_ns = um_draw_percent(random, 30) ? 0 : um_draw_between_ns(random, 100 * US, 15 * MS),
        .nak_backoff_ns = um_draw_between_ns(random, 2 * MS, 40 * MS),
        .nak_suppress_ns = um_draw_between_ns(random, 2 * MS, 80 * MS),
        .nak_generation_ns = harsh ? um_draw_between_ns(random, 60 * MS, 600 * MS) : LONG_NS,
        .activity_timeout_ns = LONG_NS,
        .send_naks = !harsh || um_draw_percent(random, 95),
        .nak_rate_limit = um_draw_percent(random, 80) ? 50000 : um_draw_between(random, 500, 5000),
        .datagram_max_bytes = UM_DATAGRAM_BYTES_MIN,
        .loss_capacity = harsh ? 16u << um_draw_between(random, 0, 6) : 8192,
        .topic_capacity = 16,
        .window_bytes = um_draw_between(random, 17 * 1024, 48 * 1024),
        .status_interval_ns = um_draw_between_ns(random, 4 * MS, 40 * MS),
        .group_tag = um_draw_percent(random, 60) ? FLOW_TAG : 0,
        .random_seed = um_random_next(random)};
    transport->adaptive_timers = (uint32_t)transport->random_seed & 7;
    if (harsh && um_draw_percent(random, 40)) {
        int64_t longest_ns = 0;
        for (uint32_t i = 0; i < scenario->session_count; i++)
            if (scenario->sessions[i].sm_maximum_interval_ns > longest_ns)
                longest_ns = scenario->sessions[i].sm_maximum_interval_ns;
        transport->activity_timeout_ns = 3 * longest_ns + um_draw_between_ns(random, 10 * MS, 200 * MS);
    }
}

static void draw_receiver(const um_sim_scenario *scenario, um_sim_receiver_config *receiver, um_random *random)
{
    static const int32_t MODES[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_SEQUENCE, UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL,
                                    UM_ORDERED_FRAGMENTS};
    static const uint32_t BURSTS[] = {8, 64, 1024, 1000000000};
    bool harsh = scenario->kind == UM_SIM_HARSH;
    *receiver = (um_sim_receiver_config){.ordered_delivery = PICK(random, MODES),
                                         .map_entries_max =
                                             harsh && um_draw_percent(random, 50) ? um_draw_between(random, 8, 256) : 0,
                                         .burst_loss_max = harsh ? PICK(random, BURSTS) : 1000000000,
                                         .block_count = um_draw_between(random, 4, 8),
                                         .block_rows = um_draw_between(random, 64, 256),
                                         .block_bytes = um_draw_between(random, 4096, 32768),
                                         .message_max_bytes = UM_QUEUE_MESSAGE_BYTES_MIN,
                                         .read_rows = um_draw_between(random, 1, 200),
                                         .keep_rows = um_draw_percent(random, 30)};
    /* From a stream of its own, so that the other draws of a seed stay as they are. */
    static const int64_t HOLDS[] = {UM_NEVER_NS, INT64_C(5000) * MS, 20 * MS, 2 * MS, 0};
    um_random holds = {random->state ^ 0x736c6f77};
    receiver->hold_ns = PICK(&holds, HOLDS);
    if (um_draw_percent(random, 40))
        receiver->loss_check_interval_ns = um_draw_between_ns(random, 5 * MS, 40 * MS);
    if (um_draw_percent(random, 35))
        receiver->read_interval_ns = um_draw_between_ns(random, 50 * US, 5 * MS);
    if (um_draw_percent(random, 8)) { /* almost stuck */
        receiver->read_interval_ns = um_draw_between_ns(random, 5 * MS, 50 * MS);
        receiver->read_rows = um_draw_between(random, 1, 10);
    }
}

static void draw_interest(um_sim_scenario *scenario, um_random *random)
{
    for (uint32_t r = 0; r < scenario->receiver_count; r++) {
        bool any = false;
        for (uint32_t s = 0; s < scenario->session_count; s++)
            for (uint32_t t = 0; t < scenario->topic_counts[s]; t++)
                any |= scenario->is_subscribed[r][s][t] = um_draw_percent(random, 60);
        if (!any)
            scenario->is_subscribed[r][0][0] = true;
    }
}

void um_sim_draw_scenario(um_sim_scenario *scenario, um_random *random)
{
    memset(scenario, 0, sizeof *scenario);
    uint32_t die = um_draw_between(random, 0, 99);
    scenario->kind = die < 35 ? UM_SIM_WINDOWED : die < 60 ? UM_SIM_ROOMY : UM_SIM_HARSH;
    scenario->session_count = um_draw_between(random, 1, UM_SIM_SCENARIO_SESSIONS_MAX);
    scenario->host_count = um_draw_between(random, 1, UM_SIM_SCENARIO_HOSTS_MAX);
    scenario->receiver_count = scenario->host_count + um_draw_between(random, 0, scenario->host_count);
    for (uint32_t s = 0; s < scenario->session_count; s++) {
        um_source_session_config *session = &scenario->sessions[s];
        uint32_t topics = um_draw_between(random, 1, UM_SIM_SCENARIO_TOPICS_MAX);
        draw_session(scenario, s, session, random);
        scenario->topic_counts[s] = topics;
        for (uint32_t t = 0; t < topics; t++)
            draw_publisher(scenario, session, topics, t, &scenario->publishers[s][t], random);
    }
    bool is_ipv6 = scenario->sessions[0].session_id & 16;
    for (uint32_t s = 0; s < scenario->session_count && is_ipv6; s++)
        scenario->sessions[s].group.ip = (um_ip){0xff15ull << 48, um_ip_v4(scenario->sessions[s].group.ip)};
    for (uint32_t h = 0; h < scenario->session_count + scenario->host_count; h++) {
        draw_host(scenario, &scenario->hosts[h], random);
        draw_faults(&scenario->faults[h], random);
    }
    for (uint32_t h = 0; h < scenario->host_count; h++)
        draw_transport(scenario, &scenario->transports[h], random);
    for (uint32_t r = 0; r < scenario->receiver_count; r++) {
        scenario->receiver_hosts[r] = r % scenario->host_count;
        draw_receiver(scenario, &scenario->receivers[r], random);
    }
    draw_interest(scenario, random);
    scenario->faults_end_ns = um_draw_between_ns(random, 60 * MS, 400 * MS);
}

void um_sim_scenario_to_lbtru(um_sim_scenario *scenario, uint64_t seed)
{
    um_random random = {seed ^ 0x6c62747275u}; /* separate, so that other draws match LBT-RM */
    um_random filter_random = {seed ^ 0x55582d3237u};
    bool harsh = scenario->kind == UM_SIM_HARSH;
    for (uint32_t s = 0; s < scenario->session_count; s++) {
        um_source_session_config *session = &scenario->sessions[s];
        session->transport = UM_TRANSPORT_LBTRU;
        session->group = (um_address){0};
        session->flow_cookie = 0; /* client ids prove more */
        session->client_capacity = scenario->host_count + (harsh ? um_draw_between(&random, 0, 4) : 64);
        session->client_buckets = um_draw_between(&random, 1, 16);
        session->client_timeout_ns = harsh ? um_draw_between_ns(&random, 60 * MS, 400 * MS) : LONG_NS;
        session->client_key = (um_siphash_key){um_random_next(&random), um_random_next(&random)};
        session->has_filter = um_draw_percent(&filter_random, 50);
    }
    for (uint32_t h = 0; h < scenario->host_count; h++) {
        um_receiver_session_config *transport = &scenario->transports[h];
        transport->connect_interval_ns = um_draw_between_ns(&random, 2 * MS, 20 * MS);
        transport->maximum_connect_attempts = harsh ? um_draw_between(&random, 20, 1000) : UINT32_MAX;
        transport->acknowledgement_interval_ns = um_draw_between_ns(&random, 5 * MS, 50 * MS);
    }
}

void um_sim_describe_scenario(const um_sim_scenario *scenario, char *out, size_t bytes)
{
    static const char *const KINDS[] = {"windowed", "roomy", "harsh"};
    static const char *const POLICIES[] = {"none", "min", "max", "tagged"};
    size_t used = (size_t)snprintf(out, bytes, "%s, %u receiving hosts, faults until %lld ms", KINDS[scenario->kind],
                                   scenario->host_count, (long long)(scenario->faults_end_ns / MS));
    for (uint32_t s = 0; s < scenario->session_count && used < bytes; s++) {
        const um_source_session_config *c = &scenario->sessions[s];
        used +=
            (size_t)snprintf(out + used, bytes - used, "; session %u: %u topics, term %u, window %u, datagram %u, %s%s",
                             s, scenario->topic_counts[s], c->term_length, c->window_bytes, c->datagram_max_bytes,
                             POLICIES[c->flow_policy], c->has_filter ? ", filtered" : "");
    }
    for (uint32_t r = 0; r < scenario->receiver_count && used < bytes; r++)
        used += (size_t)snprintf(out + used, bytes - used, "; receiver %u: host %u, mode %d", r,
                                 scenario->session_count + scenario->receiver_hosts[r],
                                 scenario->receivers[r].ordered_delivery);
}

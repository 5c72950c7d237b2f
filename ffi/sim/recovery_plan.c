#include "sim/recovery_plan.h"

#include <stdio.h>

#include "sim/draws.h"

enum { MS = 1000000, US = 1000, PPM = 1000000, RETAINED_BYTES = 1 << 22, ATTEMPTS = 100 };

/* Outlasts every fault, every jump of a clock (scenario.c) and the wait of a run for idleness. */
static const int64_t PATIENCE_NS = (int64_t)3000 * MS;

static uint32_t now_and_then(um_random *random, uint32_t p, uint32_t most_ppm)
{
    return um_draw_percent(random, p) ? um_draw_between(random, 1, most_ppm) : 0;
}

static void draw_retention(um_sim_recovery_plan *plan, uint32_t session, um_random *random)
{
    plan->has_retention[session] = um_draw_percent(random, 75);
    plan->has_all[session] = um_draw_percent(random, 65);
    um_retention_config *retention = &plan->retentions[session];
    *retention = (um_retention_config){.size_limit_bytes = RETAINED_BYTES, .size_threshold_bytes = RETAINED_BYTES};
    if (plan->has_all[session])
        return;
    retention->size_limit_bytes = um_draw_between(random, 1000, 40000); /* small enough to reach the limit */
    retention->size_threshold_bytes =
        um_draw_percent(random, 50) ? retention->size_limit_bytes : um_draw_between(random, 0, 4000);
    retention->age_threshold_ns = um_draw_percent(random, 50) ? um_draw_between_ns(random, 0, 100 * MS) : 0;
}

static void draw_peers(um_sim_recovery_plan *plan, uint32_t session, um_random *random)
{
    um_sim_peer_faults *peers = &plan->peers[session];
    *peers =
        (um_sim_peer_faults){.delay_ns = um_draw_between_ns(random, 20 * US, 4 * MS),
                             .bps = um_draw_percent(random, 60) ? um_draw_between(random, 4, 400) * 1000000ull : 0,
                             .answer_bytes = um_draw_percent(random, 50) ? um_draw_between(random, 9000, 65535) : 0,
                             .stall_ppm = now_and_then(random, 40, PPM / 2),
                             .stall_ns = um_draw_between_ns(random, 1 * MS, 80 * MS),
                             .disconnect_ppm = now_and_then(random, 50, PPM * 3 / 4),
                             .disconnect_bytes = um_draw_between(random, 1, 20000),
                             .repeat_ppm = now_and_then(random, 30, PPM / 5),
                             .unasked_ppm = now_and_then(random, 30, PPM / 5)};
    plan->is_faithful[session] = um_draw_percent(random, 65);
    if (plan->is_faithful[session])
        return;
    peers->lie_ppm = now_and_then(random, 60, PPM);
    peers->omit_ppm = now_and_then(random, 60, PPM / 4);
    peers->garbage_ppm = now_and_then(random, 25, PPM / 20);
}

static um_fetch_plan draw_fetch(bool is_patient, um_random *random)
{
    um_fetch_plan fetch = {.attempts_max = is_patient ? ATTEMPTS : um_draw_between(random, 1, 10),
                           .outstanding_max = um_draw_percent(random, 30) ? um_draw_between(random, 1, 10)
                                                                          : um_draw_between(random, 10, 400),
                           .attempt_minimum_ns = um_draw_between_ns(random, 15 * MS, 60 * MS),
                           .request_minimum_ns = um_draw_between_ns(random, 2 * MS, 40 * MS),
                           .message_timeout_ns =
                               is_patient ? PATIENCE_NS : um_draw_between_ns(random, 10 * MS, 400 * MS)};
    fetch.attempt_maximum_ns = fetch.attempt_minimum_ns * um_draw_between(random, 1, 4);
    fetch.request_maximum_ns = fetch.request_minimum_ns * um_draw_between(random, 1, 4);
    return fetch;
}

static void draw_bounds(um_range_bounds *bounds, um_random *random)
{
    switch (um_draw_between(random, 0, 2)) {
    case 0:
        bounds->has_count = true;
        bounds->count = um_draw_between(random, 1, 60);
        break;
    case 1:
        bounds->has_bytes = true;
        bounds->bytes = um_draw_between(random, 100, 20000);
        break;
    default:
        bounds->has_age = true;
        bounds->age_ns = um_draw_between_ns(random, 1 * MS, 100 * MS);
    }
}

static void draw_receiver(um_sim_recovery_plan *plan, uint32_t receiver, um_random *random)
{
    um_sim_recovery_config *config = &plan->receivers[receiver];
    plan->is_late[receiver] = um_draw_percent(random, 50);
    plan->is_patient[receiver] = um_draw_percent(random, 70);
    plan->needs_all[receiver] = um_draw_percent(random, 75);
    *config = (um_sim_recovery_config){
        .use_late_join = um_draw_percent(random, 75),
        .use_otr = um_draw_percent(random, 75),
        .caching_proximity = um_draw_percent(random, 50) ? um_draw_between(random, 1, 60) : 5000,
        .otr_caching_threshold = um_draw_percent(random, 30) ? um_draw_between(random, 1, 40) : 10000,
        .otr_initial_delay_ns = um_draw_between_ns(random, 1 * MS, 150 * MS),
        .look_ns = um_draw_between_ns(random, 1 * MS, 6 * MS),
        .late_join = draw_fetch(plan->is_patient[receiver], random),
        .otr = draw_fetch(plan->is_patient[receiver], random)};
    if (!plan->needs_all[receiver])
        draw_bounds(&config->late_join.bounds, random);
}

void um_sim_draw_recovery(um_sim_recovery_plan *plan, const um_sim_scenario *scenario, um_random *random)
{
    memset(plan, 0, sizeof *plan);
    for (uint32_t s = 0; s < scenario->session_count; s++) {
        draw_retention(plan, s, random);
        draw_peers(plan, s, random);
    }
    for (uint32_t r = 0; r < scenario->receiver_count; r++)
        draw_receiver(plan, r, random);
    for (uint32_t h = 0; h < scenario->session_count + scenario->host_count; h++) {
        if (!um_draw_percent(random, 15))
            continue;
        plan->jumps_at_ns[h] = um_draw_between_ns(random, 1, scenario->faults_end_ns);
        plan->jump_ns[h] = um_draw_between_ns(random, 1 * MS, 300 * MS);
    }
}

void um_sim_describe_recovery(const um_sim_recovery_plan *plan, const um_sim_scenario *scenario, char *out,
                              size_t bytes)
{
    size_t used = strlen(out);
    for (uint32_t s = 0; s < scenario->session_count && used < bytes; s++)
        if (plan->has_retention[s])
            used += (size_t)snprintf(out + used, bytes - used, "; session %u retains %s, %s peers", s,
                                     plan->has_all[s] ? "everything" : "little",
                                     plan->is_faithful[s] ? "faithful" : "lying");
    for (uint32_t r = 0; r < scenario->receiver_count && used < bytes; r++)
        used += (size_t)snprintf(out + used, bytes - used, "; receiver %u:%s%s%s%s", r,
                                 plan->receivers[r].use_late_join ? " late join" : "",
                                 plan->receivers[r].use_otr ? " OTR" : "", plan->is_late[r] ? " starts late" : "",
                                 plan->is_patient[r] ? "" : " impatient");
}

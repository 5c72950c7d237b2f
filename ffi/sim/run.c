/* One file, because a run is one sequence: set up, step, check, become idle. */
#include "sim/run.h"

#include "sim/adversary.h"
#include "sim/client_checker.h"
#include "sim/draws.h"
#include "sim/invariants.h"
#include "sim/publisher.h"
#include "sim/recovery_plan.h"
#include "sim/request_connections.h"
#include "sim/row_checker.h"
#include "sim/wire_checker.h"

enum { MS = 1000000, PPM = 1000000, CHECK_EVERY_NS = 10 * MS, GATE_RETRY_NS = MS, CANARY_ROWS = 10 };

/* Maximum time from the last fault until the world is idle. */
static const int64_t PATIENCE_NS = (int64_t)30 * 1000 * MS;
static const int64_t SECOND = (int64_t)1000 * MS;
static const int64_t CLIENT_TIMEOUT_NS = (int64_t)2 * 1000 * MS;

enum { TOPICS_MAX = UM_SIM_SCENARIO_SESSIONS_MAX * UM_SIM_SCENARIO_TOPICS_MAX };

/* The events that the run schedules. */
enum owner_event {
    RUN_PUBLISH,
    RUN_JOIN,
    RUN_LEAVE,
    RUN_CUT,
    RUN_HEAL,
    RUN_PATH,
    RUN_KILL,
    RUN_DELETE,
    RUN_JUMP,
    RUN_CALM,
    RUN_CHECK,
    RUN_ATTACK
};

typedef struct um_sim_run_state {
    um_sim_world *world;
    const um_sim_params *params;
    um_sim_result *result;
    um_random random;
    um_sim_scenario scenario;
    um_sim_recovery_plan recovery;   /* zero without recovery */
    um_sim_topic topics[TOPICS_MAX]; /* those of a session are adjacent */
    um_sim_publisher publishers[TOPICS_MAX];
    bool is_topic_deleted[TOPICS_MAX];
    bool is_topic_stranded[TOPICS_MAX]; /* its publisher gave up: no receiver is left to open the window */
    uint32_t topic_session[TOPICS_MAX];
    uint32_t topic_number[TOPICS_MAX]; /* index within its session */
    uint32_t topic_count;
    um_sim_wire_session wires[UM_SIM_SCENARIO_SESSIONS_MAX];
    um_sim_client_checker clients;
    um_sim_row_checker checkers[UM_SIM_JOINS_MAX];
    uint32_t join_topic[UM_SIM_JOINS_MAX];
    int32_t joined[UM_SIM_SCENARIO_RECEIVERS_MAX][TOPICS_MAX]; /* join + 1; 0: not joined */
    int32_t ended[UM_SIM_SCENARIO_RECEIVERS_MAX][TOPICS_MAX];  /* join + 1 of the last ended session; 0: none */
    bool is_present[UM_SIM_SCENARIO_RECEIVERS_MAX];
    bool is_gated[UM_SIM_SCENARIO_HOSTS_MAX][UM_SIM_SCENARIO_SESSIONS_MAX]; /* publishing waited for this host */
    um_sim_adversary adversary;
    bool is_attacked;
    bool is_calm;
    bool is_finished;
    uint64_t message_rows;
    uint64_t canary_bites;
} um_sim_run_state;

static bool percent(um_sim_run_state *run, uint32_t p)
{
    return um_draw_percent(&run->random, p);
}

static int64_t between_ns(um_sim_run_state *run, int64_t low, int64_t high)
{
    return um_draw_between_ns(&run->random, low, high);
}

static void on_event(um_sim_world *world, uint32_t what, uint32_t detail);

static void schedule(um_sim_run_state *run, int64_t time_ns, enum owner_event what, uint32_t detail)
{
    if (!um_sim_schedule(&run->world->events, time_ns, on_event, what, detail))
        um_sim_complain(run->world, "more than %d events are due", UM_SIM_EVENTS_MAX);
}

static uint32_t receiver_host(const um_sim_run_state *run, uint32_t receiver)
{
    return run->scenario.session_count + run->scenario.receiver_hosts[receiver];
}

static bool subscribed(const um_sim_run_state *run, uint32_t receiver, uint32_t topic)
{
    return run->scenario.is_subscribed[receiver][run->topic_session[topic]][run->topic_number[topic]];
}

/* ---- joining ---- */

/* Sets the expectations of a checker for a join whose source retains messages. */
static void expect_of_recovery(const um_sim_run_state *run, um_sim_row_checker *checker, uint32_t receiver,
                               uint32_t session)
{
    const um_sim_recovery_config *config = &run->recovery.receivers[receiver];
    bool is_harsh = run->scenario.kind == UM_SIM_HARSH;
    bool is_whole = um_sim_recovery_is_whole(&run->recovery, session, receiver) && !is_harsh;
    checker->is_lied_to =
        !run->recovery.is_faithful[session] &&
        (config->use_late_join || run->world->joins[checker->join]->core.fetch.state != UM_DELIVERY_FETCH_IDLE);
    checker->is_loss_forbidden =
        is_whole ? checker->is_loss_forbidden || config->use_otr : checker->is_loss_forbidden && !config->use_late_join;
    checker->can_leave_out = !is_whole && config->use_otr;
    if (config->use_late_join)
        checker->is_from_start = is_whole && run->recovery.needs_all[receiver] && !run->is_attacked;
}

static void join(um_sim_run_state *run, uint32_t receiver, uint32_t topic, bool from_start)
{
    const um_sim_scenario *scenario = &run->scenario;
    uint32_t session = run->topic_session[topic], host = scenario->receiver_hosts[receiver];
    const um_receiver_session_config *transport = &scenario->transports[host];
    int handle = um_sim_join(run->world, (int)receiver, (int)run->topics[topic].source, transport);
    if (handle == -EAGAIN) /* the old session still delivers its last rows */
        return;
    if (handle < 0) {
        um_sim_complain(run->world, "receiver %u cannot join topic %u: %d", receiver, topic, handle);
        return;
    }
    um_sim_row_checker *checker = &run->checkers[handle];
    int32_t mode = scenario->receivers[receiver].ordered_delivery;
    if (!um_sim_row_checker_init(checker, run->world, &run->topics[topic], (uint32_t)handle, mode))
        um_sim_complain(run->world, "no memory for %s", "a checker");
    checker->is_loss_forbidden =
        scenario->kind == UM_SIM_ROOMY || (scenario->kind == UM_SIM_WINDOWED && run->is_gated[host][session]);
    checker->is_from_start = from_start && scenario->kind == UM_SIM_WINDOWED && !run->is_attacked;
    if (run->recovery.has_retention[session])
        expect_of_recovery(run, checker, receiver, session);
    checker->is_loss_forbidden &=
        !run->is_attacked || !um_sim_adversary_costs_messages(&run->adversary, scenario->kind == UM_SIM_WINDOWED);
    /* A resume point is dropped only after many replays, if nothing else shows the position of the stream. */
    bool is_given_up = run->is_attacked && !run->world->joins[handle]->core.has_resume &&
                       run->world->hosts[receiver_host(run, receiver)]->node->counters.resume_points_dropped > 0;
    if (run->ended[receiver][topic] != 0 && !is_given_up)
        um_sim_row_checker_resume(checker, &run->checkers[run->ended[receiver][topic] - 1]);
    run->join_topic[handle] = topic;
    run->joined[receiver][topic] = handle + 1;
}

static void join_all(um_sim_run_state *run, uint32_t receiver, bool from_start)
{
    const um_sim_host *host = run->world->hosts[receiver_host(run, receiver)];
    for (uint32_t t = 0; t < run->topic_count && !host->is_dead; t++)
        if (subscribed(run, receiver, t) && !run->is_topic_deleted[t] && run->joined[receiver][t] == 0)
            join(run, receiver, t, from_start);
}

/* Renews joins whose session has ended while the source lives, as topic resolution would. */
static void rejoin(um_sim_run_state *run)
{
    for (uint32_t r = 0; r < run->scenario.receiver_count; r++) {
        for (uint32_t t = 0; t < run->topic_count; t++) {
            int32_t handle = run->joined[r][t];
            if (handle == 0 || run->world->joins[handle - 1]->session != NULL)
                continue;
            run->is_gated[run->scenario.receiver_hosts[r]][run->topic_session[t]] = false;
            run->ended[r][t] = handle;
            run->joined[r][t] = 0;
        }
        if (run->is_present[r])
            join_all(run, r, false);
    }
}

static bool has_transport(const um_sim_run_state *run, const um_sim_host *host, uint32_t session)
{
    for (uint32_t i = 0; i < host->node->session_count; i++)
        if (host->node->sessions[i]->config.id.session_id == run->scenario.sessions[session].session_id)
            return true;
    return false;
}

static void leave(um_sim_run_state *run, uint32_t receiver)
{
    run->is_present[receiver] = false;
    for (uint32_t t = 0; t < run->topic_count; t++) {
        if (run->joined[receiver][t] != 0)
            um_sim_leave(run->world, run->joined[receiver][t] - 1);
        run->joined[receiver][t] = 0;
        run->ended[receiver][t] = 0;
    }
    um_sim_host *host = run->world->hosts[receiver_host(run, receiver)];
    um_resume_points_forget(&host->node->resume_points, &run->world->receivers[receiver]->core);
    for (uint32_t s = 0; s < run->scenario.session_count; s++)
        run->is_gated[run->scenario.receiver_hosts[receiver]][s] &= has_transport(run, host, s);
}

/* ---- publishing ---- */

static bool is_known(const um_sim_run_state *run, uint32_t session, const um_sim_host *host)
{
    const um_flow_control *flow = &run->world->sessions[session]->core.flow;
    for (uint32_t i = 0; i < flow->receiver_count; i++)
        if (flow->receivers[i].id == um_sim_receiver_id(host))
            return true;
    return false;
}

/* With flow control min, publishing waits until every receiver counts: then nothing may be lost. */
static bool is_gate_open(const um_sim_run_state *run, uint32_t session)
{
    for (uint32_t h = 0; h < run->scenario.host_count && run->scenario.kind == UM_SIM_WINDOWED; h++)
        if (run->is_gated[h][session] && !is_known(run, session, run->world->hosts[run->scenario.session_count + h]))
            return false;
    return true;
}

static bool has_counting_receiver(const um_sim_run_state *run, uint32_t session)
{
    const um_source_session_config *config = &run->scenario.sessions[session];
    if (config->flow_policy == UM_FLOW_NONE)
        return true;
    for (uint32_t h = 0; h < run->scenario.host_count; h++) {
        const um_sim_host *host = run->world->hosts[run->scenario.session_count + h];
        bool tagged = run->scenario.transports[h].group_tag == config->flow_group_tag;
        if (host->is_dead || (config->flow_policy == UM_FLOW_TAGGED && !tagged))
            continue;
        if (has_transport(run, host, session))
            return true;
    }
    return false;
}

static void on_publish(um_sim_run_state *run, uint32_t topic)
{
    um_sim_publisher *publisher = &run->publishers[topic];
    uint32_t session = run->topic_session[topic];
    int64_t wait_ns = GATE_RETRY_NS;
    if (run->is_topic_deleted[topic])
        return;
    if (run->is_calm && !has_counting_receiver(run, session))
        publisher->is_done = run->is_topic_stranded[topic] = true;
    else if (is_gate_open(run, session) || publisher->topic->message_count > 0 || publisher->has_claim)
        wait_ns = um_sim_publisher_step(publisher);
    if (!publisher->is_done)
        schedule(run, run->world->now_ns + wait_ns, RUN_PUBLISH, topic);
}

/* ---- faults ---- */

/* A receiver that the adversary invents without a cookie must not count. */
static void check_invented(um_sim_run_state *run)
{
    um_sim_world *world = run->world;
    for (uint32_t s = 0; s < world->session_count && !um_sim_adversary_can_invent(&run->adversary); s++) {
        const um_flow_control *flow = &world->sessions[s]->core.flow;
        for (uint32_t i = 0; i < flow->receiver_count; i++)
            if (flow->receivers[i].id > world->host_count)
                um_sim_complain(world, "t=%lld ns: session %u counts the receiver %llu, which does not exist",
                                (long long)world->now_ns, s, (unsigned long long)flow->receivers[i].id);
    }
}

static void on_calm(um_sim_run_state *run)
{
    um_sim_world *world = run->world;
    run->is_calm = world->has_true_peers = true;
    for (uint32_t h = 0; h < world->host_count; h++) {
        um_sim_faults faults = {.delay_ns = world->hosts[h]->faults.delay_ns};
        um_sim_set_faults(world, (int)h, &faults);
        world->hosts[h]->config.link_refuse_ppm = 0;
    }
    for (uint32_t r = 0; r < run->scenario.receiver_count; r++)
        um_sim_set_reading(world, (int)r, 0, run->scenario.receivers[r].read_rows);
    if (run->params->canary == UM_SIM_CANARY_DEAF_RECEIVER)
        world->hosts[receiver_host(run, 0)]->faults.partitioned = true;
}

static void cut(um_sim_run_state *run, uint32_t host, bool partitioned)
{
    if (!run->is_calm)
        run->world->hosts[host]->faults.partitioned = partitioned;
}

static void plan_faults(um_sim_run_state *run)
{
    const um_sim_scenario *scenario = &run->scenario;
    int64_t end_ns = scenario->faults_end_ns;
    uint32_t hosts = scenario->session_count + scenario->host_count;
    for (uint32_t h = 0; h < hosts; h++) {
        if (percent(run, 15)) {
            int64_t from_ns = between_ns(run, 0, end_ns);
            schedule(run, from_ns, RUN_CUT, h);
            schedule(run, between_ns(run, from_ns, end_ns), RUN_HEAL, h);
        }
        if (h < scenario->session_count && percent(run, 15))
            schedule(run, between_ns(run, 0, end_ns), RUN_PATH, h);
        if (scenario->kind == UM_SIM_HARSH && h >= scenario->session_count && percent(run, 8))
            schedule(run, between_ns(run, 0, end_ns), RUN_KILL, h);
    }
    for (uint32_t h = 0; h < hosts; h++)
        if (run->recovery.jumps_at_ns[h] != 0)
            schedule(run, run->recovery.jumps_at_ns[h], RUN_JUMP, h);
    for (uint32_t r = 0; r < scenario->receiver_count; r++)
        if (percent(run, 10))
            schedule(run, between_ns(run, 0, end_ns), RUN_LEAVE, r);
    for (uint32_t t = 0; t < run->topic_count; t++)
        if (scenario->kind == UM_SIM_HARSH && percent(run, 5))
            schedule(run, between_ns(run, 0, end_ns), RUN_DELETE, t);
    schedule(run, end_ns, RUN_CALM, 0);
}

/* ---- idle ---- */

typedef struct idle_text {
    char text[160];
} idle_text;

static bool is_session_idle(const um_sim_run_state *run, uint32_t index, idle_text *why)
{
    const um_source_session *session = &run->world->sessions[index]->core;
    int64_t sent = atomic_load(&session->sender_position), tail = um_log_tail(&session->log);
    if (run->world->sessions[index]->is_deleted || !has_counting_receiver(run, index) ||
        (sent == tail && session->retransmit_count == 0))
        return true;
    snprintf(why->text, sizeof why->text,
             "session %u has sent %lld of %lld, sender limit %lld, %u retransmissions wait", index, (long long)sent,
             (long long)tail, (long long)session->sender_limit, session->retransmit_count);
    return false;
}

/* True if receivers need not get the whole topic: its source was deleted, or flow control stopped the source and its
 * TSNIs. */
static bool is_excused(const um_sim_run_state *run, uint32_t topic)
{
    return run->is_topic_deleted[topic] || run->is_topic_stranded[topic] ||
           !has_counting_receiver(run, run->topic_session[topic]);
}

/* True if a host that joined late misses datagrams that left the window before the source learned of the host. If
 * giving up takes longer than the run, its topics wait for it until the end. */
static bool awaits_departed_data(const um_sim_run_state *run, const um_sim_join_state *join, uint32_t topic)
{
    uint32_t host = join->receiver->host->index - run->scenario.session_count;
    return run->scenario.kind == UM_SIM_WINDOWED && !run->is_gated[host][run->topic_session[topic]] &&
           join->session->counters.unrecovered_txw > 0 && join->session->losses.count == 0;
}

/* True if nothing recovers the gaps of a join any more. Either a late join ended before its source sent something that
 * the transport could not recover, because it was given up or the range was a lie: the gap lasts while NAKs are
 * generated, maybe longer than the run. Or a peer's lie led a session beyond its end, and the next one resumes there.
 */
static bool is_beyond_recovery(const um_sim_run_state *run, uint32_t join, uint32_t topic)
{
    const um_sim_join_state *of = run->world->joins[join];
    uint32_t receiver = of->receiver->index, next_sqn = um_sim_next_published(&run->topics[topic]);
    bool is_lied_to = run->checkers[join].is_lied_to;
    if (is_lied_to && of->core.fetch.kind == UM_DELIVERY_FETCH_RESUMED && um_serial_before(next_sqn, of->core.next_sqn))
        return true;
    return run->recovery.receivers[receiver].use_late_join && (is_lied_to || !run->recovery.is_patient[receiver]) &&
           of->core.gap_count > 0 && of->session->losses.count == 0;
}

static bool is_join_idle(const um_sim_run_state *run, uint32_t join, uint32_t topic_index, idle_text *why)
{
    const um_sim_topic *topic = &run->topics[topic_index];
    um_sim_join_state *of = run->world->joins[join];
    const um_delivery *d = &of->core;
    bool unread = um_queue_is_ready(&of->receiver->queue);
    if (of->session == NULL) {
        snprintf(why->text, sizeof why->text, "join %u has ended", join);
        return false;
    }
    if (is_excused(run, topic_index) || topic->message_count == 0 || awaits_departed_data(run, of, topic_index) ||
        is_beyond_recovery(run, join, topic_index))
        return true;
    uint32_t losses = of->session->losses.count, next_sqn = um_sim_next_published(topic);
    if (d->state == UM_DELIVERY_RUNNING && d->next_sqn == next_sqn && d->held_count == 0 && d->gap_count == 0 &&
        losses == 0 && !unread)
        return true;
    snprintf(why->text, sizeof why->text,
             "join %u (host %u, topic %u) in state %d at sqn %u of %u, holds %u, %u gaps, %u datagrams lost%s", join,
             of->receiver->host->index, topic_index, (int)d->state, d->next_sqn, next_sqn, d->held_count, d->gap_count,
             losses, unread ? ", unread rows" : "");
    return false;
}

static bool are_publishers_idle(const um_sim_run_state *run, idle_text *why)
{
    for (uint32_t t = 0; t < run->topic_count; t++) {
        const um_sim_publisher *publisher = &run->publishers[t];
        if (publisher->is_done || run->is_topic_deleted[t])
            continue;
        snprintf(why->text, sizeof why->text, "source %u has published %u of %u messages and was refused %llu times", t,
                 publisher->topic->message_count, publisher->plan->message_count,
                 (unsigned long long)publisher->refused_count);
        return false;
    }
    return true;
}

/* Returns true if everything is published, sent, delivered and read; otherwise sets `why`. */
static bool is_idle(const um_sim_run_state *run, idle_text *why)
{
    if (!are_publishers_idle(run, why))
        return false;
    for (uint32_t s = 0; s < run->scenario.session_count; s++)
        if (!is_session_idle(run, s, why))
            return false;
    for (uint32_t r = 0; r < run->scenario.receiver_count; r++)
        for (uint32_t t = 0; t < run->topic_count; t++)
            if (run->joined[r][t] != 0 && !run->world->hosts[receiver_host(run, r)]->is_dead &&
                !is_join_idle(run, (uint32_t)run->joined[r][t] - 1, t, why))
                return false;
    return true;
}

static void on_check(um_sim_run_state *run)
{
    um_sim_world *world = run->world;
    idle_text why = {"there are faults"};
    um_sim_check_structures(world);
    if (world->transport == UM_TRANSPORT_LBTRU)
        um_sim_clients_check(world);
    rejoin(run);
    if (run->is_calm && is_idle(run, &why)) {
        run->is_finished = true;
        return;
    }
    if (world->now_ns > run->scenario.faults_end_ns + PATIENCE_NS)
        um_sim_complain(world, "not idle %lld ms after the last fault: %s", (long long)(PATIENCE_NS / MS), why.text);
    schedule(run, world->now_ns + CHECK_EVERY_NS, RUN_CHECK, 0);
}

/* ---- observations of the world ---- */

static void on_event(um_sim_world *world, uint32_t what, uint32_t detail)
{
    um_sim_run_state *run = world->watcher.owner;
    static const uint32_t PATHS[] = {500, 700, 1472, 4000};
    switch ((enum owner_event)what) {
    case RUN_PUBLISH:
        on_publish(run, detail);
        break;
    case RUN_JOIN:
        run->is_present[detail] = true;
        join_all(run, detail, false);
        break;
    case RUN_LEAVE:
        leave(run, detail);
        break;
    case RUN_CUT:
        cut(run, detail, true);
        break;
    case RUN_HEAL:
        cut(run, detail, false);
        break;
    case RUN_PATH:
        um_sim_set_path(run->world, (int)detail, PATHS[um_random_below(&run->random, 4)]);
        break;
    case RUN_KILL:
        um_sim_kill_host(run->world, (int)detail);
        break;
    case RUN_DELETE:
        run->is_topic_deleted[detail] = true;
        um_sim_delete_source(run->world, (int)run->topics[detail].source);
        break;
    case RUN_JUMP:
        um_sim_jump_clock(run->world, (int)detail, run->recovery.jump_ns[detail]);
        break;
    case RUN_CALM:
        on_calm(run);
        break;
    case RUN_CHECK:
        on_check(run);
        break;
    case RUN_ATTACK:
        check_invented(run);
        if (!run->is_calm)
            schedule(run, run->world->now_ns + um_sim_adversary_step(&run->adversary), RUN_ATTACK, 0);
        break;
    }
}

static void on_step(void *owner)
{
    um_sim_run_state *run = owner;
    um_sim_check_bounds(run->world);
    um_sim_check_recovery(run->world);
}

static void on_row(void *owner, const um_sim_receiver *receiver, const um_block *block, uint32_t row)
{
    um_sim_run_state *run = owner;
    (void)receiver;
    um_sim_row_checker *checker = &run->checkers[block->sources[row]];
    bool bites = um_row_kind_of(block->flags[row]) == UM_ROW_MESSAGE && ++run->message_rows % CANARY_ROWS == 0;
    bool is_recovered = block->flags[row] & (UM_MESSAGE_RETRANSMIT | UM_MESSAGE_OTR);
    run->result->messages_recovered += um_row_kind_of(block->flags[row]) == UM_ROW_MESSAGE && is_recovered;
    run->result->messages_delivered += um_row_kind_of(block->flags[row]) == UM_ROW_MESSAGE;
    if (bites && run->params->canary == UM_SIM_CANARY_LOSE_ROW)
        return;
    um_sim_check_row(checker, block, row);
    if (bites && run->params->canary == UM_SIM_CANARY_REPEAT_ROW)
        um_sim_check_row(checker, block, row);
}

static void on_sent(void *owner, const um_sim_host *host, const um_sim_datagram *datagram, const uint8_t *data)
{
    um_sim_run_state *run = owner;
    um_sim_wire_on_sent(run->wires, run->scenario.session_count, host, datagram, data);
    if (run->world->transport == UM_TRANSPORT_LBTRU)
        um_sim_clients_on_sent(&run->clients, host, datagram);
    if (run->is_attacked)
        um_sim_adversary_overhear(&run->adversary, datagram, data);
}

static void on_received(void *owner, const um_sim_host *host, const um_sim_datagram *datagram, uint8_t *data)
{
    um_sim_run_state *run = owner;
    if (run->params->canary == UM_SIM_CANARY_STALE_PAYLOAD && datagram->entry.type == UM_LBTRM_DATA &&
        datagram->length > UM_LBTRM_DATA_BYTES + UM_LBMC_HEADER_BYTES && run->canary_bites++ % 4 == 3)
        data[datagram->length - 1] ^= 0x5a;
    um_sim_wire_on_received(run->wires, run->scenario.session_count, host, datagram, data);
}

static void on_control(void *owner, const um_sim_host *host, const um_sim_datagram *datagram)
{
    um_sim_run_state *run = owner;
    um_sim_clients_on_control(&run->clients, host, datagram);
}

static void on_answers(void *owner, uint8_t *messages, uint32_t length)
{
    um_sim_run_state *run = owner;
    if (run->params->canary != UM_SIM_CANARY_STALE_ANSWER)
        return;
    for (uint32_t at = 0; at < length; at += um_load_be16(messages + at + 2))
        if (messages[at] == UM_LBMC_RECOVERED && run->canary_bites++ % 4 == 3)
            messages[at + um_load_be16(messages + at + 2) - 1] ^= 0x5a;
}

/* ---- set-up and end ---- */

static bool add_session(um_sim_run_state *run, uint32_t session)
{
    um_sim_world *world = run->world;
    const um_sim_scenario *scenario = &run->scenario;
    uint32_t first = run->topic_count;
    if (um_sim_add_session(world, (int)session, &scenario->sessions[session]) < 0)
        return false;
    for (uint32_t t = 0; t < scenario->topic_counts[session]; t++) {
        const um_sim_publisher_plan *plan = &scenario->publishers[session][t];
        uint32_t topic = run->topic_count++;
        int source = um_sim_add_source(world, (int)session, &plan->source);
        uint64_t key = um_random_next(&run->random);
        if (source < 0 || !um_sim_topic_init(&run->topics[topic], world, (uint32_t)source, plan->message_count, key))
            return false;
        if (run->recovery.has_retention[session] &&
            um_sim_retain(world, source, &run->recovery.retentions[session]) != 0)
            return false;
        run->topic_session[topic] = session;
        run->topic_number[topic] = t;
        run->publishers[topic] =
            (um_sim_publisher){.world = world, .random = &run->random, .plan = plan, .topic = &run->topics[topic]};
        schedule(run, plan->start_ns, RUN_PUBLISH, topic);
    }
    return um_sim_wire_init(&run->wires[session], world, world->sessions[session], &run->topics[first],
                            scenario->topic_counts[session]);
}

/* Shortens timeouts: forged gaps must be given up, and losses be reported, before the run becomes idle. */
static bool add_adversary(um_sim_run_state *run)
{
    if (!um_sim_adversary_init(&run->adversary, run->world, (enum um_sim_adversary_mode)run->params->adversary,
                               run->result->seed))
        return false;
    run->is_attacked = true;
    bool costs_messages = um_sim_adversary_costs_messages(&run->adversary, run->scenario.kind == UM_SIM_WINDOWED);
    int64_t most_ns = costs_messages ? between_ns(run, SECOND, 3 * SECOND) : 8 * SECOND;
    for (uint32_t h = 0; h < run->scenario.host_count; h++) {
        int64_t *generation_ns = &run->scenario.transports[h].nak_generation_ns;
        *generation_ns = *generation_ns < most_ns ? *generation_ns : most_ns;
    }
    /* Clients that the adversary invents must time out before the run becomes idle; honest ones stay. */
    for (uint32_t s = 0; s < run->scenario.session_count; s++) {
        int64_t *timeout_ns = &run->scenario.sessions[s].client_timeout_ns;
        *timeout_ns = *timeout_ns < CLIENT_TIMEOUT_NS ? *timeout_ns : CLIENT_TIMEOUT_NS;
    }
    run->adversary.has_key = run->params->canary == UM_SIM_CANARY_KNOWN_KEY;
    schedule(run, 0, RUN_ATTACK, 0);
    return true;
}

static bool build(um_sim_run_state *run)
{
    um_sim_world *world = run->world;
    const um_sim_scenario *scenario = &run->scenario;
    if (run->params->adversary != UM_SIM_ADVERSARY_NONE && !add_adversary(run))
        return false;
    for (uint32_t h = 0; h < scenario->session_count + scenario->host_count; h++) {
        if (um_sim_add_host(world, &scenario->hosts[h]) < 0)
            return false;
        um_sim_set_faults(world, (int)h, &scenario->faults[h]);
        if (h < scenario->session_count)
            um_sim_set_peer_faults(world, (int)h, &run->recovery.peers[h]);
    }
    for (uint32_t s = 0; s < scenario->session_count; s++) {
        if (!add_session(run, s))
            return false;
        run->wires[s].is_attacked = run->is_attacked;
    }
    for (uint32_t r = 0; r < scenario->receiver_count; r++) {
        if (um_sim_add_receiver(world, (int)receiver_host(run, r), &scenario->receivers[r]) < 0)
            return false;
        if (run->params->recovers && um_sim_set_recovery(world, (int)r, &run->recovery.receivers[r]) < 0)
            return false;
        run->is_present[r] = (r == 0 || percent(run, 80)) && !run->recovery.is_late[r];
        for (uint32_t t = 0; t < run->topic_count && run->is_present[r]; t++)
            run->is_gated[scenario->receiver_hosts[r]][run->topic_session[t]] |= subscribed(run, r, t);
    }
    for (uint32_t r = 0; r < scenario->receiver_count; r++) {
        if (run->is_present[r])
            join_all(run, r, true);
        else
            schedule(run, between_ns(run, 0, scenario->faults_end_ns), RUN_JOIN, r);
    }
    plan_faults(run);
    schedule(run, CHECK_EVERY_NS, RUN_CHECK, 0);
    return true;
}

static void check_end(um_sim_run_state *run)
{
    um_sim_world *world = run->world;
    for (uint32_t r = 0; r < run->scenario.receiver_count; r++)
        for (uint32_t t = 0; t < run->topic_count; t++)
            if (run->joined[r][t] != 0 && !is_excused(run, t) && !world->hosts[receiver_host(run, r)]->is_dead &&
                !awaits_departed_data(run, world->joins[run->joined[r][t] - 1], t) &&
                !is_beyond_recovery(run, (uint32_t)run->joined[r][t] - 1, t))
                um_sim_check_complete(&run->checkers[run->joined[r][t] - 1]);
    for (uint32_t s = 0; s < run->scenario.session_count; s++) {
        const um_source_transport_counters *c = &world->sessions[s]->core.counters;
        bool complete = !world->sessions[s]->is_deleted;
        for (uint32_t t = 0; t < run->topic_count; t++)
            complete &= run->topic_session[t] != s || (!run->is_topic_deleted[t] && !run->is_topic_stranded[t]);
        if (complete && has_counting_receiver(run, s))
            um_sim_wire_check_complete(world, &run->wires[s]);
        /* Every NAK is served, deferred or counted. */
        if (c->naks_rcved < c->rxs_sent + c->naks_ignored + c->naks_shed + c->naks_suppressed + c->naks_out_of_window +
                                c->nak_unknown_sqn)
            um_sim_complain(world, "session %u: more NAKs are accounted for than the %llu received", s,
                            (unsigned long long)c->naks_rcved);
    }
}

/* All receivers leave: no host may hold a datagram afterwards. */
static void take_down(um_sim_run_state *run)
{
    um_sim_world *world = run->world;
    for (uint32_t r = 0; r < run->scenario.receiver_count; r++)
        leave(run, r);
    for (uint32_t h = 0; h < world->host_count; h++)
        if (!world->hosts[h]->is_dead)
            um_sim_check_empty(world, world->hosts[h]);
}

static void report(um_sim_run_state *run)
{
    um_sim_result *result = run->result;
    const um_sim_world *world = run->world;
    result->failed = world->complaint[0] != '\0';
    memcpy(result->message, world->complaint, sizeof world->complaint);
    um_sim_describe_scenario(&run->scenario, result->scenario, sizeof result->scenario);
    if (run->params->recovers)
        um_sim_describe_recovery(&run->recovery, &run->scenario, result->scenario, sizeof result->scenario);
    result->fetches = world->fetch_count;
    result->datagrams_forged = run->adversary.datagram_count;
    result->hash = world->hash;
    result->virtual_ns = world->now_ns;
    result->event_count = world->event_count;
    result->datagrams_sent = world->sent_count;
    result->datagrams_dropped = world->dropped_count;
    for (uint32_t t = 0; t < run->topic_count; t++)
        result->messages_sent += run->topics[t].message_count;
    for (uint32_t j = 0; j < world->join_count; j++)
        result->losses_declared += run->checkers[j].loss_count;
    for (uint32_t s = 0; s < world->session_count; s++) {
        result->naks_sent += world->sessions[s]->core.counters.naks_rcved;
        result->retransmissions += world->sessions[s]->core.counters.rxs_sent;
    }
}

um_sim_world *um_sim_run_world(const um_sim_params *params, uint64_t seed, um_sim_result *result)
{
    *result = (um_sim_result){.seed = seed};
    um_sim_world *world = um_sim_create(seed);
    um_sim_run_state *run = world == NULL ? NULL : um_sim_take(world, sizeof *run);
    if (run == NULL) {
        um_sim_destroy(world);
        return NULL;
    }
    run->world = world;
    run->params = params;
    run->result = result;
    run->random.state = seed ^ 0x72756e5f73746174u;
    if (params->trace)
        um_sim_keep_trace(world);
    world->watcher = (um_sim_watcher){run, on_step, on_row, on_sent, on_answers, on_received, on_control};
    um_sim_draw_scenario(&run->scenario, &run->random);
    if (params->transport == UM_TRANSPORT_LBTRU)
        um_sim_scenario_to_lbtru(&run->scenario, seed);
    world->transport = (enum um_transport)params->transport;
    world->is_ipv6 = um_ip_is_v6(run->scenario.sessions[0].group.ip);
    um_random recovery_random = {seed ^ 0x7265636f76657279u};
    if (params->recovers)
        um_sim_draw_recovery(&run->recovery, &run->scenario, &recovery_random);
    if (!build(run))
        um_sim_complain(world, "the world of seed %llu cannot be built", (unsigned long long)seed);
    while (!run->is_finished && world->complaint[0] == '\0')
        um_sim_run_until(world, world->now_ns + CHECK_EVERY_NS);
    if (run->is_finished)
        check_end(run);
    if (run->is_finished)
        take_down(run);
    report(run);
    return world;
}

int um_sim_run(const um_sim_params *params, uint64_t seed, um_sim_result *result)
{
    um_sim_world *world = um_sim_run_world(params, seed, result);
    if (world == NULL)
        return -ENOMEM;
    um_sim_destroy(world);
    return 0;
}

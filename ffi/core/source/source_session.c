/* One file, because opening, sending, timers, control datagrams and counters are steps of one session. */
#include "core/source/source_session.h"

#include "core/source/client_interest.h"
#include "core/source/client_service.h"
#include "core/source/datagram_building.h"
#include "core/source/flow_reports.h"
#include "core/source/oversize.h"
#include "core/source/path_probing.h"
#include "core/source/repair_reports.h"
#include "core/source/retention.h"
#include "core/source/retransmission.h"
#include "core/source/session_messages.h"
#include "core/source/source.h"
#include "core/source/transmission_window.h"
#include "core/wire/repair_evidence.h"

enum {
    SENT_SPAN_BYTES_MIN = 64,       /* log span per datagram for which the window's entries are sized */
    LINK_FULL_RETRY_NS = 100000,    /* delay before a full link is tried again */
    LINK_ERROR_RETRY_NS = 10000000, /* delay before a failed link is tried again */
    SENT_AHEAD = 16,                /* distance, in datagrams, of the window entries to prefetch */
};

static uint32_t sent_capacity(const um_source_session_config *config)
{
    return config->term_length / SENT_SPAN_BYTES_MIN;
}

static void carve(um_source_session *session, um_arena *arena, const um_source_session_config *config)
{
    um_source_session ignored;
    um_source_session *s = session ? session : &ignored;
    s->sent = um_arena_take(arena, sent_capacity(config) * sizeof(um_sent));
    s->staging = um_arena_take(arena, (size_t)UM_SEND_BATCH_MAX * config->datagram_max_bytes);
    s->headers = um_arena_take(arena, (size_t)UM_SEND_BATCH_MAX * UM_FRAMING_DATA_BYTES);
    s->staged.memory = um_arena_take(arena, um_staged_footprint());
    s->parts = um_arena_take(arena, sizeof(um_part) * UM_SEND_BATCH_MAX * UM_DATAGRAM_PARTS_MAX);
    s->retentions = um_arena_take(arena, sizeof *s->retentions * UM_RETENTION_BUCKETS);
}

static uint32_t longest_datagram(enum um_transport transport)
{
    return um_transport_is_stream(transport) ? UM_STREAM_DATAGRAM_BYTES_MAX : UM_DATAGRAM_BYTES_MAX;
}

static um_client_map_config clients_of(const um_source_session_config *config)
{
    return (um_client_map_config){config->client_capacity, config->client_buckets, config->has_filter,
                                  config->client_key};
}

size_t um_source_session_footprint(const um_source_session_config *config)
{
    size_t log_bytes = um_log_footprint(config->term_length);
    if (log_bytes == 0 || config->window_bytes > config->term_length ||
        config->datagram_max_bytes < UM_DATAGRAM_BYTES_MIN ||
        config->datagram_max_bytes > longest_datagram(config->transport) ||
        config->datagram_max_bytes > config->term_length / 8 || config->client_capacity > UM_CLIENTS_MAX)
        return 0;
    um_arena arena = {NULL, 0};
    um_arena_take(&arena, log_bytes);
    carve(NULL, &arena, config);
    um_client_map_config clients = clients_of(config);
    um_arena_take(&arena, um_client_map_footprint(&clients));
    um_arena_take(&arena, um_accounting_topics_footprint());
    return arena.used_bytes;
}

/* With clients, the session sends through a fan-out to each of them. */
static void open_clients(um_source_session *session, um_arena *arena, um_link *link)
{
    um_client_map_config config = clients_of(&session->config);
    um_client_map_init(&session->clients, um_arena_take(arena, um_client_map_footprint(&config)), &config);
    if (config.capacity == 0)
        return;
    um_fan_out_init(&session->fan_out, link, &session->clients);
    session->link = session->staged.link = &session->fan_out.base;
}

void um_source_session_init(um_source_session *session, void *memory, const um_source_session_config *config,
                            um_link *link, um_rate_limits *limits, int64_t now_ns)
{
    memset(session, 0, sizeof *session);
    session->config = *config;
    session->link = session->staged.link = link;
    session->copies = 1;
    session->limits = limits;
    um_arena arena = {memory, 0};
    void *log_memory = um_arena_take(&arena, um_log_footprint(config->term_length));
    um_log_init(&session->log, log_memory, config->term_length, config->initial_term_id, config->unblock_timeout_ns);
    if (config->publication_window_bytes != 0 && config->publication_window_bytes < session->log.window_bytes)
        session->log.window_bytes = config->publication_window_bytes;
    carve(session, &arena, config);
    open_clients(session, &arena, link);
    um_accounting_init(&session->accounting, um_arena_take(&arena, um_accounting_topics_footprint()));
    session->sent_mask = sent_capacity(config) - 1;
    session->next_sqn = session->trail_sqn = config->initial_sqn;
    um_source_timing_init(&session->timing, config->adaptive_timers, config->ignore_interval_ns,
                          config->sm_minimum_interval_ns, config->sm_floor_ns, now_ns);
    session->sm_interval_ns = um_source_timing_first_sm_ns(&session->timing);
    session->last_sent_ns = now_ns;
    atomic_init(&session->batch_started_ns, now_ns); /* from 0, the first message would be overdue (tick_batch) */
    session->last_sm_ns = INT64_MIN / 2;
    session->answer_due_ns = UM_NEVER_NS;
    session->flow_expiry_ns = session->report_waits_ns = session->tsni_waits_ns = session->tsni_due_ns =
        session->tsni_interval_ns = session->passed_due_ns = UM_NEVER_NS;
    atomic_init(&session->body_max_bytes, config->datagram_max_bytes - um_source_session_overhead_bytes(session));
    um_path_mtu_init(&session->path, config->datagram_max_bytes, config->path_floor_bytes,
                     um_datagram_header_bytes(config->group),
                     (uint64_t)config->initial_term_id << 32 | config->session_id);
    um_flow_init(&session->flow, config->flow_policy, config->flow_group_tag, config->flow_group_minimum_size,
                 config->flow_receiver_timeout_ns);
    session->flow.stall_timeout_ns = config->flow_stall_timeout_ns;
    session->nonmembers_noisy_ns = session->nonmembers_lose_ns = INT64_MIN;
    session->repair_budget = (um_repair_budget){config->repair_budget_bps, {0, INT64_MIN}};
    session->flow.publishes_without_receivers = config->flow_publishes_without_receivers;
    session->has_no_limit = um_flow_is_open(&session->flow);
    session->sender_limit = config->flow_policy == UM_FLOW_NONE ? INT64_MAX : 0;
    atomic_init(&session->log.is_connected, um_flow_is_connected(&session->flow));
    um_log_conduct(&session->log, 0, 0);
    um_source_transport_counters_reset(&session->counters);
}

void um_source_session_close(um_source_session *session)
{
    atomic_store(&session->log.is_closed, true);
}

void um_source_session_set_datagram_max(um_source_session *session, uint32_t datagram_max_bytes)
{
    if (um_transport_is_stream(session->config.transport))
        return;
    uint32_t bytes = um_datagram_size_on_path(datagram_max_bytes, session->config.datagram_max_bytes);
    um_path_mtu_set_ceiling(&session->path, bytes);
    um_path_probing_apply(session);
}

/* Builds up to `budget` datagrams from the sender's position; they take effect only once the link accepts them. */
static uint32_t build_batch(um_source_session *session, int64_t limit, uint32_t budget, int64_t now_ns, um_tx *batch)
{
    int64_t start = atomic_load_explicit(&session->sender_position, memory_order_relaxed), position = start;
    uint32_t body_max = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed);
    uint32_t overhead = um_source_session_overhead_bytes(session);
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (count < budget) {
        const um_staged_datagram *staged = um_datagram_next_staged(session, position, limit);
        uint32_t span = staged ? (uint32_t)um_align_up(staged->bytes, UM_FRAME_ALIGNMENT) : 0;
        uint32_t length = staged ? staged->bytes - UM_FRAME_HEADER_BYTES
                                 : um_datagram_next_run(session, position, limit, body_max, &span);
        uint64_t wire_bytes = bytes + length + (uint64_t)(count + 1) * overhead;
        if (length == 0 || (count > 0 && wire_bytes > UM_SEND_BATCH_BYTES_MAX))
            break;
        um_sent next_sent = {position, INT64_MIN, span, (uint16_t)length, 0, 0};
        uint32_t copies = um_clients_select(session, &next_sent, count);
        if (!um_rate_limits_take(session->limits, copies * (overhead + length), false, now_ns)) {
            atomic_store_explicit(&session->limits->is_blocked, true, memory_order_relaxed);
            atomic_store_explicit(&session->is_sender_blocked, true, memory_order_relaxed);
            break;
        }
        uint32_t sqn = session->next_sqn + count;
        __builtin_prefetch(um_source_session_sent(session, sqn + SENT_AHEAD), 1, 3);
        __builtin_prefetch(um_source_session_sent(session, session->trail_sqn + SENT_AHEAD), 0, 3);
        um_log_fetch_uncleaned(&session->log, position - start, span);
        bytes += length;
        um_window_make_space(session, position + span, count, bytes);
        um_sent *sent = um_source_session_sent(session, sqn);
        *sent = next_sent;
        if (staged)
            um_datagram_build_staged(session, staged, sqn, false, count, &batch[count]);
        else
            um_datagram_build(session, sent, sqn, false, count, &batch[count]);
        position += span;
        count++;
        if (length > body_max)
            break;
    }
    return count;
}

/* Adds the datagrams [0, count) of the batch, which the link has accepted, to the transmission window. */
static void accept_batch(um_source_session *session, uint32_t count, int64_t now_ns)
{
    if (count == 0)
        return;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += um_source_session_sent(session, session->next_sqn + i)->length;
    const um_sent *last = um_source_session_sent(session, session->next_sqn + count - 1);
    session->next_sqn += count;
    session->window_used_bytes += bytes;
    atomic_store_explicit(&session->sender_position, last->position + last->span, memory_order_seq_cst);
    /* The limit goes no further, so that the first receiver's window counts from its first status message on. */
    if (session->has_no_limit && last->position + last->span > session->sender_limit)
        session->sender_limit = last->position + last->span;
    um_staged_drop_sent(&session->staged, last->position + last->span);
    if (UM_UNLIKELY(session->retention_count > 0))
        um_retention_on_sent(session, now_ns);
    while (session->window_used_bytes > session->config.window_bytes && session->trail_sqn + 1 != session->next_sqn)
        um_window_drop_oldest(session); /* a batch larger than the window */
    UM_COUNT(session->counters.msgs_sent, count);
    UM_COUNT(session->counters.bytes_sent, bytes + (uint64_t)count * um_source_session_overhead_bytes(session));
    session->has_sent = true;
    session->is_at_limit = false;
    session->last_sent_ns = now_ns;
    session->sm_interval_ns = um_source_timing_first_sm_ns(&session->timing);
    if (session->tsni_interval_ns < session->tsni_due_ns - now_ns)
        session->tsni_due_ns = now_ns + session->tsni_interval_ns;
}

/* Number of datagrams at the head of the batch that are no larger than the path can carry. */
static uint32_t fitting(const um_source_session *session, const um_tx *batch, uint32_t count)
{
    uint32_t most = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed) + UM_FRAMING_DATA_BYTES;
    uint32_t fit = 0;
    while (fit < count && batch[fit].length <= most)
        fit++;
    return fit;
}

/* Offers the fitting head of the batch, or the oversize datagram that leads it. */
static int offer(um_source_session *session, const um_tx *batch, uint32_t fit)
{
    return fit == 0 ? um_oversize_send(session, batch)
                    : session->link->ops->send(session->link, session->config.group, batch, fit);
}

/* Moves the sender past padding, which is never sent. */
static void skip_padding(um_source_session *session)
{
    int64_t start = atomic_load_explicit(&session->sender_position, memory_order_relaxed), position = start;
    int64_t tail = um_log_tail(&session->log);
    while (position < tail) {
        int32_t length = um_log_frame_length(&session->log, position);
        if (length <= 0 || !um_log_frame_is_pad(&session->log, position))
            break;
        position += (int64_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    if (position != start)
        atomic_store_explicit(&session->sender_position, position, memory_order_seq_cst);
}

static int64_t limit_now(const um_source_session *session)
{
    return session->has_no_limit ? INT64_MAX : session->sender_limit;
}

static void note_limit(um_source_session *session, int64_t flushed)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    bool is_limited =
        position < flushed && limit_now(session) < flushed && um_log_frame_length(&session->log, position) > 0;
    if (is_limited && !session->is_at_limit) {
        UM_COUNT(session->counters.snd_bpe, 1);
        um_clients_report_passed(session); /* without filter reports the clients' positions may not advance */
    }
    session->is_at_limit = is_limited;
    if (is_limited)
        atomic_store_explicit(&session->is_sender_blocked, true, memory_order_relaxed);
}

/* No datagram could be built: notes if the next frame is uncommitted. The fence pairs with the one in a publisher
 * between its commit and its read of is_sender_waiting: either the publisher clears the flag, or the sender sees the
 * frame. */
static void note_waiting(um_source_session *session, int64_t flushed)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    if (position >= flushed || um_log_frame_length(&session->log, position) > 0)
        return;
    atomic_store_explicit(&session->is_sender_waiting, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (um_log_frame_length(&session->log, position) > 0)
        atomic_store_explicit(&session->is_sender_waiting, false, memory_order_relaxed);
}

/* Offers one batch to the link. Returns how many datagrams it accepted, and notes what holds the sender back. */
static int send_batch(um_source_session *session, int64_t now_ns, uint32_t budget)
{
    if (UM_UNLIKELY(session->clients.behind_count > 0) && !um_clients_catch_up(session)) {
        session->link_retry_ns = LINK_FULL_RETRY_NS;
        atomic_store_explicit(&session->is_sender_blocked, true, memory_order_relaxed);
        return 0;
    }
    skip_padding(session);
    atomic_store_explicit(&session->is_sender_blocked, false, memory_order_relaxed);
    atomic_store_explicit(&session->is_sender_waiting, false, memory_order_relaxed);
    int64_t flushed = atomic_load_explicit(&session->flush_limit, memory_order_seq_cst);
    int64_t granted = limit_now(session), limit = flushed < granted ? flushed : granted;
    um_tx batch[UM_SEND_BATCH_MAX];
    uint32_t count = build_batch(session, limit, budget, now_ns, batch);
    uint32_t fit = fitting(session, batch, count);
    uint32_t offered = fit > 0 || count == 0 ? fit : 1;
    int result = count == 0 ? 0 : offer(session, batch, fit);
    uint32_t taken = result < 0 ? 0 : (uint32_t)result;
    for (uint32_t i = taken; i < count; i++)
        um_rate_limits_return(session->limits,
                              um_clients_copies(session, i) * (batch[i].length + session->config.data_trailer_bytes),
                              false);
    accept_batch(session, taken, now_ns);
    if (UM_UNLIKELY(session->clients.count > 0) && taken > 0)
        um_clients_note_behind(session, now_ns);
    bool is_urgent = result >= 0 && !session->link->can_report_space;
    session->link_retry_ns = taken == offered ? 0 : is_urgent ? LINK_FULL_RETRY_NS : LINK_ERROR_RETRY_NS;
    if (result < 0)
        session->link_error = result;
    if (taken < offered)
        atomic_store_explicit(&session->is_sender_blocked, true, memory_order_relaxed);
    if (result == 0)
        note_limit(session, flushed);
    if (count == 0)
        note_waiting(session, flushed);
    return result;
}

int um_source_session_send(um_source_session *session, int64_t now_ns, uint32_t budget)
{
    int sent = 0, taken;
    do {
        uint32_t left = budget - (uint32_t)sent;
        taken = send_batch(session, now_ns, left < UM_SEND_BATCH_MAX ? left : UM_SEND_BATCH_MAX);
        sent += taken > 0 ? taken : 0;
        um_window_conduct(session);
        if (session->is_window_capped)
            um_flow_reports_solicit(session, now_ns);
    } while (taken > 0 && budget - (uint32_t)sent >= UM_SEND_BATCH_MAX); /* a smaller budget would split a batch */
    if (sent > 0)
        um_repair_reports_send(session, now_ns);
    return taken < 0 ? taken : sent;
}

/* Flushes once the oldest deferred message has waited for the interval (UM-19b). */
static int64_t tick_batch(um_source_session *session, int64_t now_ns)
{
    bool is_held = um_log_tail(&session->log) > atomic_load_explicit(&session->flush_limit, memory_order_relaxed);
    int64_t due_ns =
        atomic_load_explicit(&session->batch_started_ns, memory_order_relaxed) + session->config.batch_interval_ns;
    if (!is_held) {
        /* A message has its place in the log a moment before its batch has a start. Until then the start of a former
         * batch would make it overdue, so that is forgotten. */
        if (now_ns >= due_ns)
            atomic_store_explicit(&session->batch_started_ns, now_ns, memory_order_relaxed);
        return UM_NEVER_NS;
    }
    if (now_ns < due_ns)
        return due_ns;
    um_source_flush_all(session);
    UM_COUNT(session->counters.flushes_interval, 1);
    return UM_NEVER_NS;
}

static int64_t tick_unblock(um_source_session *session, int64_t now_ns)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    if (um_log_unblock(&session->log, position, now_ns)) {
        session->counters.unblocked_publications = session->log.unblocked_count;
        return now_ns;
    }
    return um_log_unblock_due_ns(&session->log);
}

int64_t um_source_session_tick(um_source_session *session, int64_t now_ns)
{
    int64_t next_ns = um_earliest_ns(um_flow_reports_tick(session, now_ns), um_clients_tick(session, now_ns));
    um_rate_limits_tick(session->limits, now_ns);
    next_ns = um_earliest_ns(next_ns, tick_batch(session, now_ns));
    next_ns = um_earliest_ns(next_ns, um_source_tick_tsni(session, now_ns)); /* after a batch's flush */
    next_ns = um_earliest_ns(next_ns, um_source_tick_group_report(session, now_ns));
    int pumped = um_retransmission_pump(session, now_ns);
    um_source_session_send(session, now_ns, 4 * UM_SEND_BATCH_MAX);
    next_ns = um_earliest_ns(next_ns, um_clients_tick_passed(session, now_ns));
    next_ns = um_earliest_ns(next_ns, um_flow_reports_tick_stalls(session, now_ns));
    next_ns = um_earliest_ns(next_ns, um_source_session_message_tick(session, now_ns));
    next_ns = um_earliest_ns(next_ns, um_path_probing_tick(session, now_ns));
    next_ns = um_earliest_ns(next_ns, tick_unblock(session, now_ns));
    bool is_limited =
        atomic_load_explicit(&session->limits->is_blocked, memory_order_relaxed) || session->retransmit_count > 0;
    if (is_limited)
        next_ns = um_earliest_ns(next_ns, um_rate_limits_next_ns(session->limits, now_ns));
    if (pumped <= 0 && session->link_retry_ns == 0)
        session->link_retry_ns = pumped < 0 ? LINK_ERROR_RETRY_NS : LINK_FULL_RETRY_NS;
    if (session->link_retry_ns != 0)
        next_ns = um_earliest_ns(next_ns, now_ns + session->link_retry_ns);
    return um_source_session_has_pending(session) ? now_ns : next_ns;
}

UM_DROP_COUNTERS_CHECK(um_source_transport_counters);
UM_TAG_COUNTERS_CHECK(um_source_transport_counters);

void um_source_session_drop_unverified(um_source_session *session, enum um_tag_status status)
{
    um_count_unverified(&session->counters.dgrams_dropped_tag_missing, status);
}

/* Handles packets of a session with clients. Returns true if the packet needs no further handling: it was a connection
 * message, or not from a client. */
static bool is_handled_by_clients(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns)
{
    if (packet->type == UM_LBTRU_CREQ)
        um_clients_on_creq(session, from, packet, now_ns);
    else if (packet->type == UM_LBTRU_ACK)
        um_clients_on_ack(session, from, packet, now_ns);
    else
        return !um_clients_admit(session, from, packet, now_ns);
    return true;
}

static bool is_own(const um_source_session *session, const um_packet *packet)
{
    const um_source_session_config *config = &session->config;
    bool is_port = config->transport == UM_TRANSPORT_LBTRU || packet->nak_port == config->nak_port;
    return packet->session_id == config->session_id && is_port;
}

void um_source_session_on_control(um_source_session *session, um_address from, const uint8_t *data, uint32_t length,
                                  int64_t now_ns)
{
    um_packet packet;
    um_repair_evidence evidence;
    enum um_dgram_status status = um_framing_decode(session->config.transport, data, length, &packet);
    if (status != UM_DGRAM_OK)
        um_count_dropped(&session->counters.dgrams_dropped_size, &session->counters.dgrams_dropped_other, status);
    else if (packet.type == UM_LBTRU_RST) /* ignored: a client that is removed would only connect again */
        UM_COUNT(session->counters.dgrams_dropped_type, 1);
    else if (!is_own(session, &packet))
        UM_COUNT(session->counters.dgrams_dropped_sid, 1);
    else if (session->clients.capacity > 0 && is_handled_by_clients(session, from, &packet, now_ns))
        ;
    else if (packet.type == UM_LBTRM_NAK)
        um_retransmission_on_nak(session, from, &packet, now_ns);
    else if (packet.type == UM_LBTRM_DATA && um_clients_on_interest(session, from, &packet))
        ;
    else if (um_repair_evidence_decode(&packet, &evidence))
        um_retransmission_on_evidence(session, from, &evidence, now_ns);
    else if (packet.type == UM_LBTRM_DATA)
        um_flow_reports_on_status(session, from, &packet, now_ns);
    else
        UM_COUNT(session->counters.dgrams_dropped_type, 1);
}

bool um_source_session_set_nak_cutoff(um_source_session *session, um_address receiver, bool is_cut_off, int64_t now_ns)
{
    um_receiver_account *account = um_accounting_of(&session->accounting, receiver, now_ns);
    if (account == NULL)
        return false;
    if (is_cut_off && !account->is_cut_off)
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_CUT_OFF, receiver, account->refused);
    account->is_cut_off = is_cut_off;
    account->over_ns = INT64_MIN;
    return true;
}

/* A client that reports no topics is taken to receive every one once its first report would have arrived. */
static bool has_topic(const um_source_session *session, const um_client *client, uint32_t topic_index, int64_t now_ns)
{
    const um_receiver_account *account = um_accounting_find(&session->accounting, client->address);
    bool is_silent = account == NULL || !account->has_topics;
    return is_silent ? now_ns - client->connected_ns >= UM_TOPICS_REPORTED_NS : um_account_wants(account, topic_index);
}

uint32_t um_source_session_receivers(const um_source_session *session, uint32_t topic_index, int64_t now_ns)
{
    const um_flow_control *flow = &session->flow;
    uint32_t count = 0;
    for (uint32_t i = 0; flow->policy != UM_FLOW_NONE && i < flow->receiver_count; i++)
        count += !flow->receivers[i].is_stalled &&
                 um_account_wants(um_accounting_find(&session->accounting, flow->receivers[i].address), topic_index);
    for (uint32_t i = 0; flow->policy == UM_FLOW_NONE && i < session->clients.count; i++)
        count += has_topic(session, &session->clients.clients[i], topic_index, now_ns);
    return count;
}

void um_source_session_on_client_report(um_source_session *session, um_address client, const um_topic_report *report,
                                        int64_t now_ns)
{
    if (report == NULL && um_accounting_find(&session->accounting, client) == NULL)
        return;
    um_receiver_account *account = um_accounting_of(&session->accounting, client, now_ns);
    if (account == NULL)
        return;
    um_accounting_on_topics(&session->accounting, account, report);
    account->is_member = report != NULL;
    account->last_seen_ns = report != NULL ? UM_NEVER_NS : now_ns;
}

void um_source_session_note_too_long(um_source_session *session, uint32_t topic_index, uint32_t length, int64_t now_ns)
{
    for (uint32_t i = 0; i < session->accounting.count; i++) {
        um_receiver_account *account = &session->accounting.accounts[i];
        uint32_t most_bytes = um_account_message_max(account, topic_index, now_ns);
        if (length > most_bytes && um_source_event_is_due(&account->too_long_ns, now_ns))
            um_source_events_add(&session->events, UM_SOURCE_MESSAGE_TOO_LONG, account->address, most_bytes);
    }
}

void um_source_session_snapshot(um_source_session *session)
{
    um_source_transport_counters *counters = &session->counters;
    counters->txw_msgs = session->next_sqn - session->trail_sqn;
    counters->txw_bytes = session->window_used_bytes;
    counters->rctlr_rx_msgs = session->retransmit_count;
    counters->pub_pos = (uint64_t)um_log_tail(&session->log);
    counters->pub_lmt = (uint64_t)atomic_load(&session->log.publication_limit);
    counters->snd_pos = (uint64_t)atomic_load(&session->sender_position);
    counters->snd_lmt = (uint64_t)session->sender_limit;
    counters->copies_filtered = session->fan_out.filtered_count;
    counters->num_clients = session->clients.count + session->stream_client_count;
    counters->receivers_known = um_flow_counted(&session->flow);
    counters->group_receivers = um_census_receivers(&session->timing.census);
    counters->group_round_trip = (uint64_t)um_census_longest_ns(&session->timing.census);
    counters->ignore_interval = (uint64_t)um_source_timing_ignore_ns(&session->timing, NULL);
    counters->sm_first_interval = (uint64_t)um_source_timing_first_sm_ns(&session->timing);
    counters->timers_adaptive = session->timing.adaptive;
    counters->path_datagram_bytes = session->path.bytes;
    counters->term_rotations = atomic_load(&session->log.active_term_count);
}

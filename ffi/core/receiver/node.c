#include "core/receiver/node.h"

#include "core/receiver/nak_cutoff.h"
#include "core/receiver/receiver_session.h"
#include "core/receiver/status_reports.h"
#include "core/wire/framing.h"

enum {
    TABLE_MASK = 2 * UM_NODE_SESSIONS_MAX - 1,
    HOLDING_CHECK_NS = 200000,     /* interval of reviews while a queue holds sessions back and nothing arrives */
    CUT_LOOSE_CHECK_NS = 10000000, /* interval of reviews while queues are cut loose */
};

void um_node_init(um_node *node)
{
    memset(node, 0, sizeof *node);
    um_context_counters_reset(&node->counters);
}

static uint32_t bucket_of(const um_session_id *id)
{
    uint64_t key = ((uint64_t)id->session_id << 32 ^ um_address_key(id->source)) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32) & TABLE_MASK;
}

static uint32_t table_find(const um_node *node, const um_session_id *id)
{
    uint32_t at = bucket_of(id);
    while (node->table[at] != NULL && !um_session_id_equal(&node->table[at]->config.id, id))
        at = (at + 1) & TABLE_MASK;
    return at;
}

um_receiver_session *um_node_find_session(um_node *node, const um_session_id *id)
{
    return node->table[table_find(node, id)];
}

bool um_node_add_session(um_node *node, um_receiver_session *session)
{
    if (node->session_count == UM_NODE_SESSIONS_MAX) {
        UM_COUNT(node->counters.sessions_refused, 1);
        return false;
    }
    node->table[table_find(node, &session->config.id)] = session;
    node->due_ns[node->session_count] = INT64_MIN;
    node->sessions[node->session_count++] = session;
    session->contacts = &node->contacts;
    if (node->is_cut_off)
        um_nak_cutoff_set(session, session->nak_cutoff | UM_NAK_CUTOFF_CONTEXT);
    node->counters.sessions = node->session_count;
    return true;
}

um_receiver_session *um_node_evictable(const um_node *node, um_ip source_ip, bool is_needed)
{
    um_receiver_session *oldest = NULL;
    um_receiver_session *oldest_of_source = NULL;
    uint32_t of_source = 0;
    for (uint32_t i = 0; i < node->session_count; i++) {
        um_receiver_session *session = node->sessions[i];
        if (session->is_active || session->has_ended)
            continue;
        if (oldest == NULL || session->created_ns < oldest->created_ns)
            oldest = session;
        if (!um_ip_equal(session->config.id.source.ip, source_ip))
            continue;
        of_source++;
        if (oldest_of_source == NULL || session->created_ns < oldest_of_source->created_ns)
            oldest_of_source = session;
    }
    if (of_source >= UM_NODE_IDLE_PER_SOURCE_MAX)
        return oldest_of_source;
    return is_needed ? oldest : NULL;
}

void um_node_remove_session(um_node *node, um_receiver_session *session)
{
    um_session_losses losses = um_status_reports_losses(session);
    node->ended_given_up += losses.given_up + (uint64_t)losses.unconfirmed;
    uint32_t hole = table_find(node, &session->config.id);
    for (uint32_t at = (hole + 1) & TABLE_MASK; node->table[at] != NULL; at = (at + 1) & TABLE_MASK) {
        const um_session_id *id = &node->table[at]->config.id;
        uint32_t home = bucket_of(id);
        if (((at - home) & TABLE_MASK) >= ((at - hole) & TABLE_MASK)) {
            node->table[hole] = node->table[at];
            hole = at;
        }
    }
    node->table[hole] = NULL;
    node->last_session = NULL;
    for (uint32_t i = 0; i < node->session_count; i++) {
        if (node->sessions[i] != session)
            continue;
        node->sessions[i] = node->sessions[--node->session_count];
        node->due_ns[i] = node->due_ns[node->session_count];
        break;
    }
    node->counters.sessions = node->session_count;
}

void um_node_snapshot(um_node *node)
{
    node->counters.datagrams_given_up = node->ended_given_up;
    for (uint32_t i = 0; i < node->session_count; i++) {
        um_session_losses losses = um_status_reports_losses(node->sessions[i]);
        node->counters.datagrams_given_up += losses.given_up + (uint64_t)losses.unconfirmed;
    }
}

static void apply_nak_cutoff(const um_node *node, um_receiver_session *session, bool is_cut_off)
{
    uint32_t reasons = session->nak_cutoff & (is_cut_off ? UINT32_MAX : ~(uint32_t)UM_NAK_CUTOFF_SESSION);
    reasons &= ~(uint32_t)UM_NAK_CUTOFF_CONTEXT;
    um_nak_cutoff_set(session, reasons | (node->is_cut_off ? UM_NAK_CUTOFF_CONTEXT : 0));
    um_nak_cutoff_on_receivers(session);
}

void um_node_set_nak_cutoff(um_node *node, um_receiver *receiver, bool is_cut_off)
{
    *(receiver == NULL ? &node->is_cut_off : &receiver->is_cut_off) = is_cut_off;
    for (uint32_t i = 0; receiver == NULL && i < node->session_count; i++)
        apply_nak_cutoff(node, node->sessions[i], is_cut_off);
    for (const um_delivery *d = receiver != NULL ? receiver->controllers : NULL; d != NULL; d = d->next_of_receiver)
        apply_nak_cutoff(node, d->session, is_cut_off);
}

bool um_node_add_queue(um_node *node, um_message_queue *queue)
{
    if (node->queue_count == UM_NODE_QUEUES_MAX)
        return false;
    queue->needs_review = &node->needs_review;
    node->queues[node->queue_count++] = queue;
    return true;
}

void um_node_remove_queue(um_node *node, um_message_queue *queue)
{
    for (uint32_t i = 0; i < node->queue_count; i++) {
        if (node->queues[i] == queue) {
            node->queues[i] = node->queues[--node->queue_count];
            return;
        }
    }
}

/* Datagrams to a multicast group are LBT-RM, others LBT-RU. */
static enum um_transport transport_of(const um_rx *rx)
{
    return UM_LIKELY(um_ip_is_multicast(rx->to.ip)) ? UM_TRANSPORT_LBTRM : UM_TRANSPORT_LBTRU;
}

static um_session_id identity_of(const um_rx *rx, const um_packet *packet)
{
    if (UM_LIKELY(transport_of(rx) == UM_TRANSPORT_LBTRM))
        return (um_session_id){{rx->from.ip, packet->nak_port}, rx->to, packet->session_id, UM_TRANSPORT_LBTRM, 0};
    return (um_session_id){rx->from, {{0}, 0}, packet->session_id, UM_TRANSPORT_LBTRU, 0};
}

/* Returns the session of a packet, or NULL. */
static um_receiver_session *session_of(um_node *node, const um_rx *rx, const um_packet *packet)
{
    um_session_id id = identity_of(rx, packet);
    if (UM_UNLIKELY(node->last_session == NULL || !um_session_id_equal(&node->last_session->config.id, &id)))
        node->last_session = um_node_find_session(node, &id);
    return node->last_session;
}

/* True if the packet was sent to this session's address. Packets to an earlier session, which had its own port, are
 * ignored, because they would pass datagrams over (UX-27). */
static bool is_for(const um_receiver_session *session, const um_rx *rx)
{
    return session->config.id.transport != UM_TRANSPORT_LBTRU || um_address_equal(session->local, rx->to);
}

/* Returns the LBT-RU session that receives at this address from that source, with any session id, or NULL. */
static um_receiver_session *session_between(const um_node *node, const um_rx *rx)
{
    for (uint32_t i = 0; i < node->session_count; i++) {
        um_receiver_session *session = node->sessions[i];
        if (session->config.id.transport == UM_TRANSPORT_LBTRU && um_address_equal(session->local, rx->to) &&
            um_address_equal(session->config.id.source, rx->from))
            return session;
    }
    return NULL;
}

/* Handles packets without a session of their own. LBT-RU resets carry no session id; other ids are dropped (UX-11). */
static um_receiver_session *on_unmatched(um_node *node, const um_rx *rx, const um_packet *packet, bool is_decoded)
{
    um_receiver_session *session = NULL;
    if (transport_of(rx) == UM_TRANSPORT_LBTRM) {
        UM_COUNT(node->counters.lbtrm_unknown_msgs_rcved, 1);
        return NULL;
    }
    session = session_between(node, rx);
    if (session == NULL)
        UM_COUNT(node->counters.lbtru_unknown_msgs_rcved, 1);
    else if (is_decoded && packet->type == UM_LBTRU_RST)
        return session;
    else
        UM_COUNT(session->counters.dgrams_dropped_sid, 1);
    return NULL;
}

static void on_datagram(um_node *node, const um_rx *rx, const uint8_t *data, uint32_t length, int64_t now_ns)
{
    um_packet packet;
    enum um_transport transport = transport_of(rx);
    enum um_dgram_status status = um_framing_decode(transport, data, length, &packet);
    bool identified = status == UM_DGRAM_OK || (status != UM_DGRAM_VERSION && length >= UM_LBTRM_HEADER_BYTES);
    um_receiver_session *session = identified ? session_of(node, rx, &packet) : NULL;
    if (UM_UNLIKELY(session == NULL || !is_for(session, rx))) {
        session = on_unmatched(node, rx, &packet, status == UM_DGRAM_OK);
        if (session == NULL)
            return;
    }
    if (session->verifier != NULL) {
        enum um_tag_status tag = session->verifier->verify(session->verifier, rx->from, data, &length, rx->received_ns);
        if (UM_UNLIKELY(tag != UM_TAG_OK)) {
            um_receiver_session_drop_unverified(session, tag, now_ns);
            return;
        }
        status = um_framing_decode(transport, data, length, &packet); /* without the trailer */
    }
    if (UM_LIKELY(status == UM_DGRAM_OK))
        um_receiver_session_on_packet(session, &packet, rx, data, length, now_ns);
    else
        um_receiver_session_drop(session, status);
}

void um_node_on_data(um_node *node, const um_rx *rx, int64_t now_ns)
{
    uint32_t segment = rx->segment_length == 0 ? rx->length : rx->segment_length;
    uint32_t at = 0;
    node->now_ns = now_ns;
    do {
        uint32_t length = rx->length - at < segment ? rx->length - at : segment;
        on_datagram(node, rx, rx->data + at, length, now_ns);
        at += length;
    } while (at < rx->length);
}

void um_node_after_batch(um_node *node, int64_t now_ns)
{
    for (uint32_t i = 0; i < node->session_count; i++) {
        um_status_reports_after_batch(node->sessions[i], now_ns);
        /* New losses, gaps or starved controllers may have an earlier timer. */
        node->due_ns[i] = INT64_MIN;
    }
}

uint64_t um_node_window_bytes(const um_node *node)
{
    uint64_t window = UINT64_MAX;
    for (uint32_t i = 0; i < node->session_count; i++)
        if (node->sessions[i]->config.window_bytes < window)
            window = node->sessions[i]->config.window_bytes;
    return window;
}

/* A session is held while all of its queues hold. In a stream one is enough, because its flow control, too, is one for
 * all topics of the connection. */
static bool is_session_held(const um_receiver_session *session)
{
    uint32_t holding_count = 0;
    for (uint32_t i = 0; i < session->queue_count; i++)
        holding_count += session->queues[i].queue->state == UM_QUEUE_HOLDING;
    bool is_stream = um_transport_is_stream(session->config.id.transport);
    return holding_count > 0 && (is_stream || holding_count == session->queue_count);
}

static void review_sessions(um_node *node)
{
    uint32_t held_count = 0, fed_count = 0;
    bool has_changed = false;
    for (uint32_t i = 0; i < node->session_count; i++) {
        um_receiver_session *session = node->sessions[i];
        bool is_held = is_session_held(session);
        has_changed |= is_held != session->is_held;
        session->is_held = is_held;
        held_count += is_held;
        fed_count += session->queue_count > 0;
    }
    node->hold_changes += has_changed;
    node->is_held = held_count > 0 && held_count == fed_count;
}

bool um_node_review_queues(um_node *node, int64_t now_ns)
{
    if (UM_LIKELY(!node->needs_review && now_ns < node->review_due_ns))
        return node->is_held;
    bool has_changed = node->needs_review;
    node->needs_review = false;
    uint32_t counts[UM_QUEUE_CUT_LOOSE + 1] = {0};
    for (uint32_t i = 0; i < node->queue_count; i++) {
        has_changed |= um_queue_review(node->queues[i], now_ns);
        counts[node->queues[i]->state]++;
    }
    node->holding_count = counts[UM_QUEUE_HOLDING];
    node->review_due_ns = counts[UM_QUEUE_CUT_LOOSE] > 0 ? now_ns + CUT_LOOSE_CHECK_NS : UM_NEVER_NS;
    if (counts[UM_QUEUE_CLOSED] + counts[UM_QUEUE_HOLDING] > 0)
        node->review_due_ns = now_ns + (counts[UM_QUEUE_HOLDING] > 0 ? 0 : HOLDING_CHECK_NS);
    review_sessions(node);
    if (has_changed)
        um_node_wake(node, now_ns); /* controllers continue, or drop their messages */
    return node->is_held;
}

int64_t um_node_review_by_ns(const um_node *node, int64_t now_ns)
{
    if (node->is_tick_due)
        return now_ns;
    return node->holding_count > 0 ? now_ns + HOLDING_CHECK_NS : node->review_due_ns;
}

int64_t um_node_tick(um_node *node, int64_t now_ns)
{
    int64_t next_ns = UM_NEVER_NS;
    node->now_ns = now_ns;
    node->is_tick_due = false;
    for (uint32_t i = 0; i < node->session_count; i++) {
        if (node->due_ns[i] <= now_ns) {
            node->sessions[i]->is_behind = node->is_behind;
            node->due_ns[i] = um_receiver_session_tick(node->sessions[i], now_ns);
        }
        next_ns = um_earliest_ns(node->due_ns[i], next_ns);
    }
    node->counters.hold_store_datagrams = node->store.cells_used;
    return next_ns;
}

um_receiver_session *um_node_finished_session(um_node *node)
{
    for (uint32_t i = 0; i < node->session_count; i++) {
        um_receiver_session *session = node->sessions[i];
        if (!session->has_ended)
            continue;
        const um_delivery *d = session->controllers;
        while (d != NULL && d->state == UM_DELIVERY_ENDED)
            d = d->next;
        if (d == NULL)
            return session;
    }
    return NULL;
}

void um_node_wake(um_node *node, int64_t now_ns)
{
    node->is_tick_due = true;
    for (uint32_t i = 0; i < node->session_count; i++) {
        node->due_ns[i] = INT64_MIN;
        node->sessions[i]->due_ns[UM_TIMER_CONTROLLERS] = now_ns;
    }
}

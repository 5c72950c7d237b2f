#include "sim/invariants.h"

#define REQUIRE(world, condition, format, ...)                                                                         \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            um_sim_complain((world), "t=%lld ns: " format, (long long)(world)->now_ns, __VA_ARGS__);                   \
    } while (0)

/* True if there is a whole message at `position` or behind the padding there. */
static bool has_message_at(const um_publication_log *log, int64_t position)
{
    int64_t tail = um_log_tail(log);
    while (position < tail) {
        int32_t length = um_log_frame_length(log, position);
        if (length <= 0 || !um_log_frame_is_pad(log, position))
            return length > 0;
        position += (int64_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    return false;
}

/* UM-19b: no message is held back for longer than the batching interval. */
static void check_interval(um_sim_world *world, um_sim_session *session, uint32_t index)
{
    int64_t flushed = atomic_load_explicit(&session->core.flush_limit, memory_order_relaxed);
    int64_t longest_ns = session->core.config.batch_interval_ns;
    bool has_held = has_message_at(&session->core.log, flushed);
    if (!has_held || !session->has_held || flushed != session->held_from)
        session->held_since_ns = world->now_ns;
    session->has_held = has_held;
    session->held_from = flushed;
    int64_t held_ns = world->now_ns - session->held_since_ns;
    REQUIRE(world, held_ns <= longest_ns + longest_ns / 1000 || session->is_deleted,
            "session %u: messages from %lld on are held for %lld ns, the batching interval is %lld", index,
            (long long)flushed, (long long)held_ns, (long long)longest_ns);
}

static void check_session_bounds(um_sim_world *world, const um_sim_session *of, uint32_t index)
{
    const um_source_session *session = &of->core;
    const um_source_session_config *config = &session->config;
    int64_t sent = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    int64_t tail = um_log_tail(&session->log);
    int64_t clean_end = atomic_load_explicit(&session->log.writable_end, memory_order_relaxed);
    REQUIRE(world, session->window_used_bytes <= config->window_bytes || session->next_sqn - session->trail_sqn <= 1,
            "session %u: %llu bytes in a window of %u", index, (unsigned long long)session->window_used_bytes,
            config->window_bytes);
    REQUIRE(world, session->next_sqn - session->trail_sqn <= session->sent_mask + 1,
            "session %u: %u datagrams in a window of %u", index, session->next_sqn - session->trail_sqn,
            session->sent_mask + 1);
    REQUIRE(world, session->retransmit_count <= UM_RETRANSMIT_QUEUE_MAX, "session %u: retransmit queue of %u", index,
            session->retransmit_count);
    REQUIRE(world, sent <= tail, "session %u: sent %lld of %lld", index, (long long)sent, (long long)tail);
    /* Padding is never sent, so it may reach beyond the limit: at a term's end, or in place of an aborted claim. */
    bool padded = sent % config->term_length == 0 || session->log.unblocked_count > 0 || of->has_aborted_claim;
    REQUIRE(world, sent <= session->sender_limit || config->flow_policy == UM_FLOW_NONE || padded,
            "session %u: sent %lld beyond the sender limit %lld", index, (long long)sent,
            (long long)session->sender_limit);
    /* AE-24; a claim may straddle the limit, and TSNIs are claims too. */
    REQUIRE(world, tail <= sent + config->term_length / 2 + um_log_claim_max(&session->log),
            "session %u: published %lld, sent only %lld", index, (long long)tail, (long long)sent);
    REQUIRE(world, clean_end == session->log.clean_position + (int64_t)UM_LOG_TERM_COUNT * config->term_length,
            "session %u: the writable end %lld is beyond the clean part of the log", index, (long long)clean_end);
    REQUIRE(world, tail <= clean_end, "session %u: published %lld in the part that is not clean from %lld on", index,
            (long long)tail, (long long)clean_end);
    if (session->trail_sqn != session->next_sqn) {
        int64_t oldest = session->sent[session->trail_sqn & session->sent_mask].position;
        REQUIRE(world, oldest >= session->log.clean_position, "session %u: the window's oldest %lld is cleaned", index,
                (long long)oldest);
    }
}

static void check_clients(um_sim_world *world, um_client_map *clients, uint32_t index)
{
    uint32_t behind = 0;
    REQUIRE(world, clients->count <= clients->capacity, "session %u: %u clients of %u", index, clients->count,
            clients->capacity);
    for (uint32_t i = 0; i < clients->count; i++) {
        um_client *client = &clients->clients[i];
        behind += client->behind > 0;
        REQUIRE(world, um_client_map_find(clients, client->address) == client, "session %u: client %u is not found",
                index, i);
    }
    REQUIRE(world, behind == clients->behind_count, "session %u: %u clients are behind, %u are counted", index, behind,
            clients->behind_count);
}

/* UM-100, UM-101: a gap that is declared lost although nothing else arrives has a timer, unless it waits for the
 * reader. */
static void check_gap_timer(um_sim_world *world, const um_sim_host *host, int64_t due_ns, const um_delivery *delivery)
{
    enum { CHECK_NS = 10000000 }; /* while the gap is being fetched */
    int64_t now_ns = um_sim_local_ns(host), interval_ns = delivery->receiver->config.loss_check_interval_ns;
    bool is_timed = delivery->is_nak_free || interval_ns != 0;
    if (delivery->state != UM_DELIVERY_RUNNING || delivery->gap_count == 0 || !is_timed || delivery->is_starved ||
        delivery->announcements_due != 0)
        return;
    int64_t given_up_ns = delivery->gaps[delivery->gap_first].detected_ns + delivery->give_up_ns;
    int64_t latest_ns = given_up_ns > now_ns + CHECK_NS ? given_up_ns : now_ns + CHECK_NS;
    if (!delivery->is_nak_free)
        latest_ns = now_ns + interval_ns;
    REQUIRE(world, due_ns <= latest_ns, "host %u: delivery %u has a gap and no timer until %lld", host->index,
            delivery->id, (long long)latest_ns);
}

static void check_host_bounds(um_sim_world *world, const um_sim_host *host)
{
    const um_reorder_buffer *store = &host->node->store;
    uint32_t cell_count = store->small.count + store->large.count;
    REQUIRE(world, store->cells_used <= cell_count && store->entries_used <= store->entry_capacity,
            "host %u: reorder buffer with %u of %u cells, %u of %u entries", host->index, store->cells_used, cell_count,
            store->entries_used, store->entry_capacity);
    for (uint32_t i = 0; i < host->node->session_count; i++) {
        const um_receiver_session *session = host->node->sessions[i];
        REQUIRE(world, session->losses.count <= session->losses.capacity, "host %u: loss map of %u", host->index,
                session->losses.count);
        for (const um_delivery *d = session->controllers; d != NULL && !host->is_dead; d = d->next)
            check_gap_timer(world, host, host->node->due_ns[i], d);
    }
}

void um_sim_check_bounds(um_sim_world *world)
{
    for (uint32_t i = 0; i < world->session_count; i++) {
        check_session_bounds(world, world->sessions[i], i);
        check_interval(world, world->sessions[i], i);
    }
    for (uint32_t i = 0; i < world->host_count; i++)
        check_host_bounds(world, world->hosts[i]);
}

/* Bounds the effect of forged session messages: claims within the reach, NAKs within the budget. */
static void check_claims(um_sim_world *world, const um_sim_host *host, const um_receiver_session *session)
{
    enum { CLAIMS_MAX = 256 + 1, NS_PER_MS = 1000000 };
    uint32_t claimed = 0;
    for (uint32_t i = 0; i < session->losses.count; i++)
        claimed += !um_serial_before(session->losses.entries[i].sqn, session->next_sqn);
    REQUIRE(world, claimed <= CLAIMS_MAX, "host %u: %u numbers are claimed", host->index, claimed);
    uint64_t rate = session->config.nak_rate_limit;
    uint64_t ms = (uint64_t)(um_sim_local_ns(host) - session->created_ns) / NS_PER_MS + 1;
    REQUIRE(world, rate == 0 || session->counters.naks_sent <= rate / 4 + rate * ms / 1000 + 1,
            "host %u: %llu NAKs in %llu ms", host->index, (unsigned long long)session->counters.naks_sent,
            (unsigned long long)ms);
}

static void check_losses(um_sim_world *world, const um_sim_host *host, um_receiver_session *session)
{
    um_loss_map *losses = &session->losses;
    for (uint32_t i = 0; i < losses->count; i++) {
        const um_loss *loss = &losses->entries[i];
        bool is_claimed = session->claims.has_any && um_serial_before(loss->sqn, session->claims.end);
        REQUIRE(world, is_claimed || um_serial_before(loss->sqn, session->next_sqn),
                "host %u: sqn %u is lost but %u is next", host->index, loss->sqn, session->next_sqn);
        REQUIRE(world, um_loss_map_find(losses, loss->sqn) == loss, "host %u: loss map does not find sqn %u",
                host->index, loss->sqn);
        REQUIRE(world, losses->heap[loss->heap_at] == i, "host %u: loss heap misplaces sqn %u", host->index, loss->sqn);
        REQUIRE(world,
                loss->heap_at == 0 ||
                    losses->entries[losses->heap[(loss->heap_at - 1) / 2]].deadline_ns <= loss->deadline_ns,
                "host %u: loss heap out of order at sqn %u", host->index, loss->sqn);
    }
}

static void check_gaps(um_sim_world *world, const um_delivery *delivery)
{
    uint32_t from = delivery->next_sqn;
    for (uint32_t i = 0; i < delivery->gap_count; i++) {
        const um_gap *gap = &delivery->gaps[(delivery->gap_first + i) % UM_DELIVERY_GAPS_MAX];
        if (delivery->is_starved && um_serial_before(gap->last, from))
            continue; /* filled; removed when the queue has space again */
        REQUIRE(world, !um_serial_before(gap->last, gap->first) && !um_serial_before(gap->last, from),
                "delivery %u: gap %u..%u after %u", delivery->id, gap->first, gap->last, from);
        REQUIRE(world, !um_serial_before(delivery->highest_sqn, gap->last), "delivery %u: gap to %u, highest is %u",
                delivery->id, gap->last, delivery->highest_sqn);
        from = gap->last + 1;
    }
}

static void check_store(um_sim_world *world, const um_sim_host *host)
{
    um_reorder_buffer *store = &host->node->store;
    uint32_t held = 0, entries = 0, references = 0, referenced = 0;
    for (uint32_t i = 0; i < host->node->session_count; i++)
        for (const um_delivery *d = host->node->sessions[i]->controllers; d != NULL; d = d->next)
            held += d->held_count;
    for (uint32_t i = 0; i < store->entries_begun; i++) {
        const um_reorder_entry *hold = &store->entries[i];
        if (hold->owner == 0)
            continue;
        entries++;
        references += hold->state == UM_REORDER_PAYLOAD;
        REQUIRE(world, um_reorder_find(store, hold->owner, hold->sqn) == hold,
                "host %u: reorder buffer does not find sqn %u of %u", host->index, hold->sqn, hold->owner);
    }
    for (uint32_t i = 0; i < store->small.count + store->large.count; i++)
        referenced += store->cell_references[i];
    REQUIRE(world, entries == store->entries_used && held == entries,
            "host %u: %u entries held by controllers, %u used, %u found", host->index, held, store->entries_used,
            entries);
    REQUIRE(world, references == referenced, "host %u: %u payloads held in cells that count %u", host->index,
            references, referenced);
}

void um_sim_check_structures(um_sim_world *world)
{
    for (uint32_t s = 0; s < world->session_count; s++)
        check_clients(world, &world->sessions[s]->core.clients, s);
    for (uint32_t h = 0; h < world->host_count; h++) {
        const um_sim_host *host = world->hosts[h];
        for (uint32_t i = 0; i < host->node->session_count; i++) {
            check_losses(world, host, host->node->sessions[i]);
            check_claims(world, host, host->node->sessions[i]);
            for (const um_delivery *d = host->node->sessions[i]->controllers; d != NULL; d = d->next)
                if (d->state == UM_DELIVERY_RUNNING)
                    check_gaps(world, d);
        }
        check_store(world, host);
    }
}

void um_sim_check_empty(um_sim_world *world, const um_sim_host *host)
{
    const um_reorder_buffer *store = &host->node->store;
    REQUIRE(world, store->cells_used == 0 && store->entries_used == 0,
            "host %u: %u cells and %u entries of the reorder buffer are still in use", host->index, store->cells_used,
            store->entries_used);
    REQUIRE(world, host->node->session_count == 0, "host %u: %u receiving sessions are left over", host->index,
            host->node->session_count);
}

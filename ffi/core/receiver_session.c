#include "core/receiver_session.h"

enum {
    MEAN_WEIGHT = 8,            /* moving averages give the newest sample an eighth */
    JUMP_CONFIRMED_WITHIN = 16, /* datagrams behind a long jump that confirm it */
    STRAYS_MAX = 64,            /* impossible numbers in a row that end a session */
    BACKOFF_NS_MIN = 100000,    /* between two NAKs for the same datagram, whatever is configured */
    NAK_GAP_MAX_NS = 1000000,   /* between two NAK datagrams, at most */
    UNREAD_CHECK_NS = 1000000,  /* how soon to see again whether the owner has caught up */
};

static void lay_out(um_receiver_session *session, um_arena *arena, const um_receiver_session_config *config)
{
    um_receiver_session ignored;
    um_receiver_session *s = session ? session : &ignored;
    s->topics = um_arena_take(arena, 2 * (size_t)config->topic_capacity * sizeof *s->topics);
    s->queues = um_arena_take(arena, (size_t)config->topic_capacity * sizeof *s->queues);
}

size_t um_receiver_session_footprint(const um_receiver_session_config *config)
{
    size_t loss_bytes = um_loss_map_footprint(config->loss_capacity);
    if (loss_bytes == 0 || !um_is_power_of_two(config->topic_capacity))
        return 0;
    um_arena arena = {NULL, 0};
    um_arena_take(&arena, loss_bytes);
    lay_out(NULL, &arena, config);
    return arena.used_bytes;
}

void um_receiver_session_init(um_receiver_session *session, void *memory, const um_receiver_session_config *config,
                              um_link *link, um_reorder_buffer *store, int64_t now_ns)
{
    memset(session, 0, sizeof *session);
    um_arena arena = {memory, 0};
    session->config = *config;
    session->link = link;
    session->store = store;
    session->random.state = config->random_seed;
    um_loss_map_init(&session->losses, um_arena_take(&arena, um_loss_map_footprint(config->loss_capacity)),
                     config->loss_capacity);
    lay_out(session, &arena, config);
    session->topic_mask = 2 * config->topic_capacity - 1;
    session->last_topic = &session->topics[0];
    session->created_ns = session->last_activity_ns = now_ns;
    session->status_due_ns = now_ns;
    session->tick_controllers_ns = UM_NEVER_NS;
    um_receiver_transport_counters_reset(&session->counters);
}

/* ---- topics ---- */

static um_topic_slot *topic_slot(um_receiver_session *session, uint32_t topic_index)
{
    uint32_t at = (topic_index * 2654435761u) & session->topic_mask;
    while (session->topics[at].first != NULL && session->topics[at].topic_index != topic_index)
        at = (at + 1) & session->topic_mask;
    return &session->topics[at];
}

static um_session_queue *find_queue(um_receiver_session *session, const um_message_queue *queue)
{
    um_session_queue *found = session->queues;
    while (found != session->queues + session->queue_count && found->queue != queue)
        found++;
    return found;
}

static bool join_queue(um_receiver_session *session, um_message_queue *queue)
{
    um_session_queue *joined = find_queue(session, queue);
    if (joined == session->queues + session->queue_count) {
        if (session->queue_count == session->config.topic_capacity)
            return false;
        *joined = (um_session_queue){queue, 0};
        session->queue_count++;
    }
    joined->controller_count++;
    return true;
}

static void leave_queue(um_receiver_session *session, const um_message_queue *queue)
{
    um_session_queue *left = find_queue(session, queue);
    if (--left->controller_count == 0)
        *left = session->queues[--session->queue_count];
}

bool um_receiver_session_is_mapped(um_receiver_session *session, const um_receiver *receiver, uint32_t topic_index)
{
    const um_delivery *d = topic_slot(session, topic_index)->first;
    while (d != NULL && d->receiver != receiver)
        d = d->next_of_topic;
    return d != NULL;
}

bool um_receiver_session_map(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_topic_slot *slot = topic_slot(session, delivery->topic_index);
    if (slot->first == NULL && session->topic_count == session->config.topic_capacity)
        return false;
    if (!join_queue(session, delivery->receiver->queue))
        return false;
    session->topic_count += slot->first == NULL;
    slot->topic_index = delivery->topic_index;
    delivery->next_of_topic = slot->first;
    slot->first = delivery;
    delivery->next = session->controllers;
    session->controllers = delivery;
    session->controller_count++;
    delivery->mapped_sqn = session->next_sqn;
    session->tick_controllers_ns = now_ns;
    session->status_due_ns = now_ns;
    if (session->active)
        um_delivery_begin(delivery);
    return true;
}

static void unlink_controller(um_delivery **link, um_delivery *delivery, bool of_topic)
{
    while (*link != delivery)
        link = of_topic ? &(*link)->next_of_topic : &(*link)->next;
    *link = of_topic ? delivery->next_of_topic : delivery->next;
}

/* Empties a slot of the open-addressing table: later entries of its run shift back. */
static void remove_topic(um_receiver_session *session, um_topic_slot *slot)
{
    uint32_t hole = (uint32_t)(slot - session->topics);
    for (uint32_t at = (hole + 1) & session->topic_mask; session->topics[at].first != NULL;
         at = (at + 1) & session->topic_mask) {
        uint32_t home = (session->topics[at].topic_index * 2654435761u) & session->topic_mask;
        if (((at - home) & session->topic_mask) >= ((at - hole) & session->topic_mask)) {
            session->topics[hole] = session->topics[at];
            hole = at;
        }
    }
    session->topics[hole].first = NULL;
    session->topic_count--;
}

void um_receiver_session_unmap(um_receiver_session *session, um_delivery *delivery)
{
    um_topic_slot *slot = topic_slot(session, delivery->topic_index);
    unlink_controller(&slot->first, delivery, true);
    unlink_controller(&session->controllers, delivery, false);
    session->controller_count--;
    session->starting_count -= delivery->state == UM_DELIVERY_STARTING;
    if (slot->first == NULL)
        remove_topic(session, slot);
    session->last_topic = &session->topics[0];
    leave_queue(session, delivery->receiver->queue);
    um_delivery_fini(delivery);
}

/* ---- loss ---- */

/* Controllers mapped at the same time ask the same question: it is answered once for all of them. */
static const um_blocker_search *search_blocker(um_receiver_session *session, uint32_t from, uint32_t before)
{
    um_blocker_search *search = &session->search;
    if (search->from == from && search->before == before && search->change_count == session->losses.change_count)
        return search;
    *search = (um_blocker_search){.from = from, .before = before, .change_count = session->losses.change_count};
    for (uint32_t i = 0; i < session->losses.count; i++) {
        uint32_t sqn = session->losses.entries[i].sqn;
        if (um_serial_before(sqn, from))
            continue;
        if (!um_serial_before(sqn, before)) {
            search->found_later = true;
        } else if (!search->found || um_serial_before(search->sqn, sqn)) {
            search->found = true;
            search->sqn = sqn;
        }
    }
    return search;
}

/* Is a datagram missing that may carry something of the topic from before `before`? The newest such is remembered:
 * while it is missing the answer is found at once, and when it has come its elders mostly have, too. So is that there
 * is none at all since the controller was mapped, until the next gap. */
static bool earlier_lost(um_receiver_session *session, um_delivery *delivery, uint32_t before)
{
    if (session->losses.count == 0 || delivery->gaps_examined == session->gaps_found)
        return false;
    if (delivery->has_blocker && um_serial_before(delivery->blocker_sqn, before) &&
        um_loss_map_find(&session->losses, delivery->blocker_sqn) != NULL)
        return true;
    const um_blocker_search *search = search_blocker(session, delivery->mapped_sqn, before);
    delivery->has_blocker = search->found;
    delivery->blocker_sqn = search->sqn;
    if (!search->found && !search->found_later)
        delivery->gaps_examined = session->gaps_found;
    return search->found;
}

/* Controllers that wait for datagrams from before their first one start when none of those is missing any more. */
static void start_controllers(um_receiver_session *session, int64_t now_ns)
{
    for (um_delivery *d = session->controllers; d != NULL && session->starting_count > 0; d = d->next) {
        if (d->state == UM_DELIVERY_STARTING && !earlier_lost(session, d, d->start_sqn)) {
            session->starting_count--;
            um_delivery_start(d, now_ns);
        }
    }
}

/* The sqn that held the position back is missing no more: the source, which may stand still for it, is told now. */
static void note_gap_closed(um_receiver_session *session, uint32_t sqn)
{
    if (sqn == session->status_sqn)
        session->status_due_ns = INT64_MIN;
}

static void give_up(um_receiver_session *session, um_loss *loss, uint64_t *reason_counter)
{
    UM_COUNT(*reason_counter, 1);
    note_gap_closed(session, loss->sqn);
    um_loss_map_remove(&session->losses, loss);
}

/* Sqns [first, last] are missing (UM-116, UM-117): one back-off for the whole gap. What the source cannot send
 * again is not asked for (UM-128), nor what the map has no room for. */
static void note_missing(um_receiver_session *session, uint32_t first, uint32_t last, int64_t now_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    UM_COUNT(counters->lost, last - first + 1);
    UM_COUNT(session->gaps_found, 1);
    if (um_serial_before(first, session->trail_sqn)) {
        uint32_t end = um_serial_before(last, session->trail_sqn) ? last + 1 : session->trail_sqn;
        UM_COUNT(counters->unrecovered_txw, end - first);
        first = end;
    }
    uint32_t room = session->losses.capacity - session->losses.count;
    if (last - first + 1 > room) { /* the newest are the likeliest to be had */
        uint32_t excess = last - first + 1 - room;
        UM_COUNT(counters->loss_map_overflows, excess);
        UM_COUNT(counters->unrecovered_txw, excess);
        first += excess;
    }
    int64_t backoff_ns = um_random_backoff_ns(&session->random, session->config.nak_initial_backoff_ns);
    for (; first != last + 1; first++)
        um_loss_map_add(&session->losses, first, now_ns, now_ns + backoff_ns);
}

static uint64_t moving_mean(uint64_t mean, uint64_t sample, uint64_t count)
{
    return count == 0 ? sample : mean + (uint64_t)(((int64_t)sample - (int64_t)mean) / MEAN_WEIGHT);
}

static uint32_t recovery_bucket(uint64_t waited_ns)
{
    enum { OCTAVE_FIRST = 16, OCTAVES = UM_RECOVERY_BUCKETS / 4 };
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(waited_ns | 1);
    if (octave < OCTAVE_FIRST)
        return 0;
    if (octave >= OCTAVE_FIRST + OCTAVES)
        return UM_RECOVERY_BUCKETS - 1;
    return 4 * (octave - OCTAVE_FIRST) + (uint32_t)(waited_ns >> (octave - 2) & 3);
}

static void note_recovered(um_receiver_session *session, const um_loss *loss, bool retransmission, int64_t now_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    uint64_t waited = (uint64_t)(now_ns - loss->detected_ns);
    if (!retransmission)
        UM_COUNT(counters->out_of_order, 1);
    counters->nak_stm_min = waited < counters->nak_stm_min ? waited : counters->nak_stm_min;
    counters->nak_stm_max = waited > counters->nak_stm_max ? waited : counters->nak_stm_max;
    counters->nak_stm_mean = moving_mean(counters->nak_stm_mean, waited, session->recovered_count);
    uint64_t naks = loss->naks_sent;
    counters->nak_tx_min = naks < counters->nak_tx_min ? naks : counters->nak_tx_min;
    counters->nak_tx_max = naks > counters->nak_tx_max ? naks : counters->nak_tx_max;
    counters->nak_tx_mean = moving_mean(counters->nak_tx_mean, 1000 * naks, session->recovered_count);
    UM_COUNT(session->recovered_count, 1);
    UM_COUNT(session->recovery_buckets[recovery_bucket(waited)], 1);
}

/* ---- datagrams ---- */

static void on_tsni(um_receiver_session *session, const um_lbmc_message *message, um_arrival *arrival)
{
    UM_COUNT(session->counters.tsnis_rcved, message->tsni_count);
    for (uint32_t i = 0; i < message->tsni_count; i++) {
        const uint8_t *record = message->tsni + UM_LBMC_TSNI_RECORD_BYTES * i;
        for (um_delivery *d = topic_slot(session, um_load_be32(record))->first; d != NULL; d = d->next_of_topic) {
            arrival->earlier_lost =
                d->state == UM_DELIVERY_WAITING && earlier_lost(session, d, arrival->transport_sqn);
            bool was_starting = d->state == UM_DELIVERY_STARTING;
            um_delivery_on_tsni(d, um_load_be32(record + 4), arrival);
            session->starting_count += (uint32_t)(d->state == UM_DELIVERY_STARTING) - was_starting;
        }
    }
}

static void on_topic_message(um_receiver_session *session, um_topic_slot *slot, const um_lbmc_message *message,
                             um_arrival *arrival)
{
    for (um_delivery *d = slot->first; d != NULL; d = d->next_of_topic) {
        bool was_starting = d->state == UM_DELIVERY_STARTING;
        if (UM_UNLIKELY(d->state == UM_DELIVERY_WAITING))
            arrival->earlier_lost = earlier_lost(session, d, arrival->transport_sqn);
        um_delivery_on_message(d, message, arrival);
        session->starting_count += (uint32_t)(d->state == UM_DELIVERY_STARTING) - was_starting;
        if (UM_UNLIKELY(d->gap_count > 0))
            session->tick_controllers_ns = arrival->now_ns;
    }
}

static void count_dropped(um_receiver_transport_counters *counters, enum um_dgram_status status)
{
    switch (status) {
    case UM_DGRAM_SIZE:
        UM_COUNT(counters->dgrams_dropped_size, 1);
        break;
    case UM_DGRAM_TYPE:
        UM_COUNT(counters->dgrams_dropped_type, 1);
        break;
    case UM_DGRAM_VERSION:
        UM_COUNT(counters->dgrams_dropped_version, 1);
        break;
    case UM_DGRAM_HDR:
        UM_COUNT(counters->dgrams_dropped_hdr, 1);
        break;
    default:
        UM_COUNT(counters->dgrams_dropped_other, 1);
    }
}

void um_receiver_session_drop(um_receiver_session *session, enum um_dgram_status status)
{
    count_dropped(&session->counters, status);
}

/* Hands the messages of an accepted datagram to their controllers, in the order they lie (UM-7, UM-8). */
static void demultiplex(um_receiver_session *session, const uint8_t *body, uint32_t length, um_arrival *arrival)
{
    um_lbmc_message message;
    for (uint32_t at = 0, message_length; at < length; at += message_length) {
        enum um_dgram_status status = um_lbmc_decode(body + at, length - at, &message, &message_length);
        if (UM_UNLIKELY(status != UM_DGRAM_OK)) {
            count_dropped(&session->counters, status);
            return;
        }
        if (UM_UNLIKELY(message.type == UM_LBMC_CONTROL)) {
            on_tsni(session, &message, arrival);
            continue;
        }
        UM_COUNT(session->counters.lbm_msgs_rcved, 1);
        if (session->last_topic->topic_index != message.topic_index || session->last_topic->first == NULL)
            session->last_topic = topic_slot(session, message.topic_index);
        if (session->last_topic->first == NULL)
            UM_COUNT(session->counters.lbm_msgs_no_topic_rcved, 1);
        else
            on_topic_message(session, session->last_topic, &message, arrival);
    }
}

/* The first datagram of any kind begins the session for every controller on it (UM-76). */
static void note_activity(um_receiver_session *session, int64_t now_ns)
{
    session->last_activity_ns = now_ns;
    if (UM_LIKELY(session->active))
        return;
    session->active = true;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next)
        um_delivery_begin(d);
}

static void set_base(um_receiver_session *session, uint32_t sqn, int64_t now_ns)
{
    session->has_base = true;
    session->next_sqn = sqn;
    session->status_due_ns = now_ns;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next)
        d->mapped_sqn = sqn;
}

/* A jump longer than the loss map could not be repaired anyway. It is believed when a second datagram confirms it, so
 * that one that is forged or mangled cannot carry the session off. `least`: how far behind it the second lies. */
static bool jump_is_confirmed(um_receiver_session *session, uint32_t sqn, uint32_t least)
{
    uint32_t beyond = sqn - session->jump_sqn;
    bool confirmed = session->jump_seen && beyond >= least && beyond <= JUMP_CONFIRMED_WITHIN;
    session->jump_seen = !confirmed;
    session->jump_sqn = sqn;
    if (!confirmed)
        UM_COUNT(session->counters.dgrams_dropped_other, 1);
    return confirmed;
}

static bool is_long_jump(const um_receiver_session *session, uint32_t sqn)
{
    return um_serial_diff(sqn, session->next_sqn) > (int32_t)session->losses.capacity;
}

static void end_session(um_receiver_session *session, int64_t now_ns)
{
    session->ended = true;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next)
        um_delivery_end(d, now_ns); /* UM-105 */
}

/* From before anything the source can still send. One such is an old duplicate; so many in a row are a source that has
 * begun anew under the same identity, or a first datagram that was forged: the session ends and can be joined again. */
static void note_stray(um_receiver_session *session, int64_t now_ns)
{
    if (++session->stray_count == STRAYS_MAX)
        end_session(session, now_ns);
}

static void on_duplicate(um_receiver_session *session, const um_lbtrm_packet *packet, int64_t now_ns)
{
    UM_COUNT(session->counters.duplicate_data, 1);
    if (um_serial_before(packet->sqn, session->trail_sqn) && !(packet->flags & UM_LBTRM_FLAG_RETRANSMISSION))
        note_stray(session, now_ns);
}

static void on_data(um_receiver_session *session, const um_lbtrm_packet *packet, const uint8_t *data, uint32_t length,
                    um_arrival *arrival)
{
    um_receiver_transport_counters *counters = &session->counters;
    bool retransmission = packet->flags & UM_LBTRM_FLAG_RETRANSMISSION;
    UM_COUNT(counters->rxs_rcved, retransmission);
    if (UM_UNLIKELY(!session->has_base)) {
        /* A repair for somebody else says nothing about where the stream is. */
        if (retransmission)
            return;
        set_base(session, packet->sqn, arrival->now_ns);
    }
    int32_t ahead = um_serial_diff(packet->sqn, session->next_sqn);
    bool recovered = ahead < 0;
    if (UM_UNLIKELY(is_long_jump(session, packet->sqn)) && !jump_is_confirmed(session, packet->sqn, 1))
        return;
    if (um_serial_before(session->trail_sqn, packet->trail) || session->counters.msgs_rcved == 0)
        session->trail_sqn = packet->trail;
    if (UM_UNLIKELY(recovered)) {
        um_loss *loss = um_loss_map_find(&session->losses, packet->sqn);
        if (loss == NULL) {
            on_duplicate(session, packet, arrival->now_ns);
            return;
        }
        note_recovered(session, loss, retransmission, arrival->now_ns);
        note_gap_closed(session, packet->sqn);
        um_loss_map_remove(&session->losses, loss); /* UM-118, UM-121 */
    } else {
        if (UM_UNLIKELY(ahead > 0))
            note_missing(session, session->next_sqn, packet->sqn - 1, arrival->now_ns);
        session->next_sqn = packet->sqn + 1;
    }
    session->jump_seen = false;
    session->stray_count = 0;
    UM_COUNT(counters->msgs_rcved, 1);
    UM_COUNT(counters->bytes_rcved, length);
    session->bytes_since_status += length;
    um_reorder_begin_datagram(session->store, data, length);
    demultiplex(session, packet->body, packet->body_length, arrival);
    um_reorder_end_datagram(session->store);
    if (UM_UNLIKELY(recovered && session->starting_count > 0))
        start_controllers(session, arrival->now_ns);
}

/* UM-71, UM-87: a session message tells the highest sqn sent, so it reveals tail loss. */
static void on_sm(um_receiver_session *session, const um_lbtrm_packet *packet, int64_t now_ns)
{
    UM_COUNT(session->counters.session_messages_rcved, 1);
    if (!session->has_base) {
        set_base(session, packet->lead + 1, now_ns);
        session->trail_sqn = packet->trail;
        return;
    }
    if (is_long_jump(session, packet->lead)) {
        uint32_t least = packet->sqn == session->jump_sm_sqn; /* the same session message twice confirms nothing */
        session->jump_sm_sqn = packet->sqn;
        if (!jump_is_confirmed(session, packet->lead, least))
            return;
    }
    if (um_serial_before(packet->lead, session->trail_sqn - 1)) {
        note_stray(session, now_ns);
        return;
    }
    session->stray_count = 0;
    if (um_serial_before(session->trail_sqn, packet->trail))
        session->trail_sqn = packet->trail;
    if (!um_serial_before(packet->lead, session->next_sqn)) {
        note_missing(session, session->next_sqn, packet->lead, now_ns);
        session->next_sqn = packet->lead + 1;
    }
    if (session->status_sqn != session->next_sqn)
        session->status_due_ns = now_ns; /* the source may be waiting to hear how far we are */
}

/* The time to give up comes in any case (UM-123), and a NAK never sooner for having been confirmed to somebody else. */
static void suppress(um_receiver_session *session, um_loss *loss, int64_t now_ns)
{
    int64_t backoff_ns = um_random_backoff_ns(&session->random, session->config.nak_backoff_ns);
    int64_t next_ns = now_ns + session->config.nak_suppress_ns + backoff_ns;
    int64_t give_up_ns = loss->detected_ns + session->config.nak_generation_ns;
    next_ns = next_ns > loss->deadline_ns ? next_ns : loss->deadline_ns;
    um_loss_map_reschedule(&session->losses, loss, next_ns < give_up_ns ? next_ns : give_up_ns);
}

/* UM-131: silence for the suppress interval, then a normal back-off before the next NAK (C7). */
static void on_ncf(um_receiver_session *session, const um_lbtrm_packet *packet, int64_t now_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    uint64_t *reasons[] = {&counters->ncfs_unknown, &counters->ncfs_ignored, &counters->ncfs_rx_delay,
                           &counters->ncfs_shed};
    UM_COUNT(counters->ncf_pckts_rcved, 1);
    UM_COUNT(*(packet->ncf_reason < 4 ? reasons[packet->ncf_reason] : reasons[0]), packet->list_count);
    for (uint32_t i = 0; i < packet->list_count; i++) {
        um_loss *loss = um_loss_map_find(&session->losses, um_load_be32(packet->list + 4 * i));
        if (loss != NULL)
            suppress(session, loss, now_ns);
    }
}

void um_receiver_session_on_packet(um_receiver_session *session, const um_lbtrm_packet *packet, const um_rx *rx,
                                   const uint8_t *data, uint32_t length, int64_t now_ns)
{
    if (UM_UNLIKELY(session->ended))
        return;
    um_arrival arrival = {.now_ns = now_ns,
                          .received_ns = rx->received_ns,
                          .transport_sqn = packet->sqn,
                          .datagram_bytes = length,
                          .frames = rx->frames};
    switch (packet->type) {
    case UM_LBTRM_DATA:
        note_activity(session, now_ns);
        on_data(session, packet, data, length, &arrival);
        break;
    case UM_LBTRM_SM:
        note_activity(session, now_ns);
        on_sm(session, packet, now_ns);
        break;
    case UM_LBTRM_NCF:
        on_ncf(session, packet, now_ns);
        break;
    default: /* a NAK sent to the group is not for us */
        UM_COUNT(session->counters.dgrams_dropped_type, 1);
    }
}

/* ---- timers ---- */

static void send_control(um_receiver_session *session, const uint8_t *datagram, uint32_t length)
{
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->link->ops->send(session->link, session->config.id.source, &tx, 1);
}

static void send_naks(um_receiver_session *session, const uint32_t *sqns, uint32_t count)
{
    uint8_t datagram[UM_LBTRM_NAK_BYTES + 4 * UM_NAK_LIST_MAX];
    const um_session_id *id = &session->config.id;
    if (count == 0)
        return;
    send_control(session, datagram, um_lbtrm_write_nak(datagram, id->session_id, id->source.port, sqns, count));
    UM_COUNT(session->counters.nak_pckts_sent, 1);
    UM_COUNT(session->counters.naks_sent, count);
}

/* What is asked for may have arrived and lie unread behind everything else that has. Asking again before that has been
 * read would make it longer still, for every receiver of the group, until nothing else is sent (a repair storm). It is
 * put off until the owner has caught up, or for so long that something else must be wrong. */
static bool may_lie_unread(const um_receiver_session *session, const um_loss *loss, int64_t now_ns)
{
    enum { BEHIND_BACKOFFS = 16 };
    return session->behind && loss->naks_sent > 0 &&
           now_ns - loss->detected_ns < BEHIND_BACKOFFS * session->config.nak_backoff_ns * loss->naks_sent;
}

/* One entry whose time has come (UM-119, UM-122, UM-123, UM-128). True when it is to be NAKed. */
static bool fire(um_receiver_session *session, um_loss *loss, int64_t now_ns)
{
    int64_t give_up_ns = loss->detected_ns + session->config.nak_generation_ns;
    if (now_ns >= give_up_ns) {
        give_up(session, loss, &session->counters.unrecovered_tmo);
        return false;
    }
    if (um_serial_before(loss->sqn, session->trail_sqn)) {
        give_up(session, loss, &session->counters.unrecovered_txw);
        return false;
    }
    if (may_lie_unread(session, loss, now_ns)) {
        um_loss_map_reschedule(&session->losses, loss, now_ns + UNREAD_CHECK_NS);
        return false;
    }
    int64_t backoff_ns = um_random_backoff_ns(&session->random, session->config.nak_backoff_ns);
    int64_t next_ns = now_ns + (backoff_ns > BACKOFF_NS_MIN ? backoff_ns : BACKOFF_NS_MIN);
    loss->naks_sent += session->config.send_naks;
    um_loss_map_reschedule(&session->losses, loss, next_ns < give_up_ns ? next_ns : give_up_ns);
    return session->config.send_naks;
}

/* Losses whose timers run out soon after each other share a NAK datagram (UM-119): after one was sent, the next
 * waits a little, a sixteenth of the back-off and a millisecond at most. */
static int64_t nak_gap_ns(const um_receiver_session *session)
{
    int64_t gap_ns = session->config.nak_backoff_ns / 16;
    return gap_ns < NAK_GAP_MAX_NS ? gap_ns : NAK_GAP_MAX_NS;
}

static int64_t tick_losses(um_receiver_session *session, int64_t now_ns)
{
    uint32_t sqns[UM_NAK_LIST_MAX];
    uint32_t list_max = (session->config.datagram_max_bytes - UM_LBTRM_NAK_BYTES) / 4;
    list_max = list_max < UM_NAK_LIST_MAX ? list_max : UM_NAK_LIST_MAX;
    uint32_t count = 0;
    uint64_t naks_before = session->counters.nak_pckts_sent;
    bool gave_up = false;
    um_loss *loss;
    if (now_ns < session->nak_not_before_ns)
        return um_loss_map_first(&session->losses) ? session->nak_not_before_ns : UM_NEVER_NS;
    while ((loss = um_loss_map_first(&session->losses)) != NULL && loss->deadline_ns <= now_ns) {
        uint32_t sqn = loss->sqn;
        uint32_t before = session->losses.count;
        if (fire(session, loss, now_ns))
            sqns[count++] = sqn;
        gave_up |= session->losses.count < before;
        if (count == list_max) {
            send_naks(session, sqns, count);
            count = 0;
        }
    }
    send_naks(session, sqns, count);
    if (session->counters.nak_pckts_sent != naks_before)
        session->nak_not_before_ns = now_ns + nak_gap_ns(session);
    if (gave_up && session->starting_count > 0)
        start_controllers(session, now_ns);
    if (loss == NULL)
        return UM_NEVER_NS;
    return loss->deadline_ns > session->nak_not_before_ns ? loss->deadline_ns : session->nak_not_before_ns;
}

static int64_t tick_activity(um_receiver_session *session, int64_t now_ns)
{
    int64_t timeout_ns = session->active || session->config.preactivity_timeout_ns == 0
                             ? session->config.activity_timeout_ns
                             : session->config.preactivity_timeout_ns;
    int64_t due_ns = session->last_activity_ns + timeout_ns;
    if (now_ns < due_ns)
        return due_ns;
    end_session(session, now_ns);
    return now_ns;
}

static int64_t tick_controllers(um_receiver_session *session, int64_t now_ns)
{
    if (now_ns < session->tick_controllers_ns)
        return session->tick_controllers_ns;
    int64_t next_ns = UM_NEVER_NS;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        int64_t due_ns = um_delivery_tick(d, now_ns);
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    session->tick_controllers_ns = next_ns;
    return next_ns;
}

/* What the receivers can still take, at most the configured window (AE-18). */
static uint32_t window_now(const um_receiver_session *session)
{
    uint64_t window = session->config.window_bytes;
    for (uint32_t i = 0; i < session->queue_count; i++) {
        uint64_t free_bytes = um_queue_free_bytes(session->queues[i].queue);
        window = free_bytes < window ? free_bytes : window;
    }
    return (uint32_t)window;
}

static void send_status(um_receiver_session *session, uint8_t flags, int64_t now_ns)
{
    uint8_t datagram[UM_STATUS_DATAGRAM_BYTES];
    const um_session_id *id = &session->config.id;
    um_status_message status = {.receiver_id = session->config.receiver_id,
                                .next_sqn = session->next_sqn,
                                .window_bytes = window_now(session),
                                .group_tag = session->config.group_tag,
                                .flags = flags};
    if (session->losses.count > 0)
        status.next_sqn = um_loss_map_lowest(&session->losses);
    if (!session->has_base)
        status.flags |= UM_STATUS_ELICIT;
    session->status_window_bytes = status.window_bytes;
    session->status_sqn = status.next_sqn;
    session->bytes_since_status = 0;
    session->counters.rcv_pos = status.next_sqn;
    session->counters.rcv_window = status.window_bytes;
    session->status_due_ns = now_ns + session->config.status_interval_ns;
    send_control(session, datagram, um_status_encode(datagram, id->session_id, id->source.port, &status));
    UM_COUNT(session->counters.status_messages_sent, 1);
}

/* A quarter of what the source was last told it may send: it must hear more before it has used that up. */
static uint64_t report_after_bytes(const um_receiver_session *session)
{
    uint32_t window = session->config.window_bytes;
    return (session->status_window_bytes < window ? session->status_window_bytes : window) / 4;
}

void um_receiver_session_after_batch(um_receiver_session *session, int64_t now_ns)
{
    if (session->config.window_bytes == 0 || session->ended)
        return;
    if (session->bytes_since_status >= report_after_bytes(session) || now_ns >= session->status_due_ns)
        send_status(session, 0, now_ns);
}

void um_receiver_session_leave(um_receiver_session *session)
{
    if (session->config.window_bytes != 0 && session->has_base && !session->ended)
        send_status(session, UM_STATUS_LEAVE, session->last_activity_ns);
}

/* A window told to be small is told again as soon as the reader has made room: the source stands still. */
static int64_t tick_status(um_receiver_session *session, int64_t now_ns)
{
    enum { REOPEN_CHECK_NS = 500000 };
    if (session->config.window_bytes == 0 || session->ended || session->controller_count == 0)
        return UM_NEVER_NS;
    bool small = session->has_base && session->status_window_bytes < session->config.window_bytes / 2;
    if (small && window_now(session) >= session->status_window_bytes + session->config.window_bytes / 4)
        session->status_due_ns = now_ns;
    if (now_ns >= session->status_due_ns)
        send_status(session, 0, now_ns);
    small = session->has_base && session->status_window_bytes < session->config.window_bytes / 2;
    int64_t check_ns = now_ns + REOPEN_CHECK_NS;
    return small && check_ns < session->status_due_ns ? check_ns : session->status_due_ns;
}

int64_t um_receiver_session_tick(um_receiver_session *session, int64_t now_ns)
{
    if (session->ended)
        return tick_controllers(session, now_ns);
    int64_t next_ns = tick_losses(session, now_ns);
    int64_t due_ns[] = {tick_controllers(session, now_ns), tick_status(session, now_ns),
                        tick_activity(session, now_ns)};
    for (size_t i = 0; i < sizeof due_ns / sizeof due_ns[0]; i++)
        next_ns = due_ns[i] < next_ns ? due_ns[i] : next_ns;
    session->counters.loss_map_entries = session->losses.count;
    return next_ns;
}

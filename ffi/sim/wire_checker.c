#include "sim/wire_checker.h"

#include "core/wire/interest_message.h"

enum { DRIFT_SLACK_DIVISOR = 2000, SLACK_NS = 1000 };

bool um_sim_wire_init(um_sim_wire_session *wire, um_sim_world *world, const um_sim_session *session,
                      um_sim_topic *topics, uint32_t topic_count)
{
    *wire = (um_sim_wire_session){.session = session,
                                  .topics = topics,
                                  .topic_count = topic_count,
                                  .next_sqn = session->core.config.initial_sqn,
                                  .trail_sqn = session->core.config.initial_sqn};
    wire->body_hashes = um_sim_take(world, UM_SIM_WIRE_SQNS_MAX * sizeof *wire->body_hashes);
    wire->assembly[0].memory = um_sim_take(world, UM_DATAGRAM_ASSEMBLY_BYTES);
    wire->assembly[1].memory = um_sim_take(world, UM_DATAGRAM_ASSEMBLY_BYTES);
    return wire->body_hashes != NULL && wire->assembly[0].memory != NULL && wire->assembly[1].memory != NULL;
}

static uint64_t hash_of(const uint8_t *data, uint32_t length)
{
    uint64_t hash = 0xcbf29ce484222325u ^ length;
    for (uint32_t i = 0; i + 8 <= length; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    for (uint32_t i = length & ~7u; i < length; i++)
        hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash;
}

/* ---- topics ---- */

static um_sim_topic *topic_of(um_sim_wire_session *wire, uint32_t topic_index)
{
    for (uint32_t i = 0; i < wire->topic_count; i++)
        if (wire->topics[i].topic_index == topic_index)
            return &wire->topics[i];
    return NULL;
}

static void check_tsni(um_sim_world *world, um_sim_wire_session *wire, const um_lbmc_message *message)
{
    for (uint32_t i = 0; i < message->tsni_count; i++) {
        const uint8_t *record = message->tsni + UM_LBMC_TSNI_RECORD_BYTES * i;
        um_sim_topic *topic = topic_of(wire, um_load_be32(record));
        uint32_t sqn = um_load_be32(record + 4);
        uint32_t at = topic == NULL ? 0 : sqn - topic->initial_sqn;
        if (topic == NULL || at >= topic->fragment_count || (!topic->sent[at] && !wire->is_partial))
            um_sim_complain(world, "t=%lld ns: a TSNI advertises sqn %u of topic %u, which was never sent",
                            (long long)world->now_ns, sqn, um_load_be32(record));
    }
}

static void check_fragment(um_sim_world *world, um_sim_wire_session *wire, const um_lbmc_message *message)
{
    um_sim_topic *topic = topic_of(wire, message->topic_index);
    uint32_t at = topic == NULL ? UM_SIM_FRAGMENTS_MAX : message->sqn - topic->initial_sqn;
    /* The publisher registers a message after the call that may already have sent it. */
    if (at >= UM_SIM_FRAGMENTS_MAX || topic->sent[at])
        um_sim_complain(world, "t=%lld ns: sqn %u of topic %u is sent as new %s", (long long)world->now_ns,
                        message->sqn, message->topic_index, topic == NULL ? "on the wrong session" : "twice");
    else
        topic->sent[at] = 1;
}

static void check_body(um_sim_world *world, um_sim_wire_session *wire, const um_packet *packet)
{
    um_lbmc_message message;
    for (uint32_t at = 0, length; at < packet->body_length; at += length) {
        if (um_lbmc_decode(packet->body + at, packet->body_length - at, &message, &length) != UM_DGRAM_OK) {
            um_sim_complain(world, "t=%lld ns: transport sqn %u does not hold whole messages", (long long)world->now_ns,
                            packet->sqn);
            return;
        }
        if (message.type == UM_LBMC_CONTROL)
            check_tsni(world, wire, &message);
        else
            check_fragment(world, wire, &message);
    }
}

/* ---- the source's datagrams ---- */

static void check_trail(um_sim_world *world, um_sim_wire_session *wire, uint32_t trail)
{
    if (um_serial_before(trail, wire->trail_sqn))
        um_sim_complain(world, "t=%lld ns: the trail goes back from %u to %u", (long long)world->now_ns,
                        wire->trail_sqn, trail);
    wire->trail_sqn = trail;
}

static bool is_lbtru(const um_sim_wire_session *wire)
{
    return wire->session->core.config.transport == UM_TRANSPORT_LBTRU;
}

/* True if the content of this sqn is known; over LBT-RU it is unknown if no client received it. */
static bool is_known(const um_sim_wire_session *wire, uint32_t at)
{
    return wire->body_hashes[at] != 0 || !is_lbtru(wire);
}

/* The sqn after the last one sent, even if no client received it. */
static uint32_t sent_before(const um_sim_wire_session *wire)
{
    return is_lbtru(wire) ? wire->session->core.next_sqn : wire->next_sqn;
}

/* Checks that the sqns sent to one client ascend. Returns true for a copy of data that another client received. */
static bool is_later_copy(um_sim_world *world, um_sim_wire_session *wire, const um_packet *packet, um_address to)
{
    uint32_t host = (uint32_t)(to.ip.low - world->hosts[0]->address.ip.low);
    if (!is_lbtru(wire) || packet->flags & UM_LBTRM_FLAG_RETRANSMISSION || host >= world->host_count)
        return false;
    uint32_t slot = to.port % UM_SIM_WIRE_PORTS;
    bool is_known_port = wire->clients[host][slot].port == to.port;
    if (is_known_port && um_serial_before(packet->sqn, wire->clients[host][slot].next_sqn))
        um_sim_complain(world, "t=%lld ns: host %u receives sqn %u as new, expected %u", (long long)world->now_ns, host,
                        packet->sqn, wire->clients[host][slot].next_sqn);
    wire->clients[host][slot].port = to.port;
    wire->clients[host][slot].next_sqn = packet->sqn + 1;
    return um_serial_before(packet->sqn, wire->next_sqn);
}

/* UX-27: a filter report covers only datagrams that were sent, never later ones. */
static void check_report(um_sim_world *world, const um_sim_wire_session *wire, const um_filter_report *report)
{
    if (um_serial_before(sent_before(wire), report->first_sqn + report->count))
        um_sim_complain(world, "t=%lld ns: a filter report covers %u datagrams from sqn %u on, the next is %u",
                        (long long)world->now_ns, report->count, report->first_sqn, sent_before(wire));
}

static void check_data(um_sim_world *world, um_sim_wire_session *wire, const um_packet *packet, um_address to)
{
    uint32_t at = packet->sqn - wire->session->core.config.initial_sqn;
    uint64_t hash = hash_of(packet->body, packet->body_length);
    um_filter_report report;
    if (is_lbtru(wire) && um_filter_report_decode(packet, &report)) {
        check_report(world, wire, &report);
        return;
    }
    if (is_later_copy(world, wire, packet, to)) {
        if (at < UM_SIM_WIRE_SQNS_MAX && !is_known(wire, at)) { /* filtered for the others */
            wire->body_hashes[at] = hash;
            check_body(world, wire, packet);
        }
        if (at < UM_SIM_WIRE_SQNS_MAX && wire->body_hashes[at] != hash)
            um_sim_complain(world, "t=%lld ns: the copies of sqn %u differ", (long long)world->now_ns, packet->sqn);
        return;
    }
    check_trail(world, wire, packet->trail);
    if (packet->flags & UM_LBTRM_FLAG_RETRANSMISSION) {
        if (!um_serial_before(packet->sqn, sent_before(wire)))
            um_sim_complain(world, "t=%lld ns: sqn %u is retransmitted but was never sent", (long long)world->now_ns,
                            packet->sqn);
        else if (at < UM_SIM_WIRE_SQNS_MAX && is_known(wire, at) && wire->body_hashes[at] != hash)
            um_sim_complain(world, "t=%lld ns: the retransmission of sqn %u differs from the original",
                            (long long)world->now_ns, packet->sqn);
        return;
    }
    if (is_lbtru(wire) && um_serial_before(wire->next_sqn, packet->sqn))
        wire->is_partial = true;
    else if (packet->sqn != wire->next_sqn)
        um_sim_complain(world, "t=%lld ns: sqn %u is sent, expected %u", (long long)world->now_ns, packet->sqn,
                        wire->next_sqn);
    wire->next_sqn = packet->sqn + 1;
    if (at < UM_SIM_WIRE_SQNS_MAX)
        wire->body_hashes[at] = hash;
    check_body(world, wire, packet);
}

/* A datagram sent in pieces obeys the rules of a whole one, except that its trail may be older: session messages may
 * have been sent between its pieces. */
static void check_piece(um_sim_world *world, um_sim_wire_session *wire, const um_packet *packet, um_address to)
{
    um_lbmc_message message;
    um_datagram_piece piece;
    um_packet whole;
    uint32_t length;
    if (packet->body_length == 0 ||
        um_lbmc_decode(packet->body, packet->body_length, &message, &length) != UM_DGRAM_OK ||
        !um_datagram_piece_decode(&message, length, packet->body, packet->body_length, &piece))
        return;
    um_datagram_assembly *assembly = &wire->assembly[piece.sqn == wire->next_sqn];
    if (!um_datagram_assembly_add(assembly, wire, &piece))
        return;
    if (um_lbtrm_decode(assembly->memory, piece.total_bytes, &whole) != UM_DGRAM_OK || whole.type != UM_LBTRM_DATA ||
        whole.sqn != piece.sqn)
        um_sim_complain(world, "t=%lld ns: the pieces of sqn %u are not a datagram", (long long)world->now_ns,
                        piece.sqn);
    else {
        whole.trail = um_serial_before(whole.trail, wire->trail_sqn) ? wire->trail_sqn : whole.trail;
        check_data(world, wire, &whole, to);
    }
}

static void check_sm(um_sim_world *world, um_sim_wire_session *wire, const um_packet *packet)
{
    check_trail(world, wire, packet->trail);
    uint32_t next_sqn = sent_before(wire);
    if (packet->lead != next_sqn - 1)
        um_sim_complain(world, "t=%lld ns: a session message has lead %u after sqn %u", (long long)world->now_ns,
                        packet->lead, next_sqn - 1);
}

/* ---- the receivers' NAKs ---- */

static um_receiver_session *transport_of(const um_sim_host *host, const um_sim_wire_session *wire)
{
    const um_source_session_config *config = &wire->session->core.config;
    um_session_id id = {
        {wire->session->host->address.ip, config->nak_port}, config->group, config->session_id, config->transport, 0};
    return um_node_find_session(host->node, &id);
}

/* Returns the times of the next NAKs by sqn, zeroed for a new session, or NULL if out of memory. */
static um_sim_nak_time *nak_times(um_sim_world *world, um_sim_wire_session *wire, const um_sim_host *host,
                                  const um_receiver_session *transport)
{
    um_sim_nak_time **times = &wire->nak_times[host->index];
    if (*times == NULL)
        *times = um_sim_take(world, UM_SIM_WIRE_SQNS_MAX * sizeof **times);
    else if (wire->asking[host->index] != transport)
        memset(*times, 0, UM_SIM_WIRE_SQNS_MAX * sizeof **times);
    wire->asking[host->index] = transport;
    return *times;
}

static int64_t shortest_ns(int64_t local_ns)
{
    return local_ns - local_ns / DRIFT_SLACK_DIVISOR - SLACK_NS;
}

/* The measured times may have changed since the timer was drawn, but a re-NAK waits at least the floor. */
static int64_t shortest_initial_ns(const um_receiver_session *transport)
{
    bool measured = transport->config.adaptive_timers & UM_ADAPTIVE_INITIAL;
    return measured ? 0 : transport->config.nak_initial_backoff_ns / 2;
}

static int64_t shortest_backoff_ns(const um_receiver_session *transport)
{
    bool measured = transport->config.adaptive_timers & UM_ADAPTIVE_BACKOFF;
    return measured ? UM_RECOVERY_FLOOR_NS : transport->config.nak_backoff_ns / 2;
}

static int64_t shortest_suppress_ns(const um_receiver_session *transport)
{
    bool measured = transport->config.adaptive_timers & UM_ADAPTIVE_SUPPRESS;
    int64_t backoff_ns = transport->config.adaptive_timers & UM_ADAPTIVE_BACKOFF ? 0 : shortest_backoff_ns(transport);
    return (measured ? UM_RECOVERY_FLOOR_NS : transport->config.nak_suppress_ns) + backoff_ns;
}

/* A forgotten claim is lost again, and NAKed, when data or a later claim shows the gap. The first data ends all claims
 * before it, and another lead may replace a single claimed lead. */
static bool may_be_forgotten(const um_receiver_session *transport, uint32_t sqn)
{
    return !transport->has_data || (transport->claims.has_far && transport->claims.far_sqn == sqn);
}

static void check_nak(um_sim_world *world, um_sim_wire_session *wire, const um_sim_host *host, const um_packet *packet)
{
    um_receiver_session *transport = transport_of(host, wire);
    um_sim_nak_time *times = transport == NULL ? NULL : nak_times(world, wire, host, transport);
    for (uint32_t i = 0; times != NULL && i < packet->list_count; i++) {
        uint32_t sqn = um_load_be32(packet->list + 4 * i);
        uint32_t at = sqn - wire->session->core.config.initial_sqn;
        const um_loss *loss = um_loss_map_find(&transport->losses, sqn);
        if (loss == NULL) {
            um_sim_complain(world, "t=%lld ns: host %u NAKs sqn %u, which is not missing", (long long)world->now_ns,
                            host->index, sqn);
            return;
        }
        if (um_sim_local_ns(host) - loss->detected_ns < shortest_initial_ns(transport))
            um_sim_complain(world, "t=%lld ns: host %u NAKs sqn %u before the initial back-off",
                            (long long)world->now_ns, host->index, sqn);
        if (at >= UM_SIM_WIRE_SQNS_MAX)
            continue;
        /* A claim that was given up is lost again once it is claimed again or data confirms it. Its first NAK, which
         * the link may have refused, follows the initial back-off. */
        bool was_given_up = wire->is_attacked || transport->counters.claims_given_up > 0;
        bool is_lost_again = was_given_up && loss->detected_ns > times[at].noted_ns;
        int64_t now_ns = um_sim_local_ns(host);
        if (now_ns < times[at].next_ns && !is_lost_again)
            um_sim_complain(world, "t=%lld ns: host %u NAKs sqn %u again, %lld ns too soon", (long long)world->now_ns,
                            host->index, sqn, (long long)(times[at].next_ns - now_ns));
        bool is_kept = !may_be_forgotten(transport, sqn);
        int64_t next_ns = is_kept ? now_ns + shortest_ns(shortest_backoff_ns(transport)) : 0;
        times[at] = (um_sim_nak_time){next_ns, now_ns};
    }
}

/* ---- */

static um_sim_wire_session *wire_of(um_sim_wire_session *wires, uint32_t count, uint32_t session_id)
{
    for (uint32_t i = 0; i < count; i++)
        if (wires[i].session->core.config.session_id == session_id)
            return &wires[i];
    return NULL;
}

void um_sim_wire_on_sent(um_sim_wire_session *wires, uint32_t count, const um_sim_host *host,
                         const um_sim_datagram *datagram, const uint8_t *data)
{
    um_sim_world *world = host->world;
    um_packet packet;
    um_sim_wire_session *wire = NULL;
    if (datagram->entry.type == UM_LBTRU_RST) /* names no session */
        return;
    if (um_framing_decode(world->transport, data, datagram->length, &packet) == UM_DGRAM_OK)
        wire = wire_of(wires, count, packet.session_id);
    if (wire == NULL) {
        um_sim_complain(world, "t=%lld ns: host %u sent something that is not a datagram of a session",
                        (long long)world->now_ns, host->index);
        return;
    }
    switch (datagram->entry.type) {
    case UM_LBTRM_DATA:
        check_data(world, wire, &packet, datagram->to);
        break;
    case UM_LBTRM_SM:
        check_sm(world, wire, &packet);
        check_piece(world, wire, &packet, datagram->to);
        break;
    case UM_LBTRM_NAK:
        check_nak(world, wire, host, &packet);
        break;
    case UM_LBTRM_NCF:
        check_trail(world, wire, packet.trail);
        break;
    default:
        break;
    }
}

void um_sim_wire_on_received(um_sim_wire_session *wires, uint32_t count, const um_sim_host *host,
                             const um_sim_datagram *datagram, const uint8_t *data)
{
    um_sim_world *world = host->world;
    um_packet packet;
    if (datagram->entry.type != UM_LBTRM_NCF || datagram->from_host < 0 ||
        um_framing_decode(world->transport, data, datagram->length, &packet) != UM_DGRAM_OK)
        return;
    um_sim_wire_session *wire = wire_of(wires, count, packet.session_id);
    um_receiver_session *transport = wire == NULL ? NULL : transport_of(host, wire);
    bool is_for_it = transport != NULL && (!is_lbtru(wire) || um_address_equal(datagram->to, transport->local));
    um_sim_nak_time *times = is_for_it ? nak_times(world, wire, host, transport) : NULL;
    int64_t now_ns = um_sim_local_ns(host);
    for (uint32_t i = 0; times != NULL && i < packet.list_count; i++) {
        uint32_t sqn = um_load_be32(packet.list + 4 * i);
        uint32_t at = sqn - wire->session->core.config.initial_sqn;
        if (at >= UM_SIM_WIRE_SQNS_MAX || um_loss_map_find(&transport->losses, sqn) == NULL)
            continue;
        bool is_kept = !may_be_forgotten(transport, sqn);
        int64_t next_ns = is_kept ? now_ns + shortest_ns(shortest_suppress_ns(transport)) : 0;
        times[at] = (um_sim_nak_time){next_ns, now_ns};
    }
}

void um_sim_wire_check_complete(um_sim_world *world, const um_sim_wire_session *wire)
{
    bool is_partial = wire->is_partial || wire->next_sqn != sent_before(wire);
    for (uint32_t t = 0; t < wire->topic_count && !is_partial; t++) {
        const um_sim_topic *topic = &wire->topics[t];
        for (uint32_t i = 0; i < topic->fragment_count; i++)
            if (!topic->sent[i])
                um_sim_complain(world, "sqn %u of topic %u was published but never sent", topic->initial_sqn + i,
                                topic->topic_index);
    }
}

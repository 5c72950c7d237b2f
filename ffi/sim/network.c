#include "sim/network.h"

#include "sim/trace.h"

enum { PPM = 1000000, UNKNOWN_IP = 0x0a630001 };

static bool chance(um_random *random, uint32_t ppm)
{
    return ppm != 0 && um_random_below(random, PPM) < ppm;
}

/* ---- datagrams ---- */

static int64_t take_datagram(um_sim_world *world)
{
    uint32_t slot;
    if (world->datagram_free != 0) {
        slot = world->datagram_free - 1;
        world->datagram_free = world->datagrams[slot].next_free;
    } else if (world->datagrams_begun < UM_SIM_DATAGRAMS_MAX) {
        slot = world->datagrams_begun++;
    } else {
        return -ENOSPC;
    }
    world->datagrams[slot].references = 1;
    world->datagrams_used++;
    return slot;
}

void um_sim_release_datagram(um_sim_world *world, uint32_t datagram)
{
    um_sim_datagram *d = &world->datagrams[datagram];
    if (--d->references > 0)
        return;
    d->next_free = world->datagram_free;
    world->datagram_free = datagram + 1;
    world->datagrams_used--;
}

static int64_t make_datagram(um_sim_world *world, int32_t from_host, um_address from, um_address to,
                             const um_part *parts, uint32_t part_count)
{
    int64_t slot = take_datagram(world);
    if (slot < 0)
        return slot;
    um_sim_datagram *datagram = &world->datagrams[slot];
    uint8_t *bytes = um_sim_bytes_of(world, (uint32_t)slot);
    datagram->length = 0;
    datagram->from_host = from_host;
    datagram->from = from;
    datagram->to = to;
    for (uint32_t i = 0; i < part_count; i++) {
        memcpy(bytes + datagram->length, parts[i].data, parts[i].length);
        datagram->length += parts[i].length;
    }
    um_sim_note_datagram(world, datagram, bytes);
    return slot;
}

/* ---- rules of a script ---- */

static bool is_in_range(const um_sim_rule *rule, uint32_t sqn)
{
    return sqn - rule->first_sqn <= rule->last_sqn - rule->first_sqn;
}

static bool has_sqn(const um_sim_rule *rule, enum um_transport transport, const uint8_t *data, uint32_t length)
{
    um_packet packet;
    if (um_framing_decode(transport, data, length, &packet) != UM_DGRAM_OK)
        return false;
    for (uint32_t i = 0; i < packet.list_count; i++)
        if (is_in_range(rule, um_load_be32(packet.list + 4 * i)))
            return true;
    return false;
}

static bool is_sqn_match(const um_sim_rule *rule, enum um_transport transport, const um_sim_datagram *datagram,
                         const uint8_t *data)
{
    switch (datagram->entry.type) {
    case UM_LBTRM_DATA:
        return is_in_range(rule, datagram->entry.sqn);
    case UM_LBTRM_SM:
        return is_in_range(rule, datagram->entry.lead);
    case UM_LBTRM_NAK:
    case UM_LBTRM_NCF:
        return has_sqn(rule, transport, data, datagram->length);
    default:
        return false;
    }
}

static bool is_match(const um_sim_rule *rule, enum um_transport transport, const um_sim_datagram *datagram,
                     const uint8_t *data, int32_t to)
{
    const um_sim_trace_entry *entry = &datagram->entry;
    int32_t retransmission = (entry->flags & UM_LBTRM_FLAG_RETRANSMISSION) != 0;
    return (rule->from == UM_SIM_ANY || rule->from == datagram->from_host) &&
           (rule->to == UM_SIM_ANY || rule->to == to) && (rule->type == UM_SIM_ANY || rule->type == entry->type) &&
           (rule->retransmission == UM_SIM_ANY ||
            (entry->type == UM_LBTRM_DATA && rule->retransmission == retransmission)) &&
           (!rule->by_sqn || is_sqn_match(rule, transport, datagram, data));
}

/* Returns the first rule that applies, or NULL. */
static const um_sim_rule *apply_rules(um_sim_world *world, const um_sim_datagram *datagram, const uint8_t *data,
                                      int32_t to)
{
    for (uint32_t i = 0; i < world->rule_count; i++) {
        um_sim_rule *rule = &world->rules[i];
        if (rule->match_count == UINT32_MAX || !is_match(rule, world->transport, datagram, data, to))
            continue;
        if (rule->skip_count > 0) {
            rule->skip_count--;
            continue;
        }
        if (rule->match_count > 0 && --rule->match_count == 0)
            rule->match_count = UINT32_MAX; /* spent */
        return rule;
    }
    return NULL;
}

int um_sim_add_rule(um_sim_world *world, const um_sim_rule *rule)
{
    if (world->rule_count == UM_SIM_RULES_MAX)
        return -ENOSPC;
    world->rules[world->rule_count] = *rule;
    return (int)world->rule_count++;
}

void um_sim_clear_rules(um_sim_world *world)
{
    world->rule_count = 0;
}

/* ---- one datagram on its way to one host ---- */

static void drop(um_sim_world *world, const um_sim_datagram *datagram, int32_t to, enum um_sim_drop_reason reason)
{
    world->dropped_count++;
    um_sim_note(world, datagram, UM_SIM_DROPPED, to, reason);
}

static void schedule_arrival(um_sim_host *host, uint32_t slot, int64_t delay_ns, bool keep_order)
{
    um_sim_world *world = host->world;
    um_sim_datagram *datagram = &world->datagrams[slot];
    uint32_t from = datagram->from_host < 0 ? UM_SIM_HOSTS_MAX : (uint32_t)datagram->from_host;
    int64_t arrival_ns = world->now_ns + delay_ns;
    if (keep_order) {
        if (arrival_ns < host->last_arrival_ns[from])
            arrival_ns = host->last_arrival_ns[from];
        host->last_arrival_ns[from] = arrival_ns;
    }
    if (um_sim_schedule(&world->events, arrival_ns, host->on_arrival, host->index, slot))
        datagram->references++;
    else
        drop(world, datagram, (int32_t)host->index, UM_SIM_DROP_NETWORK);
}

static bool is_lost_in_burst(um_sim_host *host, um_random *random)
{
    if (host->is_in_burst)
        host->is_in_burst = !chance(random, host->faults.burst_end_ppm);
    else
        host->is_in_burst = chance(random, host->faults.burst_begin_ppm);
    return host->is_in_burst;
}

static enum um_sim_drop_reason fate(um_sim_host *host, const um_sim_datagram *datagram)
{
    um_sim_world *world = host->world;
    bool cut_off = datagram->from_host >= 0 && world->hosts[datagram->from_host]->faults.partitioned;
    if (host->faults.partitioned || cut_off)
        return UM_SIM_DROP_PARTITION;
    if (host->faults.path_bytes != 0 && datagram->length > host->faults.path_bytes)
        return UM_SIM_DROP_LOSS;
    if (is_lost_in_burst(host, &world->random) || chance(&world->random, host->faults.loss_ppm))
        return UM_SIM_DROP_LOSS;
    return chance(&world->random, host->faults.corrupt_ppm) ? UM_SIM_DROP_CHECKSUM : UM_SIM_DROP_NONE;
}

static int64_t draw_delay(um_sim_host *host)
{
    return host->faults.delay_ns + (int64_t)um_random_below(&host->world->random, (uint64_t)host->faults.jitter_ns + 1);
}

/* Corrupts a copy so that every receiver must refuse it: sent to a group, it has any bytes changed and comes from an
 * address without a session; otherwise no decoder accepts it, or it is a NAK of sqns that may never have been sent. */
static void mangle(um_sim_world *world, um_sim_datagram *datagram, uint8_t *bytes)
{
    um_random *random = &world->random;
    enum um_transport transport = world->transport;
    if (um_ip_is_multicast(datagram->to.ip) && chance(random, PPM / 2)) {
        datagram->from.ip = um_sim_ip(world, UNKNOWN_IP);
        for (uint64_t i = um_random_below(random, 8) + 1; i > 0; i--)
            bytes[um_random_below(random, datagram->length)] ^= (uint8_t)(1u << um_random_below(random, 8));
        return;
    }
    if (datagram->entry.type == UM_LBTRM_NAK && chance(random, PPM / 2)) {
        bool is_lbtrm = transport == UM_TRANSPORT_LBTRM;
        uint32_t end = datagram->length - (is_lbtrm ? 0 : UM_LBTRU_OPTIONS_BYTES_MAX);
        for (uint32_t at = is_lbtrm ? UM_LBTRM_NAK_BYTES : UM_LBTRU_HEADER_BYTES + 4; at + 4 <= end; at += 4)
            um_store_be32(bytes + at, um_load_be32(bytes + at) + (uint32_t)um_random_below(random, 2000) - 1000);
        return;
    }
    switch (um_random_below(random, 4)) {
    case 0:
        datagram->length = (uint32_t)um_random_below(random, UM_LBTRM_NAK_BYTES);
        break;
    case 1:
        bytes[0] |= (uint8_t)(0x10u << um_random_below(random, 4));
        break;
    case 2:
        bytes[0] = (uint8_t)(transport == UM_TRANSPORT_LBTRM ? 5 + um_random_below(random, 11)
                                                             : 8 + um_random_below(random, 8)); /* no such type */
        break;
    default:
        bytes[1] ^= (uint8_t)(1 + um_random_below(random, 255));
    }
}

static void add_garbage(um_sim_host *host, const um_sim_datagram *like, const uint8_t *data)
{
    um_sim_world *world = host->world;
    um_part part = {data, like->length};
    int64_t slot = make_datagram(world, -1, like->from, like->to, &part, 1);
    if (slot < 0)
        return;
    um_sim_datagram *datagram = &world->datagrams[slot];
    uint8_t *bytes = um_sim_bytes_of(world, (uint32_t)slot);
    mangle(world, datagram, bytes);
    um_sim_note_datagram(world, datagram, bytes);
    schedule_arrival(host, (uint32_t)slot, draw_delay(host), false);
    um_sim_release_datagram(world, (uint32_t)slot);
}

static void remember(um_sim_world *world, uint32_t slot)
{
    uint32_t *place = &world->past[world->past_next++ % UM_SIM_PAST_MAX];
    if (*place != 0)
        um_sim_release_datagram(world, *place - 1);
    world->datagrams[slot].references++;
    *place = slot + 1;
}

static void replay(um_sim_host *host, um_address to)
{
    um_sim_world *world = host->world;
    uint32_t place = world->past[um_random_below(&world->random, UM_SIM_PAST_MAX)];
    if (place != 0 && um_address_equal(world->datagrams[place - 1].to, to))
        schedule_arrival(host, place - 1, draw_delay(host), false);
}

static void carry(um_sim_host *host, uint32_t slot)
{
    um_sim_world *world = host->world;
    um_sim_datagram *datagram = &world->datagrams[slot];
    const um_sim_faults *faults = &host->faults;
    if (host->is_dead)
        return;
    const um_sim_rule *rule = apply_rules(world, datagram, um_sim_bytes_of(world, slot), (int32_t)host->index);
    if (rule != NULL && rule->action == UM_SIM_RULE_DROP) {
        drop(world, datagram, (int32_t)host->index, UM_SIM_DROP_RULE);
        return;
    }
    if (chance(&world->random, faults->garbage_ppm))
        add_garbage(host, datagram, um_sim_bytes_of(world, slot));
    if (chance(&world->random, faults->replay_ppm))
        replay(host, datagram->to);
    enum um_sim_drop_reason reason = fate(host, datagram);
    if (reason != UM_SIM_DROP_NONE) {
        drop(world, datagram, (int32_t)host->index, reason);
        return;
    }
    bool behind = chance(&world->random, faults->reorder_ppm);
    int64_t extra_ns = behind ? (int64_t)um_random_below(&world->random, (uint64_t)faults->reorder_ns + 1) : 0;
    if (rule != NULL && rule->action == UM_SIM_RULE_DELAY) {
        behind = true;
        extra_ns += rule->delay_ns;
    }
    schedule_arrival(host, slot, draw_delay(host) + extra_ns, !behind);
    if (chance(&world->random, faults->duplicate_ppm) || (rule != NULL && rule->action == UM_SIM_RULE_DUPLICATE))
        schedule_arrival(host, slot, draw_delay(host), false);
}

static bool has_joined(const um_sim_host *host, um_address group)
{
    for (uint32_t i = 0; i < host->node->session_count; i++)
        if (um_address_equal(host->node->sessions[i]->config.id.group, group))
            return true;
    return false;
}

static void route(um_sim_world *world, uint32_t slot)
{
    um_address to = world->datagrams[slot].to;
    bool group = um_ip_is_multicast(to.ip);
    for (uint32_t i = 0; i < world->host_count; i++) {
        um_sim_host *host = world->hosts[i];
        if (group ? has_joined(host, to) : um_ip_equal(host->address.ip, to.ip))
            carry(host, slot);
    }
}

/* ---- the link ---- */

static bool has_space(um_sim_host *host, uint32_t length)
{
    um_sim_world *world = host->world;
    const um_sim_host_config *config = &host->config;
    if (chance(&world->random, config->link_refuse_ppm))
        return false;
    if (config->link_bps == 0)
        return true;
    if (host->link_busy_until_ns - world->now_ns > config->link_queue_ns)
        return false;
    int64_t start_ns = host->link_busy_until_ns > world->now_ns ? host->link_busy_until_ns : world->now_ns;
    host->link_busy_until_ns = start_ns + (int64_t)((uint64_t)length * 8 * 1000000000u / config->link_bps);
    return true;
}

static um_sim_host *host_of(um_link *link)
{
    return ((um_sim_link *)(void *)link)->host;
}

static void transmit(um_link *link, um_address to, const um_tx *tx)
{
    um_sim_host *host = host_of(link);
    um_address from = ((um_sim_link *)(void *)link)->from;
    um_sim_world *world = host->world;
    int64_t slot = make_datagram(world, (int32_t)host->index, from, to, tx->parts, tx->part_count);
    if (slot < 0)
        return;
    um_sim_datagram *datagram = &world->datagrams[slot];
    if (datagram->length != tx->length)
        um_sim_complain(world, "a datagram of %u bytes has parts of %u bytes", tx->length, datagram->length);
    world->sent_count++;
    um_sim_note(world, datagram, UM_SIM_SENT, -1, UM_SIM_DROP_NONE);
    if (world->watcher.on_sent != NULL)
        world->watcher.on_sent(world->watcher.owner, host, datagram, um_sim_bytes_of(world, (uint32_t)slot));
    remember(world, (uint32_t)slot);
    route(world, (uint32_t)slot);
    um_sim_release_datagram(world, (uint32_t)slot);
}

static int link_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    um_sim_host *host = host_of(link);
    for (uint32_t i = 0; i < count; i++) {
        if (batch[i].length > host->config.path_bytes) {
            um_sim_complain(host->world, "host %u sent a datagram of %u bytes on a path of %u bytes", host->index,
                            batch[i].length, host->config.path_bytes);
            return i > 0 ? (int)i : -EMSGSIZE;
        }
        if (!has_space(host, batch[i].length))
            return (int)i;
        transmit(link, to, &batch[i]);
    }
    return (int)count;
}

static int link_send_oversize(um_link *link, um_address to, const um_tx *datagram)
{
    um_sim_host *host = host_of(link);
    if (datagram->length > UM_SIM_DATAGRAM_BYTES)
        return -EMSGSIZE;
    if (!has_space(host, datagram->length))
        return 0;
    transmit(link, to, datagram);
    return 1;
}

static const um_link_ops LINK_OPS = {.send = link_send, .send_oversize = link_send_oversize};

void um_sim_link_init(um_sim_link *link, um_sim_host *host, um_address from)
{
    link->base.ops = &LINK_OPS;
    link->host = host;
    link->from = from;
}

int um_sim_inject(um_sim_world *world, um_sim_address from, um_sim_address to, int to_host, const uint8_t *data,
                  uint32_t length)
{
    if (length > UM_SIM_DATAGRAM_BYTES || to_host < 0 || (uint32_t)to_host >= world->host_count)
        return -EINVAL;
    um_part part = {data, length};
    int64_t slot = make_datagram(world, -1, from, to, &part, 1);
    if (slot < 0)
        return (int)slot;
    schedule_arrival(world->hosts[to_host], (uint32_t)slot, 0, false);
    um_sim_release_datagram(world, (uint32_t)slot);
    return 0;
}

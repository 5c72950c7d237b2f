#include "sim/adversary.h"

#include "core/wire/status_message.h"

enum { UNKNOWN_IP = 0x0a630001, UNKNOWN_PORT = 6666, LIST_MAX = 120, US = 1000, MS = 1000000 };

static uint32_t below(um_sim_adversary *adversary, uint32_t bound)
{
    return (uint32_t)um_random_below(&adversary->random, bound);
}

static bool percent(um_sim_adversary *adversary, uint32_t p)
{
    return below(adversary, 100) < p;
}

static uint32_t attack_end(const um_sim_world *world)
{
    return world->transport == UM_TRANSPORT_LBTRU ? UM_SIM_ATTACK_END : UM_SIM_ATTACK_LBTRM_END;
}

bool um_sim_adversary_init(um_sim_adversary *adversary, um_sim_world *world, enum um_sim_adversary_mode mode,
                           uint64_t seed)
{
    static const uint32_t BURSTS[] = {1, 2, 8, 80};
    *adversary = (um_sim_adversary){
        .world = world, .random = {seed ^ 0x616476657273u}, .report_random = {seed ^ 0x7265706f7274u}};
    adversary->overheard_bytes = um_sim_take(world, (size_t)UM_SIM_OVERHEARD_MAX * UM_SIM_DATAGRAM_BYTES);
    for (uint32_t attack = 0; attack < UM_SIM_ATTACK_DATA; attack++)
        adversary->attacks |= (uint32_t)percent(adversary, 60) << attack;
    for (uint32_t attack = UM_SIM_ATTACK_LBTRM_END; attack < attack_end(world); attack++)
        adversary->attacks |= (uint32_t)percent(adversary, 60) << attack;
    um_random separate = {seed ^ 0x626c696e64u}; /* so that other draws stay as they were */
    adversary->is_blind = um_random_below(&separate, 2) == 0;
    if (adversary->is_blind)
        adversary->attacks &= ~(1u << UM_SIM_ATTACK_REPLAY);
    if (mode == UM_SIM_ADVERSARY_FORGES_DATA)
        adversary->attacks |= 1u << UM_SIM_ATTACK_DATA;
    if (adversary->attacks == 0)
        adversary->attacks = 1u << UM_SIM_ATTACK_SM;
    adversary->gap_ns = (int64_t)(200 + below(adversary, 10000)) * US;
    adversary->burst_max = BURSTS[below(adversary, 4)];
    return adversary->overheard_bytes != NULL;
}

void um_sim_adversary_overhear(um_sim_adversary *adversary, const um_sim_datagram *datagram, const uint8_t *data)
{
    uint32_t place = below(adversary, UM_SIM_OVERHEARD_MAX);
    adversary->overheard[place] = (um_sim_overheard){datagram->from, datagram->to, datagram->length};
    memcpy(adversary->overheard_bytes + (size_t)place * UM_SIM_DATAGRAM_BYTES, data, datagram->length);
}

/* ---- sending ---- */

static void send_to_host(um_sim_adversary *adversary, uint32_t host, um_address from, um_address to,
                         const uint8_t *data, uint32_t length)
{
    if (um_sim_inject(adversary->world, from, to, (int)host, data, length) == 0)
        adversary->datagram_count++;
}

/* Sends to a group: to each host except a few, because an attacker's datagrams are lost, too. */
static void send(um_sim_adversary *adversary, um_address from, um_address to, const uint8_t *data, uint32_t length)
{
    bool group = um_ip_is_multicast(to.ip);
    for (uint32_t i = 0; i < adversary->world->host_count; i++) {
        const um_sim_host *host = adversary->world->hosts[i];
        if (!host->is_dead && (group ? percent(adversary, 80) : um_ip_equal(host->address.ip, to.ip)))
            send_to_host(adversary, i, from, to, data, length);
    }
}

static um_address control_address(const um_sim_session *session)
{
    return (um_address){session->host->address.ip, session->core.config.nak_port};
}

static um_session_id identity_of(const um_sim_session *session)
{
    const um_source_session_config *config = &session->core.config;
    return (um_session_id){control_address(session), config->group, config->session_id, config->transport, 0};
}

/* Sends as the source does: to the group, or to the address of each receiver except a few. */
static void send_to_receivers(um_sim_adversary *adversary, const um_sim_session *session, um_address from,
                              const uint8_t *data, uint32_t length)
{
    um_sim_world *world = adversary->world;
    if (session->core.config.transport == UM_TRANSPORT_LBTRM) {
        send(adversary, from, session->core.config.group, data, length);
        return;
    }
    for (uint32_t h = 0; h < world->host_count; h++) {
        const um_sim_host *host = world->hosts[h];
        for (uint32_t i = 0; i < host->node->session_count && !host->is_dead; i++) {
            const um_receiver_session *receiving = host->node->sessions[i];
            if (um_address_equal(receiving->config.id.source, control_address(session)) && percent(adversary, 80))
                send_to_host(adversary, h, from, receiving->local, data, length);
        }
    }
}

/* The source address of the session's datagrams. */
static um_address source_address(const um_sim_session *session)
{
    return session->core.config.transport == UM_TRANSPORT_LBTRU ? control_address(session) : session->host->address;
}

static um_sim_session *draw_session(um_sim_adversary *adversary)
{
    return adversary->world->sessions[below(adversary, adversary->world->session_count)];
}

/* Draws the address of an honest host or an unused one. */
static um_address draw_sender(um_sim_adversary *adversary)
{
    if (percent(adversary, 50))
        return (um_address){um_sim_ip(adversary->world, UNKNOWN_IP + below(adversary, 8)), UNKNOWN_PORT};
    const um_sim_host *host = adversary->world->hosts[below(adversary, adversary->world->host_count)];
    const um_node *node = host->node;
    if (adversary->world->transport == UM_TRANSPORT_LBTRU && node->session_count > 0)
        return node->sessions[below(adversary, node->session_count)]->local;
    return host->address;
}

/* A sender and its client id, which is a guess except for the adversary's own addresses. */
typedef struct sender {
    um_address address;
    uint32_t client_id;
} sender;

static sender draw_client(um_sim_adversary *adversary, const um_sim_session *session, bool is_own)
{
    if (session->core.config.transport == UM_TRANSPORT_LBTRM)
        return (sender){draw_sender(adversary), 0};
    um_address own = um_address_of_v4(UM_SIM_OWN_IP, (uint16_t)(UM_SIM_OWN_PORT + below(adversary, UM_SIM_OWN_PORTS)));
    um_address address = is_own ? own : draw_sender(adversary);
    bool is_known = is_own || adversary->has_key;
    uint32_t guess = percent(adversary, 50) ? below(adversary, 3) : (uint32_t)um_random_next(&adversary->random);
    return (sender){address, is_known ? um_client_map_id(&session->core.clients, address) : guess};
}

/* Draws one of the adversary's own addresses or another. */
static sender draw_any_client(um_sim_adversary *adversary, const um_sim_session *session)
{
    bool is_own = adversary->attacks >> UM_SIM_ATTACK_OWN & 1 && percent(adversary, 50);
    return draw_client(adversary, session, is_own);
}

/* Draws a sqn near one that is significant for the session, or any. */
static uint32_t draw_sqn(um_sim_adversary *adversary, const um_sim_session *session)
{
    const um_source_session *core = &session->core;
    uint32_t anchors[] = {core->next_sqn, core->next_sqn, core->trail_sqn, core->config.initial_sqn};
    static const uint32_t SPREADS[] = {3, 40, 400, 9000, 140000};
    uint32_t spread = SPREADS[below(adversary, 5)];
    if (percent(adversary, 10))
        return (uint32_t)um_random_next(&adversary->random);
    return anchors[below(adversary, 4)] + below(adversary, spread) - below(adversary, spread);
}

static uint32_t draw_list(um_sim_adversary *adversary, const um_sim_session *session, uint32_t *sqns)
{
    uint32_t count = 1 + below(adversary, LIST_MAX);
    uint32_t first = draw_sqn(adversary, session);
    bool is_run = percent(adversary, 70);
    for (uint32_t i = 0; i < count; i++)
        sqns[i] = is_run ? first + i : draw_sqn(adversary, session);
    return count;
}

/* ---- attacks ---- */

/* Draws a report of retransmissions among the newest datagrams. Returns its length. */
static uint32_t forge_repair_report(um_sim_adversary *adversary, const um_sim_session *session, uint8_t *out)
{
    um_random *random = &adversary->report_random;
    um_repair_report report = {.count = 1 + (uint32_t)um_random_below(random, UM_REPAIR_REPORT_ENTRIES_MAX)};
    for (uint32_t i = 0; i < report.count; i++)
        report.entries[i] =
            (um_repair_report_entry){session->core.next_sqn - (uint32_t)um_random_below(random, 100),
                                     (int64_t)um_random_below(random, 2) * (int64_t)um_random_below(random, 1000) * US};
    return um_repair_report_encode(out, &report);
}

static void forge_sm(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_FRAMING_SM_BYTES_MAX + UM_REPAIR_REPORT_BYTES_MAX];
    const um_source_session_config *config = &session->core.config;
    uint32_t lead = draw_sqn(adversary, session);
    uint32_t trail = percent(adversary, 50) ? lead : draw_sqn(adversary, session);
    uint32_t length = um_framing_write_sm(config->transport, out, config->session_id, config->nak_port,
                                          below(adversary, 1000), lead, trail);
    if (config->transport == UM_TRANSPORT_LBTRM && percent(adversary, 20))
        length += um_cookie_write(out + length, um_random_next(&adversary->random));
    else if (um_random_below(&adversary->report_random, 2) == 0)
        length += forge_repair_report(adversary, session, out + length);
    send_to_receivers(adversary, session, source_address(session), out, length);
}

static void forge_ncf(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_FRAMING_NCF_BYTES_MAX + 4 * LIST_MAX];
    const um_source_session_config *config = &session->core.config;
    uint32_t sqns[LIST_MAX], count = draw_list(adversary, session, sqns);
    uint32_t length =
        um_framing_write_ncf(config->transport, out, config->session_id, config->nak_port, draw_sqn(adversary, session),
                             (enum um_ncf_reason)below(adversary, 4), sqns, count);
    send_to_receivers(adversary, session, source_address(session), out, length);
}

static void forge_nak(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_FRAMING_NAK_BYTES_MAX + 4 * LIST_MAX];
    um_session_id id = identity_of(session);
    uint32_t sqns[LIST_MAX], count = draw_list(adversary, session, sqns);
    sender from = draw_any_client(adversary, session);
    uint32_t length = um_framing_write_nak(&id, out, from.client_id, sqns, count);
    send(adversary, from.address, control_address(session), out, length);
}

/* Draws the cookie of the session's messages, unless the adversary is blind, or a guess, or none. */
static uint64_t draw_cookie(um_sim_adversary *adversary, const um_sim_session *session)
{
    if (percent(adversary, 20))
        return 0;
    bool is_guess = adversary->is_blind || percent(adversary, 20);
    return is_guess ? um_random_next(&adversary->random) : session->core.config.flow_cookie;
}

static void forge_status(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_STATUS_DATAGRAM_BYTES_MAX];
    um_session_id id = identity_of(session);
    static const uint32_t WINDOWS[] = {0, 1, 20000, 1 << 20, UINT32_MAX};
    enum { NO_HOST = 1000 }; /* status messages are not sent to the group, so a blind adversary knows no id */
    um_status_message status = {.receiver_id = (adversary->is_blind ? NO_HOST : 1) +
                                               below(adversary, percent(adversary, 50) ? 8 : 100000),
                                .next_sqn = draw_sqn(adversary, session),
                                .window_bytes = WINDOWS[below(adversary, 5)],
                                .group_tag = below(adversary, 10),
                                .flags = (uint8_t)(percent(adversary, 70) ? 0 : below(adversary, 4)),
                                .cookie = draw_cookie(adversary, session)};
    sender from = draw_any_client(adversary, session);
    uint32_t length = um_status_write(out, &id, from.client_id, &status);
    send(adversary, from.address, control_address(session), out, length);
}

/* Sends a DATA datagram: one small message of an existing topic, or a header alone. */
static void send_data(um_sim_adversary *adversary, const um_sim_session *session, um_address from, uint32_t session_id)
{
    uint8_t out[128];
    const um_sim_world *world = adversary->world;
    const um_source_session_config *config = &session->core.config;
    uint32_t length = UM_FRAMING_DATA_BYTES;
    um_framing_write_data(config->transport, out, session_id, config->nak_port, draw_sqn(adversary, session),
                          draw_sqn(adversary, session), percent(adversary, 30));
    if (percent(adversary, 70)) {
        const um_source *source = &world->sources[below(adversary, world->source_count)]->core;
        um_lbmc_layout layout = {.topic_index = source->topic_index,
                                 .sqn = (uint32_t)atomic_load(&source->next_sqn) + below(adversary, 40) - 20,
                                 .payload_length = 4};
        uint8_t *payload = um_lbmc_write_message(out + length, &layout);
        memset(payload, 'x', 4);
        length = (uint32_t)(payload + 4 - out);
    }
    send_to_receivers(adversary, session, from, out, length);
}

static void send_as_unknown(um_sim_adversary *adversary, const um_sim_session *session)
{
    um_address unknown = {um_sim_ip(adversary->world, UNKNOWN_IP), UNKNOWN_PORT};
    uint32_t session_id = session->core.config.session_id;
    if (percent(adversary, 50))
        send_data(adversary, session, unknown, session_id);
    else
        send_data(adversary, session, source_address(session), session_id ^ (1 + below(adversary, 1000)));
}

/* Sends garbage behind the first bytes of a datagram of the session. */
static void send_garbage(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[256];
    const um_source_session_config *config = &session->core.config;
    uint32_t length = 1 + below(adversary, sizeof out);
    for (uint32_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)um_random_next(&adversary->random);
    if (percent(adversary, 80)) {
        um_framing_write_sm(config->transport, out, config->session_id, config->nak_port, 0, 0, 0);
        out[0] = (uint8_t)(1 + below(adversary, 255)); /* never valid data, which only keys could reject */
        out[0] = out[0] == UM_LBTRM_SM ? UM_LBTRM_NAK : out[0];
    }
    if (percent(adversary, 50))
        send_to_receivers(adversary, session, source_address(session), out, length);
    else
        send(adversary, source_address(session), control_address(session), out, length);
}

static void replay(um_sim_adversary *adversary, uint32_t place)
{
    const um_sim_overheard *old = &adversary->overheard[place % UM_SIM_OVERHEARD_MAX];
    const uint8_t *bytes = adversary->overheard_bytes + (size_t)(place % UM_SIM_OVERHEARD_MAX) * UM_SIM_DATAGRAM_BYTES;
    if (old->length > 0)
        send(adversary, old->from, old->to, bytes, old->length);
}

/* ---- LBT-RU ---- */

/* Some requests omit an option and are shorter. */
static void forge_creq(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_LBTRU_CREQ_BYTES];
    sender from = draw_client(adversary, session, false);
    um_lbtru_options options = {session->core.config.session_id, from.client_id, percent(adversary, 70)};
    send(adversary, from.address, control_address(session), out, um_lbtru_write_creq(out, &options));
}

static void acknowledge(um_sim_adversary *adversary, const um_sim_session *session, sender from)
{
    uint8_t out[UM_LBTRU_ACK_BYTES];
    um_lbtru_options options = {session->core.config.session_id, from.client_id, true};
    uint32_t length = um_lbtru_write_ack(out, &options, percent(adversary, 50), draw_sqn(adversary, session));
    send(adversary, from.address, control_address(session), out, length);
}

static void forge_rst(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_LBTRU_RST_BYTES];
    uint32_t length = um_lbtru_write_rst(out);
    if (percent(adversary, 70))
        send_to_receivers(adversary, session, source_address(session), out, length);
    else
        send(adversary, draw_sender(adversary), control_address(session), out, length);
}

/* Forges a SYN with the stream's true position; UM_SIM_ATTACK_SM covers false positions. */
static void forge_syn(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_LBTRU_SM_BYTES_MAX];
    const um_source_session *core = &session->core;
    um_lbtru_options options = {core->config.session_id, draw_client(adversary, session, false).client_id, true};
    uint32_t length = um_lbtru_write_sm(out, &options, true, core->sm_sqn, core->next_sqn - 1, core->trail_sqn);
    send_to_receivers(adversary, session, source_address(session), out, length);
}

static void attack(um_sim_adversary *adversary, enum um_sim_attack kind, uint32_t number)
{
    const um_sim_session *session = draw_session(adversary);
    switch (kind) {
    case UM_SIM_ATTACK_SM:
        forge_sm(adversary, session);
        break;
    case UM_SIM_ATTACK_NCF:
        forge_ncf(adversary, session);
        break;
    case UM_SIM_ATTACK_NAK:
        forge_nak(adversary, session);
        break;
    case UM_SIM_ATTACK_UNKNOWN:
        send_as_unknown(adversary, session);
        break;
    case UM_SIM_ATTACK_GARBAGE:
        send_garbage(adversary, session);
        break;
    case UM_SIM_ATTACK_STATUS:
        forge_status(adversary, session);
        break;
    case UM_SIM_ATTACK_REPLAY:
        replay(adversary, number);
        break;
    case UM_SIM_ATTACK_DATA:
        send_data(adversary, session, source_address(session), session->core.config.session_id);
        break;
    case UM_SIM_ATTACK_CREQ:
        forge_creq(adversary, session);
        break;
    case UM_SIM_ATTACK_ACK:
        acknowledge(adversary, session, draw_client(adversary, session, false));
        break;
    case UM_SIM_ATTACK_RST:
        forge_rst(adversary, session);
        break;
    case UM_SIM_ATTACK_SYN:
        forge_syn(adversary, session);
        break;
    case UM_SIM_ATTACK_OWN:
        acknowledge(adversary, session, draw_client(adversary, session, true));
        break;
    case UM_SIM_ATTACK_END:
        break;
    }
}

int64_t um_sim_adversary_step(um_sim_adversary *adversary)
{
    uint32_t kind;
    do
        kind = below(adversary, attack_end(adversary->world));
    while (!(adversary->attacks >> kind & 1));
    uint32_t count = 1 + below(adversary, adversary->burst_max), first = below(adversary, UM_SIM_OVERHEARD_MAX);
    for (uint32_t i = 0; i < count; i++)
        attack(adversary, (enum um_sim_attack)kind, first + i);
    return um_random_backoff_ns(&adversary->random, adversary->gap_ns);
}

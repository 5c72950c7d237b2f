#include "sim/adversary.h"

#include "core/status_message.h"

enum { STRANGER_IP = 0x0a630001, STRANGER_PORT = 6666, LIST_MAX = 120, US = 1000, MS = 1000000 };

static uint32_t below(um_sim_adversary *adversary, uint32_t bound)
{
    return (uint32_t)um_random_below(&adversary->random, bound);
}

static bool percent(um_sim_adversary *adversary, uint32_t p)
{
    return below(adversary, 100) < p;
}

bool um_sim_adversary_init(um_sim_adversary *adversary, um_sim_world *world, enum um_sim_adversary_mode mode,
                           uint64_t seed)
{
    static const uint32_t BURSTS[] = {1, 2, 8, 80};
    *adversary = (um_sim_adversary){.world = world, .random = {seed ^ 0x616476657273u}};
    adversary->overheard_bytes = um_sim_take(world, (size_t)UM_SIM_OVERHEARD_MAX * UM_SIM_DATAGRAM_BYTES);
    for (uint32_t attack = 0; attack < UM_SIM_ATTACK_DATA; attack++)
        adversary->attacks |= (uint32_t)percent(adversary, 60) << attack;
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

/* To a group: to each host but a few, for what an attacker sends is lost, too. */
static void send(um_sim_adversary *adversary, um_address from, um_address to, const uint8_t *data, uint32_t length)
{
    bool group = to.ip >> 28 == 0xe;
    for (uint32_t i = 0; i < adversary->world->host_count; i++) {
        const um_sim_host *host = adversary->world->hosts[i];
        if (!host->dead && (group ? percent(adversary, 80) : host->address.ip == to.ip))
            send_to_host(adversary, i, from, to, data, length);
    }
}

static um_sim_session *draw_session(um_sim_adversary *adversary)
{
    return adversary->world->sessions[below(adversary, adversary->world->session_count)];
}

static um_address nak_port_of(const um_sim_session *session)
{
    return (um_address){session->host->address.ip, session->core.config.nak_port};
}

/* An honest host's address, or one that nobody has. */
static um_address draw_sender(um_sim_adversary *adversary)
{
    if (percent(adversary, 50))
        return (um_address){STRANGER_IP + below(adversary, 8), STRANGER_PORT};
    return adversary->world->hosts[below(adversary, adversary->world->host_count)]->address;
}

/* A number near one that means something to the session, or anywhere. */
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

static void forge_sm(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_LBTRM_SM_BYTES];
    uint32_t lead = draw_sqn(adversary, session);
    uint32_t trail = percent(adversary, 50) ? lead : draw_sqn(adversary, session);
    um_lbtrm_write_sm(out, session->core.config.session_id, session->core.config.nak_port, below(adversary, 1000), lead,
                      trail);
    send(adversary, session->host->address, session->core.config.group, out, sizeof out);
}

static void forge_ncf(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_LBTRM_NCF_BYTES + 4 * LIST_MAX];
    uint32_t sqns[LIST_MAX], count = draw_list(adversary, session, sqns);
    uint32_t length =
        um_lbtrm_write_ncf(out, session->core.config.session_id, session->core.config.nak_port,
                           draw_sqn(adversary, session), (enum um_ncf_reason)below(adversary, 4), sqns, count);
    send(adversary, session->host->address, session->core.config.group, out, length);
}

static void forge_nak(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_LBTRM_NAK_BYTES + 4 * LIST_MAX];
    uint32_t sqns[LIST_MAX], count = draw_list(adversary, session, sqns);
    uint32_t length =
        um_lbtrm_write_nak(out, session->core.config.session_id, session->core.config.nak_port, sqns, count);
    send(adversary, draw_sender(adversary), nak_port_of(session), out, length);
}

static void forge_status(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[UM_STATUS_DATAGRAM_BYTES];
    static const uint32_t WINDOWS[] = {0, 1, 20000, 1 << 20, UINT32_MAX};
    um_status_message status = {.receiver_id = 1 + below(adversary, percent(adversary, 50) ? 8 : 100000),
                                .next_sqn = draw_sqn(adversary, session),
                                .window_bytes = WINDOWS[below(adversary, 5)],
                                .group_tag = below(adversary, 10),
                                .flags = (uint8_t)(percent(adversary, 70) ? 0 : below(adversary, 4))};
    uint32_t length = um_status_encode(out, session->core.config.session_id, session->core.config.nak_port, &status);
    send(adversary, draw_sender(adversary), nak_port_of(session), out, length);
}

/* Data: one small message of a topic that exists, or a header alone. */
static void send_data(um_sim_adversary *adversary, const um_sim_session *session, um_address from, uint32_t session_id)
{
    uint8_t out[128];
    const um_sim_world *world = adversary->world;
    uint32_t length = UM_LBTRM_DATA_BYTES;
    um_lbtrm_write_data(out, session_id, session->core.config.nak_port, draw_sqn(adversary, session),
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
    send(adversary, from, session->core.config.group, out, length);
}

static void send_as_stranger(um_sim_adversary *adversary, const um_sim_session *session)
{
    um_address stranger = {STRANGER_IP, STRANGER_PORT};
    uint32_t session_id = session->core.config.session_id;
    if (percent(adversary, 50))
        send_data(adversary, session, stranger, session_id);
    else
        send_data(adversary, session, session->host->address, session_id ^ (1 + below(adversary, 1000)));
}

/* Bytes that begin like a datagram of the session. */
static void send_garbage(um_sim_adversary *adversary, const um_sim_session *session)
{
    uint8_t out[256];
    uint32_t length = 1 + below(adversary, sizeof out);
    for (uint32_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)um_random_next(&adversary->random);
    if (percent(adversary, 80)) {
        um_lbtrm_write_sm(out, session->core.config.session_id, session->core.config.nak_port, 0, 0, 0);
        out[0] = (uint8_t)(1 + below(adversary, 255)); /* no version 0 with data, which only keys could tell */
        out[0] = out[0] == UM_LBTRM_SM ? UM_LBTRM_NAK : out[0];
    }
    send(adversary, session->host->address, percent(adversary, 50) ? session->core.config.group : nak_port_of(session),
         out, length);
}

static void replay(um_sim_adversary *adversary, uint32_t place)
{
    const um_sim_overheard *old = &adversary->overheard[place % UM_SIM_OVERHEARD_MAX];
    const uint8_t *bytes = adversary->overheard_bytes + (size_t)(place % UM_SIM_OVERHEARD_MAX) * UM_SIM_DATAGRAM_BYTES;
    if (old->length > 0)
        send(adversary, old->from, old->to, bytes, old->length);
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
    case UM_SIM_ATTACK_STRANGER:
        send_as_stranger(adversary, session);
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
        send_data(adversary, session, session->host->address, session->core.config.session_id);
        break;
    case UM_SIM_ATTACK_END:
        break;
    }
}

int64_t um_sim_adversary_step(um_sim_adversary *adversary)
{
    uint32_t kind;
    do
        kind = below(adversary, UM_SIM_ATTACK_END);
    while (!(adversary->attacks >> kind & 1));
    uint32_t count = 1 + below(adversary, adversary->burst_max), first = below(adversary, UM_SIM_OVERHEARD_MAX);
    for (uint32_t i = 0; i < count; i++)
        attack(adversary, (enum um_sim_attack)kind, first + i);
    return um_random_backoff_ns(&adversary->random, adversary->gap_ns);
}

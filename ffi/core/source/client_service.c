#include "core/source/client_service.h"

#include "core/source/client_interest.h"
#include "core/source/datagram_building.h"
#include "core/source/transmission_window.h"
#include "core/wire/framing.h"

enum {
    ANSWERS_PER_SLICE = 64, /* responses to addresses that are not clients' */
    SLICE_NS = 10000000,
    CHECKS_PER_TIMEOUT = 8,
};

static bool is_id_right(um_source_session *session, um_address from, const um_packet *packet)
{
    return packet->client_id == um_client_map_id(&session->clients, from);
}

/* Takes one of the responses allowed per slice to addresses that may be forged. Returns false if there is none left. */
static bool take_answer(um_source_session *session, int64_t now_ns)
{
    if (now_ns - session->answers_since_ns >= SLICE_NS) {
        session->answers_since_ns = now_ns;
        session->answer_count = 0;
    }
    if (session->answer_count == ANSWERS_PER_SLICE) {
        UM_COUNT(session->counters.connect_answers_limited, 1);
        return false;
    }
    session->answer_count++;
    return true;
}

static void send_reset(um_source_session *session, um_address to, int64_t now_ns)
{
    uint8_t datagram[UM_LBTRU_RST_BYTES];
    if (take_answer(session, now_ns) &&
        um_fan_out_send_to(&session->fan_out, to, datagram, um_lbtru_write_rst(datagram)))
        UM_COUNT(session->counters.resets_sent, 1);
}

void um_clients_on_creq(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns)
{
    uint8_t datagram[UM_LBTRU_SM_BYTES_MAX];
    um_lbtru_options options = {session->config.session_id, um_client_map_id(&session->clients, from), true};
    UM_COUNT(session->counters.creqs_rcved, 1);
    if (!(packet->options & UM_LBTRU_HAS_CLIENT_ID)) {
        UM_COUNT(session->counters.dgrams_dropped_client, 1);
        return;
    }
    if (!take_answer(session, now_ns))
        return;
    uint32_t length =
        um_lbtru_write_sm(datagram, &options, true, packet->client_id, session->next_sqn - 1, session->trail_sqn);
    if (um_fan_out_send_to(&session->fan_out, from, datagram, length))
        UM_COUNT(session->counters.session_messages_sent, 1);
}

/* The rate limits count every copy. */
static void note_count(um_source_session *session)
{
    session->copies = session->clients.count > 1 ? session->clients.count : 1;
}

/* Returns NULL if the client is refused. */
static um_client *connect_client(um_source_session *session, um_address from, int64_t now_ns)
{
    bool is_allowed = um_flow_is_allowed(session->config.flow_networks, session->config.flow_network_count, from.ip);
    um_client *client = is_allowed ? um_client_map_add(&session->clients, from, now_ns) : NULL;
    if (client == NULL) {
        UM_COUNT(session->counters.clients_refused, 1);
        return NULL;
    }
    note_count(session);
    session->clients_due_ns = now_ns;
    UM_COUNT(session->counters.clients_connected, 1);
    um_source_events_add(&session->events, UM_SOURCE_CLIENT_CONNECTED, from, session->clients.count);
    return client;
}

static void disconnect_client(um_source_session *session, um_client *client)
{
    um_address address = client->address;
    um_client_map_remove(&session->clients, client);
    note_count(session);
    UM_COUNT(session->counters.clients_disconnected, 1);
    um_source_events_add(&session->events, UM_SOURCE_CLIENT_DISCONNECTED, address, session->clients.count);
}

void um_clients_on_ack(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns)
{
    UM_COUNT(session->counters.acks_rcved, 1);
    um_client *client = um_client_map_find(&session->clients, from);
    if (!is_id_right(session, from, packet)) {
        UM_COUNT(session->counters.dgrams_dropped_client, 1);
        if (client == NULL)
            send_reset(session, from, now_ns);
        return;
    }
    if (client == NULL) {
        client = connect_client(session, from, now_ns);
        if (client == NULL)
            return;
    }
    client->acknowledged_ns = now_ns;
    client->acknowledged_sqn = packet->sqn;
    um_clients_on_acknowledged(session, client, !(packet->flags & UM_LBTRU_FLAG_SYN));
}

bool um_clients_admit(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns)
{
    bool is_client = um_client_map_find(&session->clients, from) != NULL;
    if (is_client && is_id_right(session, from, packet))
        return true;
    UM_COUNT(session->counters.dgrams_dropped_client, 1);
    if (!is_client && !is_id_right(session, from, packet))
        send_reset(session, from, now_ns);
    return false;
}

void um_clients_on_leave(um_source_session *session, um_address from)
{
    um_client *client = um_client_map_find(&session->clients, from);
    if (client != NULL)
        disconnect_client(session, client);
}

/* ---- sending ---- */

void um_clients_note_behind(um_source_session *session, int64_t now_ns)
{
    um_client_map *clients = &session->clients;
    for (uint32_t i = 0; i < clients->count; i++) {
        um_client *client = &clients->clients[i];
        client->behind = client->unsent;
        clients->behind_count += client->unsent > 0;
    }
    um_clients_note_passed(session, now_ns);
}

/* Sends one client the datagrams it is behind by. Returns false if the link is full. */
static bool catch_up(um_source_session *session, um_client *client)
{
    um_tx batch[UM_SEND_BATCH_MAX];
    uint32_t held = session->next_sqn - session->trail_sqn;
    if (client->behind > held) { /* some have left the window: those were not passed over, but lost */
        client->behind = held;
        client->passed = client->passed_bytes = 0;
    }
    uint32_t first = session->next_sqn - client->behind;
    uint32_t path_bytes = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed) + UM_FRAMING_DATA_BYTES;
    um_debug_assert(client->behind <= UM_SEND_BATCH_MAX);
    for (uint32_t i = 0; i < client->behind; i++) {
        const um_sent *sent = um_source_session_sent(session, first + i);
        um_clients_select(session, sent, i);
        um_datagram_build(session, sent, first + i, false, i, &batch[i]);
    }
    uint32_t sent = 0;
    while (sent < client->behind) {
        bool is_oversize = batch[sent].length > path_bytes;
        uint32_t run = is_oversize ? 1 : client->behind - sent;
        for (uint32_t i = sent; !is_oversize && i < sent + run; i++)
            run = batch[i].length > path_bytes ? i - sent : run;
        int result = um_fan_out_catch_up(&session->fan_out, client, batch + sent, run, is_oversize);
        if (result == 0)
            break;
        sent += result > 0 ? (uint32_t)result : run; /* datagrams that the path refuses are lost to the client */
    }
    client->behind -= sent;
    return client->behind == 0;
}

bool um_clients_catch_up(um_source_session *session)
{
    um_client_map *clients = &session->clients;
    for (uint32_t i = 0; i < clients->count && clients->behind_count > 0; i++) {
        um_client *client = &clients->clients[i];
        if (client->behind == 0)
            continue;
        if (!catch_up(session, client))
            return false;
        clients->behind_count--;
    }
    return true;
}

int64_t um_clients_tick(um_source_session *session, int64_t now_ns)
{
    um_client_map *clients = &session->clients;
    int64_t next_ns = UM_NEVER_NS;
    if (UM_LIKELY(clients->count == 0))
        return UM_NEVER_NS;
    if (now_ns < session->clients_due_ns)
        return session->clients_due_ns;
    for (uint32_t i = clients->count; i-- > 0;) {
        int64_t due_ns = clients->clients[i].acknowledged_ns + session->config.client_timeout_ns;
        if (now_ns >= due_ns)
            disconnect_client(session, &clients->clients[i]);
        else
            next_ns = um_earliest_ns(next_ns, due_ns);
    }
    int64_t check_ns = now_ns + session->config.client_timeout_ns / CHECKS_PER_TIMEOUT + 1;
    session->clients_due_ns = um_earliest_ns(next_ns, check_ns);
    return clients->count == 0 ? UM_NEVER_NS : session->clients_due_ns;
}

#include "core/source/fan_out.h"

#include "core/wire/lbtru.h"

/* Sends datagrams in IP fragments: the path to this client is narrower than the interface. */
static int send_fragmented(um_link *next, um_address to, const um_tx *batch, uint32_t count)
{
    uint32_t sent = 0;
    int result = 1;
    while (sent < count && result == 1) {
        result = next->ops->send_oversize(next, to, &batch[sent]);
        sent += result == 1;
    }
    return sent > 0 ? (int)sent : result;
}

/* Sends one client's copy. Returns how many datagrams were sent, or -errno if none was. */
static int send_copy(um_link *next, um_address to, const um_tx *batch, uint32_t count)
{
    uint32_t sent = 0;
    int result = 1;
    while (sent < count && result > 0) {
        result = next->ops->send(next, to, batch + sent, count - sent);
        if (result == -EMSGSIZE)
            result = send_fragmented(next, to, batch + sent, count - sent);
        sent += result > 0 ? (uint32_t)result : 0;
    }
    return sent > 0 ? (int)sent : result;
}

static int send_one(um_link *next, um_address to, const um_tx *batch, uint32_t count, bool is_oversize)
{
    return is_oversize ? next->ops->send_oversize(next, to, batch) : send_copy(next, to, batch, count);
}

/* ---- filtering ---- */

/* The datagrams of a batch that one client needs. */
typedef struct um_pick {
    um_tx batch[UM_SEND_BATCH_MAX];
    uint32_t at[UM_SEND_BATCH_MAX]; /* their indices in the whole batch */
    uint32_t count;
    uint32_t passed;       /* datagrams after the last one picked that the client does not need */
    uint32_t passed_bytes; /* bytes of those */
} um_pick;

static bool is_retransmission(const um_selection *selection)
{
    um_packet packet;
    return um_lbtru_decode(selection->header, UM_LBTRU_DATA_BYTES, &packet) == UM_DGRAM_OK &&
           packet.flags & UM_LBTRM_FLAG_RETRANSMISSION;
}

/* Picks the datagrams, and writes into each header how many before it were passed over. */
static void pick(um_pick *picked, const um_client *client, uint32_t place, const um_tx *batch, uint32_t count,
                 bool is_new)
{
    picked->count = 0;
    picked->passed = is_new ? client->passed : 0;
    picked->passed_bytes = is_new ? client->passed_bytes : 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!um_client_map_is_in(batch[i].selection->clients, place)) {
            picked->passed += is_new;
            picked->passed_bytes += batch[i].length;
            continue;
        }
        bool can_hold = picked->passed < UM_LBTRU_PASSED_MAX;
        um_lbtru_set_passed(batch[i].selection->header, can_hold ? picked->passed : UM_LBTRU_PASSED_MAX);
        picked->batch[picked->count] = batch[i];
        picked->at[picked->count++] = i;
        picked->passed = picked->passed_bytes = 0;
    }
}

/* Like send_one, for a client that needs only some of the datagrams; those it does not need count as sent. */
static int send_filtered(um_fan_out *link, um_client *client, const um_tx *batch, uint32_t count, bool is_oversize)
{
    um_pick picked;
    bool is_new = !is_retransmission(batch[0].selection);
    pick(&picked, client, (uint32_t)(client - link->clients->clients), batch, count, is_new);
    int sent = picked.count == 0 ? 0 : send_one(link->next, client->address, picked.batch, picked.count, is_oversize);
    bool is_done = sent < 0 || (uint32_t)sent == picked.count;
    if (is_new && (is_done || sent > 0)) {
        link->filtered_count += is_done ? count - picked.count : picked.at[sent - 1] + 1 - (uint32_t)sent;
        client->passed = is_done ? picked.passed : 0;
        client->passed_bytes = is_done ? picked.passed_bytes : 0;
    }
    if (sent < 0)
        return sent;
    if (is_done)
        return (int)count;
    return sent == 0 ? 0 : (int)picked.at[sent - 1] + 1;
}

int um_fan_out_catch_up(um_fan_out *link, um_client *client, const um_tx *batch, uint32_t count, bool is_oversize)
{
    return batch[0].selection != NULL ? send_filtered(link, client, batch, count, is_oversize)
                                      : send_one(link->next, client->address, batch, count, is_oversize);
}

/* ---- every client ---- */

static int fan_out(um_fan_out *link, const um_tx *batch, uint32_t count, bool is_oversize)
{
    um_client_map *clients = link->clients;
    int most = clients->count == 0 ? (int)count : 0, error = 0;
    uint32_t first = link->first, refused = UINT32_MAX;
    bool has_left_out = false;
    for (uint32_t i = 0; i < clients->count; i++) {
        uint32_t place = (first + i) % clients->count;
        um_client *client = &clients->clients[place];
        int sent = um_fan_out_catch_up(link, client, batch, count, is_oversize);
        error = sent < 0 ? sent : error;
        client->unsent = sent < 0 ? 0 : count - (uint32_t)sent;
        most = sent > most ? sent : most;
        bool is_left_out = client->unsent == count;
        if (client->unsent > 0 && (refused == UINT32_MAX || (is_left_out && !has_left_out))) {
            refused = place;
            has_left_out = is_left_out;
        }
    }
    link->first = refused == UINT32_MAX ? first : refused;
    for (uint32_t i = 0; i < clients->count; i++) {
        um_client *client = &clients->clients[i];
        uint32_t beyond = count - (uint32_t)most; /* datagrams that no client was sent */
        client->unsent = client->unsent > beyond ? client->unsent - beyond : 0;
    }
    return most == 0 && error < 0 ? error : most;
}

/* The group address is ignored. */
static int send_to_clients(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    (void)to;
    return fan_out((um_fan_out *)base, batch, count, false);
}

static int send_oversize_to_clients(um_link *base, um_address to, const um_tx *datagram)
{
    (void)to;
    return fan_out((um_fan_out *)base, datagram, 1, true);
}

bool um_fan_out_send_to(um_fan_out *link, um_address to, const uint8_t *datagram, uint32_t length)
{
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    return link->next->ops->send(link->next, to, &tx, 1) == 1;
}

void um_fan_out_init(um_fan_out *link, um_link *next, um_client_map *clients)
{
    static const um_link_ops OPS = {.send = send_to_clients, .send_oversize = send_oversize_to_clients};
    *link = (um_fan_out){.base = {.ops = &OPS, .is_faster_in_one_piece = true}, .next = next, .clients = clients};
}

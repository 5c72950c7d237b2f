#include "core/fan_out.h"

/* A path that is narrower than the interface: its copy goes out in IP fragments. */
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

/* The copy of one client: how many it was sent, or -errno when it was sent none. */
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

static int fan_out(um_fan_out *link, const um_tx *batch, uint32_t count, bool oversize)
{
    um_client_map *clients = link->clients;
    int most = clients->count == 0 ? (int)count : 0, error = 0;
    uint32_t first = link->first, refused = UINT32_MAX;
    for (uint32_t i = 0; i < clients->count; i++) {
        uint32_t place = (first + i) % clients->count;
        um_client *client = &clients->clients[place];
        int sent = oversize ? link->next->ops->send_oversize(link->next, client->address, batch)
                            : send_copy(link->next, client->address, batch, count);
        error = sent < 0 ? sent : error;
        client->unsent = sent < 0 ? 0 : count - (uint32_t)sent;
        most = sent > most ? sent : most;
        if (client->unsent > 0 && refused == UINT32_MAX)
            refused = place;
    }
    link->first = refused == UINT32_MAX ? first : refused;
    for (uint32_t i = 0; i < clients->count; i++) {
        um_client *client = &clients->clients[i];
        uint32_t beyond = count - (uint32_t)most; /* nobody was sent those */
        client->unsent = client->unsent > beyond ? client->unsent - beyond : 0;
    }
    return most == 0 && error < 0 ? error : most;
}

/* To its clients, wherever a session of one group would send it. */
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

void um_fan_out_init(um_fan_out *link, um_link *next, um_client_map *clients)
{
    static const um_link_ops OPS = {.send = send_to_clients, .send_oversize = send_oversize_to_clients};
    *link = (um_fan_out){.base = {.ops = &OPS, .takes_whole = true}, .next = next, .clients = clients};
}

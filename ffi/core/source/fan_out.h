/* The link of an LBT-RU source session: sends each batch to every client, one copy after the other, through the next
 * link (segmented by the kernel where possible).
 *
 * The result for a batch is the largest number of datagrams that any client was sent, or all of them without clients.
 * `unsent` of each client is the number of those that it was not sent: new data is sent to it later (client_service.h);
 * other datagrams are lost to it, as they might be on the network. The first client that a full link refused a whole
 * batch, or else a part of one, is served first next time, so that no client starves. A client without a route is left
 * out; its error is the result only if no client was sent anything.
 *
 * Datagrams with a selection are sent only to the selected clients (client_interest.h). Each copy of new data carries
 * in its header the number of datagrams before it that the client was not sent.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Errors: those of the next link.
 */
#ifndef UM_CORE_FAN_OUT_H
#define UM_CORE_FAN_OUT_H

#include "core/foundation/link.h"
#include "core/source/client_map.h"

typedef struct um_fan_out {
    um_link base;
    um_link *next;
    um_client_map *clients;
    uint32_t first;          /* index in the map of the client that is served first, modulo their number */
    uint64_t filtered_count; /* copies of new data that were not sent because the client did not need them */
} um_fan_out;

void um_fan_out_init(um_fan_out *link, um_link *next, um_client_map *clients);

/* Sends one client new data that it is behind by. Returns how many datagrams are done, including those for other
 * clients, or -errno. */
int um_fan_out_catch_up(um_fan_out *link, um_client *client, const um_tx *batch, uint32_t count, bool is_oversize);

/* Sends one datagram to one address, client or not. Returns false if the link does not accept it. */
bool um_fan_out_send_to(um_fan_out *link, um_address to, const uint8_t *datagram, uint32_t length);

#endif

/* The link of an LBT-RU source session: what is sent goes to each client, one copy after the other, each as the link
 * behind it sends a batch (segmented by the kernel where that works).
 *
 * A batch counts as taken as far as any client's copy was, or whole without a client. Of the others `unsent` says how
 * much at its end they were not sent: new data is sent to them later (client_service.h), anything else is lost to them
 * as it might be on the way. The first client that a full link refused all of a batch, or else some of it, is the first
 * to be sent the next one, so that none is left out for good. A client that the path does not lead to is left out; the
 * result is its error only when nobody's copy was taken.
 *
 * Datagrams with a selection are for some clients only (client_interest.h). Each copy of new data says in its header
 * how many datagrams before it the client was not sent.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Errors: as the link behind it.
 */
#ifndef UM_CORE_FAN_OUT_H
#define UM_CORE_FAN_OUT_H

#include "core/foundation/link.h"
#include "core/source/client_map.h"

typedef struct um_fan_out {
    um_link base;
    um_link *next;
    um_client_map *clients;
    uint32_t first;          /* the place in the map of the client that is served first, modulo their count */
    uint64_t filtered_count; /* copies of new data that clients did not want */
} um_fan_out;

void um_fan_out_init(um_fan_out *link, um_link *next, um_client_map *clients);

/* What one client is yet to be sent of new data. Returns how many datagrams it has, those for others included, or
 * -errno. */
int um_fan_out_catch_up(um_fan_out *link, um_client *client, const um_tx *batch, uint32_t count, bool oversize);

/* One datagram to one address, whether a client or not. False when the link does not take it. */
bool um_fan_out_send_to(um_fan_out *link, um_address to, const uint8_t *datagram, uint32_t length);

#endif

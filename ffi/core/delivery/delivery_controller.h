/* The delivery controller: the receiving topic layer, one per receiver and source (UM-7..UM-12, UM-53..UM-61,
 * UM-95..UM-101, UX-6..UX-8). It drops duplicates, delivers in sequence order (mode 1) or on arrival (-1, and 0 without
 * reassembly), and declares loss: a gap is given up when the session's NAK generation interval has passed since its
 * detection and a datagram of the topic arrives (UM-100), or at a loss check.
 *
 * This file handles arrivals, the beginning and the end. order_map.h holds waiting messages, reassembly.h joins
 * fragments, loss_declaration.h delivers from the head of the map and gives gaps up, delivery_rows.h appends rows.
 *
 * Rows are appended to the receiver's queue. If that is full, the controller keeps its messages and continues at the
 * next um_delivery_tick; the owner takes no datagrams until then.
 *
 * Threads: the context lock. Memory: the owner's. Complexity: constant for a message in order. Errors: none; malformed
 * sequence numbers are counted.
 */
#ifndef UM_CORE_DELIVERY_CONTROLLER_H
#define UM_CORE_DELIVERY_CONTROLLER_H

#include "core/delivery/delivery_state.h"

void um_delivery_init(um_delivery *delivery, um_receiver *receiver, uint32_t id, uint32_t source, uint32_t topic_index,
                      int64_t give_up_ns);

void um_delivery_on_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival);
void um_delivery_on_tsni(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival);

/* Puts a fetched message into the order map. Returns false if there is no space. */
bool um_delivery_hold_recovered(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival);

/* Announces the new source to a receiver with source_notification, before the session's beginning. */
void um_delivery_register(um_delivery *delivery);

/* Beginning and end of the transport session (UM-76, UM-81, UM-105). It begins once, with the first datagram of any
 * kind or the first fetched message. */
void um_delivery_begin(um_delivery *delivery);
void um_delivery_end(um_delivery *delivery, int64_t now_ns);

/* Starts delivery at next_sqn, because no datagram before the first one seen is lost any more. next_sqn is lowest_held,
 * or lower if a fetch will close the gap between them. */
void um_delivery_start(um_delivery *delivery, uint32_t next_sqn, int64_t now_ns);

/* Continues after a full queue, and checks for loss if that is due. Returns when the next call is due. */
int64_t um_delivery_tick(um_delivery *delivery, int64_t now_ns);

/* Releases the held messages and announces the deletion of the source. */
void um_delivery_fini(um_delivery *delivery);

#endif

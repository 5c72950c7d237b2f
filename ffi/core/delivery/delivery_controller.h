/* The delivery controller: the receiving topic layer, one per (receiver x source) (UM-7..UM-12, UM-53..UM-61,
 * UM-95..UM-101, UX-6..UX-8). It drops duplicates, orders (mode 1) or delivers as messages come (-1, and 0 without
 * reassembly), and declares loss: a gap is given up when the session's NAK generation interval has passed since
 * its detection and something of the topic arrives (UM-100), or at a loss check.
 *
 * Here: arrivals, the beginning and the end. order_map.h holds what waits, reassembly.h puts fragments together,
 * loss_declaration.h delivers from the head of the map and gives gaps up, delivery_rows.h appends rows.
 *
 * Rows go into the receiver's queue. When that is full the controller keeps what it holds and goes on at the next
 * um_delivery_drain; the owner stops taking datagrams in the meantime.
 *
 * Threads: the context lock.
 */
#ifndef UM_CORE_DELIVERY_CONTROLLER_H
#define UM_CORE_DELIVERY_CONTROLLER_H

#include "core/delivery/delivery_state.h"

void um_delivery_init(um_delivery *delivery, um_receiver *receiver, uint32_t id, uint32_t source, uint32_t topic_index,
                      int64_t give_up_ns);

void um_delivery_on_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival);
void um_delivery_on_tsni(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival);

/* Takes a message that late join has fetched into the order map; false when there is no space. */
bool um_delivery_hold_recovered(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival);

/* Tells the receiver of its new source, where it wants that; before the session's beginning. */
void um_delivery_register(um_delivery *delivery);

/* Beginning and end of the transport session (UM-76, UM-81, UM-105). It begins once, with the first datagram of any
 * kind or with what is fetched, whichever comes first. */
void um_delivery_begin(um_delivery *delivery);
void um_delivery_end(um_delivery *delivery, int64_t now_ns);

/* Datagrams before the first one seen are no longer lost: delivery may start, at the lowest sqn held, or before it
 * where what lies between is to come. */
void um_delivery_start(um_delivery *delivery, uint32_t next_sqn, int64_t now_ns);

/* Goes on after a full queue, and checks for loss when that is due. Returns when the next call is due. */
int64_t um_delivery_tick(um_delivery *delivery, int64_t now_ns);

/* Removes everything held. */
void um_delivery_fini(um_delivery *delivery);

#endif

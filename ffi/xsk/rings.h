/* AF_XDP through libxdp: the ring set (io/rings.h) of one NIC, with a socket on each of its receive queues. The
 * interface that it serves is the NIC itself or a device on top of it, such as a VLAN device: sent frames carry that
 * device's Ethernet address and tag. rings.c opens and closes a ring set, rings_data.c moves datagrams,
 * rings_statistics.c reads facts and counters.
 *
 * Each queue has its own memory for frames (UMEM), in huge pages if available. This library does not load the program
 * that steers datagrams to the sockets (libxdp loads none either): the opener puts the descriptors that
 * um_xsk_rings_socket returns into the program's map.
 *
 * A process with the privilege can open a ring set for a process without it: it opens the ring set with `is_lent`,
 * passes the descriptors of sockets and memory and the resulting config, and closes its own copy. The other process
 * builds a ring set from them with um_xsk_rings_adopt, which requires no privilege, and is then the only one that
 * touches rings or frames.
 *
 * Threads: opening, closing and the facts belong to the opener; for the rest see io/rings.h.
 * System calls: mmap, memfd_create, socket, setsockopt, getsockopt, bind, ioctl, sendto, recvfrom, close.
 */
#ifndef UM_XSK_RINGS_H
#define UM_XSK_RINGS_H

#include "xsk/rings_config.h"

/* Returns 0 or a negative errno: EOPNOTSUPP if the driver lacks the mode, EBUSY if another socket has the queue, EINVAL
 * if there is no such queue, ENOBUFS if the locked memory limit is too low, ENODEV if there is no such interface.
 * *rings is set unless memory ran out and must be closed in every case; um_xsk_rings_failed_step names what failed. */
int um_xsk_rings_open(const um_xsk_config *config, um_xsk_rings **rings);
/* Builds a ring set from the descriptors of a lent one. `sockets` has config->queue_count of them. The config is the
 * lender's, with huge_pages and busy_poll as they turned out. The ring set duplicates the descriptors; the caller keeps
 * its own. Errors as above, but EBUSY: the kernel is older than 6.4 and cannot map rings of a bound socket; EPROTO: the
 * memory's size does not match the config. */
int um_xsk_rings_adopt(const um_xsk_config *config, const int *sockets, int memory, um_xsk_rings **rings);
void um_xsk_rings_close(um_xsk_rings *rings);
const char *um_xsk_rings_failed_step(const um_xsk_rings *rings);

um_rings *um_xsk_rings_base(um_xsk_rings *rings);
/* Reads the interface's Ethernet address again, for datagrams sent from now on. 0 or a negative errno. Any thread. */
int um_xsk_rings_learn_address(um_xsk_rings *rings);
/* Sends datagrams through the sockets of their sessions from now on, so that they reach receivers on this host, or
 * through the rings again. Any thread. */
void um_xsk_rings_send_by_socket(um_xsk_rings *rings, bool is_by_socket);
void um_xsk_rings_facts(const um_xsk_rings *rings, um_xsk_facts *facts);
/* The descriptor of the socket on queue first_queue + index. The ring set owns it. */
int um_xsk_rings_socket(const um_xsk_rings *rings, uint32_t index);
/* The descriptor of the frames' memory, also owned by the ring set; -1 unless it is lent. */
int um_xsk_rings_memory(const um_xsk_rings *rings);

/* Datagrams received on queue first_queue + index. Any thread. */
uint64_t um_xsk_rings_received(const um_xsk_rings *rings, uint32_t index);

/* For programs that use a queue without a context (ffi/xsk/raw_*.c). The caller holds the queue's send lock if other
 * threads may send. */
um_xsk_queue *um_xsk_rings_queue(um_xsk_rings *rings, uint32_t index);
/* Sends the contents of the send ring. 0, or a negative errno if the interface cannot send now. */
int um_xsk_rings_kick(um_xsk_rings *rings, uint32_t index);
void um_xsk_rings_mac(const um_xsk_rings *rings, uint8_t *mac);
/* Lets the driver of a busy-polling queue receive; does nothing for other queues. */
void um_xsk_rings_poll(um_xsk_rings *rings, uint32_t index);

#endif

/* AF_XDP through libxdp: the ring set (io/rings.h) of one NIC, with a socket on each of its receive queues. Its
 * interface is the NIC itself or a device on top of it, such as a VLAN device, whose Ethernet address and tag sent
 * datagrams carry. rings.c opens and closes the ring set, rings_data.c moves datagrams, rings_statistics.c reads facts
 * and counters.
 *
 * Each queue has memory of its own for its frames (UMEM), in huge pages where there are some. The program that steers
 * datagrams to the sockets is not this library's: the opener puts um_xsk_rings_socket's descriptors into
 * the program's map (libxdp loads none).
 *
 * A process that may open a ring set can do so for one that may not: it opens it with `lent`, passes the sockets' and
 * the memory's descriptors and the config as it turned out, and closes its own; the other makes a ring set of them with
 * um_xsk_rings_adopt, which takes no privilege. Only the process that adopted it ever touches rings or frames.
 *
 * Threads: opening, closing and the facts belong to the opener; the rest is io/rings.h's.
 * System calls: mmap, memfd_create, socket, setsockopt, getsockopt, bind, ioctl, sendto, recvfrom, close.
 */
#ifndef UM_XSK_RINGS_H
#define UM_XSK_RINGS_H

#include "xsk/rings_config.h"

/* 0 or a negative errno: EOPNOTSUPP the driver cannot, EBUSY the queue is another's, EINVAL there is no such queue,
 * ENOBUFS locked memory, ENODEV no such interface. *rings is set unless memory ran out, and must be closed either way;
 * um_xsk_rings_failed_step names what failed. */
int um_xsk_rings_open(const um_xsk_config *config, um_xsk_rings **rings);
/* A ring set of the descriptors of one that was lent: `sockets` has config->queue_count of them. The config is the
 * lender's, with huge_pages and busy_poll as they turned out to be. The ring set has duplicates; those given stay the
 * caller's. Errors as above; EBUSY is a kernel before 6.4, which maps no rings of a bound socket; EPROTO memory of
 * another size than the config's. */
int um_xsk_rings_adopt(const um_xsk_config *config, const int *sockets, int memory, um_xsk_rings **rings);
void um_xsk_rings_close(um_xsk_rings *rings);
const char *um_xsk_rings_failed_step(const um_xsk_rings *rings);

um_rings *um_xsk_rings_base(um_xsk_rings *rings);
/* Reads the interface's Ethernet address again, for datagrams sent later. 0 or a negative errno. Any thread. */
int um_xsk_rings_learn_address(um_xsk_rings *rings);
void um_xsk_rings_facts(const um_xsk_rings *rings, um_xsk_facts *facts);
/* The descriptor of the socket on first_queue + index. It stays the ring set's. */
int um_xsk_rings_socket(const um_xsk_rings *rings, uint32_t index);
/* The descriptor of the frames' memory, the ring set's too; -1 unless it was lent. */
int um_xsk_rings_memory(const um_xsk_rings *rings);

/* Datagrams received on it. Any thread. */
uint64_t um_xsk_rings_received(const um_xsk_rings *rings, uint32_t index);

/* For programs that use a queue without a context (ffi/xsk/raw_*.c): the queue, sending what is in its ring, and its
 * Ethernet address. Send lock held where one is needed. */
um_xsk_queue *um_xsk_rings_queue(um_xsk_rings *rings, uint32_t index);
/* 0, or a negative errno when the interface cannot send now. */
int um_xsk_rings_kick(um_xsk_rings *rings, uint32_t index);
void um_xsk_rings_mac(const um_xsk_rings *rings, uint8_t *mac);
/* Lets the driver of a busy-polling queue receive, where that is how it works. */
void um_xsk_rings_poll(um_xsk_rings *rings, uint32_t index);

#endif

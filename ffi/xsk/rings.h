/* AF_XDP through libxdp: the ring set (io/rings.h) of one NIC, with a socket on each of its receive queues. The
 * interface whose datagrams travel there is the NIC itself, or one that lies on it, such as a VLAN device: what is sent
 * has that one's Ethernet address, and its tag. rings.c opens and closes it, rings_data.c moves datagrams,
 * rings_statistics.c reads facts and counters.
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

#include "io/rings.h"
#include "xsk/queue.h"

enum um_xsk_mode { UM_XSK_COPY, UM_XSK_ZERO_COPY };

enum {
    UM_XSK_HEADROOM_BYTES_MAX = 64,
    UM_XSK_TIMES_BYTES = 20, /* what the program notes in front of a frame */
};

typedef struct um_xsk_config {
    char interface[16];    /* whose Ethernet address frames are sent from */
    char device[16];       /* the NIC whose queues the sockets are on */
    uint16_t tag_control;  /* of the 802.1Q tag of what is sent (xsk/headers.h); 0: none */
    enum um_xsk_mode mode; /* requested by its own flag, so that the kernel does not choose silently */
    uint32_t first_queue;
    uint32_t queue_count;         /* 1 to UM_RINGS_DESCRIPTORS_MAX */
    uint32_t frame_bytes;         /* 2048 or 4096 */
    uint32_t receive_frame_count; /* of each queue; powers of two, also the sizes of the rings */
    uint32_t send_frame_count;
    bool multi_buffer; /* XDP_USE_SG */
    bool verify_checksum;
    bool huge_pages;
    bool busy_poll; /* SO_PREFER_BUSY_POLL: a receive that finds nothing runs the driver itself */
    uint32_t busy_poll_us;
    uint32_t busy_poll_budget;
    /* Space in front of received frames, beyond the kernel's own. The kernel copies times and frame in one piece: where
     * that begins with a cache line, the times and the headers of a datagram lie in the same one. A NIC that writes
     * frames itself does best where the frame begins with a line. */
    uint32_t headroom_bytes;
    bool reads_times;   /* the program notes times in front of frames (bpf/steering_time.h) */
    bool has_nic_clock; /* they may be the NIC's, by the clock /dev/ptpN */
    uint32_t nic_clock;
    bool lent;                /* for another process: frames in a memfd, rings left as they are */
    int64_t busy_deadline_ns; /* how long a queue that is busy, as it is a moment after its last user, is tried */
} um_xsk_config;

typedef struct um_xsk_facts {
    bool zero_copy; /* what the kernel reports */
    bool multi_buffer;
    bool huge_pages;
    bool busy_poll;
    uint32_t datagram_max_bytes; /* UDP payload */
    uint64_t locked_bytes;
    int nic_clock_error; /* why the NIC's clock cannot be read: an errno; 0: it can, or there is none */
} um_xsk_facts;

typedef struct um_xsk_rings um_xsk_rings;

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
/* Reads the interface's Ethernet address again, for what is sent from now on. 0 or a negative errno. Any thread. */
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

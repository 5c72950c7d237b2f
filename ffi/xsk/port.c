#include "xsk/port.h"

#include <fcntl.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/clock.h"
#include "xsk/passed_rings.h"

#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif
#ifndef SO_BUSY_POLL_BUDGET
#define SO_BUSY_POLL_BUDGET 70
#endif
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

enum {
    BUSY_RETRY_NS = 2000000,
    MEMORY_DEADLINE_NS = 100000000,
    KICKS_MAX = 256,          /* calls to empty a send ring; the kernel takes 32 frames or more in each */
    STALL_RETRY_NS = 50000,   /* how soon a send ring the kernel would not empty is tried again */
    DOWN_RETRY_NS = 10000000, /* and one whose interface is down */
    SEND_BUDGET = 256,
    HUGE_PAGE_BYTES = 2 << 20,
};

/* What stands behind a queue: libxdp's socket, or the rings of one that was passed. */
typedef struct xsk_handles {
    struct xsk_umem *umem;
    struct xsk_socket *socket;
    um_xsk_passed_rings passed;
} xsk_handles;

struct um_xsk_port {
    um_port base;
    um_xsk_config config;
    uint8_t mac[UM_MAC_BYTES];
    bool zero_copy;
    bool huge_pages;
    bool busy_poll;
    bool adopted;
    const char *failed_step;
    int memory_fd; /* of the frames; -1 where they are nobody else's */
    uint8_t *area; /* the frames of all queues */
    size_t area_bytes;
    uint8_t *bookkeeping; /* each queue's assembly buffer, whose datagrams are read together, and its lists */
    size_t bookkeeping_bytes;
    uint32_t turn; /* the queue the next receive begins with */
    _Atomic uint32_t link_count;
    _Atomic uint32_t next_queue; /* sessions take the queues in turn to send on */
    um_xsk_queue queues[UM_PORT_DESCRIPTORS_MAX];
    xsk_handles handles[UM_PORT_DESCRIPTORS_MAX];
};

typedef struct um_xsk_link {
    um_link base;
    um_xsk_port *port;
    uint32_t queue;
    um_port_sender sender;
    um_xsk_template made;
} um_xsk_link;

/* ---- opening ---- */

static void *map(size_t bytes, int flags)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t queue_area_bytes(const um_xsk_config *config)
{
    return ((size_t)config->receive_frame_count + config->send_frame_count) * config->frame_bytes;
}

static void *map_shared(size_t bytes, int fd)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Memory that another process can map too. It can neither shrink nor grow: nobody who has it can take it away. */
static void *map_memfd(size_t bytes, unsigned huge_flag, int *fd)
{
    *fd = memfd_create("umstack-frames", MFD_CLOEXEC | MFD_ALLOW_SEALING | huge_flag);
    if (*fd < 0)
        return NULL;
    if (ftruncate(*fd, (off_t)bytes) == 0 && fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        void *memory = map_shared(bytes, *fd);
        if (memory != NULL)
            return memory;
    }
    close(*fd);
    *fd = -1;
    return NULL;
}

/* Where no huge pages are set aside, the kernel may have some all the same; registering the memory backs it. */
static uint8_t *map_frames(um_xsk_port *port, bool huge)
{
    if (port->config.lent)
        return map_memfd(port->area_bytes, huge ? MFD_HUGETLB : 0, &port->memory_fd);
    if (huge)
        return map(port->area_bytes, MAP_HUGETLB | MAP_POPULATE);
    uint8_t *memory = map(port->area_bytes, 0);
    if (memory != NULL)
        madvise(memory, port->area_bytes, MADV_HUGEPAGE);
    return memory;
}

static int map_passed_frames(um_xsk_port *port)
{
    struct stat found;
    if (fstat(port->memory_fd, &found) != 0)
        return -errno;
    if (found.st_size != (off_t)port->area_bytes)
        return -EPROTO;
    port->area = map_shared(port->area_bytes, port->memory_fd);
    port->huge_pages = port->config.huge_pages;
    return 0;
}

static int map_memory(um_xsk_port *port)
{
    const um_xsk_config *config = &port->config;
    port->failed_step = "frame memory";
    port->area_bytes = um_align_up(queue_area_bytes(config) * config->queue_count, HUGE_PAGE_BYTES);
    if (port->adopted) {
        int result = map_passed_frames(port);
        if (result != 0)
            return result;
    } else {
        if (config->huge_pages)
            port->area = map_frames(port, true);
        port->huge_pages = port->area != NULL;
        if (port->area == NULL)
            port->area = map_frames(port, false);
    }
    size_t footprint = um_xsk_queue_footprint(config->receive_frame_count, config->send_frame_count);
    port->bookkeeping_bytes = (UM_XSK_ASSEMBLY_BYTES + footprint) * config->queue_count;
    port->bookkeeping = map(port->bookkeeping_bytes, 0);
    return port->area == NULL || port->bookkeeping == NULL ? -ENOMEM : 0;
}

/* The rings' memory is libxdp's, which maps them; it expects the structs zeroed. */
static int create_umem(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    const struct xsk_umem_config config = {.fill_size = queue->receive_frame_count,
                                           .comp_size = queue->send_frame_count,
                                           .frame_size = queue->frame_bytes};
    port->failed_step = "XDP_UMEM_REG";
    int result = xsk_umem__create(&port->handles[index].umem, queue->area, queue_area_bytes(&port->config),
                                  &queue->fill, &queue->completion, &config);
    if (result == 0)
        fcntl(xsk_umem__fd(port->handles[index].umem), F_SETFD, FD_CLOEXEC);
    return result;
}

static int bind_socket(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    const um_xsk_config *asked = &port->config;
    const struct xsk_socket_config config = {
        .rx_size = queue->receive_frame_count,
        .tx_size = queue->send_frame_count,
        .libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
        .bind_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | (asked->mode == UM_XSK_ZERO_COPY ? XDP_ZEROCOPY : XDP_COPY) |
                                 (asked->multi_buffer ? XDP_USE_SG : 0))};
    port->failed_step = "AF_XDP bind";
    return xsk_socket__create(&port->handles[index].socket, asked->interface, asked->first_queue + index,
                              port->handles[index].umem, &queue->receive, &queue->send, &config);
}

static void discard_rings(um_xsk_queue *queue)
{
    memset(&queue->fill, 0, sizeof queue->fill);
    memset(&queue->receive, 0, sizeof queue->receive);
    memset(&queue->send, 0, sizeof queue->send);
    memset(&queue->completion, 0, sizeof queue->completion);
}

static void delete_handles(um_xsk_port *port, uint32_t index)
{
    xsk_handles *handles = &port->handles[index];
    xsk_socket__delete(handles->socket);
    if (handles->umem != NULL)
        xsk_umem__delete(handles->umem);
    um_xsk_passed_rings_unmap(&handles->passed);
    if (port->adopted && port->queues[index].fd >= 0)
        close(port->queues[index].fd);
    *handles = (xsk_handles){0};
    discard_rings(&port->queues[index]);
}

static int set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* What a kernel lacks of these costs speed, not function. */
static void tune(um_xsk_port *port, um_xsk_queue *queue)
{
    const um_xsk_config *config = &port->config;
    uint32_t budget = SEND_BUDGET < queue->send_frame_count ? SEND_BUDGET : queue->send_frame_count;
    set(queue->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, (int)budget);
    port->busy_poll = config->busy_poll && set(queue->fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1) == 0 &&
                      set(queue->fd, SOL_SOCKET, SO_BUSY_POLL, (int)config->busy_poll_us) == 0 &&
                      set(queue->fd, SOL_SOCKET, SO_BUSY_POLL_BUDGET, (int)config->busy_poll_budget) == 0;
}

static int learn_mode(um_xsk_port *port, int fd)
{
    struct xdp_options options = {0};
    socklen_t length = sizeof options;
    port->failed_step = "XDP_OPTIONS";
    if (getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &length) != 0)
        return -errno;
    port->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
    return 0;
}

/* A queue stays busy for some milliseconds after its last user has closed it, and its memory locked: the kernel lets go
 * of both later. */
static bool may_pass(const um_xsk_port *port, int result, int64_t waited_ns)
{
    return (result == -EBUSY && waited_ns < port->config.busy_deadline_ns) ||
           (result == -ENOBUFS && waited_ns < MEMORY_DEADLINE_NS);
}

static int open_socket(um_xsk_port *port, uint32_t index)
{
    const struct timespec pause = {0, BUSY_RETRY_NS};
    int64_t start_ns = um_clock_ns();
    for (;;) {
        int result = create_umem(port, index);
        if (result == 0)
            result = bind_socket(port, index);
        if (result == 0)
            return 0;
        delete_handles(port, index);
        if (!may_pass(port, result, um_clock_ns() - start_ns))
            return result;
        nanosleep(&pause, NULL);
    }
}

static void lay_out_queue(um_xsk_port *port, uint32_t index)
{
    const um_xsk_config *config = &port->config;
    um_xsk_queue *queue = &port->queues[index];
    queue->area = port->area + index * queue_area_bytes(config);
    queue->frame_bytes = config->frame_bytes;
    queue->receive_frame_count = config->receive_frame_count;
    queue->send_frame_count = config->send_frame_count;
    queue->verify_checksum = config->verify_checksum;
    queue->multi_buffer = config->multi_buffer;
}

static void start_queue(um_xsk_port *port, uint32_t index)
{
    const um_xsk_config *config = &port->config;
    size_t footprint = um_xsk_queue_footprint(config->receive_frame_count, config->send_frame_count);
    uint8_t *assembly = port->bookkeeping + (UM_XSK_ASSEMBLY_BYTES + footprint) * index;
    um_xsk_queue_init(&port->queues[index], assembly + UM_XSK_ASSEMBLY_BYTES, assembly);
}

static int open_queue(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    lay_out_queue(port, index);
    int result = open_socket(port, index);
    if (result != 0)
        return result;
    queue->fd = xsk_socket__fd(port->handles[index].socket);
    if (!port->config.lent)
        start_queue(port, index);
    tune(port, queue);
    return learn_mode(port, queue->fd);
}

static int adopt_queue(um_xsk_port *port, uint32_t index, int socket)
{
    um_xsk_queue *queue = &port->queues[index];
    lay_out_queue(port, index);
    port->failed_step = "descriptors";
    queue->fd = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (queue->fd < 0)
        return -errno;
    port->failed_step = "mapping the rings";
    int result = um_xsk_passed_rings_map(queue, &port->handles[index].passed);
    if (result != 0)
        return result;
    start_queue(port, index);
    return learn_mode(port, queue->fd);
}

static int learn_address(um_xsk_port *port)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", port->config.interface);
    port->failed_step = "SIOCGIFHWADDR";
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int result = ioctl(fd, SIOCGIFHWADDR, &request) != 0 ? -errno : 0;
    close(fd);
    memcpy(port->mac, request.ifr_hwaddr.sa_data, sizeof port->mac);
    return result;
}

static bool config_is_valid(const um_xsk_config *config)
{
    return config->queue_count > 0 && config->queue_count <= UM_PORT_DESCRIPTORS_MAX &&
           (config->frame_bytes == 2048 || config->frame_bytes == 4096) &&
           um_is_power_of_two(config->receive_frame_count) && um_is_power_of_two(config->send_frame_count);
}

static int receive(um_port *base, um_rx *batch, uint32_t max);
static void release(um_port *base);
static int open_link(um_port *base, const um_port_sender *sender, um_link **link);
static void close_link(um_port *base, um_link *link);
static uint32_t descriptors(const um_port *base, int *fds, uint32_t max);
static int64_t tend(um_port *base, int64_t now_ns);
static void add_counters(um_port *base, um_link_counters *sum);
static const um_port_ops PORT_OPS = {receive, release, open_link, close_link, descriptors, tend, add_counters};

static int make_port(const um_xsk_config *config, um_xsk_port **made)
{
    um_xsk_port *port = map(sizeof *port, 0);
    *made = port;
    if (port == NULL)
        return -ENOMEM;
    port->base.ops = &PORT_OPS;
    port->base.receive_frames = config->receive_frame_count;
    port->memory_fd = -1;
    for (uint32_t i = 0; i < UM_PORT_DESCRIPTORS_MAX; i++)
        port->queues[i].fd = -1;
    port->config = *config;
    port->failed_step = "configuration";
    return config_is_valid(config) ? learn_address(port) : -EINVAL;
}

int um_xsk_port_open(const um_xsk_config *config, um_xsk_port **opened)
{
    int result = make_port(config, opened);
    um_xsk_port *port = *opened;
    if (result == 0)
        result = map_memory(port);
    for (uint32_t i = 0; result == 0 && i < config->queue_count; i++)
        result = open_queue(port, i);
    if (result == 0)
        port->failed_step = "";
    return result;
}

int um_xsk_port_adopt(const um_xsk_config *config, const int *sockets, int memory, um_xsk_port **adopted)
{
    int result = make_port(config, adopted);
    um_xsk_port *port = *adopted;
    if (result != 0)
        return result;
    port->adopted = true;
    port->busy_poll = config->busy_poll;
    port->failed_step = "descriptors";
    port->memory_fd = fcntl(memory, F_DUPFD_CLOEXEC, 0);
    if (port->memory_fd < 0)
        return -errno;
    result = map_memory(port);
    for (uint32_t i = 0; result == 0 && i < config->queue_count; i++)
        result = adopt_queue(port, i, sockets[i]);
    if (result == 0)
        port->failed_step = "";
    return result;
}

void um_xsk_port_close(um_xsk_port *port)
{
    um_debug_assert(atomic_load(&port->link_count) == 0);
    for (uint32_t i = 0; i < port->config.queue_count && i < UM_PORT_DESCRIPTORS_MAX; i++)
        delete_handles(port, i);
    if (port->area != NULL)
        munmap(port->area, port->area_bytes);
    if (port->bookkeeping != NULL)
        munmap(port->bookkeeping, port->bookkeeping_bytes);
    if (port->memory_fd >= 0)
        close(port->memory_fd);
    munmap(port, sizeof *port);
}

const char *um_xsk_port_failed_step(const um_xsk_port *port)
{
    return port->failed_step;
}

/* ---- facts ---- */

um_port *um_xsk_port_base(um_xsk_port *port)
{
    return &port->base;
}

void um_xsk_port_facts(const um_xsk_port *port, um_xsk_facts *facts)
{
    *facts = (um_xsk_facts){.zero_copy = port->zero_copy,
                            .multi_buffer = port->config.multi_buffer,
                            .huge_pages = port->huge_pages,
                            .busy_poll = port->busy_poll,
                            .datagram_max_bytes = um_xsk_queue_datagram_max(&port->queues[0]),
                            .locked_bytes = port->area_bytes};
}

int um_xsk_port_socket(const um_xsk_port *port, uint32_t index)
{
    return port->queues[index].fd;
}

int um_xsk_port_memory(const um_xsk_port *port)
{
    return port->memory_fd;
}

uint64_t um_xsk_port_received(const um_xsk_port *port, uint32_t index)
{
    return port->queues[index].counters.datagrams_received;
}

um_xsk_queue *um_xsk_port_queue(um_xsk_port *port, uint32_t index)
{
    return &port->queues[index];
}

const uint8_t *um_xsk_port_mac(const um_xsk_port *port)
{
    return port->mac;
}

static uint32_t descriptors(const um_port *base, int *fds, uint32_t max)
{
    const um_xsk_port *port = (const um_xsk_port *)base;
    uint32_t count = port->config.queue_count < max ? port->config.queue_count : max;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = port->queues[i].fd;
    return port->config.queue_count;
}

static void add_kernel_statistics(const um_xsk_queue *queue, um_link_counters *sum)
{
    struct xdp_statistics statistics = {0};
    socklen_t length = sizeof statistics;
    if (getsockopt(queue->fd, SOL_XDP, XDP_STATISTICS, &statistics, &length) != 0)
        return;
    UM_COUNT(sum->receive_drops, statistics.rx_dropped + statistics.rx_ring_full);
    UM_COUNT(sum->xdp_rx_dropped, statistics.rx_dropped);
    UM_COUNT(sum->xdp_rx_invalid_descs, statistics.rx_invalid_descs);
    UM_COUNT(sum->xdp_tx_invalid_descs, statistics.tx_invalid_descs);
    UM_COUNT(sum->xdp_rx_ring_full, statistics.rx_ring_full);
    UM_COUNT(sum->xdp_rx_fill_ring_empty_descs, statistics.rx_fill_ring_empty_descs);
    UM_COUNT(sum->xdp_tx_ring_empty_descs, statistics.tx_ring_empty_descs);
}

static void add_counters(um_port *base, um_link_counters *sum)
{
    const um_xsk_port *port = (const um_xsk_port *)base;
    for (uint32_t i = 0; i < port->config.queue_count; i++) {
        um_link_counters_add(sum, &port->queues[i].counters);
        UM_COUNT(sum->syscalls, port->queues[i].receive_syscalls);
        add_kernel_statistics(&port->queues[i], sum);
    }
}

/* ---- receiving ---- */

void um_xsk_port_poll(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    if (!port->busy_poll && !xsk_ring_prod__needs_wakeup(&queue->fill))
        return;
    UM_COUNT(queue->receive_syscalls, 1);
    recvfrom(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

/* Begins with another queue each time, so that one that is always full does not starve the others. */
static int receive(um_port *base, um_rx *batch, uint32_t max)
{
    um_xsk_port *port = (um_xsk_port *)base;
    uint32_t count = 0;
    base->more = false;
    base->taken_frames = 0;
    for (uint32_t i = 0; i < port->config.queue_count && count < max; i++) {
        uint32_t index = (port->turn + i) % port->config.queue_count;
        um_xsk_queue *queue = &port->queues[index];
        uint32_t received = um_xsk_queue_receive(queue, batch + count, max - count);
        if (received == 0)
            um_xsk_port_poll(port, index);
        base->more |= queue->left_some;
        base->taken_frames += queue->taken_count;
        for (uint32_t k = 0; k < received; k++)
            batch[count + k].queue_number = port->config.first_queue + index + 1;
        count += received;
    }
    port->turn = (port->turn + 1) % port->config.queue_count;
    base->more |= count == max;
    if (count == 0)
        return 0;
    int64_t received_ns = um_clock_wall_ns();
    for (uint32_t i = 0; i < count; i++)
        batch[i].received_ns = received_ns;
    return (int)count;
}

static void release(um_port *base)
{
    um_xsk_port *port = (um_xsk_port *)base;
    for (uint32_t i = 0; i < port->config.queue_count; i++)
        um_xsk_queue_release(&port->queues[i]);
}

/* ---- sending ---- */

static bool will_pass(int error)
{
    return error == EAGAIN || error == EBUSY || error == ENOBUFS;
}

/* In copy mode the call is what sends, at most the budget's frames of it; with zero copy the driver sends, and the
 * call only wakes it. */
int um_xsk_port_kick(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    uint32_t unsent = um_xsk_queue_unsent(queue);
    for (int i = 0; i < KICKS_MAX && unsent > 0 && xsk_ring_prod__needs_wakeup(&queue->send); i++) {
        UM_COUNT(queue->counters.syscalls, 1);
        if (sendto(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && !will_pass(errno)) {
            int error = errno;
            UM_COUNT(queue->counters.send_errors, 1);
            atomic_store(&port->base.stalled, 1);
            return -error;
        }
        if (port->zero_copy)
            return 0;
        uint32_t before = unsent;
        um_xsk_queue_reclaim(queue);
        unsent = um_xsk_queue_unsent(queue);
        if (unsent == before) {
            UM_COUNT(queue->counters.send_would_block, 1);
            atomic_store(&port->base.stalled, 1);
            return 0;
        }
    }
    return 0;
}

static void lock_sending(um_xsk_queue *queue)
{
    while (!um_lock_try(&queue->send_lock))
        sched_yield();
}

static int send_locked(um_xsk_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_port *port = link->port;
    um_xsk_queue *queue = &port->queues[link->queue];
    if (!um_address_equal(to, link->made.to))
        um_xsk_template_init(&link->made, port->mac, link->sender.from, to, link->sender.ttl);
    int result = um_xsk_port_kick(port, link->queue); /* what was left over has to go first */
    if (result < 0)
        return result;
    int taken = um_xsk_queue_send(queue, &link->made, batch, count);
    if (taken <= 0) {
        UM_COUNT(queue->counters.send_would_block, taken == 0);
        return taken;
    }
    um_xsk_port_kick(port, link->queue);
    return taken;
}

static int send_datagrams(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->port->queues[link->queue];
    lock_sending(queue);
    int result = send_locked(link, to, batch, count);
    um_lock_release(&queue->send_lock);
    return result;
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_link *otherwise = ((um_xsk_link *)base)->sender.otherwise;
    return otherwise->ops->send_oversize(otherwise, to, datagram);
}

static uint32_t lend(um_link *base, uint8_t **pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->port->queues[link->queue];
    lock_sending(queue);
    uint32_t lent = um_xsk_queue_lend(queue, pieces, count);
    um_lock_release(&queue->send_lock);
    return lent;
}

static void take_back(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->port->queues[link->queue];
    lock_sending(queue);
    um_xsk_queue_take_back(queue, pieces, count);
    um_lock_release(&queue->send_lock);
}

static const um_link_ops LINK_OPS = {send_datagrams, send_oversize, lend, take_back};

static int64_t tend(um_port *base, int64_t now_ns)
{
    um_xsk_port *port = (um_xsk_port *)base;
    if (!atomic_load_explicit(&base->stalled, memory_order_relaxed))
        return INT64_MAX;
    atomic_store(&base->stalled, 0);
    int64_t retry_ns = STALL_RETRY_NS;
    for (uint32_t i = 0; i < port->config.queue_count; i++) {
        um_xsk_queue *queue = &port->queues[i];
        if (um_xsk_queue_unsent(queue) == 0)
            continue;
        if (!um_lock_try(&queue->send_lock)) {
            atomic_store(&base->stalled, 1);
            continue;
        }
        if (um_xsk_port_kick(port, i) < 0)
            retry_ns = DOWN_RETRY_NS;
        um_lock_release(&queue->send_lock);
    }
    return atomic_load(&base->stalled) ? now_ns + retry_ns : INT64_MAX;
}

static int open_link(um_port *base, const um_port_sender *sender, um_link **opened)
{
    um_xsk_port *port = (um_xsk_port *)base;
    um_xsk_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (um_xsk_link){.base = {&LINK_OPS, .lent_bytes = um_xsk_queue_lent_bytes(&port->queues[0])},
                          .port = port,
                          .queue = atomic_fetch_add(&port->next_queue, 1) % port->config.queue_count,
                          .sender = *sender};
    atomic_fetch_add(&port->link_count, 1);
    *opened = &link->base;
    return 0;
}

static void close_link(um_port *base, um_link *link)
{
    atomic_fetch_sub(&((um_xsk_port *)base)->link_count, 1);
    free(link);
}

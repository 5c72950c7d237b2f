#include "xsk/rings.h"

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

struct um_xsk_rings {
    um_rings base;
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
    um_xsk_queue queues[UM_RINGS_DESCRIPTORS_MAX];
    xsk_handles handles[UM_RINGS_DESCRIPTORS_MAX];
};

typedef struct um_xsk_link {
    um_link base;
    um_xsk_rings *rings;
    uint32_t queue;
    um_rings_sender sender;
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
static uint8_t *map_frames(um_xsk_rings *rings, bool huge)
{
    if (rings->config.lent)
        return map_memfd(rings->area_bytes, huge ? MFD_HUGETLB : 0, &rings->memory_fd);
    if (huge)
        return map(rings->area_bytes, MAP_HUGETLB | MAP_POPULATE);
    uint8_t *memory = map(rings->area_bytes, 0);
    if (memory != NULL)
        madvise(memory, rings->area_bytes, MADV_HUGEPAGE);
    return memory;
}

static int map_passed_frames(um_xsk_rings *rings)
{
    struct stat found;
    if (fstat(rings->memory_fd, &found) != 0)
        return -errno;
    if (found.st_size != (off_t)rings->area_bytes)
        return -EPROTO;
    rings->area = map_shared(rings->area_bytes, rings->memory_fd);
    rings->huge_pages = rings->config.huge_pages;
    return 0;
}

static int map_memory(um_xsk_rings *rings)
{
    const um_xsk_config *config = &rings->config;
    rings->failed_step = "frame memory";
    rings->area_bytes = um_align_up(queue_area_bytes(config) * config->queue_count, HUGE_PAGE_BYTES);
    if (rings->adopted) {
        int result = map_passed_frames(rings);
        if (result != 0)
            return result;
    } else {
        if (config->huge_pages)
            rings->area = map_frames(rings, true);
        rings->huge_pages = rings->area != NULL;
        if (rings->area == NULL)
            rings->area = map_frames(rings, false);
    }
    size_t footprint = um_xsk_queue_footprint(config->receive_frame_count, config->send_frame_count);
    rings->bookkeeping_bytes = (UM_XSK_ASSEMBLY_BYTES + footprint) * config->queue_count;
    rings->bookkeeping = map(rings->bookkeeping_bytes, 0);
    return rings->area == NULL || rings->bookkeeping == NULL ? -ENOMEM : 0;
}

/* The rings' memory is libxdp's, which maps them; it expects the structs zeroed. */
static int create_umem(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    const struct xsk_umem_config config = {.fill_size = queue->receive_frame_count,
                                           .comp_size = queue->send_frame_count,
                                           .frame_size = queue->frame_bytes};
    rings->failed_step = "XDP_UMEM_REG";
    int result = xsk_umem__create(&rings->handles[index].umem, queue->area, queue_area_bytes(&rings->config),
                                  &queue->fill, &queue->completion, &config);
    if (result == 0)
        fcntl(xsk_umem__fd(rings->handles[index].umem), F_SETFD, FD_CLOEXEC);
    return result;
}

static int bind_socket(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    const um_xsk_config *asked = &rings->config;
    const struct xsk_socket_config config = {
        .rx_size = queue->receive_frame_count,
        .tx_size = queue->send_frame_count,
        .libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
        .bind_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | (asked->mode == UM_XSK_ZERO_COPY ? XDP_ZEROCOPY : XDP_COPY) |
                                 (asked->multi_buffer ? XDP_USE_SG : 0))};
    rings->failed_step = "AF_XDP bind";
    return xsk_socket__create(&rings->handles[index].socket, asked->interface, asked->first_queue + index,
                              rings->handles[index].umem, &queue->receive, &queue->send, &config);
}

static void discard_rings(um_xsk_queue *queue)
{
    memset(&queue->fill, 0, sizeof queue->fill);
    memset(&queue->receive, 0, sizeof queue->receive);
    memset(&queue->send, 0, sizeof queue->send);
    memset(&queue->completion, 0, sizeof queue->completion);
}

static void delete_handles(um_xsk_rings *rings, uint32_t index)
{
    xsk_handles *handles = &rings->handles[index];
    xsk_socket__delete(handles->socket);
    if (handles->umem != NULL)
        xsk_umem__delete(handles->umem);
    um_xsk_passed_rings_unmap(&handles->passed);
    if (rings->adopted && rings->queues[index].fd >= 0)
        close(rings->queues[index].fd);
    *handles = (xsk_handles){0};
    discard_rings(&rings->queues[index]);
}

static int set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* What a kernel lacks of these costs speed, not function. */
static void tune(um_xsk_rings *rings, um_xsk_queue *queue)
{
    const um_xsk_config *config = &rings->config;
    uint32_t budget = SEND_BUDGET < queue->send_frame_count ? SEND_BUDGET : queue->send_frame_count;
    set(queue->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, (int)budget);
    rings->busy_poll = config->busy_poll && set(queue->fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1) == 0 &&
                      set(queue->fd, SOL_SOCKET, SO_BUSY_POLL, (int)config->busy_poll_us) == 0 &&
                      set(queue->fd, SOL_SOCKET, SO_BUSY_POLL_BUDGET, (int)config->busy_poll_budget) == 0;
}

static int learn_mode(um_xsk_rings *rings, int fd)
{
    struct xdp_options options = {0};
    socklen_t length = sizeof options;
    rings->failed_step = "XDP_OPTIONS";
    if (getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &length) != 0)
        return -errno;
    rings->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
    return 0;
}

/* A queue stays busy for some milliseconds after its last user has closed it, and its memory locked: the kernel lets go
 * of both later. */
static bool may_pass(const um_xsk_rings *rings, int result, int64_t waited_ns)
{
    return (result == -EBUSY && waited_ns < rings->config.busy_deadline_ns) ||
           (result == -ENOBUFS && waited_ns < MEMORY_DEADLINE_NS);
}

static int open_socket(um_xsk_rings *rings, uint32_t index)
{
    const struct timespec pause = {0, BUSY_RETRY_NS};
    int64_t start_ns = um_clock_ns();
    for (;;) {
        int result = create_umem(rings, index);
        if (result == 0)
            result = bind_socket(rings, index);
        if (result == 0)
            return 0;
        delete_handles(rings, index);
        if (!may_pass(rings, result, um_clock_ns() - start_ns))
            return result;
        nanosleep(&pause, NULL);
    }
}

static void lay_out_queue(um_xsk_rings *rings, uint32_t index)
{
    const um_xsk_config *config = &rings->config;
    um_xsk_queue *queue = &rings->queues[index];
    queue->area = rings->area + index * queue_area_bytes(config);
    queue->frame_bytes = config->frame_bytes;
    queue->receive_frame_count = config->receive_frame_count;
    queue->send_frame_count = config->send_frame_count;
    queue->verify_checksum = config->verify_checksum;
    queue->multi_buffer = config->multi_buffer;
}

static void start_queue(um_xsk_rings *rings, uint32_t index)
{
    const um_xsk_config *config = &rings->config;
    size_t footprint = um_xsk_queue_footprint(config->receive_frame_count, config->send_frame_count);
    uint8_t *assembly = rings->bookkeeping + (UM_XSK_ASSEMBLY_BYTES + footprint) * index;
    um_xsk_queue_init(&rings->queues[index], assembly + UM_XSK_ASSEMBLY_BYTES, assembly);
}

static int open_queue(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    lay_out_queue(rings, index);
    int result = open_socket(rings, index);
    if (result != 0)
        return result;
    queue->fd = xsk_socket__fd(rings->handles[index].socket);
    if (!rings->config.lent)
        start_queue(rings, index);
    tune(rings, queue);
    return learn_mode(rings, queue->fd);
}

static int adopt_queue(um_xsk_rings *rings, uint32_t index, int socket)
{
    um_xsk_queue *queue = &rings->queues[index];
    lay_out_queue(rings, index);
    rings->failed_step = "descriptors";
    queue->fd = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (queue->fd < 0)
        return -errno;
    rings->failed_step = "mapping the rings";
    int result = um_xsk_passed_rings_map(queue, &rings->handles[index].passed);
    if (result != 0)
        return result;
    start_queue(rings, index);
    return learn_mode(rings, queue->fd);
}

static int learn_address(um_xsk_rings *rings)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", rings->config.interface);
    rings->failed_step = "SIOCGIFHWADDR";
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int result = ioctl(fd, SIOCGIFHWADDR, &request) != 0 ? -errno : 0;
    close(fd);
    memcpy(rings->mac, request.ifr_hwaddr.sa_data, sizeof rings->mac);
    return result;
}

static bool config_is_valid(const um_xsk_config *config)
{
    return config->queue_count > 0 && config->queue_count <= UM_RINGS_DESCRIPTORS_MAX &&
           (config->frame_bytes == 2048 || config->frame_bytes == 4096) &&
           um_is_power_of_two(config->receive_frame_count) && um_is_power_of_two(config->send_frame_count);
}

static int receive(um_rings *base, um_rx *batch, uint32_t max);
static void release(um_rings *base);
static int open_link(um_rings *base, const um_rings_sender *sender, um_link **link);
static void close_link(um_rings *base, um_link *link);
static uint32_t descriptors(const um_rings *base, int *fds, uint32_t max);
static int64_t tend(um_rings *base, int64_t now_ns);
static void add_counters(um_rings *base, um_link_counters *sum);
static const um_rings_ops PORT_OPS = {receive, release, open_link, close_link, descriptors, tend, add_counters};

static int make_port(const um_xsk_config *config, um_xsk_rings **made)
{
    um_xsk_rings *rings = map(sizeof *rings, 0);
    *made = rings;
    if (rings == NULL)
        return -ENOMEM;
    rings->base.ops = &PORT_OPS;
    rings->base.receive_frames = config->receive_frame_count;
    rings->memory_fd = -1;
    for (uint32_t i = 0; i < UM_RINGS_DESCRIPTORS_MAX; i++)
        rings->queues[i].fd = -1;
    rings->config = *config;
    rings->failed_step = "configuration";
    return config_is_valid(config) ? learn_address(rings) : -EINVAL;
}

int um_xsk_rings_open(const um_xsk_config *config, um_xsk_rings **opened)
{
    int result = make_port(config, opened);
    um_xsk_rings *rings = *opened;
    if (result == 0)
        result = map_memory(rings);
    for (uint32_t i = 0; result == 0 && i < config->queue_count; i++)
        result = open_queue(rings, i);
    if (result == 0)
        rings->failed_step = "";
    return result;
}

int um_xsk_rings_adopt(const um_xsk_config *config, const int *sockets, int memory, um_xsk_rings **adopted)
{
    int result = make_port(config, adopted);
    um_xsk_rings *rings = *adopted;
    if (result != 0)
        return result;
    rings->adopted = true;
    rings->busy_poll = config->busy_poll;
    rings->failed_step = "descriptors";
    rings->memory_fd = fcntl(memory, F_DUPFD_CLOEXEC, 0);
    if (rings->memory_fd < 0)
        return -errno;
    result = map_memory(rings);
    for (uint32_t i = 0; result == 0 && i < config->queue_count; i++)
        result = adopt_queue(rings, i, sockets[i]);
    if (result == 0)
        rings->failed_step = "";
    return result;
}

void um_xsk_rings_close(um_xsk_rings *rings)
{
    um_debug_assert(atomic_load(&rings->link_count) == 0);
    for (uint32_t i = 0; i < rings->config.queue_count && i < UM_RINGS_DESCRIPTORS_MAX; i++)
        delete_handles(rings, i);
    if (rings->area != NULL)
        munmap(rings->area, rings->area_bytes);
    if (rings->bookkeeping != NULL)
        munmap(rings->bookkeeping, rings->bookkeeping_bytes);
    if (rings->memory_fd >= 0)
        close(rings->memory_fd);
    munmap(rings, sizeof *rings);
}

const char *um_xsk_rings_failed_step(const um_xsk_rings *rings)
{
    return rings->failed_step;
}

/* ---- facts ---- */

um_rings *um_xsk_rings_base(um_xsk_rings *rings)
{
    return &rings->base;
}

void um_xsk_rings_facts(const um_xsk_rings *rings, um_xsk_facts *facts)
{
    *facts = (um_xsk_facts){.zero_copy = rings->zero_copy,
                            .multi_buffer = rings->config.multi_buffer,
                            .huge_pages = rings->huge_pages,
                            .busy_poll = rings->busy_poll,
                            .datagram_max_bytes = um_xsk_queue_datagram_max(&rings->queues[0]),
                            .locked_bytes = rings->area_bytes};
}

int um_xsk_rings_socket(const um_xsk_rings *rings, uint32_t index)
{
    return rings->queues[index].fd;
}

int um_xsk_rings_memory(const um_xsk_rings *rings)
{
    return rings->memory_fd;
}

uint64_t um_xsk_rings_received(const um_xsk_rings *rings, uint32_t index)
{
    return rings->queues[index].counters.datagrams_received;
}

um_xsk_queue *um_xsk_rings_queue(um_xsk_rings *rings, uint32_t index)
{
    return &rings->queues[index];
}

const uint8_t *um_xsk_rings_mac(const um_xsk_rings *rings)
{
    return rings->mac;
}

static uint32_t descriptors(const um_rings *base, int *fds, uint32_t max)
{
    const um_xsk_rings *rings = (const um_xsk_rings *)base;
    uint32_t count = rings->config.queue_count < max ? rings->config.queue_count : max;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = rings->queues[i].fd;
    return rings->config.queue_count;
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

static void add_counters(um_rings *base, um_link_counters *sum)
{
    const um_xsk_rings *rings = (const um_xsk_rings *)base;
    for (uint32_t i = 0; i < rings->config.queue_count; i++) {
        um_link_counters_add(sum, &rings->queues[i].counters);
        UM_COUNT(sum->syscalls, rings->queues[i].receive_syscalls);
        add_kernel_statistics(&rings->queues[i], sum);
    }
}

/* ---- receiving ---- */

void um_xsk_rings_poll(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    if (!rings->busy_poll && !xsk_ring_prod__needs_wakeup(&queue->fill))
        return;
    UM_COUNT(queue->receive_syscalls, 1);
    recvfrom(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

/* Begins with another queue each time, so that one that is always full does not starve the others. */
static int receive(um_rings *base, um_rx *batch, uint32_t max)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    uint32_t count = 0;
    base->more = false;
    base->taken_frames = 0;
    for (uint32_t i = 0; i < rings->config.queue_count && count < max; i++) {
        uint32_t index = (rings->turn + i) % rings->config.queue_count;
        um_xsk_queue *queue = &rings->queues[index];
        uint32_t received = um_xsk_queue_receive(queue, batch + count, max - count);
        if (received == 0)
            um_xsk_rings_poll(rings, index);
        base->more |= queue->left_some;
        base->taken_frames += queue->taken_count;
        for (uint32_t k = 0; k < received; k++)
            batch[count + k].queue_number = rings->config.first_queue + index + 1;
        count += received;
    }
    rings->turn = (rings->turn + 1) % rings->config.queue_count;
    base->more |= count == max;
    if (count == 0)
        return 0;
    int64_t received_ns = um_clock_wall_ns();
    for (uint32_t i = 0; i < count; i++)
        batch[i].received_ns = received_ns;
    return (int)count;
}

static void release(um_rings *base)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    for (uint32_t i = 0; i < rings->config.queue_count; i++)
        um_xsk_queue_release(&rings->queues[i]);
}

/* ---- sending ---- */

static bool will_pass(int error)
{
    return error == EAGAIN || error == EBUSY || error == ENOBUFS;
}

/* In copy mode the call is what sends, at most the budget's frames of it; with zero copy the driver sends, and the
 * call only wakes it. */
int um_xsk_rings_kick(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    uint32_t unsent = um_xsk_queue_unsent(queue);
    for (int i = 0; i < KICKS_MAX && unsent > 0 && xsk_ring_prod__needs_wakeup(&queue->send); i++) {
        UM_COUNT(queue->counters.syscalls, 1);
        if (sendto(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && !will_pass(errno)) {
            int error = errno;
            UM_COUNT(queue->counters.send_errors, 1);
            atomic_store(&rings->base.stalled, 1);
            return -error;
        }
        if (rings->zero_copy)
            return 0;
        uint32_t before = unsent;
        um_xsk_queue_reclaim(queue);
        unsent = um_xsk_queue_unsent(queue);
        if (unsent == before) {
            UM_COUNT(queue->counters.send_would_block, 1);
            atomic_store(&rings->base.stalled, 1);
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
    um_xsk_rings *rings = link->rings;
    um_xsk_queue *queue = &rings->queues[link->queue];
    if (!um_address_equal(to, link->made.to))
        um_xsk_template_init(&link->made, rings->mac, link->sender.from, to, link->sender.ttl);
    int result = um_xsk_rings_kick(rings, link->queue); /* what was left over has to go first */
    if (result < 0)
        return result;
    int taken = um_xsk_queue_send(queue, &link->made, batch, count);
    if (taken <= 0) {
        UM_COUNT(queue->counters.send_would_block, taken == 0);
        return taken;
    }
    um_xsk_rings_kick(rings, link->queue);
    return taken;
}

static int send_datagrams(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->rings->queues[link->queue];
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

static uint32_t borrow_frames(um_link *base, uint8_t **pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->rings->queues[link->queue];
    lock_sending(queue);
    uint32_t lent = um_xsk_queue_borrow(queue, pieces, count);
    um_lock_release(&queue->send_lock);
    return lent;
}

static void return_frames(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->rings->queues[link->queue];
    lock_sending(queue);
    um_xsk_queue_return(queue, pieces, count);
    um_lock_release(&queue->send_lock);
}

static const um_link_ops LINK_OPS = {send_datagrams, send_oversize, borrow_frames, return_frames};

static int64_t tend(um_rings *base, int64_t now_ns)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    if (!atomic_load_explicit(&base->stalled, memory_order_relaxed))
        return INT64_MAX;
    atomic_store(&base->stalled, 0);
    int64_t retry_ns = STALL_RETRY_NS;
    for (uint32_t i = 0; i < rings->config.queue_count; i++) {
        um_xsk_queue *queue = &rings->queues[i];
        if (um_xsk_queue_unsent(queue) == 0)
            continue;
        if (!um_lock_try(&queue->send_lock)) {
            atomic_store(&base->stalled, 1);
            continue;
        }
        if (um_xsk_rings_kick(rings, i) < 0)
            retry_ns = DOWN_RETRY_NS;
        um_lock_release(&queue->send_lock);
    }
    return atomic_load(&base->stalled) ? now_ns + retry_ns : INT64_MAX;
}

static int open_link(um_rings *base, const um_rings_sender *sender, um_link **opened)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    um_xsk_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (um_xsk_link){.base = {&LINK_OPS, .borrow_bytes = um_xsk_queue_borrow_bytes(&rings->queues[0])},
                          .rings = rings,
                          .queue = atomic_fetch_add(&rings->next_queue, 1) % rings->config.queue_count,
                          .sender = *sender};
    atomic_fetch_add(&rings->link_count, 1);
    *opened = &link->base;
    return 0;
}

static void close_link(um_rings *base, um_link *link)
{
    atomic_fetch_sub(&((um_xsk_rings *)base)->link_count, 1);
    free(link);
}

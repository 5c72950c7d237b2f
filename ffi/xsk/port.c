#include "xsk/port.h"

#include <fcntl.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/clock.h"
#include "xsk/port_state.h"

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
    SEND_BUDGET = 256,
    HUGE_PAGE_BYTES = 2 << 20,
};

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
    um_xsk_handles *handles = &port->handles[index];
    xsk_socket__delete(handles->socket);
    if (handles->umem != NULL)
        xsk_umem__delete(handles->umem);
    um_xsk_passed_rings_unmap(&handles->passed);
    if (port->adopted && port->queues[index].fd >= 0)
        close(port->queues[index].fd);
    *handles = (um_xsk_handles){0};
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

static void describe_queue(um_xsk_port *port, uint32_t index)
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
    describe_queue(port, index);
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
    describe_queue(port, index);
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

static int make_port(const um_xsk_config *config, um_xsk_port **made)
{
    um_xsk_port *port = map(sizeof *port, 0);
    *made = port;
    if (port == NULL)
        return -ENOMEM;
    port->base.ops = &UM_XSK_PORT_OPS;
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

um_port *um_xsk_port_base(um_xsk_port *port)
{
    return &port->base;
}

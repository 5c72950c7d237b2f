#include "xsk/rings.h"

#include <fcntl.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/clock.h"
#include "xsk/nic_clock.h"
#include "xsk/rings_state.h"

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

/* Memory that another process can map too. Its size is sealed, so that no process can cut it off from the others. */
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

/* If no huge pages are reserved, the kernel may still provide some. Registering the memory backs it. */
static uint8_t *map_frames(um_xsk_rings *rings, bool huge)
{
    if (rings->config.is_lent)
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
    rings->has_huge_pages = rings->config.huge_pages;
    return 0;
}

static int map_memory(um_xsk_rings *rings)
{
    const um_xsk_config *config = &rings->config;
    rings->failed_step = "frame memory";
    rings->area_bytes = um_align_up(queue_area_bytes(config) * config->queue_count, HUGE_PAGE_BYTES);
    if (rings->is_adopted) {
        int result = map_passed_frames(rings);
        if (result != 0)
            return result;
    } else {
        if (config->huge_pages)
            rings->area = map_frames(rings, true);
        rings->has_huge_pages = rings->area != NULL;
        if (rings->area == NULL)
            rings->area = map_frames(rings, false);
    }
    size_t footprint = um_xsk_queue_footprint(config->receive_frame_count, config->send_frame_count);
    rings->bookkeeping_bytes = (UM_XSK_ASSEMBLY_BYTES + footprint) * config->queue_count;
    rings->bookkeeping = map(rings->bookkeeping_bytes, 0);
    return rings->area == NULL || rings->bookkeeping == NULL ? -ENOMEM : 0;
}

/* libxdp maps and owns the rings' memory; it expects zeroed structs. */
static int create_umem(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    const struct xsk_umem_config config = {.fill_size = queue->receive_frame_count,
                                           .comp_size = queue->send_frame_count,
                                           .frame_size = queue->frame_bytes,
                                           .frame_headroom = rings->config.headroom_bytes};
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
    const um_xsk_config *requested = &rings->config;
    const struct xsk_socket_config config = {
        .rx_size = queue->receive_frame_count,
        .tx_size = queue->send_frame_count,
        .libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
        .bind_flags = (uint16_t)(XDP_USE_NEED_WAKEUP | (requested->mode == UM_XSK_ZERO_COPY ? XDP_ZEROCOPY : XDP_COPY) |
                                 (requested->multi_buffer ? XDP_USE_SG : 0))};
    rings->failed_step = "AF_XDP bind";
    return xsk_socket__create(&rings->handles[index].socket, requested->device, requested->first_queue + index,
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
    um_xsk_handles *handles = &rings->handles[index];
    xsk_socket__delete(handles->socket);
    if (handles->umem != NULL)
        xsk_umem__delete(handles->umem);
    um_xsk_passed_rings_unmap(&handles->passed);
    if (rings->is_adopted && rings->queues[index].fd >= 0)
        close(rings->queues[index].fd);
    *handles = (um_xsk_handles){0};
    discard_rings(&rings->queues[index]);
}

static int set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* A kernel without these options works too, but slower. */
static void tune(um_xsk_rings *rings, um_xsk_queue *queue)
{
    const um_xsk_config *config = &rings->config;
    uint32_t budget = SEND_BUDGET < queue->send_frame_count ? SEND_BUDGET : queue->send_frame_count;
    set(queue->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, (int)budget);
    rings->is_busy_polling = config->busy_poll && set(queue->fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1) == 0 &&
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
    rings->is_zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
    return 0;
}

/* Returns true for errors that may disappear: after a socket is closed, the kernel frees its queue and its locked
 * memory some milliseconds later. */
static bool is_worth_retrying(const um_xsk_rings *rings, int result, int64_t waited_ns)
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
        if (!is_worth_retrying(rings, result, um_clock_ns() - start_ns))
            return result;
        nanosleep(&pause, NULL);
    }
}

static void describe_queue(um_xsk_rings *rings, uint32_t index)
{
    const um_xsk_config *config = &rings->config;
    um_xsk_queue *queue = &rings->queues[index];
    queue->area = rings->area + index * queue_area_bytes(config);
    queue->frame_bytes = config->frame_bytes;
    queue->headroom_bytes = UM_XSK_KERNEL_HEADROOM_BYTES + config->headroom_bytes;
    queue->receive_frame_count = config->receive_frame_count;
    queue->send_frame_count = config->send_frame_count;
    queue->header_bytes = um_xsk_header_bytes(config->tag_control);
    queue->verify_checksum = config->verify_checksum;
    queue->multi_buffer = config->multi_buffer;
    queue->reads_times = config->reads_times;
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
    describe_queue(rings, index);
    int result = open_socket(rings, index);
    if (result != 0)
        return result;
    queue->fd = xsk_socket__fd(rings->handles[index].socket);
    if (!rings->config.is_lent)
        start_queue(rings, index);
    tune(rings, queue);
    return learn_mode(rings, queue->fd);
}

static int adopt_queue(um_xsk_rings *rings, uint32_t index, int socket)
{
    um_xsk_queue *queue = &rings->queues[index];
    describe_queue(rings, index);
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

int um_xsk_rings_learn_address(um_xsk_rings *rings)
{
    struct ifreq request = {0};
    uint64_t mac = 0;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", rings->config.interface);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int result = ioctl(fd, SIOCGIFHWADDR, &request) != 0 ? -errno : 0;
    close(fd);
    if (result != 0)
        return result;
    memcpy(&mac, request.ifr_hwaddr.sa_data, UM_MAC_BYTES);
    atomic_store_explicit(&rings->mac, mac, memory_order_relaxed);
    return 0;
}

static bool config_is_valid(const um_xsk_config *config)
{
    return config->queue_count > 0 && config->queue_count <= UM_RINGS_DESCRIPTORS_MAX &&
           (config->frame_bytes == 2048 || config->frame_bytes == 4096) &&
           config->headroom_bytes <= UM_XSK_HEADROOM_BYTES_MAX && um_is_power_of_two(config->receive_frame_count) &&
           um_is_power_of_two(config->send_frame_count);
}

/* On failure the kernel's times are used instead. */
static void open_nic_clock(um_xsk_rings *rings)
{
    int64_t ignored_ns;
    int fd = um_nic_clock_open(rings->config.nic_clock);
    int result = fd < 0 ? fd : um_nic_clock_offset(fd, &ignored_ns);
    rings->nic_clock_error = -result;
    if (result == 0)
        rings->nic_clock_fd = fd;
    else if (fd >= 0)
        close(fd);
    rings->nic_clock_ns = INT64_MIN / 2;
}

static int make_rings(const um_xsk_config *config, um_xsk_rings **made)
{
    um_xsk_rings *rings = map(sizeof *rings, 0);
    *made = rings;
    if (rings == NULL)
        return -ENOMEM;
    rings->base.ops = &UM_XSK_RINGS_OPS;
    rings->base.receive_frames = config->receive_frame_count;
    rings->memory_fd = -1;
    for (uint32_t i = 0; i < UM_RINGS_DESCRIPTORS_MAX; i++)
        rings->queues[i].fd = -1;
    rings->config = *config;
    rings->wall_offset_ns = um_clock_wall_offset_ns();
    rings->nic_clock_fd = -1;
    if (config->has_nic_clock)
        open_nic_clock(rings);
    rings->failed_step = "configuration";
    if (!config_is_valid(config))
        return -EINVAL;
    rings->failed_step = "SIOCGIFHWADDR";
    return um_xsk_rings_learn_address(rings);
}

int um_xsk_rings_open(const um_xsk_config *config, um_xsk_rings **opened)
{
    int result = make_rings(config, opened);
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
    int result = make_rings(config, adopted);
    um_xsk_rings *rings = *adopted;
    if (result != 0)
        return result;
    rings->is_adopted = true;
    rings->is_busy_polling = config->busy_poll;
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
    if (rings->nic_clock_fd >= 0)
        close(rings->nic_clock_fd);
    munmap(rings, sizeof *rings);
}

const char *um_xsk_rings_failed_step(const um_xsk_rings *rings)
{
    return rings->failed_step;
}

um_rings *um_xsk_rings_base(um_xsk_rings *rings)
{
    return &rings->base;
}

#include "io/link_socket.h"

#include <net/if.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "os/clock.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

enum {
    SEGMENTS_MAX = 64,       /* the kernel's UDP_MAX_SEGMENTS */
    SUPER_BYTES_MAX = 65507, /* one UDP datagram before segmentation */
    SEND_CALLS_MAX = 64,     /* messages per sendmmsg call */
    SEND_VECTORS_MAX = 1024, /* the kernel's UIO_MAXIOV */
};

/* ---- opening ---- */

static int fail(um_socket_link *link, const char *step)
{
    int error = errno;
    link->failed_step = step;
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    return -error;
}

static int set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* The names of one option in both families. */
typedef struct ip_option {
    int ipv4;
    int ipv6;
    const char *text; /* for error texts */
} ip_option;

static const ip_option MULTICAST_HOPS = {IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS, "IP_MULTICAST_TTL"},
                       TRAFFIC_CLASS = {IP_TOS, IPV6_TCLASS, "IP_TOS"},
                       MTU_DISCOVER = {IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, "IP_MTU_DISCOVER"},
                       MULTICAST_ALL = {IP_MULTICAST_ALL, IPV6_MULTICAST_ALL, "IP_MULTICAST_ALL"};
_Static_assert(IP_PMTUDISC_DO == IPV6_PMTUDISC_DO && IP_PMTUDISC_DONT == IPV6_PMTUDISC_DONT, "the same values");

static int ip_level(const um_socket_link *link)
{
    return link->is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
}

static int set_ip(const um_socket_link *link, const ip_option *option, int value)
{
    return set(link->fd, ip_level(link), link->is_ipv6 ? option->ipv6 : option->ipv4, value);
}

/* Sets a buffer size, first by SO_*BUFFORCE, which ignores the system's limit, and returns the size granted. The kernel
 * doubles the requested size for its own overhead and reports the doubled size. */
static uint32_t set_buffer(int fd, int force_name, int name, uint32_t bytes)
{
    if (bytes != 0 && set(fd, SOL_SOCKET, force_name, (int)bytes) != 0)
        set(fd, SOL_SOCKET, name, (int)bytes);
    int granted = 0;
    socklen_t length = sizeof granted;
    getsockopt(fd, SOL_SOCKET, name, &granted, &length);
    return (uint32_t)granted / 2;
}

static int send_datagrams(um_link *link, um_address to, const um_tx *batch, uint32_t count);
static int send_oversize(um_link *link, um_address to, const um_tx *datagram);
static const um_link_ops SOCKET_OPS = {.send = send_datagrams, .send_oversize = send_oversize};

/* The index in the network namespace of the socket, which may not be that of the calling thread; 0: no interface. */
static uint32_t interface_index(int fd, const char *interface)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    return ioctl(fd, SIOCGIFINDEX, &request) != 0 ? 0 : (uint32_t)request.ifr_ifindex;
}

static int open_socket(um_socket_link *link, const um_socket_config *config)
{
    memset(link, 0, sizeof *link);
    link->gso = config->gso && !config->fragments;
    link->base = (um_link){.ops = &SOCKET_OPS, .is_faster_in_one_piece = link->gso};
    link->mtu_discover = config->fragments ? IP_PMTUDISC_DONT : IP_PMTUDISC_DO;
    link->timestamps = config->timestamps;
    um_link_counters_reset(&link->counters);
    link->is_ipv6 = um_ip_is_v6(config->interface_ip);
    link->fd = socket(link->is_ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0)
        return fail(link, "socket");
    link->interface_index = interface_index(link->fd, config->interface);
    if (link->is_ipv6 && set(link->fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) != 0)
        return fail(link, "IPV6_V6ONLY");
    link->granted_send_bytes = set_buffer(link->fd, SO_SNDBUFFORCE, SO_SNDBUF, config->send_buffer_bytes);
    link->granted_receive_bytes = set_buffer(link->fd, SO_RCVBUFFORCE, SO_RCVBUF, config->receive_buffer_bytes);
    return 0;
}

static int bind_to(um_socket_link *link, um_address address)
{
    um_socket_address name;
    socklen_t length = um_socket_address_set(&name, address, link->interface_index);
    if (bind(link->fd, &name.any, length) != 0)
        return fail(link, "bind");
    getsockname(link->fd, &name.any, &length);
    link->local = (um_address){address.ip, um_socket_address_get(&name).port};
    return 0;
}

int um_socket_set_interface(um_socket_link *link, const um_socket_config *config)
{
    link->interface_index = interface_index(link->fd, config->interface);
    if (link->is_ipv6)
        return set(link->fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, (int)link->interface_index) != 0 ? -errno : 0;
    struct ip_mreqn membership = {.imr_address.s_addr = htonl(um_ip_v4(config->interface_ip)),
                                  .imr_ifindex = (int)link->interface_index};
    return setsockopt(link->fd, IPPROTO_IP, IP_MULTICAST_IF, &membership, sizeof membership) != 0 ? -errno : 0;
}

static int prepare_sending(um_socket_link *link, const um_socket_config *config)
{
    if (um_socket_set_interface(link, config) != 0)
        return fail(link, "IP_MULTICAST_IF");
    if (set_ip(link, &MULTICAST_HOPS, (int)config->ttl) != 0)
        return fail(link, MULTICAST_HOPS.text);
    if (set_ip(link, &TRAFFIC_CLASS, config->traffic_class) != 0)
        return fail(link, TRAFFIC_CLASS.text);
    if (set_ip(link, &MTU_DISCOVER, link->mtu_discover) != 0)
        return fail(link, MTU_DISCOVER.text);
    return 0;
}

static int prepare_receiving(um_socket_link *link, const um_socket_config *config)
{
    if (set(link->fd, SOL_SOCKET, SO_RXQ_OVFL, 1) != 0)
        return fail(link, "SO_RXQ_OVFL");
    if (config->timestamps && set(link->fd, SOL_SOCKET, SO_TIMESTAMPNS, 1) != 0)
        return fail(link, "SO_TIMESTAMPNS");
    if (config->gro)
        set(link->fd, IPPROTO_UDP, UDP_GRO, 1); /* a kernel without it delivers single datagrams */
    return 0;
}

int um_socket_open_unicast(um_socket_link *link, const um_socket_config *config, uint16_t port)
{
    int result = open_socket(link, config);
    if (result == 0)
        result = prepare_sending(link, config);
    return result == 0 ? bind_to(link, (um_address){config->interface_ip, port}) : result;
}

int um_socket_open_receiver(um_socket_link *link, const um_socket_config *config, uint16_t port)
{
    int result = open_socket(link, config);
    if (result == 0)
        result = prepare_sending(link, config);
    if (result == 0)
        result = prepare_receiving(link, config);
    return result == 0 ? bind_to(link, (um_address){config->interface_ip, port}) : result;
}

/* Joins or leaves the group on the interface of this index (RFC 3678). */
static int change_membership(const um_socket_link *link, int option)
{
    um_socket_address group;
    socklen_t length = um_socket_address_set(&group, link->local, link->interface_index);
    struct group_req membership = {.gr_interface = link->interface_index};
    memcpy(&membership.gr_group, &group, length);
    return setsockopt(link->fd, ip_level(link), option, &membership, sizeof membership) != 0 ? -errno : 0;
}

static int join(um_socket_link *link, const um_socket_config *config)
{
    link->interface_index = interface_index(link->fd, config->interface);
    if (link->interface_index == 0)
        return -ENODEV;
    return change_membership(link, MCAST_JOIN_GROUP);
}

int um_socket_open_group(um_socket_link *link, const um_socket_config *config, um_address group)
{
    int result = open_socket(link, config);
    if (result != 0)
        return result;
    if (set(link->fd, SOL_SOCKET, SO_REUSEADDR, 1) != 0)
        return fail(link, "SO_REUSEADDR");
    if (set_ip(link, &MULTICAST_ALL, 0) != 0)
        return fail(link, MULTICAST_ALL.text);
    result = prepare_receiving(link, config);
    if (result == 0)
        result = bind_to(link, group);
    if (result != 0 || config->is_source_specific)
        return result;
    if (join(link, config) != 0)
        return fail(link, "MCAST_JOIN_GROUP");
    return 0;
}

int um_socket_rejoin(um_socket_link *link, const um_socket_config *config, bool has_moved)
{
    if (!has_moved && link->interface_index == interface_index(link->fd, config->interface))
        return 0;
    change_membership(link, MCAST_LEAVE_GROUP); /* refused if the kernel has dropped it with the interface */
    link->interface_index = interface_index(link->fd, config->interface);
    return config->is_source_specific ? 0 : join(link, config);
}

int um_socket_set_source(um_socket_link *link, const um_socket_config *config, um_ip source_ip, bool is_joined)
{
    link->interface_index = interface_index(link->fd, config->interface);
    struct group_source_req membership = {.gsr_interface = link->interface_index};
    um_socket_address group, source;
    socklen_t length = um_socket_address_set(&group, link->local, link->interface_index);
    um_socket_address_set(&source, (um_address){source_ip, 0}, link->interface_index);
    memcpy(&membership.gsr_group, &group, length);
    memcpy(&membership.gsr_source, &source, length);
    link->failed_step = link->is_ipv6
                            ? "MCAST_JOIN_SOURCE_GROUP (sysctl net.ipv6.mld_max_msf limits the sources of a group)"
                            : "MCAST_JOIN_SOURCE_GROUP (sysctl net.ipv4.igmp_max_msf limits the sources of a group)";
    int option = is_joined ? MCAST_JOIN_SOURCE_GROUP : MCAST_LEAVE_SOURCE_GROUP;
    if (setsockopt(link->fd, ip_level(link), option, &membership, sizeof membership) != 0)
        return -errno;
    return 0;
}

void um_socket_close(um_socket_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

int um_socket_interface_mtu(int fd, const char *interface)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    return ioctl(fd, SIOCGIFMTU, &request) != 0 ? -errno : request.ifr_mtu;
}

/* Atomic, because publishers send by a session's socket while the loop reads it. */
static void count_syscalls(um_socket_link *link, uint64_t count)
{
    __atomic_fetch_add(&link->counters.syscalls, count, __ATOMIC_RELAXED);
}

/* ---- sending ---- */

typedef struct send_plan {
    struct mmsghdr headers[SEND_CALLS_MAX];
    uint32_t datagrams[SEND_CALLS_MAX]; /* in each message */
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control[SEND_CALLS_MAX];
    struct iovec vectors[SEND_VECTORS_MAX];
    uint32_t count;
    uint32_t vector_count;
} send_plan;

/* Returns how many datagrams from batch[0] can be one segmented send: equal lengths, only the last may be shorter. */
static uint32_t segment_run(const um_tx *batch, uint32_t count, uint32_t vectors_left)
{
    uint32_t bytes = batch[0].length, vectors = batch[0].part_count, run = 1;
    while (run < count && run < SEGMENTS_MAX && batch[run].length <= batch[0].length &&
           bytes + batch[run].length <= SUPER_BYTES_MAX && vectors + batch[run].part_count <= vectors_left) {
        bytes += batch[run].length;
        vectors += batch[run].part_count;
        if (batch[run++].length < batch[0].length)
            break;
    }
    return run;
}

static void add_segment_size(send_plan *plan, uint16_t bytes)
{
    struct msghdr *message = &plan->headers[plan->count].msg_hdr;
    message->msg_control = &plan->control[plan->count];
    message->msg_controllen = sizeof plan->control[plan->count].bytes;
    struct cmsghdr *control = CMSG_FIRSTHDR(message);
    control->cmsg_level = IPPROTO_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof bytes);
    memcpy(CMSG_DATA(control), &bytes, sizeof bytes);
}

/* Merges a part that is contiguous with the last one: the kernel copies one long piece faster than many short ones. */
static void add_part(send_plan *plan, const struct iovec *first, const um_part *part)
{
    struct iovec *next = plan->vectors + plan->vector_count;
    if (next > first && (const uint8_t *)next[-1].iov_base + next[-1].iov_len == part->data) {
        next[-1].iov_len += part->length;
        return;
    }
    *next = (struct iovec){(void *)(uintptr_t)part->data, part->length};
    plan->vector_count++;
}

static void plan_sends(send_plan *plan, const um_tx *batch, uint32_t count, bool gso, um_socket_address *to,
                       socklen_t to_bytes)
{
    plan->count = plan->vector_count = 0;
    for (uint32_t done = 0; done < count && plan->count < SEND_CALLS_MAX;) {
        uint32_t vectors_left = SEND_VECTORS_MAX - plan->vector_count;
        if (batch[done].part_count > vectors_left)
            return;
        uint32_t run = gso ? segment_run(batch + done, count - done, vectors_left) : 1;
        struct msghdr *message = &plan->headers[plan->count].msg_hdr;
        *message =
            (struct msghdr){.msg_name = to, .msg_namelen = to_bytes, .msg_iov = plan->vectors + plan->vector_count};
        for (uint32_t i = done; i < done + run; i++)
            for (uint32_t part = 0; part < batch[i].part_count; part++)
                add_part(plan, message->msg_iov, &batch[i].parts[part]);
        message->msg_iovlen = (size_t)(plan->vectors + plan->vector_count - message->msg_iov);
        if (run > 1)
            add_segment_size(plan, (uint16_t)batch[done].length);
        plan->datagrams[plan->count++] = run;
        done += run;
    }
}

static bool is_full(int error)
{
    return error == EAGAIN || error == ENOBUFS;
}

/* Returns true if the device cannot segment (no checksum offload), or the kernel does not support it. */
static bool refuses_gso(int error)
{
    return error == EIO || error == EINVAL || error == ENOPROTOOPT;
}

static int send_datagrams(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_socket_link *link = (um_socket_link *)base;
    um_socket_address address;
    socklen_t address_bytes = um_socket_address_set(&address, to, link->interface_index);
    send_plan plan;
    plan_sends(&plan, batch, count, link->gso, &address, address_bytes);
    int calls = sendmmsg(link->fd, plan.headers, plan.count, 0);
    count_syscalls(link, 1);
    if (calls < 0) {
        int error = errno;
        if (link->gso && plan.datagrams[0] > 1 && refuses_gso(error)) {
            link->gso = base->is_faster_in_one_piece = false;
            return send_datagrams(base, to, batch, count);
        }
        UM_COUNT(*(is_full(error) ? &link->counters.send_would_block : &link->counters.send_errors), 1);
        UM_COUNT(link->counters.short_sends, is_full(error));
        return is_full(error) ? 0 : -error;
    }
    uint32_t sent = 0;
    for (int i = 0; i < calls; i++) {
        UM_COUNT(link->counters.gso_sends, plan.datagrams[i] > 1);
        UM_COUNT(link->counters.bytes_sent, plan.headers[i].msg_len);
        sent += plan.datagrams[i];
    }
    UM_COUNT(link->counters.datagrams_sent, sent);
    UM_COUNT(link->counters.short_sends, (uint32_t)calls < plan.count);
    return (int)sent;
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_socket_link *link = (um_socket_link *)base;
    um_socket_address address;
    socklen_t address_bytes = um_socket_address_set(&address, to, link->interface_index);
    send_plan plan;
    plan_sends(&plan, datagram, 1, false, &address, address_bytes);
    set_ip(link, &MTU_DISCOVER, IP_PMTUDISC_DONT);
    ssize_t sent = sendmsg(link->fd, &plan.headers[0].msg_hdr, 0);
    int error = errno;
    set_ip(link, &MTU_DISCOVER, link->mtu_discover);
    count_syscalls(link, 3);
    if (sent < 0) {
        UM_COUNT(*(is_full(error) ? &link->counters.send_would_block : &link->counters.send_errors), 1);
        UM_COUNT(link->counters.short_sends, is_full(error));
        return is_full(error) ? 0 : -error;
    }
    UM_COUNT(link->counters.datagrams_sent, 1);
    UM_COUNT(link->counters.oversize_sends, 1);
    UM_COUNT(link->counters.bytes_sent, sent);
    return 1;
}

/* ---- receiving ---- */

void um_receive_ring_init(um_receive_ring *ring, uint8_t *memory)
{
    memset(ring, 0, sizeof *ring);
    ring->memory = memory;
    for (uint32_t i = 0; i < UM_RECEIVE_BATCH_MAX; i++) {
        ring->vectors[i] = (struct iovec){memory + (size_t)i * UM_RECEIVE_STRIDE_BYTES, UM_RECEIVE_BUFFER_BYTES};
        ring->headers[i].msg_hdr = (struct msghdr){.msg_name = &ring->addresses[i],
                                                   .msg_iov = &ring->vectors[i],
                                                   .msg_iovlen = 1,
                                                   .msg_control = ring->control[i]};
    }
}

static void read_control(um_socket_link *link, struct msghdr *message, um_rx *rx)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
            int segment;
            memcpy(&segment, CMSG_DATA(c), sizeof segment);
            rx->segment_length = (uint32_t)segment;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            uint32_t drops;
            memcpy(&drops, CMSG_DATA(c), sizeof drops);
            UM_COUNT(link->counters.receive_drops, (uint32_t)(drops - (uint32_t)link->drops));
            link->drops = drops;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            rx->received_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        }
    }
}

int um_socket_receive(um_socket_link *link, um_receive_ring *ring, int max)
{
    for (int i = 0; i < max; i++) {
        ring->headers[i].msg_hdr.msg_namelen = sizeof ring->addresses[i];
        ring->headers[i].msg_hdr.msg_controllen = sizeof ring->control[i];
    }
    int count = recvmmsg(link->fd, ring->headers, (unsigned)max, MSG_DONTWAIT, NULL);
    count_syscalls(link, 1);
    if (count < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return 0;
        UM_COUNT(link->counters.receive_errors, 1);
        return -errno;
    }
    int64_t now_ns = um_clock_wall_ns();
    int kept = 0;
    for (int i = 0; i < count; i++) {
        struct msghdr *message = &ring->headers[i].msg_hdr;
        if (message->msg_flags & MSG_TRUNC) {
            UM_COUNT(link->counters.receive_truncated, 1);
            continue;
        }
        um_rx *rx = &ring->batch[kept++];
        *rx = (um_rx){.data = ring->vectors[i].iov_base,
                      .length = ring->headers[i].msg_len,
                      .from = um_socket_address_get(&ring->addresses[i]),
                      .to = link->local,
                      .received_ns = now_ns};
        if (message->msg_controllen > 0)
            read_control(link, message, rx);
        uint32_t datagrams = um_datagrams_in(rx->length, rx->segment_length);
        UM_COUNT(link->counters.gro_receives, datagrams > 1);
        UM_COUNT(link->counters.datagrams_received, datagrams);
        UM_COUNT(link->counters.bytes_received, rx->length);
    }
    return kept;
}

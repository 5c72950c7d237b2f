/* Counts dropped datagrams at the kernel's raw tracepoints. Compiled by bcc when a trace starts.
 *
 * It is independent of the layouts in kernel headers: the offsets of fields come from the type information of the
 * running kernel, as macros (SKB_HEAD, SKB_NETWORK_HEADER, SKB_DEV, DEV_INDEX, DEV_NET, SOCK_NET, NET_NUMBER), so
 * headers of another version work, too. THIS_NETWORK is the inode of the traced network namespace. HAS_REASON and
 * HAS_RECEIVER are set if this kernel's kfree_skb passes those arguments.
 */
#define IPV4_HEADER_BYTES 20
#define PROTOCOL_UDP 17
#define NET_RX_SOFTIRQ 3
#define FRAGMENT_OFFSET_MASK 0x1fff

struct drop {
    u64 location;
    u32 group;
    u32 port;
    u32 reason;
    u32 interface_index;
};

struct xdp_failure {
    u32 interface_index;
    s32 code;
};

struct softirq_time {
    u64 nanoseconds;
    u64 runs;
};

BPF_HASH(watched, u32, u32, 1024);
BPF_HASH(drops, struct drop, u64, 4096);
BPF_HASH(xdp_exceptions, struct xdp_failure, u64, 256);
BPF_HASH(redirect_errors, struct xdp_failure, u64, 256);
BPF_PERCPU_ARRAY(softirq_start, u64, 1);
BPF_PERCPU_ARRAY(softirq_total, struct softirq_time, 1);

static inline u64 read_pointer(u64 base, u64 offset)
{
    u64 value = 0;
    if (base)
        bpf_probe_read_kernel(&value, sizeof(value), (const void *)(base + offset));
    return value;
}

static inline u32 read_u32(u64 base, u64 offset)
{
    u32 value = 0;
    if (base)
        bpf_probe_read_kernel(&value, sizeof(value), (const void *)(base + offset));
    return value;
}

/* Returns 0 if the namespace of the device or socket cannot be found. */
static inline u32 network_of(u64 owner, u64 offset)
{
    return read_u32(read_pointer(owner, offset), NET_NUMBER);
}

static inline int is_elsewhere(u32 network)
{
    return network != 0 && network != THIS_NETWORK;
}

static inline int is_wanted(u32 group)
{
#ifdef SOME_GROUPS
    return watched.lookup(&group) != 0;
#else
    return (group >> 28) == 0xe;
#endif
}

/* Returns the destination of an IPv4 UDP datagram; 0 for other packets and destinations that are not traced. */
static inline int read_destination(u64 skb, struct drop *drop)
{
    u8 header[IPV4_HEADER_BYTES] = {};
    u8 port[2] = {};
    u16 network_header = 0;
    u64 head = read_pointer(skb, SKB_HEAD);

    bpf_probe_read_kernel(&network_header, sizeof(network_header), (const void *)(skb + SKB_NETWORK_HEADER));
    u64 start = head + network_header;
    if (bpf_probe_read_kernel(header, sizeof(header), (const void *)start) != 0)
        return 0;
    if ((header[0] >> 4) != 4 || header[9] != PROTOCOL_UDP)
        return 0;
    drop->group = (u32)header[16] << 24 | (u32)header[17] << 16 | (u32)header[18] << 8 | header[19];
    if (!is_wanted(drop->group))
        return 0;
    if (((header[6] << 8 | header[7]) & FRAGMENT_OFFSET_MASK) != 0)
        return 1;
    if (bpf_probe_read_kernel(port, sizeof(port), (const void *)(start + (header[0] & 15) * 4 + 2)) == 0)
        drop->port = (u32)port[0] << 8 | port[1];
    return 1;
}

RAW_TRACEPOINT_PROBE(kfree_skb)
{
    u64 skb = ctx->args[0];
    struct drop drop = {};

    if (!read_destination(skb, &drop))
        return 0;
    u64 device = read_pointer(skb, SKB_DEV);
    u32 network = network_of(device, DEV_NET);
    drop.interface_index = read_u32(device, DEV_INDEX);
    /* A socket's queue reuses the device field of the datagram. */
#ifdef HAS_RECEIVER
    if (ctx->args[3])
        network = network_of(ctx->args[3], SOCK_NET);
#endif
    if (is_elsewhere(network))
        return 0;
    drop.location = ctx->args[1];
#ifdef HAS_REASON
    drop.reason = ctx->args[2];
#endif
    drops.increment(drop);
    return 0;
}

RAW_TRACEPOINT_PROBE(xdp_exception)
{
    u64 device = ctx->args[0];
    struct xdp_failure failure = {.interface_index = read_u32(device, DEV_INDEX), .code = ctx->args[2]};

    if (!is_elsewhere(network_of(device, DEV_NET)))
        xdp_exceptions.increment(failure);
    return 0;
}

static inline int count_redirect_error(u64 device, s32 error)
{
    struct xdp_failure failure = {.interface_index = read_u32(device, DEV_INDEX), .code = error};

    if (!is_elsewhere(network_of(device, DEV_NET)))
        redirect_errors.increment(failure);
    return 0;
}

RAW_TRACEPOINT_PROBE(xdp_redirect_err)
{
    return count_redirect_error(ctx->args[0], ctx->args[3]);
}

#ifdef HAS_REDIRECT_MAP_ERROR
RAW_TRACEPOINT_PROBE(xdp_redirect_map_err)
{
    return count_redirect_error(ctx->args[0], ctx->args[3]);
}
#endif

RAW_TRACEPOINT_PROBE(softirq_entry)
{
    u32 zero = 0;
    u64 *start = softirq_start.lookup(&zero);

    if (start && ctx->args[0] == NET_RX_SOFTIRQ)
        *start = bpf_ktime_get_ns();
    return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
    u32 zero = 0;
    u64 *start = softirq_start.lookup(&zero);
    struct softirq_time *total = softirq_total.lookup(&zero);

    if (!start || !total || ctx->args[0] != NET_RX_SOFTIRQ || *start == 0)
        return 0;
    total->nanoseconds += bpf_ktime_get_ns() - *start;
    total->runs += 1;
    *start = 0;
    return 0;
}

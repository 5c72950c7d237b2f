// SPDX-License-Identifier: Apache-2.0
/*
 * Egress tap: copies the frames that leave an interface into a ring before the kernel cuts them into datagrams.
 *
 * If a device does not cut runs of datagrams (UDP GSO) itself, the kernel does so, and a packet socket sees each
 * datagram separately, at the cost of the sender's CPU. Here a run is still one packet: one match, one record, one
 * copy. The reader cuts it on its own CPU time.
 *
 * With a mirror (a device that belongs to the reader) a run is not copied here: the device gets a clone that refers to
 * the same pages. Single datagrams are cheaper to copy than to clone.
 *
 * The tap changes nothing, decides nothing and wakes no thread: its reader polls. Frames that do not fit are counted.
 *
 * Packet sockets capture incoming frames and those of the mirror. Their filters are in this file too, because they note
 * the time when each frame is accepted. The kernel could stamp frames for the sockets (SO_TIMESTAMPNS), but would then
 * stamp every packet of the host each time it is transmitted, before it is part of a run.
 *
 * bpf_ringbuf_reserve takes only constant sizes, so there is a ladder of record sizes. The unused end of a record is
 * not written: it costs space in the ring but no time.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <stddef.h>

#include "egress_tap.h"
#include "packet.h"

#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_HEADER_WORD_BYTES 4
#define FIRST_GROUP 0xe0000000u /* 224.0.0.0 */
#define FRAME_MAX_BYTES 65664   /* the longest IP packet with its link header, and some spare bytes */

/* Results of a device that accepted a packet. */
#define NET_XMIT_SUCCESS 0
#define NET_XMIT_DROP 1

#define WHOLE 0xffffffffu /* result of a socket filter: accept the whole frame */
#define NOTHING 0
#define STAMPS_SPARE 64 /* for CPUs that reserve at the same time */

/* xdp/egress_tap.py sets the requested size before it loads the program. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} ring SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct egress_tap_filter);
} filter SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct egress_tap_counters);
} counters SEC(".maps");

struct stamps {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, EGRESS_TAP_STAMPS);
    __type(key, __u32);
    __type(value, struct egress_tap_stamp);
};

struct stamps incoming_stamps SEC(".maps");
struct stamps mirrored_stamps SEC(".maps");

/* The start of a frame without its Ethernet addresses; the padding aligns the IP header to a word. */
struct head {
    __u16 unused;
    __be16 proto;
    struct iphdr ip;
};

static __always_inline int is_in(const struct egress_tap_range *ranges, __u32 count, __u32 value)
{
    for (__u32 i = 0; i < EGRESS_TAP_RANGES_MAX; i++) {
        if (i >= count)
            break;
        if (value >= ranges[i].low && value <= ranges[i].high)
            return 1;
    }
    return 0;
}

static __always_inline int has_port_in(struct __sk_buff *skb, const struct iphdr *ip,
                                       const struct egress_tap_range *ranges, __u32 count)
{
    __u32 at = sizeof(struct ethhdr) + ip->ihl * IP_HEADER_WORD_BYTES + offsetof(struct udphdr, dest);
    __be16 port;

    if (bpf_skb_load_bytes(skb, at, &port, sizeof(port)))
        return 0;
    return is_in(ranges, count, bpf_ntohs(port));
}

static __always_inline int is_of_stream(struct __sk_buff *skb, const struct iphdr *ip,
                                        const struct egress_tap_filter *wanted)
{
    __u32 at = sizeof(struct ethhdr) + ip->ihl * IP_HEADER_WORD_BYTES;
    __be16 ports[2]; /* source, destination */

    if (!wanted->stream_port_count || bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
        return 0;
    return is_in(wanted->stream_ports, wanted->stream_port_count, bpf_ntohs(ports[0])) ||
           is_in(wanted->stream_ports, wanted->stream_port_count, bpf_ntohs(ports[1]));
}

/* Matches the same frames as the packet socket's filter (umstack/capture/writing/packet_filter.py). */
static __always_inline int is_wanted(struct __sk_buff *skb, const struct egress_tap_filter *wanted)
{
    struct head head;
    int is_later_fragment;
    __u32 destination;

    if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &head.proto,
                           sizeof(head) - offsetof(struct head, proto)))
        return 0;
    is_later_fragment = (head.ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET)) != 0;
    if (head.proto != bpf_htons(ETH_P_IP))
        return 0;
    if (head.ip.protocol == IPPROTO_TCP)
        return !is_later_fragment && is_of_stream(skb, &head.ip, wanted);
    if (head.ip.protocol != IPPROTO_UDP)
        return 0;
    destination = bpf_ntohl(head.ip.daddr);
    if (is_in(wanted->groups, wanted->group_count, destination)) {
        /* Only the first fragment has the ports. */
        if (!wanted->group_port_count || is_later_fragment)
            return 1;
        return has_port_in(skb, &head.ip, wanted->group_ports, wanted->group_port_count);
    }
    if (destination >= FIRST_GROUP || is_later_fragment)
        return 0;
    return has_port_in(skb, &head.ip, wanted->unicast_ports, wanted->unicast_port_count);
}

static __always_inline void count_lost(__u32 packet_count)
{
    __u32 zero = 0;
    struct egress_tap_counters *found = bpf_map_lookup_elem(&counters, &zero);

    if (found)
        __sync_fetch_and_add(&found->lost_count, packet_count > 1 ? packet_count : 1);
}

/* `space_bytes` is a constant wherever this function is inlined. */
static __always_inline void copy(struct __sk_buff *skb, __u32 segment_count, __u32 bytes, const __u32 space_bytes)
{
    __u32 last = bytes - 1; /* kernels before 6.8 need such a bound: they infer nothing from bytes != 0 */
    struct egress_tap_record *record = bpf_ringbuf_reserve(&ring, sizeof(*record) + space_bytes, 0);

    if (!record) {
        count_lost(segment_count);
        return;
    }
    record->time_ns = bpf_ktime_get_tai_ns();
    record->wire_bytes = skb->len;
    record->captured_bytes = bytes;
    record->segment_bytes = skb->gso_size;
    record->segment_count = segment_count;
    record->has_vlan = skb->vlan_present;
    record->vlan_type = bpf_ntohs(skb->vlan_proto);
    record->vlan_tci = skb->vlan_tci;
    barrier_var(last); /* keeps the compiler from removing the comparison, which the verifier requires */
    if (last >= space_bytes || bpf_skb_load_bytes(skb, 0, record + 1, last + 1)) {
        bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
        count_lost(segment_count);
        return;
    }
    bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

#define COPY_IF_WITHIN(space_bytes)                                                                                    \
    if (bytes <= (space_bytes)) {                                                                                      \
        copy(skb, segment_count, bytes, space_bytes);                                                                  \
        return TC_ACT_UNSPEC;                                                                                          \
    }

/* Redirects a run of datagrams by reference: the reader of the mirror decides what is copied, and when. A device that
 * is down returns NET_XMIT_CN. Returns true if the mirror accepted the run. */
static __always_inline int try_mirror(struct __sk_buff *skb, __u32 segment_count, __u32 mirror_index)
{
    long result;

    if (!mirror_index || segment_count < 2)
        return 0;
    result = bpf_clone_redirect(skb, mirror_index, 0);
    return result == NET_XMIT_SUCCESS || result == NET_XMIT_DROP;
}

/* Always leaves the decision to the next program: TC_ACT_UNSPEC. */
SEC("tc")
int egress_tap(struct __sk_buff *skb)
{
    __u32 zero = 0;
    const struct egress_tap_filter *wanted = bpf_map_lookup_elem(&filter, &zero);
    __u32 segment_count = skb->gso_segs;
    __u32 bytes = skb->len < FRAME_MAX_BYTES ? skb->len : FRAME_MAX_BYTES;

    if (!wanted || !is_wanted(skb, wanted))
        return TC_ACT_UNSPEC;
    if (try_mirror(skb, segment_count, wanted->mirror_index))
        return TC_ACT_UNSPEC;
    COPY_IF_WITHIN(128)
    COPY_IF_WITHIN(512)
    COPY_IF_WITHIN(1536)
    COPY_IF_WITHIN(4096)
    COPY_IF_WITHIN(9216)
    COPY_IF_WITHIN(16384)
    COPY_IF_WITHIN(24576)
    COPY_IF_WITHIN(32768)
    COPY_IF_WITHIN(45056)
    COPY_IF_WITHIN(FRAME_MAX_BYTES)
    return TC_ACT_UNSPEC;
}

/* Stamps the frame with the time and accepts it for a packet socket. The reader finds the stamp by the frame's number,
 * because the socket reports how many frames it dropped. */
static __always_inline int stamped(struct __sk_buff *skb, __u32 socket, void *stamps)
{
    __u32 zero = 0, at;
    struct egress_tap_counters *found = bpf_map_lookup_elem(&counters, &zero);
    __u32 packet_count = skb->gso_segs > 1 ? skb->gso_segs : 1;
    struct egress_tap_watch *watch;
    struct egress_tap_stamp *stamp;
    __u64 frame;

    if (!found)
        return NOTHING;
    watch = &found->watches[socket];
    if (watch->frame_count - *(volatile __u64 *)&watch->taken_count >= EGRESS_TAP_STAMPS - STAMPS_SPARE) {
        __sync_fetch_and_add(&watch->refused_count, packet_count);
        return NOTHING;
    }
    frame = __sync_fetch_and_add(&watch->frame_count, 1) + 1;
    at = frame % EGRESS_TAP_STAMPS;
    stamp = bpf_map_lookup_elem(stamps, &at);
    if (!stamp)
        return NOTHING;
    stamp->time_ns = bpf_ktime_get_tai_ns();
    stamp->packet_count = packet_count;
    stamp->queue_number = skb->queue_mapping;
    __sync_lock_test_and_set(&stamp->frame, frame); /* in this order, on every processor */
    return WHOLE;
}

SEC("socket")
int let_in_incoming(struct __sk_buff *skb)
{
    __u32 zero = 0;
    const struct egress_tap_filter *wanted = bpf_map_lookup_elem(&filter, &zero);

    return wanted && is_wanted(skb, wanted) ? stamped(skb, EGRESS_TAP_INCOMING, &incoming_stamps) : NOTHING;
}

SEC("socket")
int let_in_mirrored(struct __sk_buff *skb)
{
    return stamped(skb, EGRESS_TAP_MIRRORED, &mirrored_stamps);
}

char _license[] SEC("license") = "Dual BSD/GPL";

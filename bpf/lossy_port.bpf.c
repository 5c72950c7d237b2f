// SPDX-License-Identifier: Apache-2.0
/*
 * A lossy switch port: loses, duplicates, reorders and corrupts UDP datagrams at one port of the lab's switch.
 *
 * Two tc (clsact) programs share the maps of one loaded object; each port direction loads its own object.
 *   lossy_port    on the switch end of a host's veth, egress (toward the host) or ingress (from the host).
 *   lossy_detour  on the far end of the port's detour, a veth loop inside the switch namespace.
 *
 * Scope. Only UDP over IPv4 and IPv6 (without extension headers) is considered, to a multicast destination unless
 * LOSSY_UNICAST is set, and TCP segments if LOSSY_TCP is set; ARP, IGMP, ICMPv6 and everything else passes unchanged.
 * All CPUs share one counter that numbers datagrams and segments. The fate of datagram i is a function of (seed, i)
 * alone, so that a seed replays the same losses.
 *
 * Corruption. One bit of the packet behind the Ethernet header is flipped and no checksum is adjusted, as a fault
 * behind the last check of the frame would do. The lab turns checksum offload off on hosts: veth would otherwise mark
 * every checksum as verified, and the receiver would not look at it.
 *
 * Reordering. A chosen datagram leaves through the detour and circles there until reorder_depth datagrams have
 * overtaken it, or until it has been held for hold_limit_ns, whichever is first. It cannot be lost: it is always in the
 * loop or on its way. If LOSSY_HELD_MAX datagrams are in the loop, no other is held. The loop's token bucket
 * (umstack/lab/detour.py) paces the circling, so that the CPU is free to forward the overtaking datagrams.
 *
 * Segmentation offload. A super-packet of n datagrams is counted as n and shares one fate; the lab turns the offload
 * off on hosts where each datagram must have its own fate.
 *
 * umstack/lab/port.py packs the layouts below; change both together.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include "packet.h"

#define LOSSY_BLOCK (1u << 0)   /* partition: drop every datagram that matches */
#define LOSSY_UNICAST (1u << 1) /* unicast UDP matches too */
#define LOSSY_INGRESS (1u << 2) /* attached to the ingress of the port: re-inject there */
/* 1u << 3 is used by umstack/lab/port.py: the program stays attached while it has nothing to do. */
#define LOSSY_TCP (1u << 4) /* TCP segments match too */

#define LOSSY_HELD_MAX 64

/* skb->mark of a datagram that this object has already decided on. Marks set by a host never reach the switch end of a
 * veth, because crossing a namespace clears them. */
#define MARK_KIND 0xf0000000u
#define MARK_DECIDED 0xd0000000u
#define MARK_HELD 0xa0000000u
#define MARK_TIME_SHIFT 20
#define MARK_TIME_MASK 0xffu
#define MARK_FORWARDED_MASK 0xfffffu
#define HOLD_TICK_SHIFT 17 /* a hold is timed in ticks of 2^17 ns; 255 of them are 33 ms */

struct lossy_config {
    __u64 seed;
    __u64 loss_per_2_32;
    __u64 duplicate_per_2_32;
    __u64 reorder_per_2_32;
    __u32 flags;
    __u32 port_ifindex;
    __u32 detour_ifindex; /* 0: no detour, no reordering */
    __u32 reorder_depth;
    __u64 hold_limit_ns;
    __u64 corrupt_per_2_32;
};

/* Shared by all CPUs, changed atomically. */
struct lossy_state {
    __u64 forwarded_count; /* datagrams forwarded directly: these overtake a held one */
    __u64 held_count;      /* datagrams now in the detour */
};

/* Datagrams. seen = passed + dropped + blocked; duplicated and reordered are among the passed. */
struct lossy_counters {
    __u64 seen;
    __u64 passed;
    __u64 dropped;
    __u64 blocked;
    __u64 duplicated;
    __u64 reordered; /* sent into the detour */
    __u64 released;  /* returned from the detour: equal to reordered if nothing is held */
    __u64 unheld;    /* chosen for reordering but passed in order, because the detour was full */
    __u64 corrupted; /* among the passed; both copies of a duplicated one are corrupted alike */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct lossy_config);
} lossy_config SEC(".maps");

/* The number of the next datagram; shared by all CPUs. Writing it restarts the series of fates. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} lossy_index SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct lossy_state);
} lossy_state SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct lossy_counters);
} lossy_counters SEC(".maps");

enum fate { FATE_LOSS, FATE_DUPLICATE, FATE_REORDER, FATE_COUNT };

/* splitmix64's finaliser over a counter: independent draws for every (seed, index, fate). */
static __always_inline __u64 mixed(__u64 seed, __u64 draw)
{
    __u64 z = seed + (draw + 1) * 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static __always_inline int is_chosen(const struct lossy_config *config, __u64 index, enum fate fate,
                                     __u64 rate_per_2_32)
{
    return (mixed(config->seed, index * FATE_COUNT + fate) >> 32) < rate_per_2_32;
}

/* The series of corruption is independent of that of the fates, which stays the same for a seed with or without it. The
 * upper half of a draw decides, the lower half chooses the bit. */
#define CORRUPTION_SERIES 0xc0dec0dec0dec0deull

static __always_inline void corrupt(struct __sk_buff *skb, const struct lossy_config *config,
                                    struct lossy_counters *counters, __u64 index, __u64 count)
{
    __u64 draw = mixed(config->seed ^ CORRUPTION_SERIES, index);
    __u32 offset;
    __u8 byte;

    if ((draw >> 32) >= config->corrupt_per_2_32 || skb->len <= ETH_HLEN)
        return;
    offset = ETH_HLEN + ((__u32)draw >> 3) % (skb->len - ETH_HLEN);
    if (bpf_skb_load_bytes(skb, offset, &byte, sizeof(byte)))
        return;
    byte ^= 1 << (draw & 7);
    if (!bpf_skb_store_bytes(skb, offset, &byte, sizeof(byte), 0))
        counters->corrupted += count;
}

/* Uses bpf_skb_load_bytes instead of direct access, because frames sent by AF_XDP over veth have no linear part. */
static __always_inline int matches(struct __sk_buff *skb, __u32 flags)
{
    struct iphdr ip;
    struct ipv6hdr ipv6;
    struct vlan_tag tag;
    __u8 protocol;
    int is_multicast;
    __u32 offset = ETH_HLEN;
    __be16 proto;

    if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &proto, sizeof(proto)))
        return 0;
    for (int i = 0; i < VLAN_TAGS_MAX; i++) {
        if (!is_vlan(proto))
            break;
        if (bpf_skb_load_bytes(skb, offset, &tag, sizeof(tag)))
            return 0;
        proto = tag.encapsulated_proto;
        offset += sizeof(tag);
    }
    if (proto == bpf_htons(ETH_P_IP)) {
        if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)) || ip.version != 4)
            return 0;
        protocol = ip.protocol;
        is_multicast = IN_MULTICAST(bpf_ntohl(ip.daddr));
    } else if (proto == bpf_htons(ETH_P_IPV6)) {
        if (bpf_skb_load_bytes(skb, offset, &ipv6, sizeof(ipv6)) || ipv6.version != 6)
            return 0;
        protocol = ipv6.nexthdr;
        is_multicast = ipv6.daddr.in6_u.u6_addr8[0] == 0xff;
    } else {
        return 0;
    }
    if (protocol == IPPROTO_TCP)
        return (flags & LOSSY_TCP) != 0;
    return protocol == IPPROTO_UDP && ((flags & LOSSY_UNICAST) || is_multicast);
}

static __always_inline __u32 hold_tick(void)
{
    return (__u32)(bpf_ktime_get_ns() >> HOLD_TICK_SHIFT) & MARK_TIME_MASK;
}

static __always_inline __u64 datagram_count(const struct __sk_buff *skb)
{
    return skb->gso_segs > 1 ? skb->gso_segs : 1;
}

/* Reserves space in the detour and marks the datagram with the time and the count that its release depends on. Returns
 * 0 if the detour is full. */
static __always_inline int try_hold(struct __sk_buff *skb, struct lossy_state *state, __u64 count)
{
    if (__sync_fetch_and_add(&state->held_count, count) >= LOSSY_HELD_MAX) {
        __sync_fetch_and_add(&state->held_count, -count);
        return 0;
    }
    skb->mark = MARK_HELD | hold_tick() << MARK_TIME_SHIFT | ((__u32)state->forwarded_count & MARK_FORWARDED_MASK);
    return 1;
}

static __always_inline void duplicate(struct __sk_buff *skb, const struct lossy_config *config,
                                      struct lossy_counters *counters, __u64 count)
{
    __u64 redirect_flags = config->flags & LOSSY_INGRESS ? BPF_F_INGRESS : 0;

    skb->mark = MARK_DECIDED;
    if (!bpf_clone_redirect(skb, config->port_ifindex, redirect_flags))
        counters->duplicated += count;
    skb->mark = 0;
}

SEC("tc")
int lossy_port(struct __sk_buff *skb)
{
    __u32 zero = 0;
    struct lossy_config *config = bpf_map_lookup_elem(&lossy_config, &zero);
    struct lossy_state *state = bpf_map_lookup_elem(&lossy_state, &zero);
    struct lossy_counters *counters = bpf_map_lookup_elem(&lossy_counters, &zero);
    __u64 count = datagram_count(skb);
    __u64 *next_index = bpf_map_lookup_elem(&lossy_index, &zero);
    __u64 index;

    if (!config || !state || !counters || !next_index)
        return TC_ACT_OK;
    if (skb->mark == MARK_DECIDED) {
        skb->mark = 0;
        return TC_ACT_OK;
    }
    if (!matches(skb, config->flags))
        return TC_ACT_OK;
    index = __sync_fetch_and_add(next_index, count);
    counters->seen += count;
    if (config->flags & LOSSY_BLOCK) {
        counters->blocked += count;
        return TC_ACT_SHOT;
    }
    if (is_chosen(config, index, FATE_LOSS, config->loss_per_2_32)) {
        counters->dropped += count;
        return TC_ACT_SHOT;
    }
    counters->passed += count;
    corrupt(skb, config, counters, index, count);
    if (is_chosen(config, index, FATE_DUPLICATE, config->duplicate_per_2_32))
        duplicate(skb, config, counters, count);
    if (config->detour_ifindex && is_chosen(config, index, FATE_REORDER, config->reorder_per_2_32)) {
        if (try_hold(skb, state, count)) {
            counters->reordered += count;
            return bpf_redirect(config->detour_ifindex, 0);
        }
        counters->unheld += count;
    }
    __sync_fetch_and_add(&state->forwarded_count, count);
    return TC_ACT_OK;
}

SEC("tc")
int lossy_detour(struct __sk_buff *skb)
{
    __u32 zero = 0;
    struct lossy_config *config = bpf_map_lookup_elem(&lossy_config, &zero);
    struct lossy_state *state = bpf_map_lookup_elem(&lossy_state, &zero);
    struct lossy_counters *counters = bpf_map_lookup_elem(&lossy_counters, &zero);
    __u64 count = datagram_count(skb);
    __u32 held_ticks, overtaken_count;

    if (!config || !state || !counters || (skb->mark & MARK_KIND) != MARK_HELD)
        return TC_ACT_SHOT;
    overtaken_count = ((__u32)state->forwarded_count - skb->mark) & MARK_FORWARDED_MASK;
    held_ticks = (hold_tick() - (skb->mark >> MARK_TIME_SHIFT)) & MARK_TIME_MASK;
    if (overtaken_count < config->reorder_depth && (__u64)held_ticks << HOLD_TICK_SHIFT < config->hold_limit_ns)
        return bpf_redirect(config->detour_ifindex, 0);
    skb->mark = MARK_DECIDED;
    counters->released += count;
    __sync_fetch_and_add(&state->held_count, -count);
    return bpf_redirect(config->port_ifindex, config->flags & LOSSY_INGRESS ? BPF_F_INGRESS : 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";

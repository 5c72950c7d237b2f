// SPDX-License-Identifier: Apache-2.0
/*
 * Steering: decides which UDP datagrams go into AF_XDP rings, from rules in maps. The programs are steering.bpf.c and
 * steering_timed.bpf.c; each object has its own maps.
 *
 * A datagram is ours if the map `rules` contains its full destination address (not the MAC address, which 32 IPv4
 * groups share), its UDP destination port and its VLAN: as with kernel sockets, frames tagged for a VLAN do not reach
 * listeners on the untagged interface. The rule names a slot; `sockets` holds the socket for that slot and the receive
 * queue of the frame. If there is no socket, the datagram is passed to the kernel.
 *
 * Frames that are longer than the interface carries are passed: in generic mode they hold datagrams that the sender
 * joined (GSO) or the kernel (GRO), and only the kernel knows where to split them.
 *
 * Fragments are passed, because only the kernel reassembles. They are counted under the rule of their address, because
 * all but the first carry no port. Doubtful frames are passed too; the kernel judges them as usual.
 *
 * UDP checksums are not verified here: the NIC has done so, or the reader of the ring does.
 */
#ifndef STEERING_JUDGE_H
#define STEERING_JUDGE_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stddef.h>

#include "packet.h"
#include "steering.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_HEADER_WORDS_MIN 5
#define IP_HEADER_WORD_BYTES 4
#define IP_OPTION_WORDS_MAX 10
#define VLAN_ID_MASK 0x0fff
#define IPV4_MAPPED_PREFIX 0xffff /* the two bytes in front of an IPv4 address in IPv6 form */

/* Bytes of a frame in all its buffers. Declared here because libbpf before 0.8 does not declare it. */
static __u64 (*const buffer_bytes)(struct xdp_md *ctx) = (void *)188;

/* Default sizes for a small host; xdp/steering.py sets the requested ones before it loads the program. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 128);
    __type(key, struct steering_rule_key);
    __type(value, struct steering_rule);
} rules SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, STEERING_QUEUES_MAX);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, STEERING_VERDICTS);
    __type(key, __u32);
    __type(value, __u64);
} verdicts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, struct steering_rule_hits);
} rule_hits SEC(".maps");

/* A frame being parsed. left_bytes includes the bytes in further buffers, which cursor cannot reach. */
struct frame {
    void *cursor;
    void *end;
    __u64 left_bytes;
    __u64 frame_bytes;
};

/* Steps over a header; returns 0 if the frame ends before the header does. (Returning the header or NULL would read
 * better, but without CAP_PERFMON the verifier allows no comparison of a pointer with NULL.) */
static __always_inline int step_over(struct frame *frame, __u32 bytes)
{
    if (frame->cursor + bytes > frame->end)
        return 0;
    frame->cursor += bytes;
    frame->left_bytes -= bytes;
    return 1;
}

static __always_inline struct steering_rule *rule_of(const struct steering_rule_key *key,
                                                     struct steering_rule_hits **hits)
{
    struct steering_rule *rule = bpf_map_lookup_elem(&rules, key);

    if (!rule)
        return NULL;
    *hits = bpf_map_lookup_elem(&rule_hits, &rule->rule);
    return *hits ? rule : NULL;
}

/* Counts a fragment to an address with a rule, whatever its port; otherwise returns `foreign`. */
static __always_inline enum steering_verdict judge_fragment(const struct steering_rule_key *key,
                                                            enum steering_verdict foreign)
{
    struct steering_rule_hits *hits;

    if (!rule_of(key, &hits))
        return foreign;
    hits->fragments++;
    return STEERING_FRAGMENT;
}

/* `ip_payload_bytes` is the payload length according to the IP header. */
static __always_inline enum steering_verdict judge_udp(struct frame *frame, struct steering_rule_key *key,
                                                       __u32 ip_payload_bytes, __u32 queue, long *action)
{
    struct steering_rule_hits *hits;
    struct steering_rule *rule;
    struct udphdr *udp = frame->cursor;

    if (ip_payload_bytes < sizeof(*udp))
        return STEERING_MALFORMED;
    if (frame->left_bytes < ip_payload_bytes)
        return STEERING_TRUNCATED;
    if (!step_over(frame, sizeof(*udp)))
        return STEERING_TRUNCATED;
    if (bpf_ntohs(udp->len) != ip_payload_bytes)
        return STEERING_MALFORMED;
    if (!udp->dest)
        return STEERING_NOT_OWNED;
    key->port_be = udp->dest;
    rule = rule_of(key, &hits);
    if (!rule)
        return STEERING_NOT_OWNED;
    if (frame->frame_bytes > rule->frame_bytes_max) {
        hits->joined++;
        return STEERING_JOINED;
    }
    if (queue < STEERING_QUEUES_MAX)
        *action = bpf_redirect_map(&sockets, rule->slot * STEERING_QUEUES_MAX + queue, XDP_PASS);
    if (*action != XDP_REDIRECT) {
        hits->no_socket++;
        barrier(); /* keeps the two increments apart: one at a variable offset would need CAP_PERFMON */
        return STEERING_NO_SOCKET;
    }
    hits->redirected++;
    return STEERING_REDIRECTED;
}

/* Steps one word at a time: without CAP_PERFMON the verifier allows only steps of constant length. The barrier keeps
 * the compiler from computing the number of steps from pointers, which is not allowed either. */
static __always_inline int step_over_options(struct frame *frame, __u32 words)
{
#pragma unroll
    for (__u32 i = 0; i < IP_OPTION_WORDS_MAX; i++) {
        if (i < words && !step_over(frame, IP_HEADER_WORD_BYTES))
            return 0;
        barrier_var(frame->cursor);
    }
    return 1;
}

static __always_inline enum steering_verdict judge_ipv4(struct frame *frame, __u16 vlan, __u32 queue, long *action)
{
    struct steering_rule_key key = {.vlan = vlan};
    struct iphdr *ip = frame->cursor;
    __u32 header_bytes, total_bytes;

    if (!step_over(frame, sizeof(*ip)))
        return STEERING_TRUNCATED;
    header_bytes = ip->ihl * IP_HEADER_WORD_BYTES;
    total_bytes = bpf_ntohs(ip->tot_len);
    if (ip->version != 4 || ip->ihl < IP_HEADER_WORDS_MIN || total_bytes < header_bytes)
        return STEERING_MALFORMED;
    if (!step_over_options(frame, ip->ihl - IP_HEADER_WORDS_MIN))
        return STEERING_TRUNCATED;
    if (ip->protocol != IPPROTO_UDP)
        return STEERING_NOT_UDP;
    *(__u16 *)&key.address[10] = IPV4_MAPPED_PREFIX;
    *(__be32 *)&key.address[12] = ip->daddr;
    if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
        return judge_fragment(&key, STEERING_NOT_OWNED);
    return judge_udp(frame, &key, total_bytes - header_bytes, queue, action);
}

/* An IPv4 address in IPv6 form is invalid on the wire and must not match an IPv4 rule. */
static __always_inline int is_ipv4_mapped(const struct in6_addr *address)
{
    return !address->in6_u.u6_addr32[0] && !address->in6_u.u6_addr32[1] &&
           address->in6_u.u6_addr32[2] == bpf_htonl(IPV4_MAPPED_PREFIX);
}

static __always_inline enum steering_verdict judge_ipv6(struct frame *frame, __u16 vlan, __u32 queue, long *action)
{
    struct steering_rule_key key = {.vlan = vlan};
    struct ipv6hdr *ip = frame->cursor;

    if (!step_over(frame, sizeof(*ip)))
        return STEERING_TRUNCATED;
    if (ip->version != 6 || is_ipv4_mapped(&ip->daddr))
        return STEERING_MALFORMED;
    __builtin_memcpy(key.address, &ip->daddr, sizeof(key.address));
    switch (ip->nexthdr) {
    case IPPROTO_UDP:
        return judge_udp(frame, &key, bpf_ntohs(ip->payload_len), queue, action);
    case IPPROTO_FRAGMENT:
        return judge_fragment(&key, STEERING_IPV6_EXTENSION);
    case IPPROTO_HOPOPTS:
    case IPPROTO_ROUTING:
    case IPPROTO_DSTOPTS:
    case IPPROTO_AH:
        return STEERING_IPV6_EXTENSION;
    default:
        return STEERING_NOT_UDP;
    }
}

static __always_inline enum steering_verdict judge(struct frame *frame, __u32 queue, long *action)
{
    struct ethhdr *ethernet = frame->cursor;
    struct vlan_tag *tag;
    __u16 vlan = 0;
    __be16 proto;

    if (!step_over(frame, sizeof(*ethernet)))
        return STEERING_TRUNCATED;
    proto = ethernet->h_proto;
    if (proto == bpf_htons(ETH_P_8021Q)) {
        tag = frame->cursor;
        if (!step_over(frame, sizeof(*tag)))
            return STEERING_TRUNCATED;
        vlan = bpf_ntohs(tag->tci) & VLAN_ID_MASK;
        proto = tag->encapsulated_proto;
    }
    if (is_vlan(proto))
        return STEERING_STACKED_TAGS;
    if (proto == bpf_htons(ETH_P_IP))
        return judge_ipv4(frame, vlan, queue, action);
    if (proto == bpf_htons(ETH_P_IPV6))
        return judge_ipv6(frame, vlan, queue, action);
    return STEERING_NOT_IP;
}

static __always_inline int steer(struct xdp_md *ctx, __u64 frame_bytes)
{
    struct frame frame = {.cursor = (void *)(long)ctx->data,
                          .end = (void *)(long)ctx->data_end,
                          .left_bytes = frame_bytes,
                          .frame_bytes = frame_bytes};
    long action = XDP_PASS;
    __u32 verdict = judge(&frame, ctx->rx_queue_index, &action);
    __u64 *count = bpf_map_lookup_elem(&verdicts, &verdict);

    if (count)
        ++*count;
    return (int)action;
}

#endif

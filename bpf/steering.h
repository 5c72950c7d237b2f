// SPDX-License-Identifier: Apache-2.0
/*
 * What the steering program and its loader share: the layout of its maps and its verdicts.
 *
 * The one place for both sides. The program includes it; cffi reads the same declarations (ffi/build.py), so that
 * xdp/steering.py has its layouts and names from here. That is why it keeps to plain C, without __u32 and without
 * an include guard.
 */

/* The socket of slot s and receive queue q is at index s * STEERING_QUEUES_MAX + q of the map `sockets`. */
#define STEERING_QUEUES_MAX 64

/* Key of the map `rules`. Port 0 is no port: it stands for the whole address, and claims its fragments. */
struct steering_rule_key {
    unsigned char address[16]; /* destination in network order; IPv4 is ::ffff:a.b.c.d */
    unsigned short port_be;    /* UDP destination, in network order */
    unsigned short vlan;       /* id of the 802.1Q tag; 0: untagged, or tagged with a priority only */
};

struct steering_rule {
    unsigned int slot;
    unsigned int rule; /* index into the map `rule_hits` */
};

/* Value of the per-CPU map `rule_hits`, in datagrams (frames, where they are fragments). */
struct steering_rule_hits {
    unsigned long long redirected;
    unsigned long long no_socket; /* the rule matched, but no socket was at (slot, queue): passed */
    unsigned long long fragments; /* IP fragments to the rule's address: passed, the kernel reassembles */
};

/* Index of the per-CPU map `verdicts`. Every frame is counted under exactly one; all but the first are XDP_PASS. */
enum steering_verdict {
    STEERING_REDIRECTED,
    STEERING_NO_SOCKET,      /* ours, but no socket at (slot, queue) */
    STEERING_FRAGMENT,       /* a fragment to an address of ours */
    STEERING_NOT_OWNED,      /* UDP, but no rule for its address and port */
    STEERING_NOT_UDP,        /* IP that carries something else: IGMP, TCP, ICMP */
    STEERING_NOT_IP,         /* ARP and the like */
    STEERING_IPV6_EXTENSION, /* IPv6 with an extension header before whatever it carries: MLD, other fragments */
    STEERING_TRUNCATED,      /* the frame ends before its headers do, or before the length in them */
    STEERING_MALFORMED,      /* a version, a header length or a UDP length that cannot be */
    STEERING_STACKED_TAGS,   /* behind a provider's VLAN tag (802.1ad, QinQ) or a second one: no rule is for these */
    STEERING_VERDICTS,       /* how many there are */
};

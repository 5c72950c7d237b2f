// SPDX-License-Identifier: Apache-2.0
/*
 * The layout of the steering program's maps, and its verdicts, shared by the program and its loader.
 *
 * The program includes this file. cffi reads the same declarations (ffi/build.py), so that xdp/steering.py takes
 * layouts and names from here. Therefore the file is plain C, without __u32 and without an include guard.
 */

/* The socket of slot s and receive queue q is at index s * STEERING_QUEUES_MAX + q of the map `sockets`. */
#define STEERING_QUEUES_MAX 64

/* Key of the map `rules`. A key with port 0 stands for the whole address, to claim its fragments. */
struct steering_rule_key {
    unsigned char address[16]; /* destination in network order; IPv4 is ::ffff:a.b.c.d */
    unsigned short port_be;    /* UDP destination, in network order */
    unsigned short vlan;       /* id of the 802.1Q tag; 0: untagged, or tagged only with a priority */
};

struct steering_rule {
    unsigned int slot;
    unsigned int rule;            /* index into the map `rule_hits` */
    unsigned int frame_bytes_max; /* longer frames are passed: several datagrams that GSO or GRO joined */
};

/* Value of the per-CPU map `rule_hits`, in datagrams (fragments: in frames). */
struct steering_rule_hits {
    unsigned long long redirected;
    unsigned long long no_socket; /* the rule matched, but there is no socket at (slot, queue): passed */
    unsigned long long fragments; /* IP fragments to the rule's address: passed, because the kernel reassembles */
    unsigned long long joined;    /* frames with joined datagrams: passed, because the kernel splits them */
};

/* Index of the per-CPU map `verdicts`. Every frame is counted under exactly one; all but the first are XDP_PASS. */
enum steering_verdict {
    STEERING_REDIRECTED,
    STEERING_NO_SOCKET,      /* a rule matched, but there is no socket at (slot, queue) */
    STEERING_FRAGMENT,       /* a fragment to an address that has a rule */
    STEERING_NOT_OWNED,      /* UDP without a rule for its address and port */
    STEERING_NOT_UDP,        /* IP that carries something else: IGMP, TCP, ICMP */
    STEERING_NOT_IP,         /* ARP and the like */
    STEERING_IPV6_EXTENSION, /* IPv6 with an extension header before its payload: MLD, other fragments */
    STEERING_TRUNCATED,      /* shorter than its headers, or than the length in them */
    STEERING_MALFORMED,      /* an impossible version, header length or UDP length */
    STEERING_STACKED_TAGS,   /* behind a provider's VLAN tag (802.1ad, QinQ) or a second tag: no rule covers these */
    STEERING_JOINED,   /* a rule matched, but the frame is longer than its limit: datagrams joined by GSO or GRO */
    STEERING_VERDICTS, /* number of verdicts */
};

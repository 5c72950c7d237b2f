// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of the maps and ring records that the egress tap, its loader and its reader share.
 *
 * The program includes this file, and so does ffi/capture/writing/egress_ring.h, which reads the ring; cffi reads the
 * same declarations (ffi/build.py), so that xdp/egress_tap.py fills in the filter by name. Therefore it is plain C,
 * without __u32 and without an include guard.
 */

/* Maximum number of ranges of each kind in a filter. */
#define EGRESS_TAP_RANGES_MAX 32

/* Both ends inclusive; host order. */
struct egress_tap_range {
    unsigned int low;
    unsigned int high;
};

/* Value of the map `filter`: UDP over IPv4 to these groups, on these ports if there are any, and to any address that
 * is no group on the unicast ports; TCP over IPv4 from or to the stream ports. Frames are looked at as the kernel has
 * them: without the tag it keeps beside. */
struct egress_tap_filter {
    unsigned int group_count;
    unsigned int group_port_count;
    unsigned int unicast_port_count;
    unsigned int stream_port_count;
    unsigned int mirror_index; /* the interface that receives runs of datagrams by reference; 0: copies into the ring */
    struct egress_tap_range groups[EGRESS_TAP_RANGES_MAX];
    struct egress_tap_range group_ports[EGRESS_TAP_RANGES_MAX];
    struct egress_tap_range unicast_ports[EGRESS_TAP_RANGES_MAX];
    struct egress_tap_range stream_ports[EGRESS_TAP_RANGES_MAX];
};

/* A record of the map `ring`; the frame follows, from its link header on. The bytes behind the frame are undefined. */
struct egress_tap_record {
    unsigned long long time_ns; /* CLOCK_TAI */
    unsigned int wire_bytes;
    unsigned int captured_bytes; /* fewer only where the frame is larger than any record */
    unsigned int segment_bytes;  /* of payload in each packet the kernel will cut this one into; 0: it is one */
    unsigned int segment_count;
    unsigned int has_vlan; /* a tag beside the frame */
    unsigned short vlan_type;
    unsigned short vlan_tci;
};

/* The packet sockets beside the tap: what comes in, and what the mirror gets. */
enum egress_tap_socket { EGRESS_TAP_INCOMING, EGRESS_TAP_MIRRORED, EGRESS_TAP_SOCKETS };

/* Number of frames in a packet socket that have stamps: more than its buffer holds. */
#define EGRESS_TAP_STAMPS 131072

/* An entry of the maps `incoming_stamps` and `mirrored_stamps`: when a frame was let into the socket. The stamp of
 * frame n, counted from 1, is at n % EGRESS_TAP_STAMPS. */
struct egress_tap_stamp {
    unsigned long long frame;   /* number of the stamped frame; written last */
    unsigned long long time_ns; /* CLOCK_TAI */
    unsigned int packet_count;  /* on the wire */
    unsigned int queue_number;  /* of the interface's receive queue, counted from 1; 0: not known */
};

struct egress_tap_watch {
    unsigned long long frame_count;   /* let into the socket, which may have had no space for them */
    unsigned long long refused_count; /* packets on the wire for which no stamp was free */
    unsigned long long unused[6];     /* a cache line for each writer */
    unsigned long long taken_count;   /* the reader's: up to this frame the stamps may be used again */
    unsigned long long unused_too[7];
};

/* Value of the map `counters`, shared by all processors. */
struct egress_tap_counters {
    unsigned long long lost_count; /* packets on the wire for which the ring had no space */
    unsigned long long unused[7];
    struct egress_tap_watch watches[EGRESS_TAP_SOCKETS];
};

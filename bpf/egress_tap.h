// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of the egress tap's maps and of the records in its ring, shared by the program, its loader and its reader.
 *
 * The program includes this file, and so does ffi/capture/writing/egress_ring.h, which reads the ring. cffi reads the
 * same declarations (ffi/build.py), so that xdp/egress_tap.py fills in the filter by name. Therefore the file is plain
 * C, without __u32 and without an include guard.
 */

/* Maximum number of ranges of each kind in a filter. */
#define EGRESS_TAP_RANGES_MAX 32

/* An inclusive range in host byte order. */
struct egress_tap_range {
    unsigned int low;
    unsigned int high;
};

/* Value of the map `filter`. It accepts UDP over IPv4 to these groups (restricted to the group ports if there are any)
 * or to a unicast address on the unicast ports, and TCP over IPv4 from or to the stream ports. Frames are matched
 * without a VLAN tag that the kernel stores outside the frame. */
struct egress_tap_filter {
    unsigned int group_count;
    unsigned int group_port_count;
    unsigned int unicast_port_count;
    unsigned int stream_port_count;
    unsigned int mirror_index; /* the interface that gets runs of datagrams by reference; 0: the ring gets copies */
    struct egress_tap_range groups[EGRESS_TAP_RANGES_MAX];
    struct egress_tap_range group_ports[EGRESS_TAP_RANGES_MAX];
    struct egress_tap_range unicast_ports[EGRESS_TAP_RANGES_MAX];
    struct egress_tap_range stream_ports[EGRESS_TAP_RANGES_MAX];
};

/* A record of the map `ring`, followed by the frame from its link header. Bytes behind the frame are undefined. */
struct egress_tap_record {
    unsigned long long time_ns; /* CLOCK_TAI */
    unsigned int wire_bytes;
    unsigned int captured_bytes; /* less than wire_bytes only if the frame is larger than any record */
    unsigned int segment_bytes;  /* payload bytes per packet after the kernel cuts this one; 0: it is not cut */
    unsigned int segment_count;
    unsigned int has_vlan; /* the kernel stores a tag outside the frame */
    unsigned short vlan_type;
    unsigned short vlan_tci;
};

/* The packet sockets beside the tap: one for incoming frames, one for the mirror's. */
enum egress_tap_socket { EGRESS_TAP_INCOMING, EGRESS_TAP_MIRRORED, EGRESS_TAP_SOCKETS };

/* Number of stamps per packet socket: more than the number of frames that fit into its buffer. */
#define EGRESS_TAP_STAMPS 131072

/* An entry of the maps `incoming_stamps` and `mirrored_stamps`: the time when a frame was accepted for the socket. The
 * stamp of frame n, counted from 1, is at n % EGRESS_TAP_STAMPS. */
struct egress_tap_stamp {
    unsigned long long frame;   /* the number of the frame; written last */
    unsigned long long time_ns; /* CLOCK_TAI */
    unsigned int packet_count;  /* on the wire */
    unsigned int queue_number;  /* receive queue of the interface, counted from 1; 0: unknown */
};

struct egress_tap_watch {
    unsigned long long frame_count;   /* accepted for the socket, whose buffer may have been full */
    unsigned long long refused_count; /* packets on the wire for which no stamp was free */
    unsigned long long unused[6];     /* one cache line per writer */
    unsigned long long taken_count;   /* written by the reader: stamps up to this frame may be reused */
    unsigned long long unused_too[7];
};

/* Value of the map `counters`, shared by all CPUs. */
struct egress_tap_counters {
    unsigned long long lost_count; /* packets on the wire that did not fit into the ring */
    unsigned long long unused[7];
    struct egress_tap_watch watches[EGRESS_TAP_SOCKETS];
};

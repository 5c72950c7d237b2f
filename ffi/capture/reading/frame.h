/* Finds the UDP or TCP payload of a captured frame: Ethernet with VLAN tags (two are reported), Linux cooked (both
 * versions), BSD loopback, raw IP; IPv4 with options, IPv6 with extension headers, fragments of both (fragments.h joins
 * them); inside of GRE, ERSPAN I to III, VXLAN, GENEVE, MPLS, IP in IP, and behind Arista's time header. Reads captured
 * bytes only.
 */
#ifndef UM_CAPTURE_READING_FRAME_H
#define UM_CAPTURE_READING_FRAME_H

#include "core/foundation/base.h"

enum um_captured_frame_status {
    UM_CAPTURED_UDP,        /* ports and payload are set; the first three statuses have ports */
    UM_CAPTURED_TCP,        /* ports, payload and the fields of TCP are set */
    UM_CAPTURED_TCP_CUT,    /* TCP with ports; its header reaches beyond the captured bytes */
    UM_CAPTURED_FOREIGN,    /* neither UDP nor TCP over IP */
    UM_CAPTURED_FRAGMENT,   /* a fragment: its fields and its payload are set, but not the ports */
    UM_CAPTURED_LINK_TYPE,  /* unknown link type */
    UM_CAPTURED_CUT,        /* its headers reach beyond the captured bytes */
    UM_CAPTURED_IP_HEADER,  /* malformed IP header */
    UM_CAPTURED_UDP_LENGTH, /* UDP length that does not fit the packet */
};

typedef struct um_captured_frame {
    enum um_captured_frame_status status;
    int32_t vlan;           /* of the outer tag; -1 without one */
    int32_t inner_vlan;     /* -1 without a second tag */
    uint8_t tunnel_count;   /* headers of tunnels and times in front; at most 4 are opened */
    const uint8_t *start;   /* of the captured bytes */
    uint32_t network_bytes; /* bytes up to the end of the outermost IP packet; 0: none */
    uint8_t ip_version;     /* 4, 6, or 0: addresses are not set */
    bool is_fragment;       /* a fragment, or a datagram joined from fragments */
    bool is_incomplete;     /* the start of a datagram of which fragments are missing */
    bool is_last_fragment;
    uint8_t protocol;           /* of the fragmented datagram */
    uint32_t fragment_id;       /* equal in all fragments of a datagram */
    uint32_t fragment_offset;   /* bytes of the datagram before this fragment */
    uint32_t fragment_count;    /* fragments that the frame consists of; 0: it is not fragmented */
    const uint8_t *source;      /* 4 or 16 bytes */
    const uint8_t *destination; /* 4 or 16 bytes */
    uint16_t source_port;
    uint16_t destination_port;
    const uint8_t *payload;
    uint32_t payload_captured_bytes; /* captured bytes of the payload */
    uint32_t payload_bytes;          /* length by the UDP or IP header */
    uint32_t tcp_sqn;                /* of the payload's first byte, except with SYN */
    uint32_t tcp_ack;
    uint8_t tcp_flags;
} um_captured_frame;

void um_captured_frame_decode(int32_t link_type, const uint8_t *data, uint32_t captured_bytes,
                              um_captured_frame *frame);

/* Decodes the datagram that a frame's fragments form, or its start if the frame is incomplete: `bytes` behind the IP
 * header, of which the first `captured_bytes` are at `data`. The frame holds the fields of a fragment; its status
 * becomes that of the datagram. */
void um_captured_frame_decode_joined(um_captured_frame *frame, const uint8_t *data, uint32_t captured_bytes,
                                     uint32_t bytes);

#endif

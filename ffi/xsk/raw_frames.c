#include "xsk/raw_xdp.h"

#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

enum {
    IP_LENGTH_AT = UM_ETHERNET_HEADER_BYTES + UM_IPV4_LENGTH_AT,
    UDP_CHECKSUM_AT = UM_ETHERNET_HEADER_BYTES + UM_IPV4_HEADER_BYTES + UM_UDP_CHECKSUM_AT,
};

void um_xsk_raw_prepare(um_xsk_rings *rings, um_address from, um_address to, uint32_t length)
{
    um_xsk_queue *queue = um_xsk_rings_queue(rings, 0);
    um_xsk_template made;
    uint8_t mac[UM_MAC_BYTES];
    um_xsk_rings_mac(rings, mac);
    um_xsk_template_init(&made, mac, 0, from, to, 1, 0);
    for (uint32_t i = 0; i < queue->free_count; i++) {
        uint8_t *frame = queue->area + queue->free_frames[i];
        memset(frame, 0x5a, queue->frame_bytes);
        um_xsk_write_headers(&made, frame, length, 0);
        memset(frame + UDP_CHECKSUM_AT, 0, sizeof(uint16_t));
    }
}

uint32_t um_xsk_raw_put(um_xsk_queue *queue, const uint8_t *payload, uint32_t payload_bytes, uint32_t length)
{
    uint32_t at = 0, left = UM_XSK_HEADER_BYTES + length;
    uint32_t frames = (left + queue->frame_bytes - 1) / queue->frame_bytes;
    if (queue->free_count < frames || xsk_ring_prod__reserve(&queue->send, frames, &at) == 0)
        return 0;
    for (uint32_t i = 0; i < frames; i++) {
        uint64_t address = um_xsk_queue_acquire_frame(queue);
        uint32_t bytes = left < queue->frame_bytes ? left : queue->frame_bytes;
        if (i == 0)
            memcpy(queue->area + address + UM_XSK_HEADER_BYTES, payload, payload_bytes);
        *xsk_ring_prod__tx_desc(&queue->send, at + i) =
            (struct xdp_desc){.addr = address, .len = bytes, .options = i + 1 < frames ? XDP_PKT_CONTD : 0};
        left -= bytes;
    }
    return frames;
}

bool um_xsk_raw_is_continued(const um_xsk_queue *queue, uint32_t at)
{
    return xsk_ring_cons__rx_desc(&queue->receive, at)->options & XDP_PKT_CONTD;
}

/* The IP length excludes the padding that Ethernet adds to short datagrams, and includes later frames of a long one. */
const uint8_t *um_xsk_raw_payload(const um_xsk_queue *queue, uint32_t at, uint32_t *length)
{
    const struct xdp_desc *descriptor = xsk_ring_cons__rx_desc(&queue->receive, at);
    const uint8_t *frame = queue->area + descriptor->addr;
    uint32_t ip_bytes = um_load_be16(frame + IP_LENGTH_AT), frame_bytes = descriptor->len - UM_ETHERNET_HEADER_BYTES;
    bool is_whole = !(descriptor->options & XDP_PKT_CONTD);
    *length = (is_whole && frame_bytes < ip_bytes ? frame_bytes : ip_bytes) - UM_IPV4_UDP_HEADER_BYTES;
    return frame + UM_XSK_HEADER_BYTES;
}

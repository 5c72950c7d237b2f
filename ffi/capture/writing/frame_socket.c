#include "capture/writing/frame_socket.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "os/clock.h"

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

enum {
    MEMORY_BYTES = 512 * 1024,   /* small enough to stay in the caches */
    FRAME_MAX_BYTES = 66 * 1024, /* the longest IP packet with its link header, and some slack */
    FRAME_ALIGNMENT = 64,
};

/* A frame in memory; its bytes follow. */
typedef struct staged {
    size_t span_bytes;
    um_seen_frame seen;
    _Alignas(FRAME_ALIGNMENT) uint8_t bytes[];
} staged;

static const size_t staged_max_bytes = sizeof(staged) + FRAME_MAX_BYTES;

typedef struct ancillary {
    _Alignas(struct cmsghdr) uint8_t bytes[CMSG_SPACE(sizeof(uint32_t)) + CMSG_SPACE(sizeof(struct tpacket_auxdata))];
} ancillary;

int um_frame_socket_open(um_frame_socket *frames, int fd, const um_frame_socket_config *config)
{
    int one = 1, buffer_bytes = (int)(config->space_bytes / 2); /* the kernel doubles it */
    *frames = (um_frame_socket){.fd = fd, .empty_ns = INT64_MIN};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_ATTACH_BPF, &config->filter_fd, sizeof config->filter_fd) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof one) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0)
        return -errno;
    int result = um_frame_stamps_open(&frames->stamps, config->stamps_fd, config->watch);
    if (result != 0)
        return result;
    void *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    frames->memory = memory;
    return 0;
}

void um_frame_socket_close(um_frame_socket *frames)
{
    if (frames->memory != NULL)
        munmap(frames->memory, MEMORY_BYTES);
    um_frame_stamps_close(&frames->stamps);
    *frames = (um_frame_socket){0};
}

/* Returns the place for a frame behind the others, or NULL without space. */
static staged *place(um_frame_socket *frames)
{
    if (frames->staged_bytes == 0)
        frames->begin = frames->end = 0;
    return MEMORY_BYTES - frames->end < staged_max_bytes ? NULL : (void *)(frames->memory + frames->end);
}

void um_seen_frame_read_kind(um_seen_frame *seen, const void *header)
{
    struct virtio_net_hdr kind;
    memcpy(&kind, header, sizeof kind);
    seen->needs_checksum = kind.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
    if ((kind.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_UDP_L4)
        seen->segment_bytes = kind.gso_size;
}

/* Returns how many frames the socket has dropped before this one. */
static uint32_t read_ancillary(struct msghdr *message, um_seen_frame *seen)
{
    uint32_t dropped_count = 0;
    for (struct cmsghdr *beside = CMSG_FIRSTHDR(message); beside != NULL; beside = CMSG_NXTHDR(message, beside)) {
        if (beside->cmsg_level == SOL_SOCKET && beside->cmsg_type == SO_RXQ_OVFL) {
            memcpy(&dropped_count, CMSG_DATA(beside), sizeof dropped_count);
        } else if (beside->cmsg_level == SOL_PACKET && beside->cmsg_type == PACKET_AUXDATA) {
            struct tpacket_auxdata auxiliary;
            memcpy(&auxiliary, CMSG_DATA(beside), sizeof auxiliary);
            seen->has_vlan = auxiliary.tp_status & TP_STATUS_VLAN_VALID;
            seen->vlan_tci = auxiliary.tp_vlan_tci;
            seen->vlan_type = auxiliary.tp_status & TP_STATUS_VLAN_TPID_VALID ? auxiliary.tp_vlan_tpid : ETH_P_8021Q;
            seen->wire_bytes = auxiliary.tp_len;
        }
    }
    return dropped_count;
}

/* Receives one frame. Returns 0 or a negative errno. */
static int receive(um_frame_socket *frames, staged *into)
{
    struct virtio_net_hdr kind = {0};
    ancillary beside;
    struct sockaddr_ll from = {0};
    struct iovec parts[] = {{&kind, sizeof kind}, {into->bytes, FRAME_MAX_BYTES}};
    struct msghdr message = {.msg_name = &from,
                             .msg_namelen = sizeof from,
                             .msg_iov = parts,
                             .msg_iovlen = 2,
                             .msg_control = beside.bytes,
                             .msg_controllen = sizeof beside.bytes};
    ssize_t bytes = recvmsg(frames->fd, &message, MSG_DONTWAIT);
    /* -EINVAL: the kernel cannot describe the segments of the frame. */
    if ((bytes < 0 && errno == EINVAL) || (bytes >= 0 && (size_t)bytes <= sizeof kind)) {
        um_frame_stamps_take_unseen(&frames->stamps);
        return 0;
    }
    if (bytes < 0)
        return -errno;
    into->seen = (um_seen_frame){.data = into->bytes,
                                 .captured_bytes = (uint32_t)bytes - (uint32_t)sizeof kind,
                                 .is_outgoing = from.sll_pkttype == PACKET_OUTGOING};
    um_seen_frame_read_kind(&into->seen, &kind);
    uint32_t dropped_count = read_ancillary(&message, &into->seen);
    const struct egress_tap_stamp *stamp = um_frame_stamps_take(&frames->stamps, dropped_count);
    into->seen.time_ns = (int64_t)stamp->time_ns - frames->clock_ahead_ns;
    into->seen.queue_number = stamp->queue_number;
    size_t span_bytes = sizeof *into + into->seen.captured_bytes;
    into->span_bytes = (span_bytes + FRAME_ALIGNMENT - 1) / FRAME_ALIGNMENT * FRAME_ALIGNMENT;
    frames->end += into->span_bytes;
    frames->staged_bytes += into->span_bytes;
    return 0;
}

void um_frame_socket_pull(um_frame_socket *frames)
{
    int64_t now_ns = um_clock_wall_ns();
    uint64_t frame_count = um_frame_stamps_frame_count(&frames->stamps);
    staged *into;
    while ((into = place(frames)) != NULL) {
        int result = receive(frames, into);
        if (result == 0 || result == -EINTR)
            continue;
        if (result == -EAGAIN || result == frames->error) {
            frames->empty_ns = now_ns;
            um_frame_stamps_settle(&frames->stamps, frame_count);
            break;
        }
        frames->error = result; /* reported once, before the remaining frames */
    }
    um_frame_stamps_release(&frames->stamps);
}

const um_seen_frame *um_frame_socket_next(const um_frame_socket *frames)
{
    return frames->staged_bytes > 0 ? &((const staged *)(const void *)(frames->memory + frames->begin))->seen : NULL;
}

void um_frame_socket_take(um_frame_socket *frames)
{
    size_t span_bytes = ((const staged *)(const void *)(frames->memory + frames->begin))->span_bytes;
    frames->begin += span_bytes;
    frames->staged_bytes -= span_bytes;
}

bool um_frame_socket_is_empty(const um_frame_socket *frames)
{
    return frames->staged_bytes == 0 && um_frame_stamps_are_settled(&frames->stamps);
}

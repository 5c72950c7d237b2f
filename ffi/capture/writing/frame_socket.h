/* Frames of a packet socket, pulled into memory where they wait for their turn. The kernel holds the pages of a frame
 * until then, so frames pulled early free their pages early.
 *
 * A run of datagrams that the kernel keeps whole (UDP GSO, GRO) is one frame with a segment size. A frame is valid
 * until it is taken. Its time is that of the egress tap's stamps (frame_stamps.h).
 *
 * Threads: one at a time. Memory: um_frame_socket_open maps it, _close unmaps it; the descriptor stays the caller's.
 * Errors: 0 or a negative errno. Times: nanoseconds, wall clock.
 */
#ifndef UM_CAPTURE_WRITING_FRAME_SOCKET_H
#define UM_CAPTURE_WRITING_FRAME_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "capture/writing/frame_stamps.h"

/* A frame as received from the kernel. */
typedef struct um_seen_frame {
    const uint8_t *data; /* from the link header on */
    uint32_t captured_bytes;
    uint32_t wire_bytes;
    uint32_t segment_bytes; /* payload of each datagram of a run; 0: not a run */
    uint32_t segment_count; /* datagrams of a run on the wire; 0: as its UDP payload has */
    bool needs_checksum;
    bool has_vlan; /* a VLAN tag that the kernel keeps outside the frame */
    uint16_t vlan_type;
    uint16_t vlan_tci;
    bool is_outgoing;
    uint32_t queue_number; /* receive queue, counted from 1; 0: unknown */
    int64_t time_ns;
} um_seen_frame;

/* Reads the virtio_net_hdr before a frame (PACKET_VNET_HDR): a checksum left to the device, and runs. */
void um_seen_frame_read_kind(um_seen_frame *seen, const void *header);

typedef struct um_frame_socket_config {
    size_t space_bytes; /* space for frames that were not pulled yet */
    int filter_fd;      /* the program that lets frames in and stamps them */
    int stamps_fd;
    struct egress_tap_watch *watch; /* the filter's map, mapped while the socket is open */
} um_frame_socket_config;

typedef struct um_frame_socket {
    int fd;
    um_frame_stamps stamps;
    int64_t clock_ahead_ns; /* how far the stamps' clock is ahead of the wall clock; set by the reader */
    uint8_t *memory;
    size_t begin; /* offset of the oldest frame that was not taken */
    size_t end;   /* offset behind the newest frame */
    size_t staged_bytes;
    int64_t empty_ns; /* all frames before this time were pulled */
    int error;        /* of the interface, a negative errno, until the caller clears it */
} um_frame_socket;

/* fd: a packet socket that is not bound yet. */
int um_frame_socket_open(um_frame_socket *frames, int fd, const um_frame_socket_config *config);
/* A zeroed one is not open and may be closed. */
void um_frame_socket_close(um_frame_socket *frames);

/* Pulls the frames that are there, as far as there is space. */
void um_frame_socket_pull(um_frame_socket *frames);

/* Returns the oldest frame that was pulled and not taken, or NULL. */
const um_seen_frame *um_frame_socket_next(const um_frame_socket *frames);
/* Takes the frame that _next returned, which becomes invalid. */
void um_frame_socket_take(um_frame_socket *frames);

/* Returns true if there are no frames, not even one that may or may not have been dropped. */
bool um_frame_socket_is_empty(const um_frame_socket *frames);

#endif

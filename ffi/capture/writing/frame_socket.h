/* Frames as a packet socket sees them, pulled from it into memory where they wait for their turn. The kernel keeps what
 * was sent or received only until then: frames that are pulled soon give their pages back soon.
 *
 * A run of datagrams that the kernel keeps whole (UDP GSO, GRO) is one frame, and says so. A frame is valid until it is
 * taken. Its time is that of the egress tap's stamps (frame_stamps.h).
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

/* A frame as the kernel shows it. */
typedef struct um_seen_frame {
    const uint8_t *data; /* from the link header on */
    uint32_t captured_bytes;
    uint32_t wire_bytes;
    uint32_t segment_bytes; /* of payload in each datagram of a run; 0: it is none */
    uint32_t segment_count; /* how many the kernel makes of a run; 0: as many as there are in its UDP payload */
    bool needs_checksum;
    bool has_vlan; /* a tag the kernel keeps beside it */
    uint16_t vlan_type;
    uint16_t vlan_tci;
    bool is_outgoing;
    uint32_t queue_number; /* it came in by, counted from 1; 0: not known */
    int64_t time_ns;
} um_seen_frame;

/* Of the virtio_net_hdr in front of a frame (PACKET_VNET_HDR): what the device was to finish, and what is a run. */
void um_seen_frame_read_kind(um_seen_frame *seen, const void *header);

typedef struct um_frame_socket_config {
    size_t space_bytes; /* for frames that are not pulled yet */
    int filter_fd;      /* the program that lets frames in and stamps them */
    int stamps_fd;
    struct egress_tap_watch *watch; /* the filter's, mapped for as long as the socket is open */
} um_frame_socket_config;

typedef struct um_frame_socket {
    int fd;
    um_frame_stamps stamps;
    int64_t clock_ahead_ns; /* the stamps' clock, of the wall clock; its reader sets it */
    uint8_t *memory;
    size_t begin; /* of the oldest frame that was not taken */
    size_t end;   /* behind the youngest */
    size_t staged_bytes;
    int64_t empty_ns; /* whatever was seen before was pulled */
    int error;        /* the interface's, a negative errno, until somebody clears it */
} um_frame_socket;

/* fd: a packet socket that is not bound yet. */
int um_frame_socket_open(um_frame_socket *frames, int fd, const um_frame_socket_config *config);
/* One that is all zero was never open. */
void um_frame_socket_close(um_frame_socket *frames);

/* Pulls what is there, as far as there is space. */
void um_frame_socket_pull(um_frame_socket *frames);

/* The oldest frame that was pulled and not taken; NULL: there is none. */
const um_seen_frame *um_frame_socket_next(const um_frame_socket *frames);
/* Takes the frame that _next returned, which is valid no longer. */
void um_frame_socket_take(um_frame_socket *frames);

/* Whether there is nothing: not even a frame of which it is not known whether there was space for it. */
bool um_frame_socket_is_empty(const um_frame_socket *frames);

#endif

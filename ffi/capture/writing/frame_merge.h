/* The packets of an interface with an egress tap (bpf/egress_tap.bpf.c), in order of time: incoming ones from a packet
 * socket, outgoing ones from the tap's ring (egress_ring.h), and, if the tap has a mirror, its mirrored runs of
 * datagrams from a packet socket on the mirror device (xdp/mirror_device.py).
 *
 * A frame is returned once no older one can follow, a moment after it passed.
 *
 * Threads: one at a time. Memory: _open maps, _close unmaps. The descriptors stay the caller's; those of the maps may
 * be closed meanwhile. Errors: 0 or a negative errno. Times: nanoseconds, wall clock.
 */
#ifndef UM_CAPTURE_WRITING_FRAME_MERGE_H
#define UM_CAPTURE_WRITING_FRAME_MERGE_H

#include "capture/writing/egress_ring.h"
#include "capture/writing/frame_socket.h"

/* The program that lets frames into a packet socket, and the map of its stamps. */
typedef struct um_frame_merge_filter {
    int program_fd;
    int stamps_fd;
} um_frame_merge_filter;

typedef struct um_frame_merge_config {
    um_egress_ring_maps maps;
    um_frame_merge_filter incoming;
    um_frame_merge_filter mirrored;
    uint32_t mirror_index; /* interface of the mirror; 0: none */
} um_frame_merge_config;

enum um_frame_source { UM_FRAME_COPIED, UM_FRAME_INCOMING, UM_FRAME_MIRRORED };

typedef struct um_frame_merge {
    um_egress_ring ring;
    um_frame_socket incoming;
    um_frame_socket mirrored;
    int mirror_fd;
    const char *failed_step;
    int64_t tai_offset_ns; /* how far the clock of records and stamps is ahead of the wall clock */
    enum um_frame_source next_source;
    um_seen_frame copied; /* next frame of the ring */
} um_frame_merge;

/* incoming_fd: a packet socket that is not bound yet and receives only incoming packets. */
int um_frame_merge_open(um_frame_merge *merge, const um_frame_merge_config *config, int incoming_fd);
/* _close also accepts one that failed to open; merge.failed_step is the failed step. */
void um_frame_merge_close(um_frame_merge *merge);

/* Adjusts the clock of records and stamps to the wall clock, which may have been set. */
void um_frame_merge_look(um_frame_merge *merge);

/* Returns the next frame in order of time, or NULL if there is none yet. */
const um_seen_frame *um_frame_merge_next(um_frame_merge *merge);
/* Takes the frame that _next returned, which becomes invalid. */
void um_frame_merge_take(um_frame_merge *merge);
/* Releases the space of all frames taken. */
void um_frame_merge_release(um_frame_merge *merge);

/* Returns true if there are no frames, not even waiting ones. */
bool um_frame_merge_is_empty(um_frame_merge *merge);
/* Returns the error of the captured interface since the last call, a negative errno, or 0. */
int um_frame_merge_take_error(um_frame_merge *merge);
/* Packets on the wire that were lost because the ring or a socket was full. */
uint64_t um_frame_merge_lost_count(const um_frame_merge *merge);

#endif

/* What passes an interface with an egress tap (bpf/egress_tap.bpf.c), in the order of its times: what comes in, from a
 * packet socket; what goes out, from the tap's ring (egress_ring.h); and, where the tap has a mirror, the runs of
 * datagrams that it mirrors, from a packet socket on that (xdp/mirror_device.py).
 *
 * A frame is given once nothing older can come any more, which is a moment after it passed.
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
    uint32_t mirror_index; /* the mirror's interface; 0: there is none */
} um_frame_merge_config;

enum um_frame_source { UM_FRAME_COPIED, UM_FRAME_INCOMING, UM_FRAME_MIRRORED };

typedef struct um_frame_merge {
    um_egress_ring ring;
    um_frame_socket incoming;
    um_frame_socket mirrored;
    int mirror_fd;
    const char *failed_step;
    int64_t tai_offset_ns; /* the clock of records and stamps, ahead of the wall clock */
    enum um_frame_source next_source;
    um_seen_frame copied; /* the ring's next */
} um_frame_merge;

/* incoming_fd: a packet socket that is not bound yet, and sees only what comes in. */
int um_frame_merge_open(um_frame_merge *merge, const um_frame_merge_config *config, int incoming_fd);
/* One that failed to open is closed as any other; merge.failed_step says what failed. */
void um_frame_merge_close(um_frame_merge *merge);

/* Sets the clock of records and stamps by the wall clock, which may have been set meanwhile. */
void um_frame_merge_look(um_frame_merge *merge);

/* The next frame in order of time; NULL: there is none yet. */
const um_seen_frame *um_frame_merge_next(um_frame_merge *merge);
/* Takes the frame that _next returned, which is valid no longer. */
void um_frame_merge_take(um_frame_merge *merge);
/* Gives back the space of all that was taken. */
void um_frame_merge_release(um_frame_merge *merge);

/* Whether there is nothing any more, not even what has to wait. */
bool um_frame_merge_is_empty(um_frame_merge *merge);
/* The error of the interface that is captured since the last call, a negative errno, or 0. */
int um_frame_merge_take_error(um_frame_merge *merge);
/* Packets on the wire for which the ring or a socket had no space. */
uint64_t um_frame_merge_lost_count(const um_frame_merge *merge);

#endif

/* When each frame was let into a packet socket, and how many packets found no space there: as its filter
 * (bpf/egress_tap.bpf.c) notes it in a map.
 *
 * Contract. Frames are identified by counting: those received, and those the socket reports as dropped (SO_RXQ_OVFL).
 * Where processors let frames in at once, neighbours may get each other's time, microseconds off. _open maps, _close
 * unmaps; the descriptor stays the caller's and may be closed meanwhile. One thread at a time. Errors: 0 or a negative
 * errno. Times: nanoseconds, CLOCK_TAI.
 */
#ifndef UM_CAPTURE_WRITING_FRAME_STAMPS_H
#define UM_CAPTURE_WRITING_FRAME_STAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "capture/writing/egress_ring.h"

typedef struct um_frame_stamps {
    struct egress_tap_stamp *stamps;
    struct egress_tap_watch *watch;
    uint64_t received_count; /* frames */
    uint64_t dropped_count;  /* frames the socket had no space for, as far as reported */
    uint64_t last;           /* up to this frame all were received or dropped */
    uint64_t pending;        /* let in before the socket was last found empty */
    uint64_t lost_count;     /* packets on the wire */
    struct egress_tap_stamp newest;
} um_frame_stamps;

/* watch: the filter's, mapped for as long. */
int um_frame_stamps_open(um_frame_stamps *stamps, int fd, struct egress_tap_watch *watch);
/* One that is all zero was never open. */
void um_frame_stamps_close(um_frame_stamps *stamps);

/* The stamp of the frame that was just received, valid until the next; dropped_count: reported with it by the socket.
 */
const struct egress_tap_stamp *um_frame_stamps_take(um_frame_stamps *stamps, uint32_t dropped_count);
/* A frame was received that cannot be shown: it is lost. */
void um_frame_stamps_take_unseen(um_frame_stamps *stamps);
/* Releases the stamps of the frames that were taken. */
void um_frame_stamps_release(um_frame_stamps *stamps);

/* How many frames were let in; to be read before the socket is. */
uint64_t um_frame_stamps_frame_count(const um_frame_stamps *stamps);
/* The socket was found empty after frame_count were let in: frames of these not received by the next call were dropped.
 */
void um_frame_stamps_settle(um_frame_stamps *stamps, uint64_t frame_count);
/* Whether every frame that was let in is known to be received or dropped. */
bool um_frame_stamps_are_settled(const um_frame_stamps *stamps);

/* Packets on the wire that found no space, or no stamp. */
uint64_t um_frame_stamps_lost_count(const um_frame_stamps *stamps);

#endif

/* The time at which each frame entered a packet socket, and the number of packets that found no space there, as the
 * socket's filter (bpf/egress_tap.bpf.c) writes them to a map.
 *
 * Contract. Frames are identified by counting: those received, and those the socket reports as dropped (SO_RXQ_OVFL).
 * If processors pass frames at the same time, neighbors may get each other's time, microseconds off. _open maps, _close
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
    uint64_t dropped_count;  /* frames that the socket reported as dropped */
    uint64_t last;           /* all frames up to this one were received or dropped */
    uint64_t pending;        /* frames passed before the socket was last found empty */
    uint64_t lost_count;     /* packets on the wire */
    struct egress_tap_stamp newest;
} um_frame_stamps;

/* `watch`: the filter's map, mapped while it is open. */
int um_frame_stamps_open(um_frame_stamps *stamps, int fd, struct egress_tap_watch *watch);
/* A zeroed one is not open and may be closed. */
void um_frame_stamps_close(um_frame_stamps *stamps);

/* Returns the stamp of the frame just received, valid until the next call; dropped_count: as the socket reported. */
const struct egress_tap_stamp *um_frame_stamps_take(um_frame_stamps *stamps, uint32_t dropped_count);
/* Counts a received frame that cannot be used as lost. */
void um_frame_stamps_take_unseen(um_frame_stamps *stamps);
/* Releases the stamps of the frames that were taken. */
void um_frame_stamps_release(um_frame_stamps *stamps);

/* Returns the number of frames passed to the socket; call it before reading the socket. */
uint64_t um_frame_stamps_frame_count(const um_frame_stamps *stamps);
/* The socket was empty after frame_count frames were passed to it: those not received by the next call were dropped. */
void um_frame_stamps_settle(um_frame_stamps *stamps, uint64_t frame_count);
/* Returns true if every passed frame is known to be received or dropped. */
bool um_frame_stamps_are_settled(const um_frame_stamps *stamps);

/* Packets on the wire that were lost, for lack of space or of a stamp. */
uint64_t um_frame_stamps_lost_count(const um_frame_stamps *stamps);

#endif

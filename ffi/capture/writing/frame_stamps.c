#include "capture/writing/frame_stamps.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

#include "os/clock.h"

static const size_t stamps_bytes = EGRESS_TAP_STAMPS * sizeof(struct egress_tap_stamp);

int um_frame_stamps_open(um_frame_stamps *stamps, int fd, struct egress_tap_watch *watch)
{
    *stamps = (um_frame_stamps){.watch = watch};
    void *mapped = mmap(NULL, stamps_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return -errno;
    stamps->stamps = mapped;
    stamps->last = stamps->pending = um_frame_stamps_frame_count(stamps);
    stamps->received_count = stamps->last;
    stamps->newest.time_ns = (uint64_t)um_clock_read_ns(CLOCK_TAI);
    return 0;
}

void um_frame_stamps_close(um_frame_stamps *stamps)
{
    if (stamps->stamps != NULL)
        munmap((void *)(uintptr_t)stamps->stamps, stamps_bytes);
    *stamps = (um_frame_stamps){0};
}

/* Returns NULL while another processor writes the stamp. */
static const struct egress_tap_stamp *stamp_of(const um_frame_stamps *stamps, uint64_t frame)
{
    const struct egress_tap_stamp *stamp = &stamps->stamps[frame % EGRESS_TAP_STAMPS];
    return __atomic_load_n(&stamp->frame, __ATOMIC_ACQUIRE) == frame ? stamp : NULL;
}

static uint64_t packet_count(const um_frame_stamps *stamps, uint64_t frame)
{
    const struct egress_tap_stamp *stamp = stamp_of(stamps, frame);
    return stamp != NULL ? stamp->packet_count : 1;
}

static void count_lost_before(um_frame_stamps *stamps, uint64_t frame)
{
    while (stamps->last + 1 < frame)
        stamps->lost_count += packet_count(stamps, ++stamps->last);
}

const struct egress_tap_stamp *um_frame_stamps_take(um_frame_stamps *stamps, uint32_t dropped_count)
{
    stamps->received_count++;
    stamps->dropped_count += dropped_count - (uint32_t)stamps->dropped_count;
    uint64_t frame = stamps->received_count + stamps->dropped_count;
    const struct egress_tap_stamp *stamp = stamp_of(stamps, frame);
    if (stamp != NULL)
        stamps->newest = *stamp; /* else about the time of the previous frame */
    count_lost_before(stamps, frame);
    if (frame > stamps->last)
        stamps->last = frame;
    else
        stamps->lost_count -= packet_count(stamps, frame); /* the frame was only late */
    return &stamps->newest;
}

void um_frame_stamps_take_unseen(um_frame_stamps *stamps)
{
    stamps->received_count++; /* the next frame counts it as lost */
}

void um_frame_stamps_release(um_frame_stamps *stamps)
{
    __atomic_store_n(&stamps->watch->taken_count, stamps->last, __ATOMIC_RELEASE);
}

uint64_t um_frame_stamps_frame_count(const um_frame_stamps *stamps)
{
    return __atomic_load_n(&stamps->watch->frame_count, __ATOMIC_ACQUIRE);
}

void um_frame_stamps_settle(um_frame_stamps *stamps, uint64_t frame_count)
{
    count_lost_before(stamps, stamps->pending + 1);
    stamps->pending = frame_count;
}

bool um_frame_stamps_are_settled(const um_frame_stamps *stamps)
{
    return stamps->stamps == NULL || stamps->last == um_frame_stamps_frame_count(stamps);
}

uint64_t um_frame_stamps_lost_count(const um_frame_stamps *stamps)
{
    if (stamps->watch == NULL)
        return 0;
    return stamps->lost_count + __atomic_load_n(&stamps->watch->refused_count, __ATOMIC_RELAXED);
}

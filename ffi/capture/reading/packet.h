/* A captured packet, as the reader of the container returns it. */
#ifndef UM_CAPTURE_READING_PACKET_H
#define UM_CAPTURE_READING_PACKET_H

#include "core/foundation/base.h"

/* The verdict of a program in the kernel or the hardware on a packet, if the capture holds it. */
enum um_capture_verdict {
    UM_CAPTURE_NO_VERDICT,
    UM_CAPTURE_XDP_ABORTED, /* XDP's own numbers, counted from 1 */
    UM_CAPTURE_XDP_DROP,
    UM_CAPTURE_XDP_PASS,
    UM_CAPTURE_XDP_TX,
    UM_CAPTURE_XDP_REDIRECT,
    UM_CAPTURE_OTHER_VERDICT,
    UM_CAPTURE_VERDICTS,
};

typedef struct um_capture_packet {
    uint64_t position; /* of the packet's record in the window */
    const uint8_t *data;
    uint32_t captured_bytes;
    uint32_t frame_bytes;
    int32_t interface; /* index into the reader's interfaces; -1: the capture does not describe it */
    int32_t link_type; /* -1 without an interface */
    bool is_timed;
    bool has_hardware_time;
    int64_t time_ns;
    uint64_t queue_number; /* receive queue, counted from 1; 0: unknown */
    enum um_capture_verdict verdict;
    bool has_drop_count;
    uint64_t drop_count; /* packets lost while capturing, between the previous packet and this one */
} um_capture_packet;

#endif

#include "capture/reading/container.h"

static void follow(um_capture_reader *reader, um_capture_packet *packet)
{
    um_captured_frame frame;
    um_joined_datagram joined;
    um_captured_frame_decode(packet->link_type, packet->data, packet->captured_bytes, &frame);
    um_capture_retime(reader, packet, &frame);
    um_copy_found copy = um_copies_take(&reader->copies, packet, &frame);
    if (copy.is_repeated)
        return;
    um_streams_follow(&reader->streams, packet->interface, &frame);
    if (UM_LIKELY(frame.status != UM_CAPTURED_FRAGMENT))
        return;
    um_fragments_hold(&reader->fragments, packet, packet->position, &frame);
    while (um_fragments_pop(&reader->fragments, &joined))
        um_streams_follow(&reader->streams, joined.packet.interface, &joined.frame);
}

enum um_capture_step um_capture_skip(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t until,
                                     uint64_t *at)
{
    for (;;) {
        um_capture_packet packet;
        enum um_capture_step step = um_capture_next(reader, data, length, 0, until, at, &packet);
        if (step != UM_CAPTURE_PACKET)
            return step;
        follow(reader, &packet);
    }
}

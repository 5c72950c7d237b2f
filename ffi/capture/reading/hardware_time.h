/* Times that capture hardware puts next to a packet: the trailer of capture switches (Metamako, Arista 7130, cPacket)
 * and the record header of Endace's ERF.
 */
#ifndef UM_CAPTURE_READING_HARDWARE_TIME_H
#define UM_CAPTURE_READING_HARDWARE_TIME_H

#include "capture/reading/frame.h"
#include "capture/reading/packet.h"

enum {
    UM_ERF_HEADER_BYTES = 16,
    UM_ERF_LINK_TYPE = 197,
    UM_ERF_INTERFACES = 4,
};

/* Reads the time in the trailer behind the IP packet of a whole frame. Without a frame check sequence, the trailer ends
 * with seconds, nanoseconds, flags, device and port; it may have one. Its time is that of the capture to within thirty
 * days, which excludes other trailers. Returns false without one. */
bool um_trailer_time(const um_capture_packet *packet, const um_captured_frame *frame, int64_t *time_ns);

/* The header of an ERF record. */
typedef struct um_erf_header {
    uint8_t type;          /* without the bit for extension headers */
    uint32_t record_bytes; /* with all headers */
    uint32_t lost_count;   /* records lost before this one */
    int32_t interface;     /* 0 to 3 */
    int64_t time_ns;
} um_erf_header;

/* Reads UM_ERF_HEADER_BYTES at `data`. Returns false if no record starts with them. */
bool um_erf_read(const uint8_t *data, um_erf_header *header);

/* Returns true if a record of a known type may start with these bytes, fewer than UM_ERF_HEADER_BYTES. */
bool um_erf_may_start(const uint8_t *data, uint64_t bytes);

/* Returns true for a record that is not a packet: padding and metadata of the card. */
bool um_erf_is_skipped(const um_erf_header *header);

/* Replaces a packet of link type ERF by its content, and sets *time_ns to its time. Returns false, and changes nothing,
 * for a record without Ethernet or IP. */
bool um_erf_open(um_capture_packet *packet, int64_t *time_ns);

#endif

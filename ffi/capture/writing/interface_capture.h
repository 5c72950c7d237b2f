/* Captures the packets of a network interface into pcapng files, through a kernel ring mapped into this process
 * (AF_PACKET, TPACKET_V3) behind a filter in the kernel (classic BPF). Packets that an XDP program takes off the
 * interface do not appear here: the tap captures those (tap.h).
 *
 * Frames have their link header. A VLAN tag taken out by the kernel is put back, a checksum left to the device is
 * filled in, and a run of datagrams that the kernel keeps whole (UDP GSO, GRO) is cut into the datagrams that it is on
 * the wire, where the kernel describes the run (PACKET_VNET_HDR; um_interface_capture_splits_runs). Linux before 6.2
 * cannot describe it and drops the run: there the option is not set, and only runs of LBT-RM are cut, by their own
 * headers (core/wire/lbtrm_run.h).
 *
 * With an egress tap, outgoing packets come from there, before the kernel cuts them, and incoming ones are received
 * without the mapped ring, so that both can be written at once in order of time (frame_merge.h).
 *
 * Threads: one at a time. Memory: um_interface_capture_open maps everything, _close unmaps it. Errors: 0 or a negative
 * errno; um_interface_capture_failed_step returns the failed step.
 */
#ifndef UM_CAPTURE_WRITING_INTERFACE_CAPTURE_H
#define UM_CAPTURE_WRITING_INTERFACE_CAPTURE_H

#include <linux/filter.h>

#include "capture/writing/frame_merge.h"
#include "capture/writing/pcapng_writer.h"

typedef struct um_interface_capture_config {
    const char *interface;
    uint32_t block_bytes; /* a power of two, a page at least */
    uint32_t block_count;
    uint32_t snap_bytes; /* captured bytes per frame; 0: all */
    bool is_promiscuous;
    bool has_run_headers;
    const char *filter_text; /* the filter's text, for the file */
    const struct sock_filter *filter;
    uint16_t filter_length; /* 0: everything */
    const um_frame_merge_config
        *egress; /* read only while opening; NULL: the packet socket captures outgoing packets, too */
} um_interface_capture_config;

typedef struct um_interface_capture_counters {
    uint64_t packet_count; /* written */
    uint64_t drop_count;   /* packets lost because a ring was full */
    uint64_t file_bytes;   /* of the open file */
    uint64_t file_packet_count;
    int64_t file_start_ns; /* time of its first packet; 0: none yet */
} um_interface_capture_counters;

/* Facts of the packets that arrived up to a time, UM_PCAPNG_UNKNOWN if not known. Later ones stay in the ring. */
typedef struct um_interface_capture_arrivals {
    int64_t until_ns; /* wall clock */
    int64_t queue;
    int64_t verdict; /* of an XDP program, enum xdp_action */
} um_interface_capture_arrivals;

typedef struct um_interface_capture um_interface_capture;

/* Opens the ring; packets are discarded until there is a file. *capture is set even on failure, and must be closed. */
int um_interface_capture_open(const um_interface_capture_config *config, um_interface_capture **capture);
const char *um_interface_capture_failed_step(const um_interface_capture *capture);
bool um_interface_capture_splits_runs(const um_interface_capture *capture);
void um_interface_capture_close(um_interface_capture *capture);

/* Writes to this file from now on. The previous file must have been ended. */
int um_interface_capture_begin_file(um_interface_capture *capture, const char *path);
/* Ends the file with the interface's statistics and closes it. Without a file it does nothing. */
int um_interface_capture_end_file(um_interface_capture *capture);
bool um_interface_capture_has_file(const um_interface_capture *capture);

/* Waits until there are packets to write, enough to make the wake-up cheap, or until the timeout. Returns 0, or a
 * negative errno of the interface. */
int um_interface_capture_wait(um_interface_capture *capture, int64_t timeout_ns);
/* Writes the packets that are there, until the file has limit_bytes (0: no limit). Returns the number written, or a
 * negative errno of the file, to which no more can be written. */
int64_t um_interface_capture_write(um_interface_capture *capture, const um_interface_capture_arrivals *arrivals,
                                   uint64_t limit_bytes);
/* Stops capturing: packets that have arrived can still be written, until the capture is drained. The owner of the
 * egress tap detaches it before. */
int um_interface_capture_end_arrivals(um_interface_capture *capture);
/* Returns true if all captured packets have been written. */
bool um_interface_capture_is_drained(um_interface_capture *capture);
void um_interface_capture_read(const um_interface_capture *capture, um_interface_capture_counters *counters);

#endif

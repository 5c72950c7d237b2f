/* Reads pcap, pcapng and ERF from memory, record by record: any byte order, micro- and nanosecond files, several
 * sections and interfaces. Sans-I/O: the caller maps or inflates the file and passes a window of it; nothing is
 * allocated, nothing outside the window is read. One thread at a time may use a reader.
 *
 * libpcap is not used: it reads pcapng only if all interfaces share one link type, cannot start inside a file (as a
 * partition does) and returns no byte position.
 */
#ifndef UM_CAPTURE_READING_CONTAINER_H
#define UM_CAPTURE_READING_CONTAINER_H

#include "capture/reading/copies.h"
#include "capture/reading/fragments.h"
#include "capture/reading/hardware_time.h"
#include "capture/reading/packet.h"
#include "capture/reading/streams.h"

enum {
    UM_CAPTURE_INTERFACES_MAX = 1024,
    UM_CAPTURE_NAME_BYTES = 64,
    UM_CAPTURE_RECORD_BYTES_MAX = 16 << 20, /* a longer record counts as damage */
    UM_CAPTURE_FOUND_BYTES = 256 << 10,     /* more than a packet, which may contain a capture */
    UM_CAPTURE_CLOCK_STEP_NS = 1000000,     /* queues reorder by microseconds; a longer step back is a clock step */
};

enum um_capture_format { UM_CAPTURE_UNKNOWN, UM_CAPTURE_PCAP, UM_CAPTURE_PCAPNG, UM_CAPTURE_ERF };

enum um_capture_step {
    UM_CAPTURE_PACKET,     /* a packet was read */
    UM_CAPTURE_INCOMPLETE, /* the next record reaches beyond the window (or there is none) */
    UM_CAPTURE_FULL,       /* rows are full: call again with new ones */
    UM_CAPTURE_ENDED,      /* the end position is reached */
    UM_CAPTURE_FOREIGN,    /* not a capture */
    UM_CAPTURE_DAMAGED,    /* an impossible record: nothing behind it can be located */
    UM_CAPTURE_ZEROS,      /* a record of zeros: space that the capturing program reserved and has not used */
};

/* An interface as its capture describes it. A pcap file has one, without a name. */
typedef struct um_capture_interface {
    int32_t link_type;
    uint32_t snap_bytes;  /* 0: no limit */
    uint8_t resolution;   /* if_tsresol: 6 for microseconds, 9 for nanoseconds, the top bit for powers of two */
    int64_t offset_s;     /* if_tsoffset */
    int64_t last_time_ns; /* of the previous packet */
    uint64_t drop_count;  /* packets lost while capturing, by the statistics at the end */
    bool has_statistics;
    uint64_t packet_drop_count;       /* packets lost while capturing, by the counts of single packets */
    char name[UM_CAPTURE_NAME_BYTES]; /* ends with NUL; empty when there is none */
} um_capture_interface;

/* Remarkable facts of a file. Positions are those in the window plus its base. */
typedef struct um_capture_findings {
    uint64_t packet_count;
    uint64_t section_count;
    uint64_t unknown_block_count;
    uint32_t unknown_block_type; /* type of the first unknown block */
    uint64_t unknown_block_position;
    uint64_t clock_step_count;
    int64_t clock_step_max_ns;
    uint64_t clock_step_position; /* position of the first step */
    uint64_t timeless_count;      /* packets of pcapng's simple block have no time */
    uint64_t unknown_link_count;
    int32_t unknown_link_type;         /* link type of the first one */
    uint64_t no_hardware_time_count;   /* packets without a requested time of the capture hardware */
    uint64_t cut_count;                /* packets that were captured only in part */
    uint64_t wrong_length_count;       /* packets whose length on the wire is impossible */
    uint64_t wrong_length_position;    /* position of the first one */
    uint64_t left_out_interface_count; /* beyond UM_CAPTURE_INTERFACES_MAX: their packets have no interface */
} um_capture_findings;

typedef struct um_capture_reader {
    enum um_capture_format format;
    bool swapped;           /* the byte order of the file is not that of this machine */
    bool hardware_times;    /* packets have the time of the capture hardware, if there is one; set by the caller */
    uint32_t section_first; /* index of the section's first interface */
    uint32_t interface_count;
    um_capture_findings findings;
    um_capture_interface interfaces[UM_CAPTURE_INTERFACES_MAX];
    um_streams streams;     /* TCP streams up to the last packet read or skipped; the caller sets their ports */
    um_fragments fragments; /* incomplete datagrams up to the last packet read or skipped */
    um_copies copies;       /* the packets before the next one, of which it may be a copy */
} um_capture_reader;

/* Prepares a reader for the start of a file, or for any record if the caller then sets format, swapped, interfaces. */
void um_capture_reader_init(um_capture_reader *reader);

/* Adds an interface. Returns 0 or -ENOSPC. */
int um_capture_add_interface(um_capture_reader *reader, const um_capture_interface *interface);

/* Reads the next packet at or behind *at in [data, data + length) and moves *at behind it; other blocks on the way are
 * processed, too. Returns ENDED at the first record, packet or not, that starts at or behind `until`, where the next
 * part begins. `base`: position of the window in the file, for the findings. With PACKET, `packet` points into the
 * window. With every other step, *at stays at the record that caused it. */
enum um_capture_step um_capture_next(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t base,
                                     uint64_t until, uint64_t *at, um_capture_packet *packet);

/* Replaces the time of a packet by that of its trailer, if the caller wants hardware times. `frame`: the packet,
 * decoded. */
void um_capture_retime(um_capture_reader *reader, um_capture_packet *packet, const um_captured_frame *frame);

/* Skips records, following the streams, fragments and copies of packets, until one starts at or behind `until`: returns
 * ENDED with *at there. */
enum um_capture_step um_capture_skip(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t until,
                                     uint64_t *at);

/* Moves *at forward to a record, without reading what is before it: to the first position from which plausible records
 * follow each other for UM_CAPTURE_FOUND_BYTES, or to the end of the file. The reader has the format and interfaces of
 * the file. No bytes prove a record: a packet may contain a capture. So the caller must compare the position with that
 * of a reader that arrives from before it. Returns false if there is none, or if the search takes too long. */
bool um_capture_find(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t *at);

#endif

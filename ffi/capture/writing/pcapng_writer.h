/* Writes the pcapng files of a capture or a tap (unit_file.h). A file cut short by a crash ends at most inside its last
 * block.
 *
 * Threads: one at a time. Errors: 0 or a negative errno. A failed write is remembered (um_pcapng_writer.error): later
 * packets are discarded, and the file is truncated to its last whole block.
 */
#ifndef UM_CAPTURE_WRITING_PCAPNG_WRITER_H
#define UM_CAPTURE_WRITING_PCAPNG_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "capture/writing/unit_file.h"

enum {
    UM_PCAPNG_LINK_ETHERNET = 1, /* LINKTYPE_ETHERNET */
    UM_PCAPNG_LINK_RAW = 101,    /* LINKTYPE_RAW: a datagram starts with its IPv4 or IPv6 header */
    UM_PCAPNG_UNKNOWN = -1,
    UM_PCAPNG_PACKET_MAX_BYTES = 128 * 1024,
};

enum um_pcapng_direction { UM_PCAPNG_NO_DIRECTION, UM_PCAPNG_INBOUND, UM_PCAPNG_OUTBOUND };

typedef struct um_pcapng_writer {
    um_unit_file file;
    uint64_t file_bytes;    /* size of the file, once flushed */
    uint64_t packet_count;  /* packets passed to the writer */
    uint64_t flushed_count; /* packets of these in the file */
    int error;              /* the first error, a negative errno */
} um_pcapng_writer;

/* One packet. drop_count: packets lost since the previous one. The receive queue and the verdict of an XDP program
 * (enum xdp_action) are UM_PCAPNG_UNKNOWN if there was none or it is not known. */
typedef struct um_pcapng_packet {
    int64_t time_ns;
    uint32_t interface_id;
    uint32_t wire_bytes; /* length on the wire, before truncation */
    enum um_pcapng_direction direction;
    uint64_t drop_count;
    int64_t queue;
    int64_t verdict;
} um_pcapng_packet;

/* The packet counts of an interface between two times. */
typedef struct um_pcapng_statistics {
    uint32_t interface_id;
    int64_t start_ns;
    int64_t end_ns;
    uint64_t received_count;
    uint64_t dropped_count;
} um_pcapng_statistics;

/* Creates the file, or truncates an existing one, and writes its section header. */
int um_pcapng_open(um_pcapng_writer *writer, const char *path);
/* Describes an interface; the first is number 0. snap_bytes 0: whole packets. filter may be NULL. */
void um_pcapng_add_interface(um_pcapng_writer *writer, const char *name, uint16_t link_type, uint32_t snap_bytes,
                             const char *filter);
/* Returns the place for the next packet, up to UM_PCAPNG_PACKET_MAX_BYTES; valid until anything else is written. */
uint8_t *um_pcapng_packet_at(um_pcapng_writer *writer);
/* Writes the packet whose `bytes` were written there. */
void um_pcapng_add_packet(um_pcapng_writer *writer, const um_pcapng_packet *packet, uint32_t bytes);
/* Writes a packet of `head` followed by `body`, either of which may be empty. */
void um_pcapng_write(um_pcapng_writer *writer, const um_pcapng_packet *packet, const uint8_t *head, uint32_t head_bytes,
                     const uint8_t *body, uint32_t body_bytes);
void um_pcapng_write_statistics(um_pcapng_writer *writer, const um_pcapng_statistics *statistics);
/* Writes the buffered blocks to the file. */
int um_pcapng_flush(um_pcapng_writer *writer);
/* Flushes and closes. Returns the first error. */
int um_pcapng_close(um_pcapng_writer *writer);

#endif

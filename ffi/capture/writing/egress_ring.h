/* The ring into which the egress tap (bpf/egress_tap.bpf.c) copies outgoing packets: a BPF ring buffer,
 * mapped and read in place, without a system call and without a wakeup: the program does not notify its reader.
 *
 * Contract. um_egress_ring_open maps, _close unmaps; the descriptors stay the caller's and may be closed meanwhile. One
 * thread at a time reads a ring, and no ring has two readers. A record is valid until it is taken. Errors:
 * 0 or a negative errno. Times: nanoseconds.
 */
#ifndef UM_CAPTURE_WRITING_EGRESS_RING_H
#define UM_CAPTURE_WRITING_EGRESS_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../bpf/egress_tap.h"

typedef struct um_egress_ring_maps {
    int ring_fd;
    uint32_t ring_bytes; /* the map's entries */
    int counters_fd;
} um_egress_ring_maps;

typedef struct um_egress_ring {
    uint32_t bytes;
    uint64_t *consumed; /* a separate page: position up to which space was released to the program */
    uint8_t *produced;  /* a page with the producer position, then the record area, mapped twice back to back */
    struct egress_tap_counters *counters;
    uint64_t position; /* of the next record */
    uint64_t released;
} um_egress_ring;

/* _close also accepts a zeroed ring and one that failed to open. */
int um_egress_ring_open(um_egress_ring *ring, const um_egress_ring_maps *maps);
void um_egress_ring_close(um_egress_ring *ring);

/* Returns the oldest record that was not taken, or NULL. */
const struct egress_tap_record *um_egress_ring_next(um_egress_ring *ring);
/* Takes the record that _next returned, which becomes invalid: its space may be released at once. */
void um_egress_ring_take(um_egress_ring *ring);
/* Releases the space of all records that were taken. */
void um_egress_ring_release(um_egress_ring *ring);

/* Bytes in use by records, taken or not. */
uint64_t um_egress_ring_used_bytes(const um_egress_ring *ring);
/* Packets dropped for lack of space since the program was loaded. */
uint64_t um_egress_ring_lost_count(const um_egress_ring *ring);

#endif

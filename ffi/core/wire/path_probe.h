/* Path probes: session messages padded to a size, by which a source learns the largest datagram that reaches every
 * receiver (path_mtu.h). LBT-RM has no such message, so an extended option of an LBMC control message follows the
 * session message, and zeros follow the option (layout: docs/wire.md). Receivers answer in their status messages. Pure.
 * Threads: any.
 */
#ifndef UM_CORE_PATH_PROBE_H
#define UM_CORE_PATH_PROBE_H

#include "core/wire/framing.h"
#include "core/wire/lbmc.h"

enum {
    UM_PATH_PROBE_OPTION_SUBTYPE = 10, /* under UM_LBMC_OWN_ID */
    UM_PATH_PROBE_DATA_BYTES = 8,
    UM_PATH_PROBE_BYTES = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_PATH_PROBE_DATA_BYTES,
};

typedef struct um_path_probe {
    uint16_t round;    /* of the source's probes, not 0; sizes of other rounds no longer count */
    uint16_t bytes;    /* UDP payload of the probe, with its trailer */
    bool wants_answer; /* receivers that have reported this size in this round report it again */
} um_path_probe;

/* Writes the control message; returns its length. */
uint32_t um_path_probe_encode(uint8_t *out, const um_path_probe *probe);
/* Returns false if the message is not a well-formed probe. */
bool um_path_probe_decode(const um_lbmc_message *message, um_path_probe *probe);

#endif

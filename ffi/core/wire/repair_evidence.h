/* Evidence that a retransmission was lost: a receiver reports a retransmission that has arrived, or that a repair
 * report has named, so that the source knows that earlier ones, or it, are not still on their way to this receiver
 * (retransmission.h). LBT-RM has no such message, so it is an extended option of an LBMC control message, like a status
 * message (layout: docs/wire.md). Pure. Threads: any.
 */
#ifndef UM_CORE_REPAIR_EVIDENCE_H
#define UM_CORE_REPAIR_EVIDENCE_H

#include "core/wire/framing.h"
#include "core/wire/lbmc.h"

enum {
    UM_REPAIR_EVIDENCE_OPTION_SUBTYPE = 7, /* under UM_LBMC_OWN_ID */
    UM_REPAIR_EVIDENCE_DATA_BYTES = 8,
    UM_REPAIR_EVIDENCE_BYTES_MAX =
        UM_FRAMING_STATUS_BYTES_MAX + UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_REPAIR_EVIDENCE_DATA_BYTES,
};

typedef struct um_repair_evidence {
    uint32_t sqn;     /* of the retransmission */
    bool is_reported; /* false: it has arrived; true: a repair report about it has arrived (repair_report.h) */
} um_repair_evidence;

/* Writes the datagram; returns its length. `client_id`: of the receiver's connection, if the session has connections.
 */
uint32_t um_repair_evidence_write(uint8_t *out, const um_session_id *id, uint32_t client_id,
                                  const um_repair_evidence *evidence);

/* Returns false if the packet is not well-formed evidence. */
bool um_repair_evidence_decode(const um_packet *packet, um_repair_evidence *evidence);

#endif

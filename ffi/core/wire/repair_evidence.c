#include "core/wire/repair_evidence.h"

enum { VERSION = 1, FLAG_REPORTED = 0x01 };

uint32_t um_repair_evidence_write(uint8_t *out, const um_session_id *id, uint32_t client_id,
                                  const um_repair_evidence *evidence)
{
    uint8_t data[UM_REPAIR_EVIDENCE_DATA_BYTES] = {VERSION, evidence->is_reported ? FLAG_REPORTED : 0};
    um_store_be32(data + 4, evidence->sqn);
    uint32_t at = um_framing_write_status(id, out, client_id, evidence->sqn);
    return at + um_lbmc_write_extended(out + at, UM_LBMC_OWN_ID, UM_REPAIR_EVIDENCE_OPTION_SUBTYPE, data, sizeof data);
}

bool um_repair_evidence_decode(const um_packet *packet, um_repair_evidence *evidence)
{
    um_lbmc_message message;
    uint32_t length;
    if (packet->type != UM_LBTRM_DATA ||
        um_lbmc_decode(packet->body, packet->body_length, &message, &length) != UM_DGRAM_OK)
        return false;
    if (message.type != UM_LBMC_CONTROL || message.extended == NULL || message.extended_id != UM_LBMC_OWN_ID ||
        message.extended_subtype != UM_REPAIR_EVIDENCE_OPTION_SUBTYPE ||
        message.extended_length != UM_REPAIR_EVIDENCE_DATA_BYTES || message.extended[0] != VERSION)
        return false;
    evidence->is_reported = message.extended[1] & FLAG_REPORTED;
    evidence->sqn = um_load_be32(message.extended + 4);
    return true;
}

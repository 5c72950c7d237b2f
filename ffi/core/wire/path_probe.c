#include "core/wire/path_probe.h"

enum { VERSION = 1, FLAG_WANTS_ANSWER = 0x01 };

uint32_t um_path_probe_encode(uint8_t *out, const um_path_probe *probe)
{
    uint8_t data[UM_PATH_PROBE_DATA_BYTES] = {VERSION, probe->wants_answer ? FLAG_WANTS_ANSWER : 0};
    um_store_be16(data + 4, probe->round);
    um_store_be16(data + 6, probe->bytes);
    return um_lbmc_write_extended(out, UM_LBMC_OWN_ID, UM_PATH_PROBE_OPTION_SUBTYPE, data, sizeof data);
}

bool um_path_probe_decode(const um_lbmc_message *message, um_path_probe *probe)
{
    if (message->type != UM_LBMC_CONTROL || message->extended == NULL || message->extended_id != UM_LBMC_OWN_ID ||
        message->extended_subtype != UM_PATH_PROBE_OPTION_SUBTYPE ||
        message->extended_length != UM_PATH_PROBE_DATA_BYTES || message->extended[0] != VERSION)
        return false;
    probe->wants_answer = message->extended[1] & FLAG_WANTS_ANSWER;
    probe->round = um_load_be16(message->extended + 4);
    probe->bytes = um_load_be16(message->extended + 6);
    return probe->round != 0;
}

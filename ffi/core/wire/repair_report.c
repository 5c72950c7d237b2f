#include "core/wire/repair_report.h"

enum { VERSION = 1, NS_PER_US = 1000 };

uint32_t um_repair_report_encode(uint8_t *out, const um_repair_report *report)
{
    uint8_t data[UM_REPAIR_REPORT_HEAD_BYTES + UM_REPAIR_REPORT_ENTRIES_MAX * UM_REPAIR_REPORT_ENTRY_BYTES] = {VERSION};
    uint32_t length = UM_REPAIR_REPORT_HEAD_BYTES;
    um_debug_assert(report->count > 0 && report->count <= UM_REPAIR_REPORT_ENTRIES_MAX);
    for (uint32_t i = 0; i < report->count; i++, length += UM_REPAIR_REPORT_ENTRY_BYTES) {
        um_store_be32(data + length, report->entries[i].sqn);
        um_store_be32(data + length + 4, (uint32_t)um_between_ns(report->entries[i].age_ns / NS_PER_US, 0, UINT32_MAX));
    }
    return um_lbmc_write_extended(out, UM_LBMC_OWN_ID, UM_REPAIR_REPORT_OPTION_SUBTYPE, data, length);
}

bool um_repair_report_decode(const um_lbmc_message *message, um_repair_report *report)
{
    if (message->type != UM_LBMC_CONTROL || message->extended == NULL || message->extended_id != UM_LBMC_OWN_ID ||
        message->extended_subtype != UM_REPAIR_REPORT_OPTION_SUBTYPE ||
        message->extended_length <= UM_REPAIR_REPORT_HEAD_BYTES || message->extended[0] != VERSION)
        return false;
    uint32_t bytes = message->extended_length - UM_REPAIR_REPORT_HEAD_BYTES;
    report->count = bytes / UM_REPAIR_REPORT_ENTRY_BYTES;
    if (bytes % UM_REPAIR_REPORT_ENTRY_BYTES != 0 || report->count > UM_REPAIR_REPORT_ENTRIES_MAX)
        return false;
    for (uint32_t i = 0; i < report->count; i++) {
        const uint8_t *entry = message->extended + UM_REPAIR_REPORT_HEAD_BYTES + UM_REPAIR_REPORT_ENTRY_BYTES * i;
        report->entries[i] =
            (um_repair_report_entry){um_load_be32(entry), (int64_t)um_load_be32(entry + 4) * NS_PER_US};
    }
    return true;
}

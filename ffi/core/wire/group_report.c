#include "core/wire/group_report.h"

#include "core/wire/status_message.h"

uint32_t um_round_trip_us(int64_t round_trip_ns)
{
    int64_t us = round_trip_ns / 1000;
    if (round_trip_ns <= 0)
        return 0;
    if (us == 0)
        return 1;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

uint32_t um_group_report_encode(uint8_t *out, const um_group_report *report)
{
    uint8_t data[UM_GROUP_REPORT_DATA_BYTES] = {UM_GROUP_REPORT_VERSION};
    data[1] = report->is_unlimited;
    um_store_be32(data + 4, report->receivers);
    um_store_be32(data + 8, um_round_trip_us(report->round_trip_ns));
    return um_lbmc_write_extended(out, UM_STATUS_OPTION_ID, UM_GROUP_REPORT_OPTION_SUBTYPE, data, sizeof data);
}

bool um_group_report_decode(const um_lbmc_message *message, um_group_report *report)
{
    if (message->type != UM_LBMC_CONTROL || message->extended == NULL || message->extended_id != UM_STATUS_OPTION_ID ||
        message->extended_subtype != UM_GROUP_REPORT_OPTION_SUBTYPE ||
        message->extended_length != UM_GROUP_REPORT_DATA_BYTES || message->extended[0] != UM_GROUP_REPORT_VERSION)
        return false;
    report->is_unlimited = message->extended[1] & 1;
    report->receivers = um_load_be32(message->extended + 4);
    report->round_trip_ns = (int64_t)um_load_be32(message->extended + 8) * 1000;
    return true;
}

#include "core/wire/topic_report.h"

enum { FLAG_FIRST = 0x01 };

uint32_t um_topic_report_write(uint8_t *out, const um_topic_report *report)
{
    uint8_t data[UM_TOPIC_REPORT_HEAD_BYTES + UM_TOPIC_REPORT_TOPIC_BYTES * UM_TOPIC_REPORT_TOPICS_MAX] = {
        UM_TOPIC_REPORT_VERSION, report->is_first ? FLAG_FIRST : 0};
    uint8_t *at = data + UM_TOPIC_REPORT_HEAD_BYTES;
    for (uint32_t i = 0; i < report->count; i++, at += UM_TOPIC_REPORT_TOPIC_BYTES) {
        um_store_be32(at, report->topics[i].topic_index);
        um_store_be32(at + 4, report->topics[i].message_max_bytes);
    }
    return um_lbmc_write_extended(out, UM_LBMC_OWN_ID, UM_TOPIC_REPORT_OPTION_SUBTYPE, data, (uint32_t)(at - data));
}

static bool read_report(const um_lbmc_message *message, um_topic_report *report)
{
    const uint8_t *data = message->extended;
    uint32_t bytes = message->extended_length;
    if (message->type != UM_LBMC_CONTROL || data == NULL || message->extended_id != UM_LBMC_OWN_ID ||
        message->extended_subtype != UM_TOPIC_REPORT_OPTION_SUBTYPE || bytes < UM_TOPIC_REPORT_HEAD_BYTES ||
        (bytes - UM_TOPIC_REPORT_HEAD_BYTES) % UM_TOPIC_REPORT_TOPIC_BYTES != 0 || data[0] != UM_TOPIC_REPORT_VERSION)
        return false;
    report->is_first = data[1] & FLAG_FIRST;
    report->count = (bytes - UM_TOPIC_REPORT_HEAD_BYTES) / UM_TOPIC_REPORT_TOPIC_BYTES;
    if (report->count > UM_TOPIC_REPORT_TOPICS_MAX)
        return false;
    data += UM_TOPIC_REPORT_HEAD_BYTES;
    for (uint32_t i = 0; i < report->count; i++, data += UM_TOPIC_REPORT_TOPIC_BYTES)
        report->topics[i] = (um_reported_topic){um_load_be32(data), um_load_be32(data + 4)};
    return true;
}

bool um_topic_report_decode(const um_packet *packet, um_topic_report *report)
{
    um_lbmc_message message;
    for (uint32_t at = 0, bytes; at < packet->body_length; at += bytes) {
        if (um_lbmc_decode(packet->body + at, packet->body_length - at, &message, &bytes) != UM_DGRAM_OK)
            return false;
        if (read_report(&message, report))
            return true;
    }
    return false;
}

#include "core/wire/interest_message.h"

enum { VERSION = 1, FLAG_ALL_TOPICS = 0x01 };

/* ---- interest ---- */

uint32_t um_interest_write(uint8_t *out, const um_lbtru_options *options, uint32_t sqn, const um_interest_part *part)
{
    uint8_t data[UM_INTEREST_DATA_BYTES] = {VERSION, part->needs_all ? FLAG_ALL_TOPICS : 0, part->part,
                                            part->part_count};
    um_store_be32(data + 4, part->version);
    uint32_t at = um_lbtru_write_client_data(out, options, sqn);
    return at + um_lbmc_write_extended(out + at, UM_LBMC_OWN_ID, UM_INTEREST_OPTION_SUBTYPE, data, sizeof data);
}

uint32_t um_interest_add_topic(uint8_t *out, const um_lbtru_options *options, uint32_t topic_index)
{
    return um_tcp_write_ssf_request(out, true, options->session_id, options->client_id, topic_index);
}

/* Decodes the control message at the start of a packet. Returns false if it is not ours with `data_bytes` of data. */
static bool decode_extended(const um_packet *packet, uint16_t subtype, uint32_t data_bytes, um_lbmc_message *message,
                            uint32_t *length)
{
    return packet->type == UM_LBTRM_DATA &&
           um_lbmc_decode(packet->body, packet->body_length, message, length) == UM_DGRAM_OK &&
           message->type == UM_LBMC_CONTROL && message->extended != NULL && message->extended_id == UM_LBMC_OWN_ID &&
           message->extended_subtype == subtype && message->extended_length == data_bytes &&
           message->extended[0] == VERSION;
}

bool um_interest_decode(const um_packet *packet, um_interest_part *part, um_packet *topics)
{
    um_lbmc_message message;
    uint32_t length;
    if (!decode_extended(packet, UM_INTEREST_OPTION_SUBTYPE, UM_INTEREST_DATA_BYTES, &message, &length))
        return false;
    *part = (um_interest_part){.version = um_load_be32(message.extended + 4),
                               .part = message.extended[2],
                               .part_count = message.extended[3],
                               .needs_all = message.extended[1] & FLAG_ALL_TOPICS};
    *topics = *packet;
    topics->body += length;
    topics->body_length -= length;
    return part->version != 0 && part->part < part->part_count && part->part_count <= UM_INTEREST_PARTS_MAX;
}

bool um_interest_next_topic(um_packet *topics, uint32_t *topic_index)
{
    if (topics->body_length < UM_TCP_SSF_REQUEST_BYTES)
        return false;
    um_tcp_control_reader reader = um_tcp_control_read(topics->body, UM_TCP_SSF_REQUEST_BYTES);
    um_tcp_control control = um_tcp_control_next(&reader);
    topics->body += UM_TCP_SSF_REQUEST_BYTES;
    topics->body_length -= UM_TCP_SSF_REQUEST_BYTES;
    *topic_index = control.topic_index;
    return control.kind == UM_TCP_SSF_INCLUDE && control.session_id == topics->session_id;
}

/* ---- filter report ---- */

uint32_t um_filter_report_write(uint8_t *out, uint32_t session_id, uint32_t trail_sqn, const um_filter_report *report)
{
    uint8_t data[UM_FILTER_REPORT_DATA_BYTES] = {VERSION};
    um_store_be32(data + 4, report->first_sqn);
    um_store_be32(data + 8, report->count);
    um_store_be32(data + 12, report->version);
    um_store_be32(data + 16, report->since_sqn);
    um_lbtru_write_data(out, session_id, trail_sqn - 1, trail_sqn - 1, true);
    return UM_LBTRU_DATA_BYTES + um_lbmc_write_extended(out + UM_LBTRU_DATA_BYTES, UM_LBMC_OWN_ID,
                                                        UM_FILTER_REPORT_OPTION_SUBTYPE, data, sizeof data);
}

bool um_filter_report_decode(const um_packet *packet, um_filter_report *report)
{
    um_lbmc_message message;
    uint32_t length;
    if (!(packet->flags & UM_LBTRM_FLAG_RETRANSMISSION) ||
        !decode_extended(packet, UM_FILTER_REPORT_OPTION_SUBTYPE, UM_FILTER_REPORT_DATA_BYTES, &message, &length) ||
        length != packet->body_length)
        return false;
    *report = (um_filter_report){um_load_be32(message.extended + 4), um_load_be32(message.extended + 8),
                                 um_load_be32(message.extended + 12), um_load_be32(message.extended + 16)};
    return true;
}

/* Every decoder of the core on raw bytes: nothing outside the datagram is read, and decoded parts are inside it. */
#include "fuzz.h"

#include "core/wire/datagram_piece.h"
#include "core/wire/framing.h"
#include "core/wire/lbtrm_run.h"
#include "core/wire/path_probe.h"
#include "core/wire/status_message.h"

static volatile uint32_t sink; /* so that decoded parts are really read */

static void read_inside(const uint8_t *part, uint64_t part_bytes, const uint8_t *data, size_t size)
{
    REQUIRE(part >= data && part_bytes <= size && part - data <= (ptrdiff_t)(size - part_bytes));
    uint32_t sum = 0;
    for (uint64_t i = 0; i < part_bytes; i++)
        sum += part[i];
    sink = sum;
}

/* Decodes what may follow a session message. */
static void decode_path_control(const um_lbmc_message *message, uint32_t message_bytes, const uint8_t *body,
                                uint32_t body_length)
{
    um_path_probe probe;
    um_datagram_piece piece;
    bool is_probe = um_path_probe_decode(message, &probe);
    REQUIRE(!is_probe || probe.round != 0);
    if (!um_datagram_piece_decode(message, message_bytes, body, body_length, &piece))
        return;
    REQUIRE(!is_probe && um_datagram_piece_length(&piece) > 0);
    REQUIRE(um_datagram_piece_offset(&piece) + um_datagram_piece_length(&piece) <= piece.total_bytes);
    read_inside(piece.data, um_datagram_piece_length(&piece), body, body_length);
}

static void decode_messages(const uint8_t *body, uint32_t body_length)
{
    um_lbmc_message message;
    uint32_t length;
    for (uint32_t at = 0; at < body_length; at += length) {
        if (um_lbmc_decode(body + at, body_length - at, &message, &length) != UM_DGRAM_OK)
            return;
        REQUIRE(length >= UM_LBMC_CONTROL_BYTES && length <= body_length - at);
        read_inside(message.payload, message.payload_length, body + at, length);
        if (message.tsni != NULL)
            read_inside(message.tsni, (uint64_t)message.tsni_count * UM_LBMC_TSNI_RECORD_BYTES, body + at, length);
        if (message.extended != NULL)
            read_inside(message.extended, message.extended_length, body + at, length);
        if (message.flags & UM_MESSAGE_FRAGMENT) {
            REQUIRE(message.payload_length > 0);
            REQUIRE((uint64_t)message.offset + message.payload_length <= message.total);
        }
        decode_path_control(&message, length, body + at, body_length - at);
    }
}

static void decode_packet(enum um_transport transport, const uint8_t *data, size_t size)
{
    um_packet packet;
    if (um_framing_decode(transport, data, (uint32_t)size, &packet) != UM_DGRAM_OK)
        return;
    if (packet.list != NULL)
        read_inside(packet.list, 4 * (uint64_t)packet.list_count, data, size);
    if (packet.type != UM_LBTRM_DATA && packet.type != UM_LBTRM_SM)
        return;
    um_status_message status;
    if (packet.body_length > 0)
        read_inside(packet.body, packet.body_length, data, size);
    decode_messages(packet.body, packet.body_length);
    if (packet.type != UM_LBTRM_DATA)
        return;
    sink = um_status_decode(&packet, &status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode_messages(data, (uint32_t)size);
    REQUIRE(um_lbtrm_run_segment(data, (uint32_t)size) < size || size == 0);
    decode_packet(UM_TRANSPORT_LBTRM, data, size);
    decode_packet(UM_TRANSPORT_LBTRU, data, size);
    return 0;
}

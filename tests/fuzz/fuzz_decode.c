/* Every decoder of the core on raw bytes: nothing outside the datagram is read, and decoded parts are inside it. */
#include "fuzz.h"

#include "core/wire/framing.h"
#include "core/wire/lbtrm_run.h"
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
    }
}

static void decode_packet(enum um_transport transport, const uint8_t *data, size_t size)
{
    um_packet packet;
    if (um_framing_decode(transport, data, (uint32_t)size, &packet) != UM_DGRAM_OK)
        return;
    if (packet.list != NULL)
        read_inside(packet.list, 4 * (uint64_t)packet.list_count, data, size);
    if (packet.type != UM_LBTRM_DATA)
        return;
    um_status_message status;
    read_inside(packet.body, packet.body_length, data, size);
    decode_messages(packet.body, packet.body_length);
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

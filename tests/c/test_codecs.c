/* LBT-RM, LBMC and status message codecs: bytes that Wireshark's dissector decodes, and round trips. */
#include "core/foundation/random.h"
#include "core/wire/lbtrm_run.h"
#include "core/wire/repair_report.h"
#include "core/wire/status_message.h"
#include "support.h"

enum { SESSION = 0x5eed0001, NAK_PORT = 0x3836 };

#define DATA_HEADER(sqn) "00003836 5eed0001 " sqn " 00000064 80000000 "

typedef struct bytes {
    uint8_t data[4096];
    uint32_t length;
} bytes;

static bytes hex(const char *text)
{
    bytes b;
    b.length = from_hex(text, b.data);
    return b;
}

static um_packet decode(const bytes *b)
{
    um_packet packet;
    CHECK_EQ(um_lbtrm_decode(b->data, b->length, &packet), UM_DGRAM_OK);
    CHECK_EQ(packet.session_id, SESSION);
    CHECK_EQ(packet.nak_port, NAK_PORT);
    return packet;
}

static um_lbmc_message decode_message(const uint8_t *data, uint32_t available, uint32_t expected_length)
{
    um_lbmc_message message;
    uint32_t length;
    memset(&message, 0xee, sizeof message);
    CHECK_EQ(um_lbmc_decode(data, available, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(length, expected_length);
    return message;
}

/* ---- LBT-RM ---- */

TEST("W1 UX-28", "DATA header")
{
    bytes golden = hex(DATA_HEADER("00000065"));
    uint8_t out[UM_LBTRM_DATA_BYTES];
    um_lbtrm_write_data(out, SESSION, NAK_PORT, 0x65, 0x64, false);
    CHECK_BYTES(out, golden.data, sizeof out);
    um_packet packet = decode(&golden);
    CHECK_EQ(packet.type, UM_LBTRM_DATA);
    CHECK_EQ(packet.sqn, 0x65);
    CHECK_EQ(packet.trail, 0x64);
    CHECK_EQ(packet.flags, UM_LBTRM_FLAG_UNICAST_NAKS);
    CHECK_EQ(packet.body_length, 0);
}

TEST("W1 UX-28", "retransmission of 103")
{
    bytes golden = hex("00003836 5eed0001 00000067 00000064 a0000000 00000014 000003e9 0000002c 6c6f7374206f6e65");
    uint8_t out[UM_LBTRM_DATA_BYTES];
    um_lbtrm_write_data(out, SESSION, NAK_PORT, 103, 100, true);
    CHECK_BYTES(out, golden.data, sizeof out);
    um_packet packet = decode(&golden);
    CHECK(packet.flags & UM_LBTRM_FLAG_RETRANSMISSION);
    um_lbmc_message message = decode_message(packet.body, packet.body_length, 20);
    CHECK_EQ(message.payload_length, 8);
    CHECK_BYTES(message.payload, (const uint8_t *)"lost one", 8);
}

TEST("W1 UX-28 UM-71", "session message")
{
    bytes golden = hex("02003836 5eed0001 00000001 00000069 00000064 80000000");
    uint8_t out[UM_LBTRM_SM_BYTES];
    CHECK_EQ(um_lbtrm_write_sm(out, SESSION, NAK_PORT, 1, 0x69, 0x64), sizeof out);
    CHECK_BYTES(out, golden.data, sizeof out);
    um_packet packet = decode(&golden);
    CHECK_EQ(packet.type, UM_LBTRM_SM);
    CHECK_EQ(packet.sqn, 1);
    CHECK_EQ(packet.lead, 0x69);
    CHECK_EQ(packet.trail, 0x64);
}

TEST("W1 UX-28 UM-119", "NAK of 103 and 104")
{
    bytes golden = hex("03003836 5eed0001 00020000 00000067 00000068");
    uint8_t out[UM_LBTRM_NAK_BYTES + 8];
    CHECK_EQ(um_lbtrm_write_nak(out, SESSION, NAK_PORT, (const uint32_t[]){103, 104}, 2), sizeof out);
    CHECK_BYTES(out, golden.data, sizeof out);
    um_packet packet = decode(&golden);
    CHECK_EQ(packet.type, UM_LBTRM_NAK);
    CHECK_EQ(packet.list_count, 2);
    CHECK_EQ(um_load_be32(packet.list + 4), 104);
}

TEST("W1 UX-28 UM-132", "NCF of 104, retransmission delayed")
{
    bytes golden = hex("04003836 5eed0001 00000064 00010020 00000068");
    uint8_t out[UM_LBTRM_NCF_BYTES + 4];
    CHECK_EQ(um_lbtrm_write_ncf(out, SESSION, NAK_PORT, 100, UM_NCF_RX_DELAY, (const uint32_t[]){104}, 1), sizeof out);
    CHECK_BYTES(out, golden.data, sizeof out);
    um_packet packet = decode(&golden);
    CHECK_EQ(packet.type, UM_LBTRM_NCF);
    CHECK_EQ(packet.ncf_reason, UM_NCF_RX_DELAY);
    CHECK_EQ(packet.trail, 100);
    CHECK_EQ(um_load_be32(packet.list), 104);
}

static enum um_dgram_status status_of(const char *text)
{
    bytes b = hex(text);
    um_packet packet;
    uint8_t *copy = malloc(b.length ? b.length : 1); /* exact size: AddressSanitizer detects an overrun */
    memcpy(copy, b.data, b.length);
    enum um_dgram_status status = um_lbtrm_decode(copy, b.length, &packet);
    free(copy);
    return status;
}

TEST("W1 UX-28", "malformed datagrams are refused by reason")
{
    CHECK_EQ(status_of(""), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("00003836 5eed00"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("10003836 5eed0001"), UM_DGRAM_VERSION);
    CHECK_EQ(status_of("00013836 5eed0001 00000065 00000064 80000000"), UM_DGRAM_HDR);
    CHECK_EQ(status_of("01003836 5eed0001"), UM_DGRAM_TYPE);
    CHECK_EQ(status_of("0f003836 5eed0001"), UM_DGRAM_TYPE);
    CHECK_EQ(status_of("00003836 5eed0001 00000065 00000064 800000"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("00003836 5eed0001 00000063 00000064 80000000"), UM_DGRAM_HDR); /* trail after sqn */
    CHECK_EQ(status_of("02003836 5eed0001 00000001 00000069 00000064 800000"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("02003836 5eed0001 00000001 00000063 00000064 80000000"), UM_DGRAM_OK);
    CHECK_EQ(status_of("02003836 5eed0001 00000001 00000062 00000064 80000000"), UM_DGRAM_HDR);
    CHECK_EQ(status_of("03003836 5eed0001 0002"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("03003836 5eed0001 00020000 00000067 000000"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("03003836 5eed0001 ffff0000 00000067"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("03003836 5eed0001 00010001 00000067"), UM_DGRAM_HDR); /* parity */
    CHECK_EQ(status_of("04003836 5eed0001 00000064 000100"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("04003836 5eed0001 00000064 00010020 000000"), UM_DGRAM_SIZE);
    CHECK_EQ(status_of("04003836 5eed0001 00000064 00010021 00000068"), UM_DGRAM_HDR);
}

TEST("W1", "a refused datagram is still attributed to its session")
{
    const char *refused[] = {"00013836 5eed0001", "0f003836 5eed0001", "00003836 5eed0001 00"};
    for (uint32_t i = 0; i < 3; i++) {
        bytes b = hex(refused[i]);
        um_packet packet;
        memset(&packet, 0xee, sizeof packet);
        CHECK(um_lbtrm_decode(b.data, b.length, &packet) != UM_DGRAM_OK);
        CHECK_EQ(packet.session_id, SESSION);
        CHECK_EQ(packet.nak_port, NAK_PORT);
    }
}

TEST("UX-22", "sequence numbers compare across the wrap")
{
    CHECK_EQ(status_of("00003836 5eed0001 00000002 fffffffe 80000000"), UM_DGRAM_OK);
    CHECK_EQ(status_of("00003836 5eed0001 fffffffe 00000002 80000000"), UM_DGRAM_HDR);
    CHECK_EQ(status_of("02003836 5eed0001 00000001 ffffffff 00000000 80000000"), UM_DGRAM_OK);
}

/* ---- LBMC ---- */

TEST("W1", "two topics in one datagram")
{
    bytes golden = hex(DATA_HEADER("00000064") "0000001d 000003e9 00000029 45555220312e303834322f312e30383433"
                                               "0000001d 000003ea 00000007 47425020312e323631312f312e32363133");
    um_packet packet = decode(&golden);
    CHECK_EQ(packet.body_length, 58);
    um_lbmc_message first = decode_message(packet.body, 58, 29);
    um_lbmc_message second = decode_message(packet.body + 29, 29, 29);
    CHECK_EQ(first.topic_index, 0x3e9);
    CHECK_EQ(first.sqn, 0x29);
    CHECK_EQ(second.topic_index, 0x3ea);
    CHECK_EQ(second.sqn, 7);
    CHECK_BYTES(second.payload, (const uint8_t *)"GBP 1.2611/1.2613", 17);

    uint8_t out[29];
    um_lbmc_layout layout = {.topic_index = 0x3ea, .sqn = 7, .payload_length = 17};
    CHECK(um_lbmc_write_message(out, &layout) == out + UM_LBMC_HEADER_BYTES);
    CHECK_BYTES(out, golden.data + 20 + 29, UM_LBMC_HEADER_BYTES);
}

TEST("W1 UM-58 UM-59", "two fragments of 2000 bytes")
{
    bytes head[] = {hex("000104cc 000003e9 0000002a 00100000 0000002a 00000000 000007d0"),
                    hex("0001033c 000003e9 0000002b 00100000 0000002a 000004b0 000007d0")};
    uint32_t lengths[] = {1200, 800}, offset = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t out[1228] = {0};
        um_lbmc_layout layout = {.topic_index = 0x3e9,
                                 .sqn = 0x2a + i,
                                 .flags = UM_MESSAGE_FRAGMENT,
                                 .first_sqn = 0x2a,
                                 .offset = offset,
                                 .total = 2000,
                                 .payload_length = lengths[i]};
        CHECK(um_lbmc_write_message(out, &layout) == out + 28);
        CHECK_BYTES(out, head[i].data, 28);
        um_lbmc_message message = decode_message(out, sizeof out, 28 + lengths[i]);
        CHECK_EQ(message.flags, UM_MESSAGE_FRAGMENT);
        CHECK_EQ(message.first_sqn, 0x2a);
        CHECK_EQ(message.offset, offset);
        CHECK_EQ(message.total, 2000);
        CHECK_EQ(message.payload_length, lengths[i]);
        offset += lengths[i];
    }
}

TEST("W1 UM-62 UM-66", "TSNI of two topics")
{
    bytes golden = hex("08200018 ff140002 000003e9 0000002e 000003ea 00000008");
    uint8_t out[24];
    uint32_t topics[] = {0x3e9, 0x3ea}, sqns[] = {0x2e, 8};
    CHECK_EQ(um_lbmc_write_tsni(out, topics, sqns, 2), 24);
    CHECK_BYTES(out, golden.data, 24);
    um_lbmc_message message = decode_message(golden.data, 24, 24);
    CHECK_EQ(message.type, UM_LBMC_CONTROL);
    CHECK_EQ(message.tsni_count, 2);
    CHECK_EQ(um_load_be32(message.tsni + 12), 8);
    CHECK_EQ(message.payload_length, 0);
}

TEST("W1 UM-37", "batch start and end")
{
    bytes golden[] = {hex("0002001b 000003e9 0000002f 00040002 6261746368206669727374"),
                      hex("0002001a 000003e9 00000030 00040001 6261746368206c617374")};
    uint16_t flags[] = {UM_MESSAGE_BATCH_START, UM_MESSAGE_BATCH_END};
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t out[64];
        um_lbmc_layout layout = {
            .topic_index = 0x3e9, .sqn = 0x2f + i, .flags = flags[i], .payload_length = golden[i].length - 16};
        CHECK(um_lbmc_write_message(out, &layout) == out + 16);
        CHECK_BYTES(out, golden[i].data, 16);
        um_lbmc_message message = decode_message(golden[i].data, golden[i].length, golden[i].length);
        CHECK_EQ(message.flags, flags[i]);
        CHECK_EQ(message.payload_length, golden[i].length - 16);
    }
}

TEST("W1", "an application header and an extended option are skipped")
{
    bytes golden = hex("00060038 000003e9 00000031 fe0c8123 0011223344556677 0014c009 00010000"
                       "8899aabbccddeeff01020304 77697468206f7074696f6e73");
    um_lbmc_message message = decode_message(golden.data, golden.length, 56);
    CHECK_EQ(message.payload_length, 12);
    CHECK_BYTES(message.payload, (const uint8_t *)"with options", 12);
    CHECK_EQ(message.extended_id, 9);
    CHECK_EQ(message.extended_subtype, 1);
    CHECK_EQ(message.extended_length, 12);
}

TEST("W1", "control message with an extended option")
{
    bytes golden = hex("08fe0018 ff14c009 00020000 17979cfe362a0000cafef00d");
    uint8_t out[24];
    CHECK_EQ(um_lbmc_write_extended(out, 9, 2, golden.data + 12, 12), 24);
    CHECK_BYTES(out, golden.data, 24);
    um_lbmc_message message = decode_message(golden.data, 24, 24);
    CHECK_EQ(message.extended_id, 9);
    CHECK_EQ(message.extended_subtype, 2);
    CHECK_EQ(message.extended_length, 12);
}

TEST("W1", "filler and unknown options that may be ignored")
{
    bytes filler = hex("08ff0006 0000");
    um_lbmc_message message = decode_message(filler.data, 6, 6);
    CHECK_EQ(message.payload_length, 0);
    CHECK(message.tsni == NULL && message.tsni_count == 0);
    CHECK(message.extended == NULL && message.extended_length == 0);
    bytes ignorable = hex("00630014 000003e9 00000001 00048000 41424344");
    CHECK_EQ(decode_message(ignorable.data, ignorable.length, 20).payload_length, 4);
}

static enum um_dgram_status message_status(const char *text)
{
    bytes b = hex(text);
    um_lbmc_message message;
    uint32_t length;
    uint8_t *copy = malloc(b.length ? b.length : 1);
    memcpy(copy, b.data, b.length);
    enum um_dgram_status status = um_lbmc_decode(copy, b.length, &message, &length);
    free(copy);
    return status;
}

TEST("W1", "malformed messages are refused by reason")
{
    CHECK_EQ(message_status("0000"), UM_DGRAM_SIZE);
    CHECK_EQ(message_status("1000000c 000003e9 00000001"), UM_DGRAM_VERSION);
    CHECK_EQ(message_status("0500000c 000003e9 00000001"), UM_DGRAM_TYPE);
    CHECK_EQ(message_status("0000000d 000003e9 00000001"), UM_DGRAM_SIZE);
    CHECK_EQ(message_status("0000000b 000003e9 00000001"), UM_DGRAM_HDR);
    CHECK_EQ(message_status("00000000 000003e9 00000001"), UM_DGRAM_HDR);
    CHECK_EQ(message_status("08ff0003"), UM_DGRAM_HDR);
    CHECK_EQ(message_status("0063000c 000003e9 00000001"), UM_DGRAM_HDR);          /* no space for the option */
    CHECK_EQ(message_status("00630010 000003e9 00000001 00030000"), UM_DGRAM_HDR); /* shorter than its head */
    CHECK_EQ(message_status("00630010 000003e9 00000001 00058000"), UM_DGRAM_HDR); /* past the message */
    CHECK_EQ(message_status("00630010 000003e9 00000001 00040000"), UM_DGRAM_HDR); /* unknown and not ignorable */
    CHECK_EQ(message_status("0820000c ff0c0002 000003e9 0000002e"), UM_DGRAM_HDR); /* TSNI count */
}

/* A fragment of 4 bytes of payload with these fields. */
static enum um_dgram_status fragment_status(uint32_t sqn, uint32_t first, uint32_t offset, uint32_t total)
{
    char text[200];
    snprintf(text, sizeof text, "00010020 000003e9 %08x 00100000 %08x %08x %08x 41424344", sqn, first, offset, total);
    return message_status(text);
}

TEST("W1", "fragments that contradict themselves are refused")
{
    CHECK_EQ(fragment_status(5, 5, 0, 8), UM_DGRAM_OK);
    CHECK_EQ(fragment_status(6, 5, 4, 8), UM_DGRAM_OK);
    CHECK_EQ(fragment_status(6, 5, 5, 8), UM_DGRAM_HDR); /* beyond the end */
    CHECK_EQ(fragment_status(6, 5, 8, 8), UM_DGRAM_HDR);
    CHECK_EQ(fragment_status(6, 5, UINT32_MAX, UINT32_MAX), UM_DGRAM_HDR);
    CHECK_EQ(fragment_status(6, 5, UINT32_MAX - 4, UINT32_MAX), UM_DGRAM_OK);
    CHECK_EQ(fragment_status(5, 6, 0, 8), UM_DGRAM_HDR); /* before its first */
    CHECK_EQ(fragment_status(1, UINT32_MAX, 8, 16), UM_DGRAM_OK);
    CHECK_EQ(message_status("0001001c 000003e9 00000005 00100000 00000005 00000000 00000008"), UM_DGRAM_HDR);
    CHECK_EQ(message_status("08010014 ff100000 00000005 00000000 00000008"), UM_DGRAM_HDR); /* not a message */
}

TEST("W1", "any layout is read back as it was written")
{
    um_random random = {check_seed()};
    uint8_t *out = malloc(UM_LBMC_MESSAGE_BYTES_MAX);
    for (uint32_t i = 0; i < 20000; i++) {
        um_lbmc_layout layout = {.topic_index = (uint32_t)um_random_next(&random),
                                 .sqn = (uint32_t)um_random_next(&random),
                                 .flags = um_random_next(&random) & 7};
        layout.payload_length = (uint32_t)um_random_below(&random, 65000) + 1;
        if (layout.flags & UM_MESSAGE_FRAGMENT) {
            layout.first_sqn = layout.sqn - (uint32_t)um_random_below(&random, 1u << 31);
            layout.offset = (uint32_t)um_random_below(&random, UINT32_MAX - layout.payload_length);
            layout.total = layout.offset + layout.payload_length;
        }
        uint8_t *payload = um_lbmc_write_message(out, &layout);
        bool fragment = layout.flags & UM_MESSAGE_FRAGMENT;
        uint32_t overhead = um_lbmc_overhead(fragment, (layout.flags & 3) != 0, false);
        CHECK(payload == out + overhead);
        um_lbmc_message m = decode_message(out, overhead + layout.payload_length, overhead + layout.payload_length);
        CHECK_EQ(m.flags, layout.flags);
        CHECK_EQ(m.topic_index, layout.topic_index);
        CHECK_EQ(m.sqn, layout.sqn);
        CHECK_EQ(m.payload_length, layout.payload_length);
        CHECK(m.payload == payload);
        CHECK(!fragment || (m.first_sqn == layout.first_sqn && m.offset == layout.offset && m.total == layout.total));
    }
    free(out);
}

/* ---- status message ---- */

TEST("AE-17 W1", "status message: bytes and round trip")
{
    um_status_message status = {.receiver_id = 0x0102030405060708,
                                .next_sqn = 0x65,
                                .window_bytes = 0x20000,
                                .group_tag = 7,
                                .flags = UM_STATUS_LEAVE};
    uint8_t out[UM_STATUS_DATAGRAM_BYTES];
    CHECK_EQ(um_status_encode(out, SESSION, NAK_PORT, &status), sizeof out);
    bytes golden = hex("00003836 5eed0001 00000065 00000065 80000000 08fe0028 ff24c055 00010000"
                       "01020000 00000065 00020000 00000007 0102030405060708 00000000");
    CHECK_EQ(golden.length, sizeof out);
    CHECK_BYTES(out, golden.data, sizeof out);
    um_packet packet = decode(&golden);
    um_status_message read;
    memset(&read, 0, sizeof read);
    CHECK(um_status_decode(&packet, &read));
    CHECK_EQ(read.receiver_id, status.receiver_id);
    CHECK_EQ(read.next_sqn, status.next_sqn);
    CHECK_EQ(read.window_bytes, status.window_bytes);
    CHECK_EQ(read.group_tag, status.group_tag);
    CHECK_EQ(read.flags, status.flags);
}

TEST("W1", "status message: a loss report is a second control message")
{
    um_status_message status = {.next_sqn = 0x65, .given_up = 0x0102, .unconfirmed = 3};
    uint8_t out[UM_STATUS_DATAGRAM_BYTES_MAX];
    CHECK_EQ(um_status_encode(out, SESSION, NAK_PORT, &status), UM_STATUS_DATAGRAM_BYTES + UM_LOSS_REPORT_LBMC_BYTES);
    bytes golden = hex("00003836 5eed0001 00000065 00000065 80000000 08fe0028 ff24c055 00010000"
                       "01000000 00000065 00000000 00000000 0000000000000000 00000000"
                       "08fe0018 ff14c055 00090000 01000000 00000102 00000003");
    CHECK_BYTES(out, golden.data, golden.length);
    um_packet packet = decode(&golden);
    um_status_message read;
    CHECK(um_status_decode(&packet, &read));
    CHECK_EQ(read.given_up, 0x0102);
    CHECK_EQ(read.unconfirmed, 3);
    golden.data[golden.length - UM_LOSS_REPORT_DATA_BYTES] = 2; /* an unknown version */
    CHECK(um_status_decode(&packet, &read));
    CHECK_EQ(read.given_up, 0);
}

TEST("W1", "repair report: bytes, and lengths that are refused")
{
    bytes golden = hex("08fe0020 ff1cc055 000c0000 01000000 00000064 0000001e ffffffff 00000000");
    um_repair_report report = {.count = 2, .entries = {{100, 30999}, {UINT32_MAX, 0}}}, read;
    uint8_t out[UM_REPAIR_REPORT_BYTES_MAX];
    CHECK_EQ(um_repair_report_encode(out, &report), golden.length);
    CHECK_BYTES(out, golden.data, golden.length);
    um_lbmc_message message = decode_message(golden.data, golden.length, golden.length);
    CHECK(um_repair_report_decode(&message, &read));
    CHECK_EQ(read.count, 2);
    CHECK_EQ(read.entries[0].sqn, 100);
    CHECK_EQ(read.entries[0].age_ns, 30000);
    CHECK_EQ(read.entries[1].sqn, UINT32_MAX);
    for (uint32_t length = 0; length < 255 - UM_LBMC_EXTENDED_BYTES; length++) {
        uint8_t data[255] = {1}, option[UM_LBMC_CONTROL_BYTES + 255];
        uint32_t bytes = um_lbmc_write_extended(option, UM_LBMC_OWN_ID, UM_REPAIR_REPORT_OPTION_SUBTYPE, data, length);
        message = decode_message(option, bytes, bytes);
        bool is_whole = length >= 12 && length % 8 == 4 && length <= 4 + 8 * UM_REPAIR_REPORT_ENTRIES_MAX;
        CHECK_EQ(um_repair_report_decode(&message, &read), is_whole);
    }
}

TEST("UM-50 W1", "status message: a path probe that has arrived takes four more bytes")
{
    um_status_message status = {.receiver_id = 7, .probe_round = 3, .probe_bytes = 1472}, read = {0};
    bytes written = {.length = 0};
    written.length = um_status_encode(written.data, SESSION, NAK_PORT, &status);
    CHECK_EQ(written.length, UM_STATUS_DATAGRAM_BYTES + 4);
    CHECK_EQ(um_load_be32(written.data + written.length - 4), 3u << 16 | 1472);
    um_packet packet = decode(&written);
    CHECK(um_status_decode(&packet, &read));
    CHECK_EQ(read.probe_round, 3);
    CHECK_EQ(read.probe_bytes, 1472);
}

TEST("", "anything else in a DATA datagram is not a status message")
{
    const char *others[] = {
        "",
        "0000000c 000003e9 00000001",
        "08ff0004",
        "08fe0018 ff14c009 00020000 17979cfe362a0000cafef00d",
        "08fe0028 ff24c055 00020000 01020000 00000065 00020000 00000007 0102030405060708 00000000",
        "08fe0028 ff24c055 00010000 02020000 00000065 00020000 00000007 0102030405060708 00000000",
        "08fe0024 ff20c055 00010000 01020000 00000065 00020000 00000007 0102030405060708",
        "08fe002a ff26c055 00010000 01020000 00000065 00020000 00000007 0102030405060708 000000000000"};
    for (uint32_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, DATA_HEADER("00000065") "%s", others[i]);
        bytes b = hex(text);
        um_packet packet = decode(&b);
        um_status_message status;
        CHECK(!um_status_decode(&packet, &status));
    }
}

/* Appends a datagram of two messages with `payload_bytes` each. */
static void add_datagram(bytes *run, uint32_t session_id, uint32_t sqn, uint32_t payload_bytes)
{
    um_lbtrm_write_data(run->data + run->length, session_id, NAK_PORT, sqn, 1, false);
    run->length += UM_LBTRM_DATA_BYTES;
    for (uint32_t i = 0; i < 2; i++) {
        const um_lbmc_layout layout = {.topic_index = 7, .sqn = 2 * sqn + i, .payload_length = payload_bytes};
        uint8_t *payload = um_lbmc_write_message(run->data + run->length, &layout);
        memset(payload, 0, payload_bytes); /* like the first bytes of a header */
        run->length = (uint32_t)(payload - run->data) + payload_bytes;
    }
}

TEST("", "finds the length of each datagram of a run; a single datagram, or other data, is no run")
{
    bytes run = {.length = 0};
    add_datagram(&run, SESSION, 1, 300);
    uint32_t segment = run.length;
    CHECK_EQ(um_lbtrm_run_segment(run.data, run.length), 0);
    add_datagram(&run, SESSION, 2, 300);
    add_datagram(&run, SESSION, 3, 10);
    CHECK_EQ(um_lbtrm_run_segment(run.data, run.length), segment);
    for (uint32_t length = 0; length < run.length; length++) { /* any captured part of it */
        uint8_t *copy = malloc(length + 1);
        CHECK(copy != NULL);
        memcpy(copy + 1, run.data, length); /* AddressSanitizer sees one byte too many */
        CHECK_EQ(um_lbtrm_run_segment(copy + 1, length), length > segment + UM_LBTRM_DATA_BYTES ? segment : 0);
        free(copy);
    }
    run.length = segment;
    add_datagram(&run, SESSION + 1, 2, 300); /* datagrams of two sessions are no run */
    CHECK_EQ(um_lbtrm_run_segment(run.data, run.length), 0);
    uint8_t status[UM_LBTRM_SM_BYTES];
    CHECK_EQ(um_lbtrm_run_segment(status, um_lbtrm_write_sm(status, SESSION, NAK_PORT, 1, 2, 1)), 0);
}

CHECK_MAIN

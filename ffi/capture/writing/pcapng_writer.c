#include "capture/writing/pcapng_writer.h"

#include <string.h>

enum {
    TEXT_MAX_BYTES = 1024,

    BLOCK_SECTION = 0x0A0D0D0A,
    BLOCK_INTERFACE = 1,
    BLOCK_STATISTICS = 5,
    BLOCK_PACKET = 6,
    BYTE_ORDER_MAGIC = 0x1A2B3C4D,

    OPTION_END = 0,
    OPTION_SECTION_APPLICATION = 4,
    OPTION_INTERFACE_NAME = 2,
    OPTION_INTERFACE_RESOLUTION = 9,
    OPTION_INTERFACE_FILTER = 11,
    OPTION_STATISTICS_START = 2,
    OPTION_STATISTICS_END = 3,
    OPTION_STATISTICS_RECEIVED = 4,
    OPTION_STATISTICS_DROPPED = 5,
    OPTION_PACKET_FLAGS = 2,
    OPTION_PACKET_DROPS = 4,
    OPTION_PACKET_QUEUE = 6,
    OPTION_PACKET_VERDICT = 7,
    VERDICT_XDP = 2,
    NANOSECONDS = 9, /* unit of timestamps: 10 to the power of minus this */
};

/* ---- writing a block ---- */

static uint32_t padded(uint32_t bytes)
{
    return (bytes + 3) & ~3u;
}

static void put(um_pcapng_writer *writer, const void *data, size_t bytes)
{
    if (bytes > 0)
        memcpy(writer->file.unit + writer->file.used_bytes, data, bytes);
    writer->file.used_bytes += bytes;
}

static void put_u16(um_pcapng_writer *writer, uint16_t value)
{
    put(writer, &value, sizeof value);
}

static void put_u32(um_pcapng_writer *writer, uint32_t value)
{
    put(writer, &value, sizeof value);
}

/* Times are two words, the upper one first. */
static void put_time(um_pcapng_writer *writer, int64_t time_ns)
{
    put_u32(writer, (uint32_t)((uint64_t)time_ns >> 32));
    put_u32(writer, (uint32_t)time_ns);
}

static void put_padding(um_pcapng_writer *writer, uint32_t bytes)
{
    static const uint8_t nothing[4];
    put(writer, nothing, padded(bytes) - bytes);
}

static void put_option(um_pcapng_writer *writer, uint16_t code, const void *value, uint32_t bytes)
{
    put_u16(writer, code);
    put_u16(writer, (uint16_t)bytes);
    put(writer, value, bytes);
    put_padding(writer, bytes);
}

static void put_text_option(um_pcapng_writer *writer, uint16_t code, const char *text)
{
    if (text != NULL && text[0] != '\0')
        put_option(writer, code, text, (uint32_t)strnlen(text, TEXT_MAX_BYTES));
}

static void put_time_option(um_pcapng_writer *writer, uint16_t code, int64_t time_ns)
{
    put_u16(writer, code);
    put_u16(writer, sizeof time_ns);
    put_time(writer, time_ns);
}

/* Stores and returns the first error of writing. */
static int note_error(um_pcapng_writer *writer)
{
    writer->error = writer->file.error;
    writer->flushed_count = writer->file.flushed.count;
    if (writer->error != 0)
        writer->file_bytes = writer->file.flushed.bytes;
    return writer->error;
}

/* Makes space for any block. */
static void make_space(um_pcapng_writer *writer)
{
    um_unit_file_make_space(&writer->file);
    note_error(writer);
}

/* Starts a block in the space made; returns its offset. */
static size_t begin_block(um_pcapng_writer *writer, uint32_t type)
{
    size_t start = writer->file.used_bytes;
    put_u32(writer, type);
    put_u32(writer, 0);
    return start;
}

/* The length of a block is stored at both ends. */
static void end_block(um_pcapng_writer *writer, size_t start)
{
    uint32_t bytes = (uint32_t)(writer->file.used_bytes + sizeof bytes - start);
    memcpy(writer->file.unit + start + 4, &bytes, sizeof bytes);
    put_u32(writer, bytes);
    writer->file_bytes += bytes;
    um_unit_file_mark(&writer->file, writer->packet_count);
}

/* ---- blocks ---- */

static void write_section(um_pcapng_writer *writer)
{
    make_space(writer);
    size_t start = begin_block(writer, BLOCK_SECTION);
    put_u32(writer, BYTE_ORDER_MAGIC);
    put_u16(writer, 1);
    put_u16(writer, 0);
    put_u32(writer, UINT32_MAX); /* the section's length is not known */
    put_u32(writer, UINT32_MAX);
    put_text_option(writer, OPTION_SECTION_APPLICATION, "umstack");
    put_option(writer, OPTION_END, NULL, 0);
    end_block(writer, start);
}

void um_pcapng_add_interface(um_pcapng_writer *writer, const char *name, uint16_t link_type, uint32_t snap_bytes,
                             const char *filter)
{
    uint8_t resolution = NANOSECONDS;
    make_space(writer);
    size_t start = begin_block(writer, BLOCK_INTERFACE);
    put_u16(writer, link_type);
    put_u16(writer, 0);
    put_u32(writer, snap_bytes);
    put_text_option(writer, OPTION_INTERFACE_NAME, name);
    put_option(writer, OPTION_INTERFACE_RESOLUTION, &resolution, sizeof resolution);
    if (filter != NULL && filter[0] != '\0') {
        uint8_t text[TEXT_MAX_BYTES + 1] = {0}; /* first octet 0: the text of a filter follows */
        size_t bytes = strnlen(filter, TEXT_MAX_BYTES);
        memcpy(text + 1, filter, bytes);
        put_option(writer, OPTION_INTERFACE_FILTER, text, (uint32_t)bytes + 1);
    }
    put_option(writer, OPTION_END, NULL, 0);
    end_block(writer, start);
}

static void put_packet_options(um_pcapng_writer *writer, const um_pcapng_packet *packet)
{
    if (packet->direction != UM_PCAPNG_NO_DIRECTION) {
        uint32_t flags = packet->direction;
        put_option(writer, OPTION_PACKET_FLAGS, &flags, sizeof flags);
    }
    if (packet->drop_count > 0)
        put_option(writer, OPTION_PACKET_DROPS, &packet->drop_count, sizeof packet->drop_count);
    if (packet->queue >= 0) {
        uint32_t queue = (uint32_t)packet->queue;
        put_option(writer, OPTION_PACKET_QUEUE, &queue, sizeof queue);
    }
    if (packet->verdict >= 0) {
        uint8_t verdict[1 + sizeof packet->verdict] = {VERDICT_XDP};
        memcpy(verdict + 1, &packet->verdict, sizeof packet->verdict);
        put_option(writer, OPTION_PACKET_VERDICT, verdict, sizeof verdict);
    }
    put_option(writer, OPTION_END, NULL, 0);
}

static const size_t packet_offset = 7 * sizeof(uint32_t); /* offset within its block */

uint8_t *um_pcapng_packet_at(um_pcapng_writer *writer)
{
    make_space(writer);
    return writer->file.unit + writer->file.used_bytes + packet_offset;
}

void um_pcapng_add_packet(um_pcapng_writer *writer, const um_pcapng_packet *packet, uint32_t bytes)
{
    size_t start = begin_block(writer, BLOCK_PACKET);
    put_u32(writer, packet->interface_id);
    put_time(writer, packet->time_ns);
    put_u32(writer, bytes);
    put_u32(writer, packet->wire_bytes);
    writer->file.used_bytes += bytes;
    put_padding(writer, bytes);
    put_packet_options(writer, packet);
    writer->packet_count++;
    end_block(writer, start);
}

void um_pcapng_write(um_pcapng_writer *writer, const um_pcapng_packet *packet, const uint8_t *head, uint32_t head_bytes,
                     const uint8_t *body, uint32_t body_bytes)
{
    uint8_t *at = um_pcapng_packet_at(writer);
    if (head_bytes > 0)
        memcpy(at, head, head_bytes);
    if (body_bytes > 0)
        memcpy(at + head_bytes, body, body_bytes);
    um_pcapng_add_packet(writer, packet, head_bytes + body_bytes);
}

void um_pcapng_write_statistics(um_pcapng_writer *writer, const um_pcapng_statistics *statistics)
{
    make_space(writer);
    size_t start = begin_block(writer, BLOCK_STATISTICS);
    put_u32(writer, statistics->interface_id);
    put_time(writer, statistics->end_ns);
    put_time_option(writer, OPTION_STATISTICS_START, statistics->start_ns);
    put_time_option(writer, OPTION_STATISTICS_END, statistics->end_ns);
    put_option(writer, OPTION_STATISTICS_RECEIVED, &statistics->received_count, sizeof(uint64_t));
    put_option(writer, OPTION_STATISTICS_DROPPED, &statistics->dropped_count, sizeof(uint64_t));
    put_option(writer, OPTION_END, NULL, 0);
    end_block(writer, start);
}

/* ---- the file ---- */

int um_pcapng_open(um_pcapng_writer *writer, const char *path)
{
    *writer = (um_pcapng_writer){0};
    int result = um_unit_file_open(&writer->file, path);
    if (result == 0)
        write_section(writer);
    return result;
}

int um_pcapng_flush(um_pcapng_writer *writer)
{
    um_unit_file_flush(&writer->file);
    return note_error(writer);
}

int um_pcapng_close(um_pcapng_writer *writer)
{
    um_unit_file_close(&writer->file);
    return note_error(writer);
}

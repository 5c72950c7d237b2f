/* One file, because the formats share the reader's state, its findings and the checks of a packet. */
#include "capture/reading/container.h"

enum {
    PCAP_HEADER_BYTES = 24,
    PCAP_RECORD_BYTES = 16,
    BLOCK_BYTES = 12, /* type and both lengths */
    BLOCK_HEAD_BYTES = 8,
    OPTION_HEAD_BYTES = 4,
    SECTION_BYTES = 28,
    DESCRIPTION_BYTES = 20,
    ENHANCED_BYTES = 32,
    OLD_PACKET_BYTES = 32,
    SIMPLE_BYTES = 16,
    STATISTICS_BYTES = 24,
};

enum {
    PCAP_MAGIC_MICRO = 0xa1b2c3d4,
    PCAP_MAGIC_NANO = 0xa1b23c4d,
    BYTE_ORDER_MAGIC = 0x1a2b3c4d,
};

enum block_type {
    BLOCK_DESCRIPTION = 1,
    BLOCK_OLD_PACKET = 2,
    BLOCK_SIMPLE = 3,
    BLOCK_NAMES = 4,
    BLOCK_STATISTICS = 5,
    BLOCK_ENHANCED = 6,
    BLOCK_JOURNAL = 9,
    BLOCK_SECRETS = 10,
    BLOCK_CUSTOM = 0x0bad,
    BLOCK_CUSTOM_NO_COPY = 0x40000bad,
    BLOCK_SECTION = 0x0a0d0d0a,
};

enum option_code {
    OPTION_END = 0,
    OPTION_NAME = 2,
    OPTION_RESOLUTION = 9,
    OPTION_OFFSET = 14,
    OPTION_INTERFACE_DROPS = 5,
    OPTION_SYSTEM_DROPS = 7,
    OPTION_PACKET_DROPS = 4,
    OPTION_PACKET_QUEUE = 6,
    OPTION_PACKET_VERDICT = 7,
};

enum { VERDICT_XDP = 2, XDP_VERDICT_BYTES = 9 };

typedef struct block {
    uint32_t type;
    uint32_t bytes;
    const uint8_t *data;
} block;

static uint16_t get16(const um_capture_reader *reader, const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return reader->swapped ? __builtin_bswap16(v) : v;
}

static uint32_t get32(const um_capture_reader *reader, const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return reader->swapped ? __builtin_bswap32(v) : v;
}

static uint64_t get64(const um_capture_reader *reader, const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return reader->swapped ? __builtin_bswap64(v) : v;
}

void um_capture_reader_init(um_capture_reader *reader)
{
    memset(reader, 0, sizeof *reader);
}

int um_capture_add_interface(um_capture_reader *reader, const um_capture_interface *interface)
{
    if (reader->interface_count == UM_CAPTURE_INTERFACES_MAX)
        return -ENOSPC;
    um_capture_interface *added = &reader->interfaces[reader->interface_count++];
    *added = *interface;
    added->last_time_ns = INT64_MIN;
    return 0;
}

/* Times. Arithmetic is unsigned: a damaged file may hold any number, which makes only its own times wrong. */

static uint64_t power_of_ten(unsigned exponent)
{
    uint64_t power = 1;
    while (exponent-- > 0)
        power *= 10;
    return power;
}

static int64_t time_of(const um_capture_interface *interface, uint64_t ticks)
{
    unsigned exponent = interface->resolution & 0x7f;
    uint64_t ns;
    if (UM_UNLIKELY(interface->resolution & 0x80))
        ns = exponent > 63 ? 0 : (uint64_t)((unsigned __int128)ticks * 1000000000 >> exponent);
    else if (exponent == 6)
        ns = ticks * 1000;
    else if (exponent <= 9)
        ns = ticks * power_of_ten(9 - exponent);
    else
        ns = exponent > 28 ? 0 : ticks / power_of_ten(exponent - 9);
    return (int64_t)(ns + (uint64_t)interface->offset_s * 1000000000);
}

static void note_time(um_capture_reader *reader, um_capture_interface *interface, int64_t time_ns, uint64_t position)
{
    int64_t before_ns = interface->last_time_ns;
    interface->last_time_ns = time_ns;
    if (UM_LIKELY(time_ns >= before_ns))
        return;
    uint64_t back_ns = (uint64_t)before_ns - (uint64_t)time_ns;
    if (back_ns < UM_CAPTURE_CLOCK_STEP_NS)
        return;
    um_capture_findings *findings = &reader->findings;
    if (findings->clock_step_count++ == 0)
        findings->clock_step_position = position;
    int64_t step_ns = back_ns > INT64_MAX ? INT64_MAX : (int64_t)back_ns;
    if (step_ns > findings->clock_step_max_ns)
        findings->clock_step_max_ns = step_ns;
}

/* A length on the wire that is below the captured one, or that no link carries, is damage: the captured one counts. */
static void correct_length(um_capture_reader *reader, um_capture_packet *packet, uint64_t base)
{
    if (UM_LIKELY(packet->frame_bytes >= packet->captured_bytes && packet->frame_bytes <= UM_CAPTURE_RECORD_BYTES_MAX))
        return;
    packet->frame_bytes = packet->captured_bytes;
    if (reader->findings.wrong_length_count++ == 0)
        reader->findings.wrong_length_position = base + packet->position;
}

static void note_packet(um_capture_reader *reader, um_capture_packet *packet, uint64_t base)
{
    reader->findings.packet_count++;
    correct_length(reader, packet, base);
    reader->findings.cut_count += packet->captured_bytes < packet->frame_bytes;
    if (packet->is_timed)
        note_time(reader, &reader->interfaces[packet->interface], packet->time_ns, base + packet->position);
    else
        reader->findings.timeless_count++;
}

/* The headers of two records are a packet apart, too far for the processor's prefetcher. Runs of packets have one size,
 * which predicts the next headers; a wrong prediction costs nothing. */
static inline void expect_records(const uint8_t *record, uint64_t bytes)
{
    enum { RECORDS_AHEAD = 6, LINES = 3 };
    uintptr_t ahead = (uintptr_t)record + RECORDS_AHEAD * bytes;
    for (int line = 0; line < LINES; line++)
        __builtin_prefetch((const void *)(ahead + (uintptr_t)line * UM_CACHE_LINE_BYTES));
}

/* Returns true for the head of a record that was reserved and not written. */
static bool is_zeros(const uint8_t *head, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) {
        if (head[i] != 0)
            return false;
    }
    return true;
}

/* pcap */

static enum um_capture_step open_pcap(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t *at)
{
    if (length - *at < PCAP_HEADER_BYTES)
        return UM_CAPTURE_INCOMPLETE;
    const uint8_t *header = data + *at;
    bool nanoseconds = get32(reader, header) == PCAP_MAGIC_NANO;
    /* The upper half of the link type word is set if frames end with a check sequence. */
    um_capture_interface interface = {.link_type = (int32_t)(get32(reader, header + 20) & 0xffff),
                                      .snap_bytes = get32(reader, header + 16),
                                      .resolution = nanoseconds ? 9 : 6};
    reader->format = UM_CAPTURE_PCAP;
    reader->findings.section_count = 1;
    *at += PCAP_HEADER_BYTES;
    return um_capture_add_interface(reader, &interface) == 0 ? UM_CAPTURE_PACKET : UM_CAPTURE_DAMAGED;
}

static enum um_capture_step next_pcap(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t *at,
                                      um_capture_packet *packet)
{
    if (length - *at < PCAP_RECORD_BYTES)
        return UM_CAPTURE_INCOMPLETE;
    const uint8_t *record = data + *at;
    uint32_t captured = get32(reader, record + 8);
    if (UM_UNLIKELY(captured == 0) && is_zeros(record, PCAP_RECORD_BYTES))
        return UM_CAPTURE_ZEROS;
    if (captured > UM_CAPTURE_RECORD_BYTES_MAX)
        return UM_CAPTURE_DAMAGED;
    if (length - *at - PCAP_RECORD_BYTES < captured)
        return UM_CAPTURE_INCOMPLETE;
    const um_capture_interface *interface = &reader->interfaces[0];
    uint64_t fraction = get32(reader, record + 4);
    *packet = (um_capture_packet){
        .position = *at,
        .data = record + PCAP_RECORD_BYTES,
        .captured_bytes = captured,
        .frame_bytes = get32(reader, record + 12),
        .link_type = interface->link_type,
        .is_timed = true,
        .time_ns = (int64_t)get32(reader, record) * 1000000000 +
                   (int64_t)(interface->resolution == 9 ? fraction : fraction * 1000),
    };
    uint64_t record_bytes = PCAP_RECORD_BYTES + (uint64_t)captured;
    expect_records(record, record_bytes);
    *at += record_bytes;
    return UM_CAPTURE_PACKET;
}

/* pcapng */

static enum um_capture_step read_block(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t at,
                                       block *found)
{
    if (length - at < BLOCK_BYTES)
        return UM_CAPTURE_INCOMPLETE;
    found->data = data + at;
    memcpy(&found->type, found->data, 4);
    if (UM_UNLIKELY(found->type == 0) && is_zeros(found->data, BLOCK_BYTES))
        return UM_CAPTURE_ZEROS;
    /* A section starts with the same bytes in either byte order; the next word shows the order. */
    if (found->type == BLOCK_SECTION) {
        uint32_t magic;
        memcpy(&magic, found->data + BLOCK_HEAD_BYTES, 4);
        if (magic != BYTE_ORDER_MAGIC && magic != __builtin_bswap32(BYTE_ORDER_MAGIC))
            return UM_CAPTURE_DAMAGED;
        reader->swapped = magic != BYTE_ORDER_MAGIC;
    }
    found->type = get32(reader, found->data);
    found->bytes = get32(reader, found->data + 4);
    if (found->bytes < BLOCK_BYTES || found->bytes % 4 != 0 || found->bytes > UM_CAPTURE_RECORD_BYTES_MAX)
        return UM_CAPTURE_DAMAGED;
    if (length - at < found->bytes)
        return UM_CAPTURE_INCOMPLETE;
    return get32(reader, found->data + found->bytes - 4) == found->bytes ? UM_CAPTURE_PACKET : UM_CAPTURE_DAMAGED;
}

/* Reads the option at *at of a block; returns false at the end of the options. */
static bool next_option(const um_capture_reader *reader, const block *in, uint32_t *at, uint16_t *code,
                        const uint8_t **value, uint32_t *value_bytes)
{
    uint32_t end = in->bytes - 4;
    if (*at + OPTION_HEAD_BYTES > end)
        return false;
    *code = get16(reader, in->data + *at);
    *value_bytes = get16(reader, in->data + *at + 2);
    *value = in->data + *at + OPTION_HEAD_BYTES;
    if (*code == OPTION_END || *value_bytes > end - *at - OPTION_HEAD_BYTES)
        return false;
    *at += OPTION_HEAD_BYTES + (uint32_t)um_align_up(*value_bytes, 4);
    return true;
}

static void describe(const um_capture_reader *reader, const block *in, um_capture_interface *interface)
{
    *interface = (um_capture_interface){
        .link_type = get16(reader, in->data + 8), .snap_bytes = get32(reader, in->data + 12), .resolution = 6};
    uint32_t at = DESCRIPTION_BYTES - 4, value_bytes;
    uint16_t code;
    const uint8_t *value;
    while (next_option(reader, in, &at, &code, &value, &value_bytes)) {
        if (code == OPTION_NAME)
            memcpy(interface->name, value,
                   value_bytes < UM_CAPTURE_NAME_BYTES ? value_bytes : UM_CAPTURE_NAME_BYTES - 1);
        else if (code == OPTION_RESOLUTION && value_bytes >= 1)
            interface->resolution = value[0];
        else if (code == OPTION_OFFSET && value_bytes >= 8)
            interface->offset_s = (int64_t)get64(reader, value);
    }
}

/* Returns the interface that a block refers to, or NULL. */
static um_capture_interface *interface_of(um_capture_reader *reader, uint32_t id)
{
    return id < reader->interface_count - reader->section_first ? &reader->interfaces[reader->section_first + id]
                                                                : NULL;
}

static void take_statistics(um_capture_reader *reader, const block *in)
{
    um_capture_interface *interface = interface_of(reader, get32(reader, in->data + 8));
    if (interface == NULL)
        return;
    uint64_t drops = 0;
    uint32_t at = STATISTICS_BYTES - 4, value_bytes;
    uint16_t code;
    const uint8_t *value;
    while (next_option(reader, in, &at, &code, &value, &value_bytes)) {
        if ((code == OPTION_INTERFACE_DROPS || code == OPTION_SYSTEM_DROPS) && value_bytes >= 8)
            drops += get64(reader, value);
    }
    /* Each block holds the total since the start. */
    interface->drop_count = drops;
    interface->has_statistics = true;
}

static void note_unknown_block(um_capture_reader *reader, uint32_t type, uint64_t position)
{
    um_capture_findings *findings = &reader->findings;
    if (findings->unknown_block_count++ > 0)
        return;
    findings->unknown_block_type = type;
    findings->unknown_block_position = position;
}

/* Processes a block that is not a packet. Returns false if it makes the rest unreadable. */
static bool take_in(um_capture_reader *reader, const block *in, uint64_t position)
{
    um_capture_interface interface;
    switch (in->type) {
    case BLOCK_SECTION:
        reader->section_first = reader->interface_count;
        reader->findings.section_count++;
        return in->bytes >= SECTION_BYTES;
    case BLOCK_DESCRIPTION:
        if (in->bytes < DESCRIPTION_BYTES)
            return false;
        describe(reader, in, &interface);
        if (um_capture_add_interface(reader, &interface) != 0)
            reader->findings.left_out_interface_count++;
        return true;
    case BLOCK_STATISTICS:
        if (in->bytes >= STATISTICS_BYTES)
            take_statistics(reader, in);
        return true;
    case BLOCK_NAMES:
    case BLOCK_JOURNAL:
    case BLOCK_SECRETS:
    case BLOCK_CUSTOM:
    case BLOCK_CUSTOM_NO_COPY:
        return true;
    default:
        note_unknown_block(reader, in->type, position);
        return true;
    }
}

static void set_interface(um_capture_reader *reader, um_capture_packet *packet, uint32_t id)
{
    const um_capture_interface *interface = interface_of(reader, id);
    packet->interface = interface == NULL ? -1 : (int32_t)(interface - reader->interfaces);
    packet->link_type = interface == NULL ? -1 : interface->link_type;
}

static void set_time(um_capture_reader *reader, um_capture_packet *packet, const uint8_t *at)
{
    if (packet->interface < 0)
        return;
    uint64_t ticks = (uint64_t)get32(reader, at) << 32 | get32(reader, at + 4);
    packet->is_timed = true;
    packet->time_ns = time_of(&reader->interfaces[packet->interface], ticks);
}

static enum um_capture_verdict verdict_of(const um_capture_reader *reader, const uint8_t *value, uint32_t value_bytes)
{
    if (value_bytes != XDP_VERDICT_BYTES || value[0] != VERDICT_XDP)
        return UM_CAPTURE_OTHER_VERDICT;
    uint64_t action = get64(reader, value + 1);
    return action <= UM_CAPTURE_XDP_REDIRECT - UM_CAPTURE_XDP_ABORTED
               ? (enum um_capture_verdict)(UM_CAPTURE_XDP_ABORTED + action)
               : UM_CAPTURE_OTHER_VERDICT;
}

static void set_drops(um_capture_reader *reader, um_capture_packet *packet, uint64_t drop_count)
{
    packet->has_drop_count = true;
    packet->drop_count = drop_count;
    if (packet->interface >= 0)
        reader->interfaces[packet->interface].packet_drop_count += drop_count;
}

static void read_packet_options(um_capture_reader *reader, const block *in, um_capture_packet *packet)
{
    uint32_t at = ENHANCED_BYTES - 4 + (uint32_t)um_align_up(packet->captured_bytes, 4), value_bytes;
    uint16_t code;
    const uint8_t *value;
    while (next_option(reader, in, &at, &code, &value, &value_bytes)) {
        if (code == OPTION_PACKET_DROPS && value_bytes == 8)
            set_drops(reader, packet, get64(reader, value));
        else if (code == OPTION_PACKET_QUEUE && value_bytes == 4)
            packet->queue_number = (uint64_t)get32(reader, value) + 1;
        else if (code == OPTION_PACKET_VERDICT && value_bytes >= 1)
            packet->verdict = verdict_of(reader, value, value_bytes);
    }
}

static bool read_timed_packet(um_capture_reader *reader, const block *in, um_capture_packet *packet)
{
    if (in->bytes < ENHANCED_BYTES)
        return false;
    bool old = in->type == BLOCK_OLD_PACKET;
    set_interface(reader, packet, old ? get16(reader, in->data + 8) : get32(reader, in->data + 8));
    set_time(reader, packet, in->data + 12);
    packet->data = in->data + ENHANCED_BYTES - 4;
    packet->captured_bytes = get32(reader, in->data + 20);
    packet->frame_bytes = get32(reader, in->data + 24);
    if (packet->captured_bytes > in->bytes - ENHANCED_BYTES)
        return false;
    if (!old)
        read_packet_options(reader, in, packet);
    return true;
}

static bool read_simple_packet(um_capture_reader *reader, const block *in, um_capture_packet *packet)
{
    if (in->bytes < SIMPLE_BYTES)
        return false;
    set_interface(reader, packet, 0);
    packet->data = in->data + SIMPLE_BYTES - 4;
    packet->frame_bytes = get32(reader, in->data + 8);
    packet->captured_bytes = packet->frame_bytes;
    if (packet->interface >= 0) {
        uint32_t snap_bytes = reader->interfaces[packet->interface].snap_bytes;
        if (snap_bytes != 0 && snap_bytes < packet->captured_bytes)
            packet->captured_bytes = snap_bytes;
    }
    return packet->captured_bytes <= in->bytes - SIMPLE_BYTES;
}

static enum um_capture_step next_pcapng(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t base,
                                        uint64_t until, uint64_t *at, um_capture_packet *packet)
{
    while (*at < until) {
        block found;
        enum um_capture_step step = read_block(reader, data, length, *at, &found);
        if (step != UM_CAPTURE_PACKET)
            return step;
        bool timed = found.type == BLOCK_ENHANCED || found.type == BLOCK_OLD_PACKET;
        if (timed || found.type == BLOCK_SIMPLE) {
            *packet = (um_capture_packet){.position = *at};
            if (!(timed ? read_timed_packet(reader, &found, packet) : read_simple_packet(reader, &found, packet)))
                return UM_CAPTURE_DAMAGED;
            expect_records(found.data, found.bytes);
            *at += found.bytes;
            return UM_CAPTURE_PACKET;
        }
        if (!take_in(reader, &found, base + *at))
            return UM_CAPTURE_DAMAGED;
        *at += found.bytes;
    }
    return UM_CAPTURE_ENDED;
}

/* ERF has no file header. */
static bool open_erf(um_capture_reader *reader, const uint8_t *data)
{
    um_erf_header header;
    if (!um_erf_read(data, &header))
        return false;
    um_capture_interface interface = {.link_type = UM_ERF_LINK_TYPE, .resolution = 9};
    for (int i = 0; i < UM_ERF_INTERFACES; i++)
        um_capture_add_interface(reader, &interface);
    reader->format = UM_CAPTURE_ERF;
    reader->findings.section_count = 1;
    return true;
}

static enum um_capture_step next_erf(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t until,
                                     uint64_t *at, um_capture_packet *packet)
{
    while (*at < until) {
        const uint8_t *record = data + *at;
        um_erf_header header;
        if (length - *at < UM_ERF_HEADER_BYTES)
            return UM_CAPTURE_INCOMPLETE;
        if (!um_erf_read(record, &header))
            return is_zeros(record, UM_ERF_HEADER_BYTES) ? UM_CAPTURE_ZEROS : UM_CAPTURE_DAMAGED;
        if (length - *at < header.record_bytes)
            return UM_CAPTURE_INCOMPLETE;
        *packet = (um_capture_packet){.position = *at,
                                      .data = record,
                                      .captured_bytes = header.record_bytes,
                                      .frame_bytes = header.record_bytes,
                                      .interface = header.interface,
                                      .link_type = UM_ERF_LINK_TYPE,
                                      .is_timed = true,
                                      .time_ns = header.time_ns};
        if (header.lost_count > 0)
            set_drops(reader, packet, header.lost_count);
        *at += header.record_bytes;
        if (!um_erf_is_skipped(&header))
            return UM_CAPTURE_PACKET;
    }
    return UM_CAPTURE_ENDED;
}

/* Sets the content of an ERF record. */
static void open_record(const um_capture_reader *reader, um_capture_packet *packet)
{
    int64_t time_ns;
    if (!um_erf_open(packet, &time_ns) || !(reader->hardware_times || reader->format == UM_CAPTURE_ERF))
        return;
    packet->is_timed = packet->interface >= 0;
    packet->time_ns = time_ns;
    packet->has_hardware_time = true;
}

void um_capture_retime(um_capture_reader *reader, um_capture_packet *packet, const um_captured_frame *frame)
{
    if (UM_LIKELY(!reader->hardware_times) || packet->has_hardware_time || packet->interface < 0)
        return;
    if (um_trailer_time(packet, frame, &packet->time_ns))
        packet->is_timed = true;
    else
        reader->findings.no_hardware_time_count++;
}

/* Detects the format from the first bytes. */
static enum um_capture_step open_file(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t *at)
{
    uint32_t magic;
    if (length - *at < sizeof magic)
        return UM_CAPTURE_INCOMPLETE;
    memcpy(&magic, data + *at, sizeof magic);
    if (magic == BLOCK_SECTION) {
        reader->format = UM_CAPTURE_PCAPNG;
        return UM_CAPTURE_PACKET;
    }
    uint32_t turned = __builtin_bswap32(magic);
    if (magic != PCAP_MAGIC_MICRO && magic != PCAP_MAGIC_NANO && turned != PCAP_MAGIC_MICRO &&
        turned != PCAP_MAGIC_NANO) {
        if (length - *at < UM_ERF_HEADER_BYTES)
            return um_erf_may_start(data + *at, length - *at) ? UM_CAPTURE_INCOMPLETE : UM_CAPTURE_FOREIGN;
        return open_erf(reader, data + *at) ? UM_CAPTURE_PACKET : UM_CAPTURE_FOREIGN;
    }
    reader->swapped = magic != PCAP_MAGIC_MICRO && magic != PCAP_MAGIC_NANO;
    return open_pcap(reader, data, length, at);
}

enum um_capture_step um_capture_next(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t base,
                                     uint64_t until, uint64_t *at, um_capture_packet *packet)
{
    if (*at >= until)
        return UM_CAPTURE_ENDED;
    if (UM_UNLIKELY(reader->format == UM_CAPTURE_UNKNOWN)) {
        enum um_capture_step opened = open_file(reader, data, length, at);
        if (opened != UM_CAPTURE_PACKET)
            return opened;
    }
    enum um_capture_step step;
    if (reader->format == UM_CAPTURE_PCAPNG)
        step = next_pcapng(reader, data, length, base, until, at, packet);
    else if (reader->format == UM_CAPTURE_ERF)
        step = next_erf(reader, data, length, until, at, packet);
    else
        step = *at < until ? next_pcap(reader, data, length, at, packet) : UM_CAPTURE_ENDED;
    if (step != UM_CAPTURE_PACKET)
        return step;
    if (UM_UNLIKELY(packet->link_type == UM_ERF_LINK_TYPE))
        open_record(reader, packet);
    note_packet(reader, packet, base);
    return step;
}

/* Finding a record. */

static uint64_t plausible_pcap(const um_capture_reader *reader, const uint8_t *record, int64_t *time_s)
{
    uint32_t limit = reader->interfaces[0].resolution == 9 ? 1000000000 : 1000000;
    uint32_t captured = get32(reader, record + 8), frame = get32(reader, record + 12);
    *time_s = get32(reader, record);
    bool is_plausible = captured > 0 && captured <= UM_CAPTURE_FOUND_BYTES && captured <= frame &&
                        frame <= UM_CAPTURE_RECORD_BYTES_MAX && get32(reader, record + 4) < limit;
    return is_plausible ? PCAP_RECORD_BYTES + (uint64_t)captured : 0;
}

static uint64_t plausible_block(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t at)
{
    bool swapped = reader->swapped;
    block found;
    bool is_whole = at % 4 == 0 && read_block(reader, data, length, at, &found) == UM_CAPTURE_PACKET;
    reader->swapped = swapped;
    return is_whole ? found.bytes : 0;
}

static uint64_t plausible_erf(const uint8_t *record, int64_t *time_s)
{
    um_erf_header header;
    if (!um_erf_read(record, &header))
        return 0;
    *time_s = header.time_ns / 1000000000;
    return header.record_bytes;
}

/* Returns the bytes of the record that may start at `at`, or 0. *time_s: its time, if the format has one in each. */
static uint64_t plausible_bytes(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t at,
                                int64_t *time_s)
{
    /* No other format has a longer header. */
    if (length - at < PCAP_RECORD_BYTES)
        return 0;
    uint64_t bytes = reader->format == UM_CAPTURE_PCAP     ? plausible_pcap(reader, data + at, time_s)
                     : reader->format == UM_CAPTURE_PCAPNG ? plausible_block(reader, data, length, at)
                                                           : plausible_erf(data + at, time_s);
    return bytes <= length - at ? bytes : 0;
}

/* Returns true if records follow each other from `at`. *steps counts them down. */
static bool is_chain(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t at, uint32_t *steps)
{
    enum { APART_S_MAX = 24 * 3600 };
    uint64_t enough = length - at > UM_CAPTURE_FOUND_BYTES ? at + UM_CAPTURE_FOUND_BYTES : length;
    int64_t before_s = 0, time_s = 0;
    for (bool is_first = true; at < enough && *steps > 0; is_first = false) {
        uint64_t bytes = plausible_bytes(reader, data, length, at, &time_s);
        int64_t apart_s = time_s - before_s;
        if (bytes == 0 || (!is_first && (apart_s < -APART_S_MAX || apart_s > APART_S_MAX)))
            return false;
        before_s = time_s;
        at += bytes;
        --*steps;
    }
    return at >= enough;
}

bool um_capture_find(um_capture_reader *reader, const uint8_t *data, uint64_t length, uint64_t *at)
{
    enum { STEPS_MAX = 4 << 20 };
    uint32_t steps = STEPS_MAX;
    uint64_t end = length - *at > UM_CAPTURE_RECORD_BYTES_MAX ? *at + UM_CAPTURE_RECORD_BYTES_MAX : length;
    for (uint64_t from = *at; from < end && steps > 0; from++) {
        if (is_chain(reader, data, length, from, &steps)) {
            *at = from;
            return true;
        }
    }
    return false;
}

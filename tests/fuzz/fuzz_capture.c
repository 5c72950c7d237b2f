/* Captures of raw bytes, decoded into columns: nothing outside the file is read, nothing outside the columns is
 * written, and the rows do not depend on how the file was cut into windows or splits. TCP streams and IP fragments of a
 * split continue in another reader, from stored bytes.
 */
#include "fuzz.h"

#include "capture/reading/rows.h"
#include "capture/reading/tally.h"

enum {
    ROWS = 64,
    MESSAGES = UM_PACKETS_PACKET_ITEMS_MAX + ROWS,
    SQNS = MESSAGES,
    RESOLUTION_BYTES = UM_PACKETS_RESOLUTION_BYTES_MAX + 256,
    TCP_PORT_LOW = 14371,
    TCP_PORT_HIGH = 14395,
    STORE_PORT = 14567,
};

/* Columns in separate memory, so that a write beyond one is detected. */
typedef struct columns {
    um_packet_rows rows;
    uint32_t memory_count;
} columns;

static void *column(columns *into, size_t bytes)
{
    void *memory = malloc(bytes);
    REQUIRE(memory != NULL);
    into->memory_count++;
    return memory;
}

static void text_column(columns *into, um_packet_rows_text *text, size_t count, size_t most_bytes)
{
    text->offsets = column(into, (count + 1) * sizeof *text->offsets);
    text->data = column(into, count * most_bytes + UM_PACKETS_TEXT_SLACK_BYTES);
}

static void open_columns(columns *into)
{
    um_packet_rows *rows = &into->rows;
    *into = (columns){.rows = {.row_capacity = ROWS, .message_capacity = MESSAGES, .sqn_capacity = SQNS}};
    int64_t **row_longs[] = {&rows->position,  &rows->time_ns,      &rows->session_id,  &rows->transport_sqn,
                             &rows->sm_sqn,    &rows->lead_sqn,     &rows->trail_sqn,   &rows->next_sqn,
                             &rows->group_tag, &rows->window_bytes, &rows->receiver_id, &rows->queue,
                             &rows->dropped,   &rows->client_id,    &rows->ack_sqn};
    int32_t **row_ints[] = {&rows->interface_id, &rows->link_type,  &rows->frame_bytes, &rows->captured_bytes,
                            &rows->vlan,         &rows->inner_vlan, &rows->source_port, &rows->destination_port,
                            &rows->ip_fragments, &rows->udp_bytes,  &rows->nak_port,    &rows->transport_flags,
                            &rows->tcp_bytes,    &rows->tcp_flags};
    int64_t **message_longs[] = {&rows->topic_index,     &rows->topic_sqn,      &rows->first_sqn,
                                 &rows->fragment_offset, &rows->message_length, &rows->sent_ns};
    for (size_t i = 0; i < sizeof row_longs / sizeof row_longs[0]; i++)
        *row_longs[i] = column(into, ROWS * sizeof(int64_t));
    for (size_t i = 0; i < sizeof row_ints / sizeof row_ints[0]; i++)
        *row_ints[i] = column(into, ROWS * sizeof(int32_t));
    for (size_t i = 0; i < sizeof message_longs / sizeof message_longs[0]; i++)
        *message_longs[i] = column(into, MESSAGES * sizeof(int64_t));
    rows->payload_bytes = column(into, MESSAGES * sizeof(int32_t));
    rows->sqns = column(into, SQNS * sizeof(int64_t));
    rows->sqn_offsets = column(into, (ROWS + 1) * sizeof(int32_t));
    rows->message_offsets = column(into, (ROWS + 1) * sizeof(int32_t));
    rows->present = column(into, ROWS * sizeof(uint32_t));
    rows->message_present = column(into, MESSAGES);
    rows->resolution = column(into, RESOLUTION_BYTES);
    rows->resolution_capacity = RESOLUTION_BYTES;
    text_column(into, &rows->source_address, ROWS, UM_PACKETS_ADDRESS_BYTES_MAX);
    text_column(into, &rows->destination_address, ROWS, UM_PACKETS_ADDRESS_BYTES_MAX);
    text_column(into, &rows->status, ROWS, UM_PACKETS_STATUS_BYTES_MAX);
    text_column(into, &rows->packet_type, ROWS, UM_PACKETS_TYPE_BYTES_MAX);
    text_column(into, &rows->ncf_reason, ROWS, UM_PACKETS_REASON_BYTES_MAX);
    text_column(into, &rows->verdict, ROWS, UM_PACKETS_VERDICT_BYTES_MAX);
    text_column(into, &rows->recovery, ROWS, UM_PACKETS_RECOVERY_BYTES_MAX);
    text_column(into, &rows->transport, ROWS, UM_PACKETS_TRANSPORT_BYTES_MAX);
    text_column(into, &rows->kind, MESSAGES, UM_PACKETS_KIND_BYTES_MAX);
    for (int bit = 0; bit < UM_PACKETS_BITS; bit++)
        rows->bitmaps[bit] = column(into, ROWS / 8);
    for (int bit = 0; bit < UM_PACKETS_MESSAGE_BITS; bit++)
        rows->message_bitmaps[bit] = column(into, MESSAGES / 8);
}

/* The same columns serve every input. */
static columns *shared_columns(void)
{
    static columns shared;
    if (shared.memory_count == 0)
        open_columns(&shared);
    um_packet_rows_begin(&shared.rows);
    return &shared;
}

static uint64_t mixed(uint64_t sum, uint64_t value)
{
    return (sum ^ value) * UINT64_C(0x9e3779b97f4a7c15) + (sum >> 29);
}

static uint64_t mixed_text(uint64_t sum, const um_packet_rows_text *text, uint32_t i)
{
    REQUIRE(text->offsets[i] <= text->offsets[i + 1]);
    for (int32_t at = text->offsets[i]; at < text->offsets[i + 1]; at++)
        sum = mixed(sum, (uint8_t)text->data[at]);
    return mixed(sum, 256);
}

/* Mixes in the topic resolution records from `at`, if they belong to row i. */
static uint64_t mixed_resolution(uint64_t sum, const um_packet_rows *rows, uint32_t i, uint32_t *at)
{
    uint32_t head[2]; /* row, bytes */
    if (*at == rows->resolution_bytes)
        return sum;
    REQUIRE(rows->resolution_bytes <= rows->resolution_capacity && rows->resolution_bytes - *at >= sizeof head);
    memcpy(head, rows->resolution + *at, sizeof head);
    REQUIRE(head[0] >= i && head[0] < rows->row_count && head[1] <= rows->resolution_bytes - *at - sizeof head);
    if (head[0] != i)
        return sum;
    *at += (uint32_t)sizeof head;
    for (uint32_t byte = 0; byte < head[1]; byte++)
        sum = mixed(sum, rows->resolution[*at + byte]);
    *at += head[1];
    return mixed(sum, 257);
}

/* Returns a digest of all rows. */
static uint64_t digest(const um_packet_rows *rows, uint64_t sum)
{
    uint32_t resolution_at = 0;
    for (uint32_t i = 0; i < rows->row_count; i++) {
        sum = mixed(sum, (uint64_t)rows->position[i]);
        sum = mixed_resolution(sum, rows, i, &resolution_at);
        sum = mixed(sum, rows->present[i]);
        sum = mixed(sum, (uint64_t)rows->time_ns[i]);
        sum = mixed(sum, (uint64_t)rows->transport_sqn[i] + (uint64_t)rows->session_id[i]);
        sum = mixed_text(sum, &rows->source_address, i);
        sum = mixed_text(sum, &rows->status, i);
        sum = mixed_text(sum, &rows->packet_type, i);
        sum = mixed_text(sum, &rows->recovery, i);
        sum = mixed_text(sum, &rows->transport, i);
        sum = mixed(sum, (uint64_t)rows->client_id[i] + (uint64_t)rows->ack_sqn[i]);
        for (int32_t at = rows->sqn_offsets[i]; at < rows->sqn_offsets[i + 1]; at++)
            sum = mixed(sum, (uint64_t)rows->sqns[at]);
        for (int32_t at = rows->message_offsets[i]; at < rows->message_offsets[i + 1]; at++) {
            sum = mixed(sum, (uint64_t)rows->topic_sqn[at]);
            sum = mixed_text(sum, &rows->kind, (uint32_t)at);
        }
    }
    REQUIRE(resolution_at == rows->resolution_bytes);
    return sum;
}

static const um_packet_rows_options OPTIONS = {
    {14390, 14401, 14360, 14389, 12965, 12965}, false, {.by_time = false}, NULL};

static uint64_t rows_decoded;

/* Decodes the file up to the window's end, digesting rows as they fill. `is_last`: the file ends with the window. */
static enum um_capture_step decode_window(um_capture_reader *reader, columns *into, const uint8_t *data,
                                          uint64_t length, uint64_t base, uint64_t until, bool is_last, uint64_t *at,
                                          uint64_t *sum)
{
    for (;;) {
        uint64_t before = *at;
        enum um_capture_step step = um_packet_rows_decode(reader, &into->rows, &OPTIONS, data, length, base, until, at);
        REQUIRE(*at >= before && *at <= length && step != UM_CAPTURE_PACKET);
        REQUIRE(into->rows.row_count <= ROWS && into->rows.message_count <= MESSAGES);
        rows_decoded += into->rows.row_count;
        um_packet_rows_finish(&into->rows);
        *sum = digest(&into->rows, *sum);
        um_packet_rows_begin(&into->rows);
        bool is_end = until == UINT64_MAX && (is_last || step != UM_CAPTURE_INCOMPLETE);
        if (step != UM_CAPTURE_FULL && !(is_end && um_fragments_give_up(&reader->fragments)))
            return step;
    }
}

static um_capture_reader reader, reader_of_parts;

static void begin_reader(um_capture_reader *begun)
{
    um_capture_reader_init(begun);
    um_streams_set_ports(&begun->streams, TCP_PORT_LOW, TCP_PORT_HIGH, STORE_PORT, STORE_PORT);
}

/* Starts the reader of another part from the stored streams and fragments. */
static void go_on(um_capture_reader *next, const um_capture_reader *from)
{
    static uint8_t stored[sizeof(um_streams) + 64], stored_fragments[sizeof(um_fragments) + 64];
    uint64_t bytes = um_streams_stored_bytes(&from->streams);
    uint64_t fragments_bytes = um_fragments_stored_bytes(&from->fragments);
    REQUIRE(fragments_bytes <= sizeof stored_fragments);
    um_fragments_store(&from->fragments, stored_fragments, fragments_bytes);
    REQUIRE(bytes <= sizeof stored);
    um_streams_store(&from->streams, stored, bytes);
    *next = *from;
    memset(&next->streams, 0, sizeof next->streams);
    um_streams_set_ports(&next->streams, TCP_PORT_LOW, TCP_PORT_HIGH, STORE_PORT, STORE_PORT);
    REQUIRE(um_streams_load(&next->streams, stored, bytes));
    memset(&next->fragments, 0, sizeof next->fragments);
    REQUIRE(um_fragments_load(&next->fragments, stored_fragments, fragments_bytes));
}

/* Loads any bytes as streams and fragments: they are refused or within their bounds. */
static void load_anything(const uint8_t *data, size_t size)
{
    begin_reader(&reader);
    if (!um_streams_load(&reader.streams, data, size))
        REQUIRE(reader.streams.connection_count == 0);
    if (!um_fragments_load(&reader.fragments, data, size))
        REQUIRE(reader.fragments.datagram_count == 0);
}

static uint64_t in_one_window(columns *into, const uint8_t *data, size_t size, enum um_capture_step *step)
{
    uint64_t sum = 0, at = 0;
    begin_reader(&reader);
    *step = decode_window(&reader, into, data, size, 0, UINT64_MAX, true, &at, &sum);
    return sum;
}

/* Decodes as from a stream: each window is a new copy of the rest of the last one and a little more. */
static uint64_t in_windows(columns *into, const uint8_t *data, size_t size, size_t more, enum um_capture_step *step)
{
    uint64_t sum = 0, base = 0;
    begin_reader(&reader);
    for (size_t end = more < size ? more : size;; end = size - end < more ? size : end + more) {
        size_t length = end - base;
        uint8_t *window = malloc(length > 0 ? length : 1);
        REQUIRE(window != NULL);
        memcpy(window, data + base, length);
        uint64_t at = 0;
        *step = decode_window(&reader, into, window, length, base, UINT64_MAX, end == size, &at, &sum);
        free(window);
        base += at;
        if (*step != UM_CAPTURE_INCOMPLETE || end == size)
            return sum;
    }
}

static uint64_t in_splits(columns *into, const uint8_t *data, size_t size, uint64_t split_bytes,
                          enum um_capture_step *step)
{
    uint64_t sum = 0, start = 0;
    begin_reader(&reader);
    begin_reader(&reader_of_parts);
    for (;;) {
        uint64_t end = start, at = start;
        *step = um_capture_skip(&reader, data, size, start + split_bytes, &end);
        bool last = *step != UM_CAPTURE_ENDED;
        uint64_t found = start + split_bytes / 2;
        REQUIRE(found >= size || !um_capture_find(&reader, data, size, &found) || found < size);
        *step = decode_window(&reader_of_parts, into, data, size, 0, last ? UINT64_MAX : end, true, &at, &sum);
        if (last)
            return sum;
        REQUIRE(*step == UM_CAPTURE_ENDED && at == end);
        start = end;
        go_on(&reader_of_parts, &reader);
    }
}

/* Makes the file: raw bytes, or a program that writes records around parts of the input, so that most reach LBMC. */

typedef struct image {
    uint8_t data[8192];
    size_t size;
} image;

static void put(image *file, const void *bytes, size_t size)
{
    REQUIRE(size <= sizeof file->data - file->size);
    if (size > 0)
        memcpy(file->data + file->size, bytes, size);
    file->size += size;
}

static void put_u32(image *file, uint32_t v)
{
    put(file, &v, sizeof v);
}

static void put_datagram_headers(image *file, fuzz_input *input, uint8_t choice, uint32_t bytes)
{
    static const uint16_t ports[] = {14400, 14390, 12965, 5000, 14360, 14389, 14360, 5000};
    uint8_t headers[] = {1, 0, 0x5e, 10, 10, 10, 2, 0, 0, 0,   0,  1,  8,  0,    0x45, 0, 0, 0, 0, 0, 0,
                         0, 1, 17,   0,  0,  10, 0, 0, 1, 224, 10, 10, 10, 0x38, 0x36, 0, 0, 0, 0, 0, 0};
    um_store_be16(headers + 16, (uint16_t)(28 + bytes + (choice & 0x10 ? 1000 : 0)));
    if (choice & 4) /* LBT-RU, recognized by the source's port, whatever the receiver's */
        um_store_be16(headers + 34, 14380);
    um_store_be16(headers + 36, ports[choice & 7]);
    um_store_be16(headers + 38, (uint16_t)(8 + bytes + (choice & 0x20 ? 500 : 0)));
    if (choice & 0x40) { /* a fragment: its id, offset and whether more follow */
        uint8_t of = take_u8(input);
        headers[19] = of & 3;
        um_store_be16(headers + 20, (uint16_t)((of & 0x80 ? 0x2000 : 0) | (of >> 2 & 0x1f)));
    }
    put(file, headers, sizeof headers);
}

/* Headers of a connection to or from a source; the sequence number is small, so that segments overlap, follow and leave
 * gaps.
 */
static void put_segment_headers(image *file, fuzz_input *input, uint32_t bytes)
{
    static const uint16_t ports[] = {14391, 40000, 14395, 40001};
    uint8_t choice = take_u8(input), sqn = take_u8(input), ack = take_u8(input);
    uint8_t headers[54] = {[12] = 8, [14] = 0x45, [23] = 6, [46] = 0x50};
    um_store_be16(headers + 16, (uint16_t)(40 + bytes));
    headers[29] = choice & 1 ? 1 : 2;
    headers[33] = choice & 1 ? 2 : 1;
    um_store_be16(headers + 34, ports[choice & 3]);
    um_store_be16(headers + 36, ports[(choice & 3) ^ 1]);
    um_store_be32(headers + 38, (choice & 0x80 ? 0xffffff80 : 0) + sqn);
    um_store_be32(headers + 42, (choice & 0x80 ? 0xffffff80 : 0) + ack);
    headers[47] = (uint8_t)(choice >> 2 & 0x17);
    put(file, headers, sizeof headers);
}

static void put_packet(image *file, fuzz_input *input, bool pcapng)
{
    uint8_t choice = take_u8(input);
    fuzz_input body = take_bytes(input, take_u8(input));
    image frame = {.size = 0};
    if (choice & 0x80)
        put_datagram_headers(&frame, input, choice, (uint32_t)body.left);
    else if (choice & 0x40)
        put_segment_headers(&frame, input, (uint32_t)body.left);
    put(&frame, body.at, body.left);
    uint32_t captured = (uint32_t)frame.size, padded = (captured + 3) & ~3u;
    frame.size = padded;
    if (pcapng) {
        const uint32_t block[] = {6, 32 + padded, choice & 8, 0, take_u8(input), captured, captured};
        put(file, block, sizeof block);
        put(file, frame.data, padded);
        put_u32(file, 32 + padded);
    } else {
        const uint32_t record[] = {take_u8(input), 0, captured, captured};
        put(file, record, sizeof record);
        put(file, frame.data, captured);
    }
}

static void put_beginning(image *file, uint8_t link_type, bool pcapng)
{
    const uint32_t pcap[] = {0xa1b2c3d4, 0x00040002, 0, 0, 65535, link_type};
    const uint32_t section[] = {0x0a0d0d0a, 28, 0x1a2b3c4d, 1, 0xffffffff, 0xffffffff, 28};
    const uint32_t interface[] = {1, 20, link_type, 0, 20};
    if (!pcapng) {
        put(file, pcap, sizeof pcap);
        return;
    }
    put(file, section, sizeof section);
    put(file, interface, sizeof interface);
}

static void write_file(image *file, fuzz_input *input)
{
    enum { LINK_ETHERNET = 1, RAW_PART_BYTES_MAX = 64, PACKET_SPACE_BYTES = 512 };
    uint8_t choice = take_u8(input);
    bool pcapng = choice & 1;
    if (choice & 2)
        put_beginning(file, choice & 4 ? take_u8(input) : LINK_ETHERNET, pcapng);
    while (input->left > 0 && sizeof file->data - file->size > PACKET_SPACE_BYTES) {
        if (take_u8(input) % 4 != 0) {
            put_packet(file, input, pcapng);
        } else {
            fuzz_input raw = take_bytes(input, take_u8(input) % RAW_PART_BYTES_MAX);
            put(file, raw.at, raw.left);
        }
    }
}

/* With a tally, first sendings are counted and are no rows; rows and counts together equal the rows without a tally. */

enum { TALLY_SENDS = 8, TALLY_WINDOW_NS = 1000000000, TALLY_EPOCH_NS = 1000000000 };

static um_tally *shared_tally(void)
{
    static um_tally tally = {.window_ns = TALLY_WINDOW_NS, .epoch_ns = TALLY_EPOCH_NS, .send_capacity = TALLY_SENDS};
    if (tally.streams == NULL) {
        tally.streams = malloc(sizeof *tally.streams * UM_TALLY_STREAMS_MAX);
        tally.sends = malloc(sizeof *tally.sends * TALLY_SENDS);
        tally.rates = malloc(sizeof *tally.rates * TALLY_SENDS);
        tally.references = malloc(sizeof *tally.references * TALLY_SENDS);
        tally.sizes = calloc(UM_TALLY_SLOTS, sizeof *tally.sizes);
        tally.topics = calloc(UM_TALLY_SLOTS, sizeof *tally.topics);
        tally.marks = malloc(sizeof *tally.marks * (TALLY_SENDS + UM_TALLY_PACKET_MESSAGES_MAX));
        tally.copies = malloc(sizeof *tally.copies * UM_TALLY_STREAMS_MAX);
        REQUIRE(tally.streams && tally.sends && tally.rates && tally.references && tally.sizes && tally.topics);
        REQUIRE(tally.copies && tally.marks);
    }
    return &tally;
}

/* Checks that the counts are consistent. Returns the number of datagrams. */
static uint32_t check_tally(const um_tally *tally)
{
    uint64_t packets = 0, rated = 0, sized = 0, messages = 0, of_topics = 0;
    for (uint32_t i = 0; i < tally->stream_count; i++) {
        packets += tally->streams[i].packet_count;
        messages += tally->streams[i].message_count;
    }
    for (uint32_t i = 0; i < tally->rate_count; i++)
        rated += tally->rates[i].datagram_count;
    for (uint32_t i = 0; i < UM_TALLY_SLOTS; i++) {
        sized += (uint64_t)tally->sizes[i].datagram_count * tally->sizes[i].message_count;
        of_topics += tally->topics[i].fragment_count;
    }
    for (uint32_t i = 0; i < tally->send_count; i++)
        REQUIRE(tally->sends[i].stream < tally->stream_count);
    for (uint32_t i = 0; i < tally->mark_count; i++)
        REQUIRE(tally->marks[i].stream < tally->stream_count && tally->marks[i].sqn % UM_TALLY_MARK_SQNS == 0);
    REQUIRE(tally->mark_count <= messages);
    REQUIRE(packets == tally->send_count && rated == packets && sized == messages && of_topics == messages);
    REQUIRE(tally->rate_count <= tally->send_count && tally->reference_count <= tally->send_count);
    uint64_t copies = 0;
    for (uint32_t i = 0; i < tally->copies_count; i++)
        copies += tally->copies[i].packet_count;
    return tally->send_count + (uint32_t)copies;
}

static void count_with_tally(columns *into, const uint8_t *data, size_t size, uint64_t wanted)
{
    um_packet_rows_options options = OPTIONS;
    um_tally *tally = options.tally = shared_tally();
    uint64_t at = 0, counted = 0;
    enum um_capture_step step = UM_CAPTURE_FULL;
    begin_reader(&reader);
    while (step == UM_CAPTURE_FULL || um_fragments_give_up(&reader.fragments)) {
        step = um_packet_rows_decode(&reader, &into->rows, &options, data, size, 0, UINT64_MAX, &at);
        counted += into->rows.row_count + check_tally(tally);
        um_packet_rows_begin(&into->rows);
        um_tally_begin(tally);
    }
    REQUIRE(counted == wanted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    image file = {.size = 0};
    columns *into = shared_columns();
    size_t more = 1 + (size_t)take_u8(&input);
    uint64_t split_bytes = 1 + (uint64_t)take_u8(&input);
    write_file(&file, &input);
    load_anything(data, size);
    uint8_t *exact = malloc(file.size > 0 ? file.size : 1); /* so that a read beyond the end is detected */
    REQUIRE(exact != NULL);
    memcpy(exact, file.data, file.size);
    enum um_capture_step whole, windowed, split;
    rows_decoded = 0;
    uint64_t sum = in_one_window(into, exact, file.size, &whole);
    count_with_tally(into, exact, file.size, rows_decoded);
    REQUIRE(in_windows(into, exact, file.size, more, &windowed) == sum && windowed == whole);
    REQUIRE(in_splits(into, exact, file.size, split_bytes, &split) == sum && split == whole);
    free(exact);
    return 0;
}

#include "capture/reading/tally_private.h"

#include "core/wire/lbtru.h"

enum {
    NO_INDEX = UINT32_MAX,
    SLOTS_USED_MAX = UM_TALLY_SLOTS / 4 * 3 - UM_TALLY_PACKET_MESSAGES_MAX,
};

/* Times beyond about 2043 are wrong, and their sums would overflow. */
#define TIME_MAX_NS (INT64_C(1) << 61)

void um_tally_begin(um_tally *tally)
{
    if (tally->size_count > 0)
        memset(tally->sizes, 0, sizeof *tally->sizes * UM_TALLY_SLOTS);
    if (tally->topic_count > 0)
        memset(tally->topics, 0, sizeof *tally->topics * UM_TALLY_SLOTS);
    tally->stream_count = 0;
    tally->latest_stream = 0;
    tally->send_count = 0;
    tally->rate_count = 0;
    tally->reference_count = 0;
    tally->size_count = 0;
    tally->topic_count = 0;
    tally->mark_count = 0;
    tally->copies_count = 0;
}

bool um_tally_full(const um_tally *tally)
{
    return tally->send_count >= tally->send_capacity || tally->mark_count >= tally->send_capacity ||
           tally->stream_count >= UM_TALLY_STREAMS_MAX || tally->copies_count >= UM_TALLY_STREAMS_MAX ||
           tally->size_count >= SLOTS_USED_MAX || tally->topic_count >= SLOTS_USED_MAX;
}

/* Rounds down, also for times before 1970. */
static int64_t floor_to(int64_t time_ns, int64_t step_ns)
{
    int64_t rest = time_ns % step_ns;
    return time_ns - (rest < 0 ? rest + step_ns : rest);
}

/* The key of a stream: the session, and for LBT-RU the block with the highest bit set. */
static uint64_t key_of(const um_packet_row *row)
{
    uint32_t block =
        row->transport == UM_PACKET_LBTRU ? UM_TALLY_UNICAST | row->transport_sqn >> UM_TALLY_BLOCK_BITS : 0;
    return (uint64_t)row->session_id << 32 | block;
}

/* The port that distinguishes sessions of one id and host. */
static uint16_t port_of(const um_captured_frame *frame, const um_packet_row *row)
{
    return row->transport == UM_PACKET_LBTRU ? frame->source_port : row->nak_port;
}

static bool is_of(const um_tally_stream *stream, const um_capture_packet *packet, const um_captured_frame *frame,
                  const um_packet_row *row)
{
    return stream->key == key_of(row) && stream->port == port_of(frame, row) &&
           stream->interface == packet->interface && packet->time_ns >= stream->window_ns &&
           packet->time_ns < stream->window_end_ns &&
           memcmp(stream->source, frame->source, sizeof stream->source) == 0 &&
           memcmp(stream->destination, frame->destination, sizeof stream->destination) == 0 &&
           stream->destination_port == frame->destination_port;
}

static uint32_t add_stream(um_tally *tally, const um_capture_packet *packet, const um_captured_frame *frame,
                           const um_packet_row *row)
{
    um_tally_stream *stream = &tally->streams[tally->stream_count];
    *stream = (um_tally_stream){.interface = packet->interface,
                                .key = key_of(row),
                                .port = port_of(frame, row),
                                .destination_port = frame->destination_port,
                                .window_ns = INT64_MIN,
                                .window_end_ns = INT64_MAX,
                                .first_ns = packet->time_ns,
                                .last_ns = packet->time_ns,
                                .rate = NO_INDEX,
                                .reference = NO_INDEX};
    if (tally->window_ns > 0) {
        stream->window_ns = floor_to(packet->time_ns, tally->window_ns);
        stream->window_end_ns = stream->window_ns + tally->window_ns;
    }
    memcpy(stream->source, frame->source, sizeof stream->source);
    memcpy(stream->destination, frame->destination, sizeof stream->destination);
    return tally->stream_count++;
}

/* The next packet mostly belongs to the latest stream or the one after it, else to a recent one: a receiver over LBT-RU
 * has another stream for each 256 sqns. */
static uint32_t stream_of(um_tally *tally, const um_capture_packet *packet, const um_captured_frame *frame,
                          const um_packet_row *row)
{
    uint32_t count = tally->stream_count;
    uint32_t latest = tally->latest_stream, next = latest + 1 < count ? latest + 1 : 0;
    if (count > 0 && is_of(&tally->streams[latest], packet, frame, row))
        return latest;
    if (count > 0 && is_of(&tally->streams[next], packet, frame, row))
        return tally->latest_stream = next;
    for (uint32_t at = count; at-- > 0;)
        if (is_of(&tally->streams[at], packet, frame, row))
            return tally->latest_stream = at;
    return tally->latest_stream = add_stream(tally, packet, frame, row);
}

static void add_rate(um_tally *tally, uint32_t index, const um_capture_packet *packet)
{
    um_tally_stream *stream = &tally->streams[index];
    um_tally_rate *rate = stream->rate == NO_INDEX ? NULL : &tally->rates[stream->rate];
    if (rate == NULL || packet->time_ns < rate->start_ns || packet->time_ns >= rate->start_ns + UM_TALLY_BUCKET_NS) {
        stream->rate = tally->rate_count++;
        rate = &tally->rates[stream->rate];
        *rate = (um_tally_rate){.start_ns = floor_to(packet->time_ns, UM_TALLY_BUCKET_NS), .stream = index};
    }
    rate->datagram_count++;
    rate->bytes += packet->frame_bytes;
}

static void add_reference(um_tally *tally, uint32_t index, int64_t time_ns, uint32_t sqn)
{
    um_tally_stream *stream = &tally->streams[index];
    um_tally_reference *reference = stream->reference == NO_INDEX ? NULL : &tally->references[stream->reference];
    int64_t begin_ns = reference == NULL ? 0 : reference->epoch * tally->epoch_ns;
    if (reference == NULL || time_ns < begin_ns || time_ns >= begin_ns + tally->epoch_ns) {
        stream->reference = tally->reference_count++;
        tally->references[stream->reference] =
            (um_tally_reference){.epoch = floor_to(time_ns, tally->epoch_ns) / tally->epoch_ns,
                                 .time_ns = time_ns,
                                 .sqn = sqn,
                                 .stream = index};
    } else if (time_ns < reference->time_ns || (time_ns == reference->time_ns && sqn < reference->sqn)) {
        reference->time_ns = time_ns;
        reference->sqn = sqn;
    }
}

static uint32_t slot_of(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t mixed = ((uint64_t)a << 32 | b) * UINT64_C(0x9e3779b97f4a7c15) + c;
    mixed = (mixed ^ mixed >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(mixed >> 40) & (UM_TALLY_SLOTS - 1);
}

static void add_size(um_tally *tally, uint32_t index, uint32_t udp_bytes, uint32_t messages, uint64_t message_bytes,
                     uint32_t frame_bytes)
{
    uint32_t slot = slot_of(index, udp_bytes, messages);
    um_tally_size *size = &tally->sizes[slot];
    while (size->datagram_count > 0 &&
           (size->stream != index || size->udp_bytes != udp_bytes || size->message_count != messages)) {
        slot = (slot + 1) & (UM_TALLY_SLOTS - 1);
        size = &tally->sizes[slot];
    }
    if (size->datagram_count == 0) {
        *size = (um_tally_size){.stream = index, .udp_bytes = udp_bytes, .message_count = messages};
        tally->size_count++;
    }
    size->datagram_count++;
    size->message_bytes += message_bytes;
    size->frame_bytes += frame_bytes;
}

static um_tally_topic *topic_of(um_tally *tally, uint32_t index, uint32_t topic_index, uint32_t sqn, int64_t time_ns)
{
    uint32_t slot = slot_of(index, topic_index, 0);
    um_tally_topic *topic = &tally->topics[slot];
    while (topic->fragment_count > 0 && (topic->stream != index || topic->topic_index != topic_index)) {
        slot = (slot + 1) & (UM_TALLY_SLOTS - 1);
        topic = &tally->topics[slot];
    }
    if (topic->fragment_count == 0) {
        *topic = (um_tally_topic){.stream = index,
                                  .topic_index = topic_index,
                                  .lowest_sqn = sqn,
                                  .highest_sqn = sqn,
                                  .first_ns = time_ns,
                                  .last_ns = time_ns};
        tally->topic_count++;
    }
    return topic;
}

static void add_messages(um_tally *tally, uint32_t index, const um_packet_rows *rows, const um_packet_row *row,
                         const um_capture_packet *packet, uint32_t udp_bytes)
{
    um_tally_stream *stream = &tally->streams[index];
    uint32_t messages = 0;
    uint64_t message_bytes = 0;
    for (uint32_t i = rows->message_count; i < rows->message_count + row->message_count; i++) {
        /* Only messages with payload and their fragments have a length. */
        if (!(rows->message_present[i] & 1u << UM_PACKETS_MESSAGE_LENGTH))
            continue;
        uint32_t sqn = (uint32_t)rows->topic_sqn[i];
        um_tally_topic *topic = topic_of(tally, index, (uint32_t)rows->topic_index[i], sqn, packet->time_ns);
        topic->lowest_sqn = sqn < topic->lowest_sqn ? sqn : topic->lowest_sqn;
        topic->highest_sqn = sqn > topic->highest_sqn ? sqn : topic->highest_sqn;
        topic->first_ns = packet->time_ns < topic->first_ns ? packet->time_ns : topic->first_ns;
        topic->last_ns = packet->time_ns > topic->last_ns ? packet->time_ns : topic->last_ns;
        topic->message_count += rows->fragment_offset[i] == 0;
        topic->fragment_count++;
        topic->payload_bytes += (uint32_t)rows->payload_bytes[i];
        if (sqn % UM_TALLY_MARK_SQNS == 0)
            tally->marks[tally->mark_count++] = (um_tally_mark){
                .time_ns = packet->time_ns, .stream = index, .topic_index = topic->topic_index, .sqn = sqn};
        messages++;
        message_bytes += (uint32_t)rows->payload_bytes[i];
    }
    stream->message_count += messages;
    stream->message_bytes += message_bytes;
    if (messages > 0)
        add_size(tally, index, udp_bytes, messages, message_bytes, packet->frame_bytes);
}

static void add_copy(um_tally *tally, const um_capture_packet *packet)
{
    int64_t window_ns = tally->window_ns > 0 ? floor_to(packet->time_ns, tally->window_ns) : INT64_MIN;
    for (uint32_t at = tally->copies_count; at-- > 0;) {
        um_tally_copies *copies = &tally->copies[at];
        if (copies->interface == packet->interface && copies->window_ns == window_ns) {
            copies->packet_count++;
            return;
        }
    }
    tally->copies[tally->copies_count++] = (um_tally_copies){window_ns, packet->interface, 1};
}

/* A datagram that reports how many others the receiver was passed over stays a row. */
static bool is_passed_report(const um_packet_row *row)
{
    return row->transport == UM_PACKET_LBTRU && (row->transport_flags & UM_LBTRU_PASSED_MAX) != 0;
}

static bool is_counted(const um_capture_packet *packet, const um_captured_frame *frame, const um_packet_row *row)
{
    const uint32_t wanted = 1u << UM_PACKETS_TYPE | 1u << UM_PACKETS_SESSION | 1u << UM_PACKETS_DATA;
    return row->status == UM_PACKET_OK && row->type == UM_PACKET_DATA &&
           (row->present & (wanted | 1u << UM_PACKETS_RETRANSMISSION)) == wanted && packet->is_timed &&
           packet->time_ns > -TIME_MAX_NS && packet->time_ns < TIME_MAX_NS && frame->ip_version == 4 &&
           !frame->is_fragment && !is_passed_report(row) && row->message_count <= UM_TALLY_PACKET_MESSAGES_MAX;
}

bool um_tally_take(um_tally *tally, const um_packet_rows *rows, const um_capture_packet *packet,
                   const um_captured_frame *frame, const um_packet_row *row)
{
    if (UM_UNLIKELY(row->present & 1u << UM_PACKETS_COPY)) {
        add_copy(tally, packet);
        return true;
    }
    if (UM_UNLIKELY(!is_counted(packet, frame, row)))
        return false;
    uint32_t index = stream_of(tally, packet, frame, row);
    um_tally_stream *stream = &tally->streams[index];
    stream->first_ns = packet->time_ns < stream->first_ns ? packet->time_ns : stream->first_ns;
    stream->last_ns = packet->time_ns > stream->last_ns ? packet->time_ns : stream->last_ns;
    stream->packet_count++;
    stream->udp_bytes += frame->payload_bytes;
    tally->sends[tally->send_count++] =
        (um_tally_send){.time_ns = packet->time_ns, .sqn = row->transport_sqn, .stream = index};
    add_rate(tally, index, packet);
    add_reference(tally, index, packet->time_ns, row->transport_sqn);
    add_messages(tally, index, rows, row, packet, frame->payload_bytes);
    return true;
}

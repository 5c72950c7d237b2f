#include "capture/reading/streams.h"

#include "core/wire/range_request.h"

enum tcp_flag { TCP_FIN = 0x01, TCP_SYN = 0x02, TCP_RST = 0x04, TCP_ACK = 0x10 };

void um_streams_set_ports(um_streams *streams, uint16_t port_low, uint16_t port_high, uint16_t store_low,
                          uint16_t store_high)
{
    streams->port_low = port_low;
    streams->port_high = port_high;
    streams->store_low = store_low;
    streams->store_high = store_high;
}

void um_streams_read_findings(const um_streams *streams, um_stream_findings *findings)
{
    *findings = streams->findings;
}

bool um_streams_has(const um_streams *streams, const um_captured_frame *frame)
{
    return frame->status == UM_CAPTURED_TCP && um_streams_has_ports(streams, frame);
}

/* Returns a - b as a signed distance. */
static int32_t ahead(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b);
}

/* ---- connections ---- */

typedef struct ends {
    const uint8_t *source;
    const uint8_t *receiver;
    uint16_t source_port;
    uint16_t receiver_port;
    bool is_from_source;
} ends;

static ends ends_of(const um_streams *streams, const um_captured_frame *frame)
{
    /* If both ports are of sources or Stores, the lower one is the source: the same in both directions. */
    bool both =
        um_streams_has_port(streams, frame->source_port) && um_streams_has_port(streams, frame->destination_port);
    bool is_from_source =
        both ? frame->source_port < frame->destination_port : um_streams_has_port(streams, frame->source_port);
    return is_from_source
               ? (ends){frame->source, frame->destination, frame->source_port, frame->destination_port, true}
               : (ends){frame->destination, frame->source, frame->destination_port, frame->source_port, false};
}

static bool is_of(const um_stream_connection *connection, int32_t interface, uint8_t ip_version, const ends *of)
{
    size_t address_bytes = ip_version == 4 ? 4 : 16;
    return connection->used != 0 && connection->interface == interface && connection->ip_version == ip_version &&
           connection->source_port == of->source_port && connection->receiver_port == of->receiver_port &&
           memcmp(connection->source, of->source, address_bytes) == 0 &&
           memcmp(connection->receiver, of->receiver, address_bytes) == 0;
}

static um_stream_connection *find(um_streams *streams, int32_t interface, uint8_t ip_version, const ends *of)
{
    uint32_t at = streams->latest;
    for (uint32_t tried = 0; tried < streams->connection_count; tried++) {
        if (at >= streams->connection_count)
            at = 0;
        if (is_of(&streams->connections[at], interface, ip_version, of)) {
            streams->latest = at;
            return &streams->connections[at];
        }
        at++;
    }
    return NULL;
}

/* ---- the hold ---- */

static void release_held(um_streams *streams, uint32_t i)
{
    um_stream_held gone = streams->held[i];
    uint32_t behind = gone.at + gone.held_bytes;
    memmove(streams->hold + gone.at, streams->hold + behind, streams->hold_bytes - behind);
    streams->hold_bytes -= gone.held_bytes;
    streams->held_count--;
    memmove(streams->held + i, streams->held + i + 1, sizeof *streams->held * (streams->held_count - i));
    for (uint32_t k = i; k < streams->held_count; k++)
        streams->held[k].at -= gone.held_bytes;
}

static void release_all(um_streams *streams, const um_stream_connection *connection)
{
    uint16_t index = (uint16_t)(connection - streams->connections);
    for (uint32_t i = streams->held_count; i-- > 0;) {
        if (streams->held[i].connection == index)
            release_held(streams, i);
    }
}

static void free_connection(um_streams *streams, um_stream_connection *connection)
{
    release_all(streams, connection);
    connection->used = 0;
    while (streams->connection_count > 0 && streams->connections[streams->connection_count - 1].used == 0)
        streams->connection_count--;
}

static um_stream_connection *place_for_another(um_streams *streams)
{
    um_stream_connection *oldest = &streams->connections[0];
    for (uint32_t i = 0; i < UM_STREAMS_CONNECTIONS_MAX; i++) {
        um_stream_connection *one = &streams->connections[i];
        if (one->used == 0)
            return one;
        if (one->used < oldest->used)
            oldest = one;
    }
    streams->findings.displaced_count++;
    release_all(streams, oldest);
    return oldest;
}

static um_stream_connection *add(um_streams *streams, int32_t interface, uint8_t ip_version, const ends *of)
{
    um_stream_connection *connection = place_for_another(streams);
    size_t address_bytes = ip_version == 4 ? 4 : 16;
    *connection = (um_stream_connection){.interface = interface,
                                         .ip_version = ip_version,
                                         .source_port = of->source_port,
                                         .receiver_port = of->receiver_port};
    memcpy(connection->source, of->source, address_bytes);
    memcpy(connection->receiver, of->receiver, address_bytes);
    uint32_t index = (uint32_t)(connection - streams->connections);
    streams->latest = index;
    if (index >= streams->connection_count)
        streams->connection_count = index + 1;
    return connection;
}

/* ---- bytes in order ---- */

/* A direction of a connection while a segment is processed, and the destination of its items. */
typedef struct flow {
    um_streams *streams;
    um_stream_connection *connection;
    um_stream_direction *direction;
    um_lbmc_take_item *take;
    void *context;
    enum um_dgram_status status;
} flow;

/* Returns true for an item that only LBT-TCP sessions have. Over recovery connections, requested messages are
 * UM_LBMC_RECOVERED, and responses travel to the source's port. */
static bool is_session_item(const flow *into, const um_lbmc_item *item)
{
    bool is_from_source = into->direction == &into->connection->directions[UM_STREAM_FROM_SOURCE];
    if (!is_from_source)
        return item->kind == UM_LBMC_ITEM_SESSION;
    return item->kind == UM_LBMC_ITEM_TSNI ||
           (item->kind == UM_LBMC_ITEM_MESSAGE &&
            (item->message->type == UM_LBMC_MESSAGE || item->message->type == UM_LBMC_END));
}

/* Returns the topic of a range. Other senders number their requests as they like, so an index that repeats the last
 * range request's has that request's topic; any other names its topic. */
static uint32_t range_topic(const um_stream_connection *connection, uint32_t request_index)
{
    if (connection->range_topic != 0 && request_index == connection->range_index)
        return connection->range_topic;
    return um_request_topic(request_index, connection->topic_index);
}

/* Returns true for an item that only connections to Stores have. */
static bool is_store_item(const um_lbmc_item *item)
{
    return item->kind >= UM_LBMC_ITEM_REGISTRATION && item->kind <= UM_LBMC_ITEM_KEEPALIVE;
}

/* Returns the topic of what a receiver requests or acknowledges at a Store, which it names by the source's registration
 * id: known if the receiver's last registration on the connection named this source. */
static uint32_t store_topic(const um_stream_connection *connection, uint32_t named)
{
    return connection->source_reg_id != 0 && named == connection->source_reg_id ? connection->registered_topic : named;
}

static void on_item(void *context, const um_lbmc_item *item)
{
    flow *into = context;
    um_stream_connection *connection = into->connection;
    um_lbmc_item passed = *item;
    connection->is_session |= connection->purpose == UM_STREAM_PURPOSE_UNKNOWN && is_session_item(into, item);
    if (item->kind == UM_LBMC_ITEM_SESSION) {
        connection->is_named = true;
        connection->session_id = item->session_id;
    }
    if (is_store_item(item))
        connection->purpose = UM_STREAM_TO_STORE;
    if (item->kind == UM_LBMC_ITEM_REGISTRATION) {
        connection->registered_topic = item->topic_index;
        connection->source_reg_id = item->source_reg_id;
    }
    if (connection->purpose == UM_STREAM_TO_STORE) {
        connection->is_session = false;
        if (item->kind == UM_LBMC_ITEM_REQUEST || item->kind == UM_LBMC_ITEM_CONSUMED)
            passed.topic_index = store_topic(connection, item->topic_index);
    }
    if (item->kind == UM_LBMC_ITEM_RANGE_REQUEST && connection->purpose != UM_STREAM_TO_STORE)
        connection->purpose =
            (item->request_index & 1) == UM_PURPOSE_OFF_TRANSPORT ? UM_STREAM_OFF_TRANSPORT : UM_STREAM_LATE_JOIN;
    if (item->kind == UM_LBMC_ITEM_RANGE_REQUEST) {
        connection->range_index = item->request_index;
        connection->range_topic = item->topic_index;
    }
    if (item->kind == UM_LBMC_ITEM_RANGE_REQUEST || item->kind == UM_LBMC_ITEM_REQUEST)
        connection->topic_index = item->topic_index;
    else if (item->kind == UM_LBMC_ITEM_RANGE)
        passed.topic_index = range_topic(connection, item->request_index);
    if (into->take != NULL)
        into->take(into->context, &passed);
}

static void lose(flow *into, uint32_t bytes)
{
    into->direction->next_sqn += bytes;
    if (bytes == 0 || um_lbmc_stream_lose(&into->direction->messages, bytes))
        return;
    into->streams->findings.gap_count++;
    into->streams->findings.gap_bytes += bytes;
}

/* Processes a segment whose first byte is at or before the next byte of its stream. */
static void take_next(flow *into, uint32_t sqn, const uint8_t *data, uint32_t captured, uint32_t bytes)
{
    uint32_t again = into->direction->next_sqn - sqn;
    if (again >= bytes)
        return;
    uint32_t there = captured > again ? captured - again : 0;
    if (there > 0) {
        uint64_t passed_over = 0;
        enum um_dgram_status status =
            um_lbmc_stream_take(&into->direction->messages, data + again, there, on_item, into, &passed_over);
        into->streams->findings.gap_bytes += passed_over;
        into->streams->findings.gap_count += status != UM_DGRAM_OK;
        if (status != UM_DGRAM_OK)
            into->status = status;
        into->direction->next_sqn += there;
    }
    lose(into, bytes - again - there);
}

/* Returns the index of this direction's first held segment, or held_count without one. */
static uint32_t first_held(const flow *into)
{
    const um_streams *streams = into->streams;
    uint16_t connection = (uint16_t)(into->connection - streams->connections);
    uint16_t direction = (uint16_t)(into->direction - into->connection->directions);
    uint32_t first = streams->held_count;
    for (uint32_t i = 0; i < streams->held_count; i++) {
        const um_stream_held *one = &streams->held[i];
        if (one->connection == connection && one->direction == direction &&
            (first == streams->held_count || ahead(one->sqn, streams->held[first].sqn) < 0))
            first = i;
    }
    return first;
}

/* Processes the held segments that follow the stream without a gap. */
static void take_held(flow *into)
{
    um_streams *streams = into->streams;
    for (;;) {
        uint32_t first = first_held(into);
        if (first == streams->held_count || ahead(streams->held[first].sqn, into->direction->next_sqn) > 0)
            return;
        um_stream_held held = streams->held[first];
        take_next(into, held.sqn, streams->hold + held.at, held.held_bytes, held.bytes);
        release_held(streams, first);
    }
}

/* Skips the gap before the first held segment. Returns false if none is held. */
static bool pass_gap(flow *into)
{
    uint32_t first = first_held(into);
    if (first == into->streams->held_count)
        return false;
    lose(into, into->streams->held[first].sqn - into->direction->next_sqn);
    take_held(into);
    return true;
}

static bool has_space(const um_streams *streams, uint32_t bytes)
{
    return streams->held_count < UM_STREAMS_HELD_MAX && UM_STREAMS_HOLD_BYTES - streams->hold_bytes >= bytes;
}

static void hold(flow *into, uint32_t sqn, const um_captured_frame *frame)
{
    um_streams *streams = into->streams;
    uint32_t bytes = frame->payload_captured_bytes;
    streams->held[streams->held_count++] =
        (um_stream_held){.connection = (uint16_t)(into->connection - streams->connections),
                         .direction = (uint16_t)(into->direction - into->connection->directions),
                         .sqn = sqn,
                         .bytes = frame->payload_bytes,
                         .held_bytes = bytes,
                         .at = streams->hold_bytes};
    memcpy(streams->hold + streams->hold_bytes, frame->payload, bytes);
    streams->hold_bytes += bytes;
}

static void take_payload(flow *into, const um_captured_frame *frame, uint32_t sqn)
{
    um_stream_direction *direction = into->direction;
    if (!direction->is_known) {
        direction->is_known = true;
        direction->next_sqn = sqn;
        um_lbmc_stream_init(&direction->messages, false);
    }
    if (ahead(sqn, direction->next_sqn) > 0 && !has_space(into->streams, frame->payload_captured_bytes)) {
        while (ahead(sqn, direction->next_sqn) > 0 && pass_gap(into)) {
        }
        if (ahead(sqn, direction->next_sqn) > 0)
            lose(into, sqn - direction->next_sqn);
    }
    if (ahead(sqn, direction->next_sqn) > 0) {
        hold(into, sqn, frame);
        return;
    }
    take_next(into, sqn, frame->payload, frame->payload_captured_bytes, frame->payload_bytes);
    take_held(into);
}

/* Bytes acknowledged by the other end have arrived there: if not captured by now, they never will be. */
static void take_acknowledged(flow *into)
{
    while (into->direction->is_acknowledged) {
        uint32_t first = first_held(into);
        if (first == into->streams->held_count ||
            ahead(into->direction->acknowledged_sqn, into->streams->held[first].sqn) <= 0)
            return;
        pass_gap(into);
    }
}

static void begin_direction(um_stream_direction *direction, uint32_t first_sqn)
{
    *direction = (um_stream_direction){.is_known = true, .next_sqn = first_sqn};
    um_lbmc_stream_init(&direction->messages, true);
}

static void describe(const um_stream_connection *connection, um_stream_taken *taken)
{
    taken->purpose = connection->purpose;
    taken->is_session = connection->is_session;
    taken->is_named = connection->is_named;
    taken->session_id = connection->session_id;
}

um_stream_taken um_streams_connection_of(um_streams *streams, int32_t interface, const um_captured_frame *frame)
{
    ends of = ends_of(streams, frame);
    um_stream_taken taken = {.status = UM_DGRAM_OK, .is_from_source = of.is_from_source};
    const um_stream_connection *connection = find(streams, interface, frame->ip_version, &of);
    if (connection != NULL)
        describe(connection, &taken);
    return taken;
}

um_stream_taken um_streams_take(um_streams *streams, int32_t interface, const um_captured_frame *frame,
                                um_lbmc_take_item *take, void *context)
{
    ends of = ends_of(streams, frame);
    um_stream_taken taken = {.status = UM_DGRAM_OK, .is_from_source = of.is_from_source};
    bool begins = frame->tcp_flags & TCP_SYN;
    um_stream_connection *connection = find(streams, interface, frame->ip_version, &of);
    if (connection == NULL && (begins || frame->payload_bytes > 0))
        connection = add(streams, interface, frame->ip_version, &of);
    if (connection == NULL)
        return taken;
    connection->used = ++streams->segment_count;
    um_stream_direction *direction =
        &connection->directions[of.is_from_source ? UM_STREAM_FROM_SOURCE : UM_STREAM_FROM_RECEIVER];
    um_stream_direction *other =
        &connection->directions[of.is_from_source ? UM_STREAM_FROM_RECEIVER : UM_STREAM_FROM_SOURCE];
    uint32_t sqn = frame->tcp_sqn + (begins ? 1 : 0);
    /* A repeated SYN does not start the stream. */
    if (begins && !(direction->is_known && direction->next_sqn == sqn)) {
        release_all(streams, connection);
        if (!(frame->tcp_flags & TCP_ACK)) {
            connection->purpose = UM_STREAM_PURPOSE_UNKNOWN;
            connection->is_session = false;
            connection->is_named = false;
            *other = (um_stream_direction){0};
        }
        begin_direction(direction, sqn);
    }
    flow into = {streams, connection, direction, take, context, UM_DGRAM_OK};
    take_acknowledged(&into);
    if (frame->payload_bytes > 0)
        take_payload(&into, frame, sqn);
    if (frame->tcp_flags & TCP_ACK) {
        other->is_acknowledged = true;
        other->acknowledged_sqn = frame->tcp_ack;
    }
    taken.status = into.status;
    describe(connection, &taken);
    direction->is_ended |= (frame->tcp_flags & TCP_FIN) != 0;
    if ((frame->tcp_flags & TCP_RST) || (direction->is_ended && other->is_ended && streams->held_count == 0))
        free_connection(streams, connection);
    return taken;
}

void um_streams_follow(um_streams *streams, int32_t interface, const um_captured_frame *frame)
{
    if (um_streams_has(streams, frame))
        um_streams_take(streams, interface, frame, NULL, NULL);
}

/* ---- storing and loading ---- */

typedef struct stored_head {
    uint64_t segment_count;
    uint32_t latest;
    uint32_t connection_count;
    uint32_t held_count;
    uint32_t hold_bytes;
} stored_head;

uint64_t um_streams_stored_bytes(const um_streams *streams)
{
    if (streams->connection_count == 0)
        return 0;
    return sizeof(stored_head) + sizeof *streams->connections * streams->connection_count +
           sizeof *streams->held * streams->held_count + streams->hold_bytes;
}

void um_streams_store(const um_streams *streams, uint8_t *out, uint64_t capacity)
{
    stored_head head = {streams->segment_count, streams->latest, streams->connection_count, streams->held_count,
                        streams->hold_bytes};
    if (streams->connection_count == 0 || capacity < um_streams_stored_bytes(streams))
        return;
    memcpy(out, &head, sizeof head);
    out += sizeof head;
    memcpy(out, streams->connections, sizeof *streams->connections * streams->connection_count);
    out += sizeof *streams->connections * streams->connection_count;
    memcpy(out, streams->held, sizeof *streams->held * streams->held_count);
    out += sizeof *streams->held * streams->held_count;
    memcpy(out, streams->hold, streams->hold_bytes);
}

bool um_streams_load(um_streams *streams, const uint8_t *stored, uint64_t bytes)
{
    stored_head head;
    if (bytes < sizeof head)
        return bytes == 0;
    memcpy(&head, stored, sizeof head);
    if (head.connection_count > UM_STREAMS_CONNECTIONS_MAX || head.held_count > UM_STREAMS_HELD_MAX ||
        head.hold_bytes > UM_STREAMS_HOLD_BYTES || head.latest >= UM_STREAMS_CONNECTIONS_MAX ||
        bytes != sizeof head + sizeof *streams->connections * head.connection_count +
                     sizeof *streams->held * head.held_count + head.hold_bytes)
        return false;
    streams->segment_count = head.segment_count;
    streams->latest = head.latest;
    streams->connection_count = head.connection_count;
    streams->held_count = head.held_count;
    streams->hold_bytes = head.hold_bytes;
    stored += sizeof head;
    memcpy(streams->connections, stored, sizeof *streams->connections * head.connection_count);
    stored += sizeof *streams->connections * head.connection_count;
    memcpy(streams->held, stored, sizeof *streams->held * head.held_count);
    stored += sizeof *streams->held * head.held_count;
    memcpy(streams->hold, stored, head.hold_bytes);
    return true;
}

#include "io/tcp_fan_out.h"

#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/memory.h"

enum {
    VECTORS_MAX = 1024, /* the kernel's UIO_MAXIOV */
    SCRATCH_BYTES = UM_SEND_BATCH_BYTES_MAX + UM_LBMC_MESSAGE_BYTES_MAX,
    REPORT_LOST_INTERVAL_NS = 1000000000,
};

/* Data written at a time fits into one record, and the record into an empty backlog. */
_Static_assert((uint32_t)SCRATCH_BYTES <= (uint32_t)UM_RECORD_BYTES_MAX, "a record holds the data written at a time");
_Static_assert((uint32_t)SCRATCH_BYTES + (uint32_t)UM_RECORD_HEADER_BYTES <= (uint32_t)UM_TCP_BACKLOG_MIN,
               "and an empty backlog the record");

static int send_datagrams(um_link *link, um_address to, const um_tx *batch, uint32_t count);
static int send_oversize(um_link *link, um_address to, const um_tx *datagram);
static const um_link_ops TCP_OPS = {.send = send_datagrams, .send_oversize = send_oversize};

int um_tcp_fan_out_open(um_tcp_fan_out *fan_out, um_source_session *session, bool is_source_paced, bool is_keyed,
                        uint32_t backlog_bytes)
{
    *fan_out = (um_tcp_fan_out){
        .base = {.ops = &TCP_OPS, .can_report_space = true},
        .session = session,
        .is_source_paced = is_source_paced,
        .is_keyed = is_keyed,
        .backlog_bytes = backlog_bytes > UM_TCP_BACKLOG_MIN ? backlog_bytes : UM_TCP_BACKLOG_MIN,
        .clients = um_map(sizeof *fan_out->clients * UM_TCP_CLIENTS_MAX),
        .vectors = um_map(sizeof *fan_out->vectors * VECTORS_MAX),
        .scratch = um_map(SCRATCH_BYTES),
        .flat = is_keyed ? um_map(SCRATCH_BYTES) : NULL,
        .kept = is_keyed ? um_map(SCRATCH_BYTES) : NULL,
    };
    um_link_counters_reset(&fan_out->counters);
    bool has_record_memory = !is_keyed || (fan_out->flat && fan_out->kept);
    return fan_out->clients && fan_out->vectors && fan_out->scratch && has_record_memory ? 0 : -ENOMEM;
}

void um_tcp_fan_out_close(um_tcp_fan_out *fan_out)
{
    for (uint32_t i = 0; i < fan_out->client_limit; i++)
        if (fan_out->clients[i].state != UM_TCP_CLIENT_NONE)
            um_tcp_fan_out_leave(fan_out, &fan_out->clients[i]);
    um_unmap(fan_out->clients, sizeof *fan_out->clients * UM_TCP_CLIENTS_MAX);
    um_unmap(fan_out->vectors, sizeof *fan_out->vectors * VECTORS_MAX);
    um_unmap(fan_out->scratch, SCRATCH_BYTES);
    um_unmap(fan_out->flat, SCRATCH_BYTES);
    um_unmap(fan_out->kept, SCRATCH_BYTES);
    fan_out->clients = NULL;
    fan_out->vectors = NULL;
    fan_out->scratch = fan_out->flat = fan_out->kept = NULL;
    fan_out->client_limit = 0;
}

/* ---- clients ---- */

int um_tcp_fan_out_join(um_tcp_fan_out *fan_out, um_tcp_client *client, bool is_filtered, int64_t now_ns)
{
    uint8_t *memory = malloc(fan_out->backlog_bytes); /* not zeroed: pages are backed when first used */
    void *filter = um_allocate(um_topic_filter_footprint(UM_TOPIC_FILTER_TOPICS_MAX));
    if (memory == NULL || filter == NULL) {
        free(memory);
        free(filter);
        return -ENOMEM;
    }
    client->backlog = (um_byte_ring){.memory = memory, .capacity = fan_out->backlog_bytes};
    client->filter_memory = filter;
    um_topic_filter_init(&client->filter, filter, UM_TOPIC_FILTER_TOPICS_MAX);
    client->is_filtered = is_filtered;
    client->since_ns = client->joined_ns = now_ns;
    client->reported_lost_ns = INT64_MIN;
    client->state = UM_TCP_CLIENT_JOINED;
    fan_out->session->stream_client_count = ++fan_out->joined_count;
    return 0;
}

void um_tcp_fan_out_leave(um_tcp_fan_out *fan_out, um_tcp_client *client)
{
    fan_out->joined_count -= client->state == UM_TCP_CLIENT_JOINED;
    fan_out->session->stream_client_count = fan_out->joined_count;
    close(client->fd);
    free(client->backlog.memory);
    free(client->filter_memory);
    um_stream_tags_close(client->tags);
    client->backlog = (um_byte_ring){0};
    client->filter_memory = NULL;
    client->tags = NULL;
    client->has_failed = false;
    client->fd = -1;
    client->state = UM_TCP_CLIENT_NONE;
}

/* ---- writing ---- */

/* Writes without waiting. Returns the bytes that the connection took; marks a failed connection. */
static uint32_t write_some(um_tcp_fan_out *fan_out, um_tcp_client *client, struct iovec *vectors, uint32_t count)
{
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = count};
    uint64_t length = 0;
    for (uint32_t i = 0; i < count; i++)
        length += vectors[i].iov_len;
    ssize_t sent = sendmsg(client->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    UM_COUNT(fan_out->counters.syscalls, 1);
    if (sent >= 0) {
        UM_COUNT(fan_out->counters.short_sends, (uint64_t)sent < length);
        UM_COUNT(fan_out->counters.bytes_sent, sent);
        return (uint32_t)sent;
    }
    bool is_full = errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
    UM_COUNT(*(is_full ? &fan_out->counters.send_would_block : &fan_out->counters.send_errors), 1);
    UM_COUNT(fan_out->counters.short_sends, is_full);
    client->has_failed = !is_full;
    return 0;
}

/* Appends to the backlog the bytes of these vectors that the connection did not take. */
static void keep_rest(um_tcp_client *client, const struct iovec *vectors, uint32_t count, uint32_t taken)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = (uint32_t)vectors[i].iov_len;
        if (taken < length)
            um_byte_ring_append(&client->backlog, (const uint8_t *)vectors[i].iov_base + taken, length - taken);
        taken = taken > length ? taken - length : 0;
    }
}

/* Writes to a client with an empty backlog, which has space for all that the connection does not take. */
static void write_at_once(um_tcp_fan_out *fan_out, um_tcp_client *client, struct iovec *vectors, uint32_t count,
                          uint32_t bytes)
{
    uint32_t taken = write_some(fan_out, client, vectors, count);
    if (taken == bytes || client->has_failed)
        return;
    client->since_ns = um_clock_coarse_ns();
    keep_rest(client, vectors, count, taken);
}

void um_tcp_fan_out_flush(um_tcp_fan_out *fan_out, um_tcp_client *client, int64_t now_ns)
{
    while (client->backlog.used > 0 && !client->has_failed) {
        struct iovec vectors[2];
        uint32_t first, second = 0;
        vectors[0].iov_base = (void *)(uintptr_t)um_byte_ring_oldest(&client->backlog, &first);
        vectors[0].iov_len = first;
        if (first < client->backlog.used)
            second = client->backlog.used - first;
        vectors[1] = (struct iovec){client->backlog.memory, second};
        uint32_t taken = write_some(fan_out, client, vectors, second > 0 ? 2 : 1);
        um_byte_ring_drop(&client->backlog, taken);
        if (taken > 0)
            client->since_ns = now_ns;
        if (taken < first + second)
            return;
    }
}

/* Returns the bytes of messages that fit into the backlog; with keys, in one record. */
static uint32_t messages_space(const um_tcp_client *client)
{
    uint32_t space = um_byte_ring_space(&client->backlog), header = client->tags != NULL ? UM_RECORD_HEADER_BYTES : 0;
    return space > header ? space - header : 0;
}

/* Makes the header of a record of these messages, which the caller writes at once. Returns false, and fails the client,
 * if libcrypto fails. */
static bool seal(um_tcp_client *client, uint8_t *header, uint8_t *messages, uint32_t bytes)
{
    client->has_failed |= um_stream_tags_head(client->tags, header, messages, bytes) != 0;
    return !client->has_failed;
}

static void note_lost(um_tcp_fan_out *fan_out, um_tcp_client *client, uint64_t lost)
{
    if (lost == 0)
        return;
    client->lost_messages += lost;
    um_source_session *session = fan_out->session;
    UM_COUNT(session->counters.client_messages_lost, lost);
    int64_t now_ns = um_clock_coarse_ns();
    if (client->reported_lost_ns != INT64_MIN && now_ns - client->reported_lost_ns < REPORT_LOST_INTERVAL_NS)
        return;
    client->reported_lost_ns = now_ns;
    um_source_events_add(&session->events, UM_SOURCE_RECEIVER_LOSES, client->address, client->lost_messages);
}

/* Stores messages in a slow client's backlog; whole messages that do not fit are lost to it (source-paced). */
static void keep_whole_messages(um_tcp_fan_out *fan_out, um_tcp_client *client, const struct iovec *vectors,
                                uint32_t count)
{
    uint64_t lost = 0;
    uint32_t space = messages_space(client), kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *at = vectors[i].iov_base, *end = at + vectors[i].iov_len;
        for (uint32_t length; at < end; at += length) {
            length = um_load_be16(at + 2);
            if (length > space - kept) {
                lost += (at[0] & 0x0f) == UM_LBMC_MESSAGE;
                continue;
            }
            if (client->tags != NULL)
                memcpy(fan_out->kept + kept, at, length);
            else
                um_byte_ring_append(&client->backlog, at, length);
            kept += length;
        }
    }
    uint8_t header[UM_RECORD_HEADER_BYTES];
    if (client->tags != NULL && kept > 0 && seal(client, header, fan_out->kept, kept)) {
        um_byte_ring_append(&client->backlog, header, sizeof header);
        um_byte_ring_append(&client->backlog, fan_out->kept, kept);
    }
    note_lost(fan_out, client, lost);
}

/* Writes to a client that has space for everything. */
static void write_whole(um_tcp_fan_out *fan_out, um_tcp_client *client, struct iovec *vectors, uint32_t count,
                        uint32_t bytes)
{
    if (client->backlog.used == 0)
        write_at_once(fan_out, client, vectors, count, bytes);
    else
        keep_rest(client, vectors, count, 0);
}

/* With keys, there is one vector. */
static void write_to_client(um_tcp_fan_out *fan_out, um_tcp_client *client, struct iovec *vectors, uint32_t count,
                            uint32_t bytes)
{
    if (bytes == 0 || client->has_failed)
        return;
    if (client->backlog.used > 0 && bytes > messages_space(client))
        um_tcp_fan_out_flush(fan_out, client, um_clock_coarse_ns());
    if (client->backlog.used > 0 && bytes > messages_space(client)) {
        keep_whole_messages(fan_out, client, vectors, count);
        return;
    }
    if (client->tags == NULL) {
        write_whole(fan_out, client, vectors, count, bytes);
        return;
    }
    uint8_t header[UM_RECORD_HEADER_BYTES];
    struct iovec record[] = {{header, sizeof header}, vectors[0]};
    um_debug_assert(count == 1);
    if (um_stream_tags_encrypt(client->tags)) { /* each client has keys of its own, and the messages are shared */
        memcpy(fan_out->kept, vectors[0].iov_base, bytes);
        record[1].iov_base = fan_out->kept;
    }
    if (seal(client, header, record[1].iov_base, bytes))
        write_whole(fan_out, client, record, 2, bytes + UM_RECORD_HEADER_BYTES);
}

/* Writes only the messages that pass the client's filter. */
static void write_filtered(um_tcp_fan_out *fan_out, um_tcp_client *client, uint32_t count)
{
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += um_topic_filter_copy(&client->filter, fan_out->vectors[i].iov_base,
                                      (uint32_t)fan_out->vectors[i].iov_len, fan_out->scratch + bytes);
    struct iovec passed = {fan_out->scratch, bytes};
    write_to_client(fan_out, client, &passed, 1, bytes);
}

bool um_tcp_fan_out_send_control(um_tcp_fan_out *fan_out, um_tcp_client *client, const uint8_t *data, uint32_t length)
{
    struct iovec vector = {(void *)(uintptr_t)data, length};
    if (client->has_failed || length > messages_space(client))
        return false;
    write_to_client(fan_out, client, &vector, 1, length);
    return !client->has_failed;
}

/* ---- the link ---- */

/* Merges a part that is contiguous with the last one: the kernel copies one long piece faster than many short ones. */
static void add_vector(um_tcp_fan_out *fan_out, const uint8_t *data, uint32_t length)
{
    struct iovec *next = fan_out->vectors + fan_out->vector_count;
    if (length == 0)
        return;
    if (next > fan_out->vectors && (const uint8_t *)next[-1].iov_base + next[-1].iov_len == data) {
        next[-1].iov_len += length;
        return;
    }
    *next = (struct iovec){(void *)(uintptr_t)data, length};
    fan_out->vector_count++;
}

/* Collects the bodies of datagrams, without transport headers. Session messages and other datagrams that TCP does not
 * need have no body. Returns how many datagrams fit. */
static uint32_t gather(um_tcp_fan_out *fan_out, const um_tx *batch, uint32_t count)
{
    uint32_t bytes = 0, i = 0;
    fan_out->vector_count = 0;
    for (; i < count && fan_out->vector_count + batch[i].part_count <= VECTORS_MAX; i++) {
        const um_part *parts = batch[i].parts;
        bool is_data = (parts[0].data[0] & 0x0f) == UM_LBTRM_DATA && parts[0].length >= UM_LBTRM_DATA_BYTES;
        if (is_data) {
            add_vector(fan_out, parts[0].data + UM_LBTRM_DATA_BYTES, parts[0].length - UM_LBTRM_DATA_BYTES);
            for (uint32_t part = 1; part < batch[i].part_count; part++)
                add_vector(fan_out, parts[part].data, parts[part].length);
            bytes += batch[i].length - UM_LBTRM_DATA_BYTES;
        }
        fan_out->datagram_vectors[i] = fan_out->vector_count;
        fan_out->datagram_bytes[i] = bytes;
    }
    return i;
}

/* Returns how many of the gathered datagrams the client has space for: all if its backlog is empty. */
static uint32_t space_for(um_tcp_fan_out *fan_out, um_tcp_client *client, uint32_t count)
{
    uint32_t last = fan_out->datagram_bytes[count - 1];
    if (client->backlog.used > 0 && last > messages_space(client))
        um_tcp_fan_out_flush(fan_out, client, um_clock_coarse_ns());
    if (client->backlog.used == 0 || client->has_failed)
        return count;
    while (count > 0 && fan_out->datagram_bytes[count - 1] > messages_space(client))
        count--;
    return count;
}

/* Copies the messages into one piece: making each client's tag over one piece costs less than over many short ones. */
static struct iovec flatten(um_tcp_fan_out *fan_out, uint32_t vectors)
{
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < vectors; i++) {
        memcpy(fan_out->flat + bytes, fan_out->vectors[i].iov_base, fan_out->vectors[i].iov_len);
        bytes += (uint32_t)fan_out->vectors[i].iov_len;
    }
    return (struct iovec){fan_out->flat, bytes};
}

/* Returns true if the session waits for the client: after a penalty, once that is over and the client has caught up. */
static bool is_waited_for(um_tcp_client *client)
{
    if (UM_LIKELY(client->waited_from_ns == 0))
        return true;
    if (client->backlog.used > 0 || um_clock_coarse_ns() < client->waited_from_ns)
        return false;
    client->waited_from_ns = 0;
    return true;
}

static int send_datagrams(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    um_tcp_fan_out *fan_out = (um_tcp_fan_out *)link;
    (void)to;
    if (fan_out->joined_count == 0 || count == 0)
        return (int)count;
    count = gather(fan_out, batch, count);
    for (uint32_t i = 0; i < fan_out->client_limit && count > 0 && !fan_out->is_source_paced; i++)
        if (fan_out->clients[i].state == UM_TCP_CLIENT_JOINED && is_waited_for(&fan_out->clients[i]))
            count = space_for(fan_out, &fan_out->clients[i], count);
    if (count == 0)
        return 0;
    uint32_t vectors = fan_out->datagram_vectors[count - 1], bytes = fan_out->datagram_bytes[count - 1];
    struct iovec flat = {0};
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        um_tcp_client *client = &fan_out->clients[i];
        if (client->state != UM_TCP_CLIENT_JOINED)
            continue;
        if (client->is_filtered) {
            write_filtered(fan_out, client, vectors);
        } else if (fan_out->is_keyed) {
            if (flat.iov_base == NULL)
                flat = flatten(fan_out, vectors);
            write_to_client(fan_out, client, &flat, 1, bytes);
        } else {
            write_to_client(fan_out, client, fan_out->vectors, vectors, bytes);
        }
    }
    UM_COUNT(fan_out->counters.datagrams_sent, count);
    return (int)count;
}

static int send_oversize(um_link *link, um_address to, const um_tx *datagram)
{
    return send_datagrams(link, to, datagram, 1);
}

uint32_t um_tcp_fan_out_receivers(const um_tcp_fan_out *fan_out, uint32_t topic_index, int64_t now_ns)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        const um_tcp_client *client = &fan_out->clients[i];
        if (client->state != UM_TCP_CLIENT_JOINED || client->has_failed)
            continue;
        bool is_silent = client->request_count == 0 && now_ns - client->joined_ns >= UM_TOPICS_REPORTED_NS;
        count += client->has_every_topic || (is_silent && !client->is_filtered) ||
                 um_topic_filter_has(&client->filter, topic_index);
    }
    return count;
}

/* ---- backlogs ---- */

uint64_t um_tcp_fan_out_backlog_bytes(const um_tcp_fan_out *fan_out)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < fan_out->client_limit; i++)
        bytes += fan_out->clients[i].backlog.used;
    return bytes;
}

bool um_tcp_fan_out_is_drained(const um_tcp_fan_out *fan_out)
{
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        const um_tcp_client *client = &fan_out->clients[i];
        int queued = 0;
        if (client->state != UM_TCP_CLIENT_JOINED || client->has_failed)
            continue;
        if (client->backlog.used > 0 || (ioctl(client->fd, SIOCOUTQ, &queued) == 0 && queued > 0))
            return false;
    }
    return true;
}

#include "io/ipc_fan_out.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/wire/lbtrm.h"
#include "io/ipc_socket.h"
#include "io/ipc_wakeup.h"
#include "os/clock.h"
#include "os/memory.h"

enum { WAITED_DIVISOR = 4 }; /* a full log continues once this part of it is free, not after every message */

static int send_datagrams(um_link *link, um_address to, const um_tx *batch, uint32_t count);
static int send_oversize(um_link *link, um_address to, const um_tx *datagram);
static const um_link_ops IPC_OPS = {.send = send_datagrams, .send_oversize = send_oversize};

int um_ipc_fan_out_open(um_ipc_fan_out *fan_out, um_source_session *session, bool is_source_paced,
                        uint32_t capacity_bytes)
{
    *fan_out = (um_ipc_fan_out){.base = {.ops = &IPC_OPS, .can_report_space = true},
                                .session = session,
                                .is_source_paced = is_source_paced,
                                .log = {.fd = -1},
                                .clients = um_map(sizeof *fan_out->clients * UM_IPC_CLIENTS_MAX)};
    um_link_counters_reset(&fan_out->counters);
    size_t bytes = um_shared_log_footprint(capacity_bytes);
    int result = bytes == 0 ? -EINVAL : fan_out->clients == NULL ? -ENOMEM : 0;
    if (result == 0)
        result = um_segment_create(&fan_out->log, "umstack-lbtipc-log", bytes, true);
    if (result != 0) {
        um_unmap(fan_out->clients, sizeof *fan_out->clients * UM_IPC_CLIENTS_MAX);
        fan_out->clients = NULL;
        return result;
    }
    um_prefer_huge_pages(fan_out->log.memory, bytes);
    um_shared_writer_init(&fan_out->writer, fan_out->log.memory, capacity_bytes);
    return 0;
}

void um_ipc_fan_out_close(um_ipc_fan_out *fan_out)
{
    if (fan_out->clients == NULL)
        return;
    um_shared_writer_end(&fan_out->writer);
    for (uint32_t i = 0; i < fan_out->client_limit; i++)
        if (fan_out->clients[i].state != UM_IPC_CLIENT_NONE)
            um_ipc_fan_out_leave(fan_out, &fan_out->clients[i]);
    um_segment_close(&fan_out->log);
    um_unmap(fan_out->clients, sizeof *fan_out->clients * UM_IPC_CLIENTS_MAX);
    fan_out->clients = NULL;
    fan_out->client_limit = 0;
}

/* ---- clients ---- */

static int create_wakeups(um_ipc_client *client)
{
    client->wake_fd = um_ipc_wakeup_create();
    if (client->wake_fd < 0)
        return client->wake_fd;
    client->source_wake_fd = um_ipc_wakeup_create();
    return client->source_wake_fd < 0 ? client->source_wake_fd : 0;
}

int um_ipc_fan_out_join(um_ipc_fan_out *fan_out, um_ipc_client *client, bool has_wakeups)
{
    client->topic_memory = um_allocate(um_topic_filter_footprint(UM_TOPIC_FILTER_TOPICS_MAX));
    if (client->topic_memory == NULL)
        return -ENOMEM;
    int result = um_segment_create(&client->page, "umstack-lbtipc-reader", UM_SHARED_READER_BYTES, false);
    if (result == 0 && has_wakeups)
        result = create_wakeups(client);
    if (result != 0)
        return result;
    um_topic_filter_init(&client->topics, client->topic_memory, UM_TOPIC_FILTER_TOPICS_MAX);
    um_shared_peer_init(&client->peer, client->page.memory, &fan_out->writer);
    client->state = UM_IPC_CLIENT_JOINED;
    client->is_waited_for = client->has_failed = false;
    fan_out->session->stream_client_count = ++fan_out->joined_count;
    return 0;
}

void um_ipc_fan_out_leave(um_ipc_fan_out *fan_out, um_ipc_client *client)
{
    fan_out->joined_count -= client->state == UM_IPC_CLIENT_JOINED;
    fan_out->session->stream_client_count = fan_out->joined_count;
    close(client->fd);
    if (client->wake_fd >= 0)
        close(client->wake_fd);
    if (client->source_wake_fd >= 0)
        close(client->source_wake_fd);
    um_segment_close(&client->page);
    free(client->topic_memory);
    *client = (um_ipc_client){.fd = -1, .wake_fd = -1, .source_wake_fd = -1};
}

uint32_t um_ipc_fan_out_receivers(const um_ipc_fan_out *fan_out, uint32_t topic_index)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        const um_ipc_client *client = &fan_out->clients[i];
        count += client->state == UM_IPC_CLIENT_JOINED && !client->has_failed &&
                 (client->has_every_topic || um_topic_filter_has(&client->topics, topic_index));
    }
    return count;
}

/* Marks a client that breaks the rules; the shutdown reports its socket to the loop, which closes it. */
static void fail(um_ipc_client *client)
{
    client->has_failed = true;
    shutdown(client->fd, SHUT_RDWR);
}

void um_ipc_fan_out_update(um_ipc_fan_out *fan_out, um_ipc_client *client, int64_t now_ns)
{
    int64_t before = client->peer.position;
    if (!um_shared_peer_update(&client->peer, &fan_out->writer))
        fail(client);
    if (client->peer.position > before)
        client->since_ns = now_ns;
}

bool um_ipc_fan_out_take_space(um_ipc_client *client)
{
    bool has_space = client->is_waited_for && client->peer.position >= client->wanted_position;
    client->is_waited_for &= !has_space;
    return has_space;
}

static bool is_active(const um_ipc_client *client)
{
    return client->state == UM_IPC_CLIENT_JOINED && !client->has_failed;
}

bool um_ipc_fan_out_is_drained(um_ipc_fan_out *fan_out)
{
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        um_ipc_client *client = &fan_out->clients[i];
        if (!is_active(client))
            continue;
        um_ipc_fan_out_update(fan_out, client, um_clock_coarse_ns());
        if (!client->has_failed && client->peer.position < fan_out->writer.position)
            return false;
    }
    return true;
}

/* ---- space ---- */

/* Returns the space that a receiver leaves; if it is less than the span, asks to be woken. */
static uint32_t space_of(um_ipc_fan_out *fan_out, um_ipc_client *client, uint32_t span)
{
    int64_t now_ns = um_clock_coarse_ns();
    um_ipc_fan_out_update(fan_out, client, now_ns);
    uint32_t space = um_shared_peer_space(&client->peer, &fan_out->writer);
    if (space < span && !client->has_failed) {
        uint32_t wanted = fan_out->writer.capacity_bytes / WAITED_DIVISOR;
        client->wanted_position = um_shared_peer_want(&client->peer, &fan_out->writer, wanted > span ? wanted : span);
        um_ipc_fan_out_update(fan_out, client, now_ns);
        space = um_shared_peer_space(&client->peer, &fan_out->writer);
        if (space < span && !client->is_waited_for)
            client->since_ns = now_ns;
        client->is_waited_for = space < span;
    } else {
        client->is_waited_for = false;
    }
    return client->has_failed ? fan_out->writer.capacity_bytes : space;
}

/* Returns true if every receiver has released `span` bytes. A receiver that fails no longer counts. */
static bool has_space(um_ipc_fan_out *fan_out, uint32_t span)
{
    if (UM_LIKELY(fan_out->is_source_paced || fan_out->space_bytes >= span))
        return true;
    uint32_t least = fan_out->writer.capacity_bytes;
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        if (!is_active(&fan_out->clients[i]))
            continue;
        uint32_t space = space_of(fan_out, &fan_out->clients[i], span);
        least = space < least ? space : least;
    }
    fan_out->space_bytes = least;
    return least >= span;
}

/* ---- the link ---- */

static void wake_by_socket(um_ipc_fan_out *fan_out, um_ipc_client *client)
{
    um_ipc_control wake = um_ipc_control_make(UM_IPC_WAKE, fan_out->session->config.session_id);
    if (um_ipc_send(client->fd, &wake, NULL, 0) != 0)
        fail(client);
}

static void wake_sleepers(um_ipc_fan_out *fan_out)
{
    um_shared_writer_fence();
    for (uint32_t i = 0; i < fan_out->client_limit; i++) {
        um_ipc_client *client = &fan_out->clients[i];
        if (!is_active(client) || !um_shared_peer_take_sleep(&client->peer))
            continue;
        if (UM_LIKELY(client->wake_fd >= 0))
            um_ipc_wakeup_send(client->wake_fd);
        else
            wake_by_socket(fan_out, client);
        UM_COUNT(fan_out->counters.syscalls, 1);
    }
}

static int send_datagrams(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    um_ipc_fan_out *fan_out = (um_ipc_fan_out *)link;
    uint32_t sent = 0;
    (void)to;
    if (fan_out->joined_count == 0)
        return (int)count;
    for (; sent < count; sent++) {
        const um_tx *datagram = &batch[sent];
        uint32_t body = datagram->length - UM_LBTRM_DATA_BYTES, span = um_shared_record_span(body);
        if (UM_UNLIKELY(!has_space(fan_out, span)))
            break;
        fan_out->space_bytes -= fan_out->is_source_paced ? 0 : span;
        um_shared_writer_append(&fan_out->writer, datagram->parts, datagram->part_count, UM_LBTRM_DATA_BYTES, body);
        UM_COUNT(fan_out->counters.bytes_sent, body);
    }
    wake_sleepers(fan_out);
    UM_COUNT(fan_out->counters.datagrams_sent, sent);
    UM_COUNT(fan_out->counters.send_would_block, sent == 0 && count > 0);
    UM_COUNT(fan_out->counters.short_sends, sent < count);
    return (int)sent;
}

static int send_oversize(um_link *link, um_address to, const um_tx *datagram)
{
    return send_datagrams(link, to, datagram, 1);
}

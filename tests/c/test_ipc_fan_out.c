/* The clients of a log that its source waits for: which of them count (io/ipc_fan_out.h). */
#include "io/ipc_fan_out.h"
#include "support.h"

enum { CAPACITY = UM_SHARED_CAPACITY_MIN, CLIENTS = 3, RECORD = 100 };

TEST("UM-46", "a wait for space ends once, at the position that it wants")
{
    um_ipc_client client = {.is_waited_for = true, .wanted_position = 1000, .peer.position = 999};
    CHECK(!um_ipc_fan_out_take_space(&client));
    CHECK(client.is_waited_for);
    client.peer.position = 1000;
    CHECK(um_ipc_fan_out_take_space(&client));
    CHECK(!client.is_waited_for);
    CHECK(!um_ipc_fan_out_take_space(&client));
}

TEST("UM-46", "a log is drained once each client that has joined, and has not failed, has read it")
{
    void *memory = zeroed(um_shared_log_footprint(CAPACITY));
    um_ipc_client clients[CLIENTS] = {{0}};
    um_ipc_fan_out fan_out = {.clients = clients, .client_limit = CLIENTS};
    um_shared_writer_init(&fan_out.writer, memory, CAPACITY);
    um_shared_reader_page *pages[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        pages[i] = zeroed(UM_SHARED_READER_BYTES);
        um_shared_peer_init(&clients[i].peer, pages[i], &fan_out.writer);
        clients[i].state = UM_IPC_CLIENT_JOINED;
        clients[i].fd = clients[i].wake_fd = clients[i].source_wake_fd = -1;
    }
    clients[0].state = UM_IPC_CLIENT_GREETING;
    clients[1].has_failed = true;
    static const uint8_t body[RECORD];
    um_part part = {body, RECORD};
    um_shared_writer_append(&fan_out.writer, &part, 1, 0, RECORD);
    CHECK(!um_ipc_fan_out_is_drained(&fan_out));
    atomic_store(&pages[2]->position, fan_out.writer.position);
    CHECK(um_ipc_fan_out_is_drained(&fan_out));
    clients[0].state = UM_IPC_CLIENT_JOINED;
    CHECK(!um_ipc_fan_out_is_drained(&fan_out));
    atomic_store(&pages[0]->position, fan_out.writer.position + 1); /* it cannot have read that: it fails */
    CHECK(um_ipc_fan_out_is_drained(&fan_out));
    CHECK(clients[0].has_failed);
    for (int i = 0; i < CLIENTS; i++)
        free(pages[i]);
    free(memory);
}

CHECK_MAIN

/* A mapped LBT-IPC segment and a receiver's page that a hostile process writes, and its control messages: the reader
 * copies only bytes of the ring, into its own memory, and comes to an end; the writer accepts only positions that are
 * possible, so that it never believes in more space than the ring has.
 *
 * Some inputs are hostile receivers of a whole source (ffi/io/ipc_server.h) over real sockets, with descriptors where
 * none belong: an honest receiver gets every record, and the source frees what the others had.
 */
#include "fuzz.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../c/support.h"
#include "core/ipc/ipc_control.h"
#include "core/ipc/shared_log.h"
#include "io/ipc_server.h"
#include "io/ipc_socket.h"
#include "os/clock.h"

enum { CAPACITY = UM_SHARED_CAPACITY_MIN, STEPS_MAX = 64 };

static void read_control(fuzz_input *input)
{
    um_ipc_control message = um_ipc_control_make(UM_IPC_HELLO, 7);
    uint8_t bytes[UM_IPC_CONTROL_BYTES + 1];
    memcpy(bytes, &message, sizeof message);
    for (uint8_t changes = take_u8(input) % 8; changes > 0; changes--) {
        uint8_t at = take_u8(input) % sizeof message; /* one after the other: C leaves the order of operands open */
        bytes[at] = take_u8(input);
    }
    size_t length = take_u8(input) % 8 == 0 ? take_u8(input) % sizeof bytes : sizeof message;
    if (!um_ipc_control_decode(bytes, length, &message))
        return;
    REQUIRE(length == sizeof message && message.kind >= UM_IPC_HELLO && message.kind <= UM_IPC_TOPIC);
    bool can_share = message.topic_index % 2 != 0;
    uint16_t version = um_ipc_common_version(&message, can_share);
    REQUIRE(version == 0 || (version >= message.version_low && version <= message.version_high));
    REQUIRE(can_share || version < UM_IPC_VERSION_EVENTS);
    REQUIRE(um_ipc_judge_hello(&message, version, 7, 0, 3, 3) != UM_IPC_REASON_NONE);
    REQUIRE(um_ipc_judge_hello(&message, version, 7, 9, 0, 3) != UM_IPC_REASON_NONE || message.key == 9);
}

/* A value that is often near the one that would be right. */
static int64_t take_position(fuzz_input *input, int64_t near)
{
    uint8_t choice = take_u8(input);
    int64_t far = (int64_t)((uint64_t)take_u32(input) << 32 | take_u32(input));
    if (choice < 32)
        return far;
    int64_t step = (int64_t)take_distance(input) * (choice < 160 ? 8 : 1);
    return choice & 1 ? near + step % (2 * CAPACITY) : near - step % (2 * CAPACITY);
}

static void write_hostile(fuzz_input *input, um_shared_log_header *header, uint8_t *ring, int64_t near)
{
    uint32_t at = take_u32(input) % (CAPACITY - 8);
    uint64_t head = take_distance(input);
    memcpy(ring + (near >= 0 && at % 2 == 0 ? near % CAPACITY : at / 8 * 8), &head, sizeof head);
    int64_t end = take_position(input, near);
    atomic_store(&header->end_position, end);
    atomic_store(&header->begun_position, take_u8(input) % 2 == 0 ? end : take_position(input, near));
}

/* Returns false if the log was found broken. */
static bool read_some(um_shared_reader *reader, uint8_t *body)
{
    uint32_t length = 0;
    for (int i = 0; i < STEPS_MAX; i++) {
        switch (um_shared_reader_next(reader, body, &length)) {
        case UM_SHARED_EMPTY:
            REQUIRE(reader->position == reader->end_position);
            return true;
        case UM_SHARED_RECORD:
            REQUIRE(length <= UM_SHARED_RECORD_BYTES_MAX && reader->position <= reader->end_position);
            break;
        case UM_SHARED_OVERRUN:
            REQUIRE(reader->is_source_paced);
            break;
        case UM_SHARED_BROKEN:
            return false;
        }
        REQUIRE(reader->position % 8 == 0 && reader->offset_bytes == (uint64_t)reader->position % CAPACITY);
    }
    return true;
}

/* ---- a source and its receivers ---- */

enum { PEERS = 6, HONEST = 0, KEY = 9, TRANSPORT = 7, RECEIVERS_MAX = 4, BODY_MAX = 40000, WAKEUP_BIT = 1 << 15 };

typedef struct peer {
    int fd; /* -1: none */
    um_segment log, page;
    int wake_fd, source_wake_fd; /* eventfds; -1: none */
    um_shared_reader reader;
} peer;

static const peer ABSENT = {.fd = -1, .log = {.fd = -1}, .page = {.fd = -1}, .wake_fd = -1, .source_wake_fd = -1};

typedef struct ends {
    um_reactor reactor;
    fixture *source;
    um_ipc_server server;
    peer peers[PEERS];
    int64_t now_ns;
    uint32_t number; /* of the next record */
} ends;

static ends e;

/* Has the source look at everything, as its loop does after the events of every socket. */
static void serve(void)
{
    int64_t due_ns;
    um_ipc_server_on_event(&e.server, UM_STREAM_LISTENER, e.now_ns);
    for (uint32_t i = 0; i < UM_IPC_CLIENTS_MAX && i < e.server.fan_out.client_limit; i++) {
        um_ipc_server_on_event(&e.server, i, e.now_ns);
        um_ipc_server_on_event(&e.server, i | WAKEUP_BIT, e.now_ns);
    }
    um_ipc_server_service(&e.server, e.now_ns, &due_ns);
}

static void leave(peer *one)
{
    if (one->fd >= 0)
        close(one->fd);
    um_segment_close(&one->log);
    um_segment_close(&one->page);
    if (one->wake_fd >= 0)
        close(one->wake_fd);
    if (one->source_wake_fd >= 0)
        close(one->source_wake_fd);
    *one = ABSENT;
}

/* Maps what a WELCOME brought; the log cannot be mapped for writing. */
static void take_welcome(peer *one)
{
    um_ipc_control message;
    int fds[UM_IPC_DESCRIPTORS];
    int got = um_ipc_receive(one->fd, &message, fds);
    if (got != 1 || message.kind != UM_IPC_WELCOME || one->page.memory != NULL) {
        for (int i = 0; got > 0 && i < UM_IPC_DESCRIPTORS; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return;
    }
    REQUIRE(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[UM_IPC_LOG], 0) == MAP_FAILED);
    REQUIRE(um_segment_attach(&one->log, fds[UM_IPC_LOG], um_shared_log_footprint(message.capacity_bytes), false) == 0);
    REQUIRE(um_segment_attach(&one->page, fds[UM_IPC_PAGE], UM_SHARED_READER_BYTES, true) == 0);
    one->wake_fd = fds[UM_IPC_WAKES_RECEIVER];
    one->source_wake_fd = fds[UM_IPC_WAKES_SOURCE];
    REQUIRE((message.version_high >= UM_IPC_VERSION_EVENTS) == (one->wake_fd >= 0 && one->source_wake_fd >= 0));
    REQUIRE(um_shared_reader_init(&one->reader, one->log.memory, one->page.memory, message.capacity_bytes,
                                  message.position, message.is_source_paced != 0));
}

static void greet(peer *one)
{
    um_ipc_control hello = um_ipc_control_make(UM_IPC_HELLO, (uint32_t)getpid());
    hello.key = KEY;
    um_ipc_send(one->fd, &hello, NULL, 0);
    serve();
    take_welcome(one);
}

/* Sends a message that is often nearly right, sometimes with descriptors. */
static void send_hostile(fuzz_input *input, const peer *one)
{
    static const enum um_ipc_kind KINDS[] = {UM_IPC_HELLO, UM_IPC_WAKE, UM_IPC_TOPIC, UM_IPC_WELCOME, UM_IPC_REFUSED};
    uint8_t bytes[UM_IPC_CONTROL_BYTES + 1] = {0};
    um_ipc_control message = um_ipc_control_make(KINDS[take_u8(input) % 5], (uint32_t)getpid());
    message.key = message.kind == UM_IPC_HELLO ? KEY : take_u16(input);
    message.topic_index = take_distance(input);
    message.is_wanted = take_u8(input) % 2;
    memcpy(bytes, &message, sizeof message);
    for (uint8_t changes = take_u8(input) % 4; changes > 0; changes--) {
        uint8_t at = take_u8(input) % sizeof message;
        bytes[at] = take_u8(input);
    }
    uint8_t shape = take_u8(input);
    int fds[2] = {one->fd, STDERR_FILENO};
    memcpy(&message, bytes, sizeof message);
    if (shape % 8 == 0)
        send(one->fd, bytes, take_u8(input) % (sizeof bytes + 1), MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        um_ipc_send(one->fd, &message, fds, shape % 8 == 1 ? 2 : 0);
}

static void write_page(fuzz_input *input, const peer *one)
{
    um_shared_reader_page *page = one->page.memory;
    if (page == NULL)
        return;
    int64_t near = take_u8(input) % 2 == 0 ? e.server.fan_out.writer.position : atomic_load(&page->position);
    atomic_store(&page->position, take_position(input, near));
    atomic_store(&page->is_sleeping, take_u8(input) % 3);
    atomic_store(&page->wanted_position, take_position(input, near));
    uint64_t count = UINT64_MAX - 1 - take_u8(input) % 2; /* a full eventfd, or one that the next wake-up fills */
    if (one->wake_fd >= 0)
        (void)!write(one->wake_fd, &count, sizeof count);
    if (one->source_wake_fd >= 0)
        (void)!write(one->source_wake_fd, &count, sizeof count);
}

/* Appends a record, which the honest receiver reads at once. Returns false without space. */
static bool send_record(uint32_t length)
{
    static uint8_t datagram[UM_LBTRM_DATA_BYTES + BODY_MAX], body[UM_SHARED_RECORD_BYTES_MAX];
    um_shared_reader *reader = &e.peers[HONEST].reader;
    memset(datagram + UM_LBTRM_DATA_BYTES, (int)(e.number % 251), length);
    um_part part = {datagram, UM_LBTRM_DATA_BYTES + length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = part.length};
    um_link *link = &e.server.fan_out.base;
    if (link->ops->send(link, (um_address){0}, &tx, 1) == 0)
        return false;
    uint32_t got;
    REQUIRE(um_shared_reader_next(reader, body, &got) == UM_SHARED_RECORD && got == length);
    REQUIRE(memcmp(body, datagram + UM_LBTRM_DATA_BYTES, length) == 0);
    REQUIRE(um_shared_reader_next(reader, body, &got) == UM_SHARED_EMPTY);
    um_shared_reader_release(reader);
    e.number++;
    return true;
}

static void act(fuzz_input *input)
{
    peer *one = &e.peers[1 + take_u8(input) % (PEERS - 1)];
    uint8_t choice = take_u8(input) % 8;
    if (one->fd < 0) {
        one->fd = um_ipc_connect((uint32_t)getpid(), TRANSPORT);
        if (one->fd >= 0 && choice < 6)
            greet(one);
    } else if (choice == 0) {
        leave(one);
    } else if (choice < 3) {
        send_hostile(input, one);
    } else if (choice < 5) {
        write_page(input, one);
    } else if (choice == 5) {
        take_welcome(one);
    }
    if (choice == 6)
        e.now_ns += (int64_t)take_u16(input) * 100000;
    if (choice < 6 && choice != 4)
        serve();
    uint32_t length = take_u16(input) % BODY_MAX;
    if (!send_record(length) && !e.server.config.is_source_paced)
        REQUIRE(e.server.fan_out.joined_count > 1); /* it waits for a hostile receiver */
}

static void open_ends(uint8_t choice)
{
    static const um_reactor_loop LOOP = {0};
    if (e.source == NULL) {
        um_source_session_config config = default_config();
        config.session_id = (uint32_t)getpid();
        e.source = session_open(&config);
        REQUIRE(um_reactor_open(&e.reactor, &LOOP) == 0);
    }
    um_ipc_source_config config = {.transport_id = TRANSPORT,
                                   .capacity_bytes = CAPACITY,
                                   .receivers_max = RECEIVERS_MAX,
                                   .is_source_paced = choice & 1,
                                   .key = choice & 8 ? KEY : 0,
                                   .sm_interval_ns = NS_PER_S,
                                   .stall_timeout_ns = choice & 16 ? NS_PER_S : 0};
    e.now_ns = um_clock_coarse_ns();
    REQUIRE(um_ipc_server_open(&e.server, &e.reactor, e.source->session, (uint32_t)getpid(), 0, &config) == 0);
    for (int i = 0; i < PEERS; i++)
        e.peers[i] = ABSENT;
    e.peers[HONEST].fd = um_ipc_connect((uint32_t)getpid(), TRANSPORT);
    greet(&e.peers[HONEST]);
    REQUIRE(e.peers[HONEST].page.memory != NULL);
}

static int lowest_free(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static void run_ends(fuzz_input *input, uint8_t choice)
{
    open_ends(choice);
    int free_descriptor = lowest_free();
    while (input->left > 0)
        BOUNDED(act(input));
    for (int i = 1; i < PEERS; i++)
        leave(&e.peers[i]);
    for (int i = 0; i < 4; i++) /* a receiver may have sent more than is read at once */
        serve();
    REQUIRE(e.server.fan_out.joined_count == 1 && e.server.greeting_count == 0);
    REQUIRE(send_record(1));
    REQUIRE(lowest_free() == free_descriptor); /* the descriptors that came were closed */
    um_ipc_server_close(&e.server);
    leave(&e.peers[HONEST]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t *log, *body;
    static um_shared_reader_page *page;
    if (log == NULL) {
        log = fuzz_zeroed(um_shared_log_footprint(CAPACITY));
        body = fuzz_zeroed(UM_SHARED_RECORD_BYTES_MAX);
        page = fuzz_zeroed(UM_SHARED_READER_BYTES);
    }
    fuzz_input input = {data, size};
    if (size > 0 && (data[0] & 6) == 6) {
        run_ends(&input, take_u8(&input));
        return 0;
    }
    um_shared_writer writer;
    um_shared_peer peer;
    um_shared_reader reader;
    memset(log, 0, um_shared_log_footprint(CAPACITY));
    memset(page, 0, UM_SHARED_READER_BYTES);
    um_shared_writer_init(&writer, log, CAPACITY);
    um_shared_peer_init(&peer, page, &writer);
    bool is_source_paced = take_u8(&input) % 2 == 0;
    REQUIRE(um_shared_reader_init(&reader, log, page, CAPACITY, 0, is_source_paced));
    read_control(&input);
    while (input.left > 0) {
        write_hostile(&input, writer.header, writer.ring, reader.position);
        if (!read_some(&reader, body))
            break;
        um_shared_reader_release(&reader);
    }
    input = (fuzz_input){data, size};
    while (input.left > 0) {
        um_part part = {body, take_u16(&input)};
        if (um_shared_peer_space(&peer, &writer) >= um_shared_record_span(part.length))
            um_shared_writer_append(&writer, &part, 1, 0, part.length);
        atomic_store(&page->position, take_position(&input, peer.position));
        int64_t before = peer.position;
        bool is_accepted = um_shared_peer_update(&peer, &writer);
        REQUIRE(peer.position >= before && peer.position <= writer.position);
        REQUIRE(is_accepted || peer.position == before);
        REQUIRE(um_shared_peer_space(&peer, &writer) <= CAPACITY);
    }
    return 0;
}

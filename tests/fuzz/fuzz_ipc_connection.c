/* A hostile source over LBT-IPC, and its receiver (ffi/io/ipc_connection.h) over real sockets and segments: answers
 * that are nearly right, descriptors that are missing, of another kind, too short or not sealed, and then truncated;
 * any bytes in the log. Each call is bounded, rows are consistent, and the end leaves neither a descriptor nor a
 * mapping behind.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/delivery/delivery_controller.h"
#include "io/ipc_connection.h"
#include "io/ipc_socket.h"
#include "os/clock.h"

enum {
    CAPACITY = UM_SHARED_CAPACITY_MIN,
    TRANSPORT = 8,
    TOPIC = 7,
    CELLS = 16,
    CELL_BYTES = 2048,
    ENTRIES = 64,
    BLOCKS = 4,
    ROWS = 64,
    QUEUE_BYTES = 1 << 17,
    BODY_MAX = 300,
    HEADER_BYTES = 4096, /* of a log */
};
static const int64_t SECOND_NS = 1000000000;

/* The descriptors that a WELCOME may bring. */
enum {
    LOG,
    LOOSE_LOG,
    PAGE,
    LOOSE_PAGE,
    SHORT,
    READ_ONLY_PAGE,
    EVENT,
    BLOCKING_EVENT,
    DEVICE,
    SOCKET,
    KINDS,
    MISSING = KINDS
};

typedef struct world {
    um_reactor reactor;
    um_node node;
    um_receiver_session session;
    um_receiver receiver;
    um_delivery delivery;
    um_message_queue queue;
    um_link_counters counters;
    um_ipc_connection connection;
    uint32_t changes;
    uint32_t sqn;
    int64_t end_position; /* of the honest records in the log */
    int64_t now_ns;
} world;

static world w;
static struct {
    int listener, peer, kinds[KINDS];
    uint8_t *log, *page, *memory;
} s = {.listener = -1, .peer = -1};

static uint32_t session_id(void)
{
    return (uint32_t)getpid();
}

static int memory_file(size_t bytes, unsigned seals)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && (seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0));
    return fd;
}

static uint8_t *mapped(int fd, size_t bytes)
{
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

static void open_server(void)
{
    static const um_reactor_loop LOOP = {0};
    size_t log_bytes = um_shared_log_footprint(CAPACITY), page_bytes = UM_SHARED_READER_BYTES;
    unsigned sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    REQUIRE(um_reactor_open(&w.reactor, &LOOP) == 0);
    s.listener = um_ipc_listen(session_id(), TRANSPORT);
    s.kinds[LOG] = memory_file(log_bytes, sealed);
    s.kinds[LOOSE_LOG] = memory_file(log_bytes, 0);
    s.kinds[PAGE] = memory_file(page_bytes, sealed);
    s.kinds[LOOSE_PAGE] = memory_file(page_bytes, F_SEAL_GROW);
    s.kinds[SHORT] = memory_file(8, sealed);
    s.kinds[READ_ONLY_PAGE] = memory_file(page_bytes, sealed | F_SEAL_WRITE);
    s.kinds[EVENT] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s.kinds[BLOCKING_EVENT] = eventfd(0, EFD_CLOEXEC);
    s.kinds[DEVICE] = open("/dev/zero", O_RDWR | O_CLOEXEC);
    s.kinds[SOCKET] = s.listener;
    s.log = mapped(s.kinds[LOG], log_bytes);
    s.page = mapped(s.kinds[PAGE], page_bytes);
    s.memory = fuzz_zeroed(4 << 20);
    REQUIRE(s.listener >= 0 && s.kinds[EVENT] >= 0 && s.kinds[BLOCKING_EVENT] >= 0 && s.kinds[DEVICE] >= 0);
}

static uint8_t *part(size_t *used, size_t bytes)
{
    uint8_t *at = s.memory + *used;
    *used += um_align_up(bytes, UM_CACHE_LINE_BYTES);
    REQUIRE(*used < 4 << 20);
    return memset(at, 0, bytes);
}

static void open_receiver(uint8_t choice)
{
    size_t used = 0;
    um_reactor reactor = w.reactor;
    memset(&w, 0, sizeof w);
    w.reactor = reactor;
    w.now_ns = um_clock_ns();
    um_node_init(&w.node);
    um_reorder_init(&w.node.store, part(&used, um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES)), CELLS, CELL_BYTES,
                    ENTRIES);
    um_queue_init(&w.queue, part(&used, um_queue_footprint(BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN)),
                  BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    REQUIRE(um_node_add_queue(&w.node, &w.queue));
    w.receiver = (um_receiver){.config = {.ordered_delivery = choice & 1 ? UM_ORDERED_SEQUENCE : UM_ORDERED_ARRIVAL},
                               .queue = &w.queue,
                               .store = &w.node.store,
                               .context_counters = &w.node.counters};
    um_receiver_session_config config = {
        .id = {um_address_of_v4(0x7f000001, TRANSPORT), (um_address){0}, session_id(), UM_TRANSPORT_LBTIPC, 0},
        .activity_timeout_ns = 10 * SECOND_NS,
        .connection_timeout_ns = 10 * SECOND_NS,
        .datagram_max_bytes = 1472,
        .loss_capacity = 64,
        .topic_capacity = 4,
        .random_seed = choice,
    };
    um_receiver_session_init(&w.session, part(&used, um_receiver_session_footprint(&config)), &config, NULL,
                             &w.node.store, w.now_ns);
    REQUIRE(um_node_add_session(&w.node, &w.session));
    um_delivery_init(&w.delivery, &w.receiver, 1, 0, TOPIC, SECOND_NS);
    REQUIRE(um_receiver_session_map(&w.session, &w.delivery, w.now_ns));
    REQUIRE(um_ipc_connection_open(&w.connection, &w.reactor, &w.node, &w.session, 0, &w.changes, &w.counters) == 0);
    memset(s.log, 0, um_shared_log_footprint(CAPACITY));
    um_shared_writer writer;
    um_shared_writer_init(&writer, s.log, CAPACITY);
    REQUIRE(ftruncate(s.kinds[LOOSE_LOG], (off_t)um_shared_log_footprint(CAPACITY)) == 0);
    REQUIRE(pwrite(s.kinds[LOOSE_LOG], s.log, HEADER_BYTES, 0) == HEADER_BYTES);
    REQUIRE(ftruncate(s.kinds[LOOSE_PAGE], UM_SHARED_READER_BYTES) == 0 || errno == EPERM);
}

/* ---- the source ---- */

static void leave(void)
{
    if (s.peer >= 0)
        close(s.peer);
    s.peer = -1;
}

static void send_with(const uint8_t *bytes, size_t length, const int *fds, uint32_t count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * KINDS)];
        struct cmsghdr align;
    } space = {{0}};
    struct iovec vector = {(void *)(uintptr_t)bytes, length};
    struct msghdr out = {.msg_iov = &vector, .msg_iovlen = 1};
    if (count > 0) {
        out.msg_control = &space;
        out.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *control = CMSG_FIRSTHDR(&out);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(control), fds, sizeof(int) * count);
    }
    (void)!sendmsg(s.peer, &out, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Sends a message, a WELCOME at first, that is often nearly right. */
static void answer(fuzz_input *input)
{
    static const enum um_ipc_kind KIND[] = {UM_IPC_WELCOME, UM_IPC_WELCOME, UM_IPC_WAKE, UM_IPC_REFUSED, UM_IPC_HELLO};
    um_ipc_control message = um_ipc_control_make(KIND[take_u8(input) % 5], session_id());
    message.version_low = message.version_high = UM_IPC_VERSION_HIGH - take_u8(input) % 2;
    message.capacity_bytes = CAPACITY;
    message.is_source_paced = take_u8(input) & 1;
    uint8_t bytes[UM_IPC_CONTROL_BYTES + 1] = {0};
    memcpy(bytes, &message, sizeof message);
    for (uint8_t changes = take_u8(input) % 4; changes > 0; changes--) {
        uint8_t at = take_u8(input) % sizeof message;
        bytes[at] = take_u8(input);
    }
    uint8_t choice = take_u8(input);
    int fds[KINDS] = {s.kinds[choice & 4 ? LOOSE_LOG : LOG], s.kinds[choice & 8 ? LOOSE_PAGE : PAGE], s.kinds[EVENT],
                      s.kinds[choice & 16 ? BLOCKING_EVENT : EVENT]};
    uint32_t count = UM_IPC_DESCRIPTORS;
    if (choice & 1) {
        count = 0;
        for (uint8_t more = take_u8(input) % 7; more > 0; more--) {
            uint8_t kind = take_u8(input) % (KINDS + 1);
            if (kind != MISSING)
                fds[count++] = s.kinds[kind];
        }
    }
    send_with(bytes, choice & 2 ? take_u8(input) % sizeof bytes : sizeof message, fds, count);
}

static void set_ends(fuzz_input *input)
{
    um_shared_log_header *header = (um_shared_log_header *)s.log;
    int64_t end = w.end_position;
    uint8_t choice = take_u8(input);
    if (choice >= 200)
        end += ((int64_t)take_distance(input) - 8) * (choice & 1 ? 8 : 1);
    if (choice >= 250)
        end = (int64_t)((uint64_t)take_u32(input) << 32 | take_u32(input));
    atomic_store(&header->begun_position, choice & 2 ? end : end + take_distance(input));
    atomic_store(&header->end_position, end);
}

/* Writes a record with a message behind the last one, some bytes of which are changed. */
static void write_record(fuzz_input *input)
{
    uint8_t *ring = s.log + um_shared_log_footprint(CAPACITY) - CAPACITY, record[8 + BODY_MAX + 64] = {0};
    um_lbmc_layout layout = {.topic_index = TOPIC, .sqn = w.sqn++, .payload_length = take_u16(input) % BODY_MAX};
    uint8_t *payload = um_lbmc_write_message(record + 8, &layout);
    uint64_t length = (uint64_t)(payload - (record + 8)) + layout.payload_length;
    memcpy(record, &length, sizeof length);
    uint32_t span = (uint32_t)um_align_up(8 + length, 8);
    for (uint8_t changes = take_u8(input) % 4; changes > 0; changes--) {
        uint8_t at = take_u8(input);
        record[at % span] = take_u8(input);
    }
    uint32_t at = (uint32_t)(w.end_position % CAPACITY);
    if (at + span > CAPACITY)
        return;
    memcpy(ring + at, record, span);
    w.end_position += span;
    set_ends(input);
}

static void act(fuzz_input *input)
{
    um_ipc_peer ignored;
    um_ipc_control wake = um_ipc_control_make(UM_IPC_WAKE, session_id());
    switch (take_u8(input) % 10) {
    case 0:
    case 1:
        leave();
        s.peer = um_ipc_accept(s.listener, &ignored);
        answer(input);
        break;
    case 2:
        answer(input);
        break;
    case 3:
    case 4:
    case 5:
        write_record(input);
        break;
    case 6:
        set_ends(input);
        break;
    case 7: {
        uint64_t count = take_u8(input) % 2 ? 1 : UINT64_MAX - 1;
        um_ipc_send(s.peer, &wake, NULL, 0);
        (void)!write(s.kinds[EVENT], &count, sizeof count);
        break;
    }
    case 8:
        leave();
        break;
    default: /* a file that is not sealed may lose its pages at any time */
        (void)!ftruncate(s.kinds[LOOSE_LOG], 0);
        (void)!ftruncate(s.kinds[LOOSE_PAGE], 0);
        memset(s.page, take_u8(input), UM_SHARED_READER_BYTES);
    }
}

/* ---- the receiver ---- */

static void read_rows(void)
{
    um_rows rows = um_queue_take(&w.queue, ROWS);
    for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
        const um_block *block = rows.block;
        REQUIRE(block->sources[i] == 0 && block->offsets[i] <= block->offsets[i + 1]);
        REQUIRE(um_row_kind_of(block->flags[i]) != UM_ROW_MESSAGE ||
                block->offsets[i + 1] - block->offsets[i] <= UM_SHARED_RECORD_BYTES_MAX);
    }
    if (rows.count > 0)
        um_queue_release(rows.block, rows.count);
}

static void receive(fuzz_input *input)
{
    bool more;
    w.now_ns += (int64_t)take_u8(input) * 1000000;
    BOUNDED(um_ipc_connection_tick(&w.connection, w.now_ns));
    if (take_u8(input) & 1)
        um_ipc_connection_arm(&w.connection);
    BOUNDED(um_ipc_connection_receive(&w.connection, w.now_ns, &more));
    read_rows();
}

static int lowest_free(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (s.listener < 0)
        open_server();
    fuzz_input input = {data, size};
    open_receiver(take_u8(&input));
    int free_descriptor = lowest_free();
    while (input.left > 0 && !w.session.has_ended) {
        receive(&input);
        act(&input);
    }
    um_ipc_connection_close(&w.connection);
    REQUIRE(w.connection.log.memory == NULL && w.connection.page.memory == NULL);
    leave();
    um_ipc_peer ignored;
    for (int fd; (fd = um_ipc_accept(s.listener, &ignored)) >= 0;)
        close(fd);
    REQUIRE(lowest_free() == free_descriptor);
    return 0;
}

/* A mapped LBT-IPC segment and a receiver's page that a hostile process writes, and its control messages: the reader
 * copies only bytes of the ring, into its own memory, and comes to an end; the writer accepts only positions that are
 * possible, so that it never believes in more space than the ring has.
 */
#include "fuzz.h"

#include "core/ipc/ipc_control.h"
#include "core/ipc/shared_log.h"

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
    uint16_t version = um_ipc_common_version(&message);
    REQUIRE(version == 0 || (version >= message.version_low && version <= message.version_high));
    REQUIRE(um_ipc_judge_hello(&message, 7, 0, 3, 3) != UM_IPC_REASON_NONE);
    REQUIRE(um_ipc_judge_hello(&message, 7, 9, 0, 3) != UM_IPC_REASON_NONE || message.key == 9);
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

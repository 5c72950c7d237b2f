/* The rings of AF_XDP without a kernel: the test plays the kernel at the other end of the shared memory. */
#include <fcntl.h>
#include <unistd.h>

#include "xsk/nic_clock.h"
#include "xsk/queue.h"

#include "../bpf/steering_time.h"
#include "core/foundation/random.h"
#include "support.h"

enum {
    FRAME_BYTES = 2048,
    RECEIVE_FRAMES = 64,
    SEND_FRAMES = 32,
    HEADROOM_BYTES = 256,
    CONTINUED = 1, /* XDP_PKT_CONTD */
};

static const um_address FROM = UM_ADDRESS_V4(0x0a4d0001, 14390), GROUP = UM_ADDRESS_V4(0xe00a0a0a, 14400);
static const uint8_t MAC[UM_MAC_BYTES] = {2, 0, 0, 0, 0, 7};
static const uint16_t TAGS[] = {0, 100, 7 << 13 | 4094}; /* none, a VLAN, a VLAN with a priority */
enum { TAG_COUNT = sizeof TAGS / sizeof TAGS[0] };

typedef struct ring_memory {
    uint32_t producer;
    uint32_t consumer;
    uint32_t flags;
    uint64_t entries[RECEIVE_FRAMES * 2]; /* addresses, or descriptors of twice the size */
} ring_memory;

typedef struct rings {
    um_xsk_queue queue;
    um_xsk_template made;
    ring_memory fill, receive, send, completion;
    void *bookkeeping;
    uint8_t *assembly;
} rings;

static void set_up_producer(struct xsk_ring_prod *ring, ring_memory *memory, uint32_t size)
{
    *ring = (struct xsk_ring_prod){.cached_cons = size,
                                   .mask = size - 1,
                                   .size = size,
                                   .producer = &memory->producer,
                                   .consumer = &memory->consumer,
                                   .ring = memory->entries,
                                   .flags = &memory->flags};
}

static void set_up_consumer(struct xsk_ring_cons *ring, ring_memory *memory, uint32_t size)
{
    *ring = (struct xsk_ring_cons){.mask = size - 1,
                                   .size = size,
                                   .producer = &memory->producer,
                                   .consumer = &memory->consumer,
                                   .ring = memory->entries,
                                   .flags = &memory->flags};
}

static rings *rings_open_tagged(bool multi_buffer, uint16_t tag_control)
{
    rings *r = zeroed(sizeof *r);
    um_xsk_queue *queue = &r->queue;
    queue->area = zeroed((size_t)(RECEIVE_FRAMES + SEND_FRAMES) * FRAME_BYTES);
    queue->frame_bytes = FRAME_BYTES;
    queue->receive_frame_count = RECEIVE_FRAMES;
    queue->send_frame_count = SEND_FRAMES;
    queue->multi_buffer = multi_buffer;
    queue->headroom_bytes = HEADROOM_BYTES;
    queue->header_bytes = um_xsk_header_bytes(tag_control);
    queue->verify_checksum = true;
    set_up_producer(&queue->fill, &r->fill, RECEIVE_FRAMES);
    set_up_consumer(&queue->receive, &r->receive, RECEIVE_FRAMES);
    set_up_producer(&queue->send, &r->send, SEND_FRAMES);
    set_up_consumer(&queue->completion, &r->completion, SEND_FRAMES);
    r->bookkeeping = zeroed(um_xsk_queue_footprint(RECEIVE_FRAMES, SEND_FRAMES));
    r->assembly = zeroed(UM_XSK_ASSEMBLY_BYTES);
    um_xsk_queue_init(queue, r->bookkeeping, r->assembly);
    um_xsk_template_init(&r->made, MAC, tag_control, FROM, GROUP, 16, 0);
    return r;
}

static rings *rings_open(bool multi_buffer)
{
    return rings_open_tagged(multi_buffer, 0);
}

static void rings_close(rings *r)
{
    free(r->queue.area);
    free(r->bookkeeping);
    free(r->assembly);
    free(r);
}

/* ---- the kernel's side ---- */

static uint32_t frames_to_fill(const rings *r)
{
    return r->fill.producer - r->fill.consumer;
}

/* Puts a frame into the receive ring, over several descriptors if necessary; false if the fill ring is empty. */
static bool kernel_receive(rings *r, const uint8_t *frame, uint32_t length)
{
    enum { SPACE = FRAME_BYTES - HEADROOM_BYTES };
    struct xdp_desc *descriptors = (struct xdp_desc *)r->receive.entries;
    uint32_t pieces = (length + SPACE - 1) / SPACE;
    if (frames_to_fill(r) < pieces)
        return false;
    for (uint32_t i = 0; i < pieces; i++) {
        uint32_t bytes = length < SPACE ? length : SPACE;
        uint64_t address = r->fill.entries[r->fill.consumer++ % RECEIVE_FRAMES] + HEADROOM_BYTES;
        memcpy(r->queue.area + address, frame, bytes);
        descriptors[r->receive.producer++ % RECEIVE_FRAMES] =
            (struct xdp_desc){address, bytes, i + 1 < pieces ? CONTINUED : 0};
        frame += bytes;
        length -= bytes;
    }
    return true;
}

/* Takes one packet from the send ring into `frame` and optionally completes it. Returns 0 if there is none. */
static uint32_t kernel_send(rings *r, uint8_t *frame, bool completes)
{
    const struct xdp_desc *descriptors = (const struct xdp_desc *)r->send.entries;
    uint32_t length = 0;
    while (r->send.consumer != r->send.producer) {
        struct xdp_desc piece = descriptors[r->send.consumer++ % SEND_FRAMES];
        memcpy(frame + length, r->queue.area + piece.addr, piece.len);
        length += piece.len;
        if (completes)
            r->completion.entries[r->completion.producer++ % SEND_FRAMES] = piece.addr;
        if (!(piece.options & CONTINUED))
            break;
    }
    return length;
}

/* ---- packets ---- */

static uint16_t naive_sum(const uint8_t *data, uint32_t length, uint32_t sum)
{
    for (uint32_t i = 0; i < length; i++)
        sum += i % 2 == 0 ? (uint32_t)data[i] << 8 : data[i];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static uint32_t write_packet(const rings *r, uint8_t *frame, const uint8_t *payload, uint32_t length)
{
    memcpy(frame + r->made.header_bytes, payload, length);
    um_xsk_write_headers(&r->made, frame, length, um_internet_sum(payload, length, 0));
    return r->made.header_bytes + length;
}

/* Corrects the checksum of an IP header that the test has changed. */
static void correct_ip(uint8_t *ip)
{
    memset(ip + UM_IPV4_CHECKSUM_AT, 0, 2);
    um_store_be16(ip + UM_IPV4_CHECKSUM_AT, (uint16_t)~naive_sum(ip, (ip[0] & 15u) * 4, 0));
}

/* A copy at the end of its memory, so that the sanitizer detects a read beyond it. The caller frees *memory. */
static uint8_t *copy_to_the_end(const uint8_t *data, uint32_t length, uint8_t **memory)
{
    size_t bytes = um_align_up(length + 1, UM_CACHE_LINE_BYTES);
    *memory = zeroed(bytes);
    memcpy(*memory + bytes - length, data, length);
    return *memory + bytes - length;
}

static void fill_random(um_random *random, uint8_t *data, uint32_t length)
{
    for (uint32_t i = 0; i < length; i++)
        data[i] = (uint8_t)um_random_below(random, 256);
}

static void check_headers(uint16_t tag_control)
{
    rings *r = rings_open_tagged(false, tag_control);
    um_random random = {check_seed()};
    uint8_t payload[300], frame[UM_XSK_TAGGED_HEADER_BYTES + sizeof payload];
    for (uint32_t length = 0; length <= sizeof payload; length++) {
        fill_random(&random, payload, length);
        CHECK_EQ(write_packet(r, frame, payload, length), UM_XSK_HEADER_BYTES + (tag_control != 0 ? 4 : 0) + length);
        const uint8_t group[] = {1, 0, 0x5e, 0x0a, 0x0a, 0x0a};
        CHECK_BYTES(frame, group, sizeof group);
        CHECK_BYTES(frame + 6, MAC, sizeof MAC);
        const uint8_t *type = frame + 12;
        if (tag_control != 0) {
            CHECK_EQ(um_load_be16(type), 0x8100);
            CHECK_EQ(um_load_be16(type + 2), tag_control);
            type += 4;
        }
        CHECK_EQ(um_load_be16(type), 0x0800);
        const uint8_t *ip = type + 2, *udp = ip + UM_IPV4_HEADER_BYTES;
        CHECK_EQ(um_load_be16(ip + 2), 28 + length);
        CHECK_EQ(um_load_be32(ip + 4), 0x4000); /* identification 0, don't fragment */
        CHECK_EQ(ip[8], 16);
        CHECK_EQ(naive_sum(ip, UM_IPV4_HEADER_BYTES, 0), 0xffff);
        CHECK_EQ(naive_sum(udp, 8 + length, naive_sum(ip + 12, 8, 17 + 8 + length)), 0xffff);
        CHECK(um_load_be16(udp + 6) != 0);
        CHECK_BYTES(udp + 8, payload, length);
    }
    rings_close(r);
}

TEST("W6", "headers: the group's address, the tag, the kernel's values, right checksums at every length")
{
    for (int i = 0; i < TAG_COUNT; i++)
        check_headers(TAGS[i]);
}

TEST("W4", "a tag takes four bytes of a frame, and the largest sendable datagram fits a received frame")
{
    for (int i = 0; i < TAG_COUNT; i++) {
        rings *r = rings_open_tagged(false, TAGS[i]);
        static uint8_t payload[FRAME_BYTES], frame[FRAME_BYTES + UM_XSK_TAGGED_HEADER_BYTES];
        uint32_t most = um_xsk_queue_datagram_max(&r->queue);
        CHECK_EQ(most, FRAME_BYTES - HEADROOM_BYTES - 42 - (TAGS[i] != 0 ? 4 : 0));
        um_part part = {payload, most};
        um_tx tx = {.parts = &part, .part_count = 1, .length = most};
        CHECK_EQ(um_xsk_queue_send(&r->queue, &r->made, &tx, 1), 1);
        uint32_t sent = kernel_send(r, frame, true);
        CHECK_EQ(sent, FRAME_BYTES - HEADROOM_BYTES);
        um_rx batch[2];
        CHECK(kernel_receive(r, frame, sent));
        CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 2), 1);
        CHECK_EQ(batch[0].length, most);
        um_xsk_queue_release(&r->queue);
        part.length = tx.length = most + 1;
        CHECK_EQ(um_xsk_queue_send(&r->queue, &r->made, &tx, 1), -EMSGSIZE);
        rings_close(r);
    }
}

TEST("W6", "reading: VLAN tags and IP options are skipped, and a frame cut anywhere is refused")
{
    rings *r = rings_open(false);
    const uint8_t payload[] = "seventeen bytes!!";
    uint8_t plain[128], frame[256];
    uint32_t plain_length = write_packet(r, plain, payload, 17), length = 12;
    memcpy(frame, plain, length);
    const uint8_t tags[] = {0x88, 0xa8, 0, 5, 0x81, 0, 0, 6};
    memcpy(frame + length, tags, sizeof tags);
    length += sizeof tags;
    memcpy(frame + length, plain + 12, 2 + UM_IPV4_HEADER_BYTES);
    uint8_t *ip = frame + length + 2;
    length += 2 + UM_IPV4_HEADER_BYTES;
    ip[0] = 0x46; /* one word of options */
    um_store_be16(ip + 2, (uint16_t)(um_load_be16(ip + 2) + 4));
    memset(frame + length, 1, 4);
    correct_ip(ip);
    length += 4;
    memcpy(frame + length, plain + 34, plain_length - 34);
    length += plain_length - 34;
    um_rx rx = {0};
    CHECK_EQ(um_xsk_read_headers(frame, length, true, &rx), UM_XSK_READ);
    CHECK_EQ(rx.length, 17);
    CHECK_BYTES(rx.data, payload, 17);
    CHECK(um_address_equal(rx.from, FROM) && um_address_equal(rx.to, GROUP));
    for (uint32_t cut = 0; cut < length; cut++) {
        uint8_t *memory;
        CHECK_EQ(um_xsk_read_headers(copy_to_the_end(frame, cut, &memory), cut, true, &rx), UM_XSK_TRUNCATED);
        free(memory);
    }
    rings_close(r);
}

TEST("W6", "reading: fragments, other protocols and wrong checksums are refused; a checksum left to the NIC is not")
{
    rings *r = rings_open(false);
    const uint8_t payload[] = "0123456789";
    uint8_t frame[128];
    um_rx rx;
    uint32_t length = write_packet(r, frame, payload, 10);
    uint8_t *ip = frame + UM_ETHERNET_HEADER_BYTES, *udp = ip + UM_IPV4_HEADER_BYTES;
    ip[6] = 0x20;
    CHECK_EQ(um_xsk_read_headers(frame, length, false, &rx), UM_XSK_NOT_UDP);
    ip[6] = 0x40;
    ip[9] = 6;
    CHECK_EQ(um_xsk_read_headers(frame, length, false, &rx), UM_XSK_NOT_UDP);
    ip[9] = 17;
    frame[12] = 0x86;
    CHECK_EQ(um_xsk_read_headers(frame, length, false, &rx), UM_XSK_NOT_UDP);
    frame[12] = 0x08;
    frame[length - 1] ^= 1;
    CHECK_EQ(um_xsk_read_headers(frame, length, false, &rx), UM_XSK_READ);
    CHECK_EQ(um_xsk_read_headers(frame, length, true, &rx), UM_XSK_BAD_CHECKSUM);
    um_store_be16(udp + 6, naive_sum(ip + 12, 8, 17 + 8 + 10));
    CHECK_EQ(um_xsk_read_headers(frame, length, true, &rx), UM_XSK_READ);
    um_store_be16(udp + 6, 0);
    CHECK_EQ(um_xsk_read_headers(frame, length, true, &rx), UM_XSK_READ);
    rings_close(r);
}

TEST("W6", "reading: damaged IP headers, malformed options, source routes and impossible sources are refused")
{
    rings *r = rings_open(false);
    const uint8_t payload[] = "0123456789";
    uint8_t plain[128], frame[128];
    um_rx rx;
    uint32_t length = write_packet(r, plain, payload, 10);
    const uint8_t *ip = plain + UM_ETHERNET_HEADER_BYTES;
    for (uint32_t at = 0; at < 8 * UM_IPV4_HEADER_BYTES; at++) {
        memcpy(frame, plain, length);
        frame[UM_ETHERNET_HEADER_BYTES + at / 8] ^= (uint8_t)(1u << at % 8);
        CHECK(um_xsk_read_headers(frame, length, false, &rx) != UM_XSK_READ);
    }
    static const uint32_t martians[] = {0, 0x7f000001, 0xe0000001, 0xef010101, 0xffffffff};
    for (uint32_t i = 0; i < sizeof martians / sizeof martians[0]; i++) {
        memcpy(frame, plain, length);
        um_store_be32(frame + UM_ETHERNET_HEADER_BYTES + UM_IPV4_FROM_AT, martians[i]);
        correct_ip(frame + UM_ETHERNET_HEADER_BYTES);
        CHECK_EQ(um_xsk_read_headers(frame, length, false, &rx), UM_XSK_MARTIAN);
    }
    static const struct {
        uint8_t options[4];
        enum um_xsk_refusal refusal;
    } cases[] = {
        {{1, 1, 1, 0}, UM_XSK_READ},      {{0x1e, 4, 0, 0}, UM_XSK_READ},   {{148, 4, 0, 0}, UM_XSK_READ},
        {{0, 1, 1, 0x1e}, UM_XSK_READ},   {{1, 1, 1, 0x1e}, UM_XSK_BAD_IP}, {{0x1e, 0, 0, 0}, UM_XSK_BAD_IP},
        {{0x1e, 1, 0, 0}, UM_XSK_BAD_IP}, {{0x1e, 5, 0, 0}, UM_XSK_BAD_IP}, {{131, 3, 4, 0}, UM_XSK_BAD_IP},
        {{137, 3, 4, 0}, UM_XSK_BAD_IP},  {{7, 3, 3, 0}, UM_XSK_BAD_IP},    {{7, 3, 3 + 1, 0}, UM_XSK_READ},
        {{68, 4, 4, 0}, UM_XSK_BAD_IP},   {{68, 3, 5, 0}, UM_XSK_BAD_IP},   {{148, 3, 0, 0}, UM_XSK_BAD_IP},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t *at = frame + UM_ETHERNET_HEADER_BYTES;
        memcpy(frame, plain, UM_ETHERNET_HEADER_BYTES + UM_IPV4_HEADER_BYTES);
        at[0]++;
        um_store_be16(at + UM_IPV4_LENGTH_AT, (uint16_t)(um_load_be16(ip + UM_IPV4_LENGTH_AT) + 4));
        memcpy(at + UM_IPV4_HEADER_BYTES, cases[i].options, 4);
        memcpy(at + UM_IPV4_HEADER_BYTES + 4, ip + UM_IPV4_HEADER_BYTES, length - UM_ETHERNET_HEADER_BYTES - 20);
        correct_ip(at);
        CHECK_EQ(um_xsk_read_headers(frame, length + 4, true, &rx), cases[i].refusal);
    }
    rings_close(r);
}

TEST("W6", "reading: damaged and arbitrary frames are not read beyond their end")
{
    rings *r = rings_open(false);
    um_random random = {check_seed()};
    uint8_t payload[64], frame[UM_XSK_HEADER_BYTES + sizeof payload];
    for (int round = 0; round < 50000; round++) {
        uint32_t length = UM_XSK_HEADER_BYTES + (uint32_t)um_random_below(&random, sizeof payload);
        uint8_t *memory;
        fill_random(&random, payload, sizeof payload);
        write_packet(r, frame, payload, length - UM_XSK_HEADER_BYTES);
        for (uint64_t bends = um_random_below(&random, 6); bends > 0; bends--)
            frame[um_random_below(&random, length)] = (uint8_t)um_random_below(&random, 256);
        um_rx rx;
        uint32_t said = (uint32_t)um_random_below(&random, length + 1);
        const uint8_t *copy = copy_to_the_end(frame, said, &memory);
        if (um_xsk_read_headers(copy, said, true, &rx) == UM_XSK_READ)
            CHECK(rx.data >= copy && rx.data + rx.length <= copy + said);
        free(memory);
    }
    rings_close(r);
}

/* ---- the queue ---- */

TEST("W6", "receiving: each datagram is received once and in order, from one frame or several, and all frames return")
{
    enum { ROUNDS = 4000, DATAGRAM_MAX = 9000 };
    rings *r = rings_open(true);
    um_random random = {check_seed()};
    static uint8_t payload[DATAGRAM_MAX], frame[DATAGRAM_MAX + UM_XSK_HEADER_BYTES];
    uint32_t arrived = 0, received = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t burst = um_random_below(&random, 40); burst > 0; burst--) {
            uint32_t most = um_random_below(&random, 4) == 0 ? DATAGRAM_MAX : 600;
            uint32_t length = 4 + (uint32_t)um_random_below(&random, most - 4);
            memset(payload, (int)(arrived & 255), length);
            um_store_be32(payload, arrived);
            arrived += kernel_receive(r, frame, write_packet(r, frame, payload, length));
        }
        um_rx batch[16];
        uint32_t count = um_xsk_queue_receive(&r->queue, batch, 1 + (uint32_t)um_random_below(&random, 16));
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ(um_load_be32(batch[i].data), received);
            for (uint32_t at = 4; at < batch[i].length; at++)
                CHECK_EQ(batch[i].data[at], received & 255);
            received++;
        }
        um_xsk_queue_release(&r->queue);
    }
    um_rx batch[64];
    while (received < arrived) {
        received += um_xsk_queue_receive(&r->queue, batch, 64);
        um_xsk_queue_release(&r->queue);
    }
    CHECK_EQ(frames_to_fill(r), RECEIVE_FRAMES);
    CHECK_EQ(r->queue.counters.datagrams_received, arrived);
    CHECK(r->queue.counters.ring_multi_buffer > 100);
    CHECK_EQ(r->queue.counters.ring_frames_refused, 0);
    rings_close(r);
}

/* Writes the times in front of a frame, as a timed program does. */
static void note_times(rings *r, uint32_t mark, int64_t kernel_ns, int64_t nic_ns)
{
    const struct xdp_desc *last =
        (const struct xdp_desc *)r->receive.entries + (r->receive.producer - 1) % RECEIVE_FRAMES;
    struct steering_time time = {.mark = mark};
    memcpy(time.kernel_ns, &kernel_ns, sizeof kernel_ns);
    memcpy(time.nic_ns, &nic_ns, sizeof nic_ns);
    memcpy(r->queue.area + last->addr - sizeof time, &time, sizeof time);
}

static int64_t time_of_next(rings *r, uint32_t mark, int64_t kernel_ns, int64_t nic_ns)
{
    const uint8_t payload[] = "timed";
    uint8_t frame[128];
    um_rx rx;
    CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, 5)));
    note_times(r, mark, kernel_ns, nic_ns);
    CHECK_EQ(um_xsk_queue_receive(&r->queue, &rx, 1), 1);
    um_xsk_queue_release(&r->queue);
    return rx.received_ns;
}

TEST("W6", "receiving: a datagram has the time written in front of its frame, once, or none")
{
    rings *r = rings_open(false);
    CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, 5000, 0), 0);
    r->queue.reads_times = true;
    CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, 5000, 0), 5000);
    CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, INT64_MAX, 0), INT64_MAX);
    CHECK_EQ(r->queue.counters.ring_times_missing, 0);
    CHECK_EQ(time_of_next(r, 0, 5000, 0), 0);
    CHECK_EQ(r->queue.counters.ring_times_missing, 1);
    /* Every frame has been used with times: reused without, it must not show the old ones. */
    for (uint32_t i = 0; i < 2 * RECEIVE_FRAMES; i++)
        CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, 7000 + i, 0), 7000 + i);
    const uint8_t payload[] = "bare";
    uint8_t frame[128];
    um_rx rx;
    for (uint32_t i = 0; i < 2 * RECEIVE_FRAMES; i++) {
        CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, 4)));
        CHECK_EQ(um_xsk_queue_receive(&r->queue, &rx, 1), 1);
        CHECK_EQ(rx.received_ns, 0);
        um_xsk_queue_release(&r->queue);
    }
    CHECK_EQ(r->queue.counters.ring_times_missing, 1 + 2 * RECEIVE_FRAMES);
    rings_close(r);
}

TEST("W6", "receiving: the NIC's time is converted by its clock, and refused if it is not plausible for the frame")
{
    const int64_t kernel_ns = 1000 * (int64_t)NS_PER_S, behind_ns = -37 * (int64_t)NS_PER_S;
    rings *r = rings_open(false);
    r->queue.reads_times = true;
    int64_t nic_ns = kernel_ns - 800 - behind_ns;
    CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, kernel_ns, nic_ns), kernel_ns); /* its clock is not known */
    r->queue.has_nic_clock = true;
    r->queue.nic_behind_ns = behind_ns;
    CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, kernel_ns, nic_ns), kernel_ns - 800);
    CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, kernel_ns, 0), kernel_ns);
    CHECK_EQ(r->queue.counters.ring_nic_times, 1);
    CHECK_EQ(r->queue.counters.ring_nic_times_refused, 0);
    const int64_t wrong_ns[] = {1, nic_ns + NS_PER_S, nic_ns - 2 * (int64_t)NS_PER_S, INT64_MAX, INT64_MIN, -1};
    for (uint32_t i = 0; i < sizeof wrong_ns / sizeof wrong_ns[0]; i++)
        CHECK_EQ(time_of_next(r, STEERING_TIME_MARK, kernel_ns, wrong_ns[i]), kernel_ns);
    CHECK_EQ(r->queue.counters.ring_nic_times_refused, sizeof wrong_ns / sizeof wrong_ns[0]);
    rings_close(r);
}

TEST("W6", "the NIC's clock: the shortest sample is used, and other files are refused")
{
    const um_nic_clock_sample samples[] = {{1000, 500, 3000}, {2000, 1900, 2200}, {9000, 8000, 9900}};
    CHECK_EQ(um_nic_clock_ahead_ns(samples, 1), 2000 - 500);
    CHECK_EQ(um_nic_clock_ahead_ns(samples, 3), 2100 - 1900);
    int64_t ahead_ns = 7;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK_EQ(um_nic_clock_offset(fd, &ahead_ns), -ENOTTY);
    CHECK_EQ(ahead_ns, 7);
    close(fd);
    CHECK_EQ(um_nic_clock_open(UINT32_MAX), -ENOENT);
}

TEST("W5", "receiving: a batch holds as many datagrams of several frames as of one, and has_more is set")
{
    enum { DATAGRAMS = 12, LENGTH = 8000 }; /* of five frames each */
    rings *r = rings_open(true);
    static uint8_t payload[LENGTH], frame[LENGTH + UM_XSK_HEADER_BYTES];
    for (uint32_t i = 0; i < DATAGRAMS; i++)
        CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, LENGTH)));
    um_rx batch[64];
    CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 4), 4);
    CHECK(r->queue.has_more);
    CHECK_EQ(r->queue.taken_count, 20);
    um_xsk_queue_release(&r->queue);
    CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 64), DATAGRAMS - 4);
    CHECK(!r->queue.has_more);
    um_xsk_queue_release(&r->queue);
    CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 64), 0);
    CHECK(!r->queue.has_more);
    rings_close(r);
}

TEST("W6", "receiving: frames without a datagram are counted and released")
{
    rings *r = rings_open(false);
    const uint8_t junk[60] = {0}, payload[] = "good";
    uint8_t frame[128];
    um_rx batch[8];
    CHECK(kernel_receive(r, junk, sizeof junk));
    CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, 4)));
    uint32_t length = write_packet(r, frame, payload, 4);
    frame[length - 1] ^= 1;
    CHECK(kernel_receive(r, frame, length));
    CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 8), 1);
    CHECK_BYTES(batch[0].data, payload, 4);
    um_xsk_queue_release(&r->queue);
    CHECK_EQ(r->queue.counters.ring_frames_refused, 1);
    CHECK_EQ(r->queue.counters.ring_checksum_errors, 1);
    CHECK_EQ(frames_to_fill(r), RECEIVE_FRAMES);
    rings_close(r);
}

TEST("W5 W6", "receiving: pinned frames are unpinned later, and half of all can be pinned")
{
    rings *r = rings_open(true);
    um_frames *frames = &r->queue.frames;
    static uint8_t payload[3000], frame[3000 + UM_XSK_HEADER_BYTES];
    const uint8_t *pinned[RECEIVE_FRAMES];
    uint32_t pinned_count = 0, number = 0;
    um_rx batch[8];
    for (int round = 0; round < RECEIVE_FRAMES / 2; round++) {
        for (int i = 0; i < 3; i++) {
            memset(payload, (int)++number, sizeof payload);
            CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, i == 1 ? 3000 : 1000)));
        }
        CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 8), 3);
        CHECK(batch[0].frames == frames && batch[1].frames == NULL && batch[2].frames == frames);
        if (round % 2 == 0) {
            frames->has_pinned_last = false;
            CHECK(frames->pin(frames, batch[2].data + 8));
            CHECK(frames->has_pinned_last);
            CHECK(!frames->pin(frames, batch[2].data + 900)); /* already pinned */
            pinned[pinned_count++] = batch[2].data + 8;
        }
        um_xsk_queue_release(&r->queue);
        CHECK_EQ(frames_to_fill(r), RECEIVE_FRAMES - pinned_count);
    }
    while (pinned_count < RECEIVE_FRAMES / 2) {
        CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, 1000)));
        CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 8), 1);
        CHECK(frames->pin(frames, batch[0].data));
        pinned[pinned_count++] = batch[0].data;
        um_xsk_queue_release(&r->queue);
    }
    CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, 1000)));
    CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 8), 1);
    CHECK(!frames->pin(frames, batch[0].data));
    um_xsk_queue_release(&r->queue);
    for (uint32_t i = 0; i < RECEIVE_FRAMES / 4; i++)
        for (uint32_t at = 0; at < 900; at++) /* not overwritten meanwhile */
            CHECK_EQ(pinned[i][at], (3 + 6 * i) & 255);
    frames->unpin(frames, pinned, 5);
    CHECK_EQ(frames_to_fill(r), RECEIVE_FRAMES / 2 + 5);
    frames->unpin(frames, pinned + 5, pinned_count - 5);
    CHECK_EQ(frames_to_fill(r), RECEIVE_FRAMES);
    CHECK_EQ(r->queue.counters.ring_kept, RECEIVE_FRAMES / 2);
    CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, 1000)));
    CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 8), 1);
    CHECK(frames->pin(frames, batch[0].data));
    rings_close(r);
}

TEST("W6", "receiving: an incomplete datagram waits for its last frame")
{
    rings *r = rings_open(true);
    static uint8_t payload[5000], frame[5000 + UM_XSK_HEADER_BYTES];
    um_rx batch[4];
    CHECK(kernel_receive(r, frame, write_packet(r, frame, payload, sizeof payload)));
    uint32_t end = r->receive.producer;
    for (r->receive.producer = 1; r->receive.producer < end; r->receive.producer++) {
        CHECK_EQ(um_xsk_queue_receive(&r->queue, batch, 4), 0);
        um_xsk_queue_release(&r->queue);
    }
    /* The first call sees that there is more, the next one takes it. */
    uint32_t count = um_xsk_queue_receive(&r->queue, batch, 4);
    um_xsk_queue_release(&r->queue);
    CHECK_EQ(count + (count == 0 ? um_xsk_queue_receive(&r->queue, batch, 4) : 0), 1);
    CHECK_EQ(batch[0].length, sizeof payload);
    rings_close(r);
}

/* Sends the datagram from a borrowed frame; false if the queue lends none, or cannot send now. */
static bool send_borrowed(rings *r, const uint8_t *payload, uint32_t length, uint32_t unsummed_bytes)
{
    uint8_t *piece = NULL;
    if (length > um_xsk_queue_borrow_bytes(&r->queue) || um_xsk_queue_borrow(&r->queue, &piece, 1) == 0)
        return false;
    CHECK_EQ((uintptr_t)(piece - r->queue.area) % UM_CACHE_LINE_BYTES, 0);
    memcpy(piece, payload, length);
    um_borrowed_frame borrowed = {piece, um_internet_sum(payload + unsummed_bytes, length - unsummed_bytes, 0),
                                  unsummed_bytes};
    um_part part = {piece, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length, .borrowed = &borrowed};
    bool is_sent = um_xsk_queue_send(&r->queue, &r->made, &tx, 1) == 1;
    CHECK(is_sent == (borrowed.data == NULL));
    if (!is_sent)
        um_xsk_queue_return(&r->queue, &borrowed.data, 1);
    return is_sent;
}

static void check_sending(uint16_t tag_control)
{
    enum { COUNT = 3000, DATAGRAM_MAX = 6000 };
    rings *r = rings_open_tagged(true, tag_control);
    um_random random = {check_seed()};
    static uint8_t payload[DATAGRAM_MAX], frame[DATAGRAM_MAX + UM_XSK_TAGGED_HEADER_BYTES];
    uint32_t sent = 0, seen = 0;
    while (seen < COUNT) {
        uint32_t length =
            4 + (uint32_t)um_random_below(&random, um_random_below(&random, 3) == 0 ? DATAGRAM_MAX - 4 : 100);
        uint32_t split = (uint32_t)um_random_below(&random, length + 1);
        memset(payload, (int)(sent & 255), length);
        um_store_be32(payload, sent);
        um_part parts[] = {{payload, split}, {payload + split, length - split}};
        um_tx tx = {.parts = parts, .part_count = 2, .length = length};
        if (sent < COUNT && um_random_below(&random, 2) == 0)
            sent += send_borrowed(r, payload, length, split < 64 ? split / 2 * 2 : 64);
        else if (sent < COUNT)
            sent += (uint32_t)um_xsk_queue_send(&r->queue, &r->made, &tx, 1);
        while (um_random_below(&random, 3) == 0 || sent == COUNT) {
            uint32_t taken = kernel_send(r, frame, true);
            if (taken == 0)
                break;
            um_rx rx;
            CHECK_EQ(um_xsk_read_headers(frame, taken, true, &rx), UM_XSK_READ);
            CHECK_EQ(um_load_be32(rx.data), seen);
            for (uint32_t at = 4; at < rx.length; at++)
                CHECK_EQ(rx.data[at], seen & 255);
            seen++;
        }
    }
    um_xsk_queue_reclaim(&r->queue);
    CHECK_EQ(r->queue.free_count, SEND_FRAMES);
    CHECK_EQ(um_xsk_queue_unsent(&r->queue), 0);
    rings_close(r);
}

TEST("W6", "sending: parts are joined, headers are right, and order holds under back-pressure, tagged and untagged")
{
    for (int i = 0; i < TAG_COUNT; i++)
        check_sending(TAGS[i]);
}

TEST("W6", "sending: a full ring or a stalled completion ring stops it, and a datagram that is too large is refused")
{
    rings *r = rings_open(false);
    static uint8_t payload[FRAME_BYTES], frame[FRAME_BYTES];
    um_part part = {payload, 100};
    um_tx batch[SEND_FRAMES + 5];
    for (int i = 0; i < SEND_FRAMES + 5; i++)
        batch[i] = (um_tx){.parts = &part, .part_count = 1, .length = 100};
    CHECK_EQ(um_xsk_queue_send(&r->queue, &r->made, batch, SEND_FRAMES + 5), SEND_FRAMES);
    CHECK_EQ(um_xsk_queue_send(&r->queue, &r->made, batch, 5), 0);
    CHECK_EQ(um_xsk_queue_unsent(&r->queue), SEND_FRAMES);
    for (int i = 0; i < SEND_FRAMES; i++)
        CHECK(kernel_send(r, frame, false) > 0);
    CHECK_EQ(um_xsk_queue_send(&r->queue, &r->made, batch, 5), 0); /* sent, but the kernel still owns the frames */
    part.length = um_xsk_queue_datagram_max(&r->queue) + 1;
    um_tx large = {.parts = &part, .part_count = 1, .length = part.length};
    CHECK_EQ(um_xsk_queue_send(&r->queue, &r->made, &large, 1), -EMSGSIZE);
    rings_close(r);
}

TEST("W4", "the largest datagram fills a frame behind headroom and 42 bytes of headers, or a chain less one frame")
{
    /* XDP's headroom is 256 bytes; the headers of Ethernet, IPv4 and UDP take 14, 20 and 8; the kernel chains 18
     * frames. */
    rings *r = rings_open(false);
    CHECK_EQ(um_xsk_queue_datagram_max(&r->queue), FRAME_BYTES - 256 - 42);
    rings_close(r);
    r = rings_open(true);
    CHECK_EQ(um_xsk_queue_datagram_max(&r->queue), 17 * (FRAME_BYTES - 256) - 42);
    rings_close(r);
}

TEST("W6", "borrowing: at most half of the send frames are lent, and a returned frame is lent again")
{
    rings *r = rings_open(false);
    uint8_t *pieces[SEND_FRAMES], *again[SEND_FRAMES];
    CHECK_EQ(um_xsk_queue_borrow(&r->queue, pieces, SEND_FRAMES), SEND_FRAMES / 2);
    CHECK_EQ(um_xsk_queue_borrow(&r->queue, again, 1), 0);
    um_xsk_queue_return(&r->queue, pieces, SEND_FRAMES / 2);
    CHECK_EQ(r->queue.free_count, SEND_FRAMES);
    CHECK_EQ(um_xsk_queue_borrow(&r->queue, again, 3), 3);
    CHECK(memcmp(pieces, again, 3 * sizeof *again) == 0);
    um_xsk_queue_return(&r->queue, again, 3);
    rings_close(r);
}

/* Returns true if the function ends its process by an assertion. */
static bool is_caught(void (*function)(rings *), rings *r)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        function(r);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void complete_twice(rings *r)
{
    uint8_t payload[8] = {0}, frame[FRAME_BYTES];
    um_part part = {payload, sizeof payload};
    um_tx tx = {.parts = &part, .part_count = 1, .length = sizeof payload};
    um_xsk_queue_send(&r->queue, &r->made, &tx, 1);
    kernel_send(r, frame, true);
    r->completion.entries[r->completion.producer % SEND_FRAMES] = r->completion.entries[0];
    r->completion.producer++;
    um_xsk_queue_reclaim(&r->queue);
}

static void receive_into_a_send_frame(rings *r)
{
    um_rx batch[1];
    struct xdp_desc *descriptors = (struct xdp_desc *)r->receive.entries;
    descriptors[r->receive.producer++] = (struct xdp_desc){RECEIVE_FRAMES * FRAME_BYTES, 60, 0};
    um_xsk_queue_receive(&r->queue, batch, 1);
}

static void return_kept_twice(rings *r)
{
    static uint8_t payload[1000], frame[FRAME_BYTES];
    um_rx batch[1];
    kernel_receive(r, frame, write_packet(r, frame, payload, sizeof payload));
    um_xsk_queue_receive(&r->queue, batch, 1);
    r->queue.frames.pin(&r->queue.frames, batch[0].data);
    um_xsk_queue_release(&r->queue);
    r->queue.frames.unpin(&r->queue.frames, &batch[0].data, 1);
    r->queue.frames.unpin(&r->queue.frames, &batch[0].data, 1);
}

static void return_twice(rings *r)
{
    uint8_t *piece;
    um_xsk_queue_borrow(&r->queue, &piece, 1);
    um_xsk_queue_return(&r->queue, &piece, 1);
    um_xsk_queue_return(&r->queue, &piece, 1);
}

TEST("W6", "a debug build detects a frame with two owners")
{
    rings *r = rings_open(false);
    CHECK(is_caught(complete_twice, r));
    CHECK(is_caught(receive_into_a_send_frame, r));
    CHECK(is_caught(return_twice, r));
    CHECK(is_caught(return_kept_twice, r));
    rings_close(r);
}

CHECK_MAIN

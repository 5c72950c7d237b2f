#include "io/interface_capture.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/clock.h"
#include "io/datagram_frame.h"

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

enum {
    BLOCK_TIMEOUT_MS = 50, /* the kernel gives a block that is not full after this */
    FRAME_BYTES = 2048,    /* asked for, but of no meaning in version 3 */
    HEADERS_MAX_BYTES = 128,
    MAC_ADDRESSES_BYTES = UM_ETHERTYPE_AT,
    FLUSH_INTERVAL_NS = 200000000,
    CLOCK_STEP_NS = 1000000000,
    PACE_MAX_NS = 5000000,
    PACE_RING_SHARE = 12, /* of the time in which a byte a nanosecond fills the ring */
};

struct um_interface_capture {
    int fd;
    uint8_t *ring;
    size_t ring_bytes;
    um_interface_capture_config config;
    char interface[IF_NAMESIZE];
    const char *failed_step;
    bool has_run_header;
    uint32_t block;                    /* the next one to look at */
    const struct tpacket3_hdr *packet; /* within it, when it was left half read */
    uint32_t packets_left;
    um_pcapng_writer writer;
    bool has_file;
    int64_t file_opened_ns;
    int64_t flushed_ns;
    int64_t written_ns; /* when packets were last written */
    um_interface_capture_arrivals arrivals;
    uint64_t file_drop_base;
    uint64_t reported_drop_count;
    uint64_t arrived_count; /* packets the kernel has put into the ring */
    uint64_t taken_count;   /* packets taken out of it */
    um_interface_capture_counters counters;
};

/* A frame as it is written: headers that may have been changed, then the rest of it in the ring. */
typedef struct frame {
    uint8_t headers[HEADERS_MAX_BYTES];
    uint32_t header_bytes;
    const uint8_t *body;
    uint32_t body_bytes;
    uint32_t wire_bytes;
} frame;

/* ---- opening ---- */

static int fail(um_interface_capture *capture, const char *step)
{
    capture->failed_step = step;
    return -errno;
}

static int attach_filter(um_interface_capture *capture)
{
    struct sock_fprog program = {capture->config.filter_length,
                                 (struct sock_filter *)(uintptr_t)capture->config.filter};
    if (program.len == 0)
        return 0;
    if (setsockopt(capture->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
        return fail(capture, "SO_ATTACH_FILTER");
    return 0;
}

static int map_ring(um_interface_capture *capture)
{
    int version = TPACKET_V3, one = 1;
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0)
        return fail(capture, "PACKET_VERSION");
    capture->has_run_header = setsockopt(capture->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0;
    const um_interface_capture_config *config = &capture->config;
    struct tpacket_req3 request = {.tp_block_size = config->block_bytes,
                                   .tp_block_nr = config->block_count,
                                   .tp_frame_size = FRAME_BYTES,
                                   .tp_frame_nr = config->block_bytes / FRAME_BYTES * config->block_count,
                                   .tp_retire_blk_tov = BLOCK_TIMEOUT_MS};
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
        return fail(capture, "PACKET_RX_RING");
    capture->ring_bytes = (size_t)config->block_bytes * config->block_count;
    void *ring = mmap(NULL, capture->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, capture->fd, 0);
    if (ring == MAP_FAILED)
        return fail(capture, "mapping the ring");
    capture->ring = ring;
    return 0;
}

/* Bound last: from then on packets arrive, and all of them have passed the filter. */
static int bind_to_interface(um_interface_capture *capture)
{
    int index = (int)if_nametoindex(capture->interface);
    if (index == 0)
        return fail(capture, "interface");
    if (capture->config.promiscuous) {
        struct packet_mreq membership = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
        if (setsockopt(capture->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership) != 0)
            return fail(capture, "PACKET_ADD_MEMBERSHIP");
    }
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = index};
    if (bind(capture->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return fail(capture, "bind");
    return 0;
}

int um_interface_capture_open(const um_interface_capture_config *config, um_interface_capture **opened)
{
    um_interface_capture *capture = calloc(1, sizeof *capture);
    *opened = capture;
    if (capture == NULL)
        return -ENOMEM;
    capture->config = *config;
    strncpy(capture->interface, config->interface, sizeof capture->interface - 1);
    /* Protocol 0: it receives nothing before it is bound. */
    capture->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (capture->fd < 0)
        return fail(capture, "socket");
    int result = attach_filter(capture);
    result = result == 0 ? map_ring(capture) : result;
    return result == 0 ? bind_to_interface(capture) : result;
}

const char *um_interface_capture_failed_step(const um_interface_capture *capture)
{
    return capture->failed_step != NULL ? capture->failed_step : "";
}

bool um_interface_capture_splits_runs(const um_interface_capture *capture)
{
    return capture->has_run_header;
}

void um_interface_capture_close(um_interface_capture *capture)
{
    if (capture->has_file)
        um_pcapng_close(&capture->writer);
    if (capture->ring != NULL)
        munmap(capture->ring, capture->ring_bytes);
    if (capture->fd >= 0)
        close(capture->fd);
    free(capture);
}

/* ---- files ---- */

/* The kernel's counters start anew each time they are read. */
static void take_statistics(um_interface_capture *capture)
{
    struct tpacket_stats_v3 statistics = {0};
    socklen_t length = sizeof statistics;
    if (getsockopt(capture->fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &length) != 0)
        return;
    capture->counters.drop_count += statistics.tp_drops;
    capture->arrived_count += statistics.tp_packets - statistics.tp_drops;
}

int um_interface_capture_begin_file(um_interface_capture *capture, const char *path)
{
    int result = um_pcapng_open(&capture->writer, path);
    if (result != 0)
        return result;
    um_pcapng_add_interface(&capture->writer, capture->interface, UM_PCAPNG_LINK_ETHERNET, capture->config.snap_bytes,
                            capture->config.filter_text);
    capture->has_file = true;
    capture->file_opened_ns = um_clock_wall_ns();
    capture->file_drop_base = capture->counters.drop_count;
    capture->counters.file_start_ns = 0;
    return um_pcapng_flush(&capture->writer);
}

int um_interface_capture_end_file(um_interface_capture *capture)
{
    if (!capture->has_file)
        return 0;
    take_statistics(capture);
    um_pcapng_statistics statistics = {.start_ns = capture->file_opened_ns, .end_ns = um_clock_wall_ns()};
    statistics.dropped_count = capture->counters.drop_count - capture->file_drop_base;
    statistics.received_count = capture->writer.packet_count + statistics.dropped_count;
    um_pcapng_write_statistics(&capture->writer, &statistics);
    capture->has_file = false;
    return um_pcapng_close(&capture->writer);
}

/* ---- packets ---- */

static void write_frame(um_interface_capture *capture, const frame *frame, int64_t time_ns,
                        enum um_pcapng_direction direction)
{
    uint32_t snap_bytes = capture->config.snap_bytes != 0 ? capture->config.snap_bytes : UINT32_MAX;
    uint32_t header_bytes = frame->header_bytes < snap_bytes ? frame->header_bytes : snap_bytes;
    uint32_t room = snap_bytes - header_bytes;
    um_pcapng_packet packet = {.time_ns = time_ns,
                               .wire_bytes = frame->wire_bytes,
                               .direction = direction,
                               .drop_count = capture->counters.drop_count - capture->reported_drop_count,
                               .queue = UM_PCAPNG_UNKNOWN,
                               .verdict = UM_PCAPNG_UNKNOWN};
    if (direction == UM_PCAPNG_INBOUND) {
        packet.queue = capture->arrivals.queue;
        packet.verdict = capture->arrivals.verdict;
    }
    capture->reported_drop_count = capture->counters.drop_count;
    um_pcapng_write(&capture->writer, &packet, frame->headers, header_bytes, frame->body,
                    frame->body_bytes < room ? frame->body_bytes : room);
    if (capture->counters.file_start_ns == 0)
        capture->counters.file_start_ns = time_ns;
    capture->counters.packet_count++;
}

/* A frame's link header, with the VLAN tag that the kernel keeps beside it. */
static uint32_t put_link_header(frame *frame, const struct tpacket3_hdr *packet, const uint8_t *data)
{
    uint8_t *out = frame->headers;
    memcpy(out, data, MAC_ADDRESSES_BYTES);
    uint32_t at = MAC_ADDRESSES_BYTES;
    if (packet->tp_status & TP_STATUS_VLAN_VALID) {
        bool has_type = packet->tp_status & TP_STATUS_VLAN_TPID_VALID;
        um_store_be16(out + at, has_type ? packet->hv1.tp_vlan_tpid : ETH_P_8021Q);
        um_store_be16(out + at + 2, (uint16_t)packet->hv1.tp_vlan_tci);
        at += UM_VLAN_TAG_BYTES;
    }
    memcpy(out + at, data + MAC_ADDRESSES_BYTES, ETH_HLEN - MAC_ADDRESSES_BYTES);
    frame->header_bytes = at + ETH_HLEN - MAC_ADDRESSES_BYTES;
    return frame->header_bytes - ETH_HLEN; /* added */
}

/* The length of the IPv4 and UDP headers behind the link header, where the frame is a datagram whose headers are
 * there; 0 where it is something else. */
static uint32_t datagram_headers(const uint8_t *data, uint32_t bytes)
{
    if (bytes < ETH_HLEN + UM_IPV4_UDP_HEADER_BYTES || um_load_be16(data + MAC_ADDRESSES_BYTES) != ETH_P_IP)
        return 0;
    uint32_t ip_bytes = (data[ETH_HLEN] & 15u) * 4;
    bool is_udp = data[ETH_HLEN] >> 4 == 4 && data[ETH_HLEN + UM_IPV4_PROTOCOL_AT] == IPPROTO_UDP &&
                  ip_bytes >= UM_IPV4_HEADER_BYTES;
    return is_udp && bytes >= ETH_HLEN + ip_bytes + UM_UDP_HEADER_BYTES ? ip_bytes + UM_UDP_HEADER_BYTES : 0;
}

/* Writes a run of datagrams as those it consists of, which the kernel cuts it into later. */
static void write_run(um_interface_capture *capture, const struct tpacket3_hdr *packet, const uint8_t *data,
                      uint32_t segment_bytes, int64_t time_ns, enum um_pcapng_direction direction)
{
    uint32_t header_bytes = datagram_headers(data, packet->tp_snaplen);
    frame frame;
    put_link_header(&frame, packet, data);
    uint32_t link_bytes = frame.header_bytes;
    const uint8_t *payload = data + ETH_HLEN + header_bytes;
    uint32_t captured_bytes = packet->tp_snaplen - ETH_HLEN - header_bytes;
    uint32_t payload_bytes = packet->tp_len - ETH_HLEN - header_bytes;
    uint16_t identification = um_load_be16(data + ETH_HLEN + UM_IPV4_IDENTIFICATION_AT);
    for (uint32_t at = 0; at < payload_bytes; at += segment_bytes) {
        uint32_t wire = payload_bytes - at < segment_bytes ? payload_bytes - at : segment_bytes;
        uint32_t there = captured_bytes > at ? captured_bytes - at : 0;
        frame.body = payload + (there > 0 ? at : 0);
        frame.body_bytes = there < wire ? there : wire;
        memcpy(frame.headers + link_bytes, data + ETH_HLEN, header_bytes);
        um_datagram_refit(frame.headers + link_bytes, header_bytes - UM_UDP_HEADER_BYTES, identification++, frame.body,
                          frame.body_bytes, wire);
        frame.header_bytes = link_bytes + header_bytes;
        frame.wire_bytes = frame.header_bytes + wire;
        write_frame(capture, &frame, time_ns, direction);
    }
}

static void write_single(um_interface_capture *capture, const struct tpacket3_hdr *packet, const uint8_t *data,
                         bool needs_checksum, int64_t time_ns, enum um_pcapng_direction direction)
{
    frame frame = {.body = data, .body_bytes = packet->tp_snaplen, .wire_bytes = packet->tp_len};
    if (packet->tp_snaplen >= ETH_HLEN) {
        frame.wire_bytes += put_link_header(&frame, packet, data);
        uint32_t link_bytes = frame.header_bytes;
        uint32_t header_bytes = needs_checksum ? datagram_headers(data, packet->tp_snaplen) : 0;
        frame.body += ETH_HLEN + header_bytes;
        frame.body_bytes -= ETH_HLEN + header_bytes;
        if (header_bytes > 0) {
            memcpy(frame.headers + link_bytes, data + ETH_HLEN, header_bytes);
            uint16_t identification = um_load_be16(data + ETH_HLEN + UM_IPV4_IDENTIFICATION_AT);
            um_datagram_refit(frame.headers + link_bytes, header_bytes - UM_UDP_HEADER_BYTES, identification,
                              frame.body, frame.body_bytes, packet->tp_len - ETH_HLEN - header_bytes);
            frame.header_bytes += header_bytes;
        }
    }
    write_frame(capture, &frame, time_ns, direction);
}

static int64_t arrival_ns(const struct tpacket3_hdr *packet)
{
    return (int64_t)packet->tp_sec * 1000000000 + packet->tp_nsec;
}

static void write_packet(um_interface_capture *capture, const struct tpacket3_hdr *packet)
{
    const uint8_t *data = (const uint8_t *)packet + packet->tp_mac;
    const struct sockaddr_ll *from =
        (const void *)((const uint8_t *)packet + TPACKET_ALIGN(sizeof(struct tpacket3_hdr)));
    enum um_pcapng_direction direction = from->sll_pkttype == PACKET_OUTGOING ? UM_PCAPNG_OUTBOUND : UM_PCAPNG_INBOUND;
    int64_t time_ns = arrival_ns(packet);
    struct virtio_net_hdr run = {0};
    if (capture->has_run_header)
        memcpy(&run, data - sizeof run, sizeof run);
    bool is_run = (run.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_UDP_L4 && run.gso_size > 0;
    if (is_run && datagram_headers(data, packet->tp_snaplen) > 0)
        write_run(capture, packet, data, run.gso_size, time_ns, direction);
    else
        write_single(capture, packet, data, run.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM, time_ns, direction);
}

static struct tpacket_block_desc *block_at(const um_interface_capture *capture, uint32_t index)
{
    return (struct tpacket_block_desc *)(capture->ring + (size_t)index * capture->config.block_bytes);
}

/* Begins the next block if the kernel has given it; false when it has not. */
static bool begin_block(um_interface_capture *capture)
{
    struct tpacket_block_desc *block = block_at(capture, capture->block);
    if (!(__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
        return false;
    if (block->hdr.bh1.block_status & TP_STATUS_LOSING)
        take_statistics(capture);
    capture->packet = (const void *)((const uint8_t *)block + block->hdr.bh1.offset_to_first_pkt);
    capture->packets_left = block->hdr.bh1.num_pkts;
    return true;
}

static void give_back_block(um_interface_capture *capture)
{
    struct tpacket_block_desc *block = block_at(capture, capture->block);
    __atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    capture->packet = NULL;
    capture->block = (capture->block + 1) % capture->config.block_count;
}

/* Whether the next packet came in after the time something is known about. When the clock was set back, all did. */
static bool is_too_late(const um_interface_capture *capture)
{
    int64_t late_ns = arrival_ns(capture->packet) - capture->arrivals.until_ns;
    return late_ns > 0 && late_ns < CLOCK_STEP_NS;
}

/* Writes what the ring has of the time it is known about, as far as the file may grow. */
static void drain(um_interface_capture *capture, uint64_t limit_bytes)
{
    while (capture->packet != NULL || begin_block(capture)) {
        while (capture->packets_left > 0) {
            if (limit_bytes != 0 && capture->writer.file_bytes >= limit_bytes)
                return;
            if (is_too_late(capture))
                return;
            write_packet(capture, capture->packet);
            capture->packets_left--;
            capture->taken_count++;
            capture->packet = (const void *)((const uint8_t *)capture->packet + capture->packet->tp_next_offset);
        }
        give_back_block(capture);
        if (capture->writer.error != 0)
            return;
    }
}

/* Waits for the time to pass, or for an event. Returns what poll returned, or a negative errno. */
static int pause_for(struct pollfd *descriptor, int64_t wait_ns)
{
    struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
    int result = ppoll(descriptor, descriptor != NULL, &timeout, NULL);
    return result < 0 && errno != EINTR ? -errno : result;
}

int um_interface_capture_wait(um_interface_capture *capture, int64_t timeout_ns)
{
    int64_t end_ns = um_clock_ns() + timeout_ns;
    int64_t pace_ns = (int64_t)(capture->ring_bytes / PACE_RING_SHARE);
    int64_t rest_ns = capture->written_ns + (pace_ns < PACE_MAX_NS ? pace_ns : PACE_MAX_NS) - um_clock_ns();
    if (rest_ns > 0)
        pause_for(NULL, rest_ns < timeout_ns ? rest_ns : timeout_ns);
    int64_t left_ns = end_ns - um_clock_ns();
    struct pollfd descriptor = {.fd = capture->fd, .events = POLLIN};
    int result = pause_for(&descriptor, left_ns > 0 ? left_ns : 0);
    if (result <= 0 || !(descriptor.revents & POLLERR))
        return result < 0 ? result : 0;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(capture->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return -error;
}

int64_t um_interface_capture_write(um_interface_capture *capture, const um_interface_capture_arrivals *arrivals,
                                   uint64_t limit_bytes)
{
    uint64_t before = capture->counters.packet_count;
    capture->arrivals = *arrivals;
    if (capture->has_file)
        drain(capture, limit_bytes);
    capture->written_ns = um_clock_ns();
    if (capture->has_file && capture->written_ns - capture->flushed_ns > FLUSH_INTERVAL_NS) {
        um_pcapng_flush(&capture->writer);
        capture->flushed_ns = capture->written_ns;
    }
    if (capture->writer.error != 0)
        return capture->writer.error;
    return (int64_t)(capture->counters.packet_count - before);
}

int um_interface_capture_end_arrivals(um_interface_capture *capture)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog program = {1, &nothing};
    if (setsockopt(capture->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
        return fail(capture, "SO_ATTACH_FILTER");
    return 0;
}

bool um_interface_capture_is_drained(um_interface_capture *capture)
{
    take_statistics(capture);
    return capture->taken_count >= capture->arrived_count;
}

void um_interface_capture_read(const um_interface_capture *capture, um_interface_capture_counters *counters)
{
    *counters = capture->counters;
    counters->file_bytes = capture->writer.file_bytes;
    counters->file_packet_count = capture->writer.packet_count;
}

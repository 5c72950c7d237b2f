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

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

enum {
    BLOCK_TIMEOUT_MS = 50, /* the kernel gives a block that is not full after this, or twice this */
    MERGED_BLOCK_TIMEOUT_MS = 8,
    MERGE_NS = 20000000,        /* what went out waits so long for what came in before it and is still in a block, */
    MERGE_RING_SHARE = 2,       /* unless it fills so much of its ring */
    EGRESS_LOOK_NS = 20000000,  /* nobody wakes a reader of the egress ring */
    EGRESS_LOOK_RING_SHARE = 4, /* of the time in which a byte a nanosecond fills it */
    FRAME_BYTES = 2048,         /* asked for, but of no meaning in version 3 */
    HEADERS_MAX_BYTES = 128,
    MAC_ADDRESSES_BYTES = UM_ETHERTYPE_AT,
    FLUSH_INTERVAL_NS = 200000000,
    CLOCK_STEP_NS = 1000000000,
    NS_PER_S = 1000000000,
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
    bool has_egress;
    um_egress_ring egress;
    int64_t tai_offset_ns;   /* the clock of its records, ahead of the wall clock */
    int64_t merged_until_ns; /* what went out later is left for the next time */
    uint64_t egress_lost_count;
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

/* A frame as the kernel shows it. */
typedef struct seen_frame {
    const uint8_t *data; /* from the link header on */
    uint32_t captured_bytes;
    uint32_t wire_bytes;
    uint32_t segment_bytes; /* of payload in each datagram of a run; 0: it is none */
    bool needs_checksum;
    bool has_vlan; /* a tag the kernel keeps beside it */
    uint16_t vlan_type;
    uint16_t vlan_tci;
    int64_t time_ns;
    enum um_pcapng_direction direction;
} seen_frame;

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
    uint32_t block_timeout_ms = capture->has_egress ? MERGED_BLOCK_TIMEOUT_MS : BLOCK_TIMEOUT_MS;
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0)
        return fail(capture, "PACKET_VERSION");
    capture->has_run_header = setsockopt(capture->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0;
    const um_interface_capture_config *config = &capture->config;
    struct tpacket_req3 request = {.tp_block_size = config->block_bytes,
                                   .tp_block_nr = config->block_count,
                                   .tp_frame_size = FRAME_BYTES,
                                   .tp_frame_nr = config->block_bytes / FRAME_BYTES * config->block_count,
                                   .tp_retire_blk_tov = block_timeout_ms};
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
        return fail(capture, "PACKET_RX_RING");
    capture->ring_bytes = (size_t)config->block_bytes * config->block_count;
    void *ring = mmap(NULL, capture->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, capture->fd, 0);
    if (ring == MAP_FAILED)
        return fail(capture, "mapping the ring");
    capture->ring = ring;
    return 0;
}

/* From then on what goes out is in the egress ring, and not in the other one as well. */
static int open_egress(um_interface_capture *capture)
{
    int one = 1;
    if (capture->config.egress == NULL)
        return 0;
    int result = um_egress_ring_open(&capture->egress, capture->config.egress);
    if (result < 0) {
        errno = -result;
        return fail(capture, "mapping the egress ring");
    }
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0)
        return fail(capture, "PACKET_IGNORE_OUTGOING");
    capture->has_egress = true;
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
    result = result == 0 ? open_egress(capture) : result;
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
    um_egress_ring_close(&capture->egress);
    if (capture->ring != NULL)
        munmap(capture->ring, capture->ring_bytes);
    if (capture->fd >= 0)
        close(capture->fd);
    free(capture);
}

/* ---- files ---- */

static void take_egress_statistics(um_interface_capture *capture)
{
    if (!capture->has_egress)
        return;
    uint64_t lost_count = um_egress_ring_lost_count(&capture->egress);
    capture->counters.drop_count += lost_count - capture->egress_lost_count;
    capture->egress_lost_count = lost_count;
}

/* The kernel's counters start anew each time they are read. */
static void take_statistics(um_interface_capture *capture)
{
    take_egress_statistics(capture);
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

bool um_interface_capture_has_file(const um_interface_capture *capture)
{
    return capture->has_file;
}

/* ---- packets ---- */

static void write_frame(um_interface_capture *capture, const frame *frame, const seen_frame *seen)
{
    uint32_t snap_bytes = capture->config.snap_bytes != 0 ? capture->config.snap_bytes : UINT32_MAX;
    uint32_t header_bytes = frame->header_bytes < snap_bytes ? frame->header_bytes : snap_bytes;
    uint32_t room = snap_bytes - header_bytes;
    um_pcapng_packet packet = {.time_ns = seen->time_ns,
                               .wire_bytes = frame->wire_bytes,
                               .direction = seen->direction,
                               .drop_count = capture->counters.drop_count - capture->reported_drop_count,
                               .queue = UM_PCAPNG_UNKNOWN,
                               .verdict = UM_PCAPNG_UNKNOWN};
    if (seen->direction == UM_PCAPNG_INBOUND) {
        packet.queue = capture->arrivals.queue;
        packet.verdict = capture->arrivals.verdict;
    }
    capture->reported_drop_count = capture->counters.drop_count;
    um_pcapng_write(&capture->writer, &packet, frame->headers, header_bytes, frame->body,
                    frame->body_bytes < room ? frame->body_bytes : room);
    if (capture->counters.file_start_ns == 0)
        capture->counters.file_start_ns = seen->time_ns;
    capture->counters.packet_count++;
}

/* A frame's link header, with the VLAN tag that the kernel keeps beside it. */
static uint32_t put_link_header(frame *frame, const seen_frame *seen)
{
    uint8_t *out = frame->headers;
    memcpy(out, seen->data, MAC_ADDRESSES_BYTES);
    uint32_t at = MAC_ADDRESSES_BYTES;
    if (seen->has_vlan) {
        um_store_be16(out + at, seen->vlan_type);
        um_store_be16(out + at + 2, seen->vlan_tci);
        at += UM_VLAN_TAG_BYTES;
    }
    memcpy(out + at, seen->data + MAC_ADDRESSES_BYTES, ETH_HLEN - MAC_ADDRESSES_BYTES);
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
static void write_run(um_interface_capture *capture, const seen_frame *seen)
{
    const uint8_t *ip = seen->data + ETH_HLEN;
    uint32_t header_bytes = datagram_headers(seen->data, seen->captured_bytes);
    frame frame;
    put_link_header(&frame, seen);
    uint32_t link_bytes = frame.header_bytes;
    const uint8_t *payload = ip + header_bytes;
    uint32_t captured_bytes = seen->captured_bytes - ETH_HLEN - header_bytes;
    uint32_t payload_bytes = seen->wire_bytes - ETH_HLEN - header_bytes;
    uint16_t identification = um_load_be16(ip + UM_IPV4_IDENTIFICATION_AT);
    for (uint32_t at = 0; at < payload_bytes; at += seen->segment_bytes) {
        uint32_t wire = payload_bytes - at < seen->segment_bytes ? payload_bytes - at : seen->segment_bytes;
        uint32_t there = captured_bytes > at ? captured_bytes - at : 0;
        frame.body = payload + (there > 0 ? at : 0);
        frame.body_bytes = there < wire ? there : wire;
        memcpy(frame.headers + link_bytes, ip, header_bytes);
        um_datagram_refit(frame.headers + link_bytes, header_bytes - UM_UDP_HEADER_BYTES, identification++, frame.body,
                          frame.body_bytes, wire);
        frame.header_bytes = link_bytes + header_bytes;
        frame.wire_bytes = frame.header_bytes + wire;
        write_frame(capture, &frame, seen);
    }
}

static void write_single(um_interface_capture *capture, const seen_frame *seen)
{
    frame frame = {.body = seen->data, .body_bytes = seen->captured_bytes, .wire_bytes = seen->wire_bytes};
    if (seen->captured_bytes >= ETH_HLEN) {
        const uint8_t *ip = seen->data + ETH_HLEN;
        frame.wire_bytes += put_link_header(&frame, seen);
        uint32_t link_bytes = frame.header_bytes;
        uint32_t header_bytes = seen->needs_checksum ? datagram_headers(seen->data, seen->captured_bytes) : 0;
        frame.body += ETH_HLEN + header_bytes;
        frame.body_bytes -= ETH_HLEN + header_bytes;
        if (header_bytes > 0) {
            memcpy(frame.headers + link_bytes, ip, header_bytes);
            uint16_t identification = um_load_be16(ip + UM_IPV4_IDENTIFICATION_AT);
            um_datagram_refit(frame.headers + link_bytes, header_bytes - UM_UDP_HEADER_BYTES, identification,
                              frame.body, frame.body_bytes, seen->wire_bytes - ETH_HLEN - header_bytes);
            frame.header_bytes += header_bytes;
        }
    }
    write_frame(capture, &frame, seen);
}

static void write_seen(um_interface_capture *capture, const seen_frame *seen)
{
    if (seen->segment_bytes > 0 && datagram_headers(seen->data, seen->captured_bytes) > 0)
        write_run(capture, seen);
    else
        write_single(capture, seen);
}

static int64_t arrival_ns(const struct tpacket3_hdr *packet)
{
    return (int64_t)packet->tp_sec * 1000000000 + packet->tp_nsec;
}

static void write_packet(um_interface_capture *capture, const struct tpacket3_hdr *packet)
{
    const struct sockaddr_ll *from =
        (const void *)((const uint8_t *)packet + TPACKET_ALIGN(sizeof(struct tpacket3_hdr)));
    seen_frame seen = {.data = (const uint8_t *)packet + packet->tp_mac,
                       .captured_bytes = packet->tp_snaplen,
                       .wire_bytes = packet->tp_len,
                       .has_vlan = packet->tp_status & TP_STATUS_VLAN_VALID,
                       .vlan_type = ETH_P_8021Q,
                       .vlan_tci = (uint16_t)packet->hv1.tp_vlan_tci,
                       .time_ns = arrival_ns(packet)};
    seen.direction = from->sll_pkttype == PACKET_OUTGOING ? UM_PCAPNG_OUTBOUND : UM_PCAPNG_INBOUND;
    if (packet->tp_status & TP_STATUS_VLAN_TPID_VALID)
        seen.vlan_type = packet->hv1.tp_vlan_tpid;
    struct virtio_net_hdr run = {0};
    if (capture->has_run_header)
        memcpy(&run, seen.data - sizeof run, sizeof run);
    seen.needs_checksum = run.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
    if ((run.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_UDP_L4)
        seen.segment_bytes = run.gso_size;
    write_seen(capture, &seen);
}

/* Whether the kernel cuts the packet into as many datagrams as its UDP payload has segments. Something else that is
 * put into UDP, to be cut by its own rules, is kept whole. */
static bool is_datagram_run(const seen_frame *seen, const struct egress_tap_record *record)
{
    uint32_t header_bytes = ETH_HLEN + datagram_headers(seen->data, seen->captured_bytes);
    if (record->segment_bytes == 0 || header_bytes == ETH_HLEN || seen->wire_bytes <= header_bytes)
        return false;
    uint32_t payload_bytes = seen->wire_bytes - header_bytes;
    return (payload_bytes - 1) / record->segment_bytes + 1 == record->segment_count;
}

static bool is_unfinished_datagram(const seen_frame *seen)
{
    const uint8_t *ip = seen->data + ETH_HLEN;
    uint32_t header_bytes = datagram_headers(seen->data, seen->captured_bytes);
    return header_bytes > 0 && (um_load_be16(ip + UM_IPV4_FRAGMENT_AT) & UM_IPV4_FRAGMENT_MASK) == 0 &&
           um_datagram_awaits_checksum(ip, header_bytes - UM_UDP_HEADER_BYTES);
}

static int64_t departure_ns(const um_interface_capture *capture, const struct egress_tap_record *record)
{
    return (int64_t)record->time_ns - capture->tai_offset_ns;
}

static void write_record(um_interface_capture *capture, const struct egress_tap_record *record)
{
    seen_frame seen = {.data = (const uint8_t *)(record + 1),
                       .captured_bytes = record->captured_bytes,
                       .wire_bytes = record->wire_bytes,
                       .has_vlan = record->has_vlan,
                       .vlan_type = record->vlan_type,
                       .vlan_tci = record->vlan_tci,
                       .time_ns = departure_ns(capture, record),
                       .direction = UM_PCAPNG_OUTBOUND};
    if (is_datagram_run(&seen, record))
        seen.segment_bytes = record->segment_bytes;
    else
        seen.needs_checksum = is_unfinished_datagram(&seen);
    write_seen(capture, &seen);
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

/* Whether a time is after another. When the clock was set back, none is. */
static bool is_after(int64_t time_ns, int64_t until_ns)
{
    int64_t late_ns = time_ns - until_ns;
    return late_ns > 0 && late_ns < CLOCK_STEP_NS;
}

/* The next packet of the packet socket; NULL: the kernel has given none yet. */
static const struct tpacket3_hdr *next_packet(um_interface_capture *capture)
{
    while (capture->packet != NULL || begin_block(capture)) {
        if (capture->packets_left > 0)
            return capture->packet;
        give_back_block(capture);
    }
    return NULL;
}

static void take_packet(um_interface_capture *capture)
{
    capture->packets_left--;
    capture->taken_count++;
    capture->packet = (const void *)((const uint8_t *)capture->packet + capture->packet->tp_next_offset);
}

/* The next record of what went out, if it may be written before the packet, the next one that came in. Where there is
 * none, an older one may still be on its way: the kernel hands packets over in blocks. */
static const struct egress_tap_record *next_record(um_interface_capture *capture, const struct tpacket3_hdr *packet)
{
    const struct egress_tap_record *record = capture->has_egress ? um_egress_ring_next(&capture->egress) : NULL;
    if (record == NULL)
        return NULL;
    if (packet != NULL)
        return departure_ns(capture, record) < arrival_ns(packet) ? record : NULL;
    bool has_room = um_egress_ring_used_bytes(&capture->egress) < capture->egress.bytes / MERGE_RING_SHARE;
    return has_room && is_after(departure_ns(capture, record), capture->merged_until_ns) ? NULL : record;
}

/* Writes the older of what came in and what went out; false when neither has anything that may be written now. */
static bool write_next(um_interface_capture *capture)
{
    const struct tpacket3_hdr *packet = next_packet(capture);
    const struct egress_tap_record *record = next_record(capture, packet);
    if (record != NULL) {
        write_record(capture, record);
        um_egress_ring_take(&capture->egress);
        return true;
    }
    if (packet == NULL || is_after(arrival_ns(packet), capture->arrivals.until_ns))
        return false;
    write_packet(capture, packet);
    take_packet(capture);
    return true;
}

/* The two clocks are whole seconds apart. */
static void begin_merge(um_interface_capture *capture)
{
    int64_t now_ns = um_clock_wall_ns();
    int64_t ahead_ns = um_clock_read_ns(CLOCK_TAI) - now_ns;
    capture->tai_offset_ns = (ahead_ns + NS_PER_S / 2) / NS_PER_S * NS_PER_S;
    capture->merged_until_ns = now_ns - MERGE_NS;
    take_egress_statistics(capture);
}

/* Writes what the rings have of the time it is known about, as far as the file may grow. */
static void drain(um_interface_capture *capture, uint64_t limit_bytes)
{
    if (capture->has_egress)
        begin_merge(capture);
    while (limit_bytes == 0 || capture->writer.file_bytes < limit_bytes) {
        if (capture->writer.error != 0 || !write_next(capture))
            break;
    }
    if (capture->has_egress)
        um_egress_ring_give_back(&capture->egress);
}

/* Waits for the time to pass, for an event, or for a signal, which is as if the time had passed. Returns what poll
 * returned, or a negative errno. */
static int pause_for(struct pollfd *descriptor, int64_t wait_ns)
{
    struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
    int result = ppoll(descriptor, descriptor != NULL, &timeout, NULL);
    if (result < 0)
        return errno == EINTR ? 0 : -errno;
    return result;
}

/* How long to let packets gather after the last ones were written. */
static int64_t pace_ns(const um_interface_capture *capture)
{
    size_t ring_bytes = capture->ring_bytes;
    if (capture->has_egress && capture->egress.bytes < ring_bytes)
        ring_bytes = capture->egress.bytes;
    int64_t pace_ns = (int64_t)(ring_bytes / PACE_RING_SHARE);
    return pace_ns < PACE_MAX_NS ? pace_ns : PACE_MAX_NS;
}

/* Waits for the packet socket. Returns what poll returned, or a negative errno: that of the interface. */
static int wait_for_packets(um_interface_capture *capture, int64_t timeout_ns)
{
    struct pollfd descriptor = {.fd = capture->fd, .events = POLLIN};
    int result = pause_for(&descriptor, timeout_ns);
    if (result <= 0 || !(descriptor.revents & POLLERR))
        return result;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(capture->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return -error;
}

/* How long the egress ring may go without being looked at. */
static int64_t look_ns(const um_interface_capture *capture)
{
    if (!capture->has_egress)
        return INT64_MAX;
    int64_t share_ns = capture->egress.bytes / EGRESS_LOOK_RING_SHARE;
    return share_ns < EGRESS_LOOK_NS ? share_ns : EGRESS_LOOK_NS;
}

int um_interface_capture_wait(um_interface_capture *capture, int64_t timeout_ns)
{
    int64_t end_ns = um_clock_ns() + timeout_ns;
    int64_t rest_ns = capture->written_ns + pace_ns(capture) - um_clock_ns();
    if (rest_ns > 0)
        pause_for(NULL, rest_ns < timeout_ns ? rest_ns : timeout_ns);
    for (;;) {
        int64_t left_ns = end_ns - um_clock_ns();
        int64_t wait_ns = left_ns < look_ns(capture) ? left_ns : look_ns(capture);
        if (capture->has_egress && um_egress_ring_next(&capture->egress) != NULL)
            wait_ns = 0;
        int result = wait_for_packets(capture, wait_ns > 0 ? wait_ns : 0);
        if (result != 0 || wait_ns <= 0 || wait_ns == left_ns)
            return result < 0 ? result : 0;
    }
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
    bool has_records = capture->has_egress && um_egress_ring_next(&capture->egress) != NULL;
    return capture->taken_count >= capture->arrived_count && !has_records;
}

void um_interface_capture_read(const um_interface_capture *capture, um_interface_capture_counters *counters)
{
    *counters = capture->counters;
    counters->file_bytes = capture->writer.file_bytes;
    counters->file_packet_count = capture->writer.packet_count;
}

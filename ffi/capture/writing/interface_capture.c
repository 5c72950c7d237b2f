/* One file, because the inputs (mapped ring, packet socket, egress tap) share one loop, one clock and one order of
 * time.
 */
#include "capture/writing/interface_capture.h"

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

#include "capture/writing/datagram_frame.h"
#include "core/wire/lbtrm_run.h"
#include "os/clock.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    BLOCK_TIMEOUT_MS = 50,      /* the kernel releases a partial block after this time, or twice this */
    EGRESS_LOOK_NS = 20000000,  /* poll interval of the egress tap, which does not wake its reader */
    EGRESS_LOOK_RING_SHARE = 4, /* share of the time in which 1 byte per ns fills its ring */
    GATHER_BYTES = 512 * 1024,  /* bytes that justify another pass */
    GATHER_MIN_NS = 50000,
    FRAME_BYTES = 2048, /* required by the kernel, without a meaning in version 3 */
    MAC_ADDRESSES_BYTES = UM_ETHERTYPE_AT,
    FLUSH_INTERVAL_NS = 200000000,
    CLOCK_STEP_NS = 1000000000,
    PACE_MAX_NS = 5000000,
    PACE_RING_SHARE = 12, /* share of the time in which 1 byte per ns fills the ring */
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
    um_frame_merge egress; /* used instead of the ring */
    uint64_t egress_lost_count;
    uint32_t block;                    /* the next one to read */
    const struct tpacket3_hdr *packet; /* the next packet of a partly read block */
    uint32_t packets_left;
    um_pcapng_writer writer;
    bool has_file;
    int64_t file_opened_ns;
    int64_t flushed_ns;
    uint64_t flushed_unit; /* unit that was being filled at the last flush */
    int64_t written_ns;    /* time of the last write */
    int64_t pace_ns;       /* how long packets may gather after that */
    int64_t usual_pace_ns;
    um_interface_capture_arrivals arrivals;
    uint64_t file_drop_base;
    uint64_t reported_drop_count;
    uint64_t arrived_count; /* packets the kernel has put into the ring */
    uint64_t taken_count;   /* packets taken out of it */
    um_interface_capture_counters counters;
};

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

static void set_pace(um_interface_capture *capture, size_t ring_bytes)
{
    int64_t share_ns = (int64_t)(ring_bytes / PACE_RING_SHARE);
    capture->usual_pace_ns = share_ns < PACE_MAX_NS ? share_ns : PACE_MAX_NS;
    capture->pace_ns = capture->usual_pace_ns;
}

static int map_ring(um_interface_capture *capture)
{
    int version = TPACKET_V3, one = 1;
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0)
        return fail(capture, "PACKET_VERSION");
    const um_interface_capture_config *config = &capture->config;
    capture->has_run_header =
        config->has_run_headers && setsockopt(capture->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0;
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
    set_pace(capture, capture->ring_bytes);
    return 0;
}

/* The egress tap captures outgoing packets, so the packet socket must not. */
static int open_egress(um_interface_capture *capture)
{
    int one = 1;
    capture->has_egress = true;
    capture->has_run_header = true;
    int result = um_frame_merge_open(&capture->egress, capture->config.egress, capture->fd);
    if (result < 0) {
        errno = -result;
        return fail(capture, capture->egress.failed_step);
    }
    if (setsockopt(capture->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0)
        return fail(capture, "PACKET_IGNORE_OUTGOING");
    set_pace(capture, capture->egress.ring.bytes);
    return 0;
}

/* Bound last, so that all packets pass the filter. */
static int bind_to_interface(um_interface_capture *capture)
{
    int index = (int)if_nametoindex(capture->interface);
    if (index == 0)
        return fail(capture, "interface");
    if (capture->config.is_promiscuous) {
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
    /* Protocol 0: the socket receives nothing before it is bound. */
    capture->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (capture->fd < 0)
        return fail(capture, "socket");
    int result = config->egress != NULL ? open_egress(capture) : attach_filter(capture);
    if (result == 0 && config->egress == NULL)
        result = map_ring(capture);
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
    if (capture->has_egress)
        um_frame_merge_close(&capture->egress);
    if (capture->ring != NULL)
        munmap(capture->ring, capture->ring_bytes);
    if (capture->fd >= 0)
        close(capture->fd);
    free(capture);
}

/* ---- files ---- */

static void take_egress_statistics(um_interface_capture *capture)
{
    uint64_t lost_count = um_frame_merge_lost_count(&capture->egress);
    if (lost_count <= capture->egress_lost_count) /* late packets are no longer lost */
        return;
    capture->counters.drop_count += lost_count - capture->egress_lost_count;
    capture->egress_lost_count = lost_count;
}

/* Reading the kernel's counters resets them. */
static void take_statistics(um_interface_capture *capture)
{
    if (capture->has_egress) {
        take_egress_statistics(capture);
        return;
    }
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

/* Adds the frame whose `bytes` are at um_pcapng_packet_at. */
static void add_frame(um_interface_capture *capture, const um_seen_frame *seen, uint32_t bytes, uint32_t wire_bytes)
{
    uint32_t snap_bytes = capture->config.snap_bytes != 0 ? capture->config.snap_bytes : UINT32_MAX;
    um_pcapng_packet packet = {.time_ns = seen->time_ns,
                               .wire_bytes = wire_bytes,
                               .direction = seen->is_outgoing ? UM_PCAPNG_OUTBOUND : UM_PCAPNG_INBOUND,
                               .drop_count = capture->counters.drop_count - capture->reported_drop_count,
                               .queue = UM_PCAPNG_UNKNOWN,
                               .verdict = UM_PCAPNG_UNKNOWN};
    if (!seen->is_outgoing) {
        packet.queue = seen->queue_number > 0 ? (int64_t)seen->queue_number - 1 : capture->arrivals.queue;
        packet.verdict = capture->arrivals.verdict;
    }
    capture->reported_drop_count = capture->counters.drop_count;
    um_pcapng_add_packet(&capture->writer, &packet, bytes < snap_bytes ? bytes : snap_bytes);
    if (capture->counters.file_start_ns == 0)
        capture->counters.file_start_ns = seen->time_ns;
    capture->counters.packet_count++;
}

/* Writes a frame's link header, with the VLAN tag that the kernel keeps beside it. Returns its length. */
static uint32_t put_link_header(uint8_t *out, const um_seen_frame *seen)
{
    memcpy(out, seen->data, MAC_ADDRESSES_BYTES);
    uint32_t at = MAC_ADDRESSES_BYTES;
    if (seen->has_vlan) {
        um_store_be16(out + at, seen->vlan_type);
        um_store_be16(out + at + 2, seen->vlan_tci);
        at += UM_VLAN_TAG_BYTES;
    }
    memcpy(out + at, seen->data + MAC_ADDRESSES_BYTES, ETH_HLEN - MAC_ADDRESSES_BYTES);
    return at + ETH_HLEN - MAC_ADDRESSES_BYTES;
}

/* Returns the length of the IPv4 and UDP headers behind the link header if the frame is a datagram with complete
 * headers; otherwise 0. */
static uint32_t datagram_headers(const uint8_t *data, uint32_t bytes)
{
    if (bytes < ETH_HLEN + UM_IPV4_UDP_HEADER_BYTES || um_load_be16(data + MAC_ADDRESSES_BYTES) != ETH_P_IP)
        return 0;
    uint32_t ip_bytes = (data[ETH_HLEN] & 15u) * 4;
    bool is_udp = data[ETH_HLEN] >> 4 == 4 && data[ETH_HLEN + UM_IPV4_PROTOCOL_AT] == IPPROTO_UDP &&
                  ip_bytes >= UM_IPV4_HEADER_BYTES;
    return is_udp && bytes >= ETH_HLEN + ip_bytes + UM_UDP_HEADER_BYTES ? ip_bytes + UM_UDP_HEADER_BYTES : 0;
}

/* Copies the payload and returns its sum. Prefetches the file's memory, which is no longer in the caches. */
static uint64_t copy_payload(uint8_t *out, const uint8_t *payload, uint32_t bytes)
{
    enum { PIECE_BYTES = 256, FETCH_AHEAD_BYTES = 4096 };
    uint64_t sum = 0;
    for (uint32_t at = 0; at < bytes; at += PIECE_BYTES) {
        for (uint32_t line = 0; line < PIECE_BYTES; line += UM_CACHE_LINE_BYTES)
            __builtin_prefetch(out + at + line + FETCH_AHEAD_BYTES, 1, 3);
        uint32_t piece_bytes = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        sum = um_internet_copy(out + at, payload + at, piece_bytes, sum);
    }
    return sum;
}

/* Writes a single datagram or one of a run: the headers at `from` and the captured part of the payload. */
static void put_datagram(uint8_t *out, const uint8_t *from, uint32_t header_bytes, uint16_t identification,
                         const uint8_t *payload, uint32_t there_bytes, uint32_t payload_bytes)
{
    if (UM_LIKELY(header_bytes == UM_IPV4_UDP_HEADER_BYTES)) /* a constant size gives better code */
        memcpy(out, from, UM_IPV4_UDP_HEADER_BYTES);
    else
        memcpy(out, from, header_bytes);
    uint64_t sum = copy_payload(out + header_bytes, payload, there_bytes);
    um_datagram_refit(out, from, header_bytes - UM_UDP_HEADER_BYTES, identification,
                      there_bytes >= payload_bytes ? &sum : NULL, payload_bytes);
}

/* Writes a run as the single datagrams into which the kernel cuts it later. */
static void write_run(um_interface_capture *capture, const um_seen_frame *seen)
{
    const uint8_t *ip = seen->data + ETH_HLEN;
    uint32_t header_bytes = datagram_headers(seen->data, seen->captured_bytes);
    const uint8_t *payload = ip + header_bytes;
    uint32_t captured_bytes = seen->captured_bytes - ETH_HLEN - header_bytes;
    uint32_t payload_bytes = seen->wire_bytes - ETH_HLEN - header_bytes;
    uint16_t identification = um_load_be16(ip + UM_IPV4_IDENTIFICATION_AT);
    for (uint32_t at = 0; at < payload_bytes; at += seen->segment_bytes) {
        uint32_t wire = payload_bytes - at < seen->segment_bytes ? payload_bytes - at : seen->segment_bytes;
        uint32_t there = captured_bytes > at ? captured_bytes - at : 0;
        there = there < wire ? there : wire;
        uint8_t *out = um_pcapng_packet_at(&capture->writer);
        uint32_t link_bytes = put_link_header(out, seen);
        put_datagram(out + link_bytes, ip, header_bytes, identification++, payload + (there > 0 ? at : 0), there, wire);
        add_frame(capture, seen, link_bytes + header_bytes + there, link_bytes + header_bytes + wire);
    }
}

static void write_single(um_interface_capture *capture, const um_seen_frame *seen)
{
    uint8_t *out = um_pcapng_packet_at(&capture->writer);
    if (seen->captured_bytes < ETH_HLEN) {
        memcpy(out, seen->data, seen->captured_bytes);
        add_frame(capture, seen, seen->captured_bytes, seen->wire_bytes);
        return;
    }
    uint32_t link_bytes = put_link_header(out, seen);
    const uint8_t *ip = seen->data + ETH_HLEN;
    uint32_t there_bytes = seen->captured_bytes - ETH_HLEN, wire_bytes = seen->wire_bytes - ETH_HLEN;
    uint32_t header_bytes = seen->needs_checksum ? datagram_headers(seen->data, seen->captured_bytes) : 0;
    if (header_bytes > 0)
        put_datagram(out + link_bytes, ip, header_bytes, um_load_be16(ip + UM_IPV4_IDENTIFICATION_AT),
                     ip + header_bytes, there_bytes - header_bytes, wire_bytes - header_bytes);
    else
        memcpy(out + link_bytes, ip, there_bytes);
    add_frame(capture, seen, link_bytes + there_bytes, link_bytes + wire_bytes);
}

static void write_seen(um_interface_capture *capture, const um_seen_frame *seen)
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

/* Derives the sizes of a run from the frame if the kernel reports none. */
static void guess_kind(um_seen_frame *seen, uint32_t status)
{
    uint32_t header_bytes = datagram_headers(seen->data, seen->captured_bytes);
    seen->needs_checksum = status & TP_STATUS_CSUMNOTREADY;
    if (header_bytes > 0)
        seen->segment_bytes =
            um_lbtrm_run_segment(seen->data + ETH_HLEN + header_bytes, seen->captured_bytes - ETH_HLEN - header_bytes);
}

static void write_packet(um_interface_capture *capture, const struct tpacket3_hdr *packet)
{
    const struct sockaddr_ll *from =
        (const void *)((const uint8_t *)packet + TPACKET_ALIGN(sizeof(struct tpacket3_hdr)));
    um_seen_frame seen = {.data = (const uint8_t *)packet + packet->tp_mac,
                          .captured_bytes = packet->tp_snaplen,
                          .wire_bytes = packet->tp_len,
                          .has_vlan = packet->tp_status & TP_STATUS_VLAN_VALID,
                          .vlan_type = ETH_P_8021Q,
                          .vlan_tci = (uint16_t)packet->hv1.tp_vlan_tci,
                          .time_ns = arrival_ns(packet)};
    seen.is_outgoing = from->sll_pkttype == PACKET_OUTGOING;
    if (packet->tp_status & TP_STATUS_VLAN_TPID_VALID)
        seen.vlan_type = packet->hv1.tp_vlan_tpid;
    if (capture->has_run_header)
        um_seen_frame_read_kind(&seen, seen.data - sizeof(struct virtio_net_hdr));
    else
        guess_kind(&seen, packet->tp_status);
    write_seen(capture, &seen);
}

/* Returns true if the kernel cuts the packet into as many datagrams as its UDP payload has segments. Other protocols
 * inside UDP, which are cut by other rules, are kept whole. */
static bool is_datagram_run(const um_seen_frame *seen)
{
    uint32_t header_bytes = ETH_HLEN + datagram_headers(seen->data, seen->captured_bytes);
    if (seen->segment_bytes == 0 || header_bytes == ETH_HLEN || seen->wire_bytes <= header_bytes)
        return false;
    uint32_t payload_bytes = seen->wire_bytes - header_bytes;
    return (payload_bytes - 1) / seen->segment_bytes + 1 == seen->segment_count;
}

static bool is_unfinished_datagram(const um_seen_frame *seen)
{
    const uint8_t *ip = seen->data + ETH_HLEN;
    uint32_t header_bytes = datagram_headers(seen->data, seen->captured_bytes);
    return header_bytes > 0 && (um_load_be16(ip + UM_IPV4_FRAGMENT_AT) & UM_IPV4_FRAGMENT_MASK) == 0 &&
           um_datagram_awaits_checksum(ip, header_bytes - UM_UDP_HEADER_BYTES);
}

/* The kernel describes a copy in less detail than a frame of a packet socket. */
static void write_copied(um_interface_capture *capture, const um_seen_frame *copied)
{
    um_seen_frame seen = *copied;
    if (!is_datagram_run(copied)) {
        seen.segment_bytes = 0;
        seen.needs_checksum = is_unfinished_datagram(copied);
    }
    write_seen(capture, &seen);
}

static struct tpacket_block_desc *block_at(const um_interface_capture *capture, uint32_t index)
{
    return (struct tpacket_block_desc *)(capture->ring + (size_t)index * capture->config.block_bytes);
}

/* Starts the next block. Returns false if the kernel has not released it. */
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

static void release_block(um_interface_capture *capture)
{
    struct tpacket_block_desc *block = block_at(capture, capture->block);
    __atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    capture->packet = NULL;
    capture->block = (capture->block + 1) % capture->config.block_count;
}

/* Returns true if time_ns is after until_ns; false if the clock was set back. */
static bool is_after(int64_t time_ns, int64_t until_ns)
{
    int64_t late_ns = time_ns - until_ns;
    return late_ns > 0 && late_ns < CLOCK_STEP_NS;
}

/* Returns the next packet of the packet socket, or NULL if there is none yet. */
static const struct tpacket3_hdr *next_packet(um_interface_capture *capture)
{
    while (capture->packet != NULL || begin_block(capture)) {
        if (capture->packets_left > 0)
            return capture->packet;
        release_block(capture);
    }
    return NULL;
}

static void take_packet(um_interface_capture *capture)
{
    capture->packets_left--;
    capture->taken_count++;
    capture->packet = (const void *)((const uint8_t *)capture->packet + capture->packet->tp_next_offset);
}

static bool write_packet_of_ring(um_interface_capture *capture)
{
    const struct tpacket3_hdr *packet = next_packet(capture);
    if (packet == NULL || is_after(arrival_ns(packet), capture->arrivals.until_ns))
        return false;
    write_packet(capture, packet);
    take_packet(capture);
    return true;
}

static bool write_packet_of_merge(um_interface_capture *capture)
{
    const um_seen_frame *seen = um_frame_merge_next(&capture->egress);
    if (seen == NULL || (!seen->is_outgoing && is_after(seen->time_ns, capture->arrivals.until_ns)))
        return false;
    if (capture->egress.next_source == UM_FRAME_COPIED)
        write_copied(capture, seen);
    else
        write_seen(capture, seen);
    um_frame_merge_take(&capture->egress);
    return true;
}

/* Writes the packets up to the time of the arrivals, within the size limit of the file. */
static void drain(um_interface_capture *capture, uint64_t limit_bytes)
{
    if (capture->has_egress) {
        um_frame_merge_look(&capture->egress);
        take_egress_statistics(capture);
    }
    while (limit_bytes == 0 || capture->writer.file_bytes < limit_bytes) {
        bool has_written = capture->has_egress ? write_packet_of_merge(capture) : write_packet_of_ring(capture);
        if (capture->writer.error != 0 || !has_written)
            break;
    }
    if (capture->has_egress)
        um_frame_merge_release(&capture->egress);
}

/* Waits until the timeout, an event, or a signal, which counts as a timeout. Returns the result of poll or a negative
 * errno. */
static int pause_for(struct pollfd *descriptor, int64_t wait_ns)
{
    struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
    int result = ppoll(descriptor, descriptor != NULL, &timeout, NULL);
    if (result < 0)
        return errno == EINTR ? 0 : -errno;
    return result;
}

/* Waits for the packet socket, which with an egress tap does not wake its reader either. Returns the result of poll, or
 * a negative errno of the interface. */
static int wait_for_packets(um_interface_capture *capture, int64_t timeout_ns)
{
    struct pollfd descriptor = {.fd = capture->fd, .events = capture->has_egress ? 0 : POLLIN};
    int result = pause_for(&descriptor, timeout_ns);
    if (result <= 0 || !(descriptor.revents & POLLERR))
        return result;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(capture->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return -error;
}

/* Returns the maximum interval between polls of the egress tap. */
static int64_t look_ns(const um_interface_capture *capture)
{
    if (!capture->has_egress)
        return INT64_MAX;
    int64_t share_ns = capture->egress.ring.bytes / EGRESS_LOOK_RING_SHARE;
    return share_ns < EGRESS_LOOK_NS ? share_ns : EGRESS_LOOK_NS;
}

int um_interface_capture_wait(um_interface_capture *capture, int64_t timeout_ns)
{
    int64_t end_ns = um_clock_ns() + timeout_ns;
    int64_t pace_left_ns = capture->written_ns + capture->pace_ns - um_clock_ns();
    if (pace_left_ns > 0)
        pause_for(NULL, pace_left_ns < timeout_ns ? pace_left_ns : timeout_ns);
    for (;;) {
        int64_t left_ns = end_ns - um_clock_ns();
        int64_t wait_ns = left_ns < look_ns(capture) ? left_ns : look_ns(capture);
        if (capture->has_egress && !um_frame_merge_is_empty(&capture->egress))
            wait_ns = 0;
        int result = wait_for_packets(capture, wait_ns > 0 ? wait_ns : 0);
        if (capture->has_egress && result == 0)
            result = um_frame_merge_take_error(&capture->egress);
        if (result != 0 || wait_ns <= 0 || wait_ns == left_ns)
            return result < 0 ? result : 0;
    }
}

/* For a while, writes the frames of an egress tap as they arrive, so that the kernel gets the pages of mirrored frames
 * back sooner. */
static void drain_stream(um_interface_capture *capture, uint64_t limit_bytes)
{
    int64_t start_ns = um_clock_ns(), end_ns = start_ns + PACE_MAX_NS;
    for (;;) {
        uint64_t before_bytes = capture->writer.file_bytes;
        drain(capture, limit_bytes);
        int64_t bytes = (int64_t)(capture->writer.file_bytes - before_bytes), now_ns = um_clock_ns();
        capture->pace_ns = capture->usual_pace_ns;
        if (bytes < GATHER_BYTES / 4 || capture->writer.error != 0)
            return;
        int64_t gather_ns = (now_ns - start_ns) * GATHER_BYTES / bytes;
        gather_ns = gather_ns > GATHER_MIN_NS ? gather_ns : GATHER_MIN_NS;
        capture->pace_ns = gather_ns < capture->usual_pace_ns ? gather_ns : capture->usual_pace_ns;
        if (now_ns + capture->pace_ns >= end_ns)
            return;
        start_ns = now_ns;
        pause_for(NULL, capture->pace_ns);
    }
}

/* No flush is needed while the file fills units. */
static void flush(um_interface_capture *capture)
{
    uint64_t unit = capture->writer.file_bytes / UM_FILE_UNIT_BYTES;
    if (unit == capture->flushed_unit)
        um_pcapng_flush(&capture->writer);
    capture->flushed_unit = unit;
    capture->flushed_ns = capture->written_ns;
}

int64_t um_interface_capture_write(um_interface_capture *capture, const um_interface_capture_arrivals *arrivals,
                                   uint64_t limit_bytes)
{
    uint64_t before = capture->counters.packet_count;
    capture->arrivals = *arrivals;
    if (capture->has_file && capture->has_egress)
        drain_stream(capture, limit_bytes);
    else if (capture->has_file)
        drain(capture, limit_bytes);
    capture->written_ns = um_clock_ns();
    if (capture->has_file && capture->written_ns - capture->flushed_ns > FLUSH_INTERVAL_NS)
        flush(capture);
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
    return capture->has_egress ? um_frame_merge_is_empty(&capture->egress)
                               : capture->taken_count >= capture->arrived_count;
}

void um_interface_capture_read(const um_interface_capture *capture, um_interface_capture_counters *counters)
{
    *counters = capture->counters;
    counters->file_bytes = capture->writer.file_bytes;
    counters->file_packet_count = capture->writer.packet_count;
}

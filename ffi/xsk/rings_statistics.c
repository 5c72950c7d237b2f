#include <linux/if_xdp.h>
#include <sys/socket.h>

#include "os/lock.h"
#include "xsk/rings.h"
#include "xsk/rings_state.h"

void um_xsk_rings_facts(const um_xsk_rings *rings, um_xsk_facts *facts)
{
    *facts = (um_xsk_facts){.zero_copy = rings->is_zero_copy,
                            .multi_buffer = rings->config.multi_buffer,
                            .huge_pages = rings->has_huge_pages,
                            .busy_poll = rings->is_busy_polling,
                            .datagram_max_bytes = um_xsk_queue_datagram_max(&rings->queues[0]),
                            .locked_bytes = rings->area_bytes,
                            .nic_clock_error = rings->nic_clock_error};
}

int um_xsk_rings_socket(const um_xsk_rings *rings, uint32_t index)
{
    return rings->queues[index].fd;
}

int um_xsk_rings_memory(const um_xsk_rings *rings)
{
    return rings->memory_fd;
}

uint64_t um_xsk_rings_received(const um_xsk_rings *rings, uint32_t index)
{
    return rings->queues[index].counters.datagrams_received;
}

void um_xsk_rings_mac(const um_xsk_rings *rings, uint8_t *mac)
{
    uint64_t address = atomic_load_explicit(&rings->mac, memory_order_relaxed);
    memcpy(mac, &address, UM_MAC_BYTES);
}

uint32_t um_xsk_rings_descriptors(const um_rings *base, int *fds, uint32_t max)
{
    const um_xsk_rings *rings = (const um_xsk_rings *)base;
    uint32_t count = rings->config.queue_count < max ? rings->config.queue_count : max;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = rings->queues[i].fd;
    return rings->config.queue_count;
}

static void add_kernel_statistics(const um_xsk_queue *queue, um_link_counters *sum)
{
    struct xdp_statistics statistics = {0};
    socklen_t length = sizeof statistics;
    if (getsockopt(queue->fd, SOL_XDP, XDP_STATISTICS, &statistics, &length) != 0)
        return;
    UM_COUNT(sum->receive_drops, statistics.rx_dropped + statistics.rx_ring_full);
    UM_COUNT(sum->xdp_rx_dropped, statistics.rx_dropped);
    UM_COUNT(sum->xdp_rx_invalid_descs, statistics.rx_invalid_descs);
    UM_COUNT(sum->xdp_tx_invalid_descs, statistics.tx_invalid_descs);
    UM_COUNT(sum->xdp_rx_ring_full, statistics.rx_ring_full);
    UM_COUNT(sum->xdp_rx_fill_ring_empty_descs, statistics.rx_fill_ring_empty_descs);
    UM_COUNT(sum->xdp_tx_ring_empty_descs, statistics.tx_ring_empty_descs);
}

void um_xsk_rings_add_counters(um_rings *base, um_link_counters *sum)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    for (uint32_t i = 0; i < rings->config.queue_count; i++) {
        um_xsk_queue *queue = &rings->queues[i];
        um_lock_acquire(&queue->send_lock); /* the caller holds the context lock, which guards receiving */
        um_link_counters_add(sum, &queue->counters);
        um_lock_release(&queue->send_lock);
        UM_COUNT(sum->syscalls, queue->receive_syscalls);
        add_kernel_statistics(queue, sum);
    }
}

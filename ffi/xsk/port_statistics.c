#include <linux/if_xdp.h>
#include <sys/socket.h>

#include "xsk/port_state.h"

void um_xsk_port_facts(const um_xsk_port *port, um_xsk_facts *facts)
{
    *facts = (um_xsk_facts){.zero_copy = port->zero_copy,
                            .multi_buffer = port->config.multi_buffer,
                            .huge_pages = port->huge_pages,
                            .busy_poll = port->busy_poll,
                            .datagram_max_bytes = um_xsk_queue_datagram_max(&port->queues[0]),
                            .locked_bytes = port->area_bytes};
}

int um_xsk_port_socket(const um_xsk_port *port, uint32_t index)
{
    return port->queues[index].fd;
}

int um_xsk_port_memory(const um_xsk_port *port)
{
    return port->memory_fd;
}

uint64_t um_xsk_port_received(const um_xsk_port *port, uint32_t index)
{
    return port->queues[index].counters.datagrams_received;
}

const uint8_t *um_xsk_port_mac(const um_xsk_port *port)
{
    return port->mac;
}

uint32_t um_xsk_port_descriptors(const um_port *base, int *fds, uint32_t max)
{
    const um_xsk_port *port = (const um_xsk_port *)base;
    uint32_t count = port->config.queue_count < max ? port->config.queue_count : max;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = port->queues[i].fd;
    return port->config.queue_count;
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

void um_xsk_port_add_counters(um_port *base, um_link_counters *sum)
{
    const um_xsk_port *port = (const um_xsk_port *)base;
    for (uint32_t i = 0; i < port->config.queue_count; i++) {
        um_link_counters_add(sum, &port->queues[i].counters);
        UM_COUNT(sum->syscalls, port->queues[i].receive_syscalls);
        add_kernel_statistics(&port->queues[i], sum);
    }
}

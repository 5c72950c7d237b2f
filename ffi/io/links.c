#include "io/links.h"

#include "core/wire/datagram_size.h"
#include "os/memory.h"

#define RING_BYTES ((size_t)UM_RECEIVE_BATCH_MAX * UM_RECEIVE_STRIDE_BYTES)

int um_links_open(um_links *links, const um_socket_config *config, um_rings *rings)
{
    links->socket_config = *config;
    links->rings = rings;
    links->ring_memory = um_map(RING_BYTES);
    if (links->ring_memory == NULL)
        return -ENOMEM;
    um_receive_ring_init(&links->ring, links->ring_memory);
    return 0;
}

void um_links_close(um_links *links)
{
    um_unmap(links->ring_memory, RING_BYTES);
    links->ring_memory = NULL;
}

void um_links_close_socket(um_links *links, um_socket_link *link)
{
    um_socket_close(link);
    um_link_counters_add(&links->closed, &link->counters);
}

int um_links_receive(um_links *links, um_socket_link *link, int max)
{
    int count = um_socket_receive(link, &links->ring, max);
    if (count > 0)
        um_tap_received(&links->tap, links->ring.batch, (uint32_t)count);
    return count;
}

void um_links_on_send_error(const um_links *links, um_source_session *session, int fd)
{
    int error = session->link_error;
    session->link_error = 0;
    if (error != -EMSGSIZE)
        return;
    int mtu = um_socket_interface_mtu(fd, links->socket_config.interface);
    int header_bytes = (int)um_datagram_header_bytes(session->config.group);
    if (mtu > header_bytes)
        um_source_session_set_datagram_max(session, (uint32_t)(mtu - header_bytes));
}

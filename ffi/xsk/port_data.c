#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "io/clock.h"
#include "xsk/port_state.h"

enum {
    KICKS_MAX = 256,          /* calls to empty a send ring; the kernel takes 32 frames or more in each */
    STALL_RETRY_NS = 50000,   /* how soon a send ring the kernel would not empty is tried again */
    DOWN_RETRY_NS = 10000000, /* and one whose interface is down */
};

typedef struct um_xsk_link {
    um_link base;
    um_xsk_port *port;
    uint32_t queue;
    um_port_sender sender;
    um_xsk_template made;
} um_xsk_link;

um_xsk_queue *um_xsk_port_queue(um_xsk_port *port, uint32_t index)
{
    return &port->queues[index];
}

/* ---- receiving ---- */

void um_xsk_port_poll(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    if (!port->busy_poll && !xsk_ring_prod__needs_wakeup(&queue->fill))
        return;
    UM_COUNT(queue->receive_syscalls, 1);
    recvfrom(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

/* Begins with another queue each time, so that one that is always full does not starve the others. */
static int receive(um_port *base, um_rx *batch, uint32_t max)
{
    um_xsk_port *port = (um_xsk_port *)base;
    uint32_t count = 0;
    base->more = false;
    base->taken_frames = 0;
    for (uint32_t i = 0; i < port->config.queue_count && count < max; i++) {
        uint32_t index = (port->turn + i) % port->config.queue_count;
        um_xsk_queue *queue = &port->queues[index];
        uint32_t received = um_xsk_queue_receive(queue, batch + count, max - count);
        if (received == 0)
            um_xsk_port_poll(port, index);
        base->more |= queue->left_some;
        base->taken_frames += queue->taken_count;
        for (uint32_t k = 0; k < received; k++)
            batch[count + k].queue_number = port->config.first_queue + index + 1;
        count += received;
    }
    port->turn = (port->turn + 1) % port->config.queue_count;
    base->more |= count == max;
    if (count == 0)
        return 0;
    int64_t received_ns = um_clock_wall_ns();
    for (uint32_t i = 0; i < count; i++)
        batch[i].received_ns = received_ns;
    return (int)count;
}

static void release(um_port *base)
{
    um_xsk_port *port = (um_xsk_port *)base;
    for (uint32_t i = 0; i < port->config.queue_count; i++)
        um_xsk_queue_release(&port->queues[i]);
}

/* ---- sending ---- */

static bool will_pass(int error)
{
    return error == EAGAIN || error == EBUSY || error == ENOBUFS;
}

/* In copy mode the call is what sends, at most the budget's frames of it; with zero copy the driver sends, and the
 * call only wakes it. */
int um_xsk_port_kick(um_xsk_port *port, uint32_t index)
{
    um_xsk_queue *queue = &port->queues[index];
    uint32_t unsent = um_xsk_queue_unsent(queue);
    for (int i = 0; i < KICKS_MAX && unsent > 0 && xsk_ring_prod__needs_wakeup(&queue->send); i++) {
        UM_COUNT(queue->counters.syscalls, 1);
        if (sendto(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && !will_pass(errno)) {
            int error = errno;
            UM_COUNT(queue->counters.send_errors, 1);
            atomic_store(&port->base.stalled, 1);
            return -error;
        }
        if (port->zero_copy)
            return 0;
        uint32_t before = unsent;
        um_xsk_queue_reclaim(queue);
        unsent = um_xsk_queue_unsent(queue);
        if (unsent == before) {
            UM_COUNT(queue->counters.send_would_block, 1);
            atomic_store(&port->base.stalled, 1);
            return 0;
        }
    }
    return 0;
}

static void lock_sending(um_xsk_queue *queue)
{
    while (!um_lock_try(&queue->send_lock))
        sched_yield();
}

static int send_locked(um_xsk_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_port *port = link->port;
    um_xsk_queue *queue = &port->queues[link->queue];
    if (!um_address_equal(to, link->made.to))
        um_xsk_template_init(&link->made, port->mac, link->sender.from, to, link->sender.ttl);
    int result = um_xsk_port_kick(port, link->queue); /* what was left over has to go first */
    if (result < 0)
        return result;
    int taken = um_xsk_queue_send(queue, &link->made, batch, count);
    if (taken <= 0) {
        UM_COUNT(queue->counters.send_would_block, taken == 0);
        return taken;
    }
    um_xsk_port_kick(port, link->queue);
    return taken;
}

static int send_datagrams(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->port->queues[link->queue];
    lock_sending(queue);
    int result = send_locked(link, to, batch, count);
    um_lock_release(&queue->send_lock);
    return result;
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_link *otherwise = ((um_xsk_link *)base)->sender.otherwise;
    return otherwise->ops->send_oversize(otherwise, to, datagram);
}

static uint32_t borrow_frames(um_link *base, uint8_t **pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->port->queues[link->queue];
    lock_sending(queue);
    uint32_t lent = um_xsk_queue_borrow(queue, pieces, count);
    um_lock_release(&queue->send_lock);
    return lent;
}

static void return_frames(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->port->queues[link->queue];
    lock_sending(queue);
    um_xsk_queue_return(queue, pieces, count);
    um_lock_release(&queue->send_lock);
}

static const um_link_ops LINK_OPS = {send_datagrams, send_oversize, borrow_frames, return_frames};

static int64_t retry(um_port *base, int64_t now_ns)
{
    um_xsk_port *port = (um_xsk_port *)base;
    if (!atomic_load_explicit(&base->stalled, memory_order_relaxed))
        return INT64_MAX;
    atomic_store(&base->stalled, 0);
    int64_t retry_ns = STALL_RETRY_NS;
    for (uint32_t i = 0; i < port->config.queue_count; i++) {
        um_xsk_queue *queue = &port->queues[i];
        if (um_xsk_queue_unsent(queue) == 0)
            continue;
        if (!um_lock_try(&queue->send_lock)) {
            atomic_store(&base->stalled, 1);
            continue;
        }
        if (um_xsk_port_kick(port, i) < 0)
            retry_ns = DOWN_RETRY_NS;
        um_lock_release(&queue->send_lock);
    }
    return atomic_load(&base->stalled) ? now_ns + retry_ns : INT64_MAX;
}

/* ---- links ---- */

static int open_link(um_port *base, const um_port_sender *sender, um_link **opened)
{
    um_xsk_port *port = (um_xsk_port *)base;
    um_xsk_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (um_xsk_link){.base = {&LINK_OPS, .borrow_bytes = um_xsk_queue_borrow_bytes(&port->queues[0])},
                          .port = port,
                          .queue = atomic_fetch_add(&port->next_queue, 1) % port->config.queue_count,
                          .sender = *sender};
    atomic_fetch_add(&port->link_count, 1);
    *opened = &link->base;
    return 0;
}

static void close_link(um_port *base, um_link *link)
{
    atomic_fetch_sub(&((um_xsk_port *)base)->link_count, 1);
    free(link);
}

const um_port_ops UM_XSK_PORT_OPS = {.receive = receive,
                                     .release = release,
                                     .open_link = open_link,
                                     .close_link = close_link,
                                     .descriptors = um_xsk_port_descriptors,
                                     .tend = retry,
                                     .add_counters = um_xsk_port_add_counters};

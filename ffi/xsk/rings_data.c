#include <stdlib.h>
#include <sys/socket.h>

#include "../bpf/steering_time.h"
#include "os/clock.h"
#include "os/lock.h"
#include "xsk/nic_clock.h"
#include "xsk/rings_state.h"

enum {
    KICKS_MAX = 256,          /* maximum calls to empty a send ring; the kernel takes 32 frames or more per call */
    STALL_RETRY_NS = 50000,   /* interval between retries while the kernel does not empty a send ring */
    DOWN_RETRY_NS = 10000000, /* interval between retries while the interface is down */
};

typedef struct um_xsk_link {
    um_link base;
    um_xsk_rings *rings;
    uint32_t queue;
    um_rings_sender sender;
    um_xsk_template made;
    uint64_t made_from; /* the template's source Ethernet address */
} um_xsk_link;

um_xsk_queue *um_xsk_rings_queue(um_xsk_rings *rings, uint32_t index)
{
    return &rings->queues[index];
}

/* ---- receiving ---- */

void um_xsk_rings_poll(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    if (!rings->is_busy_polling && !xsk_ring_prod__needs_wakeup(&queue->fill))
        return;
    UM_COUNT(queue->receive_syscalls, 1);
    recvfrom(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

_Static_assert(sizeof(struct steering_time) == (size_t)UM_XSK_TIMES_BYTES,
               "the program writes the times that are read");

/* Sets the time of arrival by the wall clock: the time that the program wrote, or now. */
static void note_arrivals(um_xsk_rings *rings, um_rx *batch, uint32_t count)
{
    int64_t received_ns;
    if (rings->config.reads_times) {
        int64_t now_ns = um_clock_note_wall_offset(&rings->wall_offset_ns);
        received_ns = now_ns + rings->wall_offset_ns;
    } else {
        received_ns = um_clock_wall_ns();
    }
    for (uint32_t i = 0; i < count; i++)
        batch[i].received_ns = batch[i].received_ns == 0 ? received_ns : batch[i].received_ns + rings->wall_offset_ns;
}

/* Reads the clock if a reading is due. The times of later frames are converted with it. After a failure the clock is no
 * longer used. */
static void read_nic_clock(um_xsk_rings *rings)
{
    int64_t now_ns = um_clock_ns(), wall_ahead_ns = 0;
    if (now_ns - rings->nic_clock_ns < UM_NIC_CLOCK_READ_NS)
        return;
    rings->nic_clock_ns = now_ns;
    int result = um_nic_clock_offset(rings->nic_clock_fd, &wall_ahead_ns);
    rings->nic_clock_error = -result;
    um_clock_note_wall_offset(&rings->wall_offset_ns);
    for (uint32_t i = 0; i < rings->config.queue_count; i++) {
        rings->queues[i].has_nic_clock = result == 0;
        rings->queues[i].nic_behind_ns = wall_ahead_ns - rings->wall_offset_ns;
    }
}

/* Starts with the next queue on each call, so that one that is always full does not starve the others. */
static int receive(um_rings *base, um_rx *batch, uint32_t max)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    uint32_t count = 0;
    base->has_more = false;
    base->taken_frames = 0;
    if (rings->nic_clock_fd >= 0)
        read_nic_clock(rings);
    for (uint32_t i = 0; i < rings->config.queue_count && count < max; i++) {
        uint32_t index = (rings->turn + i) % rings->config.queue_count;
        um_xsk_queue *queue = &rings->queues[index];
        uint32_t received = um_xsk_queue_receive(queue, batch + count, max - count);
        if (received == 0)
            um_xsk_rings_poll(rings, index);
        base->has_more |= queue->has_more;
        base->taken_frames += queue->taken_count;
        for (uint32_t k = 0; k < received; k++)
            batch[count + k].queue_number = rings->config.first_queue + index + 1;
        count += received;
    }
    rings->turn = (rings->turn + 1) % rings->config.queue_count;
    base->has_more |= count == max;
    if (count == 0)
        return 0;
    note_arrivals(rings, batch, count);
    return (int)count;
}

static void release(um_rings *base)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    for (uint32_t i = 0; i < rings->config.queue_count; i++)
        um_xsk_queue_release(&rings->queues[i]);
}

/* ---- sending ---- */

static bool is_transient(int error)
{
    return error == EAGAIN || error == EBUSY || error == ENOBUFS;
}

/* In copy mode this call sends up to the budget's number of frames; in zero-copy mode it only wakes the driver, which
 * sends. */
int um_xsk_rings_kick(um_xsk_rings *rings, uint32_t index)
{
    um_xsk_queue *queue = &rings->queues[index];
    uint32_t unsent = um_xsk_queue_unsent(queue);
    for (int i = 0; i < KICKS_MAX && unsent > 0 && xsk_ring_prod__needs_wakeup(&queue->send); i++) {
        UM_COUNT(queue->counters.syscalls, 1);
        if (sendto(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && !is_transient(errno)) {
            int error = errno;
            UM_COUNT(queue->counters.send_errors, 1);
            atomic_store(&rings->base.stalled, 1);
            return -error;
        }
        if (rings->is_zero_copy)
            return 0;
        uint32_t before = unsent;
        um_xsk_queue_reclaim(queue);
        unsent = um_xsk_queue_unsent(queue);
        if (unsent == before) {
            UM_COUNT(queue->counters.send_would_block, 1);
            atomic_store(&rings->base.stalled, 1);
            return 0;
        }
    }
    return 0;
}

/* Updates the template: the destination or the interface's address may have changed. */
static void make_template(um_xsk_link *link, um_address to)
{
    um_xsk_rings *rings = link->rings;
    uint64_t mac = atomic_load_explicit(&rings->mac, memory_order_relaxed);
    if (um_address_equal(to, link->made.to) && mac == link->made_from)
        return;
    link->made_from = mac;
    um_xsk_template_init(&link->made, (const uint8_t *)&mac, rings->config.tag_control, link->sender.from, to,
                         link->sender.ttl, link->sender.traffic_class);
}

static int send_locked(um_xsk_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_rings *rings = link->rings;
    um_xsk_queue *queue = &rings->queues[link->queue];
    make_template(link, to);
    int result = um_xsk_rings_kick(rings, link->queue); /* datagrams left in the ring are sent first */
    if (result < 0)
        return result;
    int taken = um_xsk_queue_send(queue, &link->made, batch, count);
    UM_COUNT(queue->counters.short_sends, taken >= 0 && (uint32_t)taken < count);
    if (taken <= 0) {
        UM_COUNT(queue->counters.send_would_block, taken == 0);
        return taken;
    }
    um_xsk_rings_kick(rings, link->queue);
    return taken;
}

static int send_datagrams(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->rings->queues[link->queue];
    um_link *otherwise = link->sender.otherwise;
    if (atomic_load_explicit(&link->rings->sends_by_socket, memory_order_relaxed))
        return otherwise->ops->send(otherwise, to, batch, count); /* which leaves borrowed frames to the borrower */
    um_lock_acquire(&queue->send_lock);
    int result = send_locked(link, to, batch, count);
    um_lock_release(&queue->send_lock);
    return result;
}

void um_xsk_rings_send_by_socket(um_xsk_rings *rings, bool is_by_socket)
{
    atomic_store_explicit(&rings->sends_by_socket, is_by_socket, memory_order_relaxed);
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_link *otherwise = ((um_xsk_link *)base)->sender.otherwise;
    return otherwise->ops->send_oversize(otherwise, to, datagram);
}

static uint32_t borrow_frames(um_link *base, uint8_t **pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->rings->queues[link->queue];
    um_lock_acquire(&queue->send_lock);
    uint32_t borrowed = um_xsk_queue_borrow(queue, pieces, count);
    um_lock_release(&queue->send_lock);
    return borrowed;
}

static void return_frames(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    um_xsk_link *link = (um_xsk_link *)base;
    um_xsk_queue *queue = &link->rings->queues[link->queue];
    um_lock_acquire(&queue->send_lock);
    um_xsk_queue_return(queue, pieces, count);
    um_lock_release(&queue->send_lock);
}

static const um_link_ops LINK_OPS = {send_datagrams, send_oversize, borrow_frames, return_frames};

static int64_t retry(um_rings *base, int64_t now_ns)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    if (!atomic_load_explicit(&base->stalled, memory_order_relaxed))
        return INT64_MAX;
    atomic_store(&base->stalled, 0);
    int64_t retry_ns = STALL_RETRY_NS;
    for (uint32_t i = 0; i < rings->config.queue_count; i++) {
        um_xsk_queue *queue = &rings->queues[i];
        if (um_xsk_queue_unsent(queue) == 0)
            continue;
        if (!um_lock_try(&queue->send_lock)) {
            atomic_store(&base->stalled, 1);
            continue;
        }
        if (um_xsk_rings_kick(rings, i) < 0)
            retry_ns = DOWN_RETRY_NS;
        um_lock_release(&queue->send_lock);
    }
    return atomic_load(&base->stalled) ? now_ns + retry_ns : INT64_MAX;
}

/* ---- links ---- */

static int open_link(um_rings *base, const um_rings_sender *sender, um_link **opened)
{
    um_xsk_rings *rings = (um_xsk_rings *)base;
    um_xsk_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (um_xsk_link){.base = {&LINK_OPS, .borrow_bytes = um_xsk_queue_borrow_bytes(&rings->queues[0])},
                          .rings = rings,
                          .queue = atomic_fetch_add(&rings->next_queue, 1) % rings->config.queue_count,
                          .sender = *sender};
    atomic_fetch_add(&rings->link_count, 1);
    *opened = &link->base;
    return 0;
}

static void close_link(um_rings *base, um_link *link)
{
    atomic_fetch_sub(&((um_xsk_rings *)base)->link_count, 1);
    free(link);
}

const um_rings_ops UM_XSK_RINGS_OPS = {.receive = receive,
                                       .release = release,
                                       .open_link = open_link,
                                       .close_link = close_link,
                                       .descriptors = um_xsk_rings_descriptors,
                                       .service = retry,
                                       .add_counters = um_xsk_rings_add_counters};

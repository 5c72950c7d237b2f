#include "xsk/queue.h"

#include "../bpf/steering_time.h"
#include "core/wire/datagram_size.h"

#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

enum {
    PREFETCHED_AHEAD = 8,
    NIC_WAIT_MAX_NS = 1000000000,    /* longest wait of a frame in a NIC */
    NIC_CLOCK_ERROR_MAX_NS = 100000, /* of a clock that was read recently */
    BORROWED_AT = 64,                /* offset in a frame: cache lines are copied to lines; the headers end here */
};

_Static_assert((int)UM_XSK_TAGGED_HEADER_BYTES <= (int)BORROWED_AT, "the headers fit in front of a borrowed piece");

/* ---- ownership of frames ---- */

static void set_owner(um_xsk_queue *queue, uint64_t address, enum um_xsk_owner from, enum um_xsk_owner to)
{
#ifdef UM_DEBUG
    uint64_t frame = address / queue->frame_bytes;
    assert(frame < (uint64_t)queue->receive_frame_count + queue->send_frame_count);
    assert(queue->owners[frame] == (uint8_t)from);
    queue->owners[frame] = (uint8_t)to;
#else
    (void)queue, (void)address, (void)from, (void)to;
#endif
}

static uint64_t frame_of(const um_xsk_queue *queue, uint64_t address)
{
    return address & ~((uint64_t)queue->frame_bytes - 1);
}

static void carve(um_xsk_queue *queue, um_arena *arena, uint32_t receive_frame_count, uint32_t send_frame_count)
{
    uint64_t *free_frames = um_arena_take(arena, sizeof *free_frames * send_frame_count);
    uint8_t *pinned = um_arena_take(arena, receive_frame_count);
    uint8_t *owners = um_arena_take(arena, (size_t)receive_frame_count + send_frame_count);
    if (queue == NULL)
        return;
    queue->free_frames = free_frames;
    queue->pinned = pinned;
#ifdef UM_DEBUG
    queue->owners = owners;
#else
    (void)owners;
#endif
}

size_t um_xsk_queue_footprint(uint32_t receive_frame_count, uint32_t send_frame_count)
{
    um_arena arena = {0};
    carve(NULL, &arena, receive_frame_count, send_frame_count);
    return arena.used_bytes;
}

static bool pin_frame(um_frames *frames, const uint8_t *data);
static void unpin_frames(um_frames *frames, const uint8_t *const *data, uint32_t count);

void um_xsk_queue_init(um_xsk_queue *queue, void *memory, uint8_t *assembly)
{
    um_arena arena = {.base = memory};
    carve(queue, &arena, queue->receive_frame_count, queue->send_frame_count);
    queue->frames = (um_frames){.pin = pin_frame, .unpin = unpin_frames};
    queue->assembly = assembly;
    queue->taken_count = queue->pinned_count = queue->taken_and_pinned = 0;
    um_link_counters_reset(&queue->counters);
    uint32_t at = 0;
    uint32_t reserved = xsk_ring_prod__reserve(&queue->fill, queue->receive_frame_count, &at);
    assert(reserved == queue->receive_frame_count);
    for (uint32_t i = 0; i < reserved; i++) {
        uint64_t address = (uint64_t)i * queue->frame_bytes;
        set_owner(queue, address, UM_XSK_OWNER_FREE, UM_XSK_OWNER_FILL);
        *xsk_ring_prod__fill_addr(&queue->fill, at + i) = address;
    }
    xsk_ring_prod__submit(&queue->fill, reserved);
    queue->free_count = queue->send_frame_count;
    for (uint32_t i = 0; i < queue->send_frame_count; i++)
        queue->free_frames[i] = (uint64_t)(queue->receive_frame_count + i) * queue->frame_bytes;
}

/* ---- receiving ---- */

static bool pin_frame(um_frames *frames, const uint8_t *data)
{
    um_xsk_queue *queue = (um_xsk_queue *)frames;
    uint64_t address = (uint64_t)(data - queue->area);
    uint8_t *pinned = &queue->pinned[address / queue->frame_bytes];
    if (queue->pinned_count >= queue->receive_frame_count / 2 || *pinned)
        return false;
    set_owner(queue, address, UM_XSK_OWNER_READER, UM_XSK_OWNER_PINNED);
    *pinned = true;
    queue->pinned_count++;
    queue->taken_and_pinned++;
    frames->has_pinned_last = true;
    UM_COUNT(queue->counters.ring_kept, 1);
    return true;
}

static void unpin_frames(um_frames *frames, const uint8_t *const *data, uint32_t count)
{
    um_xsk_queue *queue = (um_xsk_queue *)frames;
    uint32_t at = 0;
    uint32_t reserved = xsk_ring_prod__reserve(&queue->fill, count, &at);
    um_debug_assert(reserved == count);
    for (uint32_t i = 0; i < reserved; i++) {
        uint64_t frame = frame_of(queue, (uint64_t)(data[i] - queue->area));
        set_owner(queue, frame, UM_XSK_OWNER_PINNED, UM_XSK_OWNER_FILL);
        queue->pinned[frame / queue->frame_bytes] = false;
        *xsk_ring_prod__fill_addr(&queue->fill, at + i) = frame;
    }
    xsk_ring_prod__submit(&queue->fill, reserved);
    queue->pinned_count -= reserved;
}

/* Returns how many descriptors from `at` make up one packet; 0 if its last one has not arrived. */
static uint32_t chain(const um_xsk_queue *queue, uint32_t at, uint32_t available)
{
    uint32_t length = 1;
    while (xsk_ring_cons__rx_desc(&queue->receive, at + length - 1)->options & XDP_PKT_CONTD)
        if (++length > available)
            return 0;
    return length;
}

/* Assembles a packet of several frames. Returns NULL if it is larger than the space. */
static const uint8_t *assemble(um_xsk_queue *queue, uint32_t at, uint32_t frames, uint8_t *space, uint32_t space_bytes,
                               uint32_t *length)
{
    *length = 0;
    for (uint32_t i = 0; i < frames; i++) {
        const struct xdp_desc *piece = xsk_ring_cons__rx_desc(&queue->receive, at + i);
        if (piece->len > space_bytes - *length)
            return NULL;
        memcpy(space + *length, queue->area + piece->addr, piece->len);
        *length += piece->len;
    }
    return space;
}

static bool read_packet(um_xsk_queue *queue, const uint8_t *packet, uint32_t length, um_rx *rx)
{
    enum um_xsk_refusal refusal = um_xsk_read_headers(packet, length, queue->verify_checksum, rx);
    UM_COUNT(queue->counters.ring_frames_refused, refusal == UM_XSK_TRUNCATED || refusal == UM_XSK_NOT_UDP);
    UM_COUNT(queue->counters.ring_checksum_errors, refusal == UM_XSK_BAD_CHECKSUM);
    UM_COUNT(queue->counters.ring_ip_errors, refusal == UM_XSK_BAD_IP);
    UM_COUNT(queue->counters.ring_martians, refusal == UM_XSK_MARTIAN);
    if (refusal != UM_XSK_READ)
        return false;
    rx->segment_length = 0;
    UM_COUNT(queue->counters.bytes_received, rx->length);
    return true;
}

static void acquire_received(um_xsk_queue *queue, uint32_t at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        set_owner(queue, xsk_ring_cons__rx_desc(&queue->receive, at + i)->addr, UM_XSK_OWNER_FILL, UM_XSK_OWNER_READER);
}

/* Returns the NIC's time, converted to the timers' clock. It is a little before the kernel's, which saw the frame
 * later. If it is far from the kernel's, the conversion does not hold for this frame, and the kernel's time is
 * returned. */
static int64_t nic_time(um_xsk_queue *queue, int64_t nic_ns, int64_t kernel_ns)
{
    int64_t waited_ns = (int64_t)((uint64_t)kernel_ns - (uint64_t)nic_ns - (uint64_t)queue->nic_behind_ns);
    if (UM_UNLIKELY(waited_ns < -NIC_CLOCK_ERROR_MAX_NS || waited_ns > NIC_WAIT_MAX_NS)) {
        UM_COUNT(queue->counters.ring_nic_times_refused, 1);
        return kernel_ns;
    }
    UM_COUNT(queue->counters.ring_nic_times, 1);
    return kernel_ns - waited_ns;
}

/* Returns when the packet arrived, by the timers' clock, as the program wrote it in front of the frame; else 0. */
static int64_t read_time(um_xsk_queue *queue, const struct xdp_desc *first)
{
    if ((first->addr & (queue->frame_bytes - 1)) < sizeof(struct steering_time))
        return 0;
    uint8_t *at = queue->area + first->addr - sizeof(struct steering_time);
    struct steering_time time;
    memcpy(&time, at, sizeof time);
    if (UM_UNLIKELY(time.mark != STEERING_TIME_MARK)) {
        UM_COUNT(queue->counters.ring_times_missing, 1);
        return 0;
    }
    memset(at + offsetof(struct steering_time, mark), 0, sizeof time.mark);
    int64_t kernel_ns, nic_ns;
    memcpy(&kernel_ns, time.kernel_ns, sizeof kernel_ns);
    memcpy(&nic_ns, time.nic_ns, sizeof nic_ns);
    return nic_ns == 0 || !queue->has_nic_clock ? kernel_ns : nic_time(queue, nic_ns, kernel_ns);
}

/* Takes one packet of `frames` descriptors. Returns false if there is no space left to assemble it in. */
static bool take_packet(um_xsk_queue *queue, uint32_t at, uint32_t frames, uint32_t *assembled_bytes, um_rx *batch,
                        uint32_t *count)
{
    const struct xdp_desc *first = xsk_ring_cons__rx_desc(&queue->receive, at);
    const uint8_t *packet = queue->area + first->addr;
    uint32_t length = first->len;
    if (frames > 1) {
        packet = assemble(queue, at, frames, queue->assembly + *assembled_bytes,
                          UM_XSK_ASSEMBLY_BYTES - *assembled_bytes, &length);
        if (packet == NULL)
            return false;
        *assembled_bytes += (uint32_t)um_align_up(length, UM_CACHE_LINE_BYTES);
        UM_COUNT(queue->counters.ring_multi_buffer, 1);
    }
    batch[*count].frames = frames == 1 ? &queue->frames : NULL;
    batch[*count].received_ns = queue->reads_times ? read_time(queue, first) : 0;
    *count += read_packet(queue, packet, length, &batch[*count]);
    return true;
}

/* The frame was written by another CPU. Its headers are read here; all of it, if its checksum is verified or it is one
 * of several to assemble. Returns true if the packet continues in the next frame. */
static bool prefetch(const um_xsk_queue *queue, uint32_t at, bool is_further)
{
    const struct xdp_desc *descriptor = xsk_ring_cons__rx_desc(&queue->receive, at);
    bool is_continued = descriptor->options & XDP_PKT_CONTD;
    bool is_read_here = is_continued || is_further || queue->verify_checksum;
    um_prefetch(queue->area + descriptor->addr, is_read_here ? descriptor->len : 1);
    return is_continued;
}

uint32_t um_xsk_queue_receive(um_xsk_queue *queue, um_rx *batch, uint32_t max)
{
    uint32_t at = 0, done = 0, count = 0, assembled_bytes = 0, prefetched = 0;
    bool is_continued = false;
    uint32_t available = xsk_ring_cons__peek(&queue->receive, max * UM_XSK_CHAIN_MAX, &at);
    while (done < available && count < max) {
        uint32_t frames = chain(queue, at + done, available - done);
        for (; prefetched < available && prefetched <= done + PREFETCHED_AHEAD; prefetched++)
            is_continued = prefetch(queue, at + prefetched, is_continued);
        if (frames == 0) /* its last frame may have arrived meanwhile */
            queue->receive.cached_prod = __atomic_load_n(queue->receive.producer, __ATOMIC_ACQUIRE);
        if (frames == 0 || !take_packet(queue, at + done, frames, &assembled_bytes, batch, &count))
            break;
        done += frames;
    }
    acquire_received(queue, at, done);
    xsk_ring_cons__cancel(&queue->receive, available - done);
    queue->first_taken = at;
    queue->taken_count = done;
    queue->has_more = done < available;
    UM_COUNT(queue->counters.datagrams_received, count);
    return count;
}

uint32_t um_xsk_queue_take(um_xsk_queue *queue, uint32_t max, uint32_t *at)
{
    uint32_t count = xsk_ring_cons__peek(&queue->receive, max, at);
    acquire_received(queue, *at, count);
    queue->first_taken = *at;
    queue->taken_count = count;
    return count;
}

void um_xsk_queue_release(um_xsk_queue *queue)
{
    uint32_t count = queue->taken_count, at = 0;
    if (count == 0)
        return;
    uint32_t returned = count - queue->taken_and_pinned;
    uint32_t reserved = xsk_ring_prod__reserve(&queue->fill, returned, &at);
    um_debug_assert(reserved == returned); /* the fill ring has space for every receive frame */
    for (uint32_t i = 0; i < count && reserved > 0; i++) {
        uint64_t frame = frame_of(queue, xsk_ring_cons__rx_desc(&queue->receive, queue->first_taken + i)->addr);
        if (queue->taken_and_pinned > 0 && queue->pinned[frame / queue->frame_bytes])
            continue;
        set_owner(queue, frame, UM_XSK_OWNER_READER, UM_XSK_OWNER_FILL);
        *xsk_ring_prod__fill_addr(&queue->fill, at++) = frame;
    }
    xsk_ring_prod__submit(&queue->fill, reserved);
    xsk_ring_cons__release(&queue->receive, count);
    queue->taken_count = queue->taken_and_pinned = 0;
}

/* ---- sending ---- */

uint32_t um_xsk_queue_datagram_max(const um_xsk_queue *queue)
{
    uint32_t frames = queue->multi_buffer ? UM_XSK_CHAIN_MAX - 1 : 1;
    /* Limited to what a peer with the same configuration can receive: received frames have headroom. */
    return um_datagram_size_in(frames * (queue->frame_bytes - queue->headroom_bytes), queue->header_bytes);
}

static uint64_t acquire_free(um_xsk_queue *queue, enum um_xsk_owner owner)
{
    uint64_t address = queue->free_frames[--queue->free_count];
    set_owner(queue, address, UM_XSK_OWNER_FREE, owner);
    return address;
}

/* Frees the frame that contains an address. */
static void release_free(um_xsk_queue *queue, uint64_t address, enum um_xsk_owner owner)
{
    uint64_t frame = frame_of(queue, address);
    set_owner(queue, frame, owner, UM_XSK_OWNER_FREE);
    queue->free_frames[queue->free_count++] = frame;
}

void um_xsk_queue_reclaim(um_xsk_queue *queue)
{
    uint32_t at = 0;
    uint32_t count = xsk_ring_cons__peek(&queue->completion, queue->send_frame_count, &at);
    for (uint32_t i = 0; i < count; i++)
        release_free(queue, *xsk_ring_cons__comp_addr(&queue->completion, at + i), UM_XSK_OWNER_SEND);
    if (count > 0)
        xsk_ring_cons__release(&queue->completion, count);
}

uint32_t um_xsk_queue_unsent(const um_xsk_queue *queue)
{
    uint32_t consumed = __atomic_load_n(queue->send.consumer, __ATOMIC_ACQUIRE);
    return __atomic_load_n(queue->send.producer, __ATOMIC_RELAXED) - consumed;
}

uint64_t um_xsk_queue_acquire_frame(um_xsk_queue *queue)
{
    return acquire_free(queue, UM_XSK_OWNER_SEND);
}

uint32_t um_xsk_queue_borrow_bytes(const um_xsk_queue *queue)
{
    return queue->frame_bytes - BORROWED_AT;
}

uint32_t um_xsk_queue_borrow(um_xsk_queue *queue, uint8_t **pieces, uint32_t count)
{
    uint32_t borrowed = 0;
    um_xsk_queue_reclaim(queue);
    while (borrowed < count && queue->free_count > queue->send_frame_count / 2)
        pieces[borrowed++] = queue->area + acquire_free(queue, UM_XSK_OWNER_WRITER) + BORROWED_AT;
    return borrowed;
}

void um_xsk_queue_return(um_xsk_queue *queue, uint8_t *const *pieces, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) /* in reverse, so that the first frame borrowed is again the next one used */
        release_free(queue, (uint64_t)(pieces[i] - queue->area), UM_XSK_OWNER_WRITER);
}

/* Progress of copying the parts of a datagram, and the sum of the bytes copied. */
typedef struct parts_cursor {
    const um_part *part;
    uint32_t offset; /* in that part */
    uint32_t copied_bytes;
    uint64_t sum;
} parts_cursor;

static void copy_parts(parts_cursor *from, uint8_t *to, uint32_t length)
{
    while (length > 0) {
        uint32_t left = from->part->length - from->offset;
        uint32_t bytes = left < length ? left : length;
        uint64_t sum = um_internet_copy(to, from->part->data + from->offset, bytes, 0);
        from->sum = um_internet_add(from->sum, um_internet_sum_at(sum, from->copied_bytes));
        from->copied_bytes += bytes;
        to += bytes;
        length -= bytes;
        from->offset += bytes;
        if (from->offset == from->part->length) {
            from->part++;
            from->offset = 0;
        }
    }
}

/* Writes one datagram into `frames` free frames and their descriptors. */
static void put(um_xsk_queue *queue, const um_xsk_template *made, const um_tx *tx, uint32_t at, uint32_t frames)
{
    parts_cursor from = {.part = tx->parts};
    uint32_t left = tx->length, headers = made->header_bytes;
    uint8_t *first = NULL;
    for (uint32_t i = 0; i < frames; i++) {
        uint64_t address = um_xsk_queue_acquire_frame(queue);
        uint8_t *frame = queue->area + address;
        uint32_t bytes = left < queue->frame_bytes - headers ? left : queue->frame_bytes - headers;
        copy_parts(&from, frame + headers, bytes);
        *xsk_ring_prod__tx_desc(&queue->send, at + i) =
            (struct xdp_desc){.addr = address, .len = headers + bytes, .options = i + 1 < frames ? XDP_PKT_CONTD : 0};
        first = i == 0 ? frame : first;
        left -= bytes;
        headers = 0;
    }
    um_xsk_write_headers(made, first, tx->length, from.sum);
}

/* The same for a payload in a borrowed frame: only the headers are written. */
static void put_borrowed(um_xsk_queue *queue, const um_xsk_template *made, const um_tx *tx, uint32_t at)
{
    um_borrowed_frame *borrowed = tx->borrowed;
    uint64_t address = (uint64_t)(borrowed->data - queue->area) - made->header_bytes;
    um_debug_assert(tx->part_count == 1 && tx->parts->data == borrowed->data && borrowed->unsummed_bytes <= tx->length);
    set_owner(queue, frame_of(queue, address), UM_XSK_OWNER_WRITER, UM_XSK_OWNER_SEND);
    uint64_t sum = um_internet_sum(borrowed->data, borrowed->unsummed_bytes, borrowed->sum);
    um_xsk_write_headers(made, queue->area + address, tx->length, sum);
    *xsk_ring_prod__tx_desc(&queue->send, at) =
        (struct xdp_desc){.addr = address, .len = made->header_bytes + tx->length};
    borrowed->data = NULL;
}

static uint32_t frames_for(const um_xsk_queue *queue, uint32_t length)
{
    return (length + queue->header_bytes + queue->frame_bytes - 1) / queue->frame_bytes;
}

int um_xsk_queue_send(um_xsk_queue *queue, const um_xsk_template *made, const um_tx *batch, uint32_t count)
{
    uint32_t most_bytes = um_xsk_queue_datagram_max(queue), descriptors = 0, done = 0, in_place = 0;
    um_debug_assert(made->header_bytes == queue->header_bytes);
    um_xsk_queue_reclaim(queue);
    for (; done < count && batch[done].length <= most_bytes; done++) {
        bool is_borrowed = batch[done].borrowed != NULL;
        uint32_t frames = is_borrowed ? 1 : frames_for(queue, batch[done].length), at = 0;
        if ((!is_borrowed && queue->free_count < frames) || xsk_ring_prod__reserve(&queue->send, frames, &at) == 0)
            break;
        if (is_borrowed)
            put_borrowed(queue, made, &batch[done], at);
        else
            put(queue, made, &batch[done], at, frames);
        in_place += is_borrowed;
        descriptors += frames;
        UM_COUNT(queue->counters.bytes_sent, batch[done].length);
    }
    if (descriptors > 0)
        xsk_ring_prod__submit(&queue->send, descriptors);
    UM_COUNT(queue->counters.datagrams_sent, done);
    UM_COUNT(queue->counters.ring_sent_in_place, in_place);
    return done == 0 && count > 0 && batch[0].length > most_bytes ? -EMSGSIZE : (int)done;
}

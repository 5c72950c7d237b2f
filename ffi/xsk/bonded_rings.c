#include "xsk/bonded_rings.h"

#include <stdlib.h>

struct um_bonded_rings {
    um_rings base;
    um_rings *members[UM_BONDED_MEMBERS_MAX];
    uint32_t count;
    uint32_t turn; /* the member from which the next receive call starts; context lock */
    _Atomic int32_t sending;
};

typedef struct bonded_link {
    um_link base;
    um_bonded_rings *bonded;
    um_link *otherwise;
    um_link *links[UM_BONDED_MEMBERS_MAX]; /* per member; NULL if not open */
} bonded_link;

static um_rings *sending_member(const um_bonded_rings *bonded)
{
    int32_t member = atomic_load_explicit(&bonded->sending, memory_order_relaxed);
    return member < 0 ? NULL : bonded->members[member];
}

/* Only the sending member's stall holds senders back: the ring of another may be stalled as long as it is down. */
static void note_stall(um_bonded_rings *bonded)
{
    const um_rings *member = sending_member(bonded);
    bool is_stalled = member != NULL && atomic_load_explicit(&member->stalled, memory_order_relaxed);
    atomic_store_explicit(&bonded->base.stalled, is_stalled, memory_order_relaxed);
}

/* ---- receiving ---- */

/* Starts with the next member on each call, so that one that is always full does not starve the others. */
static int receive(um_rings *base, um_rx *batch, uint32_t max)
{
    um_bonded_rings *bonded = (um_bonded_rings *)base;
    uint32_t count = 0;
    base->has_more = false;
    base->taken_frames = 0;
    for (uint32_t i = 0; i < bonded->count && count < max; i++) {
        um_rings *member = bonded->members[(bonded->turn + i) % bonded->count];
        int received = member->ops->receive(member, batch + count, max - count);
        count += received > 0 ? (uint32_t)received : 0;
        base->has_more |= member->has_more;
        base->taken_frames += member->taken_frames;
    }
    bonded->turn = (bonded->turn + 1) % bonded->count;
    base->has_more |= count == max;
    return (int)count;
}

static void release(um_rings *base)
{
    um_bonded_rings *bonded = (um_bonded_rings *)base;
    for (uint32_t i = 0; i < bonded->count; i++)
        bonded->members[i]->ops->release(bonded->members[i]);
}

static uint32_t descriptors(const um_rings *base, int *fds, uint32_t max)
{
    const um_bonded_rings *bonded = (const um_bonded_rings *)base;
    uint32_t count = 0;
    for (uint32_t i = 0; i < bonded->count; i++) {
        uint32_t space = count < max ? max - count : 0;
        count += bonded->members[i]->ops->descriptors(bonded->members[i], fds + (count < max ? count : max), space);
    }
    return count;
}

static int64_t service(um_rings *base, int64_t now_ns)
{
    um_bonded_rings *bonded = (um_bonded_rings *)base;
    int64_t due_ns = INT64_MAX;
    for (uint32_t i = 0; i < bonded->count; i++) {
        int64_t member_ns = bonded->members[i]->ops->service(bonded->members[i], now_ns);
        due_ns = member_ns < due_ns ? member_ns : due_ns;
    }
    note_stall(bonded);
    return due_ns;
}

static void add_counters(um_rings *base, um_link_counters *sum)
{
    um_bonded_rings *bonded = (um_bonded_rings *)base;
    for (uint32_t i = 0; i < bonded->count; i++)
        bonded->members[i]->ops->add_counters(bonded->members[i], sum);
}

/* ---- sending ---- */

static int send_datagrams(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    bonded_link *link = (bonded_link *)base;
    int32_t member = atomic_load_explicit(&link->bonded->sending, memory_order_relaxed);
    um_link *by = member < 0 ? link->otherwise : link->links[member];
    int sent = by->ops->send(by, to, batch, count);
    note_stall(link->bonded);
    return sent;
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    um_link *otherwise = ((bonded_link *)base)->otherwise;
    return otherwise->ops->send_oversize(otherwise, to, datagram);
}

static const um_link_ops LINK_OPS = {.send = send_datagrams, .send_oversize = send_oversize};

static void close_link(um_rings *base, um_link *closing)
{
    um_bonded_rings *bonded = (um_bonded_rings *)base;
    bonded_link *link = (bonded_link *)closing;
    for (uint32_t i = 0; i < bonded->count; i++)
        if (link->links[i] != NULL)
            bonded->members[i]->ops->close_link(bonded->members[i], link->links[i]);
    free(link);
}

static int open_link(um_rings *base, const um_rings_sender *sender, um_link **opened)
{
    um_bonded_rings *bonded = (um_bonded_rings *)base;
    bonded_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (bonded_link){.base = {.ops = &LINK_OPS}, .bonded = bonded, .otherwise = sender->otherwise};
    for (uint32_t i = 0; i < bonded->count; i++) {
        int result = bonded->members[i]->ops->open_link(bonded->members[i], sender, &link->links[i]);
        if (result != 0) {
            close_link(base, &link->base);
            return result;
        }
    }
    *opened = &link->base;
    return 0;
}

static const um_rings_ops OPS = {.receive = receive,
                                 .release = release,
                                 .open_link = open_link,
                                 .close_link = close_link,
                                 .descriptors = descriptors,
                                 .service = service,
                                 .add_counters = add_counters};

/* ---- functions of the opener ---- */

static bool can_be_watched(um_rings *const *members, uint32_t count)
{
    int fds[UM_RINGS_DESCRIPTORS_MAX];
    uint32_t queues = 0;
    for (uint32_t i = 0; i < count; i++)
        queues += members[i]->ops->descriptors(members[i], fds, UM_RINGS_DESCRIPTORS_MAX);
    return queues <= UM_RINGS_DESCRIPTORS_MAX;
}

int um_bonded_rings_create(um_rings *const *members, uint32_t count, um_bonded_rings **created)
{
    *created = NULL;
    if (count == 0 || count > UM_BONDED_MEMBERS_MAX || !can_be_watched(members, count))
        return -EINVAL;
    um_bonded_rings *bonded = calloc(1, sizeof *bonded);
    if (bonded == NULL)
        return -ENOMEM;
    bonded->base = (um_rings){.ops = &OPS, .receive_frames = UINT32_MAX};
    bonded->count = count;
    bonded->sending = UM_BONDED_BY_SOCKET;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t frames = members[i]->receive_frames;
        bonded->members[i] = members[i];
        bonded->base.receive_frames = frames < bonded->base.receive_frames ? frames : bonded->base.receive_frames;
    }
    *created = bonded;
    return 0;
}

void um_bonded_rings_free(um_bonded_rings *bonded)
{
    free(bonded);
}

um_rings *um_bonded_rings_base(um_bonded_rings *bonded)
{
    return &bonded->base;
}

void um_bonded_rings_send_by(um_bonded_rings *bonded, int32_t member)
{
    um_debug_assert(member >= UM_BONDED_BY_SOCKET && member < (int32_t)bonded->count);
    atomic_store_explicit(&bonded->sending, member, memory_order_relaxed);
}

int32_t um_bonded_rings_sends_by(const um_bonded_rings *bonded)
{
    return atomic_load_explicit(&bonded->sending, memory_order_relaxed);
}

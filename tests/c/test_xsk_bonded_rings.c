/* The rings of a bond over members that the test plays. */
#include "xsk/bonded_rings.h"

#include "core/foundation/random.h"
#include "support.h"

enum { MEMBERS = 3, WAITING_MAX = 200 };

static const um_address TO = UM_ADDRESS_V4(0xe00a0a0a, 14400);

typedef struct member {
    um_rings base;
    uint32_t descriptor_count;
    uint32_t waiting; /* datagrams that have arrived */
    uint32_t taken;   /* by the last receive call */
    uint32_t released;
    uint32_t open_links;
    uint32_t sent;
    int result; /* of a send call, unless 0 */
    int open_result;
    int64_t due_ns;
} member;

typedef struct member_link {
    um_link base;
    member *of;
} member_link;

static int receive(um_rings *base, um_rx *batch, uint32_t max)
{
    member *m = (member *)base;
    m->taken = m->waiting < max ? m->waiting : max;
    m->waiting -= m->taken;
    base->taken_frames = m->taken;
    base->has_more = m->waiting > 0;
    for (uint32_t i = 0; i < m->taken; i++)
        batch[i].length = m->descriptor_count;
    return (int)m->taken;
}

static void release(um_rings *base)
{
    member *m = (member *)base;
    m->released += m->taken;
    m->taken = 0;
}

static int send(um_link *base, um_address to, const um_tx *batch, uint32_t count)
{
    member *m = ((member_link *)base)->of;
    CHECK(um_address_equal(to, TO) && batch != NULL);
    if (m->result != 0)
        return m->result;
    m->sent += count;
    return (int)count;
}

static int send_oversize(um_link *base, um_address to, const um_tx *datagram)
{
    return send(base, to, datagram, 1);
}

static const um_link_ops LINK_OPS = {.send = send, .send_oversize = send_oversize};

static int open_link(um_rings *base, const um_rings_sender *sender, um_link **opened)
{
    member *m = (member *)base;
    CHECK(sender->otherwise != NULL);
    if (m->open_result != 0)
        return m->open_result;
    member_link *link = zeroed(sizeof *link);
    *link = (member_link){{.ops = &LINK_OPS, .borrow_bytes = 1984}, m};
    m->open_links++;
    *opened = &link->base;
    return 0;
}

static void close_link(um_rings *base, um_link *link)
{
    ((member *)base)->open_links--;
    free(link);
}

static uint32_t descriptors(const um_rings *base, int *fds, uint32_t max)
{
    const member *m = (const member *)base;
    for (uint32_t i = 0; i < m->descriptor_count && i < max; i++)
        fds[i] = (int)(100 * m->descriptor_count + i);
    return m->descriptor_count;
}

static int64_t service(um_rings *base, int64_t now_ns)
{
    return ((member *)base)->due_ns > now_ns ? ((member *)base)->due_ns : INT64_MAX;
}

static void add_counters(um_rings *base, um_link_counters *sum)
{
    UM_COUNT(sum->datagrams_sent, ((member *)base)->sent);
}

static const um_rings_ops OPS = {receive, release, open_link, close_link, descriptors, service, add_counters};

typedef struct bond {
    member members[MEMBERS];
    member kernel;
    um_bonded_rings *bonded;
    um_rings *rings;
} bond;

static bond *bond_open(void)
{
    bond *b = zeroed(sizeof *b);
    um_rings *members[MEMBERS];
    for (uint32_t i = 0; i < MEMBERS; i++) {
        b->members[i] = (member){.base = {.ops = &OPS, .receive_frames = 4096 >> i}, .descriptor_count = i + 1};
        members[i] = &b->members[i].base;
    }
    CHECK_EQ(um_bonded_rings_create(members, MEMBERS, &b->bonded), 0);
    b->rings = um_bonded_rings_base(b->bonded);
    return b;
}

static void bond_close(bond *b)
{
    for (uint32_t i = 0; i < MEMBERS; i++)
        CHECK_EQ(b->members[i].open_links, 0);
    um_bonded_rings_free(b->bonded);
    free(b);
}

static um_link *link_of(bond *b, member_link *otherwise)
{
    um_link *link = NULL;
    *otherwise = (member_link){{.ops = &LINK_OPS}, &b->kernel};
    um_rings_sender sender = {.otherwise = &otherwise->base};
    CHECK_EQ(b->rings->ops->open_link(b->rings, &sender, &link), 0);
    return link;
}

TEST("W6", "rings of a bond: all members are received from, none is starved, and all batches are released")
{
    bond *b = bond_open();
    um_random random = {check_seed()};
    um_rx batch[UM_RINGS_BATCH_MAX];
    uint32_t arrived[MEMBERS] = {0}, received[MEMBERS] = {0};
    CHECK_EQ(b->rings->receive_frames, 1024);
    for (int round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < MEMBERS; i++) {
            uint32_t count = i == 0 ? WAITING_MAX : (uint32_t)um_random_below(&random, 8);
            count = b->members[i].waiting + count > WAITING_MAX ? WAITING_MAX - b->members[i].waiting : count;
            b->members[i].waiting += count;
            arrived[i] += count;
        }
        uint32_t max = 1 + (uint32_t)um_random_below(&random, UM_RINGS_BATCH_MAX);
        int count = b->rings->ops->receive(b->rings, batch, max);
        CHECK_EQ(count, max); /* the first one always has enough */
        CHECK(b->rings->has_more);
        CHECK_EQ(b->rings->taken_frames, count);
        for (int k = 0; k < count; k++)
            received[batch[k].length - 1]++;
        b->rings->ops->release(b->rings);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        CHECK_EQ(received[i], arrived[i] - b->members[i].waiting);
        CHECK_EQ(b->members[i].released, received[i]);
        CHECK(i == 0 || b->members[i].waiting < WAITING_MAX / 2);
    }
    for (int rounds = 0; b->rings->has_more; rounds++) {
        CHECK(rounds < 100);
        b->rings->ops->receive(b->rings, batch, UM_RINGS_BATCH_MAX);
        b->rings->ops->release(b->rings);
    }
    CHECK_EQ(b->members[0].waiting + b->members[1].waiting + b->members[2].waiting, 0);
    CHECK_EQ(b->rings->ops->receive(b->rings, batch, UM_RINGS_BATCH_MAX), 0);
    bond_close(b);
}

TEST("W6", "rings of a bond: the selected member sends, or the kernel if none is selected")
{
    bond *b = bond_open();
    member_link otherwise;
    um_link *link = link_of(b, &otherwise);
    um_tx batch[4] = {{.length = 1}};
    CHECK_EQ(link->borrow_bytes, 0); /* a frame of one member could not leave by another */
    CHECK_EQ(um_bonded_rings_sends_by(b->bonded), UM_BONDED_BY_SOCKET);
    CHECK_EQ(link->ops->send(link, TO, batch, 4), 4);
    CHECK_EQ(b->kernel.sent, 4);
    for (int32_t by = 0; by < MEMBERS; by++) {
        um_bonded_rings_send_by(b->bonded, by);
        CHECK_EQ(um_bonded_rings_sends_by(b->bonded), by);
        CHECK_EQ(link->ops->send(link, TO, batch, by + 1), by + 1);
        CHECK_EQ(b->members[by].sent, by + 1);
    }
    CHECK_EQ(link->ops->send_oversize(link, TO, batch), 1);
    CHECK_EQ(b->kernel.sent, 5);
    b->members[2].result = -ENETDOWN;
    CHECK_EQ(link->ops->send(link, TO, batch, 1), -ENETDOWN);
    um_bonded_rings_send_by(b->bonded, UM_BONDED_BY_SOCKET);
    CHECK_EQ(link->ops->send(link, TO, batch, 1), 1);
    CHECK_EQ(b->kernel.sent, 6);
    um_link_counters sum = {0};
    b->rings->ops->add_counters(b->rings, &sum);
    CHECK_EQ(sum.datagrams_sent, 1 + 2 + 3);
    b->rings->ops->close_link(b->rings, link);
    bond_close(b);
}

TEST("W6", "rings of a bond: a stalled member holds senders back only while it sends, and is always serviced")
{
    bond *b = bond_open();
    member_link otherwise;
    um_link *link = link_of(b, &otherwise);
    um_tx batch[1] = {{.length = 1}};
    um_bonded_rings_send_by(b->bonded, 0);
    b->members[0].base.stalled = 1;
    b->members[0].due_ns = 700;
    CHECK_EQ(link->ops->send(link, TO, batch, 1), 1);
    CHECK_EQ(b->rings->stalled, 1);
    CHECK_EQ(b->rings->ops->service(b->rings, 500), 700);
    CHECK_EQ(b->rings->stalled, 1);
    um_bonded_rings_send_by(b->bonded, 1); /* fail-over */
    CHECK_EQ(link->ops->send(link, TO, batch, 1), 1);
    CHECK_EQ(b->rings->stalled, 0);
    CHECK_EQ(b->rings->ops->service(b->rings, 500), 700);
    b->members[1].base.stalled = 1;
    b->members[1].due_ns = 600;
    CHECK_EQ(b->rings->ops->service(b->rings, 500), 600);
    CHECK_EQ(b->rings->stalled, 1);
    b->rings->ops->close_link(b->rings, link);
    bond_close(b);
}

TEST("W6", "rings of a bond: every descriptor is watched; too many, no member, and a link that fails are refused")
{
    bond *b = bond_open();
    int fds[UM_RINGS_DESCRIPTORS_MAX];
    const int expected[6] = {100, 200, 201, 300, 301, 302};
    CHECK_EQ(b->rings->ops->descriptors(b->rings, fds, UM_RINGS_DESCRIPTORS_MAX), 6);
    for (uint32_t i = 0; i < 6; i++)
        CHECK_EQ(fds[i], expected[i]);
    fds[2] = -1;
    CHECK_EQ(b->rings->ops->descriptors(b->rings, fds, 2), 6);
    CHECK_EQ(fds[2], -1);
    um_rings *members[UM_BONDED_MEMBERS_MAX + 1];
    for (uint32_t i = 0; i <= UM_BONDED_MEMBERS_MAX; i++)
        members[i] = &b->members[0].base;
    um_bonded_rings *other;
    CHECK_EQ(um_bonded_rings_create(members, 0, &other), -EINVAL);
    CHECK_EQ(um_bonded_rings_create(members, UM_BONDED_MEMBERS_MAX + 1, &other), -EINVAL);
    CHECK(other == NULL);
    CHECK_EQ(um_bonded_rings_create(members, UM_BONDED_MEMBERS_MAX, &other), 0);
    um_bonded_rings_free(other);
    b->members[0].descriptor_count = UM_RINGS_DESCRIPTORS_MAX;
    CHECK_EQ(um_bonded_rings_create(members, 2, &other), -EINVAL);
    b->members[2].open_result = -ENOMEM;
    um_link *link = NULL;
    member_link otherwise = {{.ops = &LINK_OPS}, &b->kernel};
    um_rings_sender sender = {.otherwise = &otherwise.base};
    CHECK_EQ(b->rings->ops->open_link(b->rings, &sender, &link), -ENOMEM);
    bond_close(b); /* the other members' links are closed */
}

CHECK_MAIN

/* Waiting readers of two event queues, and the loop that wakes them, in an order that once lost a wake-up. */
#include <poll.h>
#include <unistd.h>

#include "check.h"
#include "io/event_queue_private.h"

enum { BLOCKS = 4, ROWS = 64, PAYLOAD_BYTES = 1 << 20 };

static um_reactor reactor;
static um_node node;
static um_event_queues queues = {.reactor = &reactor, .node = &node};
static um_event_queue *first, *second;

static int64_t no_pass(um_reactor *unused, int64_t wait_until_ns)
{
    (void)unused;
    (void)wait_until_ns;
    return 0;
}

static const um_reactor_loop no_loop = {.pass = no_pass};

static um_event_queue *opened(void)
{
    um_event_queue_config config = {.block_count = BLOCKS,
                                    .block_rows = ROWS,
                                    .block_bytes = PAYLOAD_BYTES,
                                    .message_max_bytes = UM_QUEUE_MESSAGE_BYTES_MIN,
                                    .hold_ns = UM_NEVER_NS};
    um_event_queue *queue;
    CHECK_EQ(um_event_queues_open(&queues, &config, &queue), 0);
    return queue;
}

static void open_all(void)
{
    CHECK_EQ(um_reactor_open(&reactor, &no_loop), 0);
    um_node_init(&node);
    first = opened();
    second = opened();
}

static void close_all(void)
{
    um_event_queue *both[] = {first, second};
    for (int i = 0; i < 2; i++) {
        um_event_queue_close(both[i]);
        um_event_queue_free(both[i]);
    }
    um_reactor_close(&reactor);
    um_reactor_free(&reactor);
}

static void deliver(um_event_queue *queue)
{
    um_row row = {.sequence_number = 1};
    CHECK(um_queue_reserve(&queue->core, 8) != NULL);
    um_queue_append(&queue->core, &row, 8);
    um_event_queues_notify(&queues);
}

static bool is_readable(const um_event_queue *queue)
{
    struct pollfd descriptor = {.fd = um_event_queue_descriptor(queue), .events = POLLIN};
    return poll(&descriptor, 1, 0) == 1;
}

/* While the reader of the first queue is between the two steps of arming, the second reader arms, and the loop delivers
 * to both. */
static void meanwhile(void)
{
    um_event_queue_arm_hook = NULL;
    CHECK(!um_event_queue_arm(second));
    deliver(first);
    deliver(second);
}

TEST("", "arming a queue does not lose another reader's wake-up")
{
    open_all();
    um_event_queue_arm_hook = meanwhile;
    CHECK(um_event_queue_arm(first)); /* a row arrived meanwhile */
    CHECK(is_readable(second));
    CHECK_EQ(queues.waiting_count, 0);
    close_all();
}

TEST("", "an armed queue is woken once, and one armed twice is counted once")
{
    open_all();
    CHECK(!um_event_queue_arm(first));
    CHECK(!um_event_queue_arm(first));
    CHECK_EQ(queues.waiting_count, 1);
    deliver(second);
    CHECK(!is_readable(first) && !is_readable(second));
    deliver(first);
    CHECK(is_readable(first) && !is_readable(second));
    CHECK_EQ(queues.waiting_count, 0);
    close_all();
}

CHECK_MAIN

/* The sender of a source session. The test holds its lock in place of a streaming thread. */
#include <unistd.h>

#include "io/sender.h"
#include "support.h"

static um_reactor reactor;
static um_links links;
static um_sender sender;

static const um_reactor_loop no_loop;

/* A context whose thread never runs, so that data deferred to it stays. */
static fixture *sender_open(void)
{
    um_source_session_config config = config_8k(1);
    fixture *f = session_open(&config);
    CHECK_EQ(um_reactor_open(&reactor, &no_loop), 0);
    atomic_store(&reactor.is_threaded, true);
    CHECK_EQ(um_sender_open(&sender, &reactor, &links, f->session), 0);
    return f;
}

static void sender_close(fixture *f)
{
    um_sender_close(&sender);
    um_reactor_close(&reactor);
    um_reactor_free(&reactor);
    session_close(f);
}

/* Sets the sender's state to streaming, so that less than a GSO run may be deferred. */
static void stream(fixture *f, um_source *source)
{
    CHECK(send_bytes(f, source, 100, 0, UM_SEND_FLUSH) >= 0);
    um_sender_run(&sender, f->now_ns);
    CHECK_EQ(um_sender_backlog_bytes(&sender), 0);
}

/* Publishes datagrams of 1000 bytes: `count` beyond one duty cycle are less than a GSO run. */
static void publish(fixture *f, um_source *source, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        CHECK(send_bytes(f, source, 1000, 0, UM_SEND_FLUSH) >= 0);
}

enum { BEYOND = 10 };

TEST("W8 UM-27", "a streaming thread defers less than a GSO run if no flush is requested")
{
    fixture *f = sender_open();
    um_source_session_set_datagram_max(f->session, 1100);
    um_source *source = source_open(f, 0, 0);
    stream(f, source);
    CHECK(um_lock_try(&f->session->sender_lock));
    publish(f, source, UM_SEND_BATCH_MAX + BEYOND);
    um_lock_release(&f->session->sender_lock);
    um_sender_run_to(&sender, UM_SENDER_TAIL_BYTES_MAX, f->now_ns);
    CHECK(f->link.count > 1 && f->link.count <= 1 + UM_SEND_BATCH_MAX);
    CHECK(um_sender_backlog_bytes(&sender) > 0);
    CHECK(atomic_load(&sender.has_deferred_tail));
    sender_close(f);
}

TEST("W8 UM-27", "a flush while another thread streams makes that thread send everything before it leaves")
{
    fixture *f = sender_open();
    um_source_session_set_datagram_max(f->session, 1100);
    um_source *source = source_open(f, 0, 0);
    stream(f, source);
    CHECK(um_lock_try(&f->session->sender_lock)); /* the streaming thread is in a duty cycle */
    publish(f, source, UM_SEND_BATCH_MAX + BEYOND);
    um_sender_run(&sender, f->now_ns); /* the flushing thread does not wait for it */
    CHECK_EQ(f->link.count, 1);
    um_lock_release(&f->session->sender_lock);
    um_sender_run_to(&sender, UM_SENDER_TAIL_BYTES_MAX, f->now_ns);
    CHECK_EQ(um_sender_backlog_bytes(&sender), 0);
    CHECK_EQ(f->link.count, 1 + UM_SEND_BATCH_MAX + BEYOND);
    CHECK(!atomic_load(&sender.is_flush_requested)); /* the next run may defer again */
    sender_close(f);
}

CHECK_MAIN

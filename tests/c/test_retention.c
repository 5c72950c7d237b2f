/* Retained messages of a session with many topics. */
#include <sys/mman.h>

#include "core/source/retention.h"
#include "support.h"

enum { TOPICS = 1000, LAST = TOPICS + 1 };

static const um_retention_config small = {.size_limit_bytes = 65536, .size_threshold_bytes = 0};

typedef struct topic {
    um_source *source;
    um_retention *retention;
    void *memory;
} topic;

static topic topic_open(fixture *f, uint32_t topic_index, um_retention *retention)
{
    topic t = {source_open(f, topic_index, 0), retention, zeroed(um_retention_footprint(&small))};
    um_retention_init(retention, t.memory, &small, f->session, topic_index, 0);
    return t;
}

static void topic_close(topic *t)
{
    um_retention_fini(t->retention);
    free(t->memory);
    source_close(t->source);
}

/* Memory that can be protected. */
static um_retention *pages(size_t *bytes)
{
    *bytes = um_align_up(TOPICS * sizeof(um_retention), 65536);
    void *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void publish(fixture *f, um_source *source)
{
    CHECK(send_bytes(f, source, 100, 0, UM_SEND_FLUSH) >= 0);
    um_source_session_send(f->session, f->now_ns, UM_SEND_BATCH_MAX);
}

/* Consecutive topic indices have buckets of their own. */
TEST("UM-139", "a send does not examine what a thousand other topics retain")
{
    um_source_session_config config = config_8k(1);
    fixture *f = session_open(&config);
    size_t bytes;
    um_retention *others = pages(&bytes), one;
    memset(&one, 0, sizeof one);
    topic topics[TOPICS];
    for (uint32_t i = 0; i < TOPICS; i++)
        topics[i] = topic_open(f, 1 + i, &others[i]);
    topic last = topic_open(f, LAST, &one);
    CHECK_EQ(mprotect(others, bytes, PROT_NONE), 0);
    for (uint32_t i = 0; i < 100; i++)
        publish(f, last.source);
    CHECK_EQ(one.next_sqn, 100);
    CHECK_EQ(one.next_sqn - one.first_sqn, 1);
    CHECK_EQ(mprotect(others, bytes, PROT_READ | PROT_WRITE), 0);
    for (uint32_t i = 0; i < TOPICS; i++) {
        publish(f, topics[i].source);
        CHECK_EQ(others[i].next_sqn, 1);
    }
    topic_close(&last);
    for (uint32_t i = 0; i < TOPICS; i++)
        topic_close(&topics[i]);
    CHECK_EQ(f->session->retention_count, 0);
    CHECK_EQ(munmap(others, bytes), 0);
    session_close(f);
}

/* Multiples of the inverse of the hash's factor: the products are small, so all of them have the first bucket. */
TEST("UM-139", "topics of one bucket retain their own messages, and closing one leaves the others")
{
    um_source_session_config config = config_8k(1);
    fixture *f = session_open(&config);
    enum { COUNT = 300 };
    const uint32_t inverse = 244002641u;
    static um_retention retentions[COUNT];
    topic topics[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        topics[i] = topic_open(f, i * inverse, &retentions[i]);
    for (uint32_t i = 1; i < COUNT; i++)
        CHECK(retentions[i].next == &retentions[i - 1]);
    for (uint32_t i = 0; i < COUNT; i += 2)
        topic_close(&topics[i]);
    CHECK_EQ(f->session->retention_count, COUNT / 2);
    for (uint32_t i = 1; i < COUNT; i += 2) {
        publish(f, topics[i].source);
        publish(f, topics[i].source);
        CHECK_EQ(retentions[i].next_sqn, 2);
        CHECK_EQ(retentions[i].next_sqn - retentions[i].first_sqn, 1);
        topic_close(&topics[i]);
    }
    session_close(f);
}

CHECK_MAIN

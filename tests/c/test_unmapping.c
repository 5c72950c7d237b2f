/* Unmapping one of many controllers of a session. */
#include <sys/mman.h>

#include "recovering.h"

enum { OTHERS = 7, STRIDE = 65536 };

TEST("UM-7", "a controller is unmapped without a walk over the session's other controllers")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, false);
    uint8_t *memory = mmap(NULL, OTHERS * STRIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    um_receiver receivers[OTHERS];
    um_delivery *others[OTHERS];
    for (uint32_t i = 0; i < OTHERS; i++) {
        others[i] = (um_delivery *)(void *)(memory + i * STRIDE);
        receivers[i] = f->receiver;
        receivers[i].controllers = NULL;
        receivers[i].controller_count = 0;
        um_delivery_init(others[i], &receivers[i], 90 + i, 1, TOPIC + 1 + i, f->session->config.nak_generation_ns);
        CHECK(um_receiver_session_map(f->session, others[i], f->now_ns));
    }
    /* The list is others[6] ... others[0], the fixture's. Only the neighbors of others[1] and the head are examined. */
    CHECK_EQ(mprotect(memory + 3 * STRIDE, 3 * STRIDE, PROT_NONE), 0);
    um_receiver_session_unmap(f->session, others[1]);
    CHECK_EQ(mprotect(memory + 3 * STRIDE, 3 * STRIDE, PROT_READ | PROT_WRITE), 0);
    CHECK(receivers[1].controllers == NULL && receivers[2].controllers == others[2]);
    CHECK(others[2]->next == others[0] && others[0]->next == f->delivery);
    for (uint32_t i = 0; i < OTHERS; i++)
        if (i != 1)
            um_receiver_session_unmap(f->session, others[i]);
    CHECK(f->session->controllers == f->delivery && f->delivery->next == NULL);
    CHECK_EQ(munmap(memory, OTHERS * STRIDE), 0);
    recovering_close(f);
}

TEST("UM-7", "a receiver lists its controllers of all topics, and only those")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, false);
    um_delivery *second = zeroed(sizeof *second);
    um_delivery_init(second, &f->receiver, 90, 1, TOPIC + 1, f->session->config.nak_generation_ns);
    CHECK(um_receiver_session_map(f->session, second, f->now_ns));
    CHECK(f->receiver.controllers == second && second->next_of_receiver == f->delivery);
    CHECK(second->session == f->session && f->delivery->session == f->session);
    um_receiver_session_unmap(f->session, second);
    CHECK(f->receiver.controllers == f->delivery && f->delivery->next_of_receiver == NULL);
    free(second);
    recovering_close(f);
}

CHECK_MAIN

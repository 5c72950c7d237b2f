/* Shared by the tests of recovery that examine a receiver session alone: its datagrams have no messages. */
#ifndef UM_TESTS_RECEIVING_H
#define UM_TESTS_RECEIVING_H

#include "core/receiver/receiver_session.h"
#include "support.h"

enum {
    HOLD_DATAGRAMS = 64,
    HOLD_MESSAGES = 64,
    HOLD_BYTES = 2048,
};

typedef struct receiving {
    um_receiver_session session;
    um_reorder_buffer store;
    capture_link link;
    void *memory;
    void *hold;
    uint32_t next_sqn;
    int64_t now_ns;
} receiving;

static inline um_receiver_session_config receiving_config(void)
{
    return (um_receiver_session_config){
        .id = {.source = UM_ADDRESS_V4(0x7f000001, 14390), .group = UM_ADDRESS_V4(0xe00a0a0a, 14400), .session_id = 7},
        .nak_generation_ns = 10 * (int64_t)NS_PER_S,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .send_naks = true,
        .datagram_max_bytes = 1472,
        .loss_capacity = 1024,
        .topic_capacity = 16,
        .window_bytes = 1 << 20,
        .status_interval_ns = 200 * NS_PER_MS,
        .random_seed = 1,
    };
}

static inline receiving *receiving_open(const um_receiver_session_config *config, int64_t now_ns)
{
    receiving *r = zeroed(sizeof *r);
    r->now_ns = now_ns;
    r->link.base.ops = &capture_ops;
    r->link.space = UINT32_MAX;
    r->memory = zeroed(um_receiver_session_footprint(config));
    r->hold = zeroed(um_reorder_footprint(HOLD_DATAGRAMS, HOLD_BYTES, HOLD_MESSAGES));
    um_reorder_init(&r->store, r->hold, HOLD_DATAGRAMS, HOLD_BYTES, HOLD_MESSAGES);
    um_receiver_session_init(&r->session, r->memory, config, &r->link.base, &r->store, now_ns);
    return r;
}

static inline void receiving_close(receiving *r)
{
    capture_clear(&r->link);
    free(r->memory);
    free(r->hold);
    free(r);
}

static inline void arrive(receiving *r, uint32_t sqn, bool is_retransmission)
{
    uint8_t datagram[1000] = {0};
    um_packet packet = {.type = UM_LBTRM_DATA,
                        .flags = is_retransmission ? UM_LBTRM_FLAG_RETRANSMISSION : 0,
                        .session_id = 7,
                        .sqn = sqn,
                        .body = datagram};
    um_rx rx = {.data = datagram, .length = sizeof datagram, .received_ns = r->now_ns};
    um_receiver_session_on_packet(&r->session, &packet, &rx, datagram, sizeof datagram, r->now_ns);
}

#endif

/* Shared by the tests of LBT-RU: a source session with clients, and a receiving session that connects, each with a
 * link that records its datagrams.
 */
#ifndef UM_TESTS_UNICAST_H
#define UM_TESTS_UNICAST_H

#include "core/delivery/delivery_controller.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "core/source/client_service.h"
#include "core/wire/framing.h"
#include "recovering.h"
#include "support.h"

enum { SID = 0x5eed00aa, CLIENT = 7, ORDERS = 0x7d1, SOURCE_PORT = 14380, TIMEOUT_MS = 10000 };

static const um_lbtru_options BOTH = {SID, CLIENT, true};
static const um_address A = UM_ADDRESS_V4(0x0a000002, 14360), B = UM_ADDRESS_V4(0x0a000003, 14360),
                        C = UM_ADDRESS_V4(0x0a000004, 14360);

static inline um_packet decoded(const uint8_t *data, uint32_t length)
{
    um_packet packet;
    CHECK_EQ(um_lbtru_decode(data, length, &packet), UM_DGRAM_OK);
    return packet;
}

/* ---- a source ---- */

static inline um_source_session_config lbtru_config(uint32_t capacity)
{
    um_source_session_config config = default_config();
    config.transport = UM_TRANSPORT_LBTRU;
    config.session_id = SID;
    config.group = (um_address){0};
    config.client_capacity = capacity;
    config.client_buckets = 7;
    config.client_timeout_ns = TIMEOUT_MS * (int64_t)NS_PER_MS;
    config.client_key = (um_siphash_key){1, 2};
    return config;
}

static inline fixture *lbtru_open(uint32_t capacity)
{
    um_source_session_config config = lbtru_config(capacity);
    return session_open(&config);
}

static inline void from_client(fixture *f, um_address from, const uint8_t *data, uint32_t length)
{
    f->from = from;
    control(f, data, length);
}

static inline void creq(fixture *f, um_address from)
{
    uint8_t out[UM_LBTRU_CREQ_BYTES];
    from_client(f, from, out, um_lbtru_write_creq(out, &BOTH));
}

static inline void ack(fixture *f, um_address from, uint32_t client_id)
{
    uint8_t out[UM_LBTRU_ACK_BYTES];
    um_lbtru_options options = {SID, client_id, true};
    from_client(f, from, out, um_lbtru_write_ack(out, &options, true, f->session->next_sqn - 1));
}

/* The client id in the response to a connection request, which is the last datagram sent. */
static inline uint32_t answered_id(fixture *f, um_address to)
{
    CHECK(f->link.count > 0);
    capture *last = &f->link.datagrams[f->link.count - 1];
    CHECK(um_address_equal(last->to, to));
    um_packet packet = decoded(last->data, last->length);
    CHECK(packet.type == UM_LBTRM_SM && packet.flags == UM_LBTRU_FLAG_SYN);
    CHECK_EQ(packet.lead, f->session->next_sqn - 1);
    CHECK_EQ(packet.sqn, CLIENT); /* as the request proposed */
    return packet.client_id;
}

static inline uint32_t connect_client(fixture *f, um_address address)
{
    creq(f, address);
    uint32_t id = answered_id(f, address);
    ack(f, address, id);
    CHECK(um_client_map_find(&f->session->clients, address) != NULL);
    return id;
}

static inline uint32_t sent_to(const fixture *f, um_address address)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->link.count; i++)
        count += um_address_equal(f->link.datagrams[i].to, address);
    return count;
}

/* ---- a receiver ---- */

/* Opens a receiving session of LBT-RU; its datagrams to the source are captured. */
typedef struct connecting {
    recovering *r;
    capture_link link;
} connecting;

static inline connecting *connecting_open(void)
{
    connecting *c = zeroed(sizeof *c);
    c->r = recovering_open(UM_ORDERED_SEQUENCE, 0, false);
    recovering *r = c->r;
    unmap(r);
    c->link.base.ops = &capture_ops;
    c->link.space = UINT32_MAX;
    um_receiver_session_config config = session_config();
    config.id = (um_session_id){{source_address.ip, SOURCE_PORT}, {{0}, 0}, SID, UM_TRANSPORT_LBTRU, 0};
    config.nak_initial_backoff_ns = 0;
    config.send_naks = true;
    config.connect_interval_ns = 100 * NS_PER_MS;
    config.maximum_connect_attempts = 600;
    config.acknowledgement_interval_ns = 500 * NS_PER_MS;
    free(r->session_memory);
    r->session_memory = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(r->session, r->session_memory, &config, &c->link.base, &r->node.store, r->now_ns);
    r->session->local = A;
    CHECK(um_node_add_session(&r->node, r->session));
    um_delivery_init(r->delivery, &r->receiver, 1, 0, TOPIC, config.nak_generation_ns);
    CHECK(um_receiver_session_map(r->session, r->delivery, r->now_ns));
    um_node_wake(&r->node, r->now_ns);
    return c;
}

static inline void connecting_close(connecting *c)
{
    recovering_close(c->r);
    capture_clear(&c->link);
    free(c);
}

static inline void to_receiver(connecting *c, um_address from, const uint8_t *data, uint32_t length)
{
    um_rx rx = {.data = data, .length = length, .from = from, .to = A, .received_ns = 1};
    um_node_on_data(&c->r->node, &rx, c->r->now_ns);
    um_node_after_batch(&c->r->node, c->r->now_ns);
    read_all(c->r);
}

static inline void from_source(connecting *c, const uint8_t *data, uint32_t length)
{
    to_receiver(c, (um_address){source_address.ip, SOURCE_PORT}, data, length);
}

static inline void numbered_syn(connecting *c, uint32_t number, uint32_t client_id, uint32_t lead)
{
    uint8_t out[UM_LBTRU_SM_BYTES_MAX];
    um_lbtru_options options = {SID, client_id, true};
    from_source(c, out, um_lbtru_write_sm(out, &options, true, number, lead, lead + 1));
}

/* The source's response, with the client id that the request proposes. */
static inline void syn(connecting *c, uint32_t client_id, uint32_t lead)
{
    numbered_syn(c, c->r->session->connection.proposed_id, client_id, lead);
}

static inline uint32_t sent_of(const connecting *c, uint8_t type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->link.count; i++)
        count += (c->link.datagrams[i].data[0] & 0x0f) == type;
    return count;
}

#endif

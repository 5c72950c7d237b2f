/* LBT-RU: its framing, how receivers connect to a source and stay connected, and what forged datagrams cannot do. */
#include "core/receiver/status_reports.h"
#include "unicast.h"

/* ---- framing ---- */

static void check_golden(const char *hex, const uint8_t *data, uint32_t length)
{
    uint8_t golden[256];
    CHECK_EQ(from_hex(hex, golden), length);
    CHECK_BYTES(data, golden, length);
}

TEST("W1 UX-11 UX-28", "LBT-RU datagrams have the bytes that Wireshark's dissector decodes")
{
    uint8_t out[256];
    uint32_t sqn = 0x1f6;
#define OPTIONS " 02080000 5eed00aa 00080000 00000007"
    check_golden("06010000" OPTIONS, out, um_lbtru_write_creq(out, &BOTH));
    um_packet packet = decoded(out, UM_LBTRU_CREQ_BYTES);
    CHECK(packet.type == UM_LBTRU_CREQ && packet.session_id == SID && packet.client_id == CLIENT);
    check_golden("02018000 00000001 000001f4 000001f4" OPTIONS, out,
                 um_lbtru_write_sm(out, &BOTH, true, 1, 0x1f4, 0x1f4));
    packet = decoded(out, 32);
    CHECK(packet.flags == UM_LBTRU_FLAG_SYN && packet.sqn == 1 && packet.lead == 0x1f4 && packet.trail == 0x1f4);
    check_golden("05010000 000001f4" OPTIONS, out, um_lbtru_write_ack(out, &BOTH, false, 0x1f4));
    packet = decoded(out, UM_LBTRU_ACK_BYTES);
    CHECK(packet.type == UM_LBTRU_ACK && packet.sqn == 0x1f4);
    check_golden("03010000 0001 0000 000001f6" OPTIONS, out, um_lbtru_write_nak(out, &BOTH, &sqn, 1));
    packet = decoded(out, UM_LBTRU_NAK_BYTES + 4);
    CHECK(packet.list_count == 1 && um_load_be32(packet.list) == sqn && packet.client_id == CLIENT);
    check_golden("04010000 000001f4 0001 00 30 000001f6" OPTIONS, out,
                 um_lbtru_write_ncf(out, &BOTH, 0x1f4, UM_NCF_SHED, &sqn, 1));
    packet = decoded(out, UM_LBTRU_NCF_BYTES + 4);
    CHECK(packet.ncf_reason == UM_NCF_SHED && packet.trail == 0x1f4 && um_load_be32(packet.list) == sqn);
    check_golden("07000000", out, um_lbtru_write_rst(out));
    CHECK_EQ(decoded(out, UM_LBTRU_RST_BYTES).type, UM_LBTRU_RST);
    check_golden("00010000 000001f5 000001f5" OPTIONS, out, um_lbtru_write_client_data(out, &BOTH, 0x1f5));
    um_lbtru_write_data(out, SID, 0x1f5, 0x1f4, true);
    check_golden("00014000 000001f5 000001f4 00080000 5eed00aa", out, UM_LBTRU_DATA_BYTES);
    packet = decoded(out, UM_LBTRU_DATA_BYTES);
    CHECK(packet.flags == UM_LBTRM_FLAG_RETRANSMISSION && packet.sqn == 0x1f5 && packet.body_length == 0);
    um_lbtru_write_data(out, 0, 1, 1, false);
    check_golden("00020000 00000001 00000001 00080000 00000000", out, UM_LBTRU_DATA_BYTES);
    CHECK_EQ(decoded(out, UM_LBTRU_DATA_BYTES).session_id, 0);
}

TEST("UX-28", "inconsistent LBT-RU datagrams are refused, and any cut or change is safe")
{
    uint8_t out[256];
    uint32_t sqns[3] = {1, 2, 3}, lengths[4] = {um_lbtru_write_nak(out, &BOTH, sqns, 3)};
    um_packet packet;
    for (uint32_t cut = 0; cut < lengths[0]; cut++)
        CHECK(um_lbtru_decode(out, cut, &packet) != UM_DGRAM_OK);
    struct {
        const char *hex;
        enum um_dgram_status status;
    } wrong[] = {{"10000000", UM_DGRAM_VERSION},
                 {"09000000", UM_DGRAM_TYPE},
                 {"01000000", UM_DGRAM_TYPE},
                 {"0700", UM_DGRAM_SIZE},
                 {"06030000 00080000 00000001", UM_DGRAM_HDR},                   /* an unknown option */
                 {"06010000 00070000 00000001", UM_DGRAM_HDR},                   /* an option of another length */
                 {"06010000 01080000 00000001 00080000 00000002", UM_DGRAM_HDR}, /* the same option twice */
                 {"06010000 02080000 00000001", UM_DGRAM_SIZE},                  /* a missing second option */
                 {"00010000 00000001 00000002 00080000 00000001", UM_DGRAM_HDR}, /* sqn before the trail */
                 {"02010000 00000001 00000001 00000003 00080000 00000001", UM_DGRAM_HDR},
                 {"03000000 ffff 0000 00000001", UM_DGRAM_SIZE},
                 {"03000000 0001 0001 00000001", UM_DGRAM_HDR}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t length = from_hex(wrong[i].hex, out);
        CHECK_EQ(um_lbtru_decode(out, length, &packet), wrong[i].status);
    }
}

TEST("", "client ids are SipHash-2-4 of the address")
{
    /* The reference implementation's vector for the eight octets 0..7. */
    um_siphash_key key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    CHECK_EQ(um_siphash(key, 0x0706050403020100u), 0x93f5f5799a932462u);
}

/* ---- the source ---- */

TEST("UX-11", "a receiver that requests and acknowledges becomes a client, and is sent all later datagrams")
{
    fixture *f = lbtru_open(8);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "before", UM_SEND_FLUSH);
    CHECK_EQ(run_sender(f), 1); /* no client yet */
    CHECK_EQ(f->link.count, 0);
    creq(f, A);
    CHECK_EQ(f->session->clients.count, 0); /* no memory until the address is confirmed */
    uint32_t id = answered_id(f, A);
    ack(f, A, id);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.num_clients, 1);
    connect_client(f, B);
    capture_clear(&f->link);
    send_text(f, source, "after", UM_SEND_FLUSH);
    CHECK_EQ(run_sender(f), 1);
    CHECK_EQ(f->link.count, 2);
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 1);
    um_packet packet = decoded(f->link.datagrams[0].data, f->link.datagrams[0].length);
    CHECK(packet.type == UM_LBTRM_DATA && packet.sqn == 1 && packet.session_id == SID);
    CHECK_EQ(f->link.datagrams[0].length, f->link.datagrams[1].length);
    CHECK_BYTES(f->link.datagrams[0].data, f->link.datagrams[1].data, f->link.datagrams[0].length);
    CHECK_EQ(f->session->events.ring[0].kind, UM_SOURCE_CLIENT_CONNECTED);
    CHECK(um_address_equal(f->session->events.ring[0].receiver, A));
    session_close(f);
}

TEST("UX-11", "a client is dropped once it has not acknowledged for the client activity timeout")
{
    fixture *f = lbtru_open(8);
    uint32_t id = connect_client(f, A);
    connect_client(f, B);
    int64_t start_ns = f->now_ns, next_ns = f->now_ns;
    while (f->now_ns < start_ns + (TIMEOUT_MS - 1) * (int64_t)NS_PER_MS) {
        f->now_ns += 500 * NS_PER_MS;
        ack(f, A, id);
        next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(next_ns > f->now_ns);
        if (f->now_ns < start_ns + TIMEOUT_MS * (int64_t)NS_PER_MS)
            CHECK_EQ(f->session->clients.count, 2);
    }
    f->now_ns = start_ns + TIMEOUT_MS * (int64_t)NS_PER_MS;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->session->clients.count, 1);
    CHECK(um_client_map_find(&f->session->clients, B) == NULL);
    CHECK_EQ(f->session->events.ring[f->session->events.count - 1].kind, UM_SOURCE_CLIENT_DISCONNECTED);
    /* It is accepted again at once: the id of its address has not changed. */
    ack(f, B, um_client_map_id(&f->session->clients, B));
    CHECK_EQ(f->session->clients.count, 2);
    session_close(f);
}

TEST("UX-11", "a client that leaves is sent no further datagrams")
{
    fixture *f = lbtru_open(8);
    uint32_t id = connect_client(f, A);
    uint8_t out[UM_STATUS_DATAGRAM_BYTES_MAX];
    um_session_id identity = {.session_id = SID, .transport = UM_TRANSPORT_LBTRU};
    um_status_message leave = {.receiver_id = 1, .flags = UM_STATUS_LEAVE};
    from_client(f, A, out, um_status_write(out, &identity, id + 1, &leave)); /* forged */
    CHECK_EQ(f->session->clients.count, 1);
    from_client(f, A, out, um_status_write(out, &identity, id, &leave));
    CHECK_EQ(f->session->clients.count, 0);
    session_close(f);
}

TEST("UX-11", "forged connection requests and acknowledgements make no client, and get few and short responses")
{
    fixture *f = lbtru_open(8);
    uint64_t bytes_in = 0, bytes_out = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        um_address victim = um_address_of_v4(0x0a010000 + i, 14360);
        uint32_t guess = i * 2654435761u;
        creq(f, victim);
        ack(f, victim, guess);
        bytes_in += UM_LBTRU_CREQ_BYTES + UM_LBTRU_ACK_BYTES;
        f->now_ns += NS_PER_MS / 10;
    }
    for (uint32_t i = 0; i < f->link.count; i++)
        bytes_out += f->link.datagrams[i].length;
    CHECK_EQ(f->session->clients.count, 0);
    CHECK(bytes_out < bytes_in);
    CHECK(f->link.count <= 64 * 21); /* 200 ms are 20 slices */
    CHECK(f->session->counters.connect_answers_limited > 0);
    um_source *source = source_open(f, ORDERS, 0);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(f->link.count, 0); /* no data is sent to addresses that did not connect */
    session_close(f);
}

TEST("UX-11", "a connection request without a client id is not answered, because the response would be much longer")
{
    fixture *f = lbtru_open(8);
    uint8_t out[UM_LBTRU_CREQ_BYTES];
    um_lbtru_options short_ones = {SID, 0, false};
    uint32_t length = um_lbtru_write_creq(out, &short_ones);
    CHECK_EQ(length, UM_LBTRU_CREQ_BYTES - UM_LBTRU_OPTION_BYTES);
    from_client(f, A, out, length);
    CHECK_EQ(f->link.count, 0);
    CHECK_EQ(f->session->counters.dgrams_dropped_client, 1);
    creq(f, A);
    CHECK_EQ(f->link.count, 1);
    CHECK(f->link.datagrams[0].length <= UM_LBTRU_CREQ_BYTES + 12);
    session_close(f);
}

TEST("UX-11", "forged datagrams from a client's address neither end nor keep it, and cause no retransmission")
{
    fixture *f = lbtru_open(8);
    um_source *source = source_open(f, ORDERS, 0);
    connect_client(f, A);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    capture_clear(&f->link);
    uint8_t out[64];
    uint32_t sqn = 0;
    um_lbtru_options guessed = {SID, 12345, true}, none = {SID, 0, false};
    from_client(f, A, out, um_lbtru_write_rst(out));
    from_client(f, A, out, um_lbtru_write_nak(out, &guessed, &sqn, 1));
    from_client(f, A, out, um_lbtru_write_nak(out, &none, &sqn, 1));
    CHECK_EQ(f->session->clients.count, 1);
    CHECK_EQ(f->link.count, 0);
    CHECK_EQ(f->session->counters.rxs_sent, 0);
    CHECK_EQ(f->session->counters.dgrams_dropped_client, 2);
    f->now_ns += (TIMEOUT_MS - 1) * (int64_t)NS_PER_MS;
    ack(f, A, 12345);
    f->now_ns += NS_PER_MS;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->session->clients.count, 0);
    session_close(f);
}

TEST("UX-11", "datagrams with another session id, and from addresses that are no clients, are dropped and counted")
{
    fixture *f = lbtru_open(8);
    uint8_t out[64];
    uint32_t sqn = 0;
    um_lbtru_options other = {SID + 1, 0, true};
    from_client(f, A, out, um_lbtru_write_creq(out, &other));
    CHECK_EQ(f->session->counters.dgrams_dropped_sid, 1);
    CHECK_EQ(f->link.count, 0);
    from_client(f, A, out, um_lbtru_write_nak(out, &BOTH, &sqn, 1));
    CHECK_EQ(f->session->counters.dgrams_dropped_client, 1);
    CHECK_EQ(f->link.count, 1); /* a reset, after which a dropped receiver connects again */
    CHECK_EQ(decoded(f->link.datagrams[0].data, f->link.datagrams[0].length).type, UM_LBTRU_RST);
    session_close(f);
}

TEST("UX-11", "a full table refuses clients, and accepts them once there is space")
{
    fixture *f = lbtru_open(2);
    connect_client(f, A);
    uint32_t id = connect_client(f, B);
    creq(f, C);
    uint32_t of_c = answered_id(f, C);
    ack(f, C, of_c);
    CHECK_EQ(f->session->clients.count, 2);
    CHECK_EQ(f->session->counters.clients_refused, 1);
    f->now_ns += TIMEOUT_MS * (int64_t)NS_PER_MS - 1;
    ack(f, B, id);
    f->now_ns += 1;
    um_source_session_tick(f->session, f->now_ns); /* A is dropped */
    ack(f, C, of_c);
    CHECK(um_client_map_find(&f->session->clients, A) == NULL);
    CHECK(um_client_map_find(&f->session->clients, B) != NULL);
    CHECK(um_client_map_find(&f->session->clients, C) != NULL);
    session_close(f);
}

TEST("UX-11", "the table finds each of many clients after any removals")
{
    enum { MANY = 500 };
    um_client_map map;
    um_client_map_config config = {.capacity = MANY, .buckets = 7, .key = {1, 2}};
    void *memory = zeroed(um_client_map_footprint(&config));
    um_random random = {3};
    bool in[MANY] = {0};
    um_client_map_init(&map, memory, &config);
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t i = (uint32_t)um_random_below(&random, MANY);
        um_address address = um_address_of_v4(0x0a000000 + i / 3, (uint16_t)(14360 + i % 3));
        um_client *found = um_client_map_find(&map, address);
        CHECK((found != NULL) == in[i]);
        if (found != NULL) {
            CHECK(um_address_equal(found->address, address));
            um_client_map_remove(&map, found);
        } else {
            CHECK(um_client_map_add(&map, address, 0) != NULL);
        }
        in[i] = !in[i];
    }
    free(memory);
}

TEST("UX-11 UM-124", "retransmissions and session messages are sent to every client")
{
    fixture *f = lbtru_open(8);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t id = connect_client(f, A), sqn = 0;
    connect_client(f, B);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    capture_clear(&f->link);
    uint8_t out[64];
    um_lbtru_options options = {SID, id, true};
    from_client(f, A, out, um_lbtru_write_nak(out, &options, &sqn, 1));
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 1);
    um_packet packet = decoded(f->link.datagrams[0].data, f->link.datagrams[0].length);
    CHECK(packet.flags == UM_LBTRM_FLAG_RETRANSMISSION && packet.sqn == 0);
    from_client(f, A, out, um_lbtru_write_nak(out, &options, &sqn, 1)); /* within the ignore interval: an NCF */
    CHECK(sent_to(f, A) == 2 && sent_to(f, B) == 2);
    packet = decoded(f->link.datagrams[2].data, f->link.datagrams[2].length);
    CHECK(packet.type == UM_LBTRM_NCF && packet.ncf_reason == UM_NCF_IGNORED && packet.list_count == 1);
    capture_clear(&f->link);
    f->now_ns += 200 * NS_PER_MS;
    um_source_session_tick(f->session, f->now_ns);
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 1);
    packet = decoded(f->link.datagrams[0].data, f->link.datagrams[0].length);
    CHECK(packet.type == UM_LBTRM_SM && packet.flags == 0 && packet.lead == 0);
    session_close(f);
}

TEST("UX-11", "if the link is full after some copies, the other clients are sent the same datagrams later")
{
    enum { CLIENTS = 3, MESSAGES = 40 };
    fixture *f = lbtru_open(8);
    um_source *source = source_open(f, ORDERS, 0);
    um_address clients[CLIENTS] = {A, B, C};
    for (uint32_t i = 0; i < CLIENTS; i++)
        connect_client(f, clients[i]);
    capture_clear(&f->link);
    um_random random = {11};
    for (uint32_t i = 0; i < MESSAGES; i++) {
        send_bytes(f, source, 700, (uint8_t)i, i % 7 == 6 ? UM_SEND_FLUSH : 0);
        f->link.space = (uint32_t)um_random_below(&random, 5);
        run_sender(f);
        f->now_ns += NS_PER_MS;
    }
    send_text(f, source, "end", UM_SEND_FLUSH);
    for (uint32_t i = 0; i < 500; i++) {
        f->link.space = 1 + (uint32_t)um_random_below(&random, 3);
        run_sender(f);
    }
    CHECK_EQ(f->session->clients.behind_count, 0);
    uint32_t next[CLIENTS] = {0}, first[256] = {0};
    for (uint32_t i = 0; i < f->link.count; i++) {
        capture *one = &f->link.datagrams[i];
        um_packet packet = decoded(one->data, one->length);
        for (uint32_t k = 0; k < CLIENTS; k++)
            if (um_address_equal(one->to, clients[k]))
                CHECK_EQ(packet.sqn, next[k]++); /* each sqn once, in order */
        if (first[packet.sqn] == 0)
            first[packet.sqn] = i + 1;
        const capture *same = &f->link.datagrams[first[packet.sqn] - 1]; /* the same bytes for all clients */
        CHECK_EQ(same->length, one->length);
        CHECK_BYTES(same->data + UM_LBTRU_DATA_BYTES, one->data + UM_LBTRU_DATA_BYTES,
                    one->length - UM_LBTRU_DATA_BYTES);
    }
    for (uint32_t k = 0; k < CLIENTS; k++)
        CHECK_EQ(next[k], f->session->next_sqn);
    session_close(f);
}

TEST("UX-11", "a client that leaves while it is behind holds nobody, and is no longer counted as behind")
{
    fixture *f = lbtru_open(8);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t id = connect_client(f, A);
    connect_client(f, B);
    send_text(f, source, "x", UM_SEND_FLUSH);
    f->link.space = 1; /* the copy for A, the first client; B is behind */
    run_sender(f);
    CHECK_EQ(f->session->clients.behind_count, 1);
    uint8_t out[UM_STATUS_DATAGRAM_BYTES_MAX];
    um_session_id identity = {.session_id = SID, .transport = UM_TRANSPORT_LBTRU};
    um_status_message leave = {.receiver_id = 1, .flags = UM_STATUS_LEAVE};
    from_client(f, A, out, um_status_write(out, &identity, id, &leave));
    CHECK_EQ(f->session->clients.behind_count, 1); /* A was not behind */
    id = um_client_map_id(&f->session->clients, B);
    from_client(f, B, out, um_status_write(out, &identity, id, &leave));
    CHECK_EQ(f->session->clients.count, 0);
    CHECK_EQ(f->session->clients.behind_count, 0);
    session_close(f);
}

TEST("UX-1 UX-4", "the data rate limit counts every copy, and new data only")
{
    um_source_session_config config = lbtru_config(8);
    fixture *f = session_open_limited(&config, 8 * 1000 * 1000, 8 * 1000 * 1000, 10 * NS_PER_MS);
    f->limits.is_new_only = true;
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t id = connect_client(f, A), sqn = 0;
    connect_client(f, B);
    capture_clear(&f->link);
    for (uint32_t i = 0; i < 20; i++)
        send_bytes(f, source, 968, 0, UM_SEND_FLUSH); /* 1000 bytes each: 10 per slice, so 5 for two clients */
    run_sender(f);
    CHECK_EQ(f->link.count, 10);
    uint8_t out[64];
    um_lbtru_options options = {SID, id, true};
    from_client(f, A, out, um_lbtru_write_nak(out, &options, &sqn, 1));
    CHECK_EQ(f->link.count, 12); /* retransmissions do not count against the used-up data limit */
    session_close(f);
}

/* ---- the receiver ---- */

TEST("UX-11 UX-9",
     "intervals of connection requests double from 100 ms; after a minute without a response the session ends")
{
    connecting *c = connecting_open();
    pass(c->r, 1);
    CHECK_EQ(sent_of(c, UM_LBTRU_CREQ), 1);
    pass(c->r, 1000);
    CHECK_EQ(sent_of(c, UM_LBTRU_CREQ), 4);
    CHECK_EQ(c->link.count, 4); /* no status message before there is a connection */
    c->r->session->config.activity_timeout_ns = UM_NEVER_NS / 2;
    pass(c->r, 58998);
    CHECK_EQ(sent_of(c, UM_LBTRU_CREQ), 17);
    CHECK(!c->r->session->has_ended);
    pass(c->r, 101);
    CHECK(c->r->session->has_ended);
    CHECK_EQ(c->link.count, 17);
    connecting_close(c);
}

TEST("UX-11 UM-76",
     "a response is acknowledged at once, starts the session, and an acknowledgement follows every 500 ms")
{
    connecting *c = connecting_open();
    pass(c->r, 1);
    capture_clear(&c->link);
    syn(c, CLIENT, 41);
    CHECK_EQ(c->r->begun, 1);
    CHECK_EQ(c->r->session->next_sqn, 42);
    um_packet packet = decoded(c->link.datagrams[0].data, c->link.datagrams[0].length);
    CHECK(packet.type == UM_LBTRU_ACK && packet.client_id == CLIENT && packet.sqn == 41 && packet.session_id == SID);
    pass(c->r, 2001);
    CHECK_EQ(sent_of(c, UM_LBTRU_ACK), 5);
    CHECK_EQ(sent_of(c, UM_LBTRU_CREQ), 0);
    um_status_reports_leave(c->r->session);
    packet = decoded(c->link.datagrams[c->link.count - 1].data, c->link.datagrams[c->link.count - 1].length);
    um_status_message status;
    CHECK(um_status_decode(&packet, &status));
    CHECK(status.flags & UM_STATUS_LEAVE && packet.client_id == CLIENT);
    connecting_close(c);
}

TEST("UX-11", "forged resets end no session: they cause at most one connection request per connect interval")
{
    connecting *c = connecting_open();
    uint8_t out[64];
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    capture_clear(&c->link);
    for (uint32_t i = 0; i < 1000; i++) {
        from_source(c, out, um_lbtru_write_rst(out));
        pass(c->r, 1);
        if (i % 10 == 0)
            syn(c, CLIENT, 0);
    }
    CHECK(sent_of(c, UM_LBTRU_CREQ) >= 5 && sent_of(c, UM_LBTRU_CREQ) <= 11);
    CHECK(!c->r->session->has_ended);
    CHECK_EQ(c->r->ended, 0);
    /* Data that arrives meanwhile is received. */
    um_lbtru_write_data(out, SID, 1, 1, false);
    from_source(c, out, UM_LBTRU_DATA_BYTES);
    CHECK_EQ(c->r->session->counters.msgs_rcved, 1);
    connecting_close(c);
}

TEST("UX-11", "unsolicited responses change no client id")
{
    connecting *c = connecting_open();
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    syn(c, CLIENT + 1, 0);
    CHECK_EQ(c->r->session->connection.client_id, CLIENT);
    connecting_close(c);
}

TEST("UX-11", "a response that does not repeat the proposed id is forged and sets no client id")
{
    connecting *c = connecting_open();
    uint8_t out[64];
    pass(c->r, 1);
    uint32_t proposed = c->r->session->connection.proposed_id;
    numbered_syn(c, proposed + 1, CLIENT + 1, 0);
    CHECK_EQ(c->r->session->connection.state, UM_CONNECTION_CONNECTING);
    CHECK_EQ(sent_of(c, UM_LBTRU_ACK), 0);
    numbered_syn(c, proposed, CLIENT, 0);
    from_source(c, out, um_lbtru_write_rst(out));
    numbered_syn(c, proposed + 1, CLIENT + 1, 0); /* as after a genuine reset */
    CHECK_EQ(c->r->session->connection.client_id, CLIENT);
    CHECK_EQ(c->r->session->connection.state, UM_CONNECTION_CONNECTING);
    numbered_syn(c, proposed, CLIENT + 2, 0); /* the source's response to an address that changed on the way */
    CHECK_EQ(c->r->session->connection.client_id, CLIENT + 2);
    CHECK_EQ(c->r->session->connection.state, UM_CONNECTION_ESTABLISHED);
    connecting_close(c);
}

TEST("UX-11", "after a forged reset, and without responses, a receiver acknowledges and NAKs as before")
{
    connecting *c = connecting_open();
    uint8_t out[64];
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    for (uint32_t sqn = 1; sqn <= 3; sqn += 2) { /* 2 is lost */
        um_lbtru_write_data(out, SID, sqn, 1, false);
        from_source(c, out, UM_LBTRU_DATA_BYTES);
    }
    from_source(c, out, um_lbtru_write_rst(out));
    capture_clear(&c->link);
    pass(c->r, 1001);
    CHECK_EQ(c->r->session->connection.state, UM_CONNECTION_CONNECTING);
    CHECK_EQ(sent_of(c, UM_LBTRU_ACK), 2);
    CHECK(sent_of(c, UM_LBTRM_NAK) > 0);
    for (uint32_t i = 0; i < c->link.count; i++) {
        um_packet packet = decoded(c->link.datagrams[i].data, c->link.datagrams[i].length);
        uint32_t expected = packet.type == UM_LBTRU_CREQ ? c->r->session->connection.proposed_id : CLIENT;
        CHECK_EQ(packet.client_id, expected);
    }
    connecting_close(c);
}

TEST("UX-11", "a source that sends data is not given up if its responses are lost")
{
    connecting *c = connecting_open();
    uint8_t out[64];
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    from_source(c, out, um_lbtru_write_rst(out));
    c->r->session->config.activity_timeout_ns = UM_NEVER_NS / 2;
    for (uint32_t sqn = 1; sqn <= 1400; sqn++) { /* 70 s, more than 600 requests */
        um_lbtru_write_data(out, SID, sqn, 1, false);
        from_source(c, out, UM_LBTRU_DATA_BYTES);
        pass(c->r, 50);
        capture_clear(&c->link);
    }
    CHECK(!c->r->session->has_ended);
    pass(c->r, 60200);
    CHECK(c->r->session->has_ended); /* the source has stopped sending */
    connecting_close(c);
}

TEST("UX-11",
     "datagrams with another session id are dropped and counted, and datagrams from other addresses match no session")
{
    connecting *c = connecting_open();
    uint8_t out[64];
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    um_lbtru_write_data(out, SID + 1, 1, 1, false);
    from_source(c, out, UM_LBTRU_DATA_BYTES);
    CHECK_EQ(c->r->session->counters.dgrams_dropped_sid, 1);
    um_lbtru_write_data(out, SID, 1, 1, false);
    to_receiver(c, (um_address){source_address.ip, SOURCE_PORT + 1}, out, UM_LBTRU_DATA_BYTES);
    to_receiver(c, um_address_of_v4(um_ip_v4(source_address.ip) + 1, SOURCE_PORT), out, UM_LBTRU_DATA_BYTES);
    to_receiver(c, um_address_of_v4(um_ip_v4(source_address.ip) + 1, SOURCE_PORT), out, um_lbtru_write_rst(out));
    CHECK_EQ(c->r->node.counters.lbtru_unknown_msgs_rcved, 3);
    CHECK_EQ(c->r->session->counters.msgs_rcved, 0);
    CHECK_EQ(c->r->session->connection.state, UM_CONNECTION_ESTABLISHED);
    connecting_close(c);
}

TEST("UM-111 UM-117 UM-126", "a gap is NAKed at once with no initial back-off, under the connection's client id")
{
    connecting *c = connecting_open();
    uint8_t out[64];
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    capture_clear(&c->link);
    um_lbtru_write_data(out, SID, 1, 1, false);
    from_source(c, out, UM_LBTRU_DATA_BYTES);
    um_lbtru_write_data(out, SID, 4, 1, false);
    from_source(c, out, UM_LBTRU_DATA_BYTES);
    pass(c->r, 2);
    CHECK_EQ(sent_of(c, UM_LBTRM_NAK), 1);
    for (uint32_t i = 0; i < c->link.count; i++) {
        um_packet packet = decoded(c->link.datagrams[i].data, c->link.datagrams[i].length);
        if (packet.type != UM_LBTRM_NAK)
            continue;
        CHECK_EQ(packet.list_count, 2);
        CHECK(um_load_be32(packet.list) == 2 && um_load_be32(packet.list + 4) == 3 && packet.client_id == CLIENT);
        CHECK(um_address_equal(c->link.datagrams[i].to, (um_address){source_address.ip, SOURCE_PORT}));
    }
    connecting_close(c);
}

TEST("", "sessions of different transports never match")
{
    um_session_id of_lbtru = {UM_ADDRESS_V4(1, 2), {{0}, 0}, SID, UM_TRANSPORT_LBTRU, 0}, other = of_lbtru;
    CHECK(um_session_id_equal(&of_lbtru, &other));
    other.transport = UM_TRANSPORT_TCP;
    CHECK(!um_session_id_equal(&of_lbtru, &other));
}

CHECK_MAIN

/* Shared by the tests of the sending half: memory of the exact size requested (so that AddressSanitizer detects one
 * byte too many), a link that records its datagrams and lends frames if a test needs them, and a source session
 * with default options.
 */
#ifndef UM_TESTS_SUPPORT_H
#define UM_TESTS_SUPPORT_H

#include "check.h"
#include "core/foundation/internet.h"
#include "core/source/source.h"
#include "core/source/source_session.h"
#include "core/wire/status_message.h"

enum {
    CAPTURE_MAX = 4096,
    NS_PER_MS = 1000000,
    NS_PER_S = 1000000000,
};

static inline void *zeroed(size_t bytes)
{
    void *memory = aligned_alloc(UM_CACHE_LINE_BYTES, um_align_up(bytes, UM_CACHE_LINE_BYTES));
    CHECK(bytes > 0 && memory != NULL);
    return memset(memory, 0, bytes);
}

typedef struct capture {
    uint8_t *data;
    uint32_t length;
    um_address to;
    bool oversize;
} capture;

/* Accepts at most `space` datagrams, then is full; returns `error` instead if it is set. */
typedef struct capture_link {
    um_link base;
    uint32_t space;
    int error;
    uint32_t pieces;    /* contiguous runs of bytes */
    const uint8_t *end; /* end of the last run */
    uint32_t borrowed;  /* pieces neither returned nor sent */
    uint32_t borrowed_max;
    uint32_t sent_from_borrowed;
    uint32_t count;
    capture datagrams[CAPTURE_MAX];
} capture_link;

static inline uint32_t capture_borrow(um_link *base, uint8_t **pieces, uint32_t count)
{
    capture_link *link = (capture_link *)(void *)base;
    uint32_t borrowed = 0;
    for (; borrowed < count && link->borrowed < link->borrowed_max; borrowed++, link->borrowed++)
        pieces[borrowed] = zeroed(base->borrow_bytes);
    return borrowed;
}

static inline void capture_return(um_link *base, uint8_t *const *pieces, uint32_t count)
{
    capture_link *link = (capture_link *)(void *)base;
    for (uint32_t i = 0; i < count; i++)
        free(pieces[i]);
    CHECK(link->borrowed >= count);
    link->borrowed -= count;
}

/* The link takes the borrowed frame; the sum of its datagram is correct. */
static inline void capture_send_borrowed(capture_link *link, const um_tx *tx)
{
    um_borrowed_frame *borrowed = tx->borrowed;
    CHECK(tx->part_count == 1 && tx->parts->data == borrowed->data && tx->length >= borrowed->unsummed_bytes);
    uint64_t sum = um_internet_sum(borrowed->data + borrowed->unsummed_bytes, tx->length - borrowed->unsummed_bytes, 0);
    CHECK_EQ(um_internet_udp_checksum(sum), um_internet_udp_checksum(borrowed->sum));
    capture_return(&link->base, &borrowed->data, 1);
    borrowed->data = NULL;
    link->sent_from_borrowed++;
}

static inline int capture_take(capture_link *link, um_address to, const um_tx *tx, bool oversize)
{
    if (link->error != 0)
        return link->error;
    if (link->space == 0)
        return 0;
    CHECK(link->count < CAPTURE_MAX);
    capture *kept = &link->datagrams[link->count++];
    *kept = (capture){malloc(tx->length), 0, to, oversize};
    for (uint32_t i = 0; i < tx->part_count; i++) {
        CHECK(kept->length + tx->parts[i].length <= tx->length);
        memcpy(kept->data + kept->length, tx->parts[i].data, tx->parts[i].length);
        kept->length += tx->parts[i].length;
        link->pieces += tx->parts[i].data != link->end;
        link->end = tx->parts[i].data + tx->parts[i].length;
    }
    CHECK_EQ(kept->length, tx->length);
    if (tx->borrowed != NULL && !oversize)
        capture_send_borrowed(link, tx);
    link->space -= link->space != UINT32_MAX;
    return 1;
}

static inline int capture_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    int taken = 0, result = 1;
    while ((uint32_t)taken < count && result == 1) {
        result = capture_take((capture_link *)(void *)link, to, &batch[taken], false);
        taken += result == 1;
    }
    return taken > 0 ? taken : result;
}

static inline int capture_send_oversize(um_link *link, um_address to, const um_tx *datagram)
{
    return capture_take((capture_link *)(void *)link, to, datagram, true);
}

static const um_link_ops capture_ops = {.send = capture_send,
                                        .send_oversize = capture_send_oversize,
                                        .borrow = capture_borrow,
                                        .return_frames = capture_return};

static inline void capture_clear(capture_link *link)
{
    for (uint32_t i = 0; i < link->count; i++)
        free(link->datagrams[i].data);
    link->count = 0;
}

/* Bytes written as hex, spaces ignored, into `out`; returns how many. */
static inline uint32_t from_hex(const char *hex, uint8_t *out)
{
    uint32_t count = 0;
    int high = -1;
    for (; *hex != '\0'; hex++) {
        if (*hex == ' ')
            continue;
        int digit = *hex <= '9' ? *hex - '0' : (*hex | 0x20) - 'a' + 10;
        if (high >= 0)
            out[count++] = (uint8_t)(high << 4 | digit);
        high = high >= 0 ? -1 : digit;
    }
    return count;
}

/* One source session over a capturing link, with sources made on demand. */
typedef struct fixture {
    um_source_session *session;
    capture_link link;
    um_rate_limits limits;
    void *memory;
    int64_t now_ns;
    uint32_t actions;
    um_address from; /* sender of the next control datagrams */
} fixture;

static inline um_source_session_config default_config(void)
{
    return (um_source_session_config){
        .session_id = 0x5eed0001,
        .nak_port = 0x3836,
        .group = UM_ADDRESS_V4(0xe00a0a0a, 14400),
        .initial_sqn = 0,
        .initial_term_id = 1005,
        .term_length = UM_LOG_TERM_BYTES_MIN,
        .window_bytes = UM_LOG_TERM_BYTES_MIN,
        .datagram_max_bytes = 1472,
        .coalesce_threshold = 8,
        .batch_minimum_bytes = 2048,
        .batch_interval_ns = 200 * (int64_t)NS_PER_MS,
        .ignore_interval_ns = 500 * (int64_t)NS_PER_MS,
        .sm_minimum_interval_ns = 200 * (int64_t)NS_PER_MS,
        .sm_maximum_interval_ns = 10 * (int64_t)NS_PER_S,
        .unblock_timeout_ns = 15 * (int64_t)NS_PER_S,
        .flow_policy = UM_FLOW_NONE,
        .flow_receiver_timeout_ns = 5 * (int64_t)NS_PER_S,
    };
}

/* Limits of 0 bits/s are off. */
static inline fixture *session_open_limited(const um_source_session_config *config, uint64_t data_bps,
                                            uint64_t retransmit_bps, int64_t interval_ns)
{
    fixture *f = zeroed(sizeof *f);
    f->session = zeroed(sizeof *f->session);
    f->link.base.ops = &capture_ops;
    f->link.space = UINT32_MAX;
    f->now_ns = NS_PER_S;
    f->from = um_address_of_v4(0x0a000002, 40000);
    um_rate_limiter_init(&f->limits.data, data_bps, interval_ns, f->now_ns);
    um_rate_limiter_init(&f->limits.retransmit, retransmit_bps, interval_ns, f->now_ns);
    f->memory = zeroed(um_source_session_footprint(config));
    um_source_session_init(f->session, f->memory, config, &f->link.base, &f->limits, f->now_ns);
    return f;
}

static inline fixture *session_open(const um_source_session_config *config)
{
    return session_open_limited(config, 0, 0, NS_PER_MS);
}

static inline um_source *source_open(fixture *f, uint32_t topic_index, uint32_t initial_sqn)
{
    um_source_config config = {.topic_index = topic_index,
                               .initial_sqn = initial_sqn,
                               .tsni_interval_ns = 5 * (int64_t)NS_PER_S,
                               .tsni_threshold_ns = 60 * (int64_t)NS_PER_S,
                               .explicit_capacity = 65536};
    um_source *source = zeroed(sizeof *source);
    um_source_init(source, zeroed(um_source_footprint(&config)), &config, f->session);
    return source;
}

static inline void source_close(um_source *source)
{
    um_source_fini(source);
    free(source->explicit_memory);
    free(source);
}

static inline void session_close(fixture *f)
{
    while (f->session->sources != NULL)
        source_close(f->session->sources);
    capture_clear(&f->link);
    free(f->memory);
    free(f->session);
    free(f);
}

/* Sends `length` bytes, each the low byte of its index plus `first`. */
static inline int64_t send_bytes(fixture *f, um_source *source, uint32_t length, uint8_t first, uint32_t flags)
{
    uint8_t *data = malloc(length + 1);
    for (uint32_t i = 0; i < length; i++)
        data[i] = (uint8_t)(first + i);
    int64_t result = um_source_send(source, data, length, flags, f->now_ns, &f->actions);
    free(data);
    return result;
}

static inline uint64_t messages_sent(um_source *source)
{
    um_source_snapshot(source);
    return source->counters.messages_sent;
}

static inline int64_t send_text(fixture *f, um_source *source, const char *text, uint32_t flags)
{
    return um_source_send(source, (const uint8_t *)text, (uint32_t)strlen(text), flags, f->now_ns, &f->actions);
}

static inline int run_sender(fixture *f)
{
    return um_source_session_send(f->session, f->now_ns, 1 << 20);
}

/* Decodes captured datagram i, which must be well-formed. */
static inline um_packet packet_at(fixture *f, uint32_t i)
{
    um_packet packet;
    CHECK(i < f->link.count);
    CHECK_EQ(um_lbtrm_decode(f->link.datagrams[i].data, f->link.datagrams[i].length, &packet), UM_DGRAM_OK);
    return packet;
}

/* Decodes all LBMC messages of captured datagram i, which must be well-formed to the last byte. */
static inline uint32_t messages_at(fixture *f, uint32_t i, um_lbmc_message *messages, uint32_t most)
{
    um_packet packet = packet_at(f, i);
    CHECK_EQ(packet.type, UM_LBTRM_DATA);
    uint32_t count = 0, length;
    for (uint32_t at = 0; at < packet.body_length; at += length) {
        CHECK(count < most);
        CHECK_EQ(um_lbmc_decode(packet.body + at, packet.body_length - at, &messages[count++], &length), UM_DGRAM_OK);
    }
    return count;
}

static inline void control(fixture *f, const uint8_t *data, uint32_t length)
{
    um_source_session_on_control(f->session, f->from, data, length, f->now_ns);
}

static inline void nak(fixture *f, const uint32_t *sqns, uint32_t count)
{
    uint8_t datagram[UM_DATAGRAM_BYTES_MAX];
    const um_source_session_config *config = &f->session->config;
    control(f, datagram, um_lbtrm_write_nak(datagram, config->session_id, config->nak_port, sqns, count));
}

static inline void nak_one(fixture *f, uint32_t sqn)
{
    nak(f, &sqn, 1);
}

static inline void status(fixture *f, um_status_message message)
{
    uint8_t datagram[UM_STATUS_DATAGRAM_BYTES_MAX];
    const um_source_session_config *config = &f->session->config;
    control(f, datagram, um_status_encode(datagram, config->session_id, config->nak_port, &message));
}

/* A session with space for datagrams of 8 KiB, UM's default. */
static inline um_source_session_config config_8k(uint32_t batch_minimum_bytes)
{
    um_source_session_config config = default_config();
    config.term_length = 1 << 20;
    config.window_bytes = 1 << 20;
    config.datagram_max_bytes = 8192;
    config.batch_minimum_bytes = batch_minimum_bytes;
    return config;
}

#endif

/* Authentication trailers: raw bytes, and datagrams that were tagged and then repeated, reordered, changed, cut or sent
 * from other addresses, with clocks that jump, while keys rotate. A datagram not tagged with a key in use is never
 * accepted; a tagged one is accepted at most once. Each input runs with keys that tag, and with keys that encrypt: then
 * an accepted datagram of a session has the bytes that were encrypted, and an attacker sees none of its payloads.
 */
#include "fuzz.h"

#include "authentication/verifiers.h"
#include "core/wire/lbmc.h"
#include "core/wire/lbtrm.h"
#include "core/wire/payload_walk.h"

enum { CALLS_MAX = 64, MADE_MAX = 32, DATA_MAX = 96, KEYS = 3, QUARTERS_PER_S = 4 };
enum {
    DATAGRAM_MAX = UM_LBTRM_DATA_BYTES + UM_LBMC_HEADER_BYTES + DATA_MAX,
    HIDDEN_BYTES = 16 /* equal by chance only once in 2^128 */
};

#define START_NS ((int64_t)1800000000 * 1000000000)
#define TOLERANCE_NS ((int64_t)60 * 1000000000)

static const um_mac_session SESSION = {UM_ADDRESS_V4(0x0a090001, 14390), UM_ADDRESS_V4(0xe00a0a0a, 14400), 0x5eed0001,
                                       UM_TRANSPORT_LBTRM};

/* Tagged datagrams: their bytes before encryption, their key, sender address, and if they were accepted. */
typedef struct made {
    uint8_t data[DATAGRAM_MAX + UM_TRAILER_BYTES];
    uint8_t plain[DATAGRAM_MAX];
    uint32_t length;
    um_address from;
    uint8_t key_id;
    bool is_taken;
} made;

typedef struct world {
    bool encrypts;
    bool is_open;
    um_mac session_macs[KEYS];
    um_mac control_macs[KEYS];
    um_session_verifier session;
    um_senders_verifier senders;
    um_key_set keys;
    uint64_t stamp;
    int64_t wall_ns;
    made made[MADE_MAX];
    uint32_t made_count;
} world;

static world worlds[2]; /* with tags, with encryption */
static world *w;

static um_key key_of(uint8_t id)
{
    um_key key = {.id = id, .encrypts = w->encrypts};
    memset(key.secret, id, sizeof key.secret);
    return key;
}

/* libcrypto's keys and contexts are created once; each input starts with empty windows. */
static void begin(bool encrypts)
{
    w = &worlds[encrypts];
    w->encrypts = encrypts;
    um_key first = key_of(1);
    w->keys = (um_key_set){1, {first}};
    if (!w->is_open) {
        for (uint8_t i = 0; i < KEYS; i++) {
            um_key key = key_of((uint8_t)(i + 1));
            REQUIRE(um_mac_open(&w->session_macs[i], UM_MAC_SESSION, &key, &SESSION) == 0);
            REQUIRE(um_mac_open(&w->control_macs[i], UM_MAC_CONTROL, &key, NULL) == 0);
        }
        REQUIRE(um_session_verifier_open(&w->session, &w->keys, UM_AUTHENTICATE_ALL, TOLERANCE_NS, &SESSION) == 0);
        REQUIRE(um_senders_verifier_open(&w->senders, &w->keys, UM_MAC_CONTROL, TOLERANCE_NS) == 0);
        w->is_open = true;
    }
    REQUIRE(um_session_verifier_set_keys(&w->session, &w->keys) == 0);
    REQUIRE(um_senders_verifier_set_keys(&w->senders, &w->keys) == 0);
    memset(w->session.window, 0, sizeof w->session.window);
    memset(w->senders.senders, 0, UM_SENDERS_MAX * sizeof *w->senders.senders);
    w->senders.sender_count = 0;
    w->senders.forgotten_stamp = 0;
    w->stamp = 0;
    w->wall_ns = START_NS;
    w->made_count = 0;
}

/* from.ip 0: the session's verifier. */
static um_verifier *verifier_of(um_address from)
{
    return !um_ip_is_set(from.ip) ? &w->session.base : &w->senders.base;
}

static bool is_in_use(uint8_t key_id)
{
    for (uint32_t i = 0; i < w->keys.count; i++)
        if (w->keys.keys[i].id == key_id)
            return true;
    return false;
}

/* plain: the bytes of an accepted datagram, or NULL if this one must be refused. */
static enum um_tag_status verify(um_address from, const uint8_t *data, uint32_t length, const uint8_t *plain)
{
    uint32_t left = length;
    um_verifier *verifier = verifier_of(from);
    uint8_t *exact = malloc(length > 0 ? length : 1);
    memcpy(exact, data, length);
    enum um_tag_status status = verifier->verify(verifier, from, exact, &left, w->wall_ns);
    REQUIRE(status < UM_TAG_STATUS_COUNT);
    REQUIRE(left == (status == UM_TAG_OK ? length - UM_TRAILER_BYTES : length));
    REQUIRE(status != UM_TAG_OK || (plain != NULL && memcmp(exact, plain, left) == 0));
    free(exact);
    return status;
}

/* Requires that the sealed datagram has its headers in the clear, and no longer payload. */
static void check_hidden(const made *m)
{
    uint32_t at = 0, offset, length, bytes = m->length - UM_TRAILER_BYTES - UM_LBTRM_DATA_BYTES;
    const uint8_t *plain = m->plain + UM_LBTRM_DATA_BYTES, *sealed = m->data + UM_LBTRM_DATA_BYTES;
    REQUIRE(memcmp(m->data, m->plain, UM_LBTRM_DATA_BYTES) == 0);
    while (um_payload_next(plain, bytes, &at, &offset, &length))
        REQUIRE(length < HIDDEN_BYTES || memcmp(sealed + offset, plain + offset, length) != 0);
}

/* Writes the header of a source's datagram and, unless payload is NULL, that of a message; returns their length. */
static uint32_t write_headers(uint8_t *out, const fuzz_input *payload)
{
    um_lbtrm_write_data(out, SESSION.session_id, SESSION.source.port, w->made_count, 1, false);
    if (payload == NULL)
        return UM_LBTRM_DATA_BYTES;
    um_lbmc_layout layout = {.topic_index = 7, .sqn = w->made_count, .payload_length = (uint32_t)payload->left};
    um_lbmc_write_message(out + UM_LBTRM_DATA_BYTES, &layout);
    return UM_LBTRM_DATA_BYTES + UM_LBMC_HEADER_BYTES;
}

static void make(fuzz_input *input)
{
    if (w->made_count == MADE_MAX)
        return;
    made *m = &w->made[w->made_count++];
    uint8_t key = take_u8(input) % KEYS, sender = take_u8(input);
    fuzz_input bytes = take_bytes(input, take_u8(input) % DATA_MAX);
    m->from = sender < 128 ? (um_address){0} : um_address_of_v4(sender, sender);
    m->key_id = key + 1;
    m->is_taken = false;
    bool is_sealed = w->encrypts && sender < 128; /* only datagrams of a source are encrypted */
    uint32_t begin = is_sealed ? write_headers(m->data, sender % 2 == 0 ? NULL : &bytes) : 0;
    uint32_t length = begin + (uint32_t)bytes.left;
    if (bytes.left > 0)
        memcpy(m->data + begin, bytes.at, bytes.left);
    memcpy(m->plain, m->data, length);
    m->length = length + UM_TRAILER_BYTES;
    w->stamp = um_stamp_next(w->stamp, w->wall_ns);
    um_trailer_write(m->data + length, m->key_id, w->stamp);
    um_mac *mac = sender < 128 ? &w->session_macs[key] : &w->control_macs[key];
    REQUIRE(um_mac_seal(mac, m->from, m->data, length + UM_TRAILER_COVERED_BYTES));
    if (is_sealed)
        check_hidden(m);
}

static void deliver(fuzz_input *input)
{
    if (w->made_count == 0)
        return;
    made *m = &w->made[take_u8(input) % w->made_count];
    enum um_tag_status status = verify(m->from, m->data, m->length, m->plain);
    if (!is_in_use(m->key_id))
        REQUIRE(status == UM_TAG_KEY_UNKNOWN);
    else
        REQUIRE(status == UM_TAG_OK || status == UM_TAG_STALE || status == UM_TAG_REPLAYED);
    REQUIRE(status != UM_TAG_OK || !m->is_taken);
    m->is_taken |= status == UM_TAG_OK;
}

static void deliver_changed(fuzz_input *input)
{
    if (w->made_count == 0)
        return;
    made *m = &w->made[take_u8(input) % w->made_count];
    uint8_t changed[sizeof m->data];
    memcpy(changed, m->data, m->length);
    uint32_t at = take_u16(input) % m->length, length = m->length;
    um_address from = m->from;
    switch (take_u8(input) % 3) {
    case 0:
        changed[at] ^= (uint8_t)(1 << take_u8(input) % 8);
        break;
    case 1:
        length = at;
        break;
    default:
        if (!um_ip_is_set(from.ip))
            return;
        from.port++;
    }
    verify(from, changed, length, NULL);
}

static void deliver_raw(fuzz_input *input)
{
    uint8_t data[DATA_MAX + UM_TRAILER_BYTES];
    fuzz_input bytes = take_bytes(input, take_u8(input) % sizeof data);
    if (bytes.left > 0)
        memcpy(data, bytes.at, bytes.left);
    if (take_u8(input) % 2 == 0 && bytes.left >= UM_TRAILER_BYTES) { /* with a trailer that can be read */
        um_trailer_write(data + bytes.left - UM_TRAILER_BYTES, 1, w->stamp + take_u8(input));
        if (w->encrypts)
            um_trailer_mark_encrypted(data + bytes.left - UM_TRAILER_BYTES);
    }
    verify(um_address_of_v4(take_u8(input), 1), data, (uint32_t)bytes.left, NULL);
}

static void rotate(fuzz_input *input)
{
    uint8_t first = take_u8(input) % KEYS + 1, second = take_u8(input) % KEYS + 1;
    w->keys = (um_key_set){first == second ? 1 : 2, {key_of(first), key_of(second)}};
    REQUIRE(um_session_verifier_set_keys(&w->session, &w->keys) == 0);
    REQUIRE(um_senders_verifier_set_keys(&w->senders, &w->keys) == 0);
}

static void move_clock(fuzz_input *input)
{
    int64_t quarters = (int64_t)(int8_t)take_u8(input) * (take_u8(input) % 8 == 0 ? QUARTERS_PER_S * 60 : 1);
    w->wall_ns += quarters * UM_STAMP_QUARTER_NS;
}

static void run(fuzz_input input, bool encrypts)
{
    begin(encrypts);
    for (uint32_t calls = 0; calls < CALLS_MAX && input.left > 0; calls++) {
        switch (take_u8(&input) % 8) {
        case 0:
        case 1:
            make(&input);
            break;
        case 2:
        case 3:
            deliver(&input);
            break;
        case 4:
            deliver_changed(&input);
            break;
        case 5:
            deliver_raw(&input);
            break;
        case 6:
            move_clock(&input);
            break;
        default:
            rotate(&input);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    run(input, false);
    run(input, true);
    return 0;
}

/* Authentication trailers: raw bytes, and datagrams that were tagged and then repeated, reordered, changed, cut or sent
 * from other addresses, with clocks that jump, while keys rotate. A datagram not tagged with a key in use is never
 * accepted; a tagged one is accepted at most once.
 */
#include "fuzz.h"

#include "authentication/verifiers.h"
#include "core/wire/lbtrm.h"

enum { CALLS_MAX = 64, MADE_MAX = 32, DATA_MAX = 96, KEYS = 3, QUARTERS_PER_S = 4 };

#define START_NS ((int64_t)1800000000 * 1000000000)
#define TOLERANCE_NS ((int64_t)60 * 1000000000)

static const um_mac_session SESSION = {UM_ADDRESS_V4(0x0a090001, 14390), UM_ADDRESS_V4(0xe00a0a0a, 14400), 0x5eed0001,
                                       UM_TRANSPORT_LBTRM};

/* Tagged datagrams: their key, sender address, and if they were accepted. */
typedef struct made {
    uint8_t data[DATA_MAX + UM_TRAILER_BYTES];
    uint32_t length;
    um_address from;
    uint8_t key_id;
    bool is_taken;
} made;

typedef struct world {
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

static world w;
static bool is_open;

static um_key key_of(uint8_t id)
{
    um_key key = {.id = id};
    memset(key.secret, id, sizeof key.secret);
    return key;
}

/* libcrypto's keys and contexts are created once; each input starts with empty windows. */
static void begin(void)
{
    um_key first = key_of(1);
    w.keys = (um_key_set){1, {first}};
    if (!is_open) {
        for (uint8_t i = 0; i < KEYS; i++) {
            um_key key = key_of((uint8_t)(i + 1));
            REQUIRE(um_mac_open(&w.session_macs[i], UM_MAC_SESSION, &key, &SESSION) == 0);
            REQUIRE(um_mac_open(&w.control_macs[i], UM_MAC_CONTROL, &key, NULL) == 0);
        }
        REQUIRE(um_session_verifier_open(&w.session, &w.keys, UM_AUTHENTICATE_ALL, TOLERANCE_NS, &SESSION) == 0);
        REQUIRE(um_senders_verifier_open(&w.senders, &w.keys, UM_MAC_CONTROL, TOLERANCE_NS) == 0);
        is_open = true;
    }
    REQUIRE(um_session_verifier_set_keys(&w.session, &w.keys) == 0);
    REQUIRE(um_senders_verifier_set_keys(&w.senders, &w.keys) == 0);
    memset(w.session.window, 0, sizeof w.session.window);
    memset(w.senders.senders, 0, UM_SENDERS_MAX * sizeof *w.senders.senders);
    w.senders.sender_count = 0;
    w.senders.forgotten_stamp = 0;
    w.stamp = 0;
    w.wall_ns = START_NS;
    w.made_count = 0;
}

/* from.ip 0: the session's verifier. */
static um_verifier *verifier_of(um_address from)
{
    return !um_ip_is_set(from.ip) ? &w.session.base : &w.senders.base;
}

static bool is_in_use(uint8_t key_id)
{
    for (uint32_t i = 0; i < w.keys.count; i++)
        if (w.keys.keys[i].id == key_id)
            return true;
    return false;
}

static enum um_tag_status verify(um_address from, const uint8_t *data, uint32_t length)
{
    uint32_t left = length;
    um_verifier *verifier = verifier_of(from);
    uint8_t *exact = malloc(length > 0 ? length : 1);
    memcpy(exact, data, length);
    enum um_tag_status status = verifier->verify(verifier, from, exact, &left, w.wall_ns);
    REQUIRE(status < UM_TAG_STATUS_COUNT);
    REQUIRE(left == (status == UM_TAG_OK ? length - UM_TRAILER_BYTES : length));
    free(exact);
    return status;
}

static void make(fuzz_input *input)
{
    if (w.made_count == MADE_MAX)
        return;
    made *m = &w.made[w.made_count++];
    uint8_t key = take_u8(input) % KEYS, sender = take_u8(input);
    fuzz_input bytes = take_bytes(input, take_u8(input) % DATA_MAX);
    m->from = sender < 128 ? (um_address){0} : um_address_of_v4(sender, sender);
    m->key_id = key + 1;
    m->is_taken = false;
    m->length = (uint32_t)bytes.left + UM_TRAILER_BYTES;
    if (bytes.left > 0)
        memcpy(m->data, bytes.at, bytes.left);
    w.stamp = um_stamp_next(w.stamp, w.wall_ns);
    um_trailer_write(m->data + bytes.left, m->key_id, w.stamp);
    um_mac *mac = sender < 128 ? &w.session_macs[key] : &w.control_macs[key];
    uint32_t covered = m->length - UM_TAG_BYTES;
    REQUIRE(um_mac_tag(mac, m->from, m->data, covered, m->data + covered));
}

static void deliver(fuzz_input *input)
{
    if (w.made_count == 0)
        return;
    made *m = &w.made[take_u8(input) % w.made_count];
    enum um_tag_status status = verify(m->from, m->data, m->length);
    if (!is_in_use(m->key_id))
        REQUIRE(status == UM_TAG_KEY_UNKNOWN);
    else
        REQUIRE(status == UM_TAG_OK || status == UM_TAG_STALE || status == UM_TAG_REPLAYED);
    REQUIRE(status != UM_TAG_OK || !m->is_taken);
    m->is_taken |= status == UM_TAG_OK;
}

static void deliver_changed(fuzz_input *input)
{
    if (w.made_count == 0)
        return;
    made *m = &w.made[take_u8(input) % w.made_count];
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
    REQUIRE(verify(from, changed, length) != UM_TAG_OK);
}

static void deliver_raw(fuzz_input *input)
{
    uint8_t data[DATA_MAX + UM_TRAILER_BYTES];
    fuzz_input bytes = take_bytes(input, take_u8(input) % sizeof data);
    if (bytes.left > 0)
        memcpy(data, bytes.at, bytes.left);
    if (take_u8(input) % 2 == 0 && bytes.left >= UM_TRAILER_BYTES) /* with a trailer that can be read */
        um_trailer_write(data + bytes.left - UM_TRAILER_BYTES, 1, w.stamp + take_u8(input));
    REQUIRE(verify(um_address_of_v4(take_u8(input), 1), data, (uint32_t)bytes.left) != UM_TAG_OK);
}

static void rotate(fuzz_input *input)
{
    uint8_t first = take_u8(input) % KEYS + 1, second = take_u8(input) % KEYS + 1;
    w.keys = (um_key_set){first == second ? 1 : 2, {key_of(first), key_of(second)}};
    REQUIRE(um_session_verifier_set_keys(&w.session, &w.keys) == 0);
    REQUIRE(um_senders_verifier_set_keys(&w.senders, &w.keys) == 0);
}

static void move_clock(fuzz_input *input)
{
    int64_t quarters = (int64_t)(int8_t)take_u8(input) * (take_u8(input) % 8 == 0 ? QUARTERS_PER_S * 60 : 1);
    w.wall_ns += quarters * UM_STAMP_QUARTER_NS;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    begin();
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
    return 0;
}

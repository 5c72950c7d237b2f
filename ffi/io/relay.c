#include "io/relay.h"

#include "io/context_private.h"
#include "io/publication_private.h"
#include "os/clock.h"
#include "os/memory.h"

enum {
    ROWS_PER_TAKE = 4096,
    PUBLICATION_WAIT_NS = 100000000, /* for one that holds the relay back, before its owner may end it */
    HELD_WAIT_NS = 50000,            /* between attempts of a relay that a publication holds back, on a shared thread */
};

typedef struct relay_target {
    um_publication *publication; /* NULL: none */
    bool is_ignored;
    _Atomic int64_t reached; /* sqn after the last message; -1: none was moved */
} relay_target;

struct um_relay {
    um_event_queue *queue;
    bool keeps_numbers;
    um_rows rows;          /* taken, but not moved yet */
    um_publication *dirty; /* has messages that were not flushed */
    uint8_t *scratch;      /* one message with its properties */
    size_t scratch_bytes;
    uint64_t consumed_rows;
    atomic_bool is_held; /* the last run ended with UM_RELAY_HELD */
    um_relay_counters counters;
    relay_target targets[UM_RELAY_SOURCES_MAX];
};

int um_relay_open(um_event_queue *queue, bool keeps_numbers, uint32_t message_max_bytes, um_relay **opened)
{
    um_relay *relay = um_map(sizeof *relay);
    if (relay == NULL)
        return -ENOMEM;
    relay->queue = queue;
    relay->keeps_numbers = keeps_numbers;
    relay->scratch_bytes = message_max_bytes;
    relay->scratch = um_map(message_max_bytes);
    if (relay->scratch == NULL) {
        um_unmap(relay, sizeof *relay);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < UM_RELAY_SOURCES_MAX; i++)
        atomic_init(&relay->targets[i].reached, -1);
    *opened = relay;
    return 0;
}

/* Returns the first `count` rows that are left to the queue. */
static void consume(um_relay *relay, uint32_t count)
{
    um_queue_release(relay->rows.block, count);
    relay->rows.first += count;
    relay->rows.count -= count;
    relay->consumed_rows += count;
}

void um_relay_close(um_relay *relay)
{
    if (relay->rows.count > 0)
        consume(relay, relay->rows.count);
    um_unmap(relay->scratch, relay->scratch_bytes);
    um_unmap(relay, sizeof *relay);
}

/* Adds to a counter that other threads read; only the relay's thread writes it. */
static void count(uint64_t *counter, uint64_t more)
{
    __atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

static void flush(um_relay *relay)
{
    if (relay->dirty != NULL)
        um_publication_flush(relay->dirty);
    relay->dirty = NULL;
}

int um_relay_set(um_relay *relay, uint32_t source, um_publication *publication)
{
    if (source >= UM_RELAY_SOURCES_MAX)
        return -EINVAL;
    relay->targets[source].publication = publication;
    relay->targets[source].is_ignored = publication == NULL;
    return 0;
}

void um_relay_forget(um_relay *relay, uint32_t source)
{
    if (source >= UM_RELAY_SOURCES_MAX)
        return;
    flush(relay);
    relay->targets[source].publication = NULL;
    relay->targets[source].is_ignored = false;
}

int64_t um_relay_reached(const um_relay *relay, uint32_t source)
{
    return source < UM_RELAY_SOURCES_MAX ? atomic_load_explicit(&relay->targets[source].reached, memory_order_acquire)
                                         : -1;
}

bool um_relay_is_held(const um_relay *relay)
{
    return atomic_load_explicit(&relay->is_held, memory_order_acquire);
}

void um_relay_read_counters(const um_relay *relay, um_relay_counters *out)
{
    *out = (um_relay_counters){.messages = __atomic_load_n(&relay->counters.messages, __ATOMIC_RELAXED),
                               .bytes = __atomic_load_n(&relay->counters.bytes, __ATOMIC_RELAXED),
                               .lost = __atomic_load_n(&relay->counters.lost, __ATOMIC_RELAXED),
                               .refused = __atomic_load_n(&relay->counters.refused, __ATOMIC_RELAXED)};
}

static void reach(relay_target *target, uint32_t sqn)
{
    atomic_store_explicit(&target->reached, sqn, memory_order_release);
}

/* ---- messages ---- */

static uint32_t length_of(const um_block *block, uint32_t row)
{
    return (uint32_t)(block->offsets[row + 1] - block->offsets[row]);
}

/* Returns true for a message of the source that can be sent with its neighbours: only a payload, and, if numbers are
 * kept, in one fragment that fits a datagram. */
static bool is_plain(const um_relay *relay, const um_publication *publication, uint32_t source, uint32_t row)
{
    const um_block *block = relay->rows.block;
    uint16_t flags = block->flags[row];
    if (um_row_kind_of(flags) != UM_ROW_MESSAGE ||
        (flags & (UM_MESSAGE_REQUEST | UM_MESSAGE_PROPERTIES | UM_MESSAGE_HOT_FAILOVER)) != 0 ||
        block->sources[row] != source)
        return false;
    if (!relay->keeps_numbers)
        return true;
    uint32_t body_max = atomic_load_explicit(&publication->session->core.body_max_bytes, memory_order_relaxed);
    return block->sent_ns[row] == 0 && block->first_sequence_numbers[row] == block->sequence_numbers[row] &&
           um_source_overhead(&publication->core) + length_of(block, row) <= body_max;
}

/* Returns how many messages from the first row on can be sent at once. */
static uint32_t plain_run(const um_relay *relay, const um_publication *publication, uint32_t source)
{
    const uint32_t *sqns = relay->rows.block->sequence_numbers + relay->rows.first;
    uint32_t count = 0;
    while (count < relay->rows.count && is_plain(relay, publication, source, relay->rows.first + count) &&
           (!relay->keeps_numbers || sqns[count] == sqns[0] + count))
        count++;
    return count;
}

static int64_t send_run(um_relay *relay, um_publication *publication, uint32_t count, int64_t timeout_ns)
{
    const um_block *block = relay->rows.block;
    uint32_t first = relay->rows.first;
    if (relay->keeps_numbers)
        um_source_number_next(&publication->core, block->sequence_numbers[first]);
    return um_publication_send_many(publication, (const char *)block->payload, (uint64_t)block->offsets[first + count],
                                    NULL, block->offsets + first, count, 0, timeout_ns);
}

/* Sends one message with all of its parts. */
static int64_t send_row(um_relay *relay, um_publication *publication, int64_t timeout_ns)
{
    const um_block *block = relay->rows.block;
    uint32_t row = relay->rows.first, length = length_of(block, row);
    um_lbmc_extras extras = {.request = block->flags[row] & UM_MESSAGE_REQUEST ? &block->requests[row] : NULL};
    const uint8_t *data = block->payload + block->offsets[row];
    um_lbmc_hot_failover number;
    if (block->flags[row] & UM_MESSAGE_HOT_FAILOVER) {
        uint32_t before = um_lbmc_read_hot_failover(data, length, &number);
        if (before == 0)
            return -EINVAL;
        extras.hot_failover = &number;
        data += before;
        length -= before;
    }
    if (block->flags[row] & UM_MESSAGE_PROPERTIES) {
        const um_properties_place *place = &block->properties[row];
        if ((size_t)length + place->bytes > relay->scratch_bytes)
            return -EMSGSIZE;
        memcpy(relay->scratch, data, length);
        memcpy(relay->scratch + length, block->payload + place->offset, place->bytes);
        data = relay->scratch;
        length += extras.properties_bytes = place->bytes;
    }
    um_relayed_numbers numbers = {block->first_sequence_numbers[row], block->sequence_numbers[row],
                                  block->sent_ns[row]};
    return relay->keeps_numbers
               ? um_publication_relay(publication, (const char *)data, length, &extras, &numbers, timeout_ns)
               : um_publication_send_with(publication, (const char *)data, length, &extras, 0, timeout_ns);
}

static bool is_loss(uint32_t kind)
{
    return kind == UM_ROW_UNRECOVERABLE_LOSS || kind == UM_ROW_BURST_LOSS;
}

/* Returns true if the second row, which follows at once, is of the same source and later in its numbers. */
static bool is_followed(const um_relay *relay)
{
    const um_block *block = relay->rows.block;
    uint32_t row = relay->rows.first;
    if (relay->rows.count < 2 || block->sources[row + 1] != block->sources[row])
        return false;
    uint32_t kind = um_row_kind_of(block->flags[row + 1]);
    return kind == UM_ROW_MESSAGE || is_loss(kind);
}

/* Leaves a gap for the numbers of the first row. A gap without a message behind it is announced, so that the readers
 * report it now. Returns false if the publication still refuses that. */
static bool leave_gap(um_relay *relay, um_publication *publication, int64_t timeout_ns)
{
    if (!relay->keeps_numbers || is_followed(relay))
        return true;
    flush(relay); /* so that the announcement has a datagram of its own */
    uint32_t next_sqn = relay->rows.block->sequence_numbers[relay->rows.first] + 1;
    return !um_is_held_back(um_publication_leave_out(publication, next_sqn, timeout_ns));
}

/* Sends messages from the first row on. Returns false if the publication still refuses the first. */
static bool send_messages(um_relay *relay, relay_target *target, uint32_t source, int64_t timeout_ns)
{
    um_publication *publication = target->publication;
    const um_block *block = relay->rows.block;
    if (relay->dirty != publication)
        flush(relay);
    relay->dirty = publication;
    uint32_t run = plain_run(relay, publication, source);
    int64_t result = run > 0 ? send_run(relay, publication, run, timeout_ns) : send_row(relay, publication, timeout_ns);
    if (um_is_held_back(result) || (result < 0 && !leave_gap(relay, publication, timeout_ns)))
        return false;
    uint32_t done = run > 0 && result > 0 ? (uint32_t)result : 1;
    uint32_t first = relay->rows.first, last = first + done - 1;
    count(&relay->counters.refused, result < 0);
    count(&relay->counters.messages, result < 0 ? 0 : done);
    count(&relay->counters.bytes, result < 0 ? 0 : (uint64_t)(block->offsets[last + 1] - block->offsets[first]));
    reach(target, block->sequence_numbers[last] + 1);
    consume(relay, done);
    return true;
}

/* ---- rows ---- */

/* Passes the first row, a loss, on. Returns false if the publication still refuses that. */
static bool pass_loss(um_relay *relay, relay_target *target, uint32_t kind, int64_t timeout_ns)
{
    const um_block *block = relay->rows.block;
    uint32_t row = relay->rows.first, last_sqn = block->sequence_numbers[row];
    uint32_t first_sqn = kind == UM_ROW_BURST_LOSS ? block->first_sequence_numbers[row] : last_sqn;
    if (target->publication != NULL && !leave_gap(relay, target->publication, timeout_ns))
        return false;
    count(&relay->counters.lost, last_sqn - first_sqn + 1);
    reach(target, last_sqn + 1);
    consume(relay, 1);
    return true;
}

/* Handles the first row, any other event. Returns UM_RELAY_IDLE if the owner need not know. */
static enum um_relay_result on_event(um_relay *relay, relay_target *target, uint32_t kind)
{
    consume(relay, 1);
    if (target->publication == NULL && !target->is_ignored)
        return UM_RELAY_IDLE;
    if (kind == UM_ROW_NAK_CUTOFF)
        return UM_RELAY_NAK_CUTOFF;
    if (kind == UM_ROW_STALE_TAGS)
        return UM_RELAY_STALE_TAGS;
    if (kind != UM_ROW_END_OF_SESSION && kind != UM_ROW_SOURCE_DELETED)
        return UM_RELAY_IDLE;
    flush(relay);
    target->publication = NULL;
    target->is_ignored = false;
    return UM_RELAY_ENDED;
}

static bool needs_target(uint32_t kind)
{
    return kind == UM_ROW_MESSAGE || kind == UM_ROW_SOURCE_CREATED || kind == UM_ROW_BEGINNING_OF_SESSION ||
           is_loss(kind);
}

/* Moves the first row, a message or a loss, and the messages that can be sent with it. Returns false if the publication
 * still refuses it. */
static bool move(um_relay *relay, relay_target *target, uint32_t kind, int64_t timeout_ns)
{
    if (is_loss(kind))
        return pass_loss(relay, target, kind, timeout_ns);
    if (target->publication != NULL)
        return send_messages(relay, target, relay->rows.block->sources[relay->rows.first], timeout_ns);
    consume(relay, 1);
    return true;
}

/* Takes rows; without waiting it leaves the loop alone, which the caller runs. */
static uint32_t take(um_relay *relay, int64_t timeout_ns)
{
    return timeout_ns == 0 ? um_event_queue_take(relay->queue, ROWS_PER_TAKE, &relay->rows)
                           : um_event_queue_poll(relay->queue, ROWS_PER_TAKE, timeout_ns, &relay->rows);
}

static int run(um_relay *relay, int64_t timeout_ns, uint32_t *source)
{
    int64_t publication_timeout_ns = um_earliest_ns(timeout_ns, PUBLICATION_WAIT_NS);
    if (relay->rows.count == 0 && take(relay, timeout_ns) == 0)
        return UM_RELAY_IDLE;
    um_rows_materialize(relay->rows.block, relay->rows.first, relay->rows.count);
    while (relay->rows.count > 0) {
        const um_block *block = relay->rows.block;
        uint32_t kind = um_row_kind_of(block->flags[relay->rows.first]);
        *source = block->sources[relay->rows.first];
        if (*source >= UM_RELAY_SOURCES_MAX) {
            count(&relay->counters.refused, kind == UM_ROW_MESSAGE);
            consume(relay, 1);
            continue;
        }
        relay_target *target = &relay->targets[*source];
        if (target->publication == NULL && !target->is_ignored && needs_target(kind)) {
            flush(relay);
            return UM_RELAY_UNKNOWN;
        }
        if (kind != UM_ROW_MESSAGE && !is_loss(kind)) {
            enum um_relay_result result = on_event(relay, target, kind);
            if (result != UM_RELAY_IDLE)
                return (int)result;
        } else if (!move(relay, target, kind, publication_timeout_ns)) {
            flush(relay);
            return UM_RELAY_HELD;
        }
    }
    flush(relay);
    return UM_RELAY_IDLE;
}

int um_relay_run(um_relay *relay, int64_t timeout_ns, uint32_t *source)
{
    int result = run(relay, timeout_ns, source);
    atomic_store_explicit(&relay->is_held, result == UM_RELAY_HELD, memory_order_release);
    return result;
}

/* ---- one thread for all relays and their context ---- */

int um_relays_watch(um_context *context, int fd)
{
    return um_reactor_watch(&context->reactor, fd, UM_WATCH_OUTSIDE, 0);
}

/* How a round over the relays ended. */
typedef struct relay_round {
    int result;     /* UM_RELAY_UNKNOWN or a later one: the round stopped there */
    bool has_moved; /* more rows may be in the queues */
    bool is_held;
} relay_round;

/* Runs each relay once, beginning after *relay, so that one that often needs its owner delays no other. */
static relay_round run_each(um_relay *const *relays, uint32_t count, uint32_t *relay, uint32_t *source)
{
    relay_round round = {.result = UM_RELAY_IDLE};
    for (uint32_t i = 0; i < count; i++) {
        *relay = *relay + 1 < count ? *relay + 1 : 0;
        um_relay *one = relays[*relay];
        uint64_t consumed_rows = one->consumed_rows;
        int result = um_relay_run(one, 0, source);
        if (result >= UM_RELAY_UNKNOWN) {
            round.result = result;
            return round;
        }
        round.has_moved |= one->consumed_rows != consumed_rows;
        round.is_held |= result == UM_RELAY_HELD;
    }
    return round;
}

int um_relays_run(um_context *context, um_relay *const *relays, uint32_t count, int64_t timeout_ns, uint32_t *relay,
                  uint32_t *source)
{
    if (!um_gate_enter(&context->gate))
        return UM_RELAY_IDLE;
    um_reactor *reactor = &context->reactor;
    int64_t now_ns = um_clock_ns(), end_ns = now_ns + timeout_ns;
    relay_round round;
    reactor->is_outside_ready = false;
    do {
        round = run_each(relays, count, relay, source);
        if (round.result != UM_RELAY_IDLE)
            break;
        int64_t until_ns = round.is_held ? um_earliest_ns(now_ns + HELD_WAIT_NS, end_ns) : end_ns;
        um_loop_pass(&context->loop, round.has_moved ? 0 : until_ns);
        now_ns = um_clock_ns();
    } while (now_ns < end_ns && !reactor->is_outside_ready);
    um_gate_leave(&context->gate);
    return round.result;
}

#include "sim/row_checker.h"

enum fragment_state { FRAGMENT_UNKNOWN, FRAGMENT_DELIVERED, FRAGMENT_LOST };

static const char *name_of(const um_sim_row_checker *checker, char *out, size_t bytes)
{
    const um_sim_join_state *join = checker->world->joins[checker->join];
    snprintf(out, bytes, "t=%lld ns, host %u, join %u, source %u, mode %d", (long long)checker->world->now_ns,
             join->receiver->host->index, checker->join, checker->topic->source, checker->mode);
    return out;
}

#define COMPLAIN(checker, format, ...)                                                                                 \
    do {                                                                                                               \
        char name[96];                                                                                                 \
        um_sim_complain((checker)->world, "%s: " format, name_of(checker, name, sizeof name), __VA_ARGS__);            \
    } while (0)

bool um_sim_row_checker_init(um_sim_row_checker *checker, um_sim_world *world, const um_sim_topic *topic, uint32_t join,
                             int32_t mode)
{
    *checker = (um_sim_row_checker){.world = world, .topic = topic, .join = join, .mode = mode};
    checker->state = um_sim_take(world, UM_SIM_FRAGMENTS_MAX);
    checker->bytes = um_sim_take(world, topic->messages_max * sizeof *checker->bytes);
    return checker->state != NULL && checker->bytes != NULL;
}

/* True if the fragment need not be delivered, because its message lost another fragment. */
static bool is_excused(const um_sim_row_checker *checker, uint32_t sqn)
{
    const um_sim_message *message = um_sim_message_at(checker->topic, sqn);
    if (message == NULL)
        return false;
    if (checker->has_foretold && um_serial_before(message->first_sqn, checker->foretold_end))
        return true; /* it, or the start of its message, was declared lost before it was published */
    uint32_t first = message->first_sqn - checker->topic->initial_sqn;
    for (uint32_t i = 0; i < message->fragment_count; i++)
        if (checker->state[first + i] == FRAGMENT_LOST)
            return true;
    /* A message in flight when the receiver joined may be delivered or not. */
    return um_serial_before(message->first_sqn, checker->lowest);
}

void um_sim_row_checker_resume(um_sim_row_checker *checker, const um_sim_row_checker *ended)
{
    const um_delivery *delivery = &ended->world->joins[ended->join]->core;
    if (!delivery->has_resume)
        return;
    uint32_t from = delivery->resume_sqn, initial_sqn = checker->topic->initial_sqn;
    if (um_serial_before(from, initial_sqn)) { /* its peer advertised more */
        if (!ended->is_lied_to)
            COMPLAIN(ended, "the session ended at sqn %u, before the first that was published", from);
        from = initial_sqn;
    }
    checker->has_begun = true;
    checker->lowest = checker->expected = from;
}

/* Checks that everything before the resume point of the session was delivered or declared lost. */
static void check_end(um_sim_row_checker *checker)
{
    const um_delivery *delivery = &checker->world->joins[checker->join]->core;
    uint32_t settled = checker->expected;
    checker->has_eos = true;
    while (checker->has_begun && um_serial_before(settled, delivery->resume_sqn) && is_excused(checker, settled))
        settled++;
    if (checker->has_begun && !checker->is_lied_to &&
        (!delivery->has_resume || (checker->mode == UM_ORDERED_SEQUENCE && delivery->resume_sqn != settled)))
        COMPLAIN(checker, "the session ended at sqn %u, but %u is where it resumes", settled, delivery->resume_sqn);
}

static void note_seen(um_sim_row_checker *checker, uint32_t first_sqn)
{
    if (checker->has_begun && !um_serial_before(first_sqn, checker->lowest))
        return;
    if (!checker->has_begun)
        checker->expected = first_sqn;
    checker->has_begun = true;
    checker->lowest = first_sqn;
}

/* Mode 1: after a false range, delivery restarts at live messages that the range declared lost: they are delivered or
 * declared lost once more. */
static void restart_if_back(um_sim_row_checker *checker, uint32_t first_sqn)
{
    if (checker->mode != UM_ORDERED_SEQUENCE || !checker->is_lied_to || !um_serial_before(first_sqn, checker->expected))
        return;
    for (uint32_t sqn = first_sqn; sqn != checker->expected; sqn++) {
        uint32_t at = sqn - checker->topic->initial_sqn;
        if (at < checker->topic->fragment_count && checker->state[at] == FRAGMENT_LOST)
            checker->state[at] = FRAGMENT_UNKNOWN;
    }
    checker->expected = first_sqn;
}

/* Mode 1: checks that everything before `first_sqn` was delivered or declared lost. */
static void check_order(um_sim_row_checker *checker, uint32_t first_sqn, uint32_t last_sqn)
{
    restart_if_back(checker, first_sqn);
    if (um_serial_before(first_sqn, checker->expected)) {
        COMPLAIN(checker, "sqn %u comes after %u", first_sqn, checker->expected - 1);
        return;
    }
    for (; checker->expected != first_sqn; checker->expected++) {
        uint8_t state = checker->state[checker->expected - checker->topic->initial_sqn];
        if (state != FRAGMENT_LOST && !is_excused(checker, checker->expected)) {
            COMPLAIN(checker, "sqn %u was not delivered before %u and no loss event covers it", checker->expected,
                     first_sqn);
            return;
        }
    }
    checker->expected = last_sqn + 1;
}

static void check_payload(um_sim_row_checker *checker, const um_sim_message *message, uint32_t offset,
                          const uint8_t *payload, uint32_t length)
{
    uint32_t number = (uint32_t)(message - checker->topic->messages);
    if (offset > message->length || length > message->length - offset) {
        COMPLAIN(checker, "message at sqn %u: %u bytes at %u, its length is %u", message->first_sqn, length, offset,
                 message->length);
        return;
    }
    if (memcmp(payload, um_sim_content(checker->topic, number, offset), length) != 0)
        COMPLAIN(checker, "message at sqn %u: the payload differs from the published one", message->first_sqn);
}

/* True if a sqn may be delivered or declared lost although a false range has declared it lost; in mode 1
 * restart_if_back() decides. */
static bool may_follow_loss(const um_sim_row_checker *checker, uint8_t state)
{
    return state == FRAGMENT_LOST && checker->is_lied_to && checker->mode != UM_ORDERED_SEQUENCE;
}

static void mark_delivered(um_sim_row_checker *checker, uint32_t first_sqn, uint32_t last_sqn)
{
    for (uint32_t sqn = first_sqn; sqn != last_sqn + 1; sqn++) {
        uint8_t *state = &checker->state[sqn - checker->topic->initial_sqn];
        if (*state != FRAGMENT_UNKNOWN && !may_follow_loss(checker, *state))
            COMPLAIN(checker, "sqn %u is delivered after it was %s", sqn,
                     *state == FRAGMENT_LOST ? "declared lost" : "delivered already");
        *state = FRAGMENT_DELIVERED;
    }
}

static void check_message(um_sim_row_checker *checker, const um_block *block, uint32_t row)
{
    uint32_t sqn = block->sequence_numbers[row];
    uint32_t first_sqn = block->first_sequence_numbers[row];
    uint32_t length = (uint32_t)(block->offsets[row + 1] - block->offsets[row]);
    uint16_t flags = block->flags[row];
    const um_sim_message *message = um_sim_message_at(checker->topic, sqn);
    bool by_fragment = checker->mode == UM_ORDERED_FRAGMENTS;
    uint32_t last_sqn = message == NULL ? 0 : message->first_sqn + message->fragment_count - 1;
    if (message == NULL || first_sqn != message->first_sqn || (!by_fragment && sqn != last_sqn)) {
        COMPLAIN(checker, "no message was published with sqns %u to %u", first_sqn, sqn);
        return;
    }
    if (block->message_lengths[row] != message->length || (!by_fragment && length != message->length))
        COMPLAIN(checker, "message at sqn %u: length %u of %u, published with %u", first_sqn, length,
                 block->message_lengths[row], message->length);
    if ((flags & (UM_MESSAGE_BATCH_START | UM_MESSAGE_BATCH_END)) != message->flags ||
        !(flags & UM_MESSAGE_FRAGMENT) != (message->fragment_count == 1))
        COMPLAIN(checker, "message at sqn %u: flags %#x, published with %#x", first_sqn, flags, message->flags);
    if ((block->sent_ns[row] != 0) != checker->topic->is_timed)
        COMPLAIN(checker, "message at sqn %u: sent at %lld", first_sqn, (long long)block->sent_ns[row]);
    uint32_t offset = by_fragment ? block->fragment_offsets[row] : 0;
    check_payload(checker, message, offset, block->payload + block->offsets[row], length);
    uint32_t from = by_fragment ? sqn : first_sqn;
    note_seen(checker, from);
    if (checker->mode == UM_ORDERED_SEQUENCE)
        check_order(checker, from, sqn);
    mark_delivered(checker, from, sqn);
    checker->bytes[message - checker->topic->messages] += length;
    checker->delivered_count++;
}

/* Removes sqns that a peer advertised but no source published: they are lost, too. Returns false if none remain. */
static bool clip_promised(um_sim_row_checker *checker, uint32_t *first_sqn, uint32_t *last_sqn)
{
    uint32_t initial_sqn = checker->topic->initial_sqn, next_sqn = um_sim_next_published(checker->topic);
    if (!um_serial_before(*last_sqn, next_sqn)) {
        checker->has_foretold = true;
        checker->foretold_end = *last_sqn + 1;
        *last_sqn = next_sqn - 1;
    }
    if (um_serial_before(*first_sqn, initial_sqn))
        *first_sqn = initial_sqn;
    return !um_serial_before(*last_sqn, *first_sqn);
}

static void check_loss(um_sim_row_checker *checker, uint32_t first_sqn, uint32_t last_sqn, bool burst)
{
    checker->loss_count++;
    if (checker->is_lied_to && !um_serial_before(last_sqn, first_sqn) && !clip_promised(checker, &first_sqn, &last_sqn))
        return;
    uint32_t published = checker->topic->fragment_count;
    uint32_t first = first_sqn - checker->topic->initial_sqn, last = last_sqn - checker->topic->initial_sqn;
    if (first > last || last >= published) {
        COMPLAIN(checker, "loss of sqns %u to %u, which were never published", first_sqn, last_sqn);
        return;
    }
    const um_receiver_counters *counters = &checker->world->joins[checker->join]->receiver->core.counters;
    if (checker->is_loss_forbidden && !checker->was_cut_loose &&
        !(checker->can_leave_out && counters->late_join_not_cached > 0))
        COMPLAIN(checker, "sqns %u to %u are declared lost, but nothing may be unrecoverable here", first_sqn,
                 last_sqn);
    note_seen(checker, first_sqn);
    restart_if_back(checker, first_sqn);
    for (uint32_t at = first; at <= last; at++) {
        if (checker->state[at] == FRAGMENT_UNKNOWN)
            checker->state[at] = FRAGMENT_LOST;
        else if (!burst && !may_follow_loss(checker, checker->state[at])) /* a burst also covers earlier sqns (UX-7) */
            COMPLAIN(checker, "sqn %u is declared lost after it was %s", first_sqn,
                     checker->state[at] == FRAGMENT_LOST ? "declared lost already" : "delivered");
    }
    if (checker->mode == UM_ORDERED_SEQUENCE)
        check_order(checker, first_sqn, last_sqn);
}

/* The dropped messages follow the delivered ones. They may be fetched, or are declared lost in the next row. */
static void check_cut_loose(um_sim_row_checker *checker, uint32_t first_sqn, uint32_t last_sqn)
{
    checker->was_cut_loose = true;
    if (um_serial_before(last_sqn, first_sqn))
        COMPLAIN(checker, "cut loose from sqns %u to %u", first_sqn, last_sqn);
    if (checker->mode == UM_ORDERED_SEQUENCE && checker->has_begun && um_serial_before(first_sqn, checker->expected))
        COMPLAIN(checker, "cut loose from sqn %u, but %u is next", first_sqn, checker->expected);
}

void um_sim_check_row(um_sim_row_checker *checker, const um_block *block, uint32_t row)
{
    enum um_row_kind kind = (enum um_row_kind)(um_row_kind_of(block->flags[row]));
    if (checker->has_eos)
        COMPLAIN(checker, "a row of kind %d after the end of the session", (int)kind);
    if (kind != UM_ROW_BEGINNING_OF_SESSION && kind != UM_ROW_END_OF_SESSION && !checker->has_bos)
        COMPLAIN(checker, "a row of kind %d before the beginning of the session", (int)kind);
    switch (kind) {
    case UM_ROW_MESSAGE:
        check_message(checker, block, row);
        break;
    case UM_ROW_BEGINNING_OF_SESSION:
        if (checker->has_bos)
            COMPLAIN(checker, "%s", "the session begins twice");
        checker->has_bos = true;
        break;
    case UM_ROW_END_OF_SESSION:
        check_end(checker);
        break;
    case UM_ROW_UNRECOVERABLE_LOSS:
        check_loss(checker, block->sequence_numbers[row], block->sequence_numbers[row], false);
        break;
    case UM_ROW_BURST_LOSS:
        check_loss(checker, block->first_sequence_numbers[row], block->sequence_numbers[row], true);
        break;
    case UM_ROW_CUT_LOOSE:
        check_cut_loose(checker, block->first_sequence_numbers[row], block->sequence_numbers[row]);
        break;
    default:
        COMPLAIN(checker, "a row of kind %d, which is unexpected", (int)kind);
    }
}

void um_sim_check_complete(um_sim_row_checker *checker)
{
    const um_sim_topic *topic = checker->topic;
    if (topic->fragment_count == 0)
        return;
    if (checker->is_from_start && (!checker->has_begun || checker->lowest != topic->initial_sqn)) {
        COMPLAIN(checker, "the first message, sqn %u, was never delivered", topic->initial_sqn);
        return;
    }
    if (!checker->has_begun)
        return;
    for (uint32_t at = checker->lowest - topic->initial_sqn; at < topic->fragment_count; at++) {
        if (checker->state[at] != FRAGMENT_UNKNOWN || is_excused(checker, topic->initial_sqn + at))
            continue;
        COMPLAIN(checker, "sqn %u was neither delivered nor declared lost", topic->initial_sqn + at);
        return;
    }
    for (uint32_t i = topic->message_of[checker->lowest - topic->initial_sqn]; i < topic->message_count; i++)
        if (checker->bytes[i] != topic->messages[i].length && !is_excused(checker, topic->messages[i].first_sqn))
            COMPLAIN(checker, "message at sqn %u: %u of its %u bytes were delivered", topic->messages[i].first_sqn,
                     checker->bytes[i], topic->messages[i].length);
}

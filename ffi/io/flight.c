/* One file, because every function works on the pages of messages, under one lock. */
#include "io/flight.h"

#include <stdlib.h>

#include "core/wire/lbmc.h"
#include "os/clock.h"
#include "os/lock.h"

enum {
    PAGE_MESSAGES = 256,
    PAGES_MIN = 16,
    /* Messages of one call, and bytes if there are several: those that the transport refuses were put in flight for no
       use, and where the limits are suspended, nothing else bounds the memory. */
    SEND_MESSAGES_MAX = 1024,
    SEND_BYTES_MAX = 4 << 20,
};

typedef struct flight_message {
    uint8_t *encoded; /* NULL: no message */
    uint32_t encoded_bytes;
    uint64_t acknowledged;
    uint64_t lost;
    int64_t sent_ns;
    int64_t repeated_ns;
    bool is_sent;
} flight_message;

typedef struct flight_page {
    uint32_t message_count;
    flight_message messages[PAGE_MESSAGES];
} flight_page;

struct um_flight {
    um_lock lock;
    uint64_t next_sqn;
    uint32_t fragment_bytes; /* 0: no message is split */
    uint64_t messages_max;
    uint64_t bytes_max;
    uint64_t confirmed_end; /* messages before this number are confirmed by enough receivers */
    flight_page **pages;    /* page n is at n % capacity; NULL: without messages */
    uint64_t capacity;      /* a power of two */
    uint64_t first_page;    /* every message is in a page of [first_page, end_page) */
    uint64_t end_page;
    uint64_t count;
    uint64_t bytes;
    uint32_t store_count;
    uint32_t quorum;
    bool has_ended;
};

um_flight *um_flight_create(uint32_t store_count, uint32_t quorum)
{
    assert(store_count <= UM_FLIGHT_STORES_MAX && quorum > 0 && quorum <= store_count);
    um_flight *flight = calloc(1, sizeof *flight);
    if (!flight)
        return NULL;
    flight->capacity = PAGES_MIN;
    flight->pages = calloc(flight->capacity, sizeof(flight_page *));
    flight->store_count = store_count;
    flight->quorum = quorum;
    flight->confirmed_end = UINT64_MAX;
    if (!flight->pages) {
        free(flight);
        return NULL;
    }
    return flight;
}

void um_flight_free(um_flight *flight)
{
    if (!flight)
        return;
    for (uint64_t at = flight->first_page; at < flight->end_page; at++) {
        flight_page *page = flight->pages[at & (flight->capacity - 1)];
        for (uint32_t i = 0; page && i < PAGE_MESSAGES; i++)
            free(page->messages[i].encoded);
        free(page);
    }
    free(flight->pages);
    free(flight);
}

static flight_page *page_of(const um_flight *flight, uint64_t sqn)
{
    uint64_t number = sqn / PAGE_MESSAGES;
    if (number < flight->first_page || number >= flight->end_page)
        return NULL;
    return flight->pages[number & (flight->capacity - 1)];
}

/* Returns the message of a number; NULL: there is none. */
static flight_message *message_of(const um_flight *flight, uint64_t sqn)
{
    flight_page *page = page_of(flight, sqn);
    if (!page)
        return NULL;
    flight_message *message = &page->messages[sqn % PAGE_MESSAGES];
    return message->encoded ? message : NULL;
}

/* Finds the first message of [from_sqn, end_sqn). */
static flight_message *next_message(const um_flight *flight, uint64_t from_sqn, uint64_t end_sqn, uint64_t *sqn)
{
    uint64_t begin = flight->first_page * PAGE_MESSAGES, end = flight->end_page * PAGE_MESSAGES;
    uint64_t at = from_sqn > begin ? from_sqn : begin;
    end = end_sqn < end ? end_sqn : end;
    while (at < end) {
        flight_page *page = page_of(flight, at);
        if (!page) {
            at = (at / PAGE_MESSAGES + 1) * PAGE_MESSAGES;
            continue;
        }
        flight_message *message = &page->messages[at % PAGE_MESSAGES];
        if (message->encoded) {
            *sqn = at;
            return message;
        }
        at++;
    }
    return NULL;
}

static int grow(um_flight *flight)
{
    uint64_t capacity = 2 * flight->capacity;
    flight_page **pages = calloc(capacity, sizeof(flight_page *));
    if (!pages)
        return -ENOMEM;
    for (uint64_t at = flight->first_page; at < flight->end_page; at++)
        pages[at & (capacity - 1)] = flight->pages[at & (flight->capacity - 1)];
    free(flight->pages);
    flight->pages = pages;
    flight->capacity = capacity;
    return 0;
}

/* Returns the page of a number that is behind all messages, or in their last page; NULL: no memory. */
static flight_page *page_for(um_flight *flight, uint64_t sqn)
{
    uint64_t number = sqn / PAGE_MESSAGES;
    if (flight->count == 0)
        flight->first_page = flight->end_page = number; /* pages without messages were freed */
    assert(number >= flight->first_page);
    while (number - flight->first_page >= flight->capacity)
        if (grow(flight))
            return NULL;
    flight_page **place = &flight->pages[number & (flight->capacity - 1)];
    for (; flight->end_page <= number; flight->end_page++)
        flight->pages[flight->end_page & (flight->capacity - 1)] = NULL;
    if (!*place)
        *place = calloc(1, sizeof **place);
    return *place;
}

/* Frees the page of a number if it has no messages. */
static void drop_if_empty(um_flight *flight, uint64_t sqn)
{
    flight_page *page = page_of(flight, sqn);
    if (!page || page->message_count)
        return;
    free(page);
    flight->pages[sqn / PAGE_MESSAGES & (flight->capacity - 1)] = NULL;
    while (flight->first_page < flight->end_page && !flight->pages[flight->first_page & (flight->capacity - 1)])
        flight->first_page++;
}

static void forget(um_flight *flight, uint64_t sqn)
{
    flight_page *page = page_of(flight, sqn);
    flight_message *message = &page->messages[sqn % PAGE_MESSAGES];
    page->message_count--;
    flight->count--;
    flight->bytes -= message->encoded_bytes;
    free(message->encoded);
    *message = (flight_message){0};
    drop_if_empty(flight, sqn);
}

int64_t um_flight_check(const int32_t *offsets, uint32_t count, uint64_t data_bytes, uint32_t message_max)
{
    uint32_t fitting = count;
    if (offsets[0] < 0 || (uint64_t)offsets[count] > data_bytes)
        return -EINVAL;
    for (uint32_t i = count; i-- > 0;) {
        if (offsets[i] > offsets[i + 1])
            return -EINVAL;
        if ((uint32_t)(offsets[i + 1] - offsets[i]) > message_max)
            fitting = i;
    }
    return fitting;
}

/* A message before it is sent. */
typedef struct outgoing {
    const char *data;
    uint32_t length;
    um_lbmc_first_options options; /* each fragment repeats them */
    uint32_t fragment_count;
    uint32_t fragment_bytes; /* payload of each but the last */
    uint64_t encoded_bytes;  /* of all */
} outgoing;

/* Returns the count of numbers that a message of this length takes. */
static uint32_t numbers_of(const um_flight *flight, uint32_t length)
{
    bool is_split = flight->fragment_bytes != 0 && length > flight->fragment_bytes;
    return is_split ? (length + flight->fragment_bytes - 1) / flight->fragment_bytes : 1;
}

static outgoing outgoing_of(const um_flight *flight, const char *data, uint32_t length, uint32_t properties_bytes)
{
    outgoing m = {.data = data, .length = length, .fragment_count = numbers_of(flight, length)};
    m.fragment_bytes = m.fragment_count > 1 ? flight->fragment_bytes : length;
    if (properties_bytes != 0)
        um_lbmc_make_first_options(&m.options, &(um_lbmc_extras){.properties_bytes = properties_bytes});
    uint32_t overhead = um_lbmc_overhead(m.fragment_count > 1, false, false) + m.options.length;
    m.encoded_bytes = length + (uint64_t)m.fragment_count * overhead;
    return m;
}

static bool has_space(const um_flight *flight, const outgoing *m)
{
    return flight->count + m->fragment_count <= flight->messages_max &&
           (flight->count == 0 || flight->bytes + m->encoded_bytes <= flight->bytes_max);
}

/* Adds one fragment, or a whole message, with the next number. Returns false without memory. */
static bool add(um_flight *flight, const outgoing *m, const um_lbmc_layout *layout, int64_t now_ns)
{
    uint32_t bytes = um_lbmc_overhead(layout->flags & UM_MESSAGE_FRAGMENT, false, false) + m->options.length +
                     layout->payload_length;
    flight_page *page = page_for(flight, flight->next_sqn);
    uint8_t *encoded = page ? malloc(bytes) : NULL;
    if (!encoded) {
        drop_if_empty(flight, flight->next_sqn);
        return false;
    }
    memcpy(um_lbmc_write_with_options(encoded, layout, &m->options), m->data + layout->offset, layout->payload_length);
    encoded[0] = UM_LBMC_PROACTIVE;
    flight_message *message = &page->messages[flight->next_sqn % PAGE_MESSAGES];
    assert(!message->encoded);
    *message = (flight_message){.encoded = encoded, .encoded_bytes = bytes, .sent_ns = now_ns, .repeated_ns = now_ns};
    page->message_count++;
    flight->count++;
    flight->bytes += bytes;
    flight->next_sqn++;
    return true;
}

/* Takes back the numbers from this one on. */
static void withdraw(um_flight *flight, uint64_t first_sqn)
{
    while (flight->next_sqn > first_sqn) {
        const flight_message *message = message_of(flight, --flight->next_sqn);
        assert(!message || !message->is_sent);
        if (message)
            forget(flight, flight->next_sqn);
    }
}

/* Adds all fragments of a message. Returns false without memory; then nothing has changed. */
static bool add_all(um_flight *flight, const outgoing *m, int64_t now_ns)
{
    uint64_t first_sqn = flight->next_sqn;
    um_lbmc_layout layout = {
        .flags = m->fragment_count > 1 ? UM_MESSAGE_FRAGMENT : 0, .first_sqn = (uint32_t)first_sqn, .total = m->length};
    for (uint32_t i = 0; i < m->fragment_count; i++) {
        layout.sqn = (uint32_t)flight->next_sqn;
        layout.offset = i * m->fragment_bytes;
        layout.payload_length = i + 1 < m->fragment_count ? m->fragment_bytes : m->length - layout.offset;
        if (!add(flight, m, &layout, now_ns)) {
            withdraw(flight, first_sqn);
            return false;
        }
    }
    return true;
}

int64_t um_flight_reserve(um_flight *flight, const char *data, const int32_t *offsets, uint32_t count,
                          uint32_t properties_bytes, bool may_exceed, int64_t now_ns)
{
    int64_t taken = 0;
    um_lock_acquire(&flight->lock);
    for (; taken < count && !flight->has_ended; taken++) {
        uint32_t length = (uint32_t)(offsets[taken + 1] - offsets[taken]);
        outgoing m = outgoing_of(flight, data + offsets[taken], length, properties_bytes);
        if (!may_exceed && !has_space(flight, &m))
            break;
        if (!add_all(flight, &m, now_ns)) {
            taken = taken ? taken : -ENOMEM;
            break;
        }
    }
    um_lock_release(&flight->lock);
    return taken;
}

void um_flight_confirm(um_flight *flight, uint64_t first_sqn, uint64_t last_sqn, int64_t now_ns)
{
    uint64_t sqn = first_sqn;
    flight_message *message;
    um_lock_acquire(&flight->lock);
    while ((message = next_message(flight, sqn, last_sqn + 1, &sqn))) {
        message->is_sent = true;
        message->sent_ns = message->repeated_ns = now_ns;
        sqn++;
    }
    um_lock_release(&flight->lock);
}

void um_flight_withdraw(um_flight *flight, uint64_t first_sqn)
{
    um_lock_acquire(&flight->lock);
    withdraw(flight, first_sqn);
    um_lock_release(&flight->lock);
}

/* Sends a single message. Returns 1, an error of um_publication_send, or -EPROTO. */
static int64_t send_one(um_publication *publication, const char *data, uint32_t length, uint32_t properties_bytes,
                        uint32_t flags, int64_t timeout_ns, uint64_t last_sqn)
{
    int64_t sqn;
    if (properties_bytes == 0)
        sqn = um_publication_send(publication, data, length, flags, timeout_ns);
    else
        sqn = um_publication_send_with(publication, data, length,
                                       &(um_lbmc_extras){.properties_bytes = properties_bytes}, flags, timeout_ns);
    if (sqn < 0)
        return sqn;
    return (uint32_t)sqn == (uint32_t)last_sqn ? 1 : -EPROTO;
}

/* The same for the first `count` of these messages. */
static uint64_t numbers_of_all(const um_flight *flight, const int32_t *offsets, int64_t count)
{
    uint64_t numbers = 0;
    for (int64_t i = 0; i < count; i++)
        numbers += numbers_of(flight, (uint32_t)(offsets[i + 1] - offsets[i]));
    return numbers;
}

int64_t um_flight_send(um_flight *flight, um_publication *publication, const char *data, const int32_t *offsets,
                       uint32_t count, uint32_t properties_bytes, bool may_exceed, uint32_t flags, int64_t timeout_ns,
                       uint64_t *last_sqn)
{
    uint64_t first = um_flight_next_sqn(flight); /* only this thread changes it now */
    uint32_t part = count < SEND_MESSAGES_MAX ? count : SEND_MESSAGES_MAX;
    assert(properties_bytes == 0 || count == 1);
    while (part > 1 && offsets[part] - offsets[0] > SEND_BYTES_MAX)
        part /= 2;
    int64_t taken = um_flight_reserve(flight, data, offsets, part, properties_bytes, may_exceed, um_clock_ns());
    if (taken <= 0)
        return taken;
    if (taken < count)
        flags &= ~(uint32_t)UM_SEND_FLUSH; /* the rest follows */
    uint64_t end = first + numbers_of_all(flight, offsets, taken);
    int64_t sent;
    if (taken == 1)
        sent = send_one(publication, data + offsets[0], (uint32_t)(offsets[1] - offsets[0]), properties_bytes, flags,
                        timeout_ns, end - 1);
    else
        sent = um_publication_send_many(publication, data, (uint64_t)offsets[taken], NULL, offsets, (uint32_t)taken,
                                        flags, timeout_ns);
    if (sent < taken)
        end = first + numbers_of_all(flight, offsets, sent);
    if (sent > 0)
        um_flight_confirm(flight, first, end - 1, um_clock_ns());
    if (sent < taken)
        um_flight_withdraw(flight, end);
    *last_sqn = end - 1;
    return sent;
}

void um_flight_begin(um_flight *flight, uint64_t first_sqn)
{
    um_lock_acquire(&flight->lock);
    assert(flight->count == 0);
    flight->next_sqn = first_sqn;
    um_lock_release(&flight->lock);
}

void um_flight_split(um_flight *flight, uint32_t fragment_bytes)
{
    um_lock_acquire(&flight->lock);
    flight->fragment_bytes = fragment_bytes;
    um_lock_release(&flight->lock);
}

void um_flight_limit(um_flight *flight, uint64_t messages_max, uint64_t bytes_max)
{
    um_lock_acquire(&flight->lock);
    flight->messages_max = messages_max;
    flight->bytes_max = bytes_max;
    um_lock_release(&flight->lock);
}

void um_flight_confirm_delivery(um_flight *flight, uint64_t end_sqn)
{
    um_lock_acquire(&flight->lock);
    flight->confirmed_end = end_sqn;
    um_lock_release(&flight->lock);
}

void um_flight_end(um_flight *flight)
{
    um_lock_acquire(&flight->lock);
    flight->has_ended = true;
    um_lock_release(&flight->lock);
}

uint64_t um_flight_oldest_sqn(um_flight *flight)
{
    uint64_t sqn;
    um_lock_acquire(&flight->lock);
    if (!next_message(flight, 0, UINT64_MAX, &sqn))
        sqn = flight->next_sqn;
    um_lock_release(&flight->lock);
    return sqn;
}

uint64_t um_flight_next_sqn(um_flight *flight)
{
    um_lock_acquire(&flight->lock);
    uint64_t sqn = flight->next_sqn;
    um_lock_release(&flight->lock);
    return sqn;
}

uint64_t um_flight_count(um_flight *flight)
{
    um_lock_acquire(&flight->lock);
    uint64_t count = flight->count;
    um_lock_release(&flight->lock);
    return count;
}

uint64_t um_flight_bytes(um_flight *flight)
{
    um_lock_acquire(&flight->lock);
    uint64_t bytes = flight->bytes;
    um_lock_release(&flight->lock);
    return bytes;
}

bool um_flight_has_space(um_flight *flight, uint32_t payload_bytes, uint32_t properties_bytes)
{
    outgoing m = outgoing_of(flight, NULL, payload_bytes, properties_bytes);
    um_lock_acquire(&flight->lock);
    bool found = has_space(flight, &m);
    um_lock_release(&flight->lock);
    return found;
}

bool um_flight_next(um_flight *flight, uint64_t from_sqn, uint64_t *sqn)
{
    um_lock_acquire(&flight->lock);
    bool found = next_message(flight, from_sqn, UINT64_MAX, sqn) != NULL;
    um_lock_release(&flight->lock);
    return found;
}

uint32_t um_flight_note(um_flight *flight, uint64_t *from_sqn, uint64_t last_sqn, uint64_t store, bool is_lost,
                        uint64_t required, um_flight_result *results, uint32_t capacity)
{
    uint32_t given_up_at = flight->store_count - flight->quorum + 1;
    uint32_t count = 0;
    uint64_t sqn = *from_sqn;
    flight_message *message;
    um_lock_acquire(&flight->lock);
    while ((message = next_message(flight, sqn, last_sqn + 1, &sqn))) {
        *(is_lost ? &message->lost : &message->acknowledged) |= store;
        bool is_stable = (uint32_t)__builtin_popcountll(message->acknowledged) >= flight->quorum &&
                         (message->acknowledged & required) == required && sqn < flight->confirmed_end;
        if (is_stable || (uint32_t)__builtin_popcountll(message->lost) >= given_up_at) {
            um_flight_result *last = count ? &results[count - 1] : NULL;
            if (last && last->last_sqn + 1 == sqn && last->is_stable == is_stable)
                last->last_sqn = sqn;
            else if (count == capacity)
                break;
            else
                results[count++] = (um_flight_result){sqn, sqn, is_stable};
            forget(flight, sqn);
        }
        sqn++;
    }
    um_lock_release(&flight->lock);
    *from_sqn = message ? sqn : last_sqn + 1;
    return count;
}

bool um_flight_next_due(um_flight *flight, uint64_t from_sqn, int64_t expired_ns, int64_t due_ns, uint64_t stores,
                        um_flight_due *due)
{
    uint64_t sqn = from_sqn;
    const flight_message *message;
    um_lock_acquire(&flight->lock);
    for (; (message = next_message(flight, sqn, UINT64_MAX, &sqn)); sqn++) {
        bool has_expired = message->sent_ns <= expired_ns;
        uint64_t noted = message->acknowledged | message->lost;
        if (message->is_sent && (has_expired || (message->repeated_ns <= due_ns && stores & ~noted))) {
            *due = (um_flight_due){sqn, message->encoded, message->encoded_bytes, noted, has_expired};
            break;
        }
    }
    um_lock_release(&flight->lock);
    return message != NULL;
}

void um_flight_repeated(um_flight *flight, uint64_t sqn, int64_t now_ns)
{
    um_lock_acquire(&flight->lock);
    flight_message *message = message_of(flight, sqn);
    if (message)
        message->repeated_ns = now_ns;
    um_lock_release(&flight->lock);
}

void um_flight_remove(um_flight *flight, uint64_t sqn)
{
    um_lock_acquire(&flight->lock);
    if (message_of(flight, sqn))
        forget(flight, sqn);
    um_lock_release(&flight->lock);
}

/* The messages of a source in flight: sent, and not stable yet. Each is kept until enough Stores have acknowledged it,
 * and is sent again to those that miss it.
 *
 *                   withdraw
 *           +--------------------+
 *           v                    |          enough Stores have it
 *   (no message) --- reserve --> SENDING -------------------------------+
 *                                |                                      v
 *                                | confirm                      (no message): stable
 *                                v          enough Stores have it       ^
 *                              SENT ------------------------------------+
 *                                |
 *                                | its lifetime ended, or too many Stores gave it up
 *                                v
 *                         (no message): given up
 *
 * Numbers are consecutive, so messages lie in pages by number; a page without messages has no memory.
 *
 * Threads: one at a time. Memory: allocated by um_flight_create and um_flight_reserve, freed by um_flight_free and when
 * a message leaves. No clock. Sets of Stores are bits, one for each position in the source's list.
 */
#ifndef UM_STORE_FLIGHT_H
#define UM_STORE_FLIGHT_H

#include "core/foundation/base.h"

/* Stores of one source. */
#define UM_FLIGHT_STORES_MAX 64

/* Messages that left the flight together. */
typedef struct um_flight_result {
    uint64_t first_sqn;
    uint64_t last_sqn;
    bool is_stable; /* false: they were given up */
} um_flight_result;

typedef struct um_flight_due {
    uint64_t sqn;
    const uint8_t *payload; /* valid until the message leaves */
    uint32_t payload_bytes;
    uint64_t stores;  /* that have it, or gave it up */
    bool has_expired; /* it is to be given up */
} um_flight_due;

typedef struct um_flight um_flight;

/* A message is stable once `quorum` of the Stores have it, and given up once so few are left. NULL: no memory. */
um_flight *um_flight_create(uint32_t store_count, uint32_t quorum);
void um_flight_free(um_flight *flight);
/* Returns the number of messages. */
uint64_t um_flight_count(const um_flight *flight);
/* Returns the bytes of their payloads. */
uint64_t um_flight_bytes(const um_flight *flight);
/* Finds the first message from a number on. Returns false if there is none. */
bool um_flight_next(const um_flight *flight, uint64_t from_sqn, uint64_t *sqn);
/* Returns how many of these messages, whose offsets must ascend within the data, come before one that is longer than
 * message_max; -EINVAL: the offsets do not. */
int64_t um_flight_check(const int32_t *offsets, uint32_t count, uint64_t data_bytes, uint32_t message_max);
/* Adds messages, which are being sent; message i is data[offsets[i], offsets[i + 1]). Stops before one with which
 * more than messages_max messages or bytes_max bytes were in flight; the only one in flight may have more bytes. Each
 * counts overhead_bytes more than its payload. Returns how many were added, or -ENOMEM. Precondition: first_sqn is the
 * number behind the last one reserved and not withdrawn. */
int64_t um_flight_reserve(um_flight *flight, uint64_t first_sqn, const uint8_t *data, const int32_t *offsets,
                          uint32_t count, uint32_t overhead_bytes, uint64_t messages_max, uint64_t bytes_max,
                          int64_t now_ns);
/* These messages were sent. */
void um_flight_confirm(um_flight *flight, uint64_t first_sqn, uint64_t last_sqn, int64_t now_ns);
/* These messages were not sent; end_sqn is behind the last one reserved. Returns from which number on they left: behind
 * first_sqn if Stores have one of them all the same. */
uint64_t um_flight_withdraw(um_flight *flight, uint64_t first_sqn, uint64_t end_sqn);
/* Notes that a Store (none: 0) has these messages, or has given them up; those that become stable, or cannot, leave.
 * Stable ones must be at every Store of `required`, too. Writes up to `capacity` ranges in order, and returns their
 * number. *from_sqn is then the number to continue from; behind last_sqn: all was done. */
uint32_t um_flight_note(um_flight *flight, uint64_t *from_sqn, uint64_t last_sqn, uint64_t store, bool is_lost,
                        uint64_t required, um_flight_result *results, uint32_t capacity);
/* Finds the first sent message from a number on whose lifetime has ended, because it was sent at or before
 * expired_ns, or that was sent and repeated at or before due_ns. Returns false if there is none. */
bool um_flight_next_due(const um_flight *flight, uint64_t from_sqn, int64_t expired_ns, int64_t due_ns,
                        um_flight_due *due);
/* This message was repeated. */
void um_flight_repeated(um_flight *flight, uint64_t sqn, int64_t now_ns);
/* This message is given up. */
void um_flight_remove(um_flight *flight, uint64_t sqn);

#endif

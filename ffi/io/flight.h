/* The messages of a source in flight: sent, and not stable yet. Each is kept until enough Stores have acknowledged it,
 * and is sent again to those that miss it.
 *
 *                   withdraw
 *           +--------------------+
 *           v                    |    at enough Stores, and confirmed
 *   (no message) --- reserve --> SENDING -------------------------------+
 *                                |                                      v
 *                                | confirm                      (no message): stable
 *                                v    at enough Stores, and confirmed   ^
 *                              SENT ------------------------------------+
 *                                |
 *                                | its lifetime ended, or too many Stores gave it up
 *                                v
 *                         (no message): given up
 *
 * Numbers are consecutive, so messages lie in pages by number; a page without messages has no memory. A message that is
 * longer than um_flight_split allows has a number for each of its fragments, and each is kept and repeated by itself,
 * because a Store may have some of them only. They are kept as encoded messages (core/wire/lbmc.h), as they are
 * repeated, but for the topic index: that of a later session may differ.
 *
 * Threads: any number; a lock inside is held for microseconds, never while a message is sent. One thread at a time
 * sends. Memory: allocated by um_flight_create and by sending, freed by um_flight_free and when a message leaves. Sets
 * of Stores are bits, one for each position in the source's list.
 */
#ifndef UM_IO_FLIGHT_H
#define UM_IO_FLIGHT_H

#include "io/publication.h"

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
    const uint8_t *message; /* encoded, with topic index 0 and type UM_LBMC_PROACTIVE; valid until it leaves */
    uint32_t message_bytes;
    uint64_t stores;  /* that have it, or gave it up */
    bool has_expired; /* it is to be given up */
} um_flight_due;

typedef struct um_flight um_flight;

/* A message is stable once `quorum` of the Stores have it, and given up once so few are left. Nothing may be sent
 * before um_flight_limit. NULL: no memory. */
um_flight *um_flight_create(uint32_t store_count, uint32_t quorum);
void um_flight_free(um_flight *flight);
/* The first message to send has this number. */
void um_flight_begin(um_flight *flight, uint64_t first_sqn);
/* Length of the fragments of longer messages: um_source_config.fragment_bytes of the publication; 0: no message is
 * split. */
void um_flight_split(um_flight *flight, uint32_t fragment_bytes);
/* From now on at most so many numbers may be in flight, and so many bytes of encoded messages; the only message in
 * flight may have more bytes. */
void um_flight_limit(um_flight *flight, uint64_t messages_max, uint64_t bytes_max);
/* From now on only messages before this number become stable: enough receivers have confirmed those. Without a call,
 * none is needed. */
void um_flight_confirm_delivery(um_flight *flight, uint64_t end_sqn);
/* From now on no message gets a number. */
void um_flight_end(um_flight *flight);
/* Returns the number of the oldest message in flight, or of the next message if there is none. */
uint64_t um_flight_oldest_sqn(um_flight *flight);
/* Returns the number of the next message. */
uint64_t um_flight_next_sqn(um_flight *flight);
/* Returns how many numbers are in flight. */
uint64_t um_flight_count(um_flight *flight);
/* Returns the bytes of their encoded messages. */
uint64_t um_flight_bytes(um_flight *flight);
/* Returns true if a message with this payload, of which the last bytes are properties, is within the limits. */
bool um_flight_has_space(um_flight *flight, uint32_t payload_bytes, uint32_t properties_bytes);
/* Finds the first message from a number on. Returns false if there is none. */
bool um_flight_next(um_flight *flight, uint64_t from_sqn, uint64_t *sqn);

/* Returns how many of these messages, whose offsets must ascend within the data, come before one that is longer than
 * message_max; -EINVAL: the offsets do not. */
int64_t um_flight_check(const int32_t *offsets, uint32_t count, uint64_t data_bytes, uint32_t message_max);
/* Sends messages through the publication, each once it is in flight; message i is data[offsets[i], offsets[i + 1]), and
 * the publication's last number was the one before um_flight_next_sqn. Waits up to timeout_ns for the transport, and
 * not for the limits, which may_exceed suspends. The last properties_bytes bytes of a single message are its
 * properties; 0 for several. Returns how many were sent, 0 if the limits do not allow the first; otherwise an error of
 * um_publication_send, -ENOMEM, or -EPROTO if the publication used other numbers for a single message. A call may send
 * a part, which is not flushed. *last_sqn is the last number of the last one that was sent. */
int64_t um_flight_send(um_flight *flight, um_publication *publication, const char *data, const int32_t *offsets,
                       uint32_t count, uint32_t properties_bytes, bool may_exceed, uint32_t flags, int64_t timeout_ns,
                       uint64_t *last_sqn);
/* The steps of um_flight_send. The first gives the next numbers to messages and returns how many are within the limits,
 * or -ENOMEM; the last takes back the numbers from this one on, also those of messages that a wrong Store has
 * acknowledged before they were sent: the transport uses these numbers next. */
int64_t um_flight_reserve(um_flight *flight, const char *data, const int32_t *offsets, uint32_t count,
                          uint32_t properties_bytes, bool may_exceed, int64_t now_ns);
void um_flight_confirm(um_flight *flight, uint64_t first_sqn, uint64_t last_sqn, int64_t now_ns);
void um_flight_withdraw(um_flight *flight, uint64_t first_sqn);

/* Notes that a Store (none: 0) has these messages, or has given them up; those that become stable, or cannot, leave.
 * Stable ones must be at every Store of `required`, too. Writes up to `capacity` ranges in order, and returns their
 * number. *from_sqn is then the number to continue from; behind last_sqn: all was done. */
uint32_t um_flight_note(um_flight *flight, uint64_t *from_sqn, uint64_t last_sqn, uint64_t store, bool is_lost,
                        uint64_t required, um_flight_result *results, uint32_t capacity);
/* Finds the first sent message from a number on whose lifetime has ended, because it was sent at or before
 * expired_ns, or that was sent and repeated at or before due_ns and is missing at one of `stores`. Returns false if
 * there is none. */
bool um_flight_next_due(um_flight *flight, uint64_t from_sqn, int64_t expired_ns, int64_t due_ns, uint64_t stores,
                        um_flight_due *due);
/* This message was repeated. */
void um_flight_repeated(um_flight *flight, uint64_t sqn, int64_t now_ns);
/* This message is given up. */
void um_flight_remove(um_flight *flight, uint64_t sqn);

#endif

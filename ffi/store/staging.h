/* The staging ring of a Store: messages wait here, as records, for the next commit. A commit takes whole records from
 * the front, in the memory where they are, gives each its commit number and checksum, and adds them to the index.
 *
 * Threads: one appends while another seals and releases. Memory: allocated by um_staging_create, freed by _free.
 * Errors: 0 or a negative errno.
 */
#ifndef UM_STORE_STAGING_H
#define UM_STORE_STAGING_H

#include "core/delivery/message_queue.h"
#include "store/runs.h"

/* Ranges of one commit: a batch with more ends early. */
#define UM_STORE_COMMIT_RANGES_MAX 65536

/* Consecutive sqns of one source in one commit. */
typedef struct um_store_range {
    uint64_t first_sqn;
    uint64_t last_sqn;
    uint32_t source;
    uint32_t units; /* of the records, in 8 bytes */
} um_store_range;

typedef struct um_store_batch {
    const uint8_t *data; /* contiguous records, valid until um_staging_release */
    uint32_t bytes;      /* 0: nothing is staged, or nothing fits */
    uint32_t record_count;
    const um_store_range *ranges; /* valid until the next um_staging_seal */
    uint32_t range_count;
} um_store_batch;

/* Columns of received messages, as those of umstack.Batch. */
typedef struct um_received_rows {
    const int32_t *offsets; /* of the payloads; one more than rows */
    const uint32_t *sqns;
    const uint32_t *first_sqns; /* these three: of fragments */
    const uint32_t *fragment_offsets;
    const uint32_t *message_lengths;
    const um_properties_place *properties; /* of messages with properties, which are in the payloads */
    const uint32_t *sources;               /* the reader's numbers */
    const uint16_t *flags;
    const int64_t *received_ns;
    const uint8_t *payload;
    uint32_t count;
} um_received_rows;

/* Writes the message of a row with this topic index and returns its length; `out` NULL: returns the length only. */
uint32_t um_received_rows_encode(const um_received_rows *rows, uint32_t at, uint32_t topic_index, uint8_t *out);

typedef struct um_staging um_staging;

/* `bytes`: size of the ring, a multiple of 8, at least twice the longest record. NULL: no memory. */
um_staging *um_staging_create(uint64_t bytes);
void um_staging_free(um_staging *staging);
/* Copies one message into the ring. -ENOBUFS: no space now; -EMSGSIZE: longer than UM_STORE_MESSAGE_BYTES_MAX;
 * -EINVAL: no such source number, or a malformed loss marker. */
int um_staging_append(um_staging *staging, uint32_t source, uint64_t sqn, int64_t received_ns, uint8_t flags,
                      const uint8_t *message, uint32_t message_bytes);
/* Appends messages that lie behind one another in `data`, each of message_bytes[i], with consecutive sqns. Returns how
 * many were appended, fewer than count if the ring is full; or a negative errno if the first was refused. */
int64_t um_staging_append_many(um_staging *staging, uint32_t source, uint64_t first_sqn, int64_t received_ns,
                               const uint8_t *data, const uint32_t *message_bytes, uint32_t count);
/* Appends the rows from `first` on as data messages with this topic index: messages and fragments of one source, each
 * with the sqn behind the one before it. `sqn`: the number of the first one, of which its row has the lower half.
 * Returns how many were appended, and the bytes of their messages: none if the first row is an event or the ring is
 * full; or a negative errno if the first was refused. */
int64_t um_staging_append_rows(um_staging *staging, const um_received_rows *rows, uint32_t first, uint32_t source,
                               uint64_t sqn, uint32_t topic_index, uint64_t *appended_bytes);
/* Returns the bytes of the ring in use, padding included. Any thread. */
uint64_t um_staging_used_bytes(const um_staging *staging);
/* Takes up to max_bytes from the front as the next commit, at this position and segment offset. */
void um_staging_seal(um_staging *staging, um_store_runs *runs, uint32_t salt, uint64_t position, uint32_t offset,
                     uint32_t commit, uint32_t max_bytes, um_store_batch *batch);
/* Returns the bytes of the first record that waits, or 0. */
uint32_t um_staging_first_bytes(um_staging *staging);
/* The sealed batch is on disk: frees its space. */
void um_staging_release(um_staging *staging, uint32_t bytes);

#endif

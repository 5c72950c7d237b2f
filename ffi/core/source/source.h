/* The topic layer of a source: fragmentation, topic sequence numbers, implicit / explicit / intelligent batching
 * and TSNIs (UM-5, UM-16..UM-53, UM-62..UM-66, UX-23, UX-25).
 *
 * Batching decides only how far the session's flush limit moves (W3). implicit_batching_minimum_length counts user
 * bytes (C3), and a batch that reaches it is flushed (C2: >=).
 *
 * source.c publishes one message, many messages, or a claim; batcher.h moves the flush limit, frame_writer.h writes
 * frames, explicit_batch.c holds the messages of an explicit batch, tsni.c advertises the newest sqn of idle topics.
 *
 * Threads: um_source_send, _send_many, _claim, _flush from any thread, without a lock; one explicit batch of a topic
 * belongs to one thread. Publishing functions report in `actions` what the caller must do next (um_send_action).
 */
#ifndef UM_CORE_SOURCE_H
#define UM_CORE_SOURCE_H

#include "core/source/source_state.h"

typedef struct um_source_config {
    uint32_t topic_index;
    uint32_t initial_sqn;
    int64_t tsni_interval_ns;
    int64_t tsni_threshold_ns;
    uint32_t explicit_capacity; /* bytes that an explicit batch can hold back */
    bool has_send_time;         /* messages carry the time of sending */
    /* Length of a fragment, so that the numbers of a message do not depend on the path: a datagram that is too long for
     * it is sent in pieces or with IP fragmentation (oversize.h). With its headers a fragment must fit the session's
     * longest datagram. 0: as long as the path carries. */
    uint32_t fragment_bytes;
} um_source_config;

static inline size_t um_source_footprint(const um_source_config *config)
{
    return config->explicit_capacity;
}

/* Adds the source to the session's list: needs the sender lock. memory: footprint bytes, owned by the creator. */
void um_source_init(um_source *source, void *memory, const um_source_config *config, um_source_session *session);

/* Removes the source from the session's list: needs the sender lock. Sent datagrams stay in the window (UM-88). */
void um_source_fini(um_source *source);

/* Largest message one send takes. */
uint32_t um_source_message_max(const um_source *source);

/* Refreshes the snapshot counters. Any thread. */
void um_source_snapshot(um_source *source);

/* Publishes one message. Returns the topic sqn of its last fragment (UM-57), a negative um_publish_result, or
 * -EMSGSIZE. A refused send takes no sqn (UX-23). */
int64_t um_source_send(um_source *source, const uint8_t *data, uint32_t length, uint32_t flags, int64_t now_ns,
                       uint32_t *actions);

/* The same with the options in `extras`: a request, a hot failover number, properties. Properties follow the payload
 * and count as part of `length`. Returns -EBUSY while an explicit batch is open, which would hold the message back. */
int64_t um_source_send_with(um_source *source, const uint8_t *data, uint32_t length, const um_lbmc_extras *extras,
                            uint32_t flags, int64_t now_ns, uint32_t *actions);
static inline int64_t um_source_request(um_source *source, const uint8_t *data, uint32_t length,
                                        const um_request *request, uint32_t flags, int64_t now_ns, uint32_t *actions)
{
    um_lbmc_extras extras = {.request = request};
    return um_source_send_with(source, data, length, &extras, flags, now_ns, actions);
}

/* The numbers of a message that another source published, which a relay keeps. */
typedef struct um_relayed_numbers {
    uint32_t first_sqn; /* of the message's first fragment */
    uint32_t last_sqn;  /* of its last */
    int64_t sent_ns;    /* its send time; 0: none */
} um_relayed_numbers;

/* Gives the next message this sqn; sqns that are left out are a gap, which receivers report as lost. Only while no
 * other thread publishes on the source. */
void um_source_number_next(um_source *source, uint32_t sqn);
/* As um_source_send_with, for a relayed message, which keeps its numbers: it is split into as many fragments as it was.
 * -EINVAL for numbers that the message cannot have had, -EMSGSIZE if a fragment does not fit a datagram of the session.
 * Only while no other thread publishes on the source. */
int64_t um_source_relay(um_source *source, const uint8_t *data, uint32_t length, const um_lbmc_extras *extras,
                        const um_relayed_numbers *numbers, int64_t now_ns, uint32_t *actions);

/* Messages laid end to end. Exactly one of `lengths` and `offsets` is given: message i has lengths[i] bytes, or
 * offsets[i + 1] - offsets[i]. */
typedef struct um_messages {
    const uint8_t *data;
    const uint32_t *lengths;
    const int32_t *offsets;
    uint32_t count;
    um_staged_datagrams *staged; /* the session's, if the caller holds the sender lock; else NULL */
} um_messages;

/* Publishes messages in order until one is refused. Returns the number published (> 0), or the refusal of the first.
 * `done_bytes` (with lengths) is set to the data bytes of the published messages. flags: UM_SEND_FLUSH or 0. */
int64_t um_source_send_many(um_source *source, const um_messages *messages, uint32_t flags, int64_t now_ns,
                            uint32_t *actions, uint64_t *done_bytes);

/* Space for one unfragmented message of `length` bytes, written in place (AE-32). */
typedef struct um_source_claim {
    um_claim claim;
    uint8_t *payload;
    uint32_t length;
} um_source_claim;

/* Returns 0, a um_publish_result, or -EMSGSIZE if the message does not fit one datagram (AE-33). */
int um_source_claim_begin(um_source *source, uint32_t length, um_source_claim *claim);
/* Returns the topic sqn, or UM_CLOSED if the claim was unblocked in the meantime. */
int64_t um_source_claim_commit(um_source *source, um_source_claim *claim, uint32_t flags, int64_t now_ns,
                               uint32_t *actions);
void um_source_claim_abort(um_source *source, um_source_claim *claim, uint32_t *actions);

/* Flushes the whole session's batch (UM-27) and this source's explicit batch (UM-40). Returns 0 or a um_publish_result.
 */
int64_t um_source_flush(um_source *source, int64_t now_ns, uint32_t *actions);

/* Moves the flush limit to the end of the published data. Sender lock. */
void um_source_flush_all(um_source_session *session);
/* Publishes a TSNI of the source now: receivers learn of numbers that were left out without waiting for a message or
 * for the TSNI interval. Returns 0 or a um_publish_result. Sender lock. */
int um_source_announce(um_source *source, int64_t now_ns);
/* Publishes the TSNIs that are due. Returns when the next is due. Sender lock. */
int64_t um_source_tick_tsni(um_source_session *session, int64_t now_ns);
/* Publishes a group report if one is due. Returns when the next may be due. Sender lock. */
int64_t um_source_tick_group_report(um_source_session *session, int64_t now_ns);

#endif

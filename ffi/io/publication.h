/* A source: publishes one topic's messages into the log of a source session, and sends them on the publishing thread
 * when no other thread is sending for that session (W8).
 *
 * Threads: any, many at once, without a lock between them. Closing waits for the calls under way and ends their
 * waiting. Memory: um_publication_open maps it, _free unmaps it; claims are in the session's log. Errors: a
 * um_publish_result (core/foundation/base.h) or a negative errno.
 */
#ifndef UM_IO_PUBLICATION_H
#define UM_IO_PUBLICATION_H

#include "core/source/source.h"
#include "io/publication_session.h"

typedef struct um_publication um_publication;

int um_publication_open(um_publication_session *session, const um_source_config *config, um_publication **publication);
/* First sends published data as far as the limits allow. Waiting senders return UM_CLOSED soon. Call it once. */
void um_publication_close(um_publication *publication);
/* For the child of a fork(), which has none of the context's threads: refuses every later call (UM_CLOSED), without a
 * lock. The publication is then neither closed nor freed. */
void um_publication_disown(um_publication *publication);
/* Refuses new messages (UM_NOT_CONNECTED) until it is called with false. A call that waits returns; claims and batches
 * that were begun can be ended. */
void um_publication_hold(um_publication *publication, bool is_held);
void um_publication_free(um_publication *publication);

/* A send flag: this call continues the wait of the previous one, and is not counted again. */
enum { UM_SEND_CONTINUED = 0x100 };

/* Publishes a message. timeout_ns: how long to wait under back-pressure; 0: do not wait; negative: no timeout. See
 * source.h. */
int64_t um_publication_send(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                            int64_t timeout_ns);
/* The same for a request, a hot failover number, or properties behind the payload: see um_source_send_with.
 * -EINVAL if `extras` has more bytes of properties than `data`. */
int64_t um_publication_send_with(um_publication *publication, const char *data, uint32_t length,
                                 const um_lbmc_extras *extras, uint32_t flags, int64_t timeout_ns);
/* The same for a message that keeps the numbers another source gave it: see um_source_relay. */
int64_t um_publication_relay(um_publication *publication, const char *data, uint32_t length,
                             const um_lbmc_extras *extras, const um_relayed_numbers *numbers, int64_t timeout_ns);
/* Leaves out the numbers before next_sqn and announces that at once, so that receivers report them lost: see
 * um_source_number_next and um_source_announce. */
int64_t um_publication_leave_out(um_publication *publication, uint32_t next_sqn, int64_t timeout_ns);
/* Publishes many messages at once: see um_source_send_many. -EINVAL for lengths or offsets beyond the data, and for
 * descending offsets. */
int64_t um_publication_send_many(um_publication *publication, const char *data, uint64_t data_bytes,
                                 const uint32_t *lengths, const int32_t *offsets, uint32_t count, uint32_t flags,
                                 int64_t timeout_ns);
int um_publication_claim(um_publication *publication, uint32_t length, um_source_claim *claim, uint32_t flags,
                         int64_t timeout_ns);
int64_t um_publication_commit(um_publication *publication, um_source_claim *claim, uint32_t flags);
void um_publication_abort(um_publication *publication, um_source_claim *claim);
int64_t um_publication_flush(um_publication *publication);

/* UX-2: the descriptor that becomes readable when sending is possible again after a non-blocking send was refused. The
 * session owns it. um_publication_sendable returns true if sending is possible now. */
int um_publication_wakeup_fd(const um_publication *publication);
bool um_publication_sendable(const um_publication *publication);

/* Returns true if all published data is sent and all receivers known to flow control have it. */
bool um_publication_drained(um_publication *publication);
uint32_t um_publication_message_max(const um_publication *publication);

/* Returns how many receivers of its topic the session knows (um_source_session_receivers); of a stream, how many of its
 * clients receive the topic. */
uint32_t um_publication_receivers(um_publication *publication);

/* Returns true if flow control knows a receiver (always with policy none). */
bool um_publication_connected(const um_publication *publication);

#endif

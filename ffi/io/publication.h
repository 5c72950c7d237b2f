/* A source: publishes one topic's messages into the log of a source session, and sends them on the publishing thread
 * when no other thread is sending for that session (W8).
 *
 * Threads: any, many at once, without a lock between them. Closing waits for the calls under way and ends their
 * waiting. Memory: um_publication_open maps it, _free unmaps it; a claim lies in the session's log. Errors: a
 * um_publish_result (core/foundation/base.h) or a negative errno.
 */
#ifndef UM_IO_PUBLICATION_H
#define UM_IO_PUBLICATION_H

#include "core/source/source.h"
#include "io/publication_session.h"

typedef struct um_publication um_publication;

int um_publication_open(um_publication_session *session, const um_source_config *config, um_publication **publication);
/* What is published is sent first as far as the limits allow now. Senders that wait return UM_CLOSED soon. Once. */
void um_publication_close(um_publication *publication);
/* For the child of a fork(), which has none of the context's threads: everything is refused from now on (UM_CLOSED),
 * without a lock. The publication is then left alone, neither closed nor freed. */
void um_publication_disown(um_publication *publication);
void um_publication_free(um_publication *publication);

/* For the send flags: this call continues the wait of the one before it, so it is not counted again. */
enum { UM_SEND_CONTINUED = 0x100 };

/* Publishing. timeout_ns: how long to wait under back pressure: 0 not at all, negative without a timeout. See source.h.
 */
int64_t um_publication_send(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                            int64_t timeout_ns);
/* The same for a request, with a hot failover number, with properties behind the payload: see um_source_send_with.
 * -EINVAL for more bytes of properties than there are. */
int64_t um_publication_send_with(um_publication *publication, const char *data, uint32_t length,
                                 const um_lbmc_extras *extras, uint32_t flags, int64_t timeout_ns);
/* Many messages at once: see um_source_send_many. Lengths or offsets that leave the data, or offsets that run
 * backwards, are refused with -EINVAL. */
int64_t um_publication_send_many(um_publication *publication, const char *data, uint64_t data_bytes,
                                 const uint32_t *lengths, const int32_t *offsets, uint32_t count, uint32_t flags,
                                 int64_t timeout_ns);
int um_publication_claim(um_publication *publication, uint32_t length, um_source_claim *claim, uint32_t flags,
                         int64_t timeout_ns);
int64_t um_publication_commit(um_publication *publication, um_source_claim *claim, uint32_t flags);
void um_publication_abort(um_publication *publication, um_source_claim *claim);
int64_t um_publication_flush(um_publication *publication);

/* UX-2: the descriptor that becomes readable when sending is possible again after a send that did not wait was
 * refused. It stays the session's. um_publication_sendable returns whether it is possible now. */
int um_publication_wakeup_fd(const um_publication *publication);
bool um_publication_sendable(const um_publication *publication);

/* True when everything published has been sent and every receiver that flow control knows has it. */
bool um_publication_drained(um_publication *publication);
uint32_t um_publication_message_max(const um_publication *publication);

/* True when flow control knows a receiver (always with policy none). */
bool um_publication_connected(const um_publication *publication);

#endif

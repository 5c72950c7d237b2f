/* Reads a context's counters from outside. Each call copies one group into `out`: the uint64_t fields of its struct in
 * core/foundation/counters.h, in order. Any thread. Returns the number of fields, or 0 if the object does not exist or
 * is closed.
 */
#ifndef UM_IO_STATISTICS_H
#define UM_IO_STATISTICS_H

#include "io/context.h"
#include "io/publication.h"
#include "io/subscription.h"

enum { UM_STATISTICS_FIELDS_MAX = 96 };

uint32_t um_statistics_context(um_context *context, uint64_t *out);
uint32_t um_statistics_source_transport(um_publication_session *session, uint64_t *out);
uint32_t um_statistics_source(um_publication *publication, uint64_t *out);
uint32_t um_statistics_event_queue(um_event_queue *queue, uint64_t *out);
uint32_t um_statistics_receiver(um_subscription *subscription, uint64_t *out);
/* Receiving sessions are numbered from 0; `id` identifies the session read. */
uint32_t um_statistics_receiver_transport(um_context *context, uint32_t index, um_session_id *id, uint64_t *out);
/* The number of datagrams that such a session recovered, by time bucket (core/foundation/time_histogram.h), and the
 * number of messages with a send time that it received, by latency bucket. */
uint32_t um_statistics_recovery_histogram(um_context *context, uint32_t index, uint64_t *out);
uint32_t um_statistics_latency_histogram(um_context *context, uint32_t index, uint64_t *out);
/* The sum over the links: group sockets, session sockets, the control socket. */
uint32_t um_statistics_link(um_context *context, uint64_t *out);

#endif

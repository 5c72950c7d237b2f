/* A receiver as applications open it: messages of its sources are delivered into its event queue, which several
 * receivers may share.
 *
 * Threads: any; closing waits for the calls under way. Memory: um_subscription_open creates it, _free frees it once no
 * thread can use it. Errors: negative errno, or UM_CLOSED.
 */
#ifndef UM_IO_SUBSCRIPTION_H
#define UM_IO_SUBSCRIPTION_H

#include "core/receiver/receiver_session.h"
#include "io/event_queue.h"

typedef struct um_subscription um_subscription;

/* UM_CLOSED if the queue is closed. */
int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **subscription);
/* Rows that it has delivered stay in the queue and can be read. */
void um_subscription_close(um_subscription *subscription);
void um_subscription_free(um_subscription *subscription);

/* A topic of a session to be mapped to a subscription, and the outcome. */
typedef struct um_mapping {
    um_subscription *subscription;
    const um_receiver_session_config *session;
    uint32_t topic_index;
    uint32_t source;
    /* The first message wanted: those before it were consumed, for example in an earlier session of the source. */
    bool has_start;
    uint32_t start_sqn;
    bool is_retaining; /* the source retains messages and offers them at request_port */
    bool joins_late;
    bool is_relayed; /* the receivers behind a relay fetch what a retaining source sent before and between sessions */
    um_address request_port;
    uint32_t caching_proximity;

    int result;      /* -EEXIST if it is mapped already, -EAGAIN while that session ends, UM_CLOSED */
    bool is_fetched; /* the controller waits for um_subscription_fetch */
    bool is_resumed; /* fetched from resume_sqn: the source was known before, and its session ended */
    uint32_t resume_sqn;
    uint32_t epoch;  /* of the fetch */
    bool is_entered; /* the subscription was open; internal */
} um_mapping;

/* Joins the group and creates the receiving session if needed. All subscriptions are of one context, and all are mapped
 * before the session receives its next datagram or reports itself to the source: a source that knows of the context as
 * a receiver reaches every one of them. A rediscovered source that retains messages is fetched from where its last
 * session stopped, both for late join and for recovery only; no message is fetched twice. */
void um_subscriptions_map(um_mapping *mappings, uint32_t count);

/* The number of a source whose controller has ended. */
typedef struct um_ended_source {
    uint32_t source;
    uint64_t rows; /* rows of the queue up to its last one; 0: it has none */
    bool has_position;
    uint32_t next_sqn; /* with has_position: everything before it was delivered or reported lost */
} um_ended_source;

/* Takes up to `max` numbers of sources that have ended, those of a closed subscription included. Returns how many. */
uint32_t um_subscription_take_ended(um_subscription *subscription, um_ended_source *out, uint32_t max);

/* Returns how many sources are mapped to it whose messages from now on are received, or reported as lost. */
uint32_t um_subscription_connected(um_subscription *subscription);

/* Stops or resumes NAKs of its sessions for it (UX-21; core/receiver/nak_cutoff.h). No effect if it is closed. */
void um_subscription_set_nak_cutoff(um_subscription *subscription, bool is_cut_off);

#endif

/* The link of an LBT-TCP source session (W6): writes the LBMC messages of each datagram that the session builds,
 * without its transport header, to every client that is connected (UM-46, UM-108, UM-110).
 *
 * A client takes what its connection takes; the rest waits in its backlog, of transport_session_maximum_buffer bytes.
 *
 *     empty backlog: written at once; what the connection does not take is put into the backlog, where all of it fits
 *     backlog:       bytes join it, and leave it when the connection is reported writable
 *
 *   receiver-paced   a datagram is taken when every backlog has space for it, so the slowest client holds the session
 *   source-paced     every datagram is taken; messages that do not fit a client's backlog are lost to that client,
 * whole
 *
 * A client of a receiver-paced session that has a penalty for a stall (core/source/stall_penalties.h) does not hold the
 * session until that is over and its backlog is empty: meanwhile it loses as if the session were source-paced.
 *
 * With keys (is_keyed) what one client is written at a time, a batch of datagrams as a rule, is one record with a tag
 * (core/wire/stream_record.h), made before any of it is written or kept.
 *
 * Threads: the holder of the session's sender lock. Memory: clients' backlogs, from when they are accepted as clients
 * until they are closed. System calls: sendmsg, close. Errors: a connection that fails is closed and counted; the
 * session never hears of it.
 */
#ifndef UM_IO_TCP_FAN_OUT_H
#define UM_IO_TCP_FAN_OUT_H

#include <sys/uio.h>

#include "authentication/stream_tags.h"
#include "core/foundation/byte_ring.h"
#include "core/source/source_session.h"
#include "core/source/topic_filter.h"
#include "core/wire/message_stream.h"
#include "core/wire/tcp_control.h"

enum {
    UM_TCP_CLIENTS_MAX = 1024,       /* of one session */
    UM_TCP_CONTROL_MAX = 512,        /* bytes of the longest control message of a client */
    UM_TCP_BACKLOG_MIN = 128 * 1024, /* holds a batch of any size that the session offers */
};

enum um_tcp_client_state {
    UM_TCP_CLIENT_NONE = 0,
    UM_TCP_CLIENT_GREETING, /* has connected, and not said yet which session it means: gets nothing */
    UM_TCP_CLIENT_JOINED,
};

typedef struct um_tcp_client {
    enum um_tcp_client_state state;
    int fd;
    um_address address;
    int64_t since_ns; /* greeting: when it connected; joined: when its backlog last became shorter, or began */
    um_byte_ring backlog;
    um_topic_filter filter;
    void *filter_memory;    /* NULL: it gets every topic */
    uint32_t request_count; /* its requests that are in force, modulo 2^32 */
    bool owes_answer;       /* to the last of them */
    um_tcp_control request; /* the last */
    uint64_t lost_messages; /* source-paced */
    int64_t told_lost_ns;   /* when the application was told last; INT64_MIN: never */
    bool has_failed;        /* its connection is dead: closed by the owner's next look */
    um_stream_tags *tags;   /* with keys, once it has greeted; closed with the client */
    int64_t waited_from_ns; /* receiver-paced: it does not hold the session before; 0: it may */
    um_message_stream control;
    uint8_t control_memory[UM_TCP_CONTROL_MAX];
} um_tcp_client;

typedef struct um_tcp_fan_out {
    um_link base;
    um_source_session *session; /* whose events and counters it writes */
    um_tcp_client *clients;     /* UM_TCP_CLIENTS_MAX */
    uint32_t client_limit;      /* clients beyond it were never used */
    uint32_t joined_count;
    bool is_source_paced;
    bool is_keyed;
    uint32_t backlog_bytes;
    um_link_counters counters;
    /* Of the batch being sent. */
    struct iovec *vectors;
    uint32_t vector_count;
    uint32_t datagram_vectors[UM_SEND_BATCH_MAX]; /* vectors up to and with each datagram */
    uint32_t datagram_bytes[UM_SEND_BATCH_MAX];   /* bytes up to and with it */
    uint8_t *scratch;                             /* what passes a client's filter */
    uint8_t *flat;                                /* with keys: the messages in one piece */
    uint8_t *kept;                                /* with keys: those that a slow client's backlog has space for */
} um_tcp_fan_out;

/* 0 or -ENOMEM. session: initialized by the owner before anything is sent. */
int um_tcp_fan_out_open(um_tcp_fan_out *fan_out, um_source_session *session, bool is_source_paced, bool is_keyed,
                        uint32_t backlog_bytes);
/* Closes every connection. */
void um_tcp_fan_out_close(um_tcp_fan_out *fan_out);

/* The client, which has tags if the session has keys, gets what is sent from now on. -ENOMEM. */
int um_tcp_fan_out_join(um_tcp_fan_out *fan_out, um_tcp_client *client, bool has_filter, int64_t now_ns);
/* Closes its connection: the place is free. */
void um_tcp_fan_out_leave(um_tcp_fan_out *fan_out, um_tcp_client *client);

/* A connection was reported writable, or may be: sends from the backlog. */
void um_tcp_fan_out_flush(um_tcp_fan_out *fan_out, um_tcp_client *client, int64_t now_ns);
/* Bytes of control messages to one client, behind its backlog. False when there is no space, or the connection is dead.
 */
bool um_tcp_fan_out_tell(um_tcp_fan_out *fan_out, um_tcp_client *client, const uint8_t *data, uint32_t length);

/* Bytes in all backlogs. */
uint64_t um_tcp_fan_out_backlog_bytes(const um_tcp_fan_out *fan_out);
/* Whether the hosts of all clients have acknowledged everything that was taken. */
bool um_tcp_fan_out_is_drained(const um_tcp_fan_out *fan_out);

#endif

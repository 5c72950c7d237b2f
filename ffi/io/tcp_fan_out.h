/* The link of an LBT-TCP source session (W6): writes the LBMC messages of each datagram that the session builds,
 * without its transport header, to every client that is connected (UM-46, UM-108, UM-110).
 *
 * A client's connection takes as much as it has space for; the rest waits in the client's backlog, whose size is
 * transport_session_maximum_buffer.
 *
 *     empty backlog: data is written at once; data that the connection does not take is appended to the backlog
 *     backlog:       new data is appended, and data is written when the connection is reported writable
 *
 *   receiver-paced   a datagram is accepted only if every backlog has space, so the slowest client holds the session
 *   source-paced     every datagram is accepted; whole messages that do not fit a client's backlog are lost to that
 *                    client
 *
 * A client of a receiver-paced session with a penalty for a stall (core/source/stall_penalties.h) does not hold the
 * session until the penalty is over and its backlog is empty. Meanwhile it loses messages as in a source-paced session.
 *
 * With keys (is_keyed), the data written to a client at a time, usually a batch of datagrams, is one record with a tag
 * (core/wire/stream_record.h), made before any of it is written or stored.
 *
 * Threads: the holder of the session's sender lock. Memory: clients' backlogs, from when they are accepted as clients
 * until they are closed. System calls: sendmsg, close. Errors: a failed connection is closed and counted; the session
 * is not affected.
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
    UM_TCP_CLIENTS_MAX = 1024,       /* per session */
    UM_TCP_CONTROL_MAX = 512,        /* maximum bytes of a client's control message */
    UM_TCP_BACKLOG_MIN = 128 * 1024, /* holds any batch that the session sends */
};

enum um_tcp_client_state {
    UM_TCP_CLIENT_NONE = 0,
    UM_TCP_CLIENT_GREETING, /* connected, but has not requested a session yet: gets no data */
    UM_TCP_CLIENT_JOINED,
};

typedef struct um_tcp_client {
    enum um_tcp_client_state state;
    int fd;
    um_address address;
    int64_t since_ns; /* greeting: when it connected; joined: when its backlog last shrank, or started */
    um_byte_ring backlog;
    um_topic_filter filter;
    void *filter_memory;
    bool is_filtered;     /* it gets only the topics that it requests, which `filter` has */
    bool has_every_topic; /* it requested more topics than `filter` holds */
    int64_t joined_ns;
    uint32_t request_count;   /* its requests in force, modulo 2^32 */
    bool needs_answer;        /* the last request is not answered yet */
    um_tcp_control request;   /* the last one */
    uint64_t lost_messages;   /* source-paced */
    int64_t reported_lost_ns; /* when lost messages were last reported to the application; INT64_MIN: never */
    bool has_failed;          /* its connection is dead: the owner closes it in its next pass */
    um_stream_tags *tags;     /* with keys, once it has greeted; closed with the client */
    int64_t waited_from_ns;   /* receiver-paced: it does not hold the session before this time; 0: it may */
    um_message_stream control;
    uint8_t control_memory[UM_TCP_CONTROL_MAX];
} um_tcp_client;

typedef struct um_tcp_fan_out {
    um_link base;
    um_source_session *session; /* its events and counters are updated here */
    um_tcp_client *clients;     /* UM_TCP_CLIENTS_MAX */
    uint32_t client_limit;      /* clients from this index were never used */
    uint32_t joined_count;
    bool is_source_paced;
    bool is_keyed;
    uint32_t backlog_bytes;
    um_link_counters counters;
    /* The batch being sent. */
    struct iovec *vectors;
    uint32_t vector_count;
    uint32_t datagram_vectors[UM_SEND_BATCH_MAX]; /* vectors up to and with each datagram */
    uint32_t datagram_bytes[UM_SEND_BATCH_MAX];   /* bytes up to and with it */
    uint8_t *scratch;                             /* messages that pass a client's filter */
    uint8_t *flat;                                /* with keys: the messages in one piece */
    uint8_t *kept;                                /* with keys: the messages that fit a slow client's backlog */
} um_tcp_fan_out;

/* The owner initializes the session before it sends. 0 or -ENOMEM. */
int um_tcp_fan_out_open(um_tcp_fan_out *fan_out, um_source_session *session, bool is_source_paced, bool is_keyed,
                        uint32_t backlog_bytes);
/* Closes every connection. */
void um_tcp_fan_out_close(um_tcp_fan_out *fan_out);

/* From now on the client gets all data sent; if it is filtered, of the topics that it requests. It has tags if the
 * session has keys. 0 or -ENOMEM. */
int um_tcp_fan_out_join(um_tcp_fan_out *fan_out, um_tcp_client *client, bool is_filtered, int64_t now_ns);
/* Closes the client's connection and frees its place. */
void um_tcp_fan_out_leave(um_tcp_fan_out *fan_out, um_tcp_client *client);

/* Sends from the backlog, once the connection is reported writable, or may be. */
void um_tcp_fan_out_flush(um_tcp_fan_out *fan_out, um_tcp_client *client, int64_t now_ns);
/* Sends control messages to one client, behind its backlog. Returns false if there is no space, or the connection is
 * dead. */
bool um_tcp_fan_out_send_control(um_tcp_fan_out *fan_out, um_tcp_client *client, const uint8_t *data, uint32_t length);

/* Returns how many clients receive the topic. One that requests no topics, as Ultra Messaging's may, receives each once
 * UM_TOPICS_REPORTED_NS have passed. */
uint32_t um_tcp_fan_out_receivers(const um_tcp_fan_out *fan_out, uint32_t topic_index, int64_t now_ns);

/* Bytes in all backlogs. */
uint64_t um_tcp_fan_out_backlog_bytes(const um_tcp_fan_out *fan_out);
/* Returns true if the hosts of all clients have acknowledged all accepted data. */
bool um_tcp_fan_out_is_drained(const um_tcp_fan_out *fan_out);

#endif

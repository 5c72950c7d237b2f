/* The receiving end of an LBT-TCP session: connects to the source, requests a session, cuts the received bytes into
 * runs of whole messages, and passes each to the receiver session as the next datagram in order, so that the layers
 * above work as with datagrams (UM-46, UM-108, UM-110). Internal to ffi/io; below the receiving half.
 *
 *                  time to connect              connected
 *     waiting ------------------> connecting ------------> connected --+ messages
 *       ^  ^                          |                      |    ^    |
 *       |  +--- refused, too slow ----+                      |    +----+
 *       +------ closed, failed, garbage ---------------------+
 *
 *     ended: the source ended the session, or could not be reached for the reconnect timeout
 *
 * The time between attempts doubles, from the reconnect interval to eight times that. Data sent while there was no
 * connection is a gap of the topics: the delivery controllers declare it lost at once, or recover it off the transport
 * (C16). A full queue stops reading from the connection, even within a message, so nothing is lost: the TCP window
 * closes, and the source waits or drops data for this client.
 *
 * With keys the connection starts with greetings (core/wire/stream_record.h) and continues in records. The first record
 * requests the session and proves that the receiver has the key. A source that has not proved the same within PROOF_NS,
 * or that has not the right key, is disconnected, counted by the reason (dgrams_dropped_tag_*), and tried again as
 * after any failure.
 *
 * With source-side filtering the connection sends the source the topics that have controllers (UX-27). After a topic is
 * subscribed again, old messages may still arrive, with filtered gaps behind them: its controllers take no message
 * before the source's answer, which arrives in order. A source that sends no answers is taken to send every message.
 *
 * Threads: the context lock. Memory: mapped by open, unmapped by close. System calls: those of a socket.
 */
#ifndef UM_IO_TCP_CONNECTION_H
#define UM_IO_TCP_CONNECTION_H

#include "authentication/stream_tags.h"
#include "core/foundation/byte_ring.h"
#include "core/foundation/counters.h"
#include "core/receiver/node.h"
#include "core/wire/message_stream.h"
#include "io/link_socket.h"
#include "io/reactor.h"

enum um_tcp_state { UM_TCP_WAITING, UM_TCP_CONNECTING, UM_TCP_CONNECTED, UM_TCP_ENDED };

typedef struct um_tcp_connection {
    um_reactor *reactor;
    um_node *node;
    um_receiver_session *session;
    um_link_counters *counters;
    uint32_t *changes; /* incremented when fd is replaced or becomes readable */
    uint32_t index;    /* in the epoll set, as a group */
    const um_socket_config *socket_config;
    enum um_tcp_state state;
    int fd;           /* -1: none */
    bool is_reported; /* to the loop, when it is readable */
    bool has_rest;    /* whole messages wait for a queue that is full */
    bool has_greeted; /* the session was requested from the source */
    bool has_proved;  /* the source of this connection has sent data of the session */
    bool is_joined;   /* the source has accepted this client, and takes requests for topics */
    bool is_filtered; /* the source sends only the requested topics */
    bool is_answered; /* the source answers requests for topics */
    bool needs_announcement;
    uint32_t request_count; /* on this connection, modulo 2^32 */
    uint32_t client_index;  /* the source's index of this client */
    int64_t due_ns;         /* when to connect, or to give the attempt up */
    int64_t interval_ns;    /* before the attempt after the next failure */
    int64_t lost_since_ns;  /* when the last good connection ended; before the first one: when it was opened */
    int64_t connected_ns;
    um_message_stream stream;
    um_byte_ring out;       /* control messages not yet written to the connection */
    const um_key_set *keys; /* of the context; NULL: the session has none */
    um_stream_tags *tags;   /* with keys, once the source has greeted */
    uint8_t greeting[UM_RECORD_HEADER_BYTES];
    void *memory;
} um_tcp_connection;

/* Connects as soon as the tick is called. `socket_config`, `changes`, `counters` and `keys`, which change in place, are
 * the owner's and outlive it. 0 or -ENOMEM. */
int um_tcp_connection_open(um_tcp_connection *connection, um_reactor *reactor, um_node *node,
                           um_receiver_session *session, uint32_t index, const um_socket_config *socket_config,
                           uint32_t *changes, um_link_counters *counters, const um_key_set *keys);
/* The keys have changed: the connection continues with the new ones. 0 or -ENOMEM. */
int um_tcp_connection_rekey(um_tcp_connection *connection);
void um_tcp_connection_close(um_tcp_connection *connection);

/* Starts or stops reporting to the loop that it is readable; stopped while another thread waits for it or a queue is
 * full. */
void um_tcp_connection_report(um_tcp_connection *connection, bool is_reported);

/* Handles the end of the attempt to connect. */
void um_tcp_connection_on_connected(um_tcp_connection *connection, int64_t now_ns);
/* Receives and delivers until no data is left, a queue is full, or its share is used up (*more). Returns runs
 * delivered. */
int um_tcp_connection_receive(um_tcp_connection *connection, int64_t now_ns, bool *more);
/* Connects if that is due. Returns when to call again. */
int64_t um_tcp_connection_tick(um_tcp_connection *connection, int64_t now_ns);

/* True if the source sends this connection its messages. */
bool um_tcp_connection_is_joined(const um_tcp_connection *connection, int64_t now_ns);

/* Requests a topic for which the session has a new controller, or cancels one that has no controller any more. */
void um_tcp_connection_request_topic(um_tcp_connection *connection, um_delivery *delivery);
/* Reports the longest message of the topic, which has changed. */
void um_tcp_connection_report_limit(um_tcp_connection *connection, um_delivery *first);
void um_tcp_connection_cancel_topic(um_tcp_connection *connection, uint32_t topic_index);

#endif

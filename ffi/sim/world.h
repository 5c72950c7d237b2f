/* The state of a simulated world, shared by the files of this folder, and what every file needs of it. */
#ifndef UM_SIM_WORLD_H
#define UM_SIM_WORLD_H

#include <stdio.h>

#include "core/foundation/random.h"
#include "sim/event_queue.h"
#include "sim/sim.h"

enum {
    UM_SIM_HOSTS_MAX = 1040, /* a source and a thousand receivers */
    UM_SIM_SESSIONS_MAX = 16,
    UM_SIM_SOURCES_MAX = 64,
    UM_SIM_RECEIVERS_MAX = 1040,
    UM_SIM_JOINS_MAX = 1040,
    UM_SIM_RULES_MAX = 32,
    UM_SIM_EVENTS_MAX = 1 << 16,
    UM_SIM_DATAGRAMS_MAX = 1 << 13, /* in flight, or in an inbox */
    UM_SIM_DATAGRAM_BYTES = 9216,   /* the largest that a world carries */
    UM_SIM_PAST_MAX = 64,           /* datagrams remembered for replays */
    UM_SIM_PIPE_BYTES = 1 << 18,    /* of one direction of a request connection */
    UM_SIM_PIPE_PIECES_MAX = 64,
    UM_SIM_STILL_EVENTS_MAX = 100000, /* events at one instant before the world counts as stuck */
    UM_SIM_RECEIVE_PORT = 20000,      /* first port at which receivers receive LBT-RU sessions */
};

/* A datagram in flight, stored once for all hosts that it is sent to. */
typedef struct um_sim_datagram {
    uint32_t references;
    uint32_t next_free; /* index + 1; 0: none */
    uint32_t length;
    int32_t from_host;
    um_address from;
    um_address to;
    um_sim_trace_entry entry; /* its entry in the trace */
} um_sim_datagram;

typedef struct um_sim_link {
    um_link base;
    struct um_sim_host *host;
    um_address from; /* source address of the datagrams sent */
} um_sim_link;

typedef struct um_sim_host {
    struct um_sim_world *world;
    um_sim_host_config config;
    um_sim_faults faults;
    um_sim_link link;
    um_node *node;
    struct um_sim_receiver *receivers; /* in order of creation */
    um_rate_limits limits;
    uint32_t index;
    um_address address;
    uint16_t receive_port_count; /* LBT-RU sessions received since the start: each has its own port */
    bool is_dead;
    bool is_in_burst;
    int64_t link_busy_until_ns;
    int64_t last_arrival_ns[UM_SIM_HOSTS_MAX + 1]; /* by sender: datagrams keep their order unless reordered */
    uint32_t *inbox;                               /* ring of datagrams */
    uint32_t inbox_first;
    uint32_t inbox_count;
    int64_t requested_ns; /* local time by which a publisher requested a pass of the loop */
    int64_t due_ns;       /* world time of the scheduled timer event */
    um_sim_peer_faults peer_faults;
    um_sim_handler *on_arrival; /* index: host, detail: datagram */
    um_sim_handler *on_request; /* index: join */
} um_sim_host;

typedef struct um_sim_session {
    um_source_session core;
    um_sim_host *host;
    um_sim_link link;
    uint32_t source_count;
    int64_t due_ns; /* local time of the next tick */
    bool is_deleted;
    bool has_aborted_claim; /* the log has padding in place of an aborted claim */
    bool has_held;          /* invariants.c: messages from held_from on wait for a flush since held_since_ns */
    int64_t held_from;
    int64_t held_since_ns;
} um_sim_session;

typedef struct um_sim_source {
    um_source core;
    um_sim_session *session;
    um_source_claim claim;
    um_retention *retention; /* NULL: nothing is retained */
    bool is_deleted;
} um_sim_source;

typedef struct um_sim_receiver {
    um_receiver core;
    um_message_queue queue;
    um_sim_host *host;
    um_sim_receiver_config config;
    um_rows kept;
    uint32_t index;
    struct um_sim_receiver *next_of_host;
    um_sim_recovery_config recovery;
    bool is_read_scheduled;
} um_sim_receiver;

/* One direction of a connection: bytes in flight, and bytes that have arrived and were not read yet. */
typedef struct um_sim_pipe {
    uint8_t *bytes; /* UM_SIM_PIPE_BYTES */
    uint32_t used;
    uint32_t arrived; /* of `used` */
    uint32_t piece_first, piece_count;
    struct {
        int64_t arrives_ns;
        uint32_t bytes;
    } pieces[UM_SIM_PIPE_PIECES_MAX]; /* ring */
    int64_t last_ns;
} um_sim_pipe;

/* A join's connection to its source's request port. */
typedef struct um_sim_connection {
    um_fetch fetch;
    um_fetch_connection core;
    bool is_active; /* the fetch is not over */
    bool is_open;
    bool is_ending; /* the peer has closed it: the receiver still reads the bytes that have arrived */
    bool has_range; /* a range was requested */
    um_sim_pipe to_source, to_receiver;
    uint32_t skip; /* requests of the first message that were answered before */
    int64_t due_ns;
    int64_t stalls_from_ns, stalls_until_ns;
    uint32_t bytes_left; /* until the peer disconnects */
    uint32_t count;
} um_sim_connection;

typedef struct um_sim_join_state {
    um_delivery core;
    um_receiver_session *session;   /* NULL: the join has ended */
    um_receiver_session *transport; /* the same session, also after the end: for its counters */
    um_sim_receiver *receiver;
    um_sim_source *source;
    um_sim_connection *connection; /* NULL: it never fetched */
    uint32_t index;
} um_sim_join_state;

/* A growing buffer of a trace. */
typedef struct um_sim_buffer {
    uint8_t *bytes;
    size_t used;
    size_t capacity;
} um_sim_buffer;

/* The checks that observe a world from inside (run.c). Any function may be NULL. */
typedef struct um_sim_watcher {
    void *owner;
    void (*on_step)(void *owner); /* after every event */
    void (*on_row)(void *owner, const um_sim_receiver *receiver, const um_block *block, uint32_t row);
    void (*on_sent)(void *owner, const um_sim_host *host, const um_sim_datagram *datagram, const uint8_t *data);
    void (*on_answers)(void *owner, uint8_t *messages, uint32_t length); /* sent by a peer to a receiver */
    void (*on_received)(void *owner, const um_sim_host *host, const um_sim_datagram *datagram, uint8_t *data);
    void (*on_control)(void *owner, const um_sim_host *host,
                       const um_sim_datagram *datagram); /* a source session receives it */
} um_sim_watcher;

struct um_sim_world {
    int64_t now_ns;
    um_random random;
    um_sim_event_queue events;
    um_sim_host *hosts[UM_SIM_HOSTS_MAX];
    um_sim_session *sessions[UM_SIM_SESSIONS_MAX];
    um_sim_source *sources[UM_SIM_SOURCES_MAX];
    um_sim_receiver *receivers[UM_SIM_RECEIVERS_MAX];
    um_sim_join_state *joins[UM_SIM_JOINS_MAX];
    um_sim_rule rules[UM_SIM_RULES_MAX];
    uint32_t host_count, session_count, source_count, receiver_count, join_count, rule_count;

    um_sim_datagram *datagrams;
    uint8_t *datagram_bytes;
    uint32_t datagrams_used;
    uint32_t datagram_free; /* index + 1; 0: none */
    uint32_t datagrams_begun;
    uint32_t past[UM_SIM_PAST_MAX]; /* index + 1; 0: none */
    uint32_t past_next;

    enum um_transport transport; /* of all sessions */
    bool is_ipv6;                /* the hosts have IPv6 addresses */
    um_sim_watcher watcher;
    bool is_tracing;
    um_sim_buffer trace, trace_bytes, rows, payloads;
    uint64_t hash;
    uint64_t event_count;
    uint64_t sent_count;
    uint64_t dropped_count;
    uint64_t fetch_count;
    bool has_true_peers; /* peers have no faults any more */
    um_random peer_random;
    char complaint[256];
    um_arena arena; /* all memory of the world, including this struct */
};

/* Address space of a world; a page uses memory once it is touched. */
#define UM_SIM_WORLD_BYTES ((size_t)1 << 30)

/* An address in the network of the hosts. */
static inline um_ip um_sim_ip(const um_sim_world *world, uint32_t number)
{
    return world->is_ipv6 ? (um_ip){0xfd00ull << 48, number} : um_ip_of_v4(number);
}

/* True if a source sends to this address: a group, or the port of a receiver's session. */
static inline bool um_sim_goes_to_receivers(um_address to)
{
    return um_ip_is_multicast(to.ip) || (to.port >= UM_SIM_RECEIVE_PORT && to.port < 2 * UM_SIM_RECEIVE_PORT);
}

/* The id of a host in flow control. */
static inline uint64_t um_sim_receiver_id(const um_sim_host *host)
{
    return 1 + host->index;
}

/* The local clock of a host: world time plus offset and drift. */
int64_t um_sim_local_ns(const um_sim_host *host);

/* Returns the first instant of the world at which the clock of a host shows at least `local_ns`. */
int64_t um_sim_world_ns(const um_sim_host *host, int64_t local_ns);

/* Returns zeroed memory that lives as long as the world, or NULL if its address space is used up. */
void *um_sim_take(um_sim_world *world, size_t bytes);

/* Ends the run with a message: it violated an invariant or ran out of a resource. The first message is kept. */
__attribute__((format(printf, 2, 3))) void um_sim_complain(um_sim_world *world, const char *format, ...);

/* Adds a value to the hash of the run. */
static inline void um_sim_digest(um_sim_world *world, uint64_t value)
{
    world->hash = (world->hash ^ value) * 0x9e3779b97f4a7c15u;
    world->hash ^= world->hash >> 29;
}

#endif

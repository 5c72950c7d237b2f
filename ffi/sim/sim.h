/* The simulator: hosts with the whole C core on them, connected by a simulated network. One seed drives delay, loss,
 * duplication, reordering, garbage, clocks and readers; virtual time advances only in um_sim_run_until. Scripts
 * (umstack/sim) build a world with these calls; um_sim_run (sim/run.h) builds one from a seed.
 *
 * Threads: a world belongs to one thread at a time. Memory: a world owns all of its memory, allocated when an object is
 * added and freed by um_sim_destroy. Handles are small numbers, assigned in order from 0.
 *
 * Errors: a negative errno; um_sim_complaint describes the invariant that a simulated host violated.
 */
#ifndef UM_SIM_SIM_H
#define UM_SIM_SIM_H

#include "core/receiver/fetch.h"
#include "core/receiver/node.h"
#include "core/source/retention.h"
#include "core/source/source.h"
#include "core/source/source_session.h"

typedef struct um_sim_world um_sim_world;

/* The configuration structures of the core, under names of the simulator. */
typedef um_address um_sim_address;
typedef um_source_session_config um_sim_session_config;
typedef um_source_config um_sim_source_config;
typedef um_receiver_session_config um_sim_transport_config; /* id and receiver_id are filled in by um_sim_join */

typedef um_retention_config um_sim_retention_config;

typedef struct um_sim_host_config {
    uint64_t data_rate_bps; /* 0: no limit */
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    uint32_t path_bytes;         /* largest UDP payload that the link sends */
    uint32_t datagram_max_bytes; /* size of a cell of the reorder buffer */
    uint32_t hold_datagrams;
    uint32_t hold_messages;   /* power of two */
    uint32_t inbox_datagrams; /* capacity of the socket's receive buffer */
    uint32_t receive_batch;   /* datagrams delivered between two runs of the timers (UX-24) */
    int64_t clock_offset_ns;
    int32_t clock_drift_ppm;
    uint64_t link_bps;        /* 0: no limit */
    int64_t link_queue_ns;    /* sends are refused if the link is busy for longer */
    uint32_t link_refuse_ppm; /* sends refused at random */
} um_sim_host_config;

typedef struct um_sim_receiver_config {
    int32_t ordered_delivery;
    uint32_t map_entries_max;
    uint32_t burst_loss_max;
    int64_t loss_check_interval_ns;
    uint32_t block_count;
    uint32_t block_rows;
    uint32_t block_bytes;
    uint32_t message_max_bytes;
    int64_t read_interval_ns; /* 0: rows are read at once */
    uint32_t read_rows;       /* maximum per read */
    bool keep_rows;           /* rows are released only at the next read */
    int64_t hold_ns;          /* how long the full queue may hold sources back; 0: not at all */
} um_sim_receiver_config;

/* Faults of the path to one host. Probabilities in parts per million. */
typedef struct um_sim_faults {
    uint32_t loss_ppm;
    uint32_t burst_begin_ppm; /* of starting a burst in which everything is lost */
    uint32_t burst_end_ppm;
    uint32_t duplicate_ppm;
    uint32_t reorder_ppm; /* of a delay of up to reorder_ns */
    uint32_t corrupt_ppm; /* dropped because of its UDP checksum */
    uint32_t replay_ppm;  /* an earlier datagram is sent again */
    uint32_t garbage_ppm; /* a mangled copy from an unknown address is added */
    int64_t delay_ns;
    int64_t jitter_ns;
    int64_t reorder_ns;
    uint32_t path_bytes; /* longer datagrams to this host are lost; 0: none */
    bool partitioned;    /* nothing is sent or received */
} um_sim_faults;

/* How a receiver fetches messages that sources retain. */
typedef struct um_sim_recovery_config {
    bool use_late_join;
    bool use_otr;
    uint32_t caching_proximity;
    uint32_t otr_caching_threshold;
    int64_t otr_initial_delay_ns;
    int64_t look_ns;         /* interval of servicing an idle fetch */
    um_fetch_plan late_join; /* is_otr is ignored */
    um_fetch_plan otr;
} um_sim_recovery_config;

/* Faults of connections to the request port of a host; ppm: of a connection, or of an answer. */
typedef struct um_sim_peer_faults {
    int64_t delay_ns;
    uint64_t bps;            /* 0: no limit */
    uint32_t answer_bytes;   /* maximum per piece; 0: as many as fit */
    uint32_t stall_ppm;      /* of answering nothing for up to stall_ns */
    uint32_t disconnect_ppm; /* of closing after up to disconnect_bytes of answers */
    uint32_t lie_ppm;        /* of a false range */
    uint32_t omit_ppm;       /* of omitting a message */
    uint32_t repeat_ppm;     /* of sending a message twice */
    uint32_t unasked_ppm;    /* of sending a message that was not requested, or one of another topic */
    uint32_t garbage_ppm;    /* of sending bytes that are not a message */
    uint32_t disconnect_bytes;
    int64_t stall_ns;
} um_sim_peer_faults;

/* Packet types besides UM_LBTRM_*: a status message is a DATA datagram sent to a NAK port. */
enum { UM_SIM_TYPE_STATUS = 16, UM_SIM_TYPE_UNKNOWN = 17, UM_SIM_ANY = -1 };

enum um_sim_rule_action { UM_SIM_RULE_DROP, UM_SIM_RULE_DELAY, UM_SIM_RULE_DUPLICATE };

/* A fault that a script applies to matching datagrams. Fields that are UM_SIM_ANY match everything. */
typedef struct um_sim_rule {
    int32_t from;
    int32_t to;
    int32_t type;
    int32_t retransmission; /* DATA: 0 or 1 */
    bool by_sqn;            /* DATA: the sqn; NAK, NCF: a listed one; SM: the lead */
    uint32_t first_sqn;
    uint32_t last_sqn;
    uint32_t skip_count;  /* matches that pass first */
    uint32_t match_count; /* matches affected after those; 0: all */
    int64_t delay_ns;     /* UM_SIM_RULE_DELAY */
    uint32_t action;
} um_sim_rule;

enum um_sim_trace_what { UM_SIM_SENT, UM_SIM_RECEIVED, UM_SIM_DROPPED };

enum um_sim_drop_reason {
    UM_SIM_DROP_NONE,
    UM_SIM_DROP_RULE,
    UM_SIM_DROP_LOSS,
    UM_SIM_DROP_CHECKSUM,
    UM_SIM_DROP_PARTITION,
    UM_SIM_DROP_INBOX,
    UM_SIM_DROP_NO_PORT,
    UM_SIM_DROP_NETWORK, /* more datagrams in flight than the world can hold */
};

typedef struct um_sim_trace_entry {
    int64_t time_ns;
    uint64_t bytes_at; /* the datagram is at um_sim_trace_bytes() + bytes_at, shared by all its entries */
    uint32_t length;
    int32_t from; /* host; -1: unknown sender */
    int32_t to;   /* host; -1: not a single one */
    um_sim_address from_address;
    um_sim_address to_address;
    uint32_t session_id;
    uint32_t sqn; /* DATA: its sqn; SM: the SM's sqn; status: the next sqn expected */
    uint32_t trail;
    uint32_t lead;
    uint8_t what;
    uint8_t drop_reason;
    uint8_t type;
    uint8_t flags;
    uint8_t ncf_reason;
} um_sim_trace_entry;

/* A row that the application of a receiver has read. */
typedef struct um_sim_row {
    int64_t time_ns;
    uint64_t payload_at; /* um_sim_payload_bytes() + payload_at */
    uint32_t payload_length;
    uint32_t receiver;
    uint32_t join;
    uint32_t sequence_number;
    uint32_t first_sequence_number;
    uint32_t fragment_offset;
    uint32_t message_length;
    uint16_t kind; /* um_row_kind */
    uint16_t flags;
} um_sim_row;

typedef struct um_sim_session_probe {
    int64_t tail;
    int64_t publication_limit;
    int64_t sender_position;
    int64_t sender_limit;
    uint64_t window_bytes;
    uint32_t next_sqn;
    uint32_t trail_sqn;
    uint32_t retransmit_count;
    bool connected;
} um_sim_session_probe;

typedef struct um_sim_join_probe {
    uint32_t state; /* um_delivery_state */
    uint32_t next_sqn;
    uint32_t held_count;
    uint32_t gap_count;
    uint32_t loss_count; /* transport */
    uint32_t transport_next_sqn;
    bool mapped;          /* the session has not ended */
    bool fetches;         /* a late join or off-transport recovery is active */
    uint32_t connections; /* connections made to the request port */
} um_sim_join_probe;

um_sim_world *um_sim_create(uint64_t seed);
void um_sim_destroy(um_sim_world *world);

/* Records every datagram and row from now on, for um_sim_trace and um_sim_rows. */
void um_sim_keep_trace(um_sim_world *world);

int64_t um_sim_now_ns(const um_sim_world *world);
void um_sim_run_until(um_sim_world *world, int64_t time_ns);
/* Returns the first violation, or NULL: a datagram larger than the path, a host that never becomes idle, ... */
const char *um_sim_complaint(const um_sim_world *world);
/* Returns a hash of all events so far. */
uint64_t um_sim_hash(const um_sim_world *world);

int um_sim_add_host(um_sim_world *world, const um_sim_host_config *config);
void um_sim_kill_host(um_sim_world *world, int host);
int um_sim_set_faults(um_sim_world *world, int host, const um_sim_faults *faults);
/* Sets the UDP payload that the path of a host can carry; its sessions adapt. */
int um_sim_set_path(um_sim_world *world, int host, uint32_t path_bytes);

/* Lets a source retain messages for receivers that request them. Call it before the first send. */
int um_sim_retain(um_sim_world *world, int source, const um_sim_retention_config *config);
/* Sets how a receiver fetches from sources that it joins from now on. */
int um_sim_set_recovery(um_sim_world *world, int receiver, const um_sim_recovery_config *config);
int um_sim_set_peer_faults(um_sim_world *world, int host, const um_sim_peer_faults *faults);
/* Advances the clock of a host, as if the machine had been suspended. */
int um_sim_jump_clock(um_sim_world *world, int host, int64_t ahead_ns);

int um_sim_add_rule(um_sim_world *world, const um_sim_rule *rule);
void um_sim_clear_rules(um_sim_world *world);

int um_sim_add_session(um_sim_world *world, int host, const um_sim_session_config *config);
int um_sim_add_source(um_sim_world *world, int session, const um_sim_source_config *config);
/* Deletes a source; the last source of a session deletes the session, too (UM-90). */
void um_sim_delete_source(um_sim_world *world, int source);

/* Publishing, as in core/source/source.h. */
int64_t um_sim_send(um_sim_world *world, int source, const uint8_t *data, uint32_t length, uint32_t flags);
int64_t um_sim_send_many(um_sim_world *world, int source, const uint8_t *data, const uint32_t *lengths, uint32_t count,
                         uint32_t flags);
int64_t um_sim_flush(um_sim_world *world, int source);
/* One claim per source at a time; the payload is written at once, the commit may follow later. */
int um_sim_claim(um_sim_world *world, int source, const uint8_t *data, uint32_t length);
int64_t um_sim_commit(um_sim_world *world, int source, uint32_t flags);
void um_sim_abort(um_sim_world *world, int source);

int um_sim_add_receiver(um_sim_world *world, int host, const um_sim_receiver_config *config);
/* Discovers a source for a receiver: joins its session and creates a delivery controller. */
int um_sim_join(um_sim_world *world, int receiver, int source, const um_sim_transport_config *config);
/* Ends a controller; the last controller leaves the session. */
void um_sim_leave(um_sim_world *world, int join);
/* Changes how a receiver is read. */
void um_sim_set_reading(um_sim_world *world, int receiver, int64_t interval_ns, uint32_t rows);

/* Sends a made-up datagram to a host, without delay. */
int um_sim_inject(um_sim_world *world, um_sim_address from, um_sim_address to, int to_host, const uint8_t *data,
                  uint32_t length);

const um_sim_trace_entry *um_sim_trace(const um_sim_world *world, uint64_t *count);
const uint8_t *um_sim_trace_bytes(const um_sim_world *world);
const um_sim_row *um_sim_rows(const um_sim_world *world, uint64_t *count);
const uint8_t *um_sim_payload_bytes(const um_sim_world *world);

void um_sim_probe_session(um_sim_world *world, int session, um_sim_session_probe *probe);
/* Returns the newest event about a receiver of a session, or NULL. */
const um_source_event *um_sim_last_event(const um_sim_world *world, int session);
void um_sim_probe_join(um_sim_world *world, int join, um_sim_join_probe *probe);
/* Returns the topic sqn of a source's next message. */
uint32_t um_sim_next_sqn(const um_sim_world *world, int source);

/* Counters as arrays of 64-bit numbers in the order of core/foundation/counters.h. */
const uint64_t *um_sim_session_counters(um_sim_world *world, int session);
const uint64_t *um_sim_source_counters(um_sim_world *world, int source);
const uint64_t *um_sim_transport_counters(um_sim_world *world, int join);
const uint64_t *um_sim_receiver_counters(um_sim_world *world, int receiver);
const uint64_t *um_sim_context_counters(um_sim_world *world, int host);

#endif

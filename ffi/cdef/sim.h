/* The simulator. Contracts: ffi/sim/sim.h and ffi/sim/run.h. The configuration structures are the core's, declared
 * here under the simulator's names. */
#include "sim/run.h"
#include "sim/sim.h"

typedef struct um_sim_world um_sim_world;

typedef struct {
    uint32_t ip;
    uint16_t port;
    ...;
} um_sim_address;

typedef struct {
    uint32_t session_id;
    uint16_t nak_port;
    um_sim_address group;
    uint32_t initial_sqn;
    uint32_t initial_term_id;
    uint32_t term_length;
    uint32_t window_bytes;
    uint32_t datagram_max_bytes;
    uint32_t coalesce_threshold;
    uint32_t batch_minimum_bytes;
    int64_t batch_interval_ns;
    int64_t ignore_interval_ns;
    int64_t sm_minimum_interval_ns;
    int64_t sm_maximum_interval_ns;
    int64_t unblock_timeout_ns;
    unsigned int flow_policy;
    uint32_t flow_group_tag;
    uint32_t flow_group_minimum_size;
    int64_t flow_receiver_timeout_ns;
    ...;
} um_sim_session_config;

typedef struct {
    uint32_t topic_index;
    uint32_t initial_sqn;
    int64_t tsni_interval_ns;
    int64_t tsni_threshold_ns;
    uint32_t explicit_capacity;
    ...;
} um_sim_source_config;

typedef struct {
    int64_t nak_initial_backoff_ns;
    int64_t nak_backoff_ns;
    int64_t nak_suppress_ns;
    int64_t nak_generation_ns;
    int64_t activity_timeout_ns;
    int64_t preactivity_timeout_ns;
    bool send_naks;
    uint32_t datagram_max_bytes;
    uint32_t loss_capacity;
    uint32_t topic_capacity;
    uint32_t window_bytes;
    int64_t status_interval_ns;
    uint32_t group_tag;
    uint64_t random_seed;
    ...;
} um_sim_transport_config;

typedef struct um_sim_host_config {
    uint64_t data_rate_bps;
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    uint32_t path_bytes;
    uint32_t datagram_max_bytes;
    uint32_t hold_datagrams;
    uint32_t hold_messages;
    uint32_t inbox_datagrams;
    uint32_t receive_batch;
    int64_t clock_offset_ns;
    int32_t clock_drift_ppm;
    uint64_t link_bps;
    int64_t link_queue_ns;
    uint32_t link_refuse_ppm;
    ...;
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
    int64_t read_interval_ns;
    uint32_t read_rows;
    bool keep_rows;
    ...;
} um_sim_receiver_config;

typedef struct um_sim_faults {
    uint32_t loss_ppm;
    uint32_t burst_begin_ppm;
    uint32_t burst_end_ppm;
    uint32_t duplicate_ppm;
    uint32_t reorder_ppm;
    uint32_t corrupt_ppm;
    uint32_t replay_ppm;
    uint32_t garbage_ppm;
    int64_t delay_ns;
    int64_t jitter_ns;
    int64_t reorder_ns;
    bool partitioned;
    ...;
} um_sim_faults;

typedef struct um_sim_rule {
    int32_t from;
    int32_t to;
    int32_t type;
    int32_t retransmission;
    bool by_sqn;
    uint32_t first_sqn;
    uint32_t last_sqn;
    uint32_t skip_count;
    uint32_t match_count;
    int64_t delay_ns;
    uint32_t action;
    ...;
} um_sim_rule;

typedef struct um_sim_trace_entry {
    int64_t time_ns;
    uint64_t bytes_at;
    uint32_t length;
    int32_t from;
    int32_t to;
    um_sim_address from_address;
    um_sim_address to_address;
    uint32_t session_id;
    uint32_t sqn;
    uint32_t trail;
    uint32_t lead;
    uint8_t what;
    uint8_t drop_reason;
    uint8_t type;
    uint8_t flags;
    uint8_t ncf_reason;
    ...;
} um_sim_trace_entry;

typedef struct um_sim_row {
    int64_t time_ns;
    uint64_t payload_at;
    uint32_t payload_length;
    uint32_t receiver;
    uint32_t join;
    uint32_t sequence_number;
    uint32_t first_sequence_number;
    uint32_t fragment_offset;
    uint32_t message_length;
    uint16_t kind;
    uint16_t flags;
    ...;
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
    ...;
} um_sim_session_probe;

typedef struct um_sim_join_probe {
    uint32_t state;
    uint32_t next_sqn;
    uint32_t held_count;
    uint32_t gap_count;
    uint32_t loss_count;
    uint32_t transport_next_sqn;
    bool mapped;
    ...;
} um_sim_join_probe;

enum { UM_SIM_TYPE_STATUS = 16, UM_SIM_TYPE_UNKNOWN = 17, UM_SIM_ANY = -1 };
enum um_sim_rule_action { UM_SIM_RULE_DROP, UM_SIM_RULE_DELAY, UM_SIM_RULE_DUPLICATE, ... };
enum um_sim_trace_what { UM_SIM_SENT, UM_SIM_RECEIVED, UM_SIM_DROPPED, ... };
enum um_sim_canary {
    UM_SIM_CANARY_NONE,
    UM_SIM_CANARY_STALE_PAYLOAD,
    UM_SIM_CANARY_LOSE_ROW,
    UM_SIM_CANARY_REPEAT_ROW,
    UM_SIM_CANARY_DEAF_RECEIVER,
    ...
};

um_sim_world *um_sim_create(uint64_t seed);
void um_sim_destroy(um_sim_world *world);
void um_sim_keep_trace(um_sim_world *world);
int64_t um_sim_now_ns(const um_sim_world *world);
void um_sim_run_until(um_sim_world *world, int64_t time_ns);
const char *um_sim_complaint(const um_sim_world *world);
uint64_t um_sim_hash(const um_sim_world *world);
int um_sim_add_host(um_sim_world *world, const um_sim_host_config *config);
void um_sim_kill_host(um_sim_world *world, int host);
int um_sim_set_faults(um_sim_world *world, int host, const um_sim_faults *faults);
int um_sim_set_path(um_sim_world *world, int host, uint32_t path_bytes);
int um_sim_add_rule(um_sim_world *world, const um_sim_rule *rule);
void um_sim_clear_rules(um_sim_world *world);
int um_sim_add_session(um_sim_world *world, int host, const um_sim_session_config *config);
int um_sim_add_source(um_sim_world *world, int session, const um_sim_source_config *config);
void um_sim_delete_source(um_sim_world *world, int source);
int64_t um_sim_send(um_sim_world *world, int source, const uint8_t *data, uint32_t length, uint32_t flags);
int64_t um_sim_send_many(um_sim_world *world, int source, const uint8_t *data, const uint32_t *lengths, uint32_t count,
                         uint32_t flags);
int64_t um_sim_flush(um_sim_world *world, int source);
int um_sim_claim(um_sim_world *world, int source, const uint8_t *data, uint32_t length);
int64_t um_sim_commit(um_sim_world *world, int source, uint32_t flags);
void um_sim_abort(um_sim_world *world, int source);
int um_sim_add_receiver(um_sim_world *world, int host, const um_sim_receiver_config *config);
int um_sim_join(um_sim_world *world, int receiver, int source, const um_sim_transport_config *config);
void um_sim_leave(um_sim_world *world, int join);
void um_sim_set_reading(um_sim_world *world, int receiver, int64_t interval_ns, uint32_t rows);
int um_sim_inject(um_sim_world *world, um_sim_address from, um_sim_address to, int to_host, const uint8_t *data,
                  uint32_t length);
const um_sim_trace_entry *um_sim_trace(const um_sim_world *world, uint64_t *count);
const uint8_t *um_sim_trace_bytes(const um_sim_world *world);
const um_sim_row *um_sim_rows(const um_sim_world *world, uint64_t *count);
const uint8_t *um_sim_payload_bytes(const um_sim_world *world);
void um_sim_probe_session(um_sim_world *world, int session, um_sim_session_probe *probe);
void um_sim_probe_join(um_sim_world *world, int join, um_sim_join_probe *probe);
uint32_t um_sim_next_sqn(const um_sim_world *world, int source);
const uint64_t *um_sim_session_counters(um_sim_world *world, int session);
const uint64_t *um_sim_source_counters(um_sim_world *world, int source);
const uint64_t *um_sim_transport_counters(um_sim_world *world, int join);
const uint64_t *um_sim_receiver_counters(um_sim_world *world, int receiver);
const uint64_t *um_sim_context_counters(um_sim_world *world, int host);

typedef struct um_sim_params {
    uint32_t canary;
    bool trace;
    ...;
} um_sim_params;

typedef struct um_sim_result {
    uint64_t seed;
    bool failed;
    char message[...];
    char scenario[...];
    uint64_t hash;
    int64_t virtual_ns;
    uint64_t event_count;
    uint64_t datagrams_sent;
    uint64_t datagrams_dropped;
    uint64_t messages_sent;
    uint64_t messages_delivered;
    uint64_t losses_declared;
    uint64_t naks_sent;
    uint64_t retransmissions;
    ...;
} um_sim_result;

int um_sim_run(const um_sim_params *params, uint64_t seed, um_sim_result *result);
um_sim_world *um_sim_run_kept(const um_sim_params *params, uint64_t seed, um_sim_result *result);

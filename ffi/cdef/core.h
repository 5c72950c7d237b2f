/* The C core as Python sees it. Contracts, in ffi/io: context.h, publication_session.h, publication.h, subscription.h,
 * event_queue.h, statistics.h; ffi/core/source.h; ffi/os/memory.h. */
#include "io/context.h"
#include "io/event_queue_private.h"
#include "io/statistics.h"
#include "os/memory.h"

typedef struct um_context um_context;
typedef struct um_publication_session um_publication_session;
typedef struct um_publication um_publication;
typedef struct um_rings um_rings;

enum {
    UM_RECEIVED_NOTHING,
    UM_RECEIVED_EVENT,
    UM_SEND_START_BATCH,
    UM_SEND_END_BATCH,
    UM_SEND_FLUSH,
    UM_SEND_CONTINUED,
    UM_MESSAGE_BATCH_START,
    UM_MESSAGE_BATCH_END,
    UM_MESSAGE_FRAGMENT,
    UM_ROW_MESSAGE,
    UM_ROW_BEGINNING_OF_SESSION,
    UM_ROW_END_OF_SESSION,
    UM_ROW_UNRECOVERABLE_LOSS,
    UM_ROW_BURST_LOSS,
    UM_STATISTICS_FIELDS_MAX,
    UM_RECOVERY_BUCKETS,
    UM_QUEUE_MESSAGE_BYTES_MIN,
    UM_QUEUE_BLOCKS_MAX,
    UM_QUEUE_PINNED_BYTES_MIN,
    UM_LOG_TERM_BYTES_MIN,
    UM_LOG_TERM_BYTES_MAX,
    ...
};

enum um_publish_result {
    UM_NOT_CONNECTED,
    UM_BACK_PRESSURED,
    UM_ADMIN_ACTION,
    UM_CLOSED,
    UM_MAX_POSITION_EXCEEDED,
    UM_RATE_LIMITED,
    ...
};

enum um_flow_control_policy { UM_FLOW_NONE, UM_FLOW_MIN, UM_FLOW_MAX, UM_FLOW_TAGGED, ... };

typedef struct um_address {
    uint32_t ip;
    uint16_t port;
    ...;
} um_address;

typedef struct um_session_id {
    um_address source;
    um_address group;
    uint32_t session_id;
    ...;
} um_session_id;

typedef struct um_context_config {
    char interface[16];
    uint32_t interface_ip;
    uint32_t ttl;
    uint32_t source_buffer_bytes;
    uint32_t receiver_buffer_bytes;
    uint32_t receive_batch;
    bool gso;
    bool gro;
    bool timestamps;
    bool busy_wait;
    int64_t linger_ns;
    int64_t adaptive_linger_ns;
    int64_t coalesce_ns;
    int64_t coalesce_max_ns;
    uint64_t data_rate_bps;
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    uint32_t hold_datagrams;
    uint32_t hold_messages;
    uint32_t datagram_max_bytes;
    uint64_t random_seed;
    um_rings *rings;
    ...;
} um_context_config;

typedef struct um_session_config {
    uint32_t session_id;
    uint16_t nak_port;
    um_address group;
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
    enum um_flow_control_policy flow_policy;
    uint32_t flow_group_tag;
    uint32_t flow_group_minimum_size;
    int64_t flow_receiver_timeout_ns;
    ...;
} um_session_config;

typedef struct um_source_config {
    uint32_t topic_index;
    uint32_t initial_sqn;
    int64_t tsni_interval_ns;
    int64_t tsni_threshold_ns;
    uint32_t explicit_capacity;
    ...;
} um_source_config;

typedef struct um_source_claim {
    uint8_t *payload;
    uint32_t length;
    ...;
} um_source_claim;

typedef int um_ordered_delivery;

typedef struct um_receiver_config {
    um_ordered_delivery ordered_delivery;
    uint32_t map_entries_max;
    uint32_t burst_loss_max;
    int64_t loss_check_interval_ns;
    ...;
} um_receiver_config;

typedef struct um_event_queue_config {
    uint32_t block_count;
    uint32_t block_rows;
    uint32_t block_bytes;
    uint32_t message_max_bytes;
    ...;
} um_event_queue_config;

typedef struct um_receiver_session_config {
    um_session_id id;
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
    uint64_t receiver_id;
    uint32_t group_tag;
    uint64_t random_seed;
    ...;
} um_receiver_session_config;

typedef struct um_block {
    int32_t *offsets;
    uint32_t *sequence_numbers;
    uint32_t *first_sequence_numbers;
    uint32_t *fragment_offsets;
    uint32_t *message_lengths;
    uint32_t *sources;
    int64_t *received_ns;
    uint16_t *flags;
    uint8_t *payload;
    ...;
} um_block;

typedef struct um_rows {
    um_block *block;
    uint32_t first;
    uint32_t count;
    ...;
} um_rows;

typedef struct um_event_queue {
    int event_fd;
    ...;
} um_event_queue;

typedef struct um_subscription um_subscription;

int um_context_create(const um_context_config *config, um_context **context);
void um_context_close(um_context *context);
void um_context_free(um_context *context);
int um_context_start(um_context *context);
void um_context_stop(um_context *context);
int64_t um_context_process(um_context *context, int64_t timeout_ns);
void um_context_unblock(um_context *context);
void um_unmap(void *memory, size_t bytes);
void um_context_set_datagram_max(um_context *context, uint32_t bytes);
const char *um_context_failed_step(const um_context *context);
uint32_t um_context_receive_buffer(um_context *context);

uint32_t um_context_groups(um_context *context, um_address *groups, uint32_t max);
bool um_context_take_ended(um_context *context, um_session_id *id);

int um_session_open(um_context *context, um_session_config *config, uint16_t port_low, uint16_t port_high,
                    um_publication_session **session);
void um_session_limit_datagram(um_publication_session *session, uint32_t bytes);
void *um_session_memory(const um_publication_session *session, size_t *bytes);
void um_session_shut(um_publication_session *session);
int um_publication_open(um_publication_session *session, const um_source_config *config, um_publication **publication);
void um_publication_close(um_publication *publication);
void um_publication_free(um_publication *publication);
int64_t um_publication_send(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                            int64_t timeout_ns);
int64_t um_publication_send_many(um_publication *publication, const char *data, uint64_t data_bytes,
                                 const uint32_t *lengths, const int32_t *offsets, uint32_t count, uint32_t flags,
                                 int64_t timeout_ns);
int um_publication_claim(um_publication *publication, uint32_t length, um_source_claim *claim, uint32_t flags,
                         int64_t timeout_ns);
int64_t um_publication_commit(um_publication *publication, um_source_claim *claim, uint32_t flags);
void um_publication_abort(um_publication *publication, um_source_claim *claim);
int64_t um_publication_flush(um_publication *publication);
bool um_publication_connected(const um_publication *publication);
int um_publication_wakeup_fd(const um_publication *publication);
bool um_publication_sendable(const um_publication *publication);
bool um_publication_drained(um_publication *publication);
uint32_t um_publication_message_max(const um_publication *publication);

int um_event_queue_open(um_context *context, const um_event_queue_config *config, um_event_queue **queue);
void um_event_queue_close(um_event_queue *queue);
void um_event_queue_free(um_event_queue *queue);
int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **subscription);
void um_subscription_close(um_subscription *subscription);
void um_subscription_free(um_subscription *subscription);
int um_subscription_map(um_subscription *subscription, const um_receiver_session_config *session, uint32_t topic_index,
                        uint32_t source);
uint32_t um_event_queue_poll(um_event_queue *queue, uint32_t max, int64_t timeout_ns, um_rows *rows);
typedef struct um_rows_summary {
    uint32_t event_count;
    int32_t payload_length;
    int64_t source;
    bool plain;
    ...;
} um_rows_summary;
void um_rows_summarize(const um_rows *rows, int32_t *offsets, um_rows_summary *summary);
void um_rows_materialize(um_block *block, uint32_t first, uint32_t count);
void um_rows_heads(um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out);
uint32_t um_event_queue_take(um_event_queue *queue, uint32_t max, um_rows *rows);
typedef struct um_row {
    uint16_t flags;
    uint32_t sequence_number;
    uint32_t first_sequence_number;
    uint32_t fragment_offset;
    uint32_t message_length;
    uint32_t source;
    int64_t received_ns;
    ...;
} um_row;
int64_t um_event_queue_receive(um_event_queue *queue, uint8_t *out, uint32_t capacity, int64_t timeout_ns, um_row *row);
bool um_event_queue_arm(um_event_queue *queue);
void um_queue_release(um_block *block, uint32_t count);

uint32_t um_statistics_context(um_context *context, uint64_t *out);
uint32_t um_statistics_source_transport(um_publication_session *session, uint64_t *out);
uint32_t um_statistics_source(um_publication *publication, uint64_t *out);
uint32_t um_statistics_receiver(um_subscription *subscription, uint64_t *out);
uint32_t um_statistics_receiver_transport(um_context *context, uint32_t index, um_session_id *id, uint64_t *out);
uint32_t um_statistics_recovery_histogram(um_context *context, uint32_t index, uint64_t *out);
uint32_t um_statistics_link(um_context *context, uint64_t *out);

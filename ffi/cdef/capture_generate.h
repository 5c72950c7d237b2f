/* Captures whose truth is known. Contract: ffi/capture/reading/generate.h. */
#include "capture/reading/generate.h"

enum {
    UM_GENERATE_SESSIONS_MAX,
    UM_GENERATE_RECEIVERS_MAX,
    UM_GENERATE_FRAME_BYTES_MAX,
    UM_GENERATE_STEP_BYTES_MAX,
    UM_GENERATE_STEP_LOSSES_MAX,
    ...
};

enum um_generate_outcome { UM_GENERATE_RECOVERED, UM_GENERATE_REFUSED, UM_GENERATE_GIVEN_UP, UM_GENERATE_OPEN, ... };

typedef struct um_generate_config {
    uint64_t seed;
    int64_t start_ns;
    int64_t gap_ns;
    uint32_t session_count;
    uint32_t receiver_count;
    uint32_t topic_count;
    uint32_t messages_per_datagram;
    uint32_t message_bytes;
    uint32_t snap_bytes;
    int32_t at_receiver;
    double loss;
    double run_more;
    double shared;
    double delayed;
    double refused;
    int64_t backoff_min_ns;
    int64_t backoff_max_ns;
    int64_t response_ns;
    int64_t delay_ns;
    ...;
} um_generate_config;

typedef struct um_generate_loss {
    uint32_t session;
    uint32_t receiver;
    uint32_t sqn;
    uint32_t nak_count;
    int64_t lost_ns;
    int64_t first_nak_ns;
    int64_t end_ns;
    uint32_t outcome;
    ...;
} um_generate_loss;

typedef struct um_generate_counts {
    uint64_t packet_count;
    uint64_t data_count;
    uint64_t retransmission_count;
    uint64_t nak_count;
    uint64_t ncf_count;
    ...;
} um_generate_counts;

typedef struct um_generator {
    um_generate_counts counts;
    ...;
} um_generator;

int um_generator_init(um_generator *generator, const um_generate_config *config);
void um_generator_run(um_generator *generator, uint64_t packet_count, uint8_t *out, uint64_t out_bytes,
                      um_generate_loss *losses, uint32_t loss_capacity, uint64_t *written_bytes, uint32_t *loss_count);
uint32_t um_generator_open_losses(um_generator *generator, um_generate_loss *losses, uint32_t capacity);

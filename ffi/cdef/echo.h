/* The round trip inside the core. Contract: ffi/bench/echo.h. */
#include "bench/echo.h"

enum { UM_ECHO_COUNTER_BYTES, UM_ECHO_END_BYTES, UM_ECHO_MESSAGE_BYTES_MAX, ... };

typedef struct um_echo_config {
    uint32_t message_bytes;
    bool busy;
    int64_t timeout_ns;
    ...;
} um_echo_config;

typedef struct um_echo_result {
    uint64_t message_count;
    uint64_t misplaced_count;
    int64_t elapsed_ns;
    int64_t cpu_ns;
    ...;
} um_echo_result;

int um_echo_ping(um_event_queue *replies, um_publication *requests, const um_echo_config *config, uint64_t warmup_count,
                 uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_echo_result *result);
int um_echo_serve(um_event_queue *requests, um_publication *replies, const um_echo_config *config,
                  um_echo_result *result);

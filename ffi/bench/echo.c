#include "bench/echo.h"

#include <time.h>

enum { POLLS_A_CLOCK = 64 }; /* receive polls per read of the clock */

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int send_now(um_publication *publication, const uint8_t *data, uint32_t length, int64_t timeout_ns)
{
    int64_t sqn = um_publication_send(publication, (const char *)data, length, UM_SEND_FLUSH, timeout_ns);
    return sqn < 0 ? (int)sqn : 0;
}

/* Returns the length of the next message, copied to `buffer` as far as it fits, or -ETIMEDOUT. */
static int receive_one(um_event_queue *queue, const um_echo_config *config, uint8_t *buffer, uint32_t buffer_bytes)
{
    int64_t deadline_ns = clock_ns(CLOCK_MONOTONIC) + config->timeout_ns;
    for (uint32_t polls = 1;; polls++) {
        um_rows rows;
        if (um_event_queue_poll(queue, 1, config->busy ? 0 : config->timeout_ns, &rows) == 0) {
            bool looks = !config->busy || polls % POLLS_A_CLOCK == 0;
            if (looks && clock_ns(CLOCK_MONOTONIC) >= deadline_ns)
                return -ETIMEDOUT;
            continue;
        }
        bool is_message = um_row_kind_of(rows.block->flags[rows.first]) == UM_ROW_MESSAGE;
        uint32_t length = um_rows_copy(rows.block, rows.first, buffer, buffer_bytes);
        um_queue_release(rows.block, 1);
        if (is_message)
            return (int)length;
    }
}

static int round_trip(um_event_queue *replies, um_publication *requests, const um_echo_config *config, uint64_t counter,
                      um_echo_result *result)
{
    uint8_t message[UM_ECHO_MESSAGE_BYTES_MAX];
    memset(message, 0, config->message_bytes);
    memcpy(message, &counter, sizeof counter);
    int outcome = send_now(requests, message, config->message_bytes, config->timeout_ns);
    while (outcome == 0) {
        uint64_t answered;
        int length = receive_one(replies, config, message, sizeof message);
        if (length < 0)
            return length;
        memcpy(&answered, message, sizeof answered);
        if (length == (int)config->message_bytes && answered == counter)
            return 0;
        result->misplaced_count++;
    }
    return outcome;
}

static int measure(um_event_queue *replies, um_publication *requests, const um_echo_config *config,
                   uint64_t sample_count, int64_t deadline_ns, uint64_t *samples_ns, um_echo_result *result)
{
    while (result->message_count < sample_count) {
        int64_t sent_ns = clock_ns(CLOCK_MONOTONIC);
        if (sent_ns >= deadline_ns && result->message_count > 0)
            break;
        int outcome = round_trip(replies, requests, config, result->message_count, result);
        if (outcome != 0)
            return outcome;
        samples_ns[result->message_count++] = (uint64_t)(clock_ns(CLOCK_MONOTONIC) - sent_ns);
    }
    return 0;
}

int um_echo_ping(um_event_queue *replies, um_publication *requests, const um_echo_config *config, uint64_t warmup_count,
                 uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_echo_result *result)
{
    const uint8_t end[UM_ECHO_END_BYTES] = {0};
    memset(result, 0, sizeof *result);
    if (config->message_bytes < UM_ECHO_COUNTER_BYTES || config->message_bytes > UM_ECHO_MESSAGE_BYTES_MAX)
        return -EINVAL;
    int outcome = 0;
    for (uint64_t i = 0; i < warmup_count && outcome == 0; i++)
        outcome = round_trip(replies, requests, config, UINT64_MAX - i, result);
    int64_t start_ns = clock_ns(CLOCK_MONOTONIC), cpu_start_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    if (outcome == 0)
        outcome = measure(replies, requests, config, sample_count, start_ns + duration_ns, samples_ns, result);
    result->elapsed_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
    result->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    return outcome != 0 ? outcome : send_now(requests, end, sizeof end, config->timeout_ns);
}

int um_echo_serve(um_event_queue *requests, um_publication *replies, const um_echo_config *config,
                  um_echo_result *result)
{
    uint8_t message[UM_ECHO_MESSAGE_BYTES_MAX];
    int64_t start_ns = clock_ns(CLOCK_MONOTONIC), cpu_start_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    int length, outcome = 0;
    memset(result, 0, sizeof *result);
    while (outcome == 0 && (length = receive_one(requests, config, message, sizeof message)) != UM_ECHO_END_BYTES) {
        if (length > (int)sizeof message)
            length = -EMSGSIZE;
        outcome = length < 0 ? length : send_now(replies, message, (uint32_t)length, config->timeout_ns);
        result->message_count += outcome == 0;
    }
    result->elapsed_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
    result->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    return outcome;
}

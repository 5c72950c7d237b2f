/* Generates captures with known truth: sessions that publish at a steady rate, receivers that lose single datagrams or
 * runs of them and NAK them, a source that retransmits, delays or refuses. Deterministic by seed; sans-I/O: packets are
 * written as nanosecond pcap records into the caller's buffer. One thread at a time may use a generator.
 *
 * Session s is at 10.0.0.(1 + s) and sends to group 224.10.10.(10 + s % 5); receiver r is at 10.1.0.(1 + r). A
 * session's datagram n is sent at start + (n * sessions + s) * gap and carries messages n * k .. n * k + k - 1; message
 * m is of topic index 1 + m % topics and has topic sqn m / topics.
 */
#ifndef UM_CAPTURE_READING_GENERATE_H
#define UM_CAPTURE_READING_GENERATE_H

#include "core/foundation/base.h"
#include "core/foundation/random.h"

enum {
    UM_GENERATE_SESSIONS_MAX = 250,
    UM_GENERATE_RECEIVERS_MAX = 200,
    UM_GENERATE_PENDING_MAX = 65536, /* runs of lost datagrams not recovered yet; while full, nothing more is lost */
    UM_GENERATE_RUN_MAX = 64,        /* datagrams lost in a row */
    UM_GENERATE_NAKS_MAX = 8,        /* times a run is NAKed before the receiver gives up */
    UM_GENERATE_FRAME_BYTES_MAX = 9216,
    UM_GENERATE_STEP_BYTES_MAX = (UM_GENERATE_RUN_MAX + 2) * (UM_GENERATE_FRAME_BYTES_MAX + 16),
    UM_GENERATE_STEP_LOSSES_MAX = UM_GENERATE_RUN_MAX * UM_GENERATE_RECEIVERS_MAX,
};

enum um_generate_outcome {
    UM_GENERATE_RECOVERED,
    UM_GENERATE_REFUSED,  /* the source responded with an NCF no_retry */
    UM_GENERATE_GIVEN_UP, /* given up after UM_GENERATE_NAKS_MAX NAKs */
    UM_GENERATE_OPEN,     /* not recovered yet when the capture ends */
};

typedef struct um_generate_config {
    uint64_t seed;
    int64_t start_ns;
    int64_t gap_ns; /* between new datagrams, of all sessions together */
    uint32_t session_count;
    uint32_t receiver_count;
    uint32_t topic_count; /* per session */
    uint32_t messages_per_datagram;
    uint32_t message_bytes;
    uint32_t snap_bytes;    /* captured bytes per frame; 0: all */
    int32_t at_receiver;    /* captured at this receiver's port, after losses; -1: at the switch, before them */
    double loss;            /* probability that a run of losses starts, per datagram and receiver */
    double run_more;        /* probability that a run continues, per datagram */
    double shared;          /* share of the runs that all receivers lose */
    double delayed;         /* share of the NAKs that first get an NCF `rx_delay` */
    double refused;         /* share of the NAKs that are refused */
    int64_t backoff_min_ns; /* from the loss, or the last NAK, to the NAK */
    int64_t backoff_max_ns;
    int64_t response_ns; /* from the NAK to its response */
    int64_t delay_ns;    /* from an NCF `rx_delay` to the retransmission */
} um_generate_config;

/* A datagram that one receiver did not get. */
typedef struct um_generate_loss {
    uint32_t session; /* index */
    uint32_t receiver;
    uint32_t sqn;
    uint32_t nak_count; /* NAKs of this receiver for it */
    int64_t lost_ns;
    int64_t first_nak_ns; /* -1: no NAK */
    int64_t end_ns;       /* time of the retransmission, refusal or giving up; -1 while open */
    uint32_t outcome;
    uint32_t reserved;
} um_generate_loss;

typedef struct um_generate_counts {
    uint64_t packet_count;
    uint64_t data_count;
    uint64_t retransmission_count;
    uint64_t nak_count;
    uint64_t ncf_count;
} um_generate_counts;

/* The datagrams that a receiver waits for: those of a run whose bit is set. */
typedef struct um_generate_pending {
    int64_t due_ns;
    int64_t first_nak_ns;
    uint64_t mask;
    uint32_t first_sqn;
    uint32_t nak_count;
    uint16_t session;
    uint16_t receiver;
    uint8_t state; /* the next event, at due_ns */
} um_generate_pending;

typedef struct um_generator {
    um_generate_config config;
    um_random random;
    um_generate_counts counts; /* counts of the captured packets */
    int64_t data_due_ns;
    uint64_t data_sequence; /* number of new datagrams of all sessions */
    uint32_t pending_count;
    uint32_t frame_bytes;                                                   /* of a DATA frame */
    uint32_t run_ends[UM_GENERATE_SESSIONS_MAX][UM_GENERATE_RECEIVERS_MAX]; /* first sqn behind the last run lost */
    um_generate_pending pending[UM_GENERATE_PENDING_MAX];                   /* a heap by due_ns */
} um_generator;

/* Returns 0, or -EINVAL for a configuration outside the limits above. */
int um_generator_init(um_generator *generator, const um_generate_config *config);

/* Appends records to `out` and the outcomes of losses to `losses`, until packet_count packets were captured since init
 * or there is no space for another step. Stores the numbers of bytes and losses written. */
void um_generator_run(um_generator *generator, uint64_t packet_count, uint8_t *out, uint64_t out_bytes,
                      um_generate_loss *losses, uint32_t loss_capacity, uint64_t *written_bytes, uint32_t *loss_count);

/* Writes up to `capacity` open losses; returns their number, 0 once all were written. */
uint32_t um_generator_open_losses(um_generator *generator, um_generate_loss *losses, uint32_t capacity);

#endif

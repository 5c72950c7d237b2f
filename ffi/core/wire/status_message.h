/* A receiver's status message: position and window for flow control (AE-15..AE-19). LBT-RM has none, so it is an
 * extended option of an LBMC control message in an LBT-RM DATA datagram sent by unicast to the source's NAK port (W1;
 * layout: docs/wire.md). The DATA header's sqn and trail repeat the position. If the receiver has given up datagrams, a
 * loss report follows: a second control message with an extended option, which older sources ignore.
 *
 * A source whose flow control takes positions adds a cookie to its session messages: a random number that a status
 * message repeats. So a host that cannot receive the group cannot invent receivers.
 */
#ifndef UM_CORE_STATUS_MESSAGE_H
#define UM_CORE_STATUS_MESSAGE_H

#include "core/wire/framing.h"
#include "core/wire/lbmc.h"

enum {
    UM_STATUS_OPTION_ID = UM_LBMC_OWN_ID,
    UM_STATUS_OPTION_SUBTYPE = 1,
    UM_STATUS_VERSION = 1,
    UM_COOKIE_OPTION_SUBTYPE = 8, /* under UM_LBMC_OWN_ID */
    UM_STATUS_DATA_BYTES = 28,    /* without a path probe and a cookie */
    UM_STATUS_PROBE_BYTES = 4,
    UM_COOKIE_BYTES = 8,
    UM_STATUS_DATA_BYTES_MAX = UM_STATUS_DATA_BYTES + UM_STATUS_PROBE_BYTES + UM_COOKIE_BYTES,
    UM_COOKIE_LBMC_BYTES = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_COOKIE_BYTES,
    UM_STATUS_LBMC_BYTES = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_STATUS_DATA_BYTES,
    UM_STATUS_DATAGRAM_BYTES = UM_LBTRM_DATA_BYTES + UM_STATUS_LBMC_BYTES, /* LBT-RM, without a loss report */
    UM_LOSS_REPORT_OPTION_SUBTYPE = 9,
    UM_LOSS_REPORT_VERSION = 1,
    UM_LOSS_REPORT_DATA_BYTES = 12,
    UM_LOSS_REPORT_LBMC_BYTES = UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES + UM_LOSS_REPORT_DATA_BYTES,
    UM_STATUS_DATAGRAM_BYTES_MAX = UM_FRAMING_STATUS_BYTES_MAX + UM_STATUS_LBMC_BYTES + UM_STATUS_PROBE_BYTES +
                                   UM_COOKIE_BYTES + UM_LOSS_REPORT_LBMC_BYTES,
};

/* A status message carries the time until the next one in units of this, so that a source waits for quiet receivers. */
enum { UM_STATUS_INTERVAL_UNIT_NS = 100000000, UM_STATUS_INTERVAL_MAX_S = 60 };

enum {
    /* The receiver solicits a session message: it has no position yet, or does not know whether it is a client. */
    UM_STATUS_ELICIT = 0x01,
    UM_STATUS_LEAVE = 0x02, /* the receiver leaves: stop counting it */
    /* A queue of the receiver has been full for a status interval, because its reader is slow. */
    UM_STATUS_SLOW = 0x04,
    UM_STATUS_CUT_LOOSE = 0x08, /* a queue was full for too long and drops its messages */
};

typedef struct um_status_message {
    uint64_t receiver_id;
    uint32_t next_sqn; /* everything before it has been received or given up */
    uint32_t window_bytes;
    uint32_t group_tag;
    uint32_t round_trip_us; /* see um_recovery_timing_crossing_ns; 0: not measured */
    uint8_t flags;
    uint16_t probe_round; /* of the newest path probe that has arrived (path_probe.h); 0: none has */
    uint16_t probe_bytes; /* largest path probe of that round */
    uint64_t cookie;      /* of the source's session messages; 0: none received */
    uint32_t given_up;    /* datagrams before next_sqn that will not be received; grows during the session */
    uint32_t unconfirmed; /* further ones that only session messages have shown to exist */
    int64_t interval_ns;  /* maximum time to the next one unless data arrives; rounded up; 0: unspecified */
} um_status_message;

/* `client_id`: of the receiver's connection, if the session has connections. */
uint32_t um_status_write(uint8_t *out, const um_session_id *id, uint32_t client_id, const um_status_message *status);
/* The same for an LBT-RM session. */
uint32_t um_status_encode(uint8_t *out, uint32_t session_id, uint16_t nak_port, const um_status_message *status);

/* Returns false if the packet is not a well-formed status message. */
bool um_status_decode(const um_packet *packet, um_status_message *status);

/* Writes the LBMC message that follows a session message: UM_COOKIE_LBMC_BYTES. */
uint32_t um_cookie_write(uint8_t *out, uint64_t cookie);
/* Returns the cookie of a session message; 0 if it has none. */
uint64_t um_cookie_decode(const um_packet *packet);

#endif

/* A decoded datagram of LBT-RM or LBT-RU, independent of its framing (lbtrm.h, lbtru.h; framing.h for either). Points
 * into the datagram, which stays the caller's.
 */
#ifndef UM_CORE_PACKET_H
#define UM_CORE_PACKET_H

#include "core/foundation/base.h"

enum um_lbtrm_type { UM_LBTRM_DATA = 0, UM_LBTRM_SM = 2, UM_LBTRM_NAK = 3, UM_LBTRM_NCF = 4 };

enum um_ncf_reason { UM_NCF_NO_RETRY = 0, UM_NCF_IGNORED = 1, UM_NCF_RX_DELAY = 2, UM_NCF_SHED = 3 };

/* Reasons for dropping a datagram: UM's counters dgrams_dropped_*. */
enum um_dgram_status {
    UM_DGRAM_OK = 0,
    UM_DGRAM_SIZE,    /* shorter than its own fields require */
    UM_DGRAM_TYPE,    /* unknown type */
    UM_DGRAM_VERSION, /* unknown version */
    UM_DGRAM_HDR,     /* invalid header */
    UM_DGRAM_OTHER,
    UM_DGRAM_CUT, /* the capture ends inside a header: the datagram itself may be correct */
};

enum um_packet_flag {
    UM_LBTRM_FLAG_UNICAST_NAKS = 0x80,
    UM_LBTRM_FLAG_RETRANSMISSION = 0x20, /* DATA, of either framing */
    UM_LBTRU_FLAG_SYN = 0x01,            /* SM: response to a connection request; ACK: no interest sent yet */
};

typedef struct um_packet {
    uint8_t type;
    uint8_t flags; /* DATA, SM: um_packet_flag */
    uint8_t ncf_reason;
    uint8_t options; /* LBT-RU: bitmap of its options, 1 << number */
    uint16_t nak_port;
    uint32_t session_id;
    uint32_t sqn;   /* DATA: its sqn; SM: the SM's own counter; ACK: the highest received */
    uint32_t trail; /* DATA, SM, NCF */
    uint32_t lead;  /* SM */
    uint32_t list_count;
    uint32_t client_id;  /* LBT-RU */
    uint32_t passed;     /* LBT-RU DATA: datagrams before it that this receiver does not need (UX-27) */
    const uint8_t *list; /* NAK, NCF: list_count big-endian sqns */
    const uint8_t *body; /* DATA: LBMC messages; LBT-RM SM: control messages after it */
    uint32_t body_length;
} um_packet;

/* Counts a dropped datagram. `size`: the counter dgrams_dropped_size, which dgrams_dropped_type, _version and _hdr
 * follow in the order of um_dgram_status; `other`: dgrams_dropped_other, for every other reason. */
static inline void um_count_dropped(uint64_t *size, uint64_t *other, enum um_dgram_status status)
{
    bool has_counter = status >= UM_DGRAM_SIZE && status <= UM_DGRAM_HDR;
    UM_COUNT(*(has_counter ? &size[status - UM_DGRAM_SIZE] : other), 1);
}

#define UM_DROP_COUNTERS_CHECK(counters)                                                                               \
    _Static_assert(offsetof(counters, dgrams_dropped_hdr) - offsetof(counters, dgrams_dropped_size) ==                 \
                       (UM_DGRAM_HDR - UM_DGRAM_SIZE) * sizeof(uint64_t),                                              \
                   "one counter per reason, in the order of um_dgram_status")

#endif

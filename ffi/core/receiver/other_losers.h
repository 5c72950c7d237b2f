/* Estimates how many other receivers miss a datagram that this one has lost, so that a NAK waits for theirs only if
 * there are any (recovery_timing.h).
 *
 * Retransmissions go to the whole group, so a receiver sees those that it does not need. Receivers behind ports of
 * their own lose datagrams independently: with n receivers that each lose a part q, this one needs one of about
 * n / max(1 + n q / 2, n q) retransmitted datagrams (within 16 % of q n / (1 - (1 - q)^n)). With a loss before the
 * paths divide, it needs all of them. The needless retransmissions per loss thus show which part of the losses is
 * private.
 *
 *     others = (n - 1) x shared part + what (n - 1) q, the private losers, exceeds UM_OTHER_LOSERS_ALLOWED by
 *
 * The shared part is what is not private, times the part of this receiver's recent losses that another receiver NAKed,
 * too, as an earlier retransmission or an NCF shows. It is assumed to be all until losses show otherwise. Up to
 * UM_OTHER_LOSERS_ALLOWED independent receivers NAK the same datagram at once: NAKs are short and share datagrams, and
 * waiting for each other would delay the losses of a large group by several round trips. The private part counts
 * three times, because receivers do not all lose equally, and the first losses are few. So if a third of the losses or
 * more are private, all receivers NAK a common loss at once: never more than one NAK per loss of each receiver.
 *
 * Threads: the owner's. Memory: the caller's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_OTHER_LOSERS_H
#define UM_CORE_OTHER_LOSERS_H

#include "core/foundation/base.h"

enum {
    UM_OTHER_LOSERS_ONE = 256, /* the unit of parts and of the estimate */
    UM_OTHER_LOSERS_ALLOWED = 32,
};

typedef struct um_other_losers {
    uint32_t shared_part;   /* of the losses that another receiver has NAKed, too, in 1/UM_OTHER_LOSERS_ONE */
    uint32_t shared_weight; /* the last loss changed it by 1 / shared_weight */
    uint32_t first_sqn;     /* the counts are those of the datagrams from here to end_sqn */
    uint32_t end_sqn;
    uint32_t lost;
    uint32_t needless; /* retransmissions of datagrams that this receiver did not miss */
} um_other_losers;

void um_other_losers_init(um_other_losers *others);

/* The session receives datagrams from this sqn on. */
void um_other_losers_begin(um_other_losers *others, uint32_t sqn);

/* A lost datagram was retransmitted; next_sqn: of the session. is_shared: another receiver has NAKed it, too. */
void um_other_losers_on_repaired(um_other_losers *others, uint32_t next_sqn, bool is_shared);

/* Another receiver has NAKed a datagram that was retransmitted before. */
void um_other_losers_on_late_ncf(um_other_losers *others);

/* A retransmission arrived that this receiver did not need. */
void um_other_losers_on_needless(um_other_losers *others);

/* Returns how many other receivers are assumed to wait with the same loss, in 1/UM_OTHER_LOSERS_ONE. */
uint64_t um_other_losers_estimate(const um_other_losers *others, uint32_t receivers);

#endif

/* Runs of LBT-RM datagrams that a kernel has joined (UDP GRO) without saying how long each of them is. */
#ifndef UM_CORE_LBTRM_RUN_H
#define UM_CORE_LBTRM_RUN_H

#include "core/foundation/base.h"

/* The length of each datagram but the last, which may be shorter: where the messages of the first one end and the same
 * header begins again. 0 where that is not seen: a single datagram, something else, or less captured than that takes.
 * Reads nothing beyond [data, data + captured). */
uint32_t um_lbtrm_run_segment(const uint8_t *data, uint32_t captured);

#endif

/* Runs of LBT-RM datagrams that a kernel has joined (UDP GSO, UDP GRO) without recording their lengths. */
#ifndef UM_CORE_LBTRM_RUN_H
#define UM_CORE_LBTRM_RUN_H

#include "core/foundation/base.h"

/* Returns the length of each datagram but the last, which may be shorter: the offset at which the messages of the first
 * one end and the same header repeats. Returns 0 if there is none: a single datagram, other data, or too little
 * captured. Reads only inside [data, data + captured). */
uint32_t um_lbtrm_run_segment(const uint8_t *data, uint32_t captured);

#endif

/* Limits of recovery timing that source and receiver share (recovery_timing.h, source_timing.h). */
#ifndef UM_CORE_RECOVERY_LIMITS_H
#define UM_CORE_RECOVERY_LIMITS_H

enum {
    UM_RECOVERY_FLOOR_NS = 100000,             /* minimum interval between two NAKs for one datagram */
    UM_RECOVERY_FIRST_ROUND_TRIP_NS = 2000000, /* round trip assumed before the first sample */
};

#endif

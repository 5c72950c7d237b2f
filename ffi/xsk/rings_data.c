#include <stdlib.h>
#include <sys/socket.h>

#include "../bpf/steering_time.h"
#include "os/clock.h"
#include "xsk/nic_clock.h"

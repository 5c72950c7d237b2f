/* Kernel structs that Python fills in and no header of ours declares. */
#include <linux/filter.h>

struct sock_filter {
    uint16_t code;
    uint8_t jt;
    uint8_t jf;
    uint32_t k;
};

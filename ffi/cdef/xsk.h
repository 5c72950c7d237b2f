/* AF_XDP as Python sees it. Contracts: ffi/xsk/rings.h, ffi/io/rings.h. */
#include "xsk/rings.h"

typedef struct um_rings um_rings;
typedef struct um_xsk_rings um_xsk_rings;

enum um_xsk_mode { UM_XSK_COPY, UM_XSK_ZERO_COPY };

typedef struct um_xsk_config {
    char interface[16];
    enum um_xsk_mode mode;
    uint32_t first_queue;
    uint32_t queue_count;
    uint32_t frame_bytes;
    uint32_t receive_frame_count;
    uint32_t send_frame_count;
    bool multi_buffer;
    bool verify_checksum;
    bool huge_pages;
    bool busy_poll;
    uint32_t busy_poll_us;
    uint32_t busy_poll_budget;
    bool lent;
    int64_t busy_deadline_ns;
    ...;
} um_xsk_config;

typedef struct um_xsk_facts {
    bool zero_copy;
    bool multi_buffer;
    bool huge_pages;
    bool busy_poll;
    uint32_t datagram_max_bytes;
    uint64_t locked_bytes;
    ...;
} um_xsk_facts;

int um_xsk_rings_open(const um_xsk_config *config, um_xsk_rings **rings);
int um_xsk_rings_adopt(const um_xsk_config *config, const int *sockets, int memory, um_xsk_rings **rings);
void um_xsk_rings_close(um_xsk_rings *rings);
const char *um_xsk_rings_failed_step(const um_xsk_rings *rings);
um_rings *um_xsk_rings_base(um_xsk_rings *rings);
void um_xsk_rings_facts(const um_xsk_rings *rings, um_xsk_facts *facts);
int um_xsk_rings_socket(const um_xsk_rings *rings, uint32_t index);
int um_xsk_rings_memory(const um_xsk_rings *rings);
uint64_t um_xsk_rings_received(const um_xsk_rings *rings, uint32_t index);

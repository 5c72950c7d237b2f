/* AF_XDP as Python sees it. Contracts: ffi/xsk/port.h, ffi/io/port.h. */
#include "xsk/port.h"

typedef struct um_port um_port;
typedef struct um_xsk_port um_xsk_port;

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

int um_xsk_port_open(const um_xsk_config *config, um_xsk_port **port);
int um_xsk_port_adopt(const um_xsk_config *config, const int *sockets, int memory, um_xsk_port **port);
void um_xsk_port_close(um_xsk_port *port);
const char *um_xsk_port_failed_step(const um_xsk_port *port);
um_port *um_xsk_port_base(um_xsk_port *port);
void um_xsk_port_facts(const um_xsk_port *port, um_xsk_facts *facts);
int um_xsk_port_socket(const um_xsk_port *port, uint32_t index);
int um_xsk_port_memory(const um_xsk_port *port);
uint64_t um_xsk_port_received(const um_xsk_port *port, uint32_t index);

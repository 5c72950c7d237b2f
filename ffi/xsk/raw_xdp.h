/* Raw AF_XDP baselines: the least a program can do to move counted messages by multicast over the rings of a ring set.
 * They measure what the stack adds. Messages, markers, results and errors are those of bench/raw_udp.h; each datagram
 * carries one message. Headers are written into every send frame once, and datagrams carry no UDP checksum, as RFC 768
 * allows. Of received datagrams only the length is read, because the steering program has matched the rest.
 *
 * A run blocks until its time or count is reached. It uses one queue on one thread; nothing else may use the ring set.
 */
#ifndef UM_XSK_RAW_XDP_H
#define UM_XSK_RAW_XDP_H

#include "bench/raw_pingpong.h"
#include "bench/raw_udp.h"
#include "xsk/rings.h"

/* -EINVAL unless the config has segments 1, pacing 0 and packing 1, which do not apply here. */
int um_xsk_raw_send(um_xsk_rings *rings, uint32_t interface_ip, const um_raw_send_config *config,
                    um_raw_send_result *result);
int um_xsk_raw_receive(um_xsk_rings *rings, const um_raw_receive_config *config, um_raw_receive_result *result);

/* Busy polling over two groups: each end listens on its own group, steered to its port, and sends to the other's. */
int um_xsk_raw_ping(um_xsk_rings *rings, const um_raw_pingpong_config *config, uint64_t warmup_count,
                    uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result);
int um_xsk_raw_echo(um_xsk_rings *rings, const um_raw_pingpong_config *config, um_raw_echo_result *result);

/* ---- shared by the files of this baseline ---- */

/* Writes the headers of datagrams of `length` bytes into all free send frames. */
void um_xsk_raw_prepare(um_xsk_rings *rings, um_address from, um_address to, uint32_t length);
/* Puts one datagram of this length, which starts with this payload, into the send ring. Returns the number of frames it
 * takes, for the caller to submit; 0 if there is no space. */
uint32_t um_xsk_raw_put(um_xsk_queue *queue, const uint8_t *payload, uint32_t payload_bytes, uint32_t length);
/* Returns true if the datagram of the descriptor at `at` continues in the next descriptor. */
bool um_xsk_raw_is_continued(const um_xsk_queue *queue, uint32_t at);
/* Returns the payload of the datagram that starts with the descriptor at `at`, and its whole length. */
const uint8_t *um_xsk_raw_payload(const um_xsk_queue *queue, uint32_t at, uint32_t *length);

#endif

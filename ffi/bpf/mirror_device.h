/* A device that takes frames and keeps none (a TAP without a reader): what is redirected to it can be watched by a
 * packet socket before it is thrown away, runs of datagrams (UDP GSO) whole.
 *
 * Contract. The device is a descriptor: closing it (or process exit) removes it. It is made in the calling thread's
 * network namespace, has no address and needs none. Any thread may call. Errors are negative errno values; -ENOENT: the
 * kernel has no /dev/net/tun, -EINVAL: it does not keep runs whole (Linux 6.2 does).
 */
#ifndef XDP_MIRROR_DEVICE_H
#define XDP_MIRROR_DEVICE_H

#include <stdint.h>

enum { XDP_MIRROR_NAME_BYTES = 16 };

/* Makes it and brings it up. name: as many bytes, where its name is put. Returns the descriptor, which belongs to the
 * caller. */
int xdp_mirror_device_open(char *name, uint32_t *interface_index);

#endif

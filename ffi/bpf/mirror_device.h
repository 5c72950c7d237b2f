/* A device that discards all frames (a TAP without a reader). A packet socket can watch the frames redirected to it
 * before they are discarded, with runs of datagrams (UDP GSO) kept whole.
 *
 * Contract. The device is a descriptor: closing it (or process exit) removes it. It is created in the calling thread's
 * network namespace, without an address. Any thread may call. Errors are negative errno values; -ENOENT: the kernel has
 * no /dev/net/tun, -EINVAL: the kernel does not keep runs whole (needs Linux 6.2).
 */
#ifndef XDP_MIRROR_DEVICE_H
#define XDP_MIRROR_DEVICE_H

#include <stdint.h>

enum { XDP_MIRROR_NAME_BYTES = 16 };

/* Creates the device and brings it up. Writes its name to `name`, XDP_MIRROR_NAME_BYTES long. Returns the descriptor,
 * which belongs to the caller. */
int xdp_mirror_device_open(char *name, uint32_t *interface_index);

#endif

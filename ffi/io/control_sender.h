/* The sockets by which a context sends NAKs and status messages to the sources of LBT-RM sessions: one per family.
 * Internal to ffi/io; receiving opens them when a session needs them.
 *
 *     closed --- first session of the family ---> open --- the interface has another address ---> open again
 *
 * Threads: the context lock. Errors: negative errno; `link.failed_step` names the step.
 */
#ifndef UM_IO_CONTROL_SENDER_H
#define UM_IO_CONTROL_SENDER_H

#include "io/links.h"

typedef struct um_control_sender {
    um_socket_link link; /* its fd is -1 while it is closed */
    um_tap_link tapped;  /* as the sessions see it */
} um_control_sender;

/* Opens the socket unless it is open. 0 or -errno. */
int um_control_sender_need(um_control_sender *sender, um_links *links, const um_socket_config *config);
/* True if the interface no longer has the address of the socket. */
bool um_control_sender_has_moved(const um_control_sender *sender, const um_socket_config *config);
/* Opens an open socket again if the interface has another address. Returns 1 if it did, 0 if it did not need to, or
 * -errno; without an address of IPv6 the socket stays. */
int um_control_sender_follow(um_control_sender *sender, um_links *links, const um_socket_config *config);

#endif

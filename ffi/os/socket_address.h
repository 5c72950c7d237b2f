/* Converts addresses of the core to socket addresses of the kernel and back: the only place that does.
 *
 * No state, any thread, no errors.
 */
#ifndef UM_OS_SOCKET_ADDRESS_H
#define UM_OS_SOCKET_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "core/foundation/address.h"

typedef union um_socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} um_socket_address;

/* Returns the length of the socket address. `interface_index` is the scope of a link-local address; the kernel ignores
 * it for others. */
static inline socklen_t um_socket_address_set(um_socket_address *name, um_address address, uint32_t interface_index)
{
    if (UM_LIKELY(!um_ip_is_v6(address.ip))) {
        name->v4 = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_port = htons(address.port), .sin_addr.s_addr = htonl(um_ip_v4(address.ip))};
        return sizeof name->v4;
    }
    name->v6 = (struct sockaddr_in6){
        .sin6_family = AF_INET6, .sin6_port = htons(address.port), .sin6_scope_id = interface_index};
    um_ip_store_v6(name->v6.sin6_addr.s6_addr, address.ip);
    return sizeof name->v6;
}

static inline um_address um_socket_address_get(const um_socket_address *name)
{
    if (UM_LIKELY(name->any.sa_family == AF_INET))
        return um_address_of_v4(ntohl(name->v4.sin_addr.s_addr), ntohs(name->v4.sin_port));
    return (um_address){um_ip_load_v6(name->v6.sin6_addr.s6_addr), ntohs(name->v6.sin6_port)};
}

#endif

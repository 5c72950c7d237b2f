#include "io/datagram_batch.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>

#include "os/socket_address.h"

enum { SPACE_MILLISECONDS = 10 };

static bool await_space(int fd)
{
    struct pollfd wanted = {.fd = fd, .events = POLLOUT};
    return poll(&wanted, 1, SPACE_MILLISECONDS) > 0;
}

/* Sends all of them; skips one that cannot be sent, and all that remain if there is no space. */
static uint32_t send_all(int fd, struct mmsghdr *headers, uint32_t count)
{
    uint32_t sent = 0;
    uint32_t next = 0;
    while (next < count) {
        int result = sendmmsg(fd, headers + next, count - next, 0);
        if (result > 0) {
            sent += (uint32_t)result;
            next += (uint32_t)result;
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            if (!await_space(fd))
                break;
        } else if (errno != EINTR) {
            next++;
        }
    }
    return sent;
}

uint32_t um_datagram_fan_out(int fd, const uint8_t *data, uint32_t bytes, const um_address *to, uint32_t count,
                             uint32_t except)
{
    struct iovec payload = {.iov_base = (void *)data, .iov_len = bytes};
    um_socket_address addresses[UM_DATAGRAM_BATCH_MAX];
    struct mmsghdr headers[UM_DATAGRAM_BATCH_MAX];
    uint32_t sent = 0;
    uint32_t staged = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i != except) {
            socklen_t length = um_socket_address_set(&addresses[staged], to[i], 0);
            headers[staged] = (struct mmsghdr){
                .msg_hdr = {
                    .msg_name = &addresses[staged], .msg_namelen = length, .msg_iov = &payload, .msg_iovlen = 1}};
            staged++;
        }
        if (staged == UM_DATAGRAM_BATCH_MAX || (staged != 0 && i + 1 == count)) {
            sent += send_all(fd, headers, staged);
            staged = 0;
        }
    }
    return sent;
}

int um_datagram_receive(int fd, uint8_t *buffer, uint32_t stride, um_received_datagram *received, uint32_t count)
{
    struct iovec parts[UM_DATAGRAM_BATCH_MAX];
    um_socket_address sources[UM_DATAGRAM_BATCH_MAX];
    struct mmsghdr headers[UM_DATAGRAM_BATCH_MAX];
    assert(count <= UM_DATAGRAM_BATCH_MAX);
    for (uint32_t i = 0; i < count; i++) {
        parts[i] = (struct iovec){.iov_base = buffer + (size_t)i * stride, .iov_len = stride};
        headers[i] = (struct mmsghdr){
            .msg_hdr = {
                .msg_name = &sources[i], .msg_namelen = sizeof sources[i], .msg_iov = &parts[i], .msg_iovlen = 1}};
    }
    int found = recvmmsg(fd, headers, count, MSG_DONTWAIT, NULL);
    if (found < 0)
        return -errno;
    for (int i = 0; i < found; i++)
        received[i] = (um_received_datagram){.source = um_socket_address_get(&sources[i]), .bytes = headers[i].msg_len};
    return found;
}

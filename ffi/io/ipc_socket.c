#include "io/ipc_socket.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

/* Stores the abstract address of a session, named as in Ultra Messaging (UX-12). Returns its length. */
static socklen_t name_of(struct sockaddr_un *address, uint32_t session_id, uint16_t transport_id)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "umstack/LBTIPC_%x_%u",
                          (unsigned)session_id, (unsigned)transport_id);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int open_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

/* Returns fd, or closes it and returns -errno. */
static int checked(int fd, int result)
{
    if (result == 0)
        return fd;
    int error = -errno;
    close(fd);
    return error;
}

int um_ipc_listen(uint32_t session_id, uint16_t transport_id)
{
    struct sockaddr_un address;
    socklen_t length = name_of(&address, session_id, transport_id);
    int fd = open_socket();
    if (fd < 0)
        return fd;
    fd = checked(fd, bind(fd, (struct sockaddr *)&address, length));
    return fd < 0 ? fd : checked(fd, listen(fd, BACKLOG));
}

um_ipc_peer um_ipc_peer_of(int fd)
{
    struct ucred known = {.uid = UINT32_MAX};
    socklen_t length = sizeof known;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &known, &length);
    return (um_ipc_peer){(uint32_t)known.pid, known.uid};
}

bool um_ipc_can_share(const um_ipc_peer *peer, uint32_t user_id)
{
    return peer->process_id != 0 && peer->user_id == user_id;
}

int um_ipc_accept(int listen_fd, um_ipc_peer *peer)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return -errno;
    *peer = um_ipc_peer_of(fd);
    return fd;
}

int um_ipc_connect(uint32_t session_id, uint16_t transport_id)
{
    struct sockaddr_un address;
    socklen_t length = name_of(&address, session_id, transport_id);
    int fd = open_socket();
    return fd < 0 ? fd : checked(fd, connect(fd, (struct sockaddr *)&address, length));
}

/* Space for the control message that carries descriptors. */
typedef union descriptors {
    char bytes[CMSG_SPACE(sizeof(int) * UM_IPC_DESCRIPTORS)];
    struct cmsghdr align;
} descriptors;

int um_ipc_send(int fd, const um_ipc_control *message, const int *fds, uint32_t count)
{
    assert(count <= UM_IPC_DESCRIPTORS);
    descriptors space = {{0}};
    struct iovec vector = {(void *)(uintptr_t)message, sizeof *message};
    struct msghdr out = {.msg_iov = &vector, .msg_iovlen = 1};
    if (count > 0) {
        out.msg_control = &space;
        out.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *control = CMSG_FIRSTHDR(&out);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(control), fds, sizeof(int) * count);
    }
    return sendmsg(fd, &out, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *message ? 0 : -errno;
}

/* Takes the descriptors that came with a message; more than the space for them holds were closed by the kernel. */
static void take_descriptors(struct msghdr *in, int *fds)
{
    struct cmsghdr *control = CMSG_FIRSTHDR(in);
    if (control == NULL || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
        return;
    size_t bytes = control->cmsg_len - CMSG_LEN(0);
    memcpy(fds, CMSG_DATA(control),
           bytes < sizeof(int) * UM_IPC_DESCRIPTORS ? bytes : sizeof(int) * UM_IPC_DESCRIPTORS);
}

static void close_descriptors(int *fds)
{
    for (int i = 0; i < UM_IPC_DESCRIPTORS; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

int um_ipc_receive(int fd, um_ipc_control *message, int *fds)
{
    uint8_t bytes[UM_IPC_CONTROL_BYTES + 1];
    descriptors space;
    struct iovec vector = {bytes, sizeof bytes};
    struct msghdr in = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fds != NULL) {
        for (int i = 0; i < UM_IPC_DESCRIPTORS; i++)
            fds[i] = -1;
        in.msg_control = &space;
        in.msg_controllen = sizeof space;
    }
    ssize_t got = recvmsg(fd, &in, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    if (fds != NULL)
        take_descriptors(&in, fds);
    if (fds != NULL && (in.msg_flags & MSG_CTRUNC) != 0) {
        close_descriptors(fds);
        return -EPROTO;
    }
    if (got == 0)
        return 0;
    return um_ipc_control_decode(bytes, (size_t)got, message) ? 1 : -EPROTO;
}

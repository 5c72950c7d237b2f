#include "io/ipc_wakeup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NAME_BYTES = 32 }; /* of a path below /proc/self/fd, and of an anonymous inode */

int um_ipc_wakeup_create(void)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

/* Returns true if the descriptor is an eventfd. Only the kernel makes files of this name: others are paths. */
static bool is_eventfd(int fd)
{
    char path[NAME_BYTES], name[NAME_BYTES];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name);
    static const char EVENTFD[] = "anon_inode:[eventfd]";
    return length == (ssize_t)(sizeof EVENTFD - 1) && memcmp(name, EVENTFD, sizeof EVENTFD - 1) == 0;
}

bool um_ipc_wakeup_can_check(void)
{
    return access("/proc/self/fd", X_OK) == 0;
}

bool um_ipc_wakeup_check(int fd)
{
    return fd >= 0 && is_eventfd(fd) && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

void um_ipc_wakeup_send(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one); /* full: the other side has a wake-up already */
    (void)ignored;
}

void um_ipc_wakeup_take(int fd)
{
    uint64_t count;
    struct iovec into = {&count, sizeof count};
    ssize_t ignored = preadv2(fd, &into, 1, -1, RWF_NOWAIT); /* empty: the peer took it, or has yet to write it */
    (void)ignored;
}

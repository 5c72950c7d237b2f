#include "bpf/mirror_device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

/* Keeps runs whole, and drops every frame instead of queueing it for a reader. */
static int configure(int fd, struct ifreq *request)
{
    struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
    struct sock_fprog filter = {1, &nothing};

    strncpy(request->ifr_name, "ummirror%d", sizeof request->ifr_name - 1);
    request->ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(fd, TUNSETIFF, request) != 0)
        return -errno;
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6) != 0)
        return -errno;
    return ioctl(fd, TUNATTACHFILTER, &filter) == 0 ? 0 : -errno;
}

/* Stops neighbor and group discovery on the device. A container may forbid this: then a few more frames pass. */
static void disable_ipv6(const char *name)
{
    char path[64 + XDP_MIRROR_NAME_BYTES];
    ssize_t ignored;
    int fd;

    snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%.16s/disable_ipv6", name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ignored = write(fd, "1", 1);
    (void)ignored;
    close(fd);
}

static int bring_up(struct ifreq *request, uint32_t *interface_index)
{
    int result = 0, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    request->ifr_flags = IFF_UP | IFF_NOARP;
    if (ioctl(fd, SIOCSIFFLAGS, request) != 0 || ioctl(fd, SIOCGIFINDEX, request) != 0)
        result = -errno;
    else
        *interface_index = (uint32_t)request->ifr_ifindex;
    close(fd);
    return result;
}

int xdp_mirror_device_open(char *name, uint32_t *interface_index)
{
    struct ifreq request = {0};
    int result, fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    result = configure(fd, &request);
    memcpy(name, request.ifr_name, XDP_MIRROR_NAME_BYTES);
    if (result == 0) {
        disable_ipv6(name);
        result = bring_up(&request, interface_index);
    }
    if (result == 0)
        return fd;
    close(fd);
    return result;
}

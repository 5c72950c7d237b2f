/* Datagram sizes from MTUs, frames and paths. */
#include "core/wire/datagram_size.h"
#include "support.h"

TEST("W4", "the payload is the MTU minus the headers, and never wraps")
{
    CHECK_EQ(um_datagram_size_of_mtu(0), 0);
    CHECK_EQ(um_datagram_size_of_mtu(27), 0);
    CHECK_EQ(um_datagram_size_of_mtu(28), 0);
    CHECK_EQ(um_datagram_size_of_mtu(29), 1);
    CHECK_EQ(um_datagram_size_of_mtu(1500), 1472);
    CHECK_EQ(um_datagram_size_of_mtu(9000), 8972);
    CHECK_EQ(um_datagram_size_of_mtu(65534), 65506);
    CHECK_EQ(um_datagram_size_of_mtu(65535), 65507);
    CHECK_EQ(um_datagram_size_of_mtu(65536), 65507);
    CHECK_EQ(um_datagram_size_of_mtu(UINT32_MAX), 65507);
}

TEST("W4", "a frame's payload is its size minus the headers")
{
    CHECK_EQ(um_datagram_size_in(2048 - 256, 42), 1750);
    CHECK_EQ(um_datagram_size_in(41, 42), 0);
    CHECK_EQ(um_datagram_size_in(17 * 4096, 42), 65507);
}

TEST("W4", "a session follows the path between UM's lower bound and its memory")
{
    CHECK_EQ(um_datagram_size_on_path(1472, 8972), 1472);
    CHECK_EQ(um_datagram_size_on_path(65507, 8972), 8972);
    CHECK_EQ(um_datagram_size_on_path(0, 8972), 500);
    CHECK_EQ(um_datagram_size_on_path(499, 8972), 500);
    CHECK_EQ(um_datagram_size_on_path(501, 8972), 501);
}

CHECK_MAIN

/* Addresses of both families as the core stores them, and as the kernel takes them. */
#include "core/foundation/address.h"
#include "core/source/flow_control.h"
#include "os/socket_address.h"

#include "check.h"

static const um_address GROUP = UM_ADDRESS_V4(0xe00a0a0a, 14400), HOST = UM_ADDRESS_V4(0x0a000001, 14400);
static const um_address GROUP6 = {{0xff15ull << 48, 7}, 14400}, HOST6 = {{0xfdull << 56, 0xffffe0000001}, 14400};
static const um_address LOOPBACK6 = {{0, 1}, 14400};
static const um_address LINK_LOCAL = {{0xfe80ull << 48, 0x0200}, 14390};

TEST("", "an address has one family, and is a group or one host's")
{
    CHECK(!um_ip_is_v6(GROUP.ip) && !um_ip_is_v6(HOST.ip) && !um_ip_is_v6((um_ip){0}));
    CHECK(um_ip_is_v6(GROUP6.ip) && um_ip_is_v6(HOST6.ip) && um_ip_is_v6(LOOPBACK6.ip));
    CHECK(um_ip_is_multicast(GROUP.ip) && um_ip_is_multicast(GROUP6.ip));
    CHECK(!um_ip_is_multicast(HOST.ip) && !um_ip_is_multicast(um_ip_of_v4(0xf0000000)));
    /* Its last 48 bits look like a mapped IPv4 group. */
    CHECK(!um_ip_is_multicast(HOST6.ip) && !um_ip_is_multicast(LOOPBACK6.ip) && !um_ip_is_multicast((um_ip){0}));
    CHECK(um_ip_is_host(HOST.ip) && um_ip_is_host(HOST6.ip) && um_ip_is_host(LOOPBACK6.ip));
    CHECK(!um_ip_is_host(GROUP.ip) && !um_ip_is_host(GROUP6.ip) && !um_ip_is_host((um_ip){0}));
    CHECK(!um_ip_is_host(um_ip_of_v4(UINT32_MAX)));
    CHECK(um_ip_equal(um_ip_of_v4(0), (um_ip){0}) && !um_ip_is_set(um_ip_of_v4(0)));
    CHECK_EQ(um_ip_v4(HOST.ip), 0x0a000001);
}

TEST("", "addresses that differ in one bit are different, also in the key of tables for IPv4")
{
    for (uint32_t bit = 0; bit < 64; bit++) {
        um_address high = HOST6, low = HOST6;
        high.ip.high ^= (uint64_t)1 << bit;
        low.ip.low ^= (uint64_t)1 << bit;
        CHECK(!um_address_equal(high, HOST6) && !um_address_equal(low, HOST6));
        CHECK(um_address_key(high) != um_address_key(HOST6));
    }
    for (uint32_t bit = 0; bit < 32; bit++)
        CHECK(um_address_key(um_address_of_v4(0x0a000001 ^ 1u << bit, 14400)) != um_address_key(HOST));
    CHECK(um_address_key(um_address_of_v4(0x0a000001, 14401)) != um_address_key(HOST));
}

TEST("AE-19", "a network of either family contains its addresses only")
{
    um_network networks[] = {{{0, UM_IPV4_MAPPED | 0x0a000000}, {UINT64_MAX, (uint64_t)UINT32_MAX << 32 | 0xff000000}},
                             {{0xfdull << 56, 0}, {UINT64_MAX, 0}}};
    CHECK(um_flow_is_allowed(networks, 2, HOST.ip) && um_flow_is_allowed(networks, 2, HOST6.ip));
    CHECK(!um_flow_is_allowed(networks, 2, um_ip_of_v4(0x0b000001)));
    CHECK(!um_flow_is_allowed(networks, 1, HOST6.ip)); /* its low word ends like one of 10.0.0.0/8 would */
    CHECK(!um_flow_is_allowed(networks, 2, LINK_LOCAL.ip));
}

TEST("", "socket addresses are converted there and back, with the interface as scope")
{
    const um_address all[] = {GROUP, HOST, GROUP6, HOST6, LOOPBACK6, LINK_LOCAL, {{0}, 5}};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        um_socket_address name;
        bool is_v6 = um_ip_is_v6(all[i].ip);
        CHECK_EQ(um_socket_address_set(&name, all[i], 3), is_v6 ? sizeof name.v6 : sizeof name.v4);
        CHECK_EQ(name.any.sa_family, is_v6 ? AF_INET6 : AF_INET);
        CHECK(um_address_equal(um_socket_address_get(&name), all[i]));
        CHECK(!is_v6 || name.v6.sin6_scope_id == 3);
    }
    um_socket_address name;
    um_socket_address_set(&name, GROUP6, 3);
    const uint8_t expected[UM_IPV6_BYTES] = {0xff, 0x15, [15] = 7};
    CHECK(memcmp(name.v6.sin6_addr.s6_addr, expected, sizeof expected) == 0);
}

CHECK_MAIN

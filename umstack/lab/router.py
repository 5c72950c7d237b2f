"""The router: a namespace that forwards unicast between subnets, one for each host, and no multicast.

That is what a network without multicast looks like to its hosts: what they send to a group goes to the router and no
further, and a neighbour is reached by its address only. Nothing leads out of the router.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from umstack.lab import cables, namespaces
from umstack.lab.cables import CableKind
from umstack.lab.links import index_of, netlink, set_sysctl

PREFIX_LENGTH = 24


def gateway_of(host_number: int) -> str:
    """Return the router's address in the subnet of that host."""
    return str(_subnet(host_number)[1])


def address_of(host_number: int) -> str:
    """Return the address of that host."""
    return str(_subnet(host_number)[2])


def _subnet(host_number: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"10.77.{host_number}.0/{PREFIX_LENGTH}")


def build(namespace: str, host_namespaces: Sequence[str], kind: CableKind) -> None:
    """Lay a cable to `eth0` of each host, give this end its address, and forward unicast between them."""
    namespaces.call(namespace, lambda: _build(host_namespaces, kind))


def _build(host_namespaces: Sequence[str], kind: CableKind) -> None:
    for scope in ("all", "default"):
        set_sysctl(f"ipv6/conf/{scope}/disable_ipv6", 1)
        # Each host is reached by one way only; where a system's default is to check that, it costs and finds nothing.
        set_sysctl(f"ipv4/conf/{scope}/rp_filter", 0)
    # Multicast is forwarded for a multicast routing daemon only (mc_forwarding), and none runs here.
    set_sysctl("ipv4/ip_forward", 1)
    with netlink("making the router") as route:
        route.link("set", index=index_of(route, "lo"), state="up")
        for number, host in enumerate(host_namespaces):
            port = cables.lay(route, number, host, kind)
            route.addr("add", index=port, address=gateway_of(number), prefixlen=PREFIX_LENGTH)
            route.link("set", index=port, state="up")

"""The router: a namespace that forwards unicast between one subnet per host, and no multicast.

It simulates a network without multicast: datagrams to a group end at the router, and a host is reached by its address
only. Nothing is forwarded outside.
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
    """Lay a cable to `eth0` of each host, set the address of this end, and forward unicast between them."""
    namespaces.call(namespace, lambda: _build(host_namespaces, kind))


def _build(host_namespaces: Sequence[str], kind: CableKind) -> None:
    for scope in ("all", "default"):
        set_sysctl(f"ipv6/conf/{scope}/disable_ipv6", 1)
        # Each host has one route only, so reverse path filtering, a default of some systems, would only cost time.
        set_sysctl(f"ipv4/conf/{scope}/rp_filter", 0)
    # Multicast is forwarded only for a multicast routing daemon (mc_forwarding), and none runs here.
    set_sysctl("ipv4/ip_forward", 1)
    with netlink("creating the router") as route:
        route.link("set", index=index_of(route, "lo"), state="up")
        for number, host in enumerate(host_namespaces):
            port = cables.lay(route, number, host, kind)
            route.addr("add", index=port, address=gateway_of(number), prefixlen=PREFIX_LENGTH)
            route.link("set", index=port, state="up")

"""The cables (veth) between the switch's or router's namespace and `eth0` of each host."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from umstack.lab import namespaces
from umstack.lab.links import index_of, netlink
from umstack_xdp import traffic_control

HOST_INTERFACE = "eth0"


@dataclass(frozen=True, slots=True)
class CableKind:
    """The properties of all cables of a lab."""

    mtu_bytes: int
    queue_count: int


def port_name(host_number: int) -> str:
    """Return the name of the switch's or router's end of the cable to that host."""
    return f"port{host_number}"


def lay(route: IPRoute, number: int, host_namespace: str, kind: CableKind) -> int:
    """Lay a cable from this namespace to `eth0` of a host; return the index of this end, which is down."""
    queues = {"num_tx_queues": kind.queue_count, "num_rx_queues": kind.queue_count}
    host_end = {"ifname": HOST_INTERFACE, "net_ns_fd": host_namespace, "mtu": kind.mtu_bytes, **queues}
    route.link("add", ifname=port_name(number), kind="veth", mtu=kind.mtu_bytes, peer=host_end, **queues)
    port = index_of(route, port_name(number))
    # Now, because adding or removing it while the port is up would drop datagrams.
    traffic_control.add_qdisc(route, port)
    return port


def remove_all(namespace: str) -> None:
    """Remove all links of the switch or router, and with them the hosts' ends; missing links are not an error."""

    def delete_links() -> None:
        with netlink("removing the cables") as route:
            links = [link["index"] for link in route.get_links() if link.get_attr("IFLA_IFNAME") != "lo"]
            for index in links:
                # Removing its other end may have removed this end just now.
                try:
                    route.link("del", index=index)
                except NetlinkError as error:
                    if error.code != errno.ENODEV:
                        raise

    if namespaces.exists(namespace):
        namespaces.call(namespace, delete_links)

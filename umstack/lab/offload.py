"""Segmentation: selects if datagrams cross the lab one by one, as on a wire, or as super-packets, as on veth.

A sender with UDP GSO passes many datagrams to the kernel as one packet. A real NIC cuts it before the wire; veth passes
it on whole, so a lossy port would lose all of it at once, and measurements would lack the costs of a wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from umstack.lab import namespaces
from umstack.lab.cables import HOST_INTERFACE, port_name
from umstack.lab.links import set_feature

Segmentation = Literal["auto", "real", "offload"]

# A veth coalesces received datagrams (GRO) only if enabled, and if the other end has no TCP segmentation offload.
_TCP_SEGMENTATION = (
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
)


def set_segmentation(middle: str, host_namespaces: Sequence[str], is_real: bool) -> None:
    """Cut super-packets where they leave a host (real), or pass them on whole.

    If they are cut, the receiving host coalesces datagrams again for sockets that request it, as a NIC driver does.
    """

    def change_host() -> None:
        set_feature(HOST_INTERFACE, "tx-udp-segmentation", not is_real)
        set_feature(HOST_INTERFACE, "rx-gro", is_real)

    def change_middle() -> None:
        for number in range(len(host_namespaces)):
            for feature in _TCP_SEGMENTATION:
                set_feature(port_name(number), feature, not is_real)

    namespaces.call(middle, change_middle)
    for namespace in host_namespaces:
        namespaces.call(namespace, change_host)
    if not is_real:
        set_tcp_segmentation(host_namespaces, is_real=False)


def set_tcp_segmentation(host_namespaces: Sequence[str], is_real: bool) -> None:
    """Also cut TCP super-packets where they leave a host, or pass them to the switch whole, which is cheaper.

    Only faults of single segments require cutting: a receiver gets a stream of bytes, not datagrams.
    """

    def change() -> None:
        for feature in _TCP_SEGMENTATION:
            set_feature(HOST_INTERFACE, feature, not is_real)

    for namespace in host_namespaces:
        namespaces.call(namespace, change)


def verify_checksums(host_namespaces: Sequence[str]) -> None:
    """Let hosts compute the checksums of what they send, so that receivers verify them."""
    for namespace in host_namespaces:
        namespaces.call(namespace, lambda: set_feature(HOST_INTERFACE, "tx-checksum-ip-generic", is_on=False))

"""Segmentation: whether datagrams cross the lab one by one, as on a wire, or as super-packets, as veth would have it.

A sender with UDP GSO hands the kernel many datagrams as one packet. A real NIC cuts it before the wire; veth passes
it on whole, so that a lossy port would lose all of it at once and a measurement would see no wire at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from umstack.lab import namespaces
from umstack.lab.cables import HOST_INTERFACE, port_name
from umstack.lab.links import set_feature

Segmentation = Literal["auto", "real", "offload"]

# A veth joins received datagrams (GRO) only if it was told to and the other end does no TCP segmentation offload.
_TCP_SEGMENTATION = (
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
)


def set_segmentation(middle: str, host_namespaces: Sequence[str], is_real: bool) -> None:
    """Cut super-packets where they leave a host (real), or let them cross whole.

    Where they are cut, the receiving host joins datagrams again for the sockets that ask for it, as a NIC's driver
    does.
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
    """Cut TCP super-packets where they leave a host, too, or let them reach the switch whole, which is cheaper.

    Only the fate of single segments needs it: a stream is one of bytes, which no receiver gets as datagrams.
    """

    def change() -> None:
        for feature in _TCP_SEGMENTATION:
            set_feature(HOST_INTERFACE, feature, not is_real)

    for namespace in host_namespaces:
        namespaces.call(namespace, change)

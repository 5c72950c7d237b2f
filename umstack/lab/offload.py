"""Segmentation: whether datagrams cross the lab one by one, as on a wire, or as super-packets, as veth would have it.

A sender with UDP GSO hands the kernel many datagrams as one packet. A real NIC cuts it before the wire; veth passes
it on whole, so that a lossy port would lose all of it at once and a measurement would see no wire at all.
"""

from __future__ import annotations

from typing import Literal

from umstack.lab import namespaces
from umstack.lab.links import set_feature
from umstack.lab.switch import HOST_INTERFACE

Segmentation = Literal["auto", "real", "offload"]

_SENT_WHOLE = ("tx-udp-segmentation",)


def set_segmentation(host_namespace: str, is_real: bool) -> None:
    """Cut super-packets where they leave the host (real), or let them cross whole."""

    def change() -> None:
        for feature in _SENT_WHOLE:
            set_feature(HOST_INTERFACE, feature, not is_real)

    namespaces.call(host_namespace, change)


def set_receive_offload(host_namespace: str, is_on: bool) -> None:
    """Let the host's interface join datagrams again for sockets that asked for it (GRO), as a NIC's driver does."""
    namespaces.call(host_namespace, lambda: set_feature(HOST_INTERFACE, "rx-gro", is_on))

"""A host of the lab: a network namespace with a loopback, `eth0` toward the switch or router, and a route beyond."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from umstack.lab import namespaces
from umstack.lab.cables import HOST_INTERFACE, port_name
from umstack.lab.errors import LabError
from umstack.lab.links import index_of, netlink, set_sysctl
from umstack_xdp import Interface, InterfaceWatch, XdpError, find_interface

T = TypeVar("T")

MTU_MIN_BYTES = 576
MTU_MAX_BYTES = 9216
_LINK_TIMEOUT_SECONDS = 10.0


def check_mtu(mtu_bytes: int) -> int:
    """Return the MTU if the lab's cables and detours can carry it."""
    if not MTU_MIN_BYTES <= mtu_bytes <= MTU_MAX_BYTES:
        raise LabError(
            f"the lab's cables cannot carry an MTU of {mtu_bytes}",
            hint=f"use {MTU_MIN_BYTES} to {MTU_MAX_BYTES} bytes",
        )
    return mtu_bytes


class Host:
    """A host of a `Lab`; its processes end with the lab."""

    __slots__ = ("_children", "_middle", "address", "gateway", "namespace", "number", "prefix_length")

    def __init__(
        self,
        namespace: str,
        middle: str,
        number: int,
        address: str,
        prefix_length: int,
        gateway: str | None = None,
    ) -> None:
        """Describe a host; the namespaces exist already. `gateway` is the router's address in a routed lab."""
        self.namespace, self.number = namespace, number
        self.address, self.prefix_length, self.gateway = address, prefix_length, gateway
        self._middle = middle
        self._children: list[subprocess.Popen[Any]] = []

    @property
    def interface(self) -> str:
        """The name of the interface toward the switch or router."""
        return HOST_INTERFACE

    def configure(self) -> None:
        """Bring the interfaces up and set address and route."""

        def set_up() -> None:
            for scope in ("all", "default"):
                set_sysctl(f"ipv6/conf/{scope}/disable_ipv6", 1)
            with netlink(f"setting up {self.namespace}") as route:
                index = index_of(route, HOST_INTERFACE)
                route.link("set", index=index_of(route, "lo"), state="up")
                route.addr("add", index=index, address=self.address, prefixlen=self.prefix_length)
            _bring_up(self.gateway)

        namespaces.call(self.namespace, set_up)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on this host; `options` are subprocess.Popen's. The lab ends it in `down`."""
        child = namespaces.call(self.namespace, lambda: subprocess.Popen(argv, **options))
        self._children = [known for known in self._children if known.poll() is None]
        self._children.append(child)
        return child

    def call(self, function: Callable[[], T]) -> T:
        """Run a Python function on this host, on a separate thread. Sockets that it opens stay on this host."""
        return namespaces.call(self.namespace, function)

    def facts(self) -> Interface:
        """Return the state of the interface toward the switch or router."""
        try:
            return self.call(lambda: find_interface(HOST_INTERFACE))
        except XdpError as error:
            raise LabError(
                f"{self.namespace}: {error.message}", hint="take the lab down and up again"
            ) from error

    def set_mtu(self, mtu_bytes: int) -> None:
        """Change the MTU of both ends of the cable."""
        check_mtu(mtu_bytes)
        _set_link(self._middle, port_name(self.number), mtu=mtu_bytes)
        _set_link(self.namespace, HOST_INTERFACE, mtu=mtu_bytes)

    def set_path_mtu(self, mtu_bytes: int) -> None:
        """Change the MTU of the far end of the cable only: the network silently drops longer packets to this host."""
        check_mtu(mtu_bytes)
        _set_link(self._middle, port_name(self.number), mtu=mtu_bytes)

    def link_down(self) -> None:
        """Take the interface down, as `ip link set eth0 down` on the host: its routes are lost, its joins remain."""
        _set_link(self.namespace, HOST_INTERFACE, state="down")

    def link_up(self) -> None:
        """Bring the interface up again, restore its route and wait for the carrier."""
        self.call(lambda: _bring_up(self.gateway))

    def unplug(self) -> None:
        """Unplug the cable at its other end: the interface stays up; wait until it has lost its carrier."""
        _set_link(self._middle, port_name(self.number), state="down")
        self.call(lambda: _await_carrier(False))

    def plug(self) -> None:
        """Plug the cable in and wait for the carrier."""
        _set_link(self._middle, port_name(self.number), state="up")
        self.call(lambda: _await_carrier(True))

    def end_children(self) -> None:
        """End and reap the processes that `run` started."""
        namespaces.end_processes(child.pid for child in self._children if child.poll() is None)
        for child in self._children:
            child.wait()
        self._children.clear()

    def __repr__(self) -> str:
        """Return the name that `ip netns` shows."""
        return f"<Host {self.namespace} {self.address}>"


def _set_link(namespace: str, interface: str, **changes: Any) -> None:
    def change() -> None:
        with netlink(f"changing {interface} of {namespace}") as route:
            route.link("set", index=index_of(route, interface), **changes)

    namespaces.call(namespace, change)


def _bring_up(gateway: str | None) -> None:
    with netlink("bringing a host's interface up") as route:
        index = index_of(route, HOST_INTERFACE)
        route.link("set", index=index, state="up")
        if gateway is None:
            route.route("replace", dst="224.0.0.0/4", oif=index)
        else:
            route.route("replace", dst="default", gateway=gateway, oif=index)
    _await_carrier(True)


def _await_carrier(has_carrier: bool) -> None:
    deadline = time.monotonic() + _LINK_TIMEOUT_SECONDS
    with InterfaceWatch(HOST_INTERFACE) as watch:
        while bool(watch.interface and watch.interface.has_carrier) != has_carrier:
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                raise LabError(
                    f"{HOST_INTERFACE} has {'no' if has_carrier else 'a'} carrier after {_LINK_TIMEOUT_SECONDS:.0f} s",
                    hint="plug or unplug the cable, or change the state of its other end",
                )
            watch.wait(left_seconds)

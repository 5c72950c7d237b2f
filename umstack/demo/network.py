"""The network of the demo: a lab with a lossy switch or router or, if no lab is possible, the loopback interface."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from umstack.config import RESOLVER_DAEMON_PORT
from umstack.demo.errors import DemoFailed
from umstack.demo.settings import DemoSettings, Options
from umstack.lab import Lab, PortCounters
from umstack.lab.cables import port_name
from umstack_xdp.ladder import Mode, chosen, decide
from umstack_xdp.probe import probe_interface

_RMEM_MAX = Path("/proc/sys/net/core/rmem_max")
_LOOPBACK_DATAGRAM_BYTES = 8192
_CAP_NET_ADMIN = 12
_END_SECONDS = 5.0


class Network(Protocol):
    """Hosts on which processes can run; the publisher's is number 0."""

    kind: str
    interface: str
    switch_port: str
    """The switch's end of the publisher's cable."""
    why: str | None
    """The reason why this is not the requested network."""
    daemon: str | None
    """ADDRESS:PORT of the resolution daemon; None without one."""

    def run(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a host."""

    def run_at_switch(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process where the switch is."""

    def daemon_place(self) -> tuple[int, str]:
        """Return the host and the ADDRESS:PORT for a resolution daemon."""

    def address_of(self, host: int) -> str:
        """Return the address of a host."""

    def context_options(self) -> Options:
        """Return the options of contexts on this network."""

    def receiver_options(self) -> Options:
        """Return the options of receivers on this network."""

    @property
    def can_lose(self) -> bool:
        """Return true if `lose` works here."""

    def lose(self, loss: float) -> None:
        """Let every subscriber's port drop this fraction of the datagrams."""

    def port_counters(self, host: int) -> PortCounters | None:
        """Return the counters of the switch port toward a host; None without a switch."""

    def why_no_rings(self) -> str | None:
        """Return why AF_XDP is unavailable here; None if it is available."""

    def cut(self, host: int) -> None:
        """Take a host off the network."""

    def reconnect(self, host: int) -> None:
        """Reconnect it."""


@dataclass(slots=True)
class LabNetwork:
    """A lab whose switch or router loses datagrams at the subscribers' ports."""

    lab: Lab
    settings: DemoSettings
    why: str | None = None
    daemon: str | None = None
    kind: str = "lab"
    interface: str = "eth0"
    switch_port: str = port_name(0)

    def run(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a host."""
        return self.lab.hosts[host].run(argv, **options)

    def run_at_switch(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the switch's namespace."""
        return self.lab.run_at_switch(argv, **options)

    def daemon_place(self) -> tuple[int, str]:
        """Return the last host, which runs nothing else."""
        host = self.lab.hosts[-1]
        return host.number, f"{host.address}:{RESOLVER_DAEMON_PORT}"

    def address_of(self, host: int) -> str:
        """Return the address of a host."""
        return self.lab.hosts[host].address

    def context_options(self) -> Options:
        """Return the options of contexts on this network."""
        return {**self.settings.context_options, **_resolution_options(self.daemon)}

    def receiver_options(self) -> Options:
        """Return the options of receivers on this network."""
        return self.settings.receiver_options

    @property
    def can_lose(self) -> bool:
        """Return true if the ports' program can be loaded."""
        return self.why is None

    def lose(self, loss: float) -> None:
        """Let every subscriber's port drop this fraction of the datagrams."""
        for host in range(1, 1 + self.settings.subscribers):
            self.lab.port(host).set(loss=loss, unicast=True, tcp=self.settings.transport == "tcp")

    def port_counters(self, host: int) -> PortCounters | None:
        """Return the counters of the switch port toward a host."""
        return self.lab.port(host).counters()

    def why_no_rings(self) -> str | None:
        """Return why AF_XDP is unavailable here; None if it is available."""
        host = self.lab.hosts[0]
        steps = host.call(lambda: decide(probe_interface(host.facts()), "xdp"))
        if chosen(steps) is not None:
            return None
        least = next(step for step in steps if step.mode is Mode.GENERIC)
        return "; ".join(map(str, least.reasons))

    def cut(self, host: int) -> None:
        """Take a host's interface down."""
        self.lab.hosts[host].link_down()

    def reconnect(self, host: int) -> None:
        """Bring it up again."""
        self.lab.hosts[host].link_up()


@dataclass(slots=True)
class LoopbackNetwork:
    """This machine alone. Datagrams are lost only when a receive buffer is full."""

    why: str | None
    settings: DemoSettings = field(default_factory=DemoSettings)
    daemon: str | None = None
    kind: str = "loopback"
    interface: str = "lo"
    switch_port: str = "lo"
    _tail: int = 0

    def __post_init__(self) -> None:
        """Choose groups and a port that no other run on this machine uses."""
        self._tail = secrets.randbelow(2**16 - 512) + 256

    def run(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process; there is only one host."""
        return subprocess.Popen(argv, **options)

    def run_at_switch(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process; the kernel is the only switch."""
        return subprocess.Popen(argv, **options)

    def daemon_place(self) -> tuple[int, str]:
        """Return the only host, and the port that multicast topic resolution would use."""
        return 0, f"127.0.0.1:{self._resolver_port}"

    def address_of(self, host: int) -> str:
        """Return the address of the only host."""
        return "127.0.0.1"

    @property
    def _resolver_port(self) -> int:
        return 10000 + self._tail % 50000

    def context_options(self) -> Options:
        """Return the options of contexts on this network."""
        group = f"{self._tail >> 8}.{self._tail & 255}"
        return {
            **self.settings.context_options,
            **_resolution_options(self.daemon),
            "transport_lbtrm_datagram_max_size": _LOOPBACK_DATAGRAM_BYTES,
            "transport_lbtrm_multicast_address_low": f"239.193.{group}",
            "transport_lbtrm_multicast_address_high": f"239.193.{group}",
            "resolver_multicast_address": f"239.194.{group}",
            "resolver_multicast_port": self._resolver_port,
            "resolver_multicast_ttl": 0,
        }

    def receiver_options(self) -> Options:
        """Return the options of receivers: a window that fits the receive buffer this user gets."""
        options = self.settings.receiver_options
        wanted = int(options["flow_control_receiver_window"])
        granted_bytes = _receive_buffer_bytes(self.settings)
        return {**options, "flow_control_receiver_window": min(wanted, granted_bytes // 2)}

    @property
    def can_lose(self) -> bool:
        """There is no switch."""
        return False

    def lose(self, loss: float) -> None:
        """There is no switch."""
        raise NotImplementedError(f"loopback loses nothing, not {loss}")

    def port_counters(self, host: int) -> PortCounters | None:
        """There is no switch."""
        return None

    def why_no_rings(self) -> str | None:
        """Return why AF_XDP is unavailable, namely that loopback never leaves the kernel."""
        return f"rings bypass the kernel, which is where loopback ends ({self.why})"

    def cut(self, host: int) -> None:
        """There is no cable."""
        raise NotImplementedError(f"loopback has no cable to host {host}")

    def reconnect(self, host: int) -> None:
        """There is no cable."""
        raise NotImplementedError(f"loopback has no cable to host {host}")


def _resolution_options(daemon: str | None) -> Options:
    return {} if daemon is None else {"resolver_unicast_daemon": daemon}


@contextlib.contextmanager
def network(settings: DemoSettings) -> Iterator[Network]:
    """Bring the network up, with a resolution daemon if requested, and take it down at the end."""
    with _hosts(settings) as net:
        if not settings.has_resolver:
            yield net
            return
        host, address = net.daemon_place()
        with _resolving(net, host, address):
            net.daemon = address
            yield net


@contextlib.contextmanager
def _resolving(net: Network, host: int, address: str) -> Iterator[None]:
    """Run `umstack resolver` on a host; it is ready when the block starts."""
    daemon = net.run(
        host,
        [sys.executable, "-m", "umstack", "resolver", "--listen", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert daemon.stderr is not None
    try:
        first_line = daemon.stderr.readline()
        if not first_line.startswith("relaying"):
            raise DemoFailed(
                f"the resolution daemon at {address} did not start: {first_line}{daemon.stderr.read()}".strip(),
                hint="leave --resolver out, or end what listens there",
            )
        yield
    finally:
        daemon.terminate()
        try:
            daemon.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.communicate()


@contextlib.contextmanager
def _hosts(settings: DemoSettings) -> Iterator[Network]:
    why = "asked for" if settings.loopback else Lab.supported()
    if why is not None:
        yield LoopbackNetwork(why, settings)
        return
    for orphan in Lab.all():
        if orphan.is_stale:
            orphan.down()
    why = Lab.loss_supported() if settings.loss else None
    hosts = 1 + settings.subscribers + settings.has_resolver
    with Lab(hosts=hosts, mtu=settings.mtu_bytes, seed=settings.seed, routed=settings.has_resolver) as lab:
        yield LabNetwork(lab, settings, why)


def _receive_buffer_bytes(settings: DemoSettings) -> int:
    """Return the largest receive buffer of this process: limited by the sysctl, unless it has the capability."""
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    if os.geteuid() == 0 or effective >> _CAP_NET_ADMIN & 1:
        transport = "lbtru" if settings.transport == "lbtru" else "lbtrm"
        return int(settings.context_options[f"transport_{transport}_receiver_socket_buffer"])
    return int(_RMEM_MAX.read_text())

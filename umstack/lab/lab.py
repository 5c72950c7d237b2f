"""The lab: hosts around a switch or router in network namespaces; it ends with the process that created it."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import ipaddress
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Self, get_args

from umstack.lab import cables, namespaces, offload, registry, router, switch
from umstack.lab.cables import CableKind
from umstack.lab.errors import LabError
from umstack.lab.host import Host, check_mtu
from umstack.lab.offload import Segmentation
from umstack.lab.port import Port, PortDirection, PortSettings
from umstack.lab.registry import LabRecord
from umstack_xdp import unavailable

HOSTS_MAX = 200
_NETWORK = ipaddress.IPv4Network("10.77.0.0/24")
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Lab:
    """Hosts and a lossy switch or router. A context manager: creates the lab on entry, removes it on exit.

        with Lab(hosts=4, loss=0.02, seed=7) as lab:
            receiver = lab.hosts[1].run(["umstack", "recv", "orders"])
            lab.port(1).set(loss=0.05)

    `loss`, `duplicate` and `reorder` apply at every port toward its host: each subscriber loses different datagrams.
    `segmentation`: `real` cuts GSO super-packets where they leave a host, as on a wire, `offload` lets veth carry them
    whole; `auto` is `offload` until a port affects datagrams, and `real` from then on. `routed`: each host is in a
    separate subnet, and a router forwards unicast between them and no multicast. Its ports affect unicast UDP as those
    of a switch affect multicast. TCP segments are affected if a port is set so. A lab is also removed when its process
    ends by an exception, an exit, SIGTERM or SIGHUP; `umstack lab down --all` removes the remains after a SIGKILL.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        hosts: int = 4,
        mtu: int = 1500,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        seed: int | None = None,
        segmentation: Segmentation = "auto",
        queues: int = 1,
        routed: bool = False,
        lasting: bool = False,
    ) -> None:
        """Describe a lab without creating it. A `lasting` lab is removed neither on exit nor with its process."""
        if not 2 <= hosts <= HOSTS_MAX:
            raise LabError(f"a lab cannot have {hosts} hosts", hint=f"use 2 to {HOSTS_MAX}")
        if segmentation not in get_args(Segmentation):
            raise LabError(f"{segmentation} is not a segmentation", hint="use auto, real or offload")
        self._rates = {"loss": loss, "duplicate": duplicate, "reorder": reorder}
        PortSettings(loss=loss, duplicate=duplicate, reorder=reorder)
        self._queue_count = queues
        self._is_new, self._is_mine = True, False
        self._signal_handlers: dict[int, Any] = {}
        self._record = LabRecord(
            name=registry.check_name(name or secrets.token_hex(3)),
            host_count=hosts,
            mtu_bytes=check_mtu(mtu),
            seed=secrets.randbits(32) if seed is None else seed,
            segmentation=segmentation,
            owner_pid=None if lasting else os.getpid(),
            owner_started_ticks=None if lasting else registry.started_ticks(os.getpid()),
            is_routed=routed,
        )
        self.hosts: list[Host] = _hosts(self._record)

    @classmethod
    def open(cls, name: str) -> Self:
        """Return an existing lab, to use and change; leaving the context does not remove it."""
        return cls._of(registry.read(name))

    @classmethod
    def all(cls) -> list[Self]:
        """Return all labs on this machine, of any process."""
        return [cls._of(record) for record in registry.read_all()]

    @classmethod
    def _of(cls, record: LabRecord) -> Self:
        lab = cls.__new__(cls)
        lab._rates, lab._queue_count = {}, 1
        lab._is_new, lab._is_mine, lab._signal_handlers = False, False, {}
        lab._record = record
        lab.hosts = _hosts(record)
        return lab

    @staticmethod
    def supported() -> str | None:
        """Return why a lab cannot be created on this machine, or None. Tries it with two hosts and no loss."""
        if os.geteuid() != 0:
            return "a lab needs root: run with sudo"
        try:
            with Lab(hosts=2):
                return None
        except (LabError, OSError) as error:
            return f"a lab cannot be created here: {error}"

    @staticmethod
    def loss_supported() -> str | None:
        """Return why the ports of a lab cannot drop datagrams with this installation, or None."""
        return unavailable("lossy_port")

    @property
    def name(self) -> str:
        """The name with its prefix."""
        return self._record.name

    @property
    def seed(self) -> int:
        """The seed from which the seeds of all ports are derived."""
        return self._record.seed

    @property
    def mtu(self) -> int:
        """The MTU of the lab at its creation."""
        return self._record.mtu_bytes

    @property
    def segmentation(self) -> str:
        """The current segmentation: `real`, `offload`, or `auto`: `offload` until the first loss."""
        return self._record.segmentation

    @property
    def is_stale(self) -> bool:
        """True if its owner has ended without removing it."""
        return self._record.is_stale

    @property
    def owner_pid(self) -> int | None:
        """The process that owns it; None for a lasting lab."""
        return self._record.owner_pid

    @property
    def is_routed(self) -> bool:
        """True if a router, which forwards no multicast, connects the hosts, not a switch."""
        return self._record.is_routed

    @property
    def switch_namespace(self) -> str:
        """The namespace of the switch or router."""
        return self._record.namespaces[0]

    def port(self, host_number: int, direction: PortDirection = "to_host") -> Port:
        """Return the switch's or router's port of that host, for datagrams toward it or from it."""
        if not 0 <= host_number < len(self.hosts):
            raise LabError(f"{self.name} has no host {host_number}", hint=f"use 0 to {len(self.hosts) - 1}")
        # Hashed, so that neither two ports nor two labs with adjacent seeds share a part of a random series.
        digest = hashlib.blake2b(f"{self.seed} {host_number} {direction}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "big")
        initial = PortSettings(seed=seed, unicast=self.is_routed)
        middle = self.switch_namespace
        return Port(
            middle,
            host_number,
            direction,
            initial,
            self._before_loss,
            self._before_tcp,
            self._before_corruption,
        )

    def run_at_switch(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process at the switch or router; `options` are subprocess.Popen's. The caller ends it."""
        return namespaces.call(self.switch_namespace, lambda: subprocess.Popen(argv, **options))

    def set_segmentation(self, segmentation: Segmentation) -> None:
        """Set whether super-packets are cut where they leave a host."""
        middle, *host_namespaces = self._record.namespaces
        offload.set_segmentation(middle, host_namespaces, segmentation == "real")
        self._record = replace(self._record, segmentation=segmentation)
        registry.rewrite(self._record)

    def set_mtu(self, mtu_bytes: int) -> None:
        """Change the MTU of every cable."""
        for host in self.hosts:
            host.set_mtu(mtu_bytes)

    def await_join(self, group: str, *host_numbers: int) -> None:
        """Wait until the switch forwards the group to these hosts, a moment after they joined."""
        if self.is_routed:
            raise LabError(
                f"the router of {self.name} forwards no multicast, so a join has no effect",
                hint="use a lab with a switch for multicast, LBT-RU or TCP across a router",
            )
        switch.await_join(self.switch_namespace, group, host_numbers)

    def up(self) -> None:
        """Create the lab and wait until its switch or router works. A lab that fails to start is removed."""
        registry.write(self._record)
        self._is_new, self._is_mine = False, True
        if not self._record.is_lasting:
            atexit.register(self._down_at_exit)
            self._catch_signals()
        try:
            self._build()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End all processes in the lab and remove it. A missing lab is not an error."""
        for host in self.hosts:
            host.end_children()
        namespaces.end_processes(namespaces.processes(self._record.namespaces))
        cables.remove_all(self.switch_namespace)
        for namespace in self._record.namespaces:
            namespaces.remove(namespace)
        registry.erase(self.name)
        self._is_mine = False
        self._release_signals()
        atexit.unregister(self._down_at_exit)

    def _build(self) -> None:
        for namespace in self._record.namespaces:
            namespaces.create(namespace)
        middle, *host_namespaces = self._record.namespaces
        build = router.build if self.is_routed else switch.build
        build(middle, host_namespaces, CableKind(self.mtu, self._queue_count))
        for host in self.hosts:
            host.configure()
        if self.segmentation == "real":
            offload.set_segmentation(middle, host_namespaces, is_real=True)
        if not self.is_routed:
            switch.await_snooping(host_namespaces[0], host_namespaces[-1])
        if any(self._rates.values()):
            for host in self.hosts:
                self.port(host.number).set(**self._rates)

    def _before_loss(self) -> None:
        if self.segmentation == "auto":
            self.set_segmentation("real")

    def _before_tcp(self) -> None:
        offload.set_tcp_segmentation(self._record.namespaces[1:], is_real=True)

    def _before_corruption(self) -> None:
        offload.verify_checksums(self._record.namespaces[1:])

    def _down_at_exit(self) -> None:
        # A forked child inherits the exit handlers, but does not own the lab.
        if self._is_mine and self._record.owner_pid == os.getpid():
            self.down()

    def _catch_signals(self) -> None:
        """Let signals without a handler unwind the process instead of ending it at once."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._signal_handlers[number] = signal.signal(number, _exit_by_signal)

    def _release_signals(self) -> None:
        for number, handler in self._signal_handlers.items():
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)
        self._signal_handlers = {}

    def __enter__(self) -> Self:
        """Create the lab unless it was opened."""
        if self._is_new:
            self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the lab if this process created it."""
        if self._is_mine and not self._record.is_lasting:
            self.down()

    def __repr__(self) -> str:
        """Return the name and the number of hosts."""
        return f"<Lab {self.name} of {len(self.hosts)} hosts>"


def _hosts(record: LabRecord) -> list[Host]:
    middle, *host_namespaces = record.namespaces
    if record.is_routed:
        return [
            Host(
                namespace,
                middle,
                number,
                router.address_of(number),
                router.PREFIX_LENGTH,
                router.gateway_of(number),
            )
            for number, namespace in enumerate(host_namespaces)
        ]
    return [
        Host(namespace, middle, number, str(_NETWORK[number + 1]), _NETWORK.prefixlen)
        for number, namespace in enumerate(host_namespaces)
    ]


def _exit_by_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)

"""A run in the lab with known losses: injected at ports, captured at the switch and by taps."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.netns.contexts import Member, members
from tests.waiting import wait_for
from umstack import Receiver, Source
from umstack.lab import Lab, namespaces
from umstack.lab.cables import port_name

RECEIVERS = 3
FIXED = {"recovery_timing": "fixed", "flow_control_receiver_window": 1 << 21}
"""Options of the receivers: with fixed timing, a receiver reports only if its window is set."""
SEED = 20
LOSS = {1: 0.01, 2: 0.02, 3: 0.03}
"""The loss rate of each receiver in the phase of steady loss."""
CHUNKS, CHUNK, PACE_SECONDS = 400, 50, 0.004
SMALL, LARGE = 300, 1200
"""Bytes per message, so that several messages share a datagram or each message has its own datagram."""
QUIET_SECONDS = 0.3
"""Seconds between two injected faults; they exceed the gap that merges losses into one incident."""
HELD_UP_SECONDS = 0.05
"""Delay between two lost datagrams that could divide an incident."""
PAUSE_SECONDS = 0.1
"""Delay after which the losses before it count as tail loss."""
ATTEMPTS = 50
"""How often a fault is injected until its datagrams are sent without such a delay."""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was injected towards one receiver, and its time."""

    cause: str
    receiver: str
    start_ns: int
    end_ns: int
    lost: int | None
    """The number of datagrams that were blocked; None if only the switch's counters know it."""


@dataclass(slots=True)
class LabRun:
    """The captures and the truth."""

    folder: Path
    publisher: str = ""
    receivers: dict[int, str] = field(default_factory=dict)
    messages: int = 0
    payload_bytes: int = 0
    injected: list[Injected] = field(default_factory=list)
    kept_back: dict[int, int] = field(default_factory=dict)
    """By receiver, the number of datagrams of any kind that its port dropped or blocked."""
    steady_stats: dict[int, dict[str, Any]] = field(default_factory=dict)
    stats: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The counters of every context; host 0 is the publisher's."""
    captured: dict[str, Any] = field(default_factory=dict)

    @property
    def by_tcpdump(self) -> Path:
        """Return the capture that tcpdump made, without our code."""
        return self.folder / "switch" / "tcpdump.pcap"

    @property
    def by_umstack(self) -> Path:
        """Return the folder that `umstack capture` wrote at the same port."""
        return self.folder / "umstack"

    def tap(self, host: int) -> Path:
        """Return the tap of one context: the datagrams it sent and received."""
        return self.folder / "taps" / f"tap{host}.pcapng"

    @property
    def source_transport(self) -> dict[str, Any]:
        """Return the publisher's counters of the session."""
        [found] = self.stats[0]["source_transports"]
        return dict(found)

    def receiver_transport(self, host: int) -> dict[str, Any]:
        """Return a receiver's counters of the session."""
        [found] = self.stats[host]["receiver_transports"]
        return dict(found)


@contextmanager
def _capturing(lab: Lab, run: LabRun) -> Iterator[None]:
    """Run both capture tools at the switch's port towards the publisher."""
    port = port_name(0)
    run.by_tcpdump.parent.mkdir()
    run.by_umstack.mkdir()
    (run.folder / "taps").mkdir()
    if shutil.which("tcpdump"):
        command = [
            "tcpdump",
            "-i",
            port,
            "-n",
            # A slot is as long as the longest packet: short slots, so that the whole run fits beside other tests.
            "-B",
            "65536",
            "-s",
            "2048",
            "--immediate-mode",
            "-w",
            str(run.by_tcpdump),
            "-Z",
            "root",
        ]
        command += ["--time-stamp-precision=nano", "udp"]
    else:
        command = ["dumpcap", "-q", "-P", "-i", port, "-B", "16", "-f", "udp", "-w", str(run.by_tcpdump)]
    own = [sys.executable, "-m", "umstack", "capture", port, "--priority", "normal", "--json"]
    own += ["--out", str(run.by_umstack)]

    def start(command: list[str]) -> subprocess.Popen[str]:
        return namespaces.call(
            lab.switch_namespace,
            lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True),
        )

    processes = [start(command), start(own)]
    try:
        wait_for(lambda: run.by_tcpdump.exists() and any(run.by_umstack.glob("*.part")), "both captures", 20)
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        said = [process.communicate(timeout=20) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    run.captured = {"tcpdump": said[0][1], "umstack": said[1][0]}


@contextmanager
def _ahead_of_other_processes() -> Iterator[None]:
    """Let the threads of this process run before those of other processes meanwhile."""
    former = os.getpriority(os.PRIO_PROCESS, 0)
    _set_priority(-20)
    try:
        yield
    finally:
        _set_priority(former)


def _set_priority(priority: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), priority)


class _Script:
    """The messages that are published, and the faults that are injected meanwhile."""

    def __init__(self, lab: Lab, run: LabRun, publisher: Member, source: Source) -> None:
        self.lab, self.run, self.publisher, self.source = lab, run, publisher, source

    def send(self, count: int, size: int) -> None:
        """Publish messages in one batch."""
        self.source.send_many([bytes(size)] * count, flush=True)
        self.run.messages += count
        self.run.payload_bytes += count * size

    def blocked(self, cause: str, host: int, count: int, pace_seconds: float = 0.0, *, goes_on: bool) -> None:
        """Block `count` datagrams to one receiver; then continue immediately, or after a pause.

        If a busy machine delays the datagrams, the fault is a different one: it is injected again.
        """
        with _ahead_of_other_processes():
            for _ in range(ATTEMPTS):
                injected, is_held_up = self.inject(cause, host, count, pace_seconds, goes_on)
                if not is_held_up:
                    break
            else:
                raise AssertionError(f"no {cause} fault without a delay")
        self.run.injected.append(injected)

    def inject(
        self, cause: str, host: int, count: int, pace_seconds: float, goes_on: bool
    ) -> tuple[Injected, bool]:
        """Inject a fault once; return it, and true if a delay may have divided it or changed its cause."""
        port = self.lab.port(host)
        start_ns = time.time_ns()
        port.set(block=True)
        before = port.counters().blocked
        sent_at: list[float] = []

        def send(messages: int) -> None:
            sent_at.append(time.monotonic())
            self.send(messages, LARGE)
            sent_at.append(time.monotonic())

        for _ in range(count if pace_seconds else 1):
            send(1 if pace_seconds else count)
            time.sleep(pace_seconds)
        is_held_up = any(later - one >= HELD_UP_SECONDS for one, later in pairwise(sent_at))
        wait_for(lambda: port.counters().blocked >= before + count, "datagrams at the port")
        port.set(block=False)
        if goes_on:
            send(1)
            # An outage is one whatever follows; a burst before a pause is tail loss.
            is_held_up |= not pace_seconds and sent_at[-1] - sent_at[0] >= PAUSE_SECONDS
        time.sleep(QUIET_SECONDS)
        self.send(1, LARGE)
        self.settle()
        injected = Injected(cause, self.run.receivers[host], start_ns, time.time_ns(), count)
        return injected, is_held_up

    def settle(self) -> None:
        """Wait until every receiver has every message, and a little longer."""
        assert self.source.wait_drained(10)
        time.sleep(QUIET_SECONDS)

    def steady(self, receiving: list[Member]) -> None:
        """Lose datagrams at random, independently for each receiver."""
        start_ns = time.time_ns()
        for host, loss in LOSS.items():
            self.lab.port(host).set(loss=loss)
        for _ in range(CHUNKS):
            self.send(CHUNK, SMALL)
            time.sleep(PACE_SECONDS)
        self.settle()
        for host in LOSS:
            self.lab.port(host).set(loss=0.0)
        end_ns = time.time_ns()
        for host, member in enumerate(receiving, 1):
            [self.run.steady_stats[host]] = member.context.stats()["receiver_transports"]
            self.run.injected.append(Injected("sporadic", self.run.receivers[host], start_ns, end_ns, None))


def _reading(receiver: Receiver, stop: threading.Event) -> Callable[[], None]:
    def read() -> None:
        while not stop.is_set():
            with receiver.poll(4096, 0.05) as batch:
                del batch

    return read


def lab_run(folder: Path) -> LabRun:
    """Run the script, which takes a few seconds."""
    run = LabRun(folder)
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=1 + RECEIVERS, seed=SEED, segmentation="real"))
        run.publisher = lab.hosts[0].address
        run.receivers = {host: lab.hosts[host].address for host in LOSS}
        stack.enter_context(_capturing(lab, run))
        ends = stack.enter_context(members(*lab.hosts))
        for host, member in enumerate(ends):
            stack.enter_context(member.context.tap(run.tap(host)))
        stop = threading.Event()
        stack.callback(stop.set)
        for member in ends[1:]:
            receiver = stack.enter_context(member.receiver("truth", **FIXED))
            thread = threading.Thread(target=_reading(receiver, stop))
            thread.start()
            stack.callback(thread.join)
            stack.callback(stop.set)
        source = stack.enter_context(ends[0].source("truth", recovery_timing="fixed"))
        source.wait_connected(RECEIVERS, 20)
        script = _Script(lab, run, ends[0], source)
        # A session has one head, whose cause does not depend on what follows.
        run.injected.append(script.inject("head", 3, 2, 0.0, True)[0])
        script.steady(ends[1:])
        script.blocked("burst", 1, 8, goes_on=True)
        script.blocked("tail", 2, 3, goes_on=False)
        script.blocked("connectivity", 3, 70, 0.002, goes_on=True)
        for host in LOSS:
            counters = lab.port(host).counters()
            run.kept_back[host] = counters.dropped + counters.blocked
        run.stats = {host: member.context.stats() for host, member in enumerate(ends)}
    return run

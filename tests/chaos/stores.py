"""The Stores of a chaos run: each is `umstack store run` on a small disk of its own, which may be full or wiped."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.kept import (
    check_promises,
    check_reader,
    first_of_each_kind,
    promises_of,
    read_store,
)
from tests.chaos.payloads import Stamp
from tests.chaos.plan import Fault, Plan
from tests.chaos.recorded import SmallDisk
from tests.chaos.service import CLOSE_SECONDS, Outcome, Service
from tests.chaos.usage import Usage, growth, leaks, with_streams
from tests.journal import lines_of
from tests.waiting import wait_for
from umstack.lab import Host
from umstack.store.status import STATUS_NAME

_PORT = 14567
_DISK_BYTES = 320 << 20
"""Space for one segment of 128 MiB, and for the messages of earlier ones."""
_DIRECTORY = "store"


class Stores:
    """The Stores of a plan, on one host."""

    def __init__(
        self, plan: Plan, outcome: Outcome, work: Path, host: Host, option_words: Sequence[str]
    ) -> None:
        """Make their disks and services; the caller runs and stops the services."""
        self.outcome, self.work = outcome, work
        self.endpoints = [(host.address, _PORT + at) for at in range(len(plan.stores))]
        self.services: dict[str, Service] = {}
        self._disks: dict[str, SmallDisk] = {}
        self._restarts: dict[str, list[float]] = {name: [] for name in plan.stores}
        """Times at which each Store was disturbed so that it may have forgotten what it had not written."""
        self._left_bytes: dict[str, int] = {}
        """Space that the disk of a Store is to have, by name; others have all of it."""
        self._wiped_seconds: float | None = None
        self._idle: Usage = {}
        for name, (address, port) in zip(plan.stores, self.endpoints, strict=True):
            disk = self._disks[name] = SmallDisk(_DISK_BYTES)
            command = [sys.executable, "-m", "umstack", "store", "run", f"{disk.inner_path}/{_DIRECTORY}"]
            command += ["--listen", f"{address}:{port}", "-i", "eth0", "--durability", plan.durability]
            command = disk.command([*command, *option_words])
            self.services[name] = Service(outcome, work, name, host, command, (0,), "keeping messages")

    def close(self) -> None:
        """Unmount the disks."""
        for disk in self._disks.values():
            disk.close()

    def disturb(self, fault: Fault, is_start: bool) -> None:
        """Begin or end a fault of one Store."""
        service, disk = self.services[fault.target], self._disks[fault.target]
        if fault.kind == "stop":
            service.signal(signal.SIGSTOP if is_start else signal.SIGCONT)
        elif fault.kind == "full":
            if is_start:
                self._left_bytes[fault.target] = fault.settings["left_bytes"]
                self.keep_full()
            if fault.settings["is_killed"]:
                # While its disk is full, it starts, and ends with messages that it could not write.
                self._kill(fault.target)
                service.is_held = False
            if not is_start:
                del self._left_bytes[fault.target]
                disk.free()
        elif is_start:
            self._kill(fault.target)
            if fault.kind == "wipe":
                self._wiped_seconds = time.monotonic()
                shutil.rmtree(disk.path / _DIRECTORY, ignore_errors=True)
        else:
            service.is_held = False

    def keep_full(self) -> None:
        """Take the space that Stores with a full disk have freed, as one does that starts: it cuts its last segment."""
        for name, left_bytes in self._left_bytes.items():
            self._disks[name].fill(left_bytes)

    def _kill(self, name: str) -> None:
        self.services[name].kill()
        self._restarts[name].append(time.monotonic())

    def note_idle(self) -> None:
        """Remember what a Store holds before it has clients, once it has started its threads.

        It reports its address before that, and writes its status after that.
        """
        name = next(iter(self.services))
        status = self._disks[name].path / _DIRECTORY / STATUS_NAME
        wait_for(status.exists, f"the status of {name}", CLOSE_SECONDS)
        self._idle = with_streams(self._usage(name))

    def account_for_usage(self) -> None:
        """Compare what each Store holds without clients with what it held at first."""
        for name in self.services:
            deadline = time.monotonic() + CLOSE_SECONDS
            while leaks(name, grown := growth(self._idle, self._usage(name))):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            self.outcome.enter(name, grown)

    def _usage(self, name: str) -> Usage:
        """Return what a Store holds, without the segments that it keeps open."""
        service = self.services[name]
        assert service.child is not None
        usage = service.usage()
        folder = Path(f"/proc/{service.child.pid}/fd")
        usage["descriptors"] -= sum(one.readlink().suffix == ".seg" for one in folder.iterdir())
        return usage

    def check(self, source_journal: Path, reader_journal: Path) -> None:
        """Account for what the Stores hold, after all of them ended."""
        found: list[str] = []
        held: dict[str, dict[int, Stamp]] = {}
        for name, disk in self._disks.items():
            # SQLite cannot open a file in another mount namespace.
            folder = shutil.copytree(disk.path / _DIRECTORY, self.work / name)
            held[name] = read_store(folder, name, found)
        promises = promises_of(lines_of(source_journal))
        found += check_promises(promises, held, self._wiped_seconds)
        found += check_reader(lines_of(reader_journal), held, self._restarts)
        self.outcome.counts["stable"] += len(promises.stable)
        for finding in first_of_each_kind(found):
            self.outcome.report(finding)

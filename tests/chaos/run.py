"""A chaos run: processes in a lab, faults by a plan, and the account at the end."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from tests.chaos.plan import (
    CALM_AT_END,
    DRIVER_HOST,
    HOSTS,
    OTHER_ADDRESS_OFFSET,
    SERVICE_HOST,
    Fault,
    Plan,
    Process,
    key_options,
)
from tests.chaos.recorded import SmallDisk, check_recording
from tests.chaos.service import CLOSE_SECONDS, Outcome, Service, option_words
from tests.chaos.stores import Stores
from tests.chaos.usage import Usage, growth, leaks, with_streams
from umstack.config import RESOLVER_DAEMON_PORT
from umstack.key_file import write_new_key_file
from umstack.lab import Host, Lab
from umstack.lab.links import index_of

ROOT = Path(__file__).resolve().parents[2]
RECORDED_TOPIC = "chaos/a"
_MTU_BYTES = 1500
_START_SECONDS = 90.0
_SETTLE_SECONDS = 90.0
_REPORT_SECONDS = 30.0
_POLL_SECONDS = 0.1
_DELAYED_SECONDS = 60.0  # a shorter run may take as long on a busy machine
_NS_PER_S = 1_000_000_000
_KEYS_OPTION = "authentication_key_file"


class Peer:
    """A process with a context, started again after it was killed."""

    def __init__(self, run: ChaosRun, process: Process) -> None:
        self.run, self.process, self.host = run, process, run.lab.hosts[process.host]
        self.clock_path = run.work / f"{process.name}.clock"
        self.clock_path.write_bytes(bytes(8))
        self.child: subprocess.Popen[str] | None = None
        self.reader: threading.Thread | None = None
        self.started = threading.Event()
        self.reported = threading.Condition()
        self.report: dict[str, Any] = {}
        self.closed: dict[str, Any] = {}
        self.is_killed = False

    def start(self) -> None:
        """Start the process; it opens its context in its own time."""
        config = {
            "context": {**self.process.context, **self._shared_options()},
            "publish": self.process.publish,
            "receive": [
                {**one, "is_planted": self.is_planted and number == 0}
                for number, one in enumerate(self.process.receive)
            ],
            "keep": [{**one, **self._store_settings()} for one in self.process.keep],
            "replay": [{**one, **self._store_settings()} for one in self.process.replay],
        }
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self.run.clock_library),
            "CHAOS_CLOCK_STEP": str(self.clock_path),
            "UMSTACK_STAT_DIR": str(self.run.statistics_folder),
        }
        self.started.clear()
        self.is_killed = False
        with self.errors_path.open("a") as errors:
            self.child = self.host.run(
                [sys.executable, "-m", "tests.chaos.peer", json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment,
                text=True,
                start_new_session=True,
            )
        self.reader = threading.Thread(target=self._read, args=(self.child,), name=self.process.name)
        self.reader.start()

    def _shared_options(self) -> dict[str, Any]:
        if self.process.is_attached:
            return {"driver": str(self.run.driver_path)}
        return self.run.context_options

    def _store_settings(self) -> dict[str, Any]:
        return {"stores": self.run.stores.endpoints, "journal": str(self.journal_path)}

    @property
    def journal_path(self) -> Path:
        """Where a persistent source or a reader writes its journal."""
        return self.run.work / f"{self.process.name}.journal"

    @property
    def errors_path(self) -> Path:
        """Where the process writes its log."""
        return self.run.work / f"{self.process.name}.stderr"

    @property
    def is_planted(self) -> bool:
        """True if the account must find faults in this process."""
        return self.run.is_planted and self.process.name == "subscriber1"

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for text in child.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # The last line of a killed process.
            match line["kind"]:
                case "started":
                    self.started.set()
                case "finding":
                    self.run.outcome.report(f"{self.process.name}: {line['text']}")
                case "retry":
                    self.run.outcome.counts["retries"] += 1
                case "report":
                    with self.reported:
                        self.report = line
                        self.reported.notify_all()
                case "closed":
                    self.closed = line
        status = child.wait()
        if not (self.is_killed or (status == 0 and self.closed)):
            self.run.outcome.report(f"crash: {self.process.name} ended with status {status}")

    def command(self, **fields: Any) -> None:
        """Send a command; a process that is gone does not get it."""
        assert self.child is not None
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps(fields) + "\n")
            self.child.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def ask(self, number: int) -> dict[str, Any]:
        """Return a fresh report."""
        self.command(do="report", number=number)
        with self.reported:
            self.reported.wait_for(lambda: self.report.get("number") == number, _REPORT_SECONDS)
            return self.report

    def kill(self) -> None:
        """End the process at once."""
        assert self.child is not None
        self.is_killed = True
        self.child.kill()
        self._reap()

    def _reap(self) -> None:
        assert self.child is not None
        assert self.reader is not None
        self.child.wait()
        self.reader.join()
        for stream in (self.child.stdin, self.child.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue

    def step_clock(self, seconds: int) -> None:
        """Set how far the process's wall clock is ahead."""
        with self.clock_path.open("r+b", buffering=0) as file:
            file.write((seconds * _NS_PER_S).to_bytes(8, sys.byteorder, signed=True))

    def close(self) -> None:
        """Let the process close everything, and compare what it holds with what it held before."""
        assert self.child is not None
        self.command(do="close")
        try:
            self.child.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.run.outcome.report(f"hang: {self.process.name} did not close within {CLOSE_SECONDS:.0f} s")
            self.kill()
            return
        self._reap()
        if not self.closed:
            return
        self.run.outcome.enter(self.process.name, growth(self.closed["before"], self.closed["after"]))


class ChaosRun:
    """One run of a plan, with its logs in the folder `work`.

    `is_planted`: one process has faults of every kind, which the account must find.
    """

    def __init__(self, plan: Plan, work: Path, *, is_planted: bool = False) -> None:
        self.plan, self.work, self.is_planted = plan, work, is_planted
        self.outcome = Outcome()
        self.clock_library = work / "clock_step.so"
        self.statistics_folder = work / "statistics"
        self.context_options: dict[str, Any] = {}
        self.keys_path = work / "keys"
        self.driver_path = work / "driver.sock"
        self._idle_driver: Usage = {}
        self._keys: list[str] = []
        self._next_key = 1
        self._report_number = 0
        self.lab: Lab
        self.peers: dict[str, Peer] = {}
        self.services: dict[str, Service] = {}
        self.disk: SmallDisk
        self.stores: Stores

    def run(self) -> Outcome:
        """Run the plan to its end; the outcome has a finding for each thing that is wrong."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.statistics_folder.mkdir(parents=True, mode=0o700)
        self._prepare()
        with ExitStack() as stack:
            self.lab = stack.enter_context(Lab(hosts=HOSTS, seed=self.plan.seed, segmentation="real"))
            size_bytes = (32 << 20) + int(self.plan.seconds * (512 << 10))
            self.disk = SmallDisk(size_bytes)
            stack.callback(self.disk.close)
            self._start(stack)
            self._play()
            self._settle()
            self._close()
        self._read_logs()
        return self.outcome

    def _prepare(self) -> None:
        source = Path(__file__).with_name("clock_step.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self.clock_library, source], check=True)
        if self.plan.has_keys:
            write_new_key_file(self.keys_path, ["*"])
            self.context_options[_KEYS_OPTION] = str(self.keys_path)
            self._keys = [self._new_key()]
            self._write_keys()

    def _start(self, stack: ExitStack) -> None:
        python = [sys.executable, "-m", "umstack"]
        services = self.lab.hosts[SERVICE_HOST]
        if self.plan.has_resolver:
            address = f"{services.address}:{RESOLVER_DAEMON_PORT}"
            self.context_options["resolver_unicast_daemon"] = address
            command = [*python, "resolver", "--listen", address]
            self.services["resolver"] = Service(
                self.outcome, self.work, "resolver", services, command, expected=(0,)
            )
        words = option_words(
            {**self.context_options, **key_options(self.plan.has_keys, self.plan.encryption)}
        )
        command = [*python, "record", RECORDED_TOPIC, "--out", self.disk.inner_path, "-i", "eth0"]
        command += ["--part-seconds", "2"]
        command += words
        # Status 1: messages were lost, or the disk was full.
        recorder = Service(
            self.outcome, self.work, "recorder", services, self.disk.command(command), expected=(0, 1)
        )
        self.services["recorder"] = recorder
        if self.plan.driver is not None:
            command = [*python, "driver", "eth0", "--path", str(self.driver_path)]
            command += option_words({**self.context_options, **self.plan.driver})
            host = self.lab.hosts[DRIVER_HOST]
            self.services["driver"] = Service(
                self.outcome, self.work, "driver", host, command, (0,), "serving"
            )
        self.stores = Stores(self.plan, self.outcome, self.work, services, words)
        stack.callback(self.stores.close)
        self.services |= self.stores.services
        for service in self.services.values():
            stack.callback(service.stop)
            service.keep_running()
        for store in self.stores.services.values():
            self._await_service(store)
        self.stores.note_idle()
        if self.plan.driver is not None:
            self._await_service(self.services["driver"])
            self._idle_driver = with_streams(self.services["driver"].usage())
        for process in self.plan.processes:
            self.peers[process.name] = Peer(self, process)
            self.peers[process.name].start()
        stack.callback(self._kill_all)
        self._await_started()

    def _await_service(self, service: Service) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not service.is_ready and time.monotonic() < deadline:
            self._keep_services()
            time.sleep(_POLL_SECONDS)
        assert service.is_ready, service.errors_path.read_text()

    def _await_started(self, host: int | None = None) -> None:
        """Wait until every process, or every one of a host, has opened its context, which may need the services.

        During faults only a host without another fault may be waited for: a process on another one may be unable to
        start until the end of a fault, which this wait delays.
        """
        deadline = time.monotonic() + _START_SECONDS
        for peer in self.peers.values():
            if host not in (None, peer.process.host):
                continue
            while not peer.started.wait(_POLL_SECONDS) and time.monotonic() < deadline:
                self._keep_services()
            if not peer.started.is_set():
                self.outcome.report(f"hang: {peer.process.name} did not start within {_START_SECONDS:.0f} s")

    def _kill_all(self) -> None:
        for peer in self.peers.values():
            if peer.child is not None and peer.child.poll() is None:
                peer.kill()

    # Faults

    def _play(self) -> None:
        steps = [(fault.start, True, fault) for fault in self.plan.faults]
        steps += [(fault.end, False, fault) for fault in self.plan.faults]
        first = began = time.monotonic()
        delay_max = max(0.0, _DELAYED_SECONDS - self.plan.seconds)
        calm = began + delay_max + self.plan.seconds * (1 - CALM_AT_END)
        dropped: set[Fault] = set()
        for at, is_start, fault in sorted(steps, key=lambda step: (step[0], step[1])):
            if is_start and time.monotonic() > calm:
                dropped.add(fault)  # Delays do not make a long run longer.
            if fault in dropped:
                continue
            self._wait_until(began + at)
            # A busy machine delays the later steps as well: faults that crowd would keep services away for too long.
            began = max(began, time.monotonic() - at)
            print(
                f"{time.monotonic() - began:7.2f} {'begin' if is_start else 'end'} {fault}",
                file=sys.stderr,
            )
            self._apply(fault, is_start)
            self.outcome.counts[fault.kind] += is_start
        if dropped:
            self.outcome.counts["dropped faults"] = len(dropped)
        self._wait_until(min(began, first + delay_max) + self.plan.seconds)

    def _wait_until(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            self._keep_services()
            time.sleep(min(left, _POLL_SECONDS))

    def _keep_services(self) -> None:
        for service in self.services.values():
            service.keep_running()
        self.stores.keep_full()

    def _apply(self, fault: Fault, is_start: bool) -> None:
        if fault.target in self.stores.services:
            self.stores.disturb(fault, is_start)
        elif fault.target in self.services:
            self._disturb_service(fault, is_start)
        elif fault.target in self.peers:
            self._disturb_peer(fault, is_start)
        elif fault.kind == "disk":
            (self.disk.fill if is_start else self.disk.free)()
        elif fault.kind == "rotate":
            self._rotate(is_start)
        else:
            self._disturb_network(fault, is_start)

    def _disturb_service(self, fault: Fault, is_start: bool) -> None:
        service = self.services[fault.target]
        if fault.kind == "stop":
            service.signal(signal.SIGSTOP if is_start else signal.SIGCONT)
        elif not is_start:
            service.is_held = False
        elif fault.kind == "restart":
            service.stop()
        else:
            service.kill()

    def _disturb_peer(self, fault: Fault, is_start: bool) -> None:
        peer = self.peers[fault.target]
        assert peer.child is not None
        match fault.kind, is_start:
            case "kill", True:
                peer.kill()
            case "kill", False:
                peer.start()
            case "stop", _:
                if peer.child.poll() is None:
                    peer.child.send_signal(signal.SIGSTOP if is_start else signal.SIGCONT)
            case "clock", _:
                peer.step_clock(fault.settings["step_seconds"] if is_start else 0)
            case "renew", True:
                peer.command(do="renew", index=fault.settings["index"])

    def _disturb_network(self, fault: Fault, is_start: bool) -> None:
        host = self.lab.hosts[int(fault.target)]
        settings = fault.settings
        match fault.kind:
            case "lossy":
                port = self.lab.port(host.number, settings.pop("direction"))
                calm = {**dict.fromkeys(settings, 0), "unicast": False, "tcp": False}
                port.set(**(settings if is_start else calm))
            case "block":
                port = self.lab.port(host.number, settings["direction"])
                port.set(block=is_start, unicast=is_start and settings["unicast"])
            case "unplug":
                (host.unplug if is_start else host.plug)()
            case "link":
                (host.link_down if is_start else host.link_up)()
            case "mtu":
                host.set_mtu(settings["mtu"] if is_start else _MTU_BYTES)
            case "path_mtu":
                host.set_path_mtu(settings["mtu"] if is_start else _MTU_BYTES)
            case "address":
                self._readdress(host, is_start)

    def _readdress(self, host: Host, is_start: bool) -> None:
        """Change the address of a host. Its processes that were just started open their contexts first."""
        self._await_started(host.number)
        if host.number == DRIVER_HOST:
            self._await_service(self.services["driver"])
        other = f"10.77.0.{OTHER_ADDRESS_OFFSET + host.number}"
        former, current = (host.address, other) if is_start else (other, host.address)

        def change() -> None:
            with IPRoute() as route:
                index = index_of(route, host.interface)
                route.addr("del", index=index, address=former, prefixlen=host.prefix_length)
                route.addr("add", index=index, address=current, prefixlen=host.prefix_length)

        host.call(change)
        host.link_up()  # The address took the route for multicast with it.

    def _new_key(self) -> str:
        self._next_key += 1
        return f"{self._next_key % 255 + 1} {secrets.token_hex(32)}"

    def _rotate(self, is_start: bool) -> None:
        """Add a key behind the one in use; at the end put it in front, where it makes the tags."""
        self._keys = [self._keys[0], self._new_key()] if is_start else [self._keys[1], self._keys[0]]
        self._write_keys()

    def _write_keys(self) -> None:
        lines = [f"{entry} {key}\n" for key in self._keys for entry in ("topic *", "resolution")]
        fresh = self.keys_path.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text("".join(lines))
        fresh.replace(self.keys_path)

    # The account

    def _settle(self) -> None:
        """Without faults: all current sources are received, and all that they sent is delivered or named as lost."""
        self._await_started()
        self._until_nothing_is_missing("not received", self._unknown)
        self._until_nothing_is_missing("not kept", self._unkept)
        for peer in self.peers.values():
            peer.command(do="finish")
        self._until_nothing_is_missing("not accounted for", self._behind)
        self._until_nothing_is_missing("not stable", self._unstable)

    def _until_nothing_is_missing(self, what: str, missing: Callable[[], list[str]]) -> None:
        began = time.monotonic()
        deadline = began + _SETTLE_SECONDS
        clean = 0
        while clean < 2:
            found = missing()
            clean = 0 if found else clean + 1
            if found and time.monotonic() > deadline:
                for text in found:
                    self.outcome.report(f"{what}: {text}")
                break
            time.sleep(0.2)
        self.outcome.counts["settle_ms"] += round((time.monotonic() - began) * 1000)

    def _reports(self) -> Iterator[tuple[Peer, dict[str, Any]]]:
        self._report_number += 1
        for peer in self.peers.values():
            if peer.child is not None and peer.child.poll() is None:
                yield peer, peer.ask(self._report_number)

    def _subscribed(self) -> Iterator[tuple[str, str, int, int | None]]:
        """Yield receiver, source object, messages it sent and how far the receiver is (None: received nothing)."""
        reports = list(self._reports())
        sources = [
            (one["topic"], one["current"], one["sent"][one["current"]])
            for _, report in reports
            for one in report.get("publish", ())
            if one["current"]
        ]
        for peer, report in reports:
            for one in report.get("receive", ()):
                for topic, incarnation, sent in sources:
                    if topic == one["topic"] or (one["is_prefix"] and topic.startswith(one["topic"])):
                        receiver = f"{peer.process.name} receiving {topic}"
                        yield receiver, incarnation, sent, one["positions"].get(incarnation)

    def _unknown(self) -> list[str]:
        return [
            f"{receiver}: nothing of source {incarnation}, which has sent {sent} messages"
            for receiver, incarnation, sent, position in self._subscribed()
            if position is None
        ]

    def _behind(self) -> list[str]:
        return [
            f"{receiver}: messages {position}..{sent - 1} of source {incarnation}"
            for receiver, incarnation, sent, position in self._subscribed()
            if position is not None and position < sent
        ]

    def _unkept(self) -> list[str]:
        """Stores that do not serve, and persistent sources that are not registered."""
        waiting = [f"{one.name} does not serve" for one in self.stores.services.values() if not one.is_ready]
        for peer, report in self._reports():
            waiting += [
                f"{peer.process.name}: not registered" for one in report.get("keep", ()) if not one["is_open"]
            ]
        return waiting

    def _unstable(self) -> list[str]:
        return [
            f"{peer.process.name}: number {sqn}"
            for peer, report in self._reports()
            for one in report.get("keep", ())
            for sqn in one["unstable"][:1]
        ]

    def _read_stores_twice(self) -> None:
        """Wait until every reader has begun a replay from each Store now, and completed it."""
        before: dict[str, list[int]] = {}

        def missing() -> list[str]:
            found = []
            for peer, report in self._reports():
                for one in report.get("replay", ()):
                    first = before.setdefault(peer.process.name, one["passes"])
                    found += [
                        f"{peer.process.name}: Store {at}"
                        for at, passes in enumerate(one["passes"])
                        if passes < first[at] + 2
                    ]
            return found

        self._until_nothing_is_missing("not replayed", missing)

    def _count(self) -> None:
        counts = self.outcome.counts
        for _, report in list(self._reports()):
            for one in report.get("publish", ()):
                counts["sent"] += sum(one["sent"].values())
            for one in report.get("receive", ()):
                for key in ("received", "lost", "repeated", "skipped", "ended"):
                    counts[key] += one[key]
            for one in report.get("keep", ()):
                counts["kept"] += one["sent"]
            for one in report.get("replay", ()):
                counts["replayed"] += one["read"]

    def _close(self) -> None:
        self._count()
        readers = [peer for peer in self.peers.values() if peer.process.replay]
        for peer in self.peers.values():
            if peer.is_planted:
                peer.command(do="leak")
            if peer not in readers:
                peer.close()
        self._read_stores_twice()
        for peer in readers:
            peer.close()
        self._account_for_driver()
        self.stores.account_for_usage()
        for service in self.services.values():
            service.stop()
        self.stores.check(self.peers["keeper"].journal_path, self.peers["replayer"].journal_path)
        found_before = len(self.outcome.findings)
        self.outcome.counts["recorded"] = check_recording(self.disk.path, self.outcome.report)
        if len(self.outcome.findings) > found_before:
            shutil.copytree(self.disk.path, self.work / "recording")

    def _account_for_driver(self) -> None:
        """Compare what the driver holds without applications with what it held at first.

        It publishes the rest of its applications' logs first.
        """
        if (driver := self.services.get("driver")) is None or driver.child is None:
            return
        deadline = time.monotonic() + CLOSE_SECONDS
        while leaks("driver", grown := growth(self._idle_driver, driver.usage())):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.outcome.enter("driver", grown)

    def _read_logs(self) -> None:
        for path in sorted(self.work.glob("*.stderr")):
            text = path.read_text(errors="replace")
            if "Traceback (most recent call last)" in text:
                at = text.index("Traceback (most recent call last)")
                self.outcome.report(f"traceback: {path.name}: {text[at : at + 3000]}")

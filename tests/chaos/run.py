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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from tests.chaos.plan import DRIVER_HOST, HOSTS, OTHER_ADDRESS_OFFSET, SERVICE_HOST, Fault, Plan, Process
from tests.chaos.recorded import SmallDisk, check_recording
from tests.chaos.usage import Usage, growth, leaks, usage_of, with_streams
from umstack.config import RESOLVER_DAEMON_PORT
from umstack.key_file import write_new_key_file
from umstack.lab import Host, Lab
from umstack.lab.links import index_of

ROOT = Path(__file__).resolve().parents[2]
RECORDED_TOPIC = "chaos/a"
FINDINGS_MAX = 50
"""Findings kept by one run: later ones usually follow from the first."""
_MTU_BYTES = 1500
_START_SECONDS = 90.0
_SETTLE_SECONDS = 90.0
_CLOSE_SECONDS = 60.0
_REPORT_SECONDS = 30.0
_POLL_SECONDS = 0.1
_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    processes: dict[str, Usage] = field(default_factory=dict)
    """By process, what closing it left behind: differences of descriptors, threads and memory."""

    def report(self, finding: str) -> None:
        """Add a finding and print it."""
        if len(self.findings) >= FINDINGS_MAX:
            return
        self.findings.append(finding)
        print(f"FINDING {finding}", file=sys.stderr, flush=True)

    def enter(self, name: str, grown: Usage) -> None:
        """Account for what a process holds after everything in it was closed."""
        self.processes[name] = grown
        for finding in leaks(name, grown):
            self.report(finding)


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
            self.child.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.run.outcome.report(f"hang: {self.process.name} did not close within {_CLOSE_SECONDS:.0f} s")
            self.kill()
            return
        self._reap()
        if not self.closed:
            return
        self.run.outcome.enter(self.process.name, growth(self.closed["before"], self.closed["after"]))


class Service:
    """A command of umstack that runs beside the peers and is started again whenever it ended.

    `expected`: its exit statuses. `ready`: what it logs once it serves. Before that it may end with any status, because
    its interface may be down.
    """

    def __init__(
        self,
        run: ChaosRun,
        name: str,
        host: Host,
        command: Sequence[str],
        expected: tuple[int, ...],
        ready: str = "",
    ) -> None:
        self.run, self.name, self.host, self.command = run, name, host, command
        self.expected, self.ready = expected, ready
        self.errors_path = run.work / f"{name}.stderr"
        self.child: subprocess.Popen[bytes] | None = None
        self.is_held = False
        """True: it is not started again for now."""
        self._is_killed = False
        self._log_start = 0
        """Length of the log when the process was started."""

    @property
    def is_ready(self) -> bool:
        """True if the running process serves."""
        if self.child is None or not self.errors_path.exists():
            return False
        return self.ready.encode() in self.errors_path.read_bytes()[self._log_start :]

    def usage(self) -> Usage:
        """Return what the running process holds."""
        assert self.child is not None
        return usage_of(self.child.pid)

    def _check(self, status: int) -> None:
        if not self._is_killed and status not in self.expected and self.is_ready:
            self.run.outcome.report(f"crash: {self.name} ended with status {status}")

    def keep_running(self) -> None:
        """Start it if it does not run; report an unexpected end."""
        if self.child is not None and (status := self.child.poll()) is not None:
            self._check(status)
            self.run.outcome.counts[f"{self.name} restarts"] += 1
            self.child = None
        if self.child is None and not self.is_held:
            self._is_killed = False
            environment = {**os.environ, "UMSTACK_STAT_DIR": str(self.run.statistics_folder)}
            with self.errors_path.open("ab") as errors:
                self._log_start = errors.tell()
                self.child = self.host.run(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,
                )

    def kill(self) -> None:
        """End it at once, and hold it until `is_held` is reset."""
        self.is_held = self._is_killed = True
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it runs."""
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)

    def stop(self) -> None:
        """End it as an operator would."""
        self.is_held = True
        if self.child is None:
            return
        self.child.send_signal(signal.SIGCONT)
        if self.child.poll() is None:
            self.child.terminate()
        try:
            status = self.child.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.run.outcome.report(f"hang: {self.name} did not end within {_CLOSE_SECONDS:.0f} s")
            self.kill()
            return
        self._check(status)
        self.child = None


def _option_words(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


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
            self.context_options["authentication_key_file"] = str(self.keys_path)
            self._keys = [self._new_key()]
            self._write_keys()

    def _start(self, stack: ExitStack) -> None:
        python = [sys.executable, "-m", "umstack"]
        services = self.lab.hosts[SERVICE_HOST]
        if self.plan.has_resolver:
            address = f"{services.address}:{RESOLVER_DAEMON_PORT}"
            self.context_options["resolver_unicast_daemon"] = address
            command = [*python, "resolver", "--listen", address]
            self.services["resolver"] = Service(self, "resolver", services, command, expected=(0,))
        options = dict(self.context_options)
        if self.plan.has_keys:
            options |= {"authentication_scope": "all", "encryption": self.plan.encryption}
        command = [*python, "record", RECORDED_TOPIC, "--out", self.disk.inner_path, "-i", "eth0"]
        command += ["--part-seconds", "2"]
        command += _option_words(options)
        # Status 1: messages were lost, or the disk was full.
        recorder = Service(self, "recorder", services, self.disk.command(command), expected=(0, 1))
        self.services["recorder"] = recorder
        if self.plan.driver is not None:
            command = [*python, "driver", "eth0", "--path", str(self.driver_path)]
            command += _option_words({**self.context_options, **self.plan.driver})
            host = self.lab.hosts[DRIVER_HOST]
            self.services["driver"] = Service(self, "driver", host, command, (0,), "serving")
        for service in self.services.values():
            stack.callback(service.stop)
            service.keep_running()
        if self.plan.driver is not None:
            self._await_driver()
            self._idle_driver = with_streams(self.services["driver"].usage())
        for process in self.plan.processes:
            self.peers[process.name] = Peer(self, process)
            self.peers[process.name].start()
        stack.callback(self._kill_all)
        self._await_started()

    def _await_driver(self) -> None:
        driver = self.services["driver"]
        deadline = time.monotonic() + _START_SECONDS
        while not driver.is_ready and time.monotonic() < deadline:
            self._keep_services()
            time.sleep(_POLL_SECONDS)
        assert driver.is_ready, driver.errors_path.read_text()

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
        began = time.monotonic()
        for at, is_start, fault in sorted(steps, key=lambda step: (step[0], step[1])):
            self._wait_until(began + at)
            print(
                f"{time.monotonic() - began:7.2f} {'begin' if is_start else 'end'} {fault}",
                file=sys.stderr,
            )
            self._apply(fault, is_start)
            self.outcome.counts[fault.kind] += is_start
        self._wait_until(began + self.plan.seconds)

    def _wait_until(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            self._keep_services()
            time.sleep(min(left, _POLL_SECONDS))

    def _keep_services(self) -> None:
        for service in self.services.values():
            service.keep_running()

    def _apply(self, fault: Fault, is_start: bool) -> None:
        if fault.target in self.services:
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
            self._await_driver()
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
        for peer in self.peers.values():
            peer.command(do="finish")
        self._until_nothing_is_missing("not accounted for", self._behind)

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

    def _close(self) -> None:
        for _, report in list(self._reports()):
            for one in report.get("publish", ()):
                self.outcome.counts["sent"] += sum(one["sent"].values())
            for one in report.get("receive", ()):
                for key in ("received", "lost", "repeated", "skipped", "ended"):
                    self.outcome.counts[key] += one[key]
        for peer in self.peers.values():
            if peer.is_planted:
                peer.command(do="leak")
            peer.close()
        self._account_for_driver()
        for service in self.services.values():
            service.stop()
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
        deadline = time.monotonic() + _CLOSE_SECONDS
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

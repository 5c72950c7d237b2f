"""A driver in a process of its own, and applications in unprivileged processes that are attached to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from tests.unit.lbtipc_ends import number_of, payload
from tests.unit.loopback import OWN_ADDRESSES
from tests.waiting import SECONDS, collect, wait_for
from umstack import BurstLoss, Context, Message, Receiver, Source, UnrecoverableLoss

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
UNPRIVILEGED = [*AS_NOBODY, "--inh-caps=-all", "--no-new-privs"]


class RunningDriver:
    """A driver process and the path of its socket."""

    def __init__(self, begin: Callable[..., subprocess.Popen[str]], path: Path) -> None:
        self._begin, self.path = begin, path
        self.process = begin()

    def kill(self) -> None:
        """Kill it at once."""
        self.process.kill()
        self.process.communicate(timeout=SECONDS)

    def restart(self) -> None:
        """Kill it, and start another at the same path."""
        self.kill()
        self.process = self._begin()

    def begin_with(self, **options: object) -> None:
        """Start another with more options at the same path, after kill()."""
        self.process = self._begin(**options)


def driver_command(path: Path, interface: str, *arguments: str, **options: object) -> list[str]:
    """Return the command of a driver on an interface, with context options."""
    chosen = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    command = [sys.executable, "-m", "umstack", "driver", interface, "--path", str(path)]
    return [*command, *chosen, *arguments]


@contextmanager
def driver(
    *arguments: str, interface: str = "lo", run: Any = subprocess.Popen, **options: object
) -> Iterator[RunningDriver]:
    """Run a driver; `run` starts processes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # other users connect
        path = Path(folder) / "driver.sock"
        chosen = {**OWN_ADDRESSES, **options}

        def begin(**more: object) -> subprocess.Popen[str]:
            command = driver_command(path, interface, *arguments, **{**chosen, **more})
            process: subprocess.Popen[str] = run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
            complaints = cast("TextIO", process.stderr)
            line = complaints.readline()
            while line.startswith("umstack: "):  # a warning of the link
                line = complaints.readline()
            if not line.startswith(f"serving {interface}"):
                process.kill()
                raise AssertionError(line + process.communicate(timeout=SECONDS)[1])
            return process

        running = RunningDriver(begin, path)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.terminate()
                complaint = running.process.communicate(timeout=SECONDS)[1]
                print(complaint)
                assert "Traceback" not in complaint


def attached(path: Path, **options: Any) -> Context:
    """Return a context of this process that is attached to a driver on loopback."""
    return Context("lo", driver=path, **{**OWN_ADDRESSES, **options})


class Application:
    """An attached process, which has one source or one receiver."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.hear() == "ready"

    def hear(self) -> str:
        """Return its next line."""
        return cast("TextIO", self.process.stdout).readline().strip()

    def order(self, order: str) -> None:
        """Give an order, whose answer is the next line."""
        stdin = cast("TextIO", self.process.stdin)
        stdin.write(order + "\n")
        stdin.flush()

    def ask(self, order: str) -> Any:
        """Give an order and return the answer."""
        self.order(order)
        return json.loads(self.hear())

    def connect(self, sources: int = 1) -> None:
        """Wait until its receiver has sources. A driver waits for it only for a moment, before the first message."""
        assert self.ask(f"connect {sources}") == "connected"

    def kill(self) -> None:
        """Kill it at once."""
        self.process.kill()
        self.process.wait(SECONDS)


@contextmanager
def applications(path: Path, *, interface: str = "lo", run: Any = subprocess.Popen) -> Iterator[Any]:
    """Return a function that starts an unprivileged application: (role, topic, **options of the source or receiver)."""
    drop = UNPRIVILEGED if os.geteuid() == 0 else []
    with ExitStack() as stack:

        def begin(role: str, topic: str, **options: Any) -> Application:
            spec = {
                "role": role,
                "topic": topic,
                "path": str(path),
                "interface": interface,
                "options": options,
            }
            text = json.dumps({**spec, "addresses": OWN_ADDRESSES})
            process = run(
                [*drop, sys.executable, "-m", "tests.unit.driver_ends", text],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(process.wait, SECONDS)
            stack.callback(process.kill)
            return Application(process)

        yield begin


def exchange_several(begin: Any, far: Receiver) -> tuple[list[Application], dict[str, Any]]:
    """Let two publishers send 3,000 messages each to two subscribers and a remote receiver of the topic `several`.

    Every one gets every message, once and in order. Returns the publishers and the last subscriber's report.
    """
    subscribers = [begin("subscribe", "several") for _ in range(2)]
    publishers = [begin("publish", "several") for _ in range(2)]
    far.wait_connected(2, SECONDS)
    for publisher in publishers:
        assert publisher.ask("3000")["sent"] == 3000
    for subscriber in subscribers:
        report = subscriber.ask("6000")
        assert sorted(report["counts"].values()) == [3000, 3000], report
        assert report["in_order"]
        assert not report["lost"]
    assert len(collect(far, 6000)) == 6000
    return publishers, report


def raw_application(path: Path) -> socket.socket:
    """Return a connection to a driver for a test that breaks its protocol."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(SECONDS)
    peer.connect(str(path))
    return peer


# ---- in the application's process ----


def _subscribe(context: Context, topic: str, options: dict[str, Any]) -> None:
    numbers: dict[str, list[int]] = {}
    lost: dict[str, int] = {}
    events: Counter[str] = Counter()
    receiver = context.receiver(topic, **options)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("connect"):
            receiver.wait_connected(int(line.split()[1]), SECONDS)
            print(json.dumps("connected"), flush=True)
            continue
        # Take messages until this many have come or were lost, or nothing comes for two seconds.
        wanted = int(line)
        while sum(map(len, numbers.values())) + sum(lost.values()) < wanted:
            batch = receiver.poll(timeout=SECONDS / 5)
            for event in batch.events():
                events[type(event).__name__] += 1
                if isinstance(event, Message):
                    numbers.setdefault(event.source, []).append(number_of(event.data))
                    assert event.sequence_number == numbers[event.source][-1]
                elif isinstance(event, UnrecoverableLoss):
                    lost[event.source] = lost.get(event.source, 0) + 1
                elif isinstance(event, BurstLoss):
                    count = event.sequence_number - event.first_sequence_number + 1
                    lost[event.source] = lost.get(event.source, 0) + count
            if not batch:
                break
        in_order = all(sorted(set(one)) == one for one in numbers.values())
        counts = {source: len(one) for source, one in numbers.items()}
        spans = {source: [one[0], one[-1]] for source, one in numbers.items()}
        report = {"counts": counts, "in_order": in_order, "lost": lost, "events": events, "spans": spans}
        print(json.dumps(report), flush=True)


def _wait_written(source: Source, sent: int) -> None:
    """Another thread may still be writing the last messages into the shared log."""
    wait_for(lambda: int(source.stats()["fragments_sent"] or 0) >= sent, "the last message in the log")


def _publish(context: Context, topic: str, options: dict[str, Any]) -> None:
    source = context.source(topic, **options)
    print("ready", flush=True)
    sent = 0
    for line in sys.stdin:
        count = int(line)
        source.send_many([payload(number) for number in range(sent, sent + count)], flush=True)
        sent += count
        _wait_written(source, sent)
        print(json.dumps({"sent": sent, "transport": source.transport}), flush=True)


def main() -> None:
    """Run the application that the argument describes."""
    spec = json.loads(sys.argv[1])
    if os.geteuid() == 0:
        raise SystemExit("an application runs without privileges")
    with Context(spec["interface"], driver=spec["path"], **spec["addresses"]) as context:
        role = _subscribe if spec["role"] == "subscribe" else _publish
        role(context, spec["topic"], spec["options"])


if __name__ == "__main__":
    main()

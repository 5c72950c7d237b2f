"""The last run of the demo: the same tree, through one driver to subscriber processes without privileges on one host.

host 0                          host 1
  umstack send --files            umstack driver ---- logs in memory ----> umstack recv --files   (nobody)
         |                            ^                      +-----------> umstack recv --files   (nobody)
         +------- lossy switch -------+                      +-----------> umstack recv --files   (nobody)
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from umstack.demo.errors import DemoFailed
from umstack.demo.network import Network
from umstack.demo.processes import Child
from umstack.demo.settings import DemoSettings, Link, Options
from umstack.demo.transfer import DemoProgress, OnProgress, Transfer, command_options

SHARING_SUBSCRIBERS = 3
_NOBODY = 65534
_UNPRIVILEGED = [
    "setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
    "--no-new-privs",
]  # fmt: skip
_HOST = 1
_START_SECONDS = 30.0
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.02


def why_out_of_reach(folder: Path) -> str | None:
    """Return why the subscribers, which are another user's processes, cannot use a folder; None if they can."""
    closed = next((one for one in (folder, *folder.parents) if not one.stat().st_mode & stat.S_IXOTH), None)
    return None if closed is None else f"other users cannot reach {closed}: set TMPDIR to another directory"


class SharedTransfer(Transfer):
    """One transfer to subscribers that are attached to the driver of one host. Call `play` once."""

    def __init__(
        self, settings: DemoSettings, net: Network, work: Path, progress: DemoProgress, show: OnProgress
    ) -> None:
        """Use a topic of the run's own; `settings.subscribers` processes receive on one host."""
        super().__init__(settings, net, work, progress, show)
        self._topic = "demo/driver"
        self._socket = work / "driver.sock"

    def play(self) -> None:
        """Send the tree once the driver runs and every subscriber has attached."""
        for folder in (self._work, self._work.parent):
            folder.chmod(0o711)  # the subscribers are another user's
        with _driving(self._network, self._socket, self._progress.link, self._network.context_options()):
            super().play()

    def _subscribe(self, number: int, options: Options) -> Child:
        folder = self._work / f"subscriber-{number}"
        folder.mkdir()
        arguments = ["recv", self._topic, "--files", str(folder), "--count", "1", "--json"]
        arguments += ["--interface", self._network.interface, "--driver", str(self._socket)]
        arguments += command_options("receiver", {**self._network.receiver_options(), **options})
        if os.geteuid() != 0:
            return self._processes.start(f"subscriber {number}", _HOST, arguments)
        os.chown(folder, _NOBODY, _NOBODY)
        return self._processes.start(f"subscriber {number}", _HOST, arguments, before=_UNPRIVILEGED)

    def _known_receivers(self) -> int:
        """The publisher knows one: the driver."""
        return 1

    def _port_of(self, number: int) -> int:
        return _HOST

    def _await_contexts(self, children: Iterable[Child]) -> bool:
        """Wait for the receivers, too, which the driver's log shows: one that is opened later misses the beginning."""
        waiting = list(children)
        if any(one.name == "publisher" for one in waiting):
            return super()._await_contexts(waiting)
        log = _log_of(self._socket)

        def is_done() -> bool:
            has_ended = any(one.status is not None for one in waiting)
            return has_ended or _count(log, self._topic) == len(waiting)

        return self._await(is_done) and all(one.status is None for one in waiting)


def _count(log: Path, topic: str) -> int:
    """Return how many receivers of a topic the driver has reported."""
    lines = log.read_text().splitlines()
    return sum(" receives: " in line and line.endswith(f"; {topic}") for line in lines)


def _log_of(path: Path) -> Path:
    return path.with_suffix(".log")


@contextlib.contextmanager
def _driving(net: Network, path: Path, link: Link, options: Options) -> Iterator[None]:
    """Run a driver; it serves when the block starts."""
    command = [sys.executable, "-m", "umstack", "driver", net.interface, "--path", str(path)]
    command += ["--allow-user", str(_NOBODY)]
    command += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    log = _log_of(path)
    with log.open("w") as errors:
        driver = net.run(_HOST, [*command, "-o", f"link={link}"], stderr=errors, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while "serving" not in log.read_text():
            if driver.poll() is not None or time.monotonic() > deadline:
                raise DemoFailed(
                    f"the driver did not start: {log.read_text()}".strip(), hint="use --no-driver"
                )
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        driver.terminate()
        try:
            driver.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()

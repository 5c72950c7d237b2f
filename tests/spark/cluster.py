"""Spark's standalone cluster on this machine: a master and workers with one core each, in separate processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from umstack.spark.spark_session import QUICK_JVM, shared_classes

HOME = Path(pyspark.__file__).parent
_LISTENING = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile("Successfully registered with master")
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_PYTHON = b"worker_daemon"
_LOGGING = (
    "rootLogger.level = info\nrootLogger.appenderRef.e.ref = e\nappender.e.type = Console\nappender.e.name = e\n"
    "appender.e.target = SYSTEM_ERR\nappender.e.layout.type = PatternLayout\nappender.e.layout.pattern = %m%n\n"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: its master's address, its workers' processes, and the environment for its users."""

    master: str
    workers: list[subprocess.Popen[str]]
    environment: dict[str, str]

    def executor_processes(self) -> list[int]:
        """The running executors."""
        pids = [pid for worker in self.workers for pid in _children(worker.pid)]
        return [pid for pid in pids if _EXECUTOR in _command(pid)]

    def busy_executors(self) -> list[int]:
        """The executors that run Python workers."""
        return [
            pid
            for pid in self.executor_processes()
            if any(_PYTHON in _command(child) for child in _children(pid))
        ]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            children += map(int, path.read_text().split())
    return children


@contextmanager
def standalone(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """Start a cluster with its files in `folder`; it ends with the block."""
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    environment = {
        **os.environ,
        "JAVA_TOOL_OPTIONS": f"{QUICK_JVM} {shared_classes()} -Dlog4j2.configurationFile={logging.as_uri()}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    at = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        daemon = stack.enter_context(_daemon("master.Master", environment, *at))
        master = _wait_until_said(daemon, _LISTENING).group(1)
        # All start at the same time, because starting a JVM takes most of the time here.
        started = [
            stack.enter_context(_daemon("worker.Worker", environment, *at, *_work(folder, number), master))
            for number in range(workers)
        ]
        for worker in started:
            _wait_until_said(worker, _REGISTERED)
        yield Cluster(master, started, environment)


def _work(folder: Path, number: int) -> tuple[str, ...]:
    return "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}")


@contextmanager
def _daemon(name: str, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a daemon of Spark, which may not be ready yet, until the end of the block."""
    launcher = HOME / "bin" / "spark-class"
    process = subprocess.Popen(
        [launcher, f"org.apache.spark.deploy.{name}", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def _wait_until_said(process: subprocess.Popen[str], wanted: re.Pattern[str]) -> re.Match[str]:
    """Wait for the daemon's line that matches `wanted`, which it prints when ready."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        found = wanted.search(line)
        if found is not None:
            return found
    raise RuntimeError(f"a daemon ended: {''.join(said[-5:])}")

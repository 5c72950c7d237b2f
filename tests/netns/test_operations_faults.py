"""Faults of operations that only root can set up: a read-only file system, and a user without privileges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_nic_settings import FRESH, FakeHost
from umstack_xdp.errors import SettingError
from umstack_xdp.nic_settings import init

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/wire/wire-sample.pcap"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a read-only file system."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system without space."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    with pytest.raises(OSError, match="No space left"):
        (folder / "rest").write_bytes(bytes(1 << 20))
    yield folder
    subprocess.run(["umount", folder], check=True)


def umstack(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "umstack", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment},
        input="line\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("recv", "orders", "--interface", "lo", "--output", "{folder}/out"),
        ("recv", "orders", "--interface", "lo", "--files", "{folder}/tree"),
        ("record", "orders", "--interface", "lo", "--out", "{folder}/record"),
        ("capture", "lo", "--out", "{folder}/capture"),
        ("decode", str(SAMPLE), "--parquet", "{folder}/parquet"),
        ("report", str(SAMPLE), "--out", "{folder}/report"),
        ("broker", "--path", "{folder}/xdp.sock"),
    ],
    ids=lambda arguments: " ".join(arguments[:1]),
)
def test_a_read_only_file_system_is_reported(read_only: Path, arguments: tuple[str, ...]) -> None:
    """A command prints one line with the path and the reason and no traceback, and ends with status 1."""
    done = umstack(*[word.format(folder=read_only) for word in arguments])
    assert done.returncode == 1, done.stdout
    assert str(read_only) in done.stderr
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("record", "orders", "--interface", "lo", "--out", "{folder}/record"),
        ("record", "orders", "--interface", "lo", "--journal", "{folder}/journal"),
        ("decode", str(SAMPLE), "--parquet", "{folder}/parquet"),
        ("decode", str(SAMPLE), "--csv", "{folder}/csv"),
        ("sim", "--seed", "5", "--capture", "{folder}/run.pcapng"),
        ("key", "new", "{folder}/keys"),
        ("capture", "lo", "--out", "{folder}/capture"),
        ("report", str(SAMPLE), "--out", "{folder}/report"),
        ("monitor", str(SAMPLE), "--once", "--parquet", "{folder}/windows"),
        ("monitor", str(SAMPLE), "--once", "--checkpoint", "{folder}/state"),
        ("monitor", str(SAMPLE), "--once", "--prometheus-file", "{folder}/metrics"),
        ("pipeline", str(SAMPLE), "--once", "--tables", "{folder}/tables"),
    ],
    ids=lambda arguments: " ".join((arguments[0], arguments[-2])),
)
def test_a_full_file_system_is_reported(full: Path, arguments: tuple[str, ...]) -> None:
    """A command prints one line with the path and the reason and no traceback, and ends with status 1."""
    done = umstack(*[word.format(folder=full) for word in arguments])
    assert done.returncode == 1, done.stdout
    assert str(full) in done.stderr
    assert "No space left on device" in done.stderr
    assert "make space" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "reason"), [("read_only", "Read-only file system"), ("full", "No space left on device")]
)
def test_settings_that_cannot_be_recorded_are_not_changed(
    request: pytest.FixtureRequest, fault: str, reason: str
) -> None:
    """`umstack nic init` with a state file that cannot be written prints the reason and changes nothing."""
    host = FakeHost(FRESH)
    state = request.getfixturevalue(fault) / "state.json"
    with pytest.raises(SettingError, match=rf"writing {state}.*{reason}"):
        init(host, state)
    assert host.values == FRESH


_STATISTICS = """
import sys, logging, umstack
logging.basicConfig(format="%(message)s")
with umstack.Context("lo", statistics=True if sys.argv[1] == "required" else None) as context:
    print("open")
"""


@pytest.mark.parametrize("wanted", ["required", "by default"])
def test_statistics_on_a_read_only_file_system_are_reported(read_only: Path, wanted: str) -> None:
    """A context that requires statistics is not opened; any other context opens and logs the fault. Both name
    the directory and the variable to set.
    """
    done = subprocess.run(
        [sys.executable, "-c", _STATISTICS, wanted],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "UMSTACK_STAT_DIR": f"{read_only}/stat"},
    )
    assert (done.returncode == 0, done.stdout == "open\n") == ((wanted == "by default",) * 2), done.stderr
    for said in (f"{read_only}/stat", "Read-only file system", "UMSTACK_STAT_DIR"):
        assert said in done.stderr


# Root without capabilities, because the user nobody cannot read the interpreter of every checkout.
_UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def unprivileged(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command without privileges, with statistics in its own folder."""
    return subprocess.run(
        [*_UNPRIVILEGED, sys.executable, "-m", "umstack", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "UMSTACK_STAT_DIR": str(folder / "stat")},
        input="line\n",
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("capture", "lo", "--out", "{folder}/capture"), "run as root, or grant the capabilities"),
        (("broker", "--path", "{folder}/xdp.sock"), "CAP_NET_RAW"),
        (("lab", "up"), "root"),
        (("bench", "latency", "--seconds", "0.1"), "root"),
        (("send", "orders", "--interface", "lo", "-o", "link=xdp"), "CAP_NET_RAW"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_takes_a_privilege_names_it(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    """The command prints one line and no traceback, and ends with status 1."""
    done = unprivileged(tmp_path, *[word.format(folder=tmp_path) for word in arguments])
    assert done.returncode == 1, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "lo", "--json"),
        ("nic", "check", "lo", "--skip", "socket buffers"),
        ("stat", "--json"),
        ("top", "--once", "--json", "--interval", "0.1"),
        ("exporter", "--once"),
        ("send", "orders", "--interface", "lo", "-o", "flow_control=none", "--wait-receivers", "0"),
        ("decode", str(SAMPLE)),
        ("--version",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_takes_none_works_without(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Sockets, statistics, metrics, captures and the doctor work for every user."""
    done = unprivileged(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr

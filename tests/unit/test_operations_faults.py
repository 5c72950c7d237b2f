"""Faults in operations: processes that die during a scrape, ports in use, ten thousand topics, missing extras."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.loopback import connect, open_context, write_counters
from tests.waiting import collect
from umstack.telemetry.statistics_reader import read_statistics

TOPICS = 10_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate the sockets of these tests from others."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    return tmp_path / "stat"


def umstack(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "umstack", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


# ---- a port in use ----


@pytest.mark.parametrize("command", [("exporter", "--listen"), ("watch", "--web")], ids=["exporter", "watch"])
def test_a_port_in_use_is_reported(command: tuple[str, ...]) -> None:
    """The error has the address, the reason and the remedy in one line; the status is 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = umstack(*command, address)
    assert done.returncode == 1
    assert address in done.stderr
    assert "the port is in use" in done.stderr
    assert "Traceback" not in done.stderr


# ---- ten thousand topics ----


@pytest.mark.timeout(300)
def test_ten_thousand_topics_are_shown_within_bounds() -> None:
    """With ten thousand topics the page is bounded by its labels, and stat, top and exporter answer."""
    with open_context(statistics=True) as context:
        for number in range(TOPICS):
            context.source(f"topic {number}", transport_lbtrm_multicast_address="239.192.77.1")
        write_counters(context)
        (report,) = read_statistics(os.getpid())
        assert len(report["sources"]) == TOPICS
        page = umstack("exporter", "--once").stdout
        assert page.count("umstack_source_messages_sent_total{") == 2001
        assert 'umstack_folded_labels{label="topic"} 8000\n' in page
        top = json.loads(umstack("top", "--once", "--json", "--interval", "0.5").stdout)
        assert sum(len(one["topics"]) for one in top["sessions"]) == TOPICS
        listed = umstack("stat", str(os.getpid()), "--json")
        assert listed.returncode == 0
        assert len(json.loads(listed.stdout)["contexts"][0]["sources"]) == TOPICS


# ---- a topic's name in the report ----

HOSTILE = "<script>alert('x')</script>&\"\x1b[2J"


def test_a_hostile_topic_name_is_text_in_the_report(tmp_path: Path) -> None:
    """Tags in a topic's name are shown as text; escape sequences are written out, also on the terminal."""
    tap = tmp_path / "tap.pcapng"
    with open_context(tap=tap, resolver_multicast_port=12965) as context:  # the decoder reads names here
        source, receiver = connect(context, HOSTILE)
        source.send_many([b"message"] * 100, flush=True)
        collect(receiver, 100)
    done = umstack("report", str(tap), "--out", str(tmp_path / "report"), timeout=100)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report/report.html").read_text()
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;" in page
    assert "<script>alert" not in page
    for text in (page, done.stdout, done.stderr):
        assert "\x1b[2J" not in text


# ---- Python without an extra ----

_WITHOUT = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else super().find_spec(name, path, target)
sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
{program}
"""
_COMMAND = "sys.argv[1:] = {arguments}; from umstack.cli import main; main()"


@pytest.mark.parametrize(
    ("extra", "absent", "program"),
    [
        ("arrow", {"pyarrow"}, _COMMAND.format(arguments=["decode", "/dev/null"])),
        ("arrow", {"pyarrow"}, _COMMAND.format(arguments=["record", "t", "--out", "/tmp/x"])),
        (
            "report",
            {"pyarrow", "polars", "pandas", "pyspark"},
            _COMMAND.format(arguments=["report", "/dev/null", "--out", "/tmp/x"]),
        ),
        (
            "spark,report",
            {"pyspark"},
            _COMMAND.format(arguments=["report", "/dev/null", "--out", "/tmp/x", "--master", "local"]),
        ),
        ("spark,report", {"pyspark"}, _COMMAND.format(arguments=["monitor", "/tmp"])),
        ("metrics", {"prometheus_client"}, "import umstack.telemetry.registry_collector"),
        ("packets", {"scapy"}, "import umstack.scapy"),
        (
            "plot",
            {"matplotlib"},
            "from pathlib import Path; from umstack.bench.plot import check_plot; check_plot(Path('x.svg'))",
        ),
    ],
)
def test_a_missing_extra_is_named(extra: str, absent: set[str], program: str) -> None:
    """A command that needs a missing extra prints `pip install 'umstack[EXTRA]'`."""
    code = _WITHOUT.format(absent=absent, program=program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"umstack[{extra}]" in done.stderr, done.stderr


def test_sockets_need_no_extra() -> None:
    """Publishing and receiving works without any extra."""
    absent = {
        "pyarrow",
        "pyspark",
        "polars",
        "pandas",
        "matplotlib",
        "scapy",
        "prometheus_client",
        "numpy",
        "seccomp",
    }
    program = """
import umstack
with umstack.Context("lo") as context:
    receiver, source = context.receiver("bare"), context.source("bare", flow_control="min")
    source.wait_connected(timeout=10)
    source.send(b"message", flush=True)
    print(next(iter(receiver)).data.decode())
"""
    code = _WITHOUT.format(absent=absent, program=program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "message\n", done.stderr

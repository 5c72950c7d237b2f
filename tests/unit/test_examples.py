"""The programs of examples/ do what their first lines promise: each is run as a user would run it, over loopback."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.loopback import FIXED_PORT, configuration_file
from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LINES_MAX = 60
SAMPLE = ROOT / "tests" / "wire" / "wire-sample.pcap"

# A pattern for the complete output of each program. subscribe.py is run beside publish.py.
ALONE = {
    "asyncio_echo.py": "".join(rf"REQUEST {number}\n" for number in range(5)),
    "batches_to_arrow.py": r"10000 rows, columns topic, sequence_number, source, received_ns, payload, sent_ns\n"
    r"payloads 00000000 to 00009999\n",
    "claim.py": r"1000 readings, sums 62250\.0 62375\.0 62500\.0 62625\.0\n",
    "hot_failover.py": r"1000 messages, each once and in order: True\n",
    "message_properties.py": "".join(
        rf"order {number} \{{'region': 'eu', 'priority': 1\}}\n" for number in (0, 3, 6)
    )
    + r"the last one \{'region': 'eu', 'urgent': True, 'price': 99\.5\}\n",
    "many_topics.py": r"1000 messages of 100 topics, 10 of each\n",
    "requests.py": r"0 has apples\n1 has apples\n2 has apples\nthe first of them: has pears\n",
    "sequential.py": r"100 messages, 0 threads of the stack\n",
}
NEEDS = {"batches_to_arrow.py": "pyarrow"}


def start(name: str, *arguments: object) -> subprocess.Popen[str]:
    """Start an example."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def output(process: subprocess.Popen[str]) -> str:
    """Return its output. Fails unless it exits with status 0 and prints nothing to stderr."""
    try:
        said, complaints = process.communicate(timeout=4 * SECONDS)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, complaints) == (0, ""), f"{process.args}: {said}{complaints}"
    return said


@pytest.mark.parametrize("name", ALONE)
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    """A program that is both ends."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    said = output(start(name, "lo", configuration_file(tmp_path)))
    assert re.fullmatch(ALONE[name], said), said


def test_publisher_and_subscriber_are_two_processes(tmp_path: Path) -> None:
    """publish.py and subscribe.py: every message in order, the events around them in their places."""
    config = configuration_file(tmp_path)
    with config.open("a") as file:
        file.write("receiver transport_lbtrm_activity_timeout 2000\n")
    subscriber = start("subscribe.py", "lo", "orders", config)
    said_by_publisher = output(start("publish.py", "lo", "orders", 100, config))
    lines = output(subscriber).splitlines()
    assert re.fullmatch(r"100 messages on 'orders', the last has sequence number \d+\n", said_by_publisher)
    assert lines[0].startswith("begins: LBTRM:")
    assert lines[-1].startswith("ends: LBTRM:")
    assert [line.split(": ")[1] for line in lines[1:-1]] == [f"message {number}" for number in range(100)]


def test_the_commands_of_the_stores_guide_work(tmp_path: Path) -> None:
    """Its commands in order: kept, read after the publisher ended, continued, and whole after kill -9."""
    config = configuration_file(tmp_path)
    address = f"127.0.0.1:{FIXED_PORT}"
    replaced = {"/tmp/orders-store": str(tmp_path / "store"), "127.0.0.1:14567": address, "eth1": "lo"}
    text = (ROOT / "docs" / "guides" / "store.md").read_text()
    lines = [shlex.split(line) for line in re.findall(r"^    ((?:umstack|python) .*)$", text, re.MULTILINE)]
    commands = []
    for words in lines:
        words = [
            replaced.get(word, str(tmp_path / word) if word.endswith(".txt") else word) for word in words
        ]
        first = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "umstack"]
        commands.append([*first, *words[1:], *([str(config)] if words[0] == "python" else [])])
    store, publish, read, read_some, read_mine, verify, publish_again, read_on, status, send = commands

    def run(line: list[str]) -> str:
        line, given = (line[:-2], Path(line[-1]).read_text()) if "<" in line else (line, "")
        done = subprocess.run(
            line, input=given, capture_output=True, text=True, cwd=ROOT, timeout=4 * SECONDS
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def orders(name: str, first: int, end: int) -> None:
        expected = [f"order {number}" for number in range(first, end)]
        assert (tmp_path / name).read_text().splitlines() == expected

    def begin() -> subprocess.Popen[str]:
        process = subprocess.Popen([*store, "-c", str(config)], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert address in process.stderr.readline()
        return process

    running = begin()
    try:
        assert run(publish) == "messages 0 to 999 on 'orders' are stable\n"
        run(read)
        orders("all.txt", 0, 1000)
        run(read_some)
        orders("some.txt", 990, 1000)
        for first in (0, 1000):
            run(read_mine)
            orders("mine.txt", first, 1000)
        running.kill()
        running.communicate()
        run(verify)
        running = begin()
        assert run(publish_again) == "messages 1000 to 1999 on 'orders' are stable\n"
        run(read_on)
        orders("mine.txt", 1000, 2000)
        assert "orders" in run(status)
        (tmp_path / "lines.txt").write_text("".join(f"order {number}\n" for number in range(2000, 2010)))
        run([*send[:-2], "-c", str(config), *send[-2:]])
        run(read_on)
        orders("mine.txt", 2000, 2010)
    finally:
        running.kill()
        running.communicate()


def test_a_capture_is_decoded() -> None:
    """decode_capture.py: the datagrams of a capture that is part of the wire tests, by kind."""
    pytest.importorskip("pyarrow")
    said = output(start("decode_capture.py", SAMPLE))
    counts = dict(line.split(": ") for line in said.splitlines()[:-1])
    assert {"DATA", "NAK", "NCF", "SM"} <= counts.keys(), said
    assert re.search(r"^retransmissions: [1-9]\d*, sequence numbers NAKed: [1-9]\d*$", said, re.MULTILINE), (
        said
    )


def test_examples_are_short_and_all_of_them_are_run() -> None:
    """Programs that fit a screen; none is left out above."""
    programs = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert programs.keys() == ALONE.keys() | {
        "publish.py",
        "subscribe.py",
        "store_publisher.py",
        "decode_capture.py",
    }
    assert not {name: lines for name, lines in programs.items() if lines >= LINES_MAX}

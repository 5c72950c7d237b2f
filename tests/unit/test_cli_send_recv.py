"""`umstack send` and `umstack recv` as a person runs them: two processes over loopback."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import configuration_file
from tests.waiting import SECONDS, wait_for
from umstack import Context
from umstack.cli import command as umstack
from umstack.cli.framing import BrokenStream, LineSplitter, RecordSplitter, join_lines, join_records
from umstack.errors import MessageTooLong, OptionError
from umstack.events import Message
from umstack.telemetry.statistics_reader import read_statistics

TIMEOUT = 6 * SECONDS
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with the addresses of this test process."""
    return configuration_file(tmp_path)


@pytest.fixture
def start(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start `umstack` with this test's configuration; what still runs at the end is ended."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    running = []

    def run(action: str, topic: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "umstack", action, topic, "-i", "lo", "-c", str(config), *arguments]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        process = subprocess.Popen(command, **{**pipes, **options})
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen[bytes], data: bytes | None = None) -> tuple[int, bytes, str]:
    """Exit status, standard output and standard error."""
    said, complained = process.communicate(data, timeout=TIMEOUT)
    return process.returncode, said, complained.decode()


def ready(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has a context that can be read."""

    def has_context() -> bool:
        assert process.poll() is None, process.communicate()
        return any(report["receivers"] or report["sources"] for report in read_statistics(process.pid))

    wait_for(has_context, "a context", TIMEOUT)


# ---- streams ----


def test_lines_go_through(start: Start) -> None:
    """Lines in, the same lines out, in order; both ends say so by their status."""
    lines = b"".join(b"line %d\n" % number for number in range(5000)) + b"\n\nlast, without an end"
    receiver = start("recv", "lines", "--count", "5003")
    sender = start("send", "lines")
    status, said, complained = finish(sender, lines)
    assert (status, said) == (0, b""), complained
    assert "sent 5,003 messages" in complained
    status, said, complained = finish(receiver)
    assert status == 0, complained
    assert said == lines + b"\n"


def test_send_waits_for_receivers_over_tcp(start: Start) -> None:
    """Over TCP the receivers are the connected clients."""
    receiver = start("recv", "over-tcp", "--count", "1")
    status, _, complained = finish(
        start("send", "over-tcp", "-o", "transport=tcp", "--timeout", "20"), b"one\n"
    )
    assert status == 0, complained
    assert finish(receiver)[:2] == (0, b"one\n")


def test_a_tree_is_sent_at_a_rate_without_excluded_names(start: Start, tmp_path: Path) -> None:
    """--exclude skips names anywhere in the tree; --rate spreads the bytes over time."""
    (tmp_path / "tree" / "cache").mkdir(parents=True)
    (tmp_path / "tree" / "cache" / "file").write_bytes(b"x")
    (tmp_path / "tree" / "file").write_bytes(bytes(200_000))
    receiver = start("recv", "tree", "--files", str(tmp_path / "got"), "--json")
    sender = start(
        *(
            "send",
            "tree",
            "--files",
            f"{tmp_path / 'tree'}/",
            "--exclude",
            "cache",
            "--rate",
            "200000",
            "--json",
        )
    )
    status, said, complained = finish(sender)
    assert status == 0, complained
    assert json.loads(said)["seconds"] > 0.6
    status, said, complained = finish(receiver)
    assert status == 0, complained
    assert json.loads(said)["link_mode"] == "socket"
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["file"]


def test_records_go_through(start: Start) -> None:
    """Length-prefixed messages of every size, also empty and many datagrams long, come out as they went in."""
    sizes = [0, 1, 1400, 1472, 5000, 300_000, *range(100)]
    data = b"".join(struct.pack(">I", size) + os.urandom(size) for size in sizes)
    receiver = start("recv", "records", "--records", "--count", str(len(sizes)))
    assert finish(start("send", "records", "--records"), data)[0] == 0
    status, said, complained = finish(receiver)
    assert status == 0, complained
    assert said == data


def test_two_senders_are_the_lines_of_one_stream(start: Start, tmp_path: Path) -> None:
    """The same input twice, one copy of each message out, in order, with its properties."""
    lines = [f"line {number}" for number in range(3000)]
    data = "".join(f"{line}\n" for line in lines).encode()
    output = tmp_path / "out"
    receiver = start(
        *("recv", "copies", "--hot-failover", "--json-lines", "--output", str(output), "--json"),
        *("--count", str(len(lines))),
    )
    given = tmp_path / "in"
    given.write_bytes(data)
    for _ in range(2):
        with given.open("rb") as stream:
            start("send", "copies", "--hot-failover", "--property", "region=eu", stdin=stream)
    status, said, complained = finish(receiver)
    assert status == 0, complained
    assert json.loads(said)["messages"] == len(lines)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["data"] for one in found] == lines
    assert [one["sequence_number"] for one in found] == list(range(len(lines)))
    assert {one["properties"]["region"] for one in found} == {"eu"}


def test_properties_go_with_every_message(start: Start) -> None:
    """--property sends a typed value and --json-lines shows it, for text data and for binary data."""
    given = [
        "region=eu",
        "priority:int=3",
        "urgent:boolean=true",
        "part:byte=-1",
        "price:double=2.5",
        "a:b:string=c=d",
    ]
    options = [word for each in given for word in ("--property", each)]
    receiver = start("recv", "typed", "--count", "2", "--json-lines")
    data = b"".join(struct.pack(">I", len(each)) + each for each in (b"text", b"\xff"))
    status, _, complained = finish(start("send", "typed", "--records", *options), data)
    assert status == 0, complained
    status, said, complained = finish(receiver)
    assert status == 0, complained
    first, second = map(json.loads, said.splitlines())
    expected = {"region": "eu", "priority": 3, "urgent": True, "part": -1, "price": 2.5, "a:b": "c=d"}
    assert first["properties"] == second["properties"] == expected
    assert (first["data"], second["data_base64"]) == ("text", "/w==")
    assert second["sequence_number"] == first["sequence_number"] + 1
    assert first["source"].startswith("LBTRM:")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("region", "has no value"),
        ("=eu", "has 0 bytes"),
        ("a:number=3", "no type of a property"),
        ("a:int=x", "x is no int"),
        ("a:int=2147483648", "is no int"),
        ("a:byte=200", "Byte, which holds"),
        ("a:boolean=yes", "yes is no boolean"),
    ],
)
def test_properties_that_cannot_be_are_refused(given: str, said: str) -> None:
    """The options of the command line are applied by name."""
    result = CliRunner().invoke(umstack, ["send", "t", "--property", given])
    assert result.exit_code == 2
    assert said in result.output
    twice = CliRunner().invoke(umstack, ["send", "t", "--property", "a=1", "--property", "a=2"])
    assert "given twice" in twice.output
    files = CliRunner().invoke(umstack, ["send", "t", "--files", "/etc", "--property", "a=1"])
    assert "no --property" in files.output


def test_json_is_one_object_and_the_messages_go_to_a_file(start: Start, tmp_path: Path) -> None:
    """--json: one object on standard output at both ends, and the counters in it."""
    out = tmp_path / "out"
    receiver = start("recv", "json", "--count", "2", "--json", "--output", str(out))
    status, said, _ = finish(start("send", "json", "--json"), b"a\nb\n")
    sent = json.loads(said)
    assert status == 0
    assert (sent["ok"], sent["messages"], sent["drained"]) == (True, 2, True)
    status, said, _ = finish(receiver)
    received = json.loads(said)
    assert (status, received["ok"], received["messages"]) == (0, True, 2)
    assert received["counters"]["messages_delivered"] == 2
    assert out.read_bytes() == b"a\nb\n"


def test_send_waits_for_as_many_receivers_as_asked(start: Start) -> None:
    """With --wait-receivers 2 nothing leaves before the second is there, and both get all of it."""
    first = start("recv", "two", "--count", "3")
    sender = start("send", "two", "--wait-receivers", "2")
    assert sender.stdin is not None
    sender.stdin.write(b"1\n2\n3\n")
    sender.stdin.flush()
    ready(first)
    ready(sender)
    assert read_statistics(sender.pid)[0]["sources"][0]["messages_sent"] == 0
    second = start("recv", "two", "--count", "3")
    assert finish(sender, b"")[0] == 0
    assert [finish(receiver)[1] for receiver in (first, second)] == [b"1\n2\n3\n"] * 2


def test_lines_are_sent_as_they_come(start: Start) -> None:
    """A line is not held back for the next: `tail -f` works."""
    receiver, sender = start("recv", "live"), start("send", "live")
    assert sender.stdin is not None
    assert receiver.stdout is not None
    for line in (b"first\n", b"second\n"):
        sender.stdin.write(line)
        sender.stdin.flush()
        assert select.select([receiver.stdout], [], [], TIMEOUT)[0]
        assert os.read(receiver.stdout.fileno(), 100) == line


def test_the_end_of_the_session_can_end_recv(start: Start) -> None:
    """--until-end: when the publisher has been idle for its activity timeout."""
    receiver = start("recv", "end", "--until-end", "-o", "transport_lbtrm_activity_timeout=300")
    assert finish(start("send", "end"), b"x\n")[0] == 0
    assert finish(receiver)[:2] == (0, b"x\n")


# ---- files ----


@pytest.mark.parametrize(
    ("sizes", "reported"),
    [
        ((10, 1200, 10), "unrecoverably lost: topic sequence number 1"),
        ((10, 1200), "1 datagrams were lost for good"),
        ((1200, 1200), "2 datagrams were lost for good"),
    ],
)
def test_a_lost_message_is_a_failure_at_both_ends(
    start: Start, sizes: tuple[int, ...], reported: str
) -> None:
    """UM-83: recv counts datagrams that no later message reveals as lost; send names the receiver that lost them."""
    receiver = start(
        *("recv", "cut", "--until-end"),
        *("-o", "transport_lbtrm_receiver_datagram_max_size=1000"),
        *("-o", "transport_lbtrm_nak_generation_interval=400"),
        *("-o", "transport_lbtrm_activity_timeout=2000"),
    )
    sender = start("send", "cut", "-o", "transport_topic_sequence_number_info_interval=0")
    ready(sender)

    def sent() -> int:
        return sum(
            source["messages_sent"] for one in read_statistics(sender.pid) for source in one["sources"]
        )

    for count, size in enumerate(sizes, 1):
        os.write(sender.stdin.fileno(), b"%0*d\n" % (size, 0))  # type: ignore[union-attr]
        wait_for(lambda count=count: sent() == count, "a message alone in its datagram", SECONDS)  # type: ignore[misc]
    status, _, complained = finish(sender)
    assert status == 1
    assert re.search(r"receiver 127\.\S+ lost \d datagrams for good", complained), complained
    status, said, complained = finish(receiver)
    assert (status, said.count(b"\n")) == (1, sizes.count(10)), complained
    assert reported in complained


def test_files_go_through(start: Start, tmp_path: Path) -> None:
    """A tree to two receivers: every file there, with its mode, and nothing else."""
    tree = tmp_path / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "sub" / "big").write_bytes(os.urandom(1_000_000))
    (tree / "tool").write_text("#!/bin/sh\n")
    (tree / "tool").chmod(0o755)
    receivers = [start("recv", "tree", "--files", str(tmp_path / f"to{n}"), "--json") for n in range(2)]
    status, said, complained = finish(
        start("send", "tree", "--files", f"{tree}/", "--wait-receivers", "2", "--json")
    )
    assert status == 0, complained
    sent = json.loads(said)["tree"]
    assert (sent["files"], sent["directories"]) == (2, 2)
    for number, receiver in enumerate(receivers):
        status, said, complained = finish(receiver)
        assert status == 0, complained
        (received,) = json.loads(said)["trees"]
        assert received["complete"]
        assert received["manifest_sha256"] == sent["manifest_sha256"]
        target = tmp_path / f"to{number}"
        assert (target / "sub" / "big").read_bytes() == (tree / "sub" / "big").read_bytes()
        assert (target / "tool").stat().st_mode == (tree / "tool").stat().st_mode
        assert sorted(path.name for path in target.rglob("*")) == ["big", "empty", "sub", "tool"]


def test_an_incomplete_tree_is_a_failure(start: Start, tmp_path: Path) -> None:
    """recv --files ends with status 1 when the publisher dies within the tree, and leaves no half file."""
    (tmp_path / "big").write_bytes(os.urandom(64 << 20))
    target = tmp_path / "to"
    receiver = start("recv", "dies", "--files", str(target), "-o", "transport_lbtrm_activity_timeout=2000")
    sender = start(
        "send", "dies", "--files", str(tmp_path / "big"), "-o", "transport_lbtrm_data_rate_limit=20000000"
    )
    ready(sender)
    ready(receiver)
    while not any(
        report["receivers"][0]["messages_delivered"] > 20 for report in read_statistics(receiver.pid)
    ):
        assert sender.poll() is None
    sender.kill()
    status, _, complained = finish(receiver)
    assert status == 1
    assert "the publisher went away" in complained
    assert list(target.iterdir()) == []


# ---- being asked to stop, and failing ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_recv_ends_in_order_when_asked_to(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C is how a recv without --count ends: summary, status 0, nothing left behind."""
    receiver = start("recv", "stop")
    ready(receiver)
    receiver.send_signal(number)
    status, _, complained = finish(receiver)
    assert status == 0
    assert "received 0 messages" in complained
    assert "Traceback" not in complained
    assert list((tmp_path / "stat").iterdir()) == []


def test_an_incomplete_recv_reports_it_when_stopped(start: Start) -> None:
    """With --count an interruption is a promise not kept."""
    receiver = start("recv", "stop", "--count", "5")
    ready(receiver)
    receiver.send_signal(signal.SIGINT)
    status, _, complained = finish(receiver)
    assert status == 130
    assert "interrupted after 0 of 5" in complained


def test_send_ends_in_order_when_asked_to(start: Start) -> None:
    """Ctrl-C while it waits for receivers, or for input."""
    sender = start("send", "stop")
    ready(sender)
    sender.send_signal(signal.SIGINT)
    status, _, complained = finish(sender)
    assert status == 130
    assert "interrupted" in complained
    assert "Traceback" not in complained


@pytest.mark.parametrize(
    ("action", "opened", "status", "said"),
    [("send", "source", 130, "interrupted"), ("recv", "receiver", 0, "received 0 messages")],
)
def test_who_is_interrupted_before_anything_is_there_ends_in_order(
    config: Path, monkeypatch: pytest.MonkeyPatch, action: str, opened: str, status: int, said: str
) -> None:
    """Ctrl-C between the opening of the context and the wait is handled like any other: for a sender it is
    an end too early, for a receiver without --count it is just the end."""

    def interrupted(_context: Context, _topic: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Context, opened, interrupted)
    done = CliRunner().invoke(umstack, [action, "early", "-i", "lo", "-c", str(config)])
    assert done.exit_code == status, done.output
    assert said in done.stderr


def test_recv_gives_up_after_the_timeout(start: Start) -> None:
    """--timeout exits with status 1 if fewer messages than requested, or none, have arrived."""
    status, _, complained = finish(start("recv", "silence", "--timeout", "0.2", "--count", "1"))
    assert (status, "timed out after 0 of 1" in complained) == (1, True), complained
    status, _, complained = finish(start("recv", "silence", "--timeout", "0.2"))
    assert (status, "nothing was received" in complained) == (1, True), complained


def test_send_gives_up_after_the_timeout(start: Start) -> None:
    """Nobody listens: status 1 and a word on what to do; --wait-receivers 0 sends all the same."""
    status, said, complained = finish(start("send", "nobody", "--timeout", "0.2", "--json"), b"x\n")
    assert status == 1
    assert json.loads(said)["ok"] is False
    assert "start a receiver" in complained
    assert finish(start("send", "nobody", "--wait-receivers", "0", "--linger", "0"), b"x\n")[0] == 0


def test_a_receiver_that_dies_is_not_passed_over(start: Start) -> None:
    """send ends with status 1 when a receiver became idle before it had everything."""
    receiver = start("recv", "silent")
    sender = start("send", "silent", "-o", "flow_control_receiver_timeout=500")
    assert sender.stdin is not None
    ready(receiver)
    ready(sender)
    sender.stdin.write(b"x\n")
    sender.stdin.flush()
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"x\n"
    receiver.kill()
    wait_for(lambda: read_statistics(sender.pid)[0]["source_transports"][0]["receivers_timed_out"])
    status, _, complained = finish(sender, b"")
    assert status == 1
    assert "became idle" in complained


def test_a_reader_that_goes_away_is_no_crash(start: Start) -> None:
    """`recv | head`: a closed pipe ends it in one line."""
    reading, writing = os.pipe()
    receiver = start("recv", "pipe", stdout=writing)
    os.close(writing)
    sender = start("send", "pipe")
    assert sender.stdin is not None
    ready(receiver)
    os.close(reading)
    sender.stdin.write(b"x\n")
    sender.stdin.flush()
    status, _, complained = finish(receiver)
    assert status == 1
    assert "the process that read the output is gone" in complained
    assert "Traceback" not in complained


def test_a_full_disk_is_reported_with_the_result(start: Start) -> None:
    """`recv --output` to a full disk reports both the result so far and that the file is incomplete."""
    receiver = start("recv", "full", "--count", "2", "--output", "/dev/full", "--json")
    ready(receiver)
    sender = start("send", "full", "--wait-receivers", "1")
    finish(sender, b"one\ntwo\n")
    status, output, complaint = finish(receiver)
    assert status == 1
    assert "the output is incomplete: No space left on device" in complaint
    assert "Traceback" not in complaint
    assert json.loads(output)["messages"] >= 1


def test_broken_input_is_refused(start: Start) -> None:
    """Records cut short, or longer than a message can be, stop `send` with a reason."""
    receiver = start("recv", "broken", "--records")
    ready(receiver)
    status, _, complained = finish(start("send", "broken", "--records"), struct.pack(">I", 10) + b"short")
    assert status == 1
    assert "ends 9 bytes into a record" in complained
    status, _, complained = finish(start("send", "broken", "--records"), b"\xff" * 100)
    assert status == 1
    assert "4294967295 bytes" in complained


# ---- the command line itself ----


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "t", "--files"],
        ["send", "t", "a/path"],
        ["recv", "t", "--json"],
        ["recv", "t", "--files", "d", "--output", "f"],
        ["recv", "t", "--count", "0"],
        ["recv", "t", "-o", "nothing"],
        ["send", "t", "-i", "eth0", "-i", "eth1"],
        ["recv", "t", "-i", "eth0", "-i", "eth1"],
        ["send", "t", "--hot-failover", "-i", "lo", "-i", "lo"],
        ["send", "t", "--hot-failover", "--files", "/etc"],
        ["recv", "t", "--hot-failover", "--files", "/tmp/x"],
    ],
)
def test_a_contradiction_is_a_usage_error(arguments: list[str]) -> None:
    """Status 2 before anything is opened."""
    assert CliRunner().invoke(umstack, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["send", "t", "-o", "nak=1"], "no source option 'nak'"),
        (["send", "t", "-o", "transport_lbtrm_send_naks=0"], "its scope is receiver"),
        (["recv", "t", "-o", "source.flow_control=min"], "has no source options"),
        (["recv", "t", "-o", "ordered_delivery=2"], "ordered_delivery"),
        (["send", "t", "-c", "/no/such/file"], "/no/such/file"),
        (["send", "t", "-i", "lo", "-o", "flow_control=none"], "--wait-receivers 0"),
    ],
)
def test_a_wrong_option_is_explained(arguments: list[str], complaint: str) -> None:
    """An unknown option, one of another scope, or an invalid value raises OptionError with the reason."""
    failed = CliRunner().invoke(umstack, arguments)
    assert isinstance(failed.exception, OptionError)
    assert complaint in str(failed.exception)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """-o over --config over the command's own default, each in its scope."""
    from umstack.cli.stack_options import configuration
    from umstack.config import Scope

    file = tmp_path / "um.cfg"
    file.write_text("source flow_control max\nsource flow_control_receiver_timeout 7\n")
    defaults = {(Scope.SOURCE, "flow_control"): "min", (Scope.SOURCE, "flow_control_group_tag"): 9}
    chosen = configuration(
        (Scope.CONTEXT, Scope.SOURCE),
        defaults,
        str(file),
        ["source.FLOW_CONTROL_receiver_timeout=8", "resolver_multicast_ttl=3"],
    )
    options = chosen.source_options()
    assert options.flow_control == "max"
    assert options.flow_control_group_tag == 9
    assert options.flow_control_receiver_timeout_ns == 8_000_000
    assert chosen.context_options().resolver_multicast_ttl == 3


# ---- framing ----


def pieces(data: bytes, size: int) -> list[bytes]:
    """The data in pieces of this size."""
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_framing_does_not_depend_on_the_pieces(size: int) -> None:
    """However the stream is cut, the messages are the same."""
    messages = [b"", b"a", b"bc", b"", b"d" * 100]
    for splitter, join in ((LineSplitter(200), join_lines), (RecordSplitter(200), join_records)):
        found = [message for piece in pieces(join(messages), size) for message in splitter.feed(piece)]
        assert [*found, *splitter.end()] == messages


def test_framing_is_bounded() -> None:
    """A line or record longer than a message is refused before it has been collected."""
    with pytest.raises(MessageTooLong):
        LineSplitter(10).feed(b"x" * 11)
    with pytest.raises(MessageTooLong):
        LineSplitter(10).feed(b"x" * 11 + b"\n")
    with pytest.raises(MessageTooLong):
        RecordSplitter(10).feed(struct.pack(">I", 11))
    splitter = RecordSplitter(10)
    splitter.feed(b"\0\0\0\5abc")
    with pytest.raises(BrokenStream):
        splitter.end()


# ---- generated messages, several topics ----


def test_generated_messages_are_sent_at_a_rate(start: Start) -> None:
    """--size makes numbered messages, --count ends them, --rate spreads them over time, and the rate is shown."""
    receiver = start("recv", "generated", "--count", "600")
    ready(receiver)
    sender = start("send", "generated", "--size", "12", "--count", "600", "--rate", "300", "--json")
    status, said, complained = finish(sender)
    assert status == 0, complained
    summary = json.loads(said)
    assert (summary["messages"], summary["bytes"]) == (600, 7200)
    assert summary["seconds"] > 1.8
    assert " messages/s, " in complained
    status, said, complained = finish(receiver)
    assert status == 0, complained
    assert said == b"".join(b"%012d\n" % number for number in range(600))


def test_generated_messages_continue_until_interrupted(start: Start) -> None:
    """Without --count, SIGTERM ends the run with a summary."""
    receiver = start("recv", "endless", "--count", "20", "--output", os.devnull)
    ready(receiver)
    sender = start("send", "endless", "--size", "3", "--rate", "200", "--json")
    assert finish(receiver)[0] == 0
    sender.terminate()
    status, said, complained = finish(sender)
    assert status == 130, complained
    assert json.loads(said)["interrupted"]


def topics_received_by(pid: int) -> set[str]:
    """The topics that a process has receivers of."""
    return {one["topic"] for report in read_statistics(pid) for one in report["receivers"]}


@pytest.mark.parametrize("selection", [("--prefix", "orders."), ("--regex", "^orders[.](eu|us)$")])
def test_topics_of_a_pattern_are_received(start: Start, config: Path, selection: tuple[str, str]) -> None:
    """--prefix and --regex receive every topic that matches, and no other; each JSON line has its topic."""
    arguments = [sys.executable, "-m", "umstack", "recv", *selection, "-i", "lo", "-c", str(config)]
    process = subprocess.Popen(
        [*arguments, "--json-lines", "--count", "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        topics = ("orders.eu", "quotes.orders", "orders.us")
        with Context("lo", config=config) as context:
            sources = {topic: context.source(topic) for topic in topics}
            wanted = {"orders.eu", "orders.us"}
            wait_for(lambda: topics_received_by(process.pid) >= wanted, "the topics", TIMEOUT)

            def has_ended() -> bool:
                for topic in topics:
                    sources[topic].send(topic.encode(), flush=True)
                return process.poll() is not None

            wait_for(has_ended, "40 messages", TIMEOUT)
            status, said, complained = finish(process)
    finally:
        process.kill()
    assert status == 0, complained
    rows = [json.loads(line) for line in said.splitlines()]
    assert {(row["topic"], row["data"]) for row in rows} == {(topic, topic) for topic in wanted}


def test_advertised_topics_are_listed_with_their_sources(start: Start, config: Path) -> None:
    """`umstack topics` names each topic and the session of every source, as messages name it."""
    arguments = [sys.executable, "-m", "umstack", "topics", "-i", "lo", "-c", str(config), "--wait", "1"]
    with Context("lo", config=config) as one, Context("lo", config=config) as other:
        one.source("orders.eu")
        other.source("orders.eu")
        quotes = other.source("quotes")
        found = subprocess.run([*arguments, "--json"], capture_output=True, text=True, timeout=TIMEOUT)
        assert found.returncode == 0, found.stderr
        listed = {row["topic"]: row["sources"] for row in json.loads(found.stdout)["topics"]}
        with one.receiver("quotes") as receiver:
            messages: list[Message] = []

            def has_received() -> bool:
                quotes.send(b"one", flush=True)
                messages.extend(receiver.poll(timeout=0.1).messages())
                return bool(messages)

            wait_for(has_received, "a message", TIMEOUT)
        shown = subprocess.run(
            [*arguments, "--prefix", "quo"], capture_output=True, text=True, timeout=TIMEOUT
        )
    assert set(listed) == {"orders.eu", "quotes"}
    assert (len(listed["orders.eu"]), len(listed["quotes"])) == (2, 1)
    assert listed["quotes"] == [messages[0].source]
    assert shown.returncode == 0, shown.stderr
    assert listed["quotes"][0] in shown.stdout
    assert "orders.eu" not in shown.stdout


def test_no_advertised_topic_is_a_failure(config: Path) -> None:
    """With nothing advertised the status is 1, and the reason is shown."""
    result = CliRunner().invoke(umstack, ["topics", "-i", "lo", "-c", str(config), "--wait", "0.2", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"ok": False, "topics": []}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["send", "t", "--count", "1"], "--count needs --size"),
        (["send", "t", "--size", "1", "--records"], "--size generates messages"),
        (["send", "t", "--exclude", "x"], "--exclude is for --files"),
        (["recv"], "give a TOPIC, a --prefix or a --regex"),
        (["recv", "t", "--prefix", "x"], "give a TOPIC, a --prefix or a --regex"),
        (["recv", "--prefix", "x", "--files", "d"], "need a TOPIC"),
        (["topics", "--prefix", "x", "--regex", "x"], "not both"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(arguments: list[str], reason: str) -> None:
    """The error names the options."""
    result = CliRunner().invoke(umstack, arguments)
    assert result.exit_code == 2
    assert reason in result.stderr

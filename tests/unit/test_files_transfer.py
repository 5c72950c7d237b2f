"""A tree from TreeSender to TreeReceiver, without a network between them: what arrives, and what cannot."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from umstack import BurstLoss, EndOfSession, Message, UnrecoverableLoss
from umstack.events import Event
from umstack.files import (
    Manifest,
    SendReport,
    Skipped,
    Target,
    TransferError,
    TreeReceiver,
    TreeReport,
    TreeSender,
    scan,
    walk,
)
from umstack.files import tree_receiver as tree_receiver_module
from umstack.files.record import (
    CHUNK_HEADER_BYTES,
    Chunk,
    Directory,
    FileBegin,
    FileEnd,
    Kind,
    Link,
    PackedRecord,
    TreeBegin,
    TreeEnd,
    decode_body,
    decode_header,
    encode,
    write_chunk_header,
)
from umstack.files.tree_sender import CHUNK_BYTES
from umstack.publisher import Publisher

SOURCE = "LBTRM:somebody"
EMPTY_SHA256 = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


class Wire:
    """A fake source that keeps the published messages."""

    message_maximum_bytes = 1 << 20

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send_packed(self, data: Any, offsets: array[int], flush: bool = False, **_: Any) -> int:
        self.messages += [bytes(data[a:b]) for a, b in pairwise(offsets)]
        return len(offsets) - 1


def send(*paths: str, **options: Any) -> tuple[list[bytes], SendReport]:
    """Return the messages that TreeSender publishes for these paths."""
    wire = Wire()
    report = TreeSender(Publisher(wire)).send(paths, **options)  # type: ignore[arg-type]
    return wire.messages, report


def message(data: bytes, source: str = SOURCE) -> Message:
    """A message as a receiver delivers it."""
    return Message(data, "topic", source, 0, 0, 0, 0, 0, 0)


def records(*contents: tuple[int, PackedRecord], transfer: int = 7, source: str = SOURCE) -> list[Event]:
    """Handmade records, the tree's beginning before them."""
    data = [
        encode(transfer, 0, TreeBegin()),
        *(encode(transfer, entry, record) for entry, record in contents),
    ]
    return [message(item, source) for item in data]


def chunk(entry: int, offset: int, data: bytes, transfer: int = 7) -> Message:
    """A handmade chunk."""
    record = bytearray(CHUNK_HEADER_BYTES) + data
    write_chunk_header(memoryview(record), transfer, entry, offset)
    return message(bytes(record))


def receive(target: Path, events: Sequence[Event]) -> list[TreeReport]:
    """Return the files that TreeReceiver makes from these events."""
    with Target(target) as opened:
        receiver = TreeReceiver(opened)
        return [*receiver.take(events), *receiver.close()]


def facts(tree: Path) -> dict[str, Any]:
    """Everything about a tree that travels."""
    found: dict[str, Any] = {}
    for path in sorted(tree.rglob("*")):
        state = path.lstat()
        content: Any = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
        times = None if path.is_symlink() else (stat.S_IMODE(state.st_mode), state.st_mtime_ns)
        found[str(path.relative_to(tree))] = (stat.S_IFMT(state.st_mode), times, content)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a bit of everything."""
    root = tmp_path / "tree"
    (root / "deep" / "er" / "est").mkdir(parents=True)
    (root / "empty-directory").mkdir(mode=0o711)
    (root / "empty").write_bytes(b"")
    (root / "one").write_bytes(b"1")
    (root / "exact").write_bytes(os.urandom(CHUNK_BYTES))
    (root / "deep" / "large").write_bytes(os.urandom(3 * 1024 * 1024 + 17))
    (root / "deep" / "er" / "est" / "script").write_text("#!/bin/sh\n")
    (root / "deep" / "er" / "est" / "script").chmod(0o755)
    (root / "secret").write_text("x")
    (root / "secret").chmod(0o600)
    os.utime(root / "secret", ns=(1, 1_234_567_890_123_456_789))
    (root / "deep" / "link").symlink_to("../one")
    (root / "dangling").symlink_to("nothing")
    Path(os.fsdecode(os.fsencode(root) + b"/odd \xff\n name")).write_bytes(b"odd")
    (root / "deep").chmod(0o750)
    os.utime(root / "deep", ns=(5, 5_000_000_000))
    return root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where to receive; the directory beside it must never change."""
    return tmp_path / "outside" / "target"


@pytest.fixture(autouse=True)
def _nothing_outside(tmp_path: Path, target: Path) -> Iterator[None]:
    """No test may leave a trace beside the target, whatever it sends, nor a temporary file in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    yield
    assert (tmp_path / "outside" / "precious").read_text() == "precious"
    assert {path.name for path in (tmp_path / "outside").iterdir()} <= {"precious", "target"}
    assert not list(target.glob(".umstack-*"))


def test_a_tree_arrives_as_it_was(tree: Path, target: Path) -> None:
    """Contents, permissions, times, empty files and directories and links are the same at the other end."""
    sent, report = send(f"{tree}/")
    (received,) = receive(target, list(map(message, sent)))
    assert received.is_complete, received.problems
    assert facts(target) == facts(tree)
    assert received.manifest.sha256 == report.manifest.sha256
    assert received.manifest.file_count == 7
    assert (report.skipped, report.failed) == ([], [])


def test_messages_are_sized_for_the_wire(tree: Path) -> None:
    """No message is longer than a chunk and its header; a large file is mostly full chunks."""
    sent, _ = send(f"{tree}/")
    assert max(map(len, sent)) == CHUNK_BYTES + 24
    assert sum(len(data) == CHUNK_BYTES + 24 for data in sent) == 3 * 1024 * 1024 // CHUNK_BYTES + 1


def test_the_digest_on_disk_is_the_digest_sent(tree: Path, target: Path) -> None:
    """`scan` of the target returns the manifest that was sent."""
    sent, report = send(f"{tree}/")
    receive(target, list(map(message, sent)))
    manifest = Manifest()
    for entry in scan(target):
        manifest.add(entry)
    assert manifest.sha256 == report.manifest.sha256


def test_several_paths_travel_by_their_names(tree: Path, target: Path) -> None:
    """DIR travels by its name, a file likewise; two of the same name are refused."""
    sent, _ = send(str(tree / "deep"), str(tree / "one"))
    (received,) = receive(target, list(map(message, sent)))
    assert received.is_complete
    assert {path.name for path in target.iterdir()} == {"deep", "one"}
    with pytest.raises(TransferError, match="same name"):
        send(str(tree / "one"), str(tree / "deep" / ".." / "one"))


@pytest.mark.parametrize("name", ["nothing", "one/"])
def test_a_path_that_cannot_be_sent_is_refused(tree: Path, name: str) -> None:
    """A missing path, or a file given with a trailing slash, is an error and not an empty tree."""
    with pytest.raises(TransferError):
        send(f"{tree}/{name}")


def test_what_does_not_travel_is_named(tree: Path, target: Path) -> None:
    """Pipes and links that lead out are left out and reported; the rest arrives."""
    os.mkfifo(tree / "pipe")
    (tree / "out").symlink_to("/etc/passwd")
    sent, report = send(f"{tree}/")
    (received,) = receive(target, list(map(message, sent)))
    assert received.is_complete
    assert sorted(item.path for item in report.skipped) == [b"out", b"pipe"]
    assert not (target / "pipe").exists()


def test_an_excluded_name_does_not_travel(tree: Path) -> None:
    """Neither a file nor a directory with all that is in it."""
    found = {item.path for item in walk(tree, exclude=lambda name: name in ("deep", "one"))}
    assert b"one" not in found
    assert not any(path.startswith(b"deep") for path in found)


def test_a_file_that_changes_meanwhile_is_abandoned(
    tree: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither half of a file is delivered for the whole: it is discarded and both ends say so."""
    victim = tree / "deep" / "large"

    class Growing(Wire):
        def send_packed(self, data: Any, offsets: array[int], flush: bool = False, **_: Any) -> int:
            with victim.open("ab") as file:
                file.write(b"more")
            return super().send_packed(data, offsets)

    wire = Growing()
    report = TreeSender(Publisher(wire)).send([f"{tree}/"])  # type: ignore[arg-type]
    (received,) = receive(target, list(map(message, wire.messages)))
    assert [item.path for item in report.failed] == [b"deep/large"]
    assert not received.is_complete
    assert [problem.path for problem in received.problems] == [b"deep/large"]
    assert not (target / "deep" / "large").exists()
    assert (target / "one").exists()


# ---- loss and disorder ----


def _without(sent: list[bytes], kind: Kind, which: Callable[[Any], bool] = lambda _: True) -> list[Message]:
    """The messages, the first of a kind left out."""
    kept, dropped = [], False
    for data in sent:
        view = memoryview(data)
        _, _, this = decode_header(view)
        if not dropped and this == kind and which(decode_body(this, view)):
            dropped = True
            continue
        kept.append(message(data))
    assert dropped
    return kept


@pytest.mark.parametrize("kind", [Kind.CHUNK, Kind.FILE_BEGIN, Kind.FILE_END, Kind.DIRECTORY, Kind.LINK])
def test_a_missing_record_is_never_missed(tree: Path, target: Path, kind: Kind) -> None:
    """One record less, of any kind: the tree is incomplete, no file has wrong content, the others are there."""
    sent, report = send(f"{tree}/")
    (received,) = receive(target, _without(sent, kind))
    assert received.is_ended
    assert not received.is_complete
    wanted = facts(tree)
    for path, (_, _, content) in facts(target).items():
        assert content == wanted[path][2]
    assert received.manifest.file_count >= report.manifest.file_count - 1


def test_a_missing_chunk_in_the_middle_is_noticed(tree: Path, target: Path) -> None:
    """A file whose parts do not join is discarded."""
    sent, _ = send(f"{tree}/")
    middle = _without(sent, Kind.CHUNK, lambda part: isinstance(part, Chunk) and part.offset == CHUNK_BYTES)
    (received,) = receive(target, middle)
    assert [problem.path for problem in received.problems if problem.path] == [b"deep/large"]
    assert not (target / "deep" / "large").exists()


def test_a_tree_without_its_end_is_incomplete(tree: Path, target: Path) -> None:
    """Reception that is stopped before the end of a tree reports that."""
    sent, _ = send(f"{tree}/")
    (received,) = receive(target, list(map(message, sent[:-1])))
    assert not received.is_complete


def test_a_publisher_that_goes_away_ends_its_trees(tree: Path, target: Path) -> None:
    """EndOfSession ends the trees of that source, and no other's."""
    sent, _ = send(f"{tree}/")
    events = [message(data) for data in sent[:20]]
    others = [message(data, "LBTRM:another") for data in sent]
    with Target(target) as opened:
        receiver = TreeReceiver(opened)
        assert receiver.take([*events, *others[:5]]) == []
        (ended,) = receiver.take([EndOfSession("topic", SOURCE)])
        assert (ended.source, ended.is_complete) == (SOURCE, False)
        (other,) = receiver.take(others[5:])
        assert other.is_complete


@pytest.mark.parametrize("loss", [UnrecoverableLoss("topic", SOURCE, 5), BurstLoss("topic", SOURCE, 5, 9)])
def test_loss_makes_a_tree_incomplete(tree: Path, target: Path, loss: Event) -> None:
    """A loss event within a tree is a problem of that tree, even if every file came."""
    sent, _ = send(f"{tree}/")
    events: list[Event] = list(map(message, sent))
    (received,) = receive(target, [*events[:10], loss, *events[10:]])
    assert not received.is_complete


def test_two_trees_at_once_do_not_mix(tree: Path, target: Path) -> None:
    """Trees of two publishers, and two of one, interleave record by record and all arrive."""
    (tree / "deep" / "second").write_text("2")
    streams = [
        [message(data, source) for data in send(str(tree / name))[0]]
        for source, name in [("A", "deep"), ("B", "one"), ("A", "exact"), ("B", "empty-directory")]
    ]
    mixed: list[Event] = []
    while any(streams):
        for stream in streams:
            mixed += stream[:1]
            del stream[:1]
    received = receive(target, mixed)
    assert [report.is_complete for report in received] == [True] * 4
    assert facts(target)["deep/large"] == facts(tree)["deep/large"]


def test_a_late_receiver_reports_what_it_missed(tree: Path, target: Path) -> None:
    """Records of a tree whose beginning was missed are left alone, and the reason is given once."""
    sent, _ = send(f"{tree}/")
    with Target(target) as opened:
        receiver = TreeReceiver(opened)
        assert receiver.take(map(message, sent[3:])) == []
        (reason,) = receiver.strays
        assert "beginning of a tree was missed" in reason
    assert list(target.iterdir()) == []


# ---- hostile publishers ----


HOSTILE_PATHS = [b"../evil", b"/tmp/evil", b"a/../../evil", b"", b"a/./b", b".."]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_hostile_path_writes_nothing(target: Path, path: bytes, kind: str) -> None:
    """Whatever record names it, a path out of the tree is a problem and not a file."""
    made: dict[str, list[tuple[int, PackedRecord]]] = {
        "file": [(1, FileBegin(path, 0, 0o644, 0)), (1, FileEnd(EMPTY_SHA256))],
        "directory": [(1, Directory(path, 0o755, 0))],
        "link": [(1, Link(path, b"a"))],
    }
    (received,) = receive(target, records(*made[kind]))
    assert received.problem_count >= 1
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("link", [b"..", b"../precious", b"/etc"])
def test_a_link_sent_before_leads_nowhere(target: Path, link: bytes) -> None:
    """A link out of the tree is not made; a file below its name lands inside."""
    (received,) = receive(
        target,
        records(
            (1, Link(b"way", link)), (2, FileBegin(b"way/evil", 0, 0o644, 0)), (2, FileEnd(EMPTY_SHA256))
        ),
    )
    assert received.problem_count >= 1
    assert not (target / "way").is_symlink()


def test_a_link_inside_is_not_written_through(target: Path) -> None:
    """Even a harmless link is no way to a file: what would go through it is a problem."""
    (received,) = receive(
        target,
        records(
            (1, Directory(b"real", 0o755, 0)),
            (2, Link(b"way", b"real")),
            (3, FileBegin(b"way/file", 0, 0o644, 0)),
            (3, FileEnd(EMPTY_SHA256)),
        ),
    )
    assert received.problem_count >= 1
    assert list((target / "real").iterdir()) == []


def test_a_link_that_lay_there_is_no_way_out(target: Path) -> None:
    """Links that another user put into the target are not followed, and entries in the way are replaced."""
    target.mkdir()
    (target / "way").symlink_to("..")
    (target / "file").symlink_to("../precious")
    (received,) = receive(
        target,
        records(
            (1, FileBegin(b"way/precious", 0, 0o644, 0)),
            (1, FileEnd(EMPTY_SHA256)),
            (2, FileBegin(b"file", 0, 0o644, 0)),
            (2, FileEnd(EMPTY_SHA256)),
        ),
    )
    assert [problem.path for problem in received.problems if problem.path] == [b"way/precious"]
    assert not (target / "file").is_symlink()


def test_a_hard_link_that_lay_there_is_replaced(tmp_path: Path, target: Path) -> None:
    """A file takes its name by renaming: another name of the file that was there keeps its content."""
    target.mkdir()
    (target / "file").hardlink_to(tmp_path / "outside" / "precious")
    receive(target, records((1, FileBegin(b"file", 0, 0o644, 0)), (1, FileEnd(EMPTY_SHA256))))
    assert (target / "file").read_bytes() == b""


def test_no_set_uid_arrives(target: Path) -> None:
    """Permissions are masked for any record."""
    receive(
        target,
        records(
            (1, FileBegin(b"file", 0, 0o7777, 0)),
            (1, FileEnd(EMPTY_SHA256)),
            (2, Directory(b"dir", 0o7777, 0)),
        ),
    )
    assert {stat.S_IMODE((target / name).stat().st_mode) for name in ("file", "dir")} == {0o777}


def test_more_data_than_announced_is_refused(target: Path) -> None:
    """A file cannot grow beyond what its beginning said."""
    begin = records((1, FileBegin(b"file", 10, 0o644, 0)))
    (received,) = receive(target, [*begin, chunk(1, 0, b"12345678"), chunk(1, 8, b"90123")])
    assert str(received.problems[0]) == "file: it is longer than announced"
    assert not (target / "file").exists()


def test_a_wrong_digest_is_refused(target: Path) -> None:
    """The right size and order are not enough."""
    begin = records((1, FileBegin(b"file", 3, 0o644, 0)))
    end = message(encode(7, 1, FileEnd(b"\0" * 32)))
    (received,) = receive(target, [*begin, chunk(1, 0, b"abc"), end])
    assert str(received.problems[0]) == "file: its SHA-256 is not the one sent"
    assert not (target / "file").exists()


def test_entries_that_go_backwards_are_refused(target: Path) -> None:
    """A second file cannot slip in under an earlier number."""
    (received,) = receive(
        target,
        records(
            (5, Directory(b"a", 0o755, 0)), (5, Directory(b"b", 0o755, 0)), (3, Directory(b"c", 0o755, 0))
        ),
    )
    assert {path.name for path in target.iterdir()} == {"a"}
    assert not received.is_complete


def test_an_end_that_claims_too_much_is_noticed(target: Path) -> None:
    """The manifest's digest decides, not the counts."""
    manifest = Manifest()
    end = TreeEnd(0, 1, 0, 0, manifest.sha256)
    (received,) = receive(target, records((1, Directory(b"a", 0o755, 0)), (1, end)))
    assert received.is_ended
    assert not received.is_complete


def test_foreign_messages_are_left_alone(target: Path) -> None:
    """Text on the topic, noise and other versions change nothing and are named once each."""
    noise = [message(data) for data in (b"", b"hello", b"UF\x09" + bytes(20), bytes(100), b"hello")]
    with Target(target) as opened:
        receiver = TreeReceiver(opened)
        assert receiver.take(noise) == []
        assert 1 <= len(receiver.strays) <= 4
    assert list(target.iterdir()) == []


def test_a_flood_of_trees_is_bounded(target: Path) -> None:
    """The number of unfinished trees is bounded, and so is the number of problems kept per tree."""
    with Target(target) as opened:
        receiver = TreeReceiver(opened)
        for transfer in range(1000):
            receiver.take(records((1, FileBegin(b"x", 5, 0, 0)), transfer=transfer))
        assert len(receiver.open_reports()) == tree_receiver_module.TRANSFERS_MAX
        receiver.close()
    many = records(*((entry, Link(b"l", b"/out")) for entry in range(1, 1001)))
    (received,) = receive(target, many)
    assert received.problem_count > 1000
    assert len(received.problems) == tree_receiver_module.PROBLEMS_KEPT_MAX


def test_a_full_disk_costs_only_what_does_not_fit(
    tree: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be written is a problem with the system's reason; the next may fit again."""
    write = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) == CHUNK_BYTES:
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    sent, _ = send(f"{tree}/")
    (received,) = receive(target, list(map(message, sent)))
    assert {problem.path for problem in received.problems if problem.path} == {b"deep/large", b"exact"}
    assert (target / "one").read_bytes() == b"1"


def test_what_cannot_be_read_is_a_failure(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory or file that should have travelled and could not is not passed over as left out."""
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    _, report = send(f"{tree}/")
    assert report.failed == [Skipped(b"deep", "Permission denied", is_unreadable=True)]

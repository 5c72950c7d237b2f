"""Log records: quiet unless somebody listens, counted instead of repeated, and harmless."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.unit.loopback import open_context
from tests.unit.test_cli import leaves
from umstack.cli import COMMANDS
from umstack.cli import command as root
from umstack.error_log import ErrorLog
from umstack.repeated_records import RepeatedRecords
from umstack.telemetry.counter_log import CounterLog, is_heard, watched_counters
from umstack.telemetry.counters import CounterKind


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        """Begin at nought."""
        self.now = 0.0

    def __call__(self) -> float:
        """Log it."""
        return self.now


def stats(**changes: Any) -> dict[str, Any]:
    """The part of a context that the log reads."""
    return {
        "interface": "eth1",
        "link": "socket",
        "link_mode": "socket",
        "datagram_bytes": 1472,
        "context": {},
        "link_counters": {},
        "source_transports": [],
        "receiver_transports": [],
        "sources": [],
        "receivers": [],
        **changes,
    }


def extras(records: list[logging.LogRecord], name: str) -> list[Any]:
    """One extra of each record that has it."""
    return [getattr(record, f"umstack_{name}") for record in records if hasattr(record, f"umstack_{name}")]


def test_repeated_records_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The first at once; those within the interval come as a number with the next; other keys are not held back."""
    clock = Clock()
    records = RepeatedRecords(logging.getLogger("umstack.test"), 10, clock)
    for _ in range(500):
        records.write("a", logging.WARNING, "lost %s", "it", topic="t")
    records.write("b", logging.WARNING, "other")
    clock.now = 10.0
    records.write("a", logging.WARNING, "lost %s", "it", topic="t")
    assert caplog.messages == ["lost it", "other", "lost it (500 times)"]
    assert extras(caplog.records, "count") == [1, 1, 500]
    assert extras(caplog.records, "topic") == ["t", "t"]


def test_the_number_of_keys_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A process that invents names makes records, not memory."""
    records = RepeatedRecords(logging.getLogger("umstack.test"), 10, Clock())
    for number in range(3000):
        records.write(number, logging.DEBUG, "x")
    assert len(records._counted) == 1024


def test_what_costs_messages_is_a_record(caplog: pytest.LogCaptureFixture) -> None:
    """Counters that grew since the last look, once each, with what they are of; the mode when it changes."""
    clock, now = Clock(), stats()
    log = CounterLog(lambda: now, clock)
    with caplog.at_level(logging.INFO, logger="umstack"):
        log.update()
        assert extras(caplog.records, "link_mode") == ["socket"]
        caplog.clear()
        topic = "t\x1b[2J"
        now = stats(
            datagram_bytes=8972,
            receivers=[{"topic": topic, "unrecoverable_loss_events": 7}],
            receiver_transports=[{"transport": "T", "unrecovered_tmo": 7, "lost": 9}],
            link_counters={"receive_drops": 3},
        )
        log.update()
        assert caplog.records == []  # too soon
        clock.now = 5.0
        log.update()
        counters = dict(zip(extras(caplog.records, "counter"), extras(caplog.records, "count"), strict=True))
        assert counters == {
            "receiver.unrecoverable_loss_events": 7,
            "receiver_transport.unrecovered_tmo": 7,
            "receiver_transport.lost": 9,
            "link.receive_drops": 3,
        }
        assert "t\\x1b[2J" in extras(caplog.records, "object")
        assert "\x1b" not in caplog.text
        assert {record.name for record in caplog.records} == {"umstack.receiver", "umstack.link"}
        assert extras(caplog.records, "datagram_bytes") == [8972]
        caplog.clear()
        clock.now = 10.0
        log.update()
        assert caplog.records == []


def test_watched_counters_are_counters() -> None:
    """Each is in the schema and only grows."""
    watched = list(watched_counters())
    assert len(watched) > 25
    assert all(kind is CounterKind.COUNTER for _, _, kind in watched)


def test_without_a_handler_errors_are_noted_and_nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error log counts the loss; a handler attached later receives one record that covers all of it."""
    errors = ErrorLog()
    monkeypatch.setattr("umstack.telemetry.counter_log.process_errors", errors)
    now = stats(receivers=[{"topic": "t", "unrecoverable_loss_events": 7}])
    clock = Clock()
    log = CounterLog(lambda: now, clock)
    logger = logging.getLogger("umstack")
    outer = logger.propagate
    logger.propagate = False
    nowhere = logging.NullHandler()
    logger.addHandler(nowhere)
    try:
        assert not is_heard(logging.getLogger("umstack.link"))
        log.update()
        clock.now = 5.0
        log.update()
        assert [(error["subject"], error["count"]) for error in errors.read()] == [("t", 7)]
        stream = io.StringIO()
        logger.addHandler(logging.StreamHandler(stream))
        clock.now = 10.0
        log.update()
        assert "unrecoverable_loss_events +7" in stream.getvalue()
        assert [error["count"] for error in errors.read()] == [7]
        assert is_heard(logging.getLogger("umstack.link"))
        logger.setLevel(logging.ERROR)
        assert not is_heard(logging.getLogger("umstack.link"))
    finally:
        logger.propagate = outer
        logger.handlers.remove(nowhere)


def test_a_context_writes_its_mode(caplog: pytest.LogCaptureFixture) -> None:
    """A real context, in sequential mode so that it happens on this thread."""
    with caplog.at_level(logging.INFO, logger="umstack"), open_context("sequential") as context:
        context.process_events(0.05)
        assert extras(caplog.records, "link_mode") == ["socket"]


@pytest.mark.parametrize(
    ("setup", "shown"),
    [
        ("pass", "a loss\n"),
        ("logging.getLogger('umstack').addHandler(logging.NullHandler())", ""),
        ("logging.basicConfig(format='set up: %(message)s')", "set up: a loss\n"),
    ],
)
def test_warnings_are_shown_unless_the_application_decides_otherwise(setup: str, shown: str) -> None:
    """Without any logging set up, Python writes warnings to stderr, and is_heard() agrees."""
    program = f"""if True:
        import logging, umstack
        from umstack.telemetry.counter_log import is_heard
        {setup}
        logger = logging.getLogger("umstack.receiver")
        logger.warning("a loss")
        logger.info("a session begins")
        assert is_heard(logger) == {bool(shown)}
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_verbosity(name: str) -> None:
    """Every action accepts -v exactly once, with the same meaning."""
    command = root.get_command(click.Context(root), name)  # type: ignore[attr-defined]
    root.get_command(click.Context(root), name)  # type: ignore[attr-defined]
    for words, leaf in leaves(command, name):
        options = [option for parameter in leaf.params for option in parameter.opts]
        assert options.count("-v") == 1, words
        assert options.count("--verbose") == 1, words


@pytest.mark.parametrize(("flags", "shown"), [((), "E"), (("-v",), "IE"), (("-vv",), "DIE")])
def test_verbosity_chooses_what_is_shown(flags: tuple[str, ...], shown: str) -> None:
    """Errors alone; what costs messages or changes the mode; everything. Foreign text in a record is harmless."""
    done = CliRunner().invoke(root, ["exporter", "--print", "alerts", *flags])
    assert done.exit_code == 0
    logger = logging.getLogger("umstack.test")
    enabled = [
        letter
        for letter, level in zip("DIE", (logging.DEBUG, logging.INFO, logging.ERROR), strict=True)
        if logger.isEnabledFor(level)
    ]
    assert "".join(enabled) == shown


def test_records_on_a_terminal_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """A record that quotes a hostile name shows it."""
    CliRunner().invoke(root, ["exporter", "--print", "alerts"])
    logging.getLogger("umstack.test").error("topic %s", "\x1b[2J\x9b")
    said = capsys.readouterr().err
    assert "topic \\x1b[2J\\x9b" in said
    assert "\x1b" not in said


def test_repeated_records_are_counted_in_the_error_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Occurrences that the log holds back count, too; records below WARNING do not."""
    times = iter([10.0, 11.0, 12.0, 13.0])
    errors = ErrorLog(lambda: next(times))
    monkeypatch.setattr("umstack.repeated_records.process_errors", errors)
    records = RepeatedRecords(logging.getLogger("umstack.test"), 10, Clock())
    for number in range(3):
        records.write("a", logging.WARNING, "lost %s", number, count=2)
    records.write("b", logging.INFO, "no error")
    assert errors.read() == [
        {
            "logger": "umstack.test", "subject": "", "text": "lost 2", "count": 6, "first_at": 10.0, "last_at": 12.0,
        }
    ]  # fmt: skip


def test_the_error_log_is_bounded() -> None:
    """Beyond the limit the error that was seen longest ago is dropped."""
    errors = ErrorLog(distinct_max=3)
    for kind in ("a", "b", "c", "a", "d"):
        errors.note("umstack.test", kind, kind)
    assert [(error["text"], error["count"]) for error in errors.read()] == [("d", 1), ("a", 2), ("c", 1)]

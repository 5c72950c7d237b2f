"""The threading modes of the driver: one thread for everything does what a thread per relay does (W13)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.driver_ends import NOBODY, RunningDriver, applications, attached, driver, exchange_several
from tests.unit.lbtipc_ends import payload
from tests.unit.loopback import OWN_ADDRESSES, open_context, serving
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, EndOfSession, OptionError
from umstack.driving import topics
from umstack.driving.topics import DriverContext


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningDriver]:
    """A driver with one thread."""
    with driver("--allow-user", str(NOBODY), "--threading-mode", "shared") as one:
        yield one


@pytest.fixture
def remote() -> Iterator[Context]:
    """A context without driver, as on another host."""
    with open_context() as context:
        yield context


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _sleeps(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_one_thread_carries_every_message(shared: RunningDriver, remote: Context) -> None:
    """Publishers, subscribers and a receiver of the network, without a thread besides those of the idle driver: the
    main thread, and one that waits for signals, which may start after the driver serves."""
    with applications(shared.path) as begin, remote.receiver("several") as far:
        exchange_several(begin, far)
        assert _threads(shared.process.pid) <= 2


def test_a_dead_publisher_ends_after_its_last_message(shared: RunningDriver, remote: Context) -> None:
    """kill -9: what it had sent arrives on the network, then its session ends."""
    with (
        applications(shared.path) as begin,
        remote.receiver("orphan", transport_lbtrm_activity_timeout=1000) as far,
    ):
        publisher = begin("publish", "orphan")
        far.wait_connected(timeout=SECONDS)
        assert publisher.ask("2000")["sent"] == 2000
        publisher.kill()
        assert [m.data for m in collect(far, 2000)] == [payload(number) for number in range(2000)]
        wait_for(
            lambda: any(isinstance(one, EndOfSession) for one in far.poll(timeout=0.1).events()),
            "the end of its session",
        )


def test_a_full_log_holds_the_network(shared: RunningDriver, remote: Context) -> None:
    """A receiver that reads later gets everything: the relay waits without another thread, and serves others."""
    count = 700  # more bytes than the log and the queues hold
    with (
        attached(shared.path) as context,
        context.receiver("paced") as receiver,
        context.receiver("beside") as beside,
        remote.source("paced", flow_control="min") as source,
        remote.source("beside", flow_control="min") as other,
    ):
        for one in (source, other, receiver, beside):
            one.wait_connected(timeout=SECONDS)
        sender = threading.Thread(target=lambda: [source.send(bytes(64_000)) for _ in range(count)])
        sender.start()
        before = -1
        while sender.is_alive() and before != (before := int(source.stats()["msgs_sent"] or 0)):
            sender.join(0.2)
        other.send(b"beside", flush=True)
        assert [m.data for m in collect(beside, 1)] == [b"beside"]
        assert len(collect(receiver, count)) == count
        sender.join()


def test_an_application_that_does_not_attach_delays_no_other_topic(
    remote: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message of a source waits for the invited applications; other topics of the thread do not."""
    monkeypatch.setattr(topics, "_ATTACHED_SECONDS", 10 * SECONDS)
    monkeypatch.setattr(topics, "clients_of", lambda publication: int("slow" not in publication.topic))
    path = tmp_path / "driver.sock"
    with (
        serving(path, is_shared=True),
        attached(path) as context,
        context.receiver("slow") as slow,
        context.receiver("quick") as quick,
        remote.source("slow", flow_control="min") as slow_source,
        remote.source("quick", flow_control="min") as quick_source,
    ):
        for source in (slow_source, quick_source):
            source.wait_connected(timeout=SECONDS)
        quick.wait_connected(timeout=SECONDS)  # the driver does not wait here until it has attached
        slow_source.send(b"slow", flush=True)
        for number in range(100):
            quick_source.send(payload(number), flush=True)
        assert [m.data for m in collect(quick, 100)] == [payload(number) for number in range(100)]
        assert not slow.poll(timeout=0).messages()


def _sleeps_per_second(pid: int) -> float:
    before, begin = _sleeps(pid), time.monotonic()
    time.sleep(1)
    return (_sleeps(pid) - before) / (time.monotonic() - begin)


def test_an_idle_shared_thread_sleeps(shared: RunningDriver) -> None:
    """It wakes ten times per second, and for topic resolution, requests and messages: it polls none of them."""
    assert _sleeps_per_second(shared.process.pid) < 30
    with attached(shared.path) as context, context.receiver("idle"), context.source("idle"):
        assert _sleeps_per_second(shared.process.pid) < 1000


def test_the_driver_chooses_the_mode_of_its_context() -> None:
    """A context in sequential mode would wait for a thread that no dedicated driver donates."""
    with pytest.raises(OptionError, match="--threading-mode shared"):
        DriverContext("lo", operational_mode="sequential", **OWN_ADDRESSES)

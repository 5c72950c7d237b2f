"""The driver between hosts of the lab, over sockets and over rings: no process of its host is deaf, and losses are
reported exactly."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.netns.contexts import members
from tests.unit.driver_ends import NOBODY, ROOT, Application, applications, driver, driver_command
from tests.unit.lbtipc_ends import number_of, payload
from tests.unit.loopback import OWN_ADDRESSES
from tests.waiting import SECONDS, collect, wait_for
from umstack import BurstLoss, Message, Receiver, Source, UnrecoverableLoss
from umstack.events import Event
from umstack.lab import Lab
from umstack_xdp.xsk import unavailable

MakeLab = Callable[..., Lab]
ALLOWED = ("--allow-user", str(NOBODY))
COUNT = 5000
QUICK_LOSS = {"transport_lbtrm_loss_declaration_interval": 300}

LINKS = [
    "socket",
    pytest.param("xdp", marks=pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))),
]


@pytest.mark.parametrize("link", LINKS)
def test_a_second_process_on_the_interface_is_never_deaf(shared_lab: Lab, link: str) -> None:
    """Two unprivileged subscribers and two publishers on one host, a host beside it: everyone gets everything."""
    here, there, _ = shared_lab.hosts
    topic = f"driver/{link}"
    with (
        driver(*ALLOWED, interface=here.interface, run=here.run, link=link) as one,
        applications(one.path, interface=here.interface, run=here.run) as begin,
        members(there, **OWN_ADDRESSES) as (far,),
    ):
        subscribers = [begin("subscribe", topic) for _ in range(2)]
        with far.receiver(topic) as receiver, far.source(topic) as source:
            publishers = [begin("publish", topic) for _ in range(2)]
            receiver.wait_connected(3, SECONDS)
            source.wait_connected(2, SECONDS)  # the driver, and the receiver beside the source
            source.send_many([payload(i) for i in range(COUNT)], flush=True)
            for publisher in publishers:
                assert publisher.ask(str(COUNT))["sent"] == COUNT
            for subscriber in subscribers:
                report = subscriber.ask(str(3 * COUNT))
                assert sorted(report["counts"].values()) == 3 * [COUNT], report
                assert report["in_order"]
                assert not report["lost"]
            assert len(collect(receiver, 3 * COUNT)) == 3 * COUNT


@pytest.mark.parametrize("link", LINKS)
def test_losses_on_the_network_are_reported_exactly(make_lab: MakeLab, link: str) -> None:
    """Without NAKs what the switch drops is lost: the attached receiver reports what its driver could not get."""
    lab = make_lab(hosts=2, segmentation="real")
    here, there = lab.hosts
    with (
        driver(*ALLOWED, interface=here.interface, run=here.run, link=link) as one,
        applications(one.path, interface=here.interface, run=here.run) as begin,
        members(there, **OWN_ADDRESSES) as (far,),
    ):
        subscriber = begin("subscribe", "loss", transport_lbtrm_send_naks=0, **QUICK_LOSS)
        with far.source("loss", transport_topic_sequence_number_info_interval=200) as source:
            source.wait_connected(timeout=SECONDS)
            subscriber.connect()
            source.send(payload(0), flush=True)
            assert sum(subscriber.ask("1")["counts"].values()) == 1
            lab.port(here.number).set(loss=0.05)
            for i in range(1, COUNT):
                source.send(payload(i), flush=True)
            lab.port(here.number).set(loss=0.0)
            source.send(payload(COUNT), flush=True)
            report = subscriber.ask(str(COUNT + 1))
            received, lost = sum(report["counts"].values()), sum(report["lost"].values())
            assert received + lost == COUNT + 1, report
            assert lost > 0
            assert report["in_order"]


def test_a_lost_last_message_is_reported_as_soon_as_without_a_driver(make_lab: MakeLab) -> None:
    """The log of the remote source announces the gap, and does not leave that to its TSNI, which is 5 s away."""
    lab = make_lab(hosts=3, segmentation="real")
    here, beside, there = lab.hosts
    lost_s: dict[str, float] = {}
    with (
        driver(interface=here.interface, run=here.run) as one,
        members(here, driver=one.path, **OWN_ADDRESSES) as (attached,),
        members(beside, there, **OWN_ADDRESSES) as (plain, far),
    ):
        receivers = {
            name: member.receiver("last", transport_lbtrm_send_naks=0, **QUICK_LOSS)
            for name, member in (("attached", attached), ("plain", plain))
        }
        with far.source("last", transport_topic_sequence_number_info_interval=200) as source:
            source.wait_connected(2, SECONDS)
            for receiver in receivers.values():
                receiver.wait_connected(timeout=SECONDS)
            source.send(payload(0), flush=True)
            for receiver in receivers.values():
                collect(receiver, 1)
            ports = [lab.port(host.number) for host in (here, beside)]
            for port in ports:
                port.set(loss=1.0)
            dropped = [port.counters().dropped for port in ports]
            number = source.send(payload(1), flush=True)
            for port, before in zip(ports, dropped, strict=True):
                wait_for(lambda port=port, before=before: port.counters().dropped > before, "the loss")
                port.set(loss=0.0)
            deadline = time.monotonic() + SECONDS
            while len(lost_s) < 2:
                for name, receiver in receivers.items():
                    for event in receiver.poll(timeout=0.01).events():
                        assert isinstance(event, UnrecoverableLoss)
                        assert event.sequence_number == number
                        lost_s[name] = time.monotonic()
                assert time.monotonic() < deadline, lost_s
    assert abs(lost_s["attached"] - lost_s["plain"]) < 2, lost_s


@pytest.mark.parametrize("link", LINKS)
def test_a_killed_driver_is_replaced_without_unreported_losses(shared_lab: Lab, link: str) -> None:
    """kill -9 and a restart between two applications and a remote source: what was missed in between is reported, and
    the messages between the applications are complete."""
    here, there, _ = shared_lab.hosts
    topic = f"replaced/{link}"
    with (
        driver(*ALLOWED, interface=here.interface, run=here.run, link=link) as one,
        applications(one.path, interface=here.interface, run=here.run) as begin,
        members(there, **OWN_ADDRESSES) as (far,),
        far.source(topic) as source,
    ):
        subscriber, publisher = begin("subscribe", topic), begin("publish", topic)
        source.wait_connected(timeout=SECONDS)
        subscriber.connect(2)
        source.send_many([payload(i) for i in range(COUNT)], flush=True)
        near = publisher.ask(str(COUNT))["transport"]
        assert sum(subscriber.ask(str(2 * COUNT))["counts"].values()) == 2 * COUNT
        one.kill()
        source.send_many([payload(i) for i in range(COUNT, COUNT + 10)], flush=True)
        one.restart()
        publisher.ask(str(COUNT))
        sent, received, lost = COUNT + 10, 0, 0
        deadline = time.monotonic() + SECONDS
        while received + lost < 2 * COUNT + sent or received == 3 * COUNT:
            source.send(payload(sent), flush=True)
            sent += 1
            report = subscriber.ask(str(2 * COUNT + sent))
            received, lost = sum(report["counts"].values()), sum(report["lost"].values())
            assert time.monotonic() < deadline, report
        assert received + lost == 2 * COUNT + sent
        assert lost >= 10
        assert report["in_order"]
        assert sum(n for name, n in report["counts"].items() if name.startswith(near)) == 2 * COUNT
        assert (report["events"]["DriverLost"], report["events"]["EndOfSession"]) == (1, 1)


class _Load:
    """A remote source that sends, and a remote receiver that checks every byte of each source it receives."""

    def __init__(self, source: Source, receiver: Receiver) -> None:
        self.sent = 0
        self.counts: Counter[str] = Counter()
        self.events: list[Event] = []
        self._source, self._receiver = source, receiver
        self._is_stopping = threading.Event()
        self._threads = ThreadPoolExecutor(2)
        self._ends = [self._threads.submit(self._send), self._threads.submit(self._check)]

    def _send(self) -> None:
        while not self._is_stopping.is_set():
            self._source.send_many([payload(self.sent + step) for step in range(50)], flush=True)
            self.sent += 50
            time.sleep(0.005)

    def _check(self) -> None:
        while not self._is_stopping.is_set() or self._receiver.stats()["queued_messages"]:
            for event in self._receiver.poll(timeout=0.1).events():
                if isinstance(event, Message):
                    assert number_of(event.data) == self.counts[event.source]
                    self.counts[event.source] += 1
                elif isinstance(event, UnrecoverableLoss | BurstLoss):
                    self.events.append(event)

    def stop(self) -> None:
        """End both, and raise what they raised."""
        self._is_stopping.set()
        for end in self._ends:
            end.result(SECONDS)
        self._threads.shutdown()


@pytest.mark.parametrize("link", LINKS[1:])
def test_applications_that_are_killed_at_random_harm_nobody(shared_lab: Lab, link: str) -> None:
    """kill -9 of two subscribers and a publisher under load: the others get every byte, and every message that a
    publisher had sent arrives. UM_SECONDS=60 runs it for a minute, UM_SEED repeats a schedule."""
    seconds = float(os.environ.get("UM_SECONDS", "5"))
    seed = int(os.environ.get("UM_SEED", str(random.SystemRandom().randrange(2**32))))
    print(f"UM_SEED={seed}")
    draws = random.Random(seed)
    here, there, _ = shared_lab.hosts
    inward, outward = f"mortal/{link}/in", f"mortal/{link}/out"
    accepted: dict[str, int] = {}
    with (
        driver(*ALLOWED, interface=here.interface, run=here.run, link=link) as one,
        applications(one.path, interface=here.interface, run=here.run) as begin,
        members(there, **OWN_ADDRESSES) as (far,),
        far.source(inward, flow_control="min") as source,
        far.receiver(outward) as receiver,
    ):

        def subscriber() -> Application:
            made: Application = begin("subscribe", inward)
            wait_for(lambda: made.ask("1")["counts"], "its first message")
            made.order(str(10**9))
            return made

        def published(publisher: Application) -> None:
            answer = publisher.ask("200")
            accepted[answer["transport"]] = answer["sent"]

        load = _Load(source, receiver)
        subscribers, publisher = [subscriber(), subscriber()], begin("publish", outward, flow_control="min")
        kills, deadline = 0, time.monotonic() + seconds
        while time.monotonic() < deadline or kills < 3:
            published(publisher)
            if draws.random() < 0.3:
                victim = draws.randrange(3)
                if victim < 2:
                    subscribers[victim].kill()
                    subscribers[victim] = subscriber()
                else:
                    publisher.order("200")
                    publisher.kill()
                    publisher = begin("publish", outward, flow_control="min")
                kills += 1
        published(publisher)
        wait_for(
            lambda: all(load.counts[name] >= count for name, count in _by_source(load, accepted).items()),
            "every message that a publisher had sent",
        )
        load.stop()
        assert not load.events
        for survivor in subscribers:
            report = json.loads(survivor.hear())
            (span,), (count,) = report["spans"].values(), report["counts"].values()
            assert report["in_order"]
            assert not report["lost"]
            assert span == [load.sent - count, load.sent - 1], report
        print(f"{kills} kills, {load.sent} messages in, {sum(load.counts.values())} out")


def _by_source(load: _Load, accepted: Mapping[str, int]) -> dict[str, int]:
    """Return how many messages of each source the applications had sent, by the source's name."""
    names = {name.rpartition("[")[0]: name for name in load.counts}
    return {names.get(transport, transport): count for transport, count in accepted.items()}


def test_one_driver_serves_two_interfaces_and_lends_rings(shared_lab: Lab) -> None:
    """Each interface has its own control socket, and the broker's socket answers for the rings of others."""
    here = shared_lab.hosts[0]
    folder = tempfile.TemporaryDirectory()
    tmp_path = Path(folder.name)
    tmp_path.chmod(0o755)  # other users connect
    paths = {name: tmp_path / f"{name}.sock" for name in (here.interface, "lo")}
    command = driver_command(
        tmp_path / "INTERFACE.sock", here.interface, "lo", "--broker-path", str(tmp_path / "xdp.sock"), *ALLOWED,
        **OWN_ADDRESSES,
    )  # fmt: skip
    process = here.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        said = [process.stderr.readline() for _ in range(3)]
        assert [line.split()[0] for line in said] == ["serving", "serving", "lending"], said
        with ExitStack() as stack:
            for name, path in paths.items():
                begin = stack.enter_context(applications(path, interface=name, run=here.run))
                subscriber, publisher = begin("subscribe", "both"), begin("publish", "both")
                publisher.ask("100")
                assert list(subscriber.ask("100")["counts"].values()) == [100]
        asking = f"import pathlib; print(ask_broker(pathlib.Path({str(tmp_path / 'xdp.sock')!r})).lent)"
        code = f"from umstack_xdp.broker_client import ask_broker; {asking}"
        asked = here.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert asked.communicate(timeout=SECONDS)[0] == "{}\n"
    finally:
        process.terminate()
        complaint = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0, complaint
    assert not list(tmp_path.iterdir()), "the sockets are removed"
    folder.cleanup()

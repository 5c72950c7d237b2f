"""The driver between hosts of the lab, over sockets and over rings: no process of its host is deaf, and losses are
reported exactly."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.netns.contexts import members
from tests.unit.driver_ends import NOBODY, ROOT, applications, driver, driver_command
from tests.unit.lbtipc_ends import payload
from tests.unit.loopback import OWN_ADDRESSES
from tests.waiting import SECONDS, collect
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

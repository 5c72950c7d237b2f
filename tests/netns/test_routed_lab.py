"""The lab with a router: a network without multicast, as in clouds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.netns.contexts import members
from tests.netns.traffic import GROUP, MARKER, Outcome, Receiver, Sender
from tests.waiting import wait_for
from umstack.lab import Host, Lab, LabError

ROOT = Path(__file__).resolve().parents[2]
DAEMON_PORT = 15380


@pytest.fixture(scope="module")
def routed_lab() -> Iterator[Lab]:
    """Return one lossless routed lab of three hosts, for tests that leave it unchanged."""
    with Lab(hosts=3, name=f"routed-{os.getpid()}", routed=True, segmentation="real") as lab:
        print(f"lab {lab.name}, seed {lab.seed}")
        yield lab


def test_unicast_passes_and_multicast_does_not(routed_lab: Lab) -> None:
    """Without a multicast route between hosts, datagrams to a joined group do not arrive."""
    one, other, _ = routed_lab.hosts
    assert one.address.rpartition(".")[0] != other.address.rpartition(".")[0]
    with (
        Receiver(other, None) as unicast,
        Receiver(other, GROUP) as multicast,
        Sender(one, other.address) as to_host,
        Sender(one, GROUP) as to_group,
    ):
        for number in range(20):
            to_group.send([number])
            to_host.send([number])
        assert unicast.collect(20) == list(range(20))
        multicast._drain()
        assert multicast.numbers == []
    with pytest.raises(LabError, match="forwards no multicast"):
        routed_lab.await_join(GROUP, 1)


@pytest.mark.parametrize("direction", ["to_host", "from_host"])
def test_a_router_port_does_to_unicast_what_a_switch_port_does_to_multicast(
    routed_lab: Lab, direction: str
) -> None:
    """Unicast datagrams are lost, duplicated and reordered by seed, by default in both directions."""
    count = 2000
    port = routed_lab.port(1 if direction == "to_host" else 0, direction)  # type: ignore[arg-type]
    before = port.counters()
    with (
        Receiver(routed_lab.hosts[1], None) as receiver,
        Sender(routed_lab.hosts[0], routed_lab.hosts[1].address) as sender,
    ):
        port.set(loss=0.05, duplicate=0.02, reorder=0.03, seed=9)
        sender.send(range(count))
        port.set(loss=0.0, duplicate=0.0, reorder=0.0)
        wait_for(lambda: port.counters().released == port.counters().reordered, "nothing held")
        sender.send([MARKER])
        outcome = Outcome.of(count, receiver.collect_until_marker())
    after = port.counters()
    assert after.seen - before.seen == count
    assert len(outcome.lost) == after.dropped - before.dropped > 50
    assert outcome.duplicates == after.duplicated - before.duplicated > 10
    assert outcome.late > 10


def test_a_link_that_comes_back_has_its_route_again(routed_lab: Lab) -> None:
    """A host that was down reaches the others when it is up again."""
    one, other, _ = routed_lab.hosts
    one.link_down()
    one.link_up()
    with Receiver(other, None) as receiver, Sender(one, other.address) as sender:
        sender.send([1])
        assert receiver.collect(1) == [1]


@contextmanager
def resolver_on(host: Host) -> Iterator[str]:
    """Run a resolution daemon on that host; yield its address in the form of the option."""
    command = [sys.executable, "-m", "umstack", "resolver", "--listen", f"{host.address}:{DAEMON_PORT}"]
    daemon = host.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    with daemon:
        assert daemon.stderr
        assert "relaying" in daemon.stderr.readline()
        try:
            yield f"{host.address}:{DAEMON_PORT}"
        finally:
            daemon.terminate()
        assert daemon.wait(10) == 0


def test_topics_are_resolved_across_a_router(routed_lab: Lab) -> None:
    """With a daemon each context discovers the other; without it neither does."""
    publishing, daemon_host, receiving = routed_lab.hosts
    with resolver_on(daemon_host) as daemon, ExitStack() as stack:
        publisher, subscriber = stack.enter_context(
            members(publishing, receiving, resolver_unicast_daemon=daemon)
        )
        (deaf,) = stack.enter_context(members(receiving))
        publisher.source("routed")
        found = subscriber.receiver("routed")
        not_found = deaf.receiver("routed")
        wait_for(lambda: found.stats()["delivery_controllers"] == 1, "the source, by its advertisement")
        publisher.source("later")
        wait_for(lambda: "later" in subscriber.context.topics(), "a topic that nobody has queried")
        assert not_found.stats()["delivery_controllers"] == 0


def test_a_routed_lab_is_found_and_taken_down(make_lab: Callable[..., Lab]) -> None:
    """Another process can open the lab by its name as a routed lab; nothing of the lab remains."""
    lab = make_lab(hosts=2, routed=True, loss=0.5)
    opened = Lab.open(lab.name)
    assert opened.is_routed
    assert opened.hosts[1].gateway == "10.77.1.1"
    assert opened.port(1).settings().unicast
    assert opened.port(1).settings().loss == 0.5
    lab.down()
    assert lab.name not in [known.name for known in Lab.all()]

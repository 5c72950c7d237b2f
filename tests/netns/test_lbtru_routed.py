"""LBT-RU without multicast: a file tree is sent from host to host across a router that forwards no multicast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.netns.contexts import Member, members
from tests.netns.test_routed_lab import resolver_on
from tests.waiting import collect, wait_for
from umstack.lab import Host, Lab

ROOT = Path(__file__).resolve().parents[2]
LOSS = 0.02
SECONDS = 60


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Return a routed lab of three hosts with loss in both directions."""
    with Lab(
        hosts=3, name=f"lbtru-{os.getpid()}", routed=True, segmentation="real", loss=LOSS, seed=29
    ) as lab:
        print(f"lab {lab.name}, seed {lab.seed}")
        yield lab


def tree(folder: Path) -> dict[str, bytes]:
    """Create a repeatable tree of files of all sizes."""
    random = Random(29)
    made = {f"{n % 5}/{n}.bin": random.randbytes(random.choice([0, 10, 1000, 50_000])) for n in range(120)}
    for name, data in made.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return made


def command(host: Host, config: Path, *words: str) -> subprocess.Popen[str]:
    """Run a command of the product on that host."""
    return host.run(
        [
            sys.executable,
            "-m",
            "umstack",
            *words,
            "--interface",
            host.address,
            "--config",
            str(config),
            "--json",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("link", ["socket", "xdp"])
def test_a_tree_of_files_goes_from_host_to_host_without_multicast(
    lab: Lab, tmp_path: Path, link: str
) -> None:
    """UX-11, UM-111: the demo's transfer runs over LBT-RU with `umstack resolver`, with 2 % loss both ways,
    and the bytes are compared. Over AF_XDP the receiver's port is steered into its rings.
    """
    publishing, daemon_host, receiving = lab.hosts
    sent, got = tmp_path / "sent", tmp_path / "got"
    made = tree(sent)
    got.mkdir()
    with resolver_on(daemon_host) as daemon:
        lines = [f"context resolver_unicast_daemon {daemon}", "source transport lbtru"]
        config, receiving_config = tmp_path / "send.cfg", tmp_path / "recv.cfg"
        config.write_text("\n".join(lines) + "\n")
        receiving_config.write_text("\n".join([*lines, f"context link {link}"]) + "\n")
        with (
            command(receiving, receiving_config, "recv", "trees", "--files", str(got)) as receiver,
            command(publishing, config, "send", "trees", "--files", f"{sent}/") as sender,
        ):
            said, problems = sender.communicate(timeout=SECONDS)
            assert sender.returncode == 0, problems
            received, problems = receiver.communicate(timeout=SECONDS)
            assert receiver.returncode == 0, problems
    assert json.loads(said)
    assert json.loads(received)
    arrived = {str(one.relative_to(got)): one.read_bytes() for one in got.rglob("*") if one.is_file()}
    assert arrived == made


def test_rings_receive_lbtru(lab: Lab) -> None:
    """Unicast addresses are steered like groups: the receiver's datagrams arrive on its rings."""
    publishing, daemon_host, receiving = lab.hosts
    with resolver_on(daemon_host) as daemon:
        options = {"resolver_unicast_daemon": daemon}
        with (
            members(publishing, **options) as (publisher,),
            members(receiving, **options, link="xdp") as (subscriber,),
        ):
            _send_over(publisher, subscriber)
            assert subscriber.context.stats()["link"] == "xdp"
            assert subscriber.link("datagrams_received") > 500
            by_kernel = subscriber.link("ring_kernel_path")
            assert by_kernel < subscriber.link("datagrams_received") / 2, by_kernel


def test_a_publisher_with_rings_sends_lbtru_by_the_kernel(lab: Lab) -> None:
    """W5: a context with rings also publishes LBT-RU; the kernel routes to each receiver."""
    publishing, daemon_host, receiving = lab.hosts
    with resolver_on(daemon_host) as daemon:
        options = {"resolver_unicast_daemon": daemon}
        with (
            members(publishing, **options, link="xdp") as (publisher,),
            members(receiving, **options) as (subscriber,),
        ):
            _send_over(publisher, subscriber)


def _send_over(publisher: Member, subscriber: Member) -> None:
    receiver = subscriber.receiver("over")
    source = publisher.source("over", transport="lbtru")
    source.wait_connected(timeout=20)
    messages = [b"%08d" % number + bytes(1200) for number in range(2000)]
    source.send_many(messages, flush=True)
    assert [one.data for one in collect(receiver, len(messages), 20)] == messages
    source.close()
    receiver.close()
    wait_for(lambda: not subscriber.context.stats()["receiver_transports"], "the end of the session")

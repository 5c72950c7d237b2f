"""A persistent source whose path carries less than it did: its messages have as many fragments as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.netns.contexts import members, store_on
from tests.waiting import collect
from umstack.lab import Host, Lab
from umstack.persistence.messages import data_of
from umstack.store.repository.verification import dump

MakeLab = Callable[..., Lab]

JUMBO, ETHERNET = 9000, 1500
IPV6_MINIMUM, IPV4_MINIMUM = 1280, 576
EACH = 20


def _shrink_path(hosts: list[Host], mtu: int) -> None:
    hosts[1].set_path_mtu(mtu)


def _shrink_interface(hosts: list[Host], mtu: int) -> None:
    hosts[0].set_mtu(mtu)


@pytest.mark.parametrize(
    ("shrink", "before", "after", "transport"),
    [
        # Only LBT-RM follows a switch that drops without a word; the kernel's TCP would wait for ICMP without an end.
        pytest.param(_shrink_path, ETHERNET, IPV6_MINIMUM, "lbtrm", id="path to 1280"),
        pytest.param(_shrink_path, JUMBO, ETHERNET, "lbtrm", id="path of jumbo frames to 1500"),
        *(
            pytest.param(
                _shrink_interface, ETHERNET, after, transport, id=f"interface to {after}, {transport}"
            )
            for after in (IPV6_MINIMUM, IPV4_MINIMUM)
            for transport in ("lbtrm", "lbtru", "tcp")
        ),
    ],
)
def test_the_numbers_of_messages_do_not_depend_on_the_path(
    make_lab: MakeLab,
    tmp_path: Path,
    shrink: Callable[[list[Host], int], None],
    before: int,
    after: int,
    transport: str,
) -> None:
    """Every message has two fragments; Store and subscriber get each whole, once. UP-9."""
    lab = make_lab(hosts=2, mtu=before, segmentation="real")
    with members(*lab.hosts) as (publisher, subscriber), store_on(subscriber, tmp_path) as store:
        receiver = subscriber.receiver("kept")
        source = publisher.host.call(
            lambda: publisher.context.source(
                "kept",
                store=[store.endpoint],
                session_id=7,
                transport=transport,
                flow_control="min",
            )
        )
        with source:
            source.wait_connected(timeout=10)
            longest = source._source._publication.fragment_bytes
            assert longest > after
            sent: list[bytes] = []

            def send() -> None:
                for _ in range(EACH):
                    sent.append(len(sent).to_bytes(4) + bytes(longest))
                    assert source.send(sent[-1], flush=True, timeout=10) == 2 * len(sent) - 1

            for mtu in (before, after, before):
                shrink(lab.hosts, mtu)
                send()
                assert source.wait_stable(timeout=10), source.unstable
            assert [message.data for message in collect(receiver, len(sent), 20)] == sent
    kept = {record.sqn: data_of(record.message).payload for record in dump(tmp_path)}
    assert [kept[sqn] + kept[sqn + 1] for sqn in range(0, len(kept), 2)] == sent

"""One reader that never reads, beside seven healthy ones, over sockets and rings (docs/slow-readers.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.netns.contexts import members
from tests.waiting import SECONDS, wait_for
from umstack.lab import Lab

MakeLab = Callable[..., Lab]
GROUPS = ("239.255.48.1", "239.255.48.2")
TOPICS = 8
COUNT = 4000
QUEUE = {"receiver_queue_block_count": 4, "receiver_queue_block_length": 65536}


@pytest.mark.parametrize("link", ["socket", "xdp"])
def test_one_reader_of_eight_that_never_reads(make_lab: MakeLab, link: str) -> None:
    """W8: of eight topics over two sessions, seven deliver everything and the eighth is cut loose."""
    lab = make_lab(hosts=2)
    with members(*lab.hosts, link=link) as (publisher, subscriber):
        hold = {"receiver_full_queue_hold_interval": 500, "use_otr": 0}
        slow, *healthy = [subscriber.receiver(f"t{n}", **QUEUE, **hold) for n in range(TOPICS)]
        sources = [
            publisher.source(f"t{n}", transport_lbtrm_multicast_address=GROUPS[n % 2]) for n in range(TOPICS)
        ]
        for endpoint in (slow, *healthy, *sources):
            endpoint.wait_connected(timeout=SECONDS)

        def publish() -> None:
            for n in range(COUNT):
                for source in sources:
                    source.send(b"%0*d" % (1000, n), flush=True)

        publishing = threading.Thread(target=publish)
        publishing.start()
        counts = [0] * len(healthy)

        def read() -> bool:
            for n, receiver in enumerate(healthy):
                counts[n] += sum(1 for _ in receiver.poll(timeout=0))
            return min(counts) >= COUNT

        wait_for(read, "everything at the healthy readers")
        publishing.join()
        assert counts == [COUNT] * len(healthy)
        assert all(not receiver.stats()["cut_loose"] for receiver in healthy)
        assert slow.stats()["cut_loose"] == 1
        (row,) = [row for row in subscriber.context.stats()["receivers"] if row["topic"] == "t0"]
        assert row["queued_messages"] > 0
        assert row["queue_full_time"] > 0

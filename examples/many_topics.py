"""Read a hundred topics through one event queue: python examples/many_topics.py lo.

Receivers made with `queue=` share one queue: one poll, one wake-up and one block of memory for all of them. Rows come
in the order of delivery across topics, and each carries its topic.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import umstack

TOPICS = [f"sensor/{number:03d}" for number in range(100)]
MESSAGES = 10
GROUP = "transport_lbtrm_multicast_address"


def main(interface: str, *, config: str | None = None, group: str = "239.192.7.7") -> None:
    """Publish to every topic and count what comes by topic."""
    with umstack.Context(interface, config=config) as context, context.event_queue() as queue:
        receivers = [context.receiver(topic, queue=queue) for topic in TOPICS]
        # Sources on one group share one transport session, and its datagrams.
        options = {GROUP: group, "flow_control": "min"}
        sources = [context.source(topic, **options) for topic in TOPICS]
        sources[0].wait_connected(timeout=10)
        # A topic that is not resolved yet would miss its first messages (head loss): wait for each of them.
        while not all(receiver.stats()["delivery_controllers"] for receiver in receivers):
            time.sleep(0.01)
        for number in range(MESSAGES):
            for source in sources:
                source.send(b"reading %d" % number)
        sources[0].flush()  # the session's datagrams: those of every topic
        counts: Counter[str] = Counter()
        while counts.total() < MESSAGES * len(TOPICS):
            counts.update(message.topic for message in queue.poll(timeout=1.0).messages())
        print(f"{counts.total()} messages of {len(counts)} topics, {min(counts.values())} of each")


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)

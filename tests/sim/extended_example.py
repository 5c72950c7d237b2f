"""The worked example of Ultra Messaging up to its loss (UM-72..UM-80). The sources A, B and C share one
session, one host receives A and B. Sources and receivers have the product's defaults, apart from `recovery_timing`,
and with "fixed" the product does what Ultra Messaging does. Other scripts start where this one ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.product import product_join, product_session
from umstack.sim import MS, Host, Join, Receiver, Session, Source, World

DELAY = 1 * MS
LARGE = bytes(range(256)) * 40  # 10240 bytes: two datagrams of at most 8192


@dataclass
class Example:
    """The objects of the example."""

    world: World
    publisher: Host
    subscriber: Host
    session: Session
    a: Source
    b: Source
    c: Source
    receiver_a: Receiver
    receiver_b: Receiver
    join_a: Join
    join_b: Join


def build(world: World, recovery_timing: str = "fixed") -> Example:
    """Set up without sending anything (UM-72, UM-73)."""
    publisher, subscriber = world.host(), world.host()
    for host in (publisher, subscriber):
        host.set_faults(delay_ns=DELAY)
    session = publisher.session(**product_session(recovery_timing=recovery_timing))
    join = product_join(recovery_timing=recovery_timing)
    a, b, c = session.source(), session.source(), session.source()
    receiver_a, receiver_b = subscriber.receiver(), subscriber.receiver()
    join_a, join_b = receiver_a.join(a, **join), receiver_b.join(b, **join)
    return Example(world, publisher, subscriber, session, a, b, c, receiver_a, receiver_b, join_a, join_b)


def play(example: Example) -> None:
    """Play the part without loss (UM-75, UM-78, UM-80): transport sqns 0 to 3, 100 ms apart."""
    example.a.send(b"A0", flush=True)
    example.world.run_for(100 * MS)
    example.b.send(b"B0")
    example.c.send(b"C0", flush=True)
    example.world.run_for(100 * MS)
    example.a.send(LARGE, flush=True)
    example.world.run_for(100 * MS)

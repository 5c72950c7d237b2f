"""The worked example of Ultra Messaging up to its loss (UM-72..UM-80). The sources A, B and C share one
session, one host receives A and B. Timers are those of `recovery_timing` fixed or adaptive, and all other
options have the product's defaults. Other scripts start where this one ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from umstack.sim import ADAPTIVE_JOIN, ADAPTIVE_SESSION, MS, Host, Join, Receiver, Session, Source, World

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


def build(world: World, *, is_adaptive: bool = False, **join: int) -> Example:
    """Set up without sending anything (UM-72, UM-73)."""
    publisher, subscriber = world.host(), world.host()
    for host in (publisher, subscriber):
        host.set_faults(delay_ns=DELAY)
    session = publisher.session(**(ADAPTIVE_SESSION if is_adaptive else {}))
    join |= ADAPTIVE_JOIN if is_adaptive else {}
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

"""Run the protocol on the application's own thread: python examples/sequential.py lo.

In sequential mode umstack has no thread. The protocol runs inside `poll()`, `receive()`, `process_events()` and calls
that wait, so an application loop has to make such calls often: timers and NAKs run nowhere else.
"""

from __future__ import annotations

import sys
import threading
import time

import umstack

COUNT = 100


def main(interface: str, *, config: str | None = None) -> None:
    """Send and receive from one loop, without any other thread."""
    threads_before = threading.active_count()
    with umstack.Context(interface, mode="sequential", config=config) as context:
        receiver = context.receiver("ticks")
        source = context.source("ticks", flow_control="min")
        source.wait_connected(timeout=10)  # drives the protocol while it waits
        received, sent = 0, 0
        deadline = time.monotonic() + 10
        while received < COUNT:
            if sent < COUNT:
                source.send(b"tick %d" % sent, flush=True)
                sent += 1
            batch = receiver.poll(timeout=0)  # one pass that does not sleep
            received += len(batch.messages())
            if sent == COUNT:
                context.process_events(0.001)  # nothing else to do: wait for datagrams and timers
            if time.monotonic() > deadline:
                raise SystemExit(f"{received} of {COUNT} messages after 10 s")
        print(f"{received} messages, {threading.active_count() - threads_before} threads of the stack")


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)

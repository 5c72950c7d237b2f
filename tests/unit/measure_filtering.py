"""Measures the processor time per message of an LBT-RU source with eight clients, each with one of its eight topics:
with filtering, without it, and for a plain program that sends a copy to each of eight addresses (UDP GSO).

    python -m tests.unit.measure_filtering [--size 1400] [--run 64] [--rounds 60] [--pairs 5]

Over loopback, where sending costs what the kernel does of receiving, too; every receiver takes coalesced runs.
`--run`: messages of one topic sent in one call, before the next topic's. A pair takes the ways in turns; figures are
medians of the ratios.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

from tests.unit.loopback import PORTS, open_context
from tests.waiting import SECONDS, wait_for
from umstack import Source

TOPICS = tuple(f"topic-{number}" for number in range(8))
UDP_SEGMENT, UDP_GRO = 103, 104
_GSO_BYTES = 62 * 1024


def _own(process: int) -> dict[str, Any]:
    """Addresses of both processes of a measurement."""
    return {
        "resolver_multicast_address": f"239.{process >> 8 & 0x3F | 0xC0}.{process & 0xFF}.1",
        "resolver_multicast_port": 20000 + process % 10000,
        **PORTS,
    }


def receive(parent: int) -> None:
    """The child: a receiver of each topic in a context of its own, and eight plain sockets, until its input ends."""
    with ExitStack() as stack:
        for topic in TOPICS:
            context = stack.enter_context(open_context(**_own(parent)))
            receiver = context.receiver(topic)
            threading.Thread(target=lambda one=receiver: [None for _ in one], daemon=True).start()
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in TOPICS]
        for one in sockets:
            one.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
            one.bind(("127.0.0.1", 0))
            threading.Thread(target=_drain, args=(one,), daemon=True).start()
        print(*(one.getsockname()[1] for one in sockets), flush=True)
        sys.stdin.read()
        os._exit(0)


def _drain(one: socket.socket) -> None:
    buffer = bytearray(65536)
    while True:
        one.recv_into(buffer)


def _publish(parent: int, behaviour: str, size: int, run: int, rounds: int) -> float:
    """Processor seconds for a message, clients connected and served."""
    batch = [bytes(size)] * run
    with open_context(**_own(parent)) as context:
        sources: list[Source] = [
            context.source(
                topic,
                transport="lbtru",
                flow_control="min",
                transport_session_name=behaviour,
                transport_source_side_filtering_behavior=behaviour,
            )
            for topic in TOPICS
        ]
        first = sources[0]
        wait_for(lambda: first.stats()["num_clients"] == len(TOPICS), "the clients")
        first.wait_connected(timeout=SECONDS)
        if behaviour == "inclusion":
            wait_for(lambda: (first.stats()["interests_rcved"] or 0) >= len(TOPICS), "what they want")
        for source in sources:
            source.send_many(batch, flush=True)
        began = time.process_time()
        for _ in range(rounds):
            for source in sources:
                source.send_many(batch, flush=True)
        first.wait_drained(timeout=60)
        return (time.process_time() - began) / (rounds * run * len(TOPICS))


def _send_raw(ports: list[int], size: int, run: int, rounds: int) -> float:
    """The same from a plain program: datagrams of equal size, each sent to every address, in segmented sends."""
    headers_bytes = 32
    datagram = bytes(size + headers_bytes)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        most = min(64, _GSO_BYTES // len(datagram))
        segment = [(socket.SOL_UDP, UDP_SEGMENT, len(datagram).to_bytes(2, sys.byteorder))]
        began = time.process_time()
        for _ in range(rounds * len(TOPICS)):
            for left in range(run, 0, -most):
                parts = [datagram * min(left, most)]
                for port in ports:
                    sender.sendmsg(parts, segment, 0, ("127.0.0.1", port))
        return (time.process_time() - began) / (rounds * run * len(TOPICS))


def main() -> None:
    """Measure, and print a line for each pair and the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("size", 1400), ("run", 64), ("rounds", 60), ("pairs", 5), ("receive", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if given.receive:
        receive(given.receive)
    filtered, unfiltered = [], []
    for _ in range(given.pairs):
        command = [sys.executable, "-m", "tests.unit.measure_filtering", "--receive", str(os.getpid())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            ports = [int(port) for port in child.stdout.readline().split()]
            sizes = given.size, given.run, given.rounds
            none = _publish(os.getpid(), "none", *sizes)
            inclusion = _publish(os.getpid(), "inclusion", *sizes)
            raw = _send_raw(ports, *sizes)
            child.communicate()
        filtered.append(inclusion / none)
        unfiltered.append(none / raw)
        print(
            f"none {1e6 * none:.2f} us, inclusion {1e6 * inclusion:.2f} us, raw {1e6 * raw:.2f} us per message"
        )
    print(
        f"inclusion to none {statistics.median(filtered):.2f}, none to raw {statistics.median(unfiltered):.2f}"
    )


if __name__ == "__main__":
    main()

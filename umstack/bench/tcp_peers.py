"""Baselines of LBT-TCP, measured in the same rounds: a plain TCP stream, and ZeroMQ over TCP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umstack.bench.children import CHILD_SLACK_SECONDS, Host, running
from umstack.bench.result import Result, result
from umstack.bench.tcp_ends import Peer, PeerSpec, zmq_library

_ENDS = "umstack.bench.tcp_ends"
_PORT = 17100
ZMQ_PEERS: tuple[Peer, ...] = ("zmq-push-c", "zmq-xpub-c", "zmq-push-python", "zmq-xpub-python")


def peers(named: Sequence[str]) -> list[Peer]:
    """Return the named peers; `zmq` selects all forms of ZeroMQ. Raises Unsupported if it is not installed."""
    if "zmq" not in named:
        return []
    zmq_library()
    return list(ZMQ_PEERS)


def measure_peer(
    sender: Host, receiver: Host, what: Peer, size: int, seconds: float, cpus: tuple[int | None, int | None]
) -> Result:
    """Measure one stream from one host to the other."""

    def spec(cpu: int | None) -> PeerSpec:
        return PeerSpec(what=what, address=sender.address, port=_PORT, size=size, seconds=seconds, cpu=cpu)

    with running(sender, _ENDS, spec(cpus[0]).as_arguments("send")) as sending:
        sending.receive(CHILD_SLACK_SECONDS)
        with running(receiver, _ENDS, spec(cpus[1]).as_arguments("receive")) as receiving:
            sending.order(go=True)
            receiving.receive(CHILD_SLACK_SECONDS)
            sent = sending.receive(seconds + CHILD_SLACK_SECONDS)
            received = receiving.receive(CHILD_SLACK_SECONDS)
    return _as_result(what, size, sent, received)


def _as_result(what: Peer, size: int, sent: dict[str, Any], received: dict[str, Any]) -> Result:
    seconds = received["seconds"]
    # The clock starts at the first message (for the raw stream, the first byte), which does not count.
    lost = 0 if what == "raw-tcp" else sent["messages"] - 1 - received["messages"]
    return result(
        what=what,
        transport="tcp",
        link="socket",
        size=size,
        api="batch" if what == "raw-tcp" else "message",
        messages_per_second=received["messages"] / seconds if seconds > 0 else 0.0,
        lost=lost,
        out_of_order=0,
        duplicates=0,
        cpu_seconds={"publisher": sent["cpu_seconds"], "subscriber": received["cpu_seconds"]},
        wait="block",
        loop="python" if what.endswith("python") else "core",
        detail={"sent": sent["messages"], "seconds": seconds},
    )

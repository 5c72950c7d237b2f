"""The two ends of a request and its response, also over a plain TCP connection and between ZeroMQ sockets.

`python -m umstack.bench.request_ends ask|respond|tcp-ask|tcp-respond|zmq-ask|zmq-respond SPEC`, the spec being a
`RequestSpec` in JSON. All of them block while waiting and loop in Python, so that only the transports differ.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from umstack._sim_bench import lib
from umstack.bench.children import receive_order, say
from umstack.bench.endpoint import EndSpec, await_receivers, await_sources, await_turn, run
from umstack.bench.raw import percentiles_us
from umstack.errors import LinkError, Unsupported

_WARMUP_COUNT = 500
_TOPIC = "bench.requests"
_END = b"end."
_TIMEOUT_SECONDS = 5.0
_COUNTER_BYTES: int = lib.UM_ECHO_COUNTER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec(EndSpec):
    """Arguments of every child process."""

    size: int = 64
    seconds: float = 2.0
    samples: int = 200_000


def ask(spec: RequestSpec) -> None:
    """Send requests one after another and record the time of each response."""
    with spec.open_context() as context:
        source = context.source(_TOPIC)
        say(ready=True)
        await_turn(context)
        await_receivers(source, 1)
        say(met=True)
        await_turn(context)

        def once(message: bytes) -> bytes:
            return source.request(message).first(_TIMEOUT_SECONDS).data

        found = _measure(spec, once)
        source.send(_END, True)
        say(**found, stats=context.stats())
        await_turn(context)


def respond(spec: RequestSpec) -> None:
    """Respond to every request with its own data."""
    with spec.open_context() as context:
        receiver = context.receiver(_TOPIC)
        say(ready=True)
        await_turn(context)
        await_sources(context, [receiver])
        say(met=True)
        await_turn(context)
        cpu_seconds = time.process_time()
        count = 0
        for message in receiver:
            if not message.is_request:
                break
            message.respond(message.data)
            count += 1
        say(samples=count, cpu_seconds=time.process_time() - cpu_seconds, stats=context.stats())
        await_turn(context)


def tcp_ask(spec: RequestSpec) -> None:
    """Send requests over a TCP connection and record the time of each response."""
    say(ready=True)
    port = receive_order()["port"]
    with socket.create_connection((spec.interface, port), timeout=_TIMEOUT_SECONDS) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def once(message: bytes) -> bytes:
            peer.sendall(message)
            return _receive(peer, len(message))

        say(**_measure(spec, once))
    receive_order()


def tcp_respond(spec: RequestSpec) -> None:
    """Echo received bytes until the connection ends."""
    with socket.create_server((spec.interface, 0)) as listener:
        say(ready=True, port=listener.getsockname()[1])
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            cpu_seconds = time.process_time()
            count = 0
            while message := _receive(peer, spec.size):
                peer.sendall(message)
                count += 1
    say(samples=count, cpu_seconds=time.process_time() - cpu_seconds)
    receive_order()


def zmq_ask(spec: RequestSpec) -> None:
    """Do the same between two PAIR sockets of ZeroMQ over TCP, its usual way for messages in both directions."""
    say(ready=True)
    port = receive_order()["port"]
    with zmq_pair() as peer:
        peer.connect(f"tcp://{spec.interface}:{port}")

        def once(message: bytes) -> bytes:
            peer.send(message)
            return bytes(peer.recv())

        say(**_measure(spec, once))
        peer.send(_END)
        receive_order()
    peer.context.term()


def zmq_respond(spec: RequestSpec) -> None:
    """Echo received messages until the end."""
    with zmq_pair() as peer:
        say(ready=True, port=peer.bind_to_random_port(f"tcp://{spec.interface}"))
        cpu_seconds = time.process_time()
        count = 0
        while (message := peer.recv()) != _END:
            peer.send(message)
            count += 1
        say(samples=count, cpu_seconds=time.process_time() - cpu_seconds)
        receive_order()
    peer.context.term()


def zmq_pair() -> Any:
    """Return a PAIR socket with the same time limit as the other ends. Raises Unsupported without pyzmq."""
    try:
        import zmq
    except ImportError:
        raise Unsupported("pyzmq is not installed", hint="pip install pyzmq") from None
    made: Any = zmq.Context.instance().socket(zmq.PAIR)
    made.setsockopt(zmq.RCVTIMEO, int(_TIMEOUT_SECONDS * 1000))
    return made


def _receive(peer: socket.socket, length: int) -> bytes:
    """Read exactly this many bytes, or return an empty result at the end of the stream."""
    data = peer.recv(length)
    while 0 < len(data) < length:
        data += peer.recv(length - len(data))
    return data


def _measure(spec: RequestSpec, once: Callable[[bytes], bytes]) -> dict[str, Any]:
    clock, filler = time.perf_counter_ns, b"." * (spec.size - _COUNTER_BYTES)
    samples = np.zeros(spec.samples, dtype=np.uint64)
    count, start, cpu_seconds = 0, clock(), time.process_time()
    deadline = start + int(spec.seconds * 1e9)
    for counter in range(_WARMUP_COUNT + spec.samples):
        if counter == _WARMUP_COUNT:
            start, cpu_seconds = clock(), time.process_time()
            deadline = start + int(spec.seconds * 1e9)
        message = counter.to_bytes(_COUNTER_BYTES, "little") + filler
        sent_ns = clock()
        if counter > _WARMUP_COUNT and sent_ns >= deadline:
            break
        if once(message) != message:
            raise LinkError("another response than the one to the request", hint="this is a fault: report it")
        if counter >= _WARMUP_COUNT:
            samples[count] = clock() - sent_ns
            count += 1
    return {
        "samples": count,
        "seconds": (clock() - start) / 1e9,
        "cpu_seconds": time.process_time() - cpu_seconds,
        **percentiles_us(samples[:count]),
    }


if __name__ == "__main__":
    roles = {
        "ask": ask,
        "respond": respond,
        "tcp-ask": tcp_ask,
        "tcp-respond": tcp_respond,
        "zmq-ask": zmq_ask,
        "zmq-respond": zmq_respond,
    }
    sys.exit(run(sys.argv[1:], RequestSpec, roles))

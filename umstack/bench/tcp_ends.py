"""The two ends of the baselines for LBT-TCP: a plain TCP stream, and ZeroMQ over TCP, in C and in Python.

A raw stream shows the best that a socket can do: messages are laid end to end and sent with as few system calls as
possible, and the receiver counts bytes. ZeroMQ sends each message by a separate call, as it is normally used. Its
messages are counted, and its ends are sockets of one pattern (PUSH and PULL, or XPUB and SUB that drop nothing).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from umstack._sim_bench import ffi, lib
from umstack.bench.children import ChildSpec, receive_order, say
from umstack.errors import Unsupported

Peer = Literal["raw-tcp", "zmq-push-c", "zmq-xpub-c", "zmq-push-python", "zmq-xpub-python"]

_BATCH_BYTES = 256 * 1024
_HIGH_WATER_MARK = 10_000
_PATIENCE_NS = 15 * 10**9
_WAIT_SECONDS = 15.0
_END = b"."


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpec(ChildSpec):
    """Arguments of a child process."""

    what: Peer
    address: str
    """Address of the sending host, which listens."""
    port: int
    size: int
    seconds: float
    cpu: int | None = None

    @property
    def endpoint(self) -> str:
        """Return the address in ZeroMQ's notation."""
        return f"tcp://{self.address}:{self.port}"

    @property
    def is_published(self) -> bool:
        """XPUB and SUB instead of PUSH and PULL."""
        return "xpub" in self.what


def zmq_library() -> Path:
    """Return the libzmq of the package pyzmq. Raises Unsupported if pyzmq is not installed."""
    try:
        import zmq
    except ImportError:
        raise Unsupported("pyzmq is not installed", hint="pip install pyzmq") from None
    found = sorted((Path(zmq.__file__).parent.parent / "pyzmq.libs").glob("libzmq*.so*"))
    if not found:
        raise Unsupported("the package pyzmq has no libzmq of its own", hint="install it from a wheel")
    return found[0]


def _say_sent(messages: int, seconds: float, cpu_seconds: float) -> None:
    say(messages=messages, seconds=seconds, cpu_seconds=cpu_seconds)


def _say_received(messages: float, seconds: float, cpu_seconds: float, *, ended: bool) -> None:
    say(messages=messages, seconds=seconds, cpu_seconds=cpu_seconds, ended=ended)


# A plain stream


def _send_raw(spec: PeerSpec) -> None:
    with socket.create_server((spec.address, spec.port)) as listening:
        listening.settimeout(_WAIT_SECONDS)
        say(ready=True)
        receive_order()
        peer, _ = listening.accept()
        with peer:
            count = max(1, _BATCH_BYTES // spec.size)
            batch, sent = bytes(count * spec.size), 0
            cpu_seconds, start = time.process_time(), time.monotonic()
            while time.monotonic() - start < spec.seconds:
                peer.sendall(batch)
                sent += count
            _say_sent(sent, time.monotonic() - start, time.process_time() - cpu_seconds)


def _receive_raw(spec: PeerSpec) -> None:
    with socket.create_connection((spec.address, spec.port), timeout=_WAIT_SECONDS) as peer:
        say(ready=True)
        buffer = bytearray(_BATCH_BYTES)
        received = 0
        peer.recv_into(buffer, 1)
        cpu_seconds, start = time.process_time(), time.monotonic()
        last = start
        while got := peer.recv_into(buffer):
            received += got
            last = time.monotonic()
        _say_received(received / spec.size, last - start, time.process_time() - cpu_seconds, ended=True)


# ZeroMQ in C


def _zmq_config(spec: PeerSpec) -> Any:
    config = ffi.new("um_peer_zmq_config *")
    config.is_published, config.message_bytes = spec.is_published, spec.size
    config.high_water_mark = _HIGH_WATER_MARK
    config.duration_ns, config.patience_ns = int(spec.seconds * 1e9), _PATIENCE_NS
    return config


def _zmq(spec: PeerSpec, run: Any) -> Any:
    result = ffi.new("um_peer_zmq_result *")
    endpoint = spec.endpoint.encode()
    error = run(str(zmq_library()).encode(), endpoint, _zmq_config(spec), result)
    if error:
        raise Unsupported(f"ZeroMQ at {spec.endpoint}: {os.strerror(-error)}", hint="try another pyzmq")
    return result


def _send_zmq_c(spec: PeerSpec) -> None:
    say(ready=True)
    receive_order()
    sent = _zmq(spec, lib.um_peer_zmq_send)
    _say_sent(sent.messages, sent.elapsed_ns / 1e9, sent.cpu_ns / 1e9)


def _receive_zmq_c(spec: PeerSpec) -> None:
    say(ready=True)
    got = _zmq(spec, lib.um_peer_zmq_receive)
    _say_received(got.messages, got.elapsed_ns / 1e9, got.cpu_ns / 1e9, ended=got.end_seen)


# ZeroMQ in Python


def _zmq_socket(spec: PeerSpec, *, sends: bool) -> Any:
    import zmq

    patterns = (zmq.XPUB, zmq.SUB) if spec.is_published else (zmq.PUSH, zmq.PULL)
    made: Any = zmq.Context.instance().socket(patterns[0] if sends else patterns[1])
    made.set_hwm(_HIGH_WATER_MARK)
    made.setsockopt(zmq.RCVTIMEO, int(_WAIT_SECONDS * 1000))
    if spec.is_published and sends:
        made.setsockopt(zmq.XPUB_NODROP, 1)
    elif spec.is_published:
        made.setsockopt(zmq.SUBSCRIBE, b"")
    return made


def _send_zmq_python(spec: PeerSpec) -> None:
    with _zmq_socket(spec, sends=True) as sending:
        sending.bind(spec.endpoint)
        say(ready=True)
        receive_order()
        if spec.is_published:
            sending.recv()
        message, send, sent = bytes(spec.size), sending.send, 0
        cpu_seconds, start = time.process_time(), time.monotonic()
        while time.monotonic() - start < spec.seconds:
            for _ in range(256):
                send(message)
            sent += 256
        taken = time.monotonic() - start
        send(_END)
        _say_sent(sent, taken, time.process_time() - cpu_seconds)
    sending.context.term()  # waits until everything has been sent


def _receive_zmq_python(spec: PeerSpec) -> None:
    with _zmq_socket(spec, sends=False) as receiving:
        receiving.connect(spec.endpoint)
        say(ready=True)
        recv, received = receiving.recv, 0
        recv()
        cpu_seconds, start = time.process_time(), time.monotonic()
        while recv() != _END:
            received += 1
        _say_received(received, time.monotonic() - start, time.process_time() - cpu_seconds, ended=True)


_ROLES: Mapping[str, tuple[Callable[[PeerSpec], None], Callable[[PeerSpec], None]]] = {
    "raw-tcp": (_send_raw, _receive_raw),
    "zmq-push-c": (_send_zmq_c, _receive_zmq_c),
    "zmq-xpub-c": (_send_zmq_c, _receive_zmq_c),
    "zmq-push-python": (_send_zmq_python, _receive_zmq_python),
    "zmq-xpub-python": (_send_zmq_python, _receive_zmq_python),
}


def main(arguments: Sequence[str]) -> int:
    """Run one end; arguments: `send SPEC` or `receive SPEC`."""
    role, text = arguments
    spec = PeerSpec.from_json(text)
    if spec.cpu is not None:
        os.sched_setaffinity(0, {spec.cpu})
    try:
        _ROLES[spec.what][role == "receive"](spec)
    except Unsupported as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Raw kernel-socket baselines, with which the stack's own figures are compared in the same run.

Each measurement starts two child processes (`python -m umstack.bench.raw ROLE --option value ...`), one in each of two
hosts. The listening child reports when it listens; only then is the sending child started.
Each child finally prints its result as one JSON object.

UDP loses datagrams that the receiver cannot accept, so the rate of a baseline counts the messages that arrived, each
of them checked, and the rate sent is reported next to it. The rate depends on how the receiver waits and whether
the sender is throttled: `measure_strongest` tries the ways in turn and measures the best of them.

One file, because both ends and the measurement that starts them share one set of command-line fields: the
arguments that a child accepts and those that its parent passes are best read together.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import ipaddress
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import numpy as np

from umstack._sim_bench import ffi, lib
from umstack.bench.children import CHILD_SLACK_SECONDS, BenchError, Child, Host, running
from umstack.errors import LinkError, UmError, error_from_result
from umstack_xdp import XdpError

Subject = Literal["raw-udp", "raw-udp-packed", "raw-udp-gso", "raw-xdp"]
Wait = Literal["block", "busy"]

PACKED_DATAGRAM_BYTES = 1408
"""Datagram size of `raw-udp-packed`: the largest multiple of 64 bytes below an MTU of 1500."""

_GROUP = "239.255.7.1"
_PORT = 17000
_SOCKET_BUFFER_BYTES = 32 << 20
_FIRST_DATAGRAM_SECONDS = 15.0
_IDLE_SECONDS = 1.0
PROBE_SECONDS = 0.5
_COALESCE_CANDIDATES_US = (100, 300)
_GRO_BATCH_CANDIDATES = (2, 16)
_LOSS_WORTH_PACING = 0.01
_PACE_FACTORS = (1.05, 0.95)
_NS = 1e9

ANY_CPU = -1
"""The scheduler chooses the CPU of a process."""


@dataclass(frozen=True, slots=True)
class ThroughputPlan:
    """Plan of one raw throughput measurement."""

    what: Subject
    message_bytes: int
    seconds: float = 2.0
    wait: Wait = "block"
    coalesce_us: int = 0
    """With `wait="block"`: sleep this long when no datagram is there, instead of being woken by the next one."""
    receive_batch: int = 0
    """Buffers per receiving call, 0 for the usual number. With `raw-udp-gso`, a few large buffers stay in the cache."""
    pace_messages_per_second: int = 0
    max_messages: int = 0
    group: str = _GROUP
    port: int = _PORT
    sender_cpu: int = ANY_CPU
    receiver_cpu: int = ANY_CPU

    @property
    def messages_per_datagram(self) -> int:
        """Greater than one only if messages are packed."""
        return max(1, PACKED_DATAGRAM_BYTES // self.message_bytes) if self.what == "raw-udp-packed" else 1

    @property
    def segments_per_send(self) -> int:
        """Number of datagrams sent in one call as a super-datagram."""
        if self.what != "raw-udp-gso":
            return 1
        fitting = lib.UM_RAW_MAX_DATAGRAM_BYTES // (self.message_bytes * self.messages_per_datagram)
        return int(max(1, min(lib.UM_RAW_MAX_SEGMENT_COUNT, fitting)))


@dataclass(frozen=True, slots=True)
class PingPongPlan:
    """One raw round-trip measurement, over multicast if a group for each direction is given.

    If both ends run on one processor, no wake-up between processors is needed, which on a virtual machine is most of
    a blocking round trip. Without pinning, the figure therefore depends on where the scheduler places the ends.
    """

    message_bytes: int = 64
    wait: Wait = "block"
    seconds: float = 2.0
    samples: int = 200_000
    what: Subject = "raw-udp"
    warmup: int = 200
    port: int = _PORT
    to_server_group: str = ""
    to_client_group: str = ""
    client_cpu: int = ANY_CPU
    server_cpu: int = ANY_CPU


@dataclass(frozen=True, slots=True)
class RawThroughput:
    """Result of a throughput measurement."""

    plan: ThroughputPlan
    messages_per_second: float
    datagrams_per_second: float
    sent_messages_per_second: float
    sent_messages: int
    received_messages: int
    lost: int
    out_of_order: int
    duplicates: int
    malformed: int
    socket_drops: int
    publisher_cpu_seconds: float
    subscriber_cpu_seconds: float
    receive_buffer_bytes: int
    probes: tuple[RawThroughput, ...] = ()

    def as_result(self) -> dict[str, Any]:
        """One entry of the `results` of `umstack bench --json`."""
        return {
            "what": self.plan.what,
            **_link_of(self.plan.what),
            "size": self.plan.message_bytes,
            "messages_per_second": self.messages_per_second,
            "datagrams_per_second": self.datagrams_per_second,
            "lost": self.lost,
            "out_of_order": self.out_of_order,
            "duplicates": self.duplicates,
            "cpu_seconds": {
                "publisher": self.publisher_cpu_seconds,
                "subscriber": self.subscriber_cpu_seconds,
            },
            "wait": self.plan.wait,
            "detail": {
                "sent_messages_per_second": self.sent_messages_per_second,
                "sent": self.sent_messages,
                "received": self.received_messages,
                "malformed": self.malformed,
                "socket_drops": self.socket_drops,
                "receive_buffer_bytes": self.receive_buffer_bytes,
                "messages_per_datagram": self.plan.messages_per_datagram,
                "segments_per_send": self.plan.segments_per_send,
                "coalesce_us": self.plan.coalesce_us,
                "receive_batch": self.plan.receive_batch,
                "pace_messages_per_second": self.plan.pace_messages_per_second,
                "probes": [
                    {
                        "coalesce_us": probe.plan.coalesce_us,
                        "receive_batch": probe.plan.receive_batch,
                        "pace_messages_per_second": probe.plan.pace_messages_per_second,
                        "messages_per_second": probe.messages_per_second,
                    }
                    for probe in self.probes
                ],
            },
        }


@dataclass(frozen=True, slots=True)
class RawPingPong:
    """Result of a round-trip measurement; times in microseconds."""

    plan: PingPongPlan
    samples: int
    lost: int
    round_trips_per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    min_us: float
    max_us: float
    client_cpu_seconds: float
    server_cpu_seconds: float

    def as_result(self) -> dict[str, Any]:
        """One entry of the `results` of `umstack bench --json`; the client counts as the publisher."""
        return {
            "what": self.plan.what,
            **_link_of(self.plan.what),
            "size": self.plan.message_bytes,
            "lost": self.lost,
            "cpu_seconds": {"publisher": self.client_cpu_seconds, "subscriber": self.server_cpu_seconds},
            "wait": self.plan.wait,
            "loop": "core",
            "round_trip_us": {"p50": self.p50_us, "p99": self.p99_us, "p999": self.p999_us},
            "detail": {
                "samples": self.samples,
                "round_trips_per_second": self.round_trips_per_second,
                "min_us": self.min_us,
                "max_us": self.max_us,
                "cast": "multicast" if self.plan.to_server_group else "unicast",
            },
        }


def _link_of(what: Subject) -> dict[str, str]:
    return {"link": "xdp", "mode": "native"} if what == "raw-xdp" else {"link": "socket", "mode": "socket"}


# Arguments of the child processes. A spec is passed on the child's command line.


@dataclass(frozen=True, slots=True)
class SendSpec:
    """The sending end of a throughput measurement."""

    interface: str
    group: str
    port: int
    message_bytes: int
    messages_per_datagram: int
    segments_per_send: int
    seconds: float
    max_messages: int
    pace_messages_per_second: int
    batch: int = 64
    buffer_bytes: int = 4 << 20
    cpu: int = ANY_CPU


@dataclass(frozen=True, slots=True)
class ReceiveSpec:
    """The receiving end of a throughput measurement."""

    interface: str
    group: str
    port: int
    message_bytes: int
    max_datagram_bytes: int
    wait: Wait
    coalesce_us: int
    gro: int
    batch: int = 64
    buffer_bytes: int = _SOCKET_BUFFER_BYTES
    first_timeout_seconds: float = _FIRST_DATAGRAM_SECONDS
    idle_timeout_seconds: float = _IDLE_SECONDS
    cpu: int = ANY_CPU


@dataclass(frozen=True, slots=True)
class EndSpec:
    """Arguments of both ends of a ping-pong."""

    interface: str
    listen: str
    listen_port: int
    peer: str
    peer_port: int
    message_bytes: int
    wait: Wait
    timeout_seconds: float
    cpu: int


@dataclass(frozen=True, slots=True)
class PingSpec(EndSpec):
    """The client of a ping-pong."""

    samples: int
    warmup: int
    seconds: float


Spec = SendSpec | ReceiveSpec | EndSpec | PingSpec
S = TypeVar("S", SendSpec, ReceiveSpec, EndSpec, PingSpec)


def send_spec(plan: ThroughputPlan, interface: str) -> SendSpec:
    """Return the sender's part of the plan. Super-datagrams are already batches, so a call sends fewer of them."""
    return SendSpec(
        interface=interface,
        group=plan.group,
        port=plan.port,
        message_bytes=plan.message_bytes,
        messages_per_datagram=plan.messages_per_datagram,
        segments_per_send=plan.segments_per_send,
        seconds=plan.seconds,
        max_messages=plan.max_messages,
        pace_messages_per_second=plan.pace_messages_per_second,
        batch=4 if plan.segments_per_send > 1 else 64,
        cpu=plan.sender_cpu,
    )


def receive_spec(plan: ThroughputPlan, interface: str) -> ReceiveSpec:
    """Return the receiver's part of the plan. Buffers for coalesced datagrams are large, so there are fewer."""
    gro = plan.what == "raw-udp-gso"
    return ReceiveSpec(
        interface=interface,
        group=plan.group,
        port=plan.port,
        message_bytes=plan.message_bytes,
        max_datagram_bytes=plan.message_bytes * plan.messages_per_datagram,
        wait=plan.wait,
        coalesce_us=plan.coalesce_us,
        gro=int(gro),
        batch=plan.receive_batch or (16 if gro else 64),
        cpu=plan.receiver_cpu,
    )


def measure_throughput(sender: Host, receiver: Host, plan: ThroughputPlan) -> RawThroughput:
    """Carry out one measurement between two hosts."""
    limit = plan.seconds + CHILD_SLACK_SECONDS
    module = _module(plan.what)
    with _child(receiver, module, "receive", receive_spec(plan, receiver.address)) as receiving:
        ready = receiving.receive(_FIRST_DATAGRAM_SECONDS)
        with _child(sender, module, "send", send_spec(plan, sender.address)) as sending:
            sent = sending.receive(limit)
        received = receiving.receive(limit)
    # The first batch had arrived when the clock started; the rest arrived while it ran.
    span = (received["last_ns"] - received["first_ns"]) / _NS
    counted = received["message_count"] - received["first_batch_message_count"]
    rate = counted / span if span > 0 else 0.0
    unique = received["message_count"] - received["duplicate_count"]
    datagrams_per_message = received["datagram_count"] / max(1, received["message_count"])
    return RawThroughput(
        plan=plan,
        messages_per_second=rate,
        datagrams_per_second=rate * datagrams_per_message,
        sent_messages_per_second=sent["message_count"] * _NS / max(1, sent["elapsed_ns"]),
        sent_messages=sent["message_count"],
        received_messages=received["message_count"],
        lost=sent["message_count"] - unique,
        out_of_order=received["out_of_order_count"],
        duplicates=received["duplicate_count"],
        malformed=received["malformed_count"],
        socket_drops=received["socket_drop_count"],
        publisher_cpu_seconds=sent["cpu_ns"] / _NS,
        subscriber_cpu_seconds=received["cpu_ns"] / _NS,
        receive_buffer_bytes=ready["buffer_bytes"],
    )


def variants(plan: ThroughputPlan) -> list[ThroughputPlan]:
    """Return the ways in which the receiver can carry out the plan. None of them is always the best."""
    batches = _GRO_BATCH_CANDIDATES if plan.what == "raw-udp-gso" else (0,)
    found = [dataclasses.replace(plan, receive_batch=batch) for batch in batches]
    if plan.wait == "block":
        found += [dataclasses.replace(found[-1], coalesce_us=us) for us in _COALESCE_CANDIDATES_US]
    return found


def measure_strongest(
    sender: Host, receiver: Host, plan: ThroughputPlan, probe_seconds: float = PROBE_SECONDS
) -> RawThroughput:
    """Find the baseline's best way by short probes, then measure it that way for the plan's whole time.

    The probes vary how the receiver reads datagrams and, if datagrams are lost, throttle the sender to about the rate
    that arrived. A sender on rings cannot be throttled. The reported figure is that of the long run, not of the
    luckiest probe.
    """
    candidates = variants(dataclasses.replace(plan, seconds=probe_seconds))
    probes = [measure_throughput(sender, receiver, candidate) for candidate in candidates]
    best = max(probes, key=lambda probe: probe.messages_per_second)
    if plan.what != "raw-xdp" and best.lost > _LOSS_WORTH_PACING * best.sent_messages:
        for factor in _PACE_FACTORS:
            pace = int(best.messages_per_second * factor)
            paced = dataclasses.replace(best.plan, pace_messages_per_second=pace)
            probes.append(measure_throughput(sender, receiver, paced))
    best = max(probes, key=lambda probe: probe.messages_per_second)
    final = measure_throughput(sender, receiver, dataclasses.replace(best.plan, seconds=plan.seconds))
    return dataclasses.replace(final, probes=tuple(probes))


def measure_ping_pong(client: Host, server: Host, plan: PingPongPlan) -> RawPingPong:
    """Carry out one round-trip measurement between two hosts."""
    if bool(plan.to_server_group) != bool(plan.to_client_group):
        raise BenchError("a ping-pong needs a group for each direction", hint="give both or neither")
    limit = plan.seconds + CHILD_SLACK_SECONDS
    # The client has a separate port, so that both ends can be on one machine.
    serve = EndSpec(
        interface=server.address,
        listen=plan.to_server_group or server.address,
        listen_port=plan.port,
        peer=plan.to_client_group or client.address,
        peer_port=plan.port + 1,
        message_bytes=plan.message_bytes,
        wait=plan.wait,
        timeout_seconds=_FIRST_DATAGRAM_SECONDS,
        cpu=plan.server_cpu,
    )
    ask = PingSpec(
        interface=client.address,
        listen=serve.peer,
        listen_port=serve.peer_port,
        peer=serve.listen,
        peer_port=serve.listen_port,
        message_bytes=plan.message_bytes,
        wait=plan.wait,
        timeout_seconds=_IDLE_SECONDS,
        cpu=plan.client_cpu,
        samples=plan.samples,
        warmup=plan.warmup,
        seconds=plan.seconds,
    )
    module = _module(plan.what)
    with _child(server, module, "echo", serve) as serving:
        serving.receive(_FIRST_DATAGRAM_SECONDS)
        with _child(client, module, "ping", ask) as asking:
            found = asking.receive(limit)
        echoed = serving.receive(limit)
    return RawPingPong(
        plan=plan,
        samples=found["sample_count"],
        lost=found["lost_count"],
        round_trips_per_second=found["sample_count"] * _NS / max(1, found["elapsed_ns"]),
        client_cpu_seconds=found["cpu_ns"] / _NS,
        server_cpu_seconds=echoed["cpu_ns"] / _NS,
        **found["round_trip_us"],
    )


def _module(what: Subject) -> str:
    return "umstack.bench.raw_xdp" if what == "raw-xdp" else __spec__.name


def _child(host: Host, module: str, role: str, spec: Spec) -> AbstractContextManager[Child]:
    return running(host, module, [role, *to_arguments(spec)])


def to_arguments(spec: Spec) -> list[str]:
    """Return the command line from which `from_arguments` restores the same spec."""
    arguments = []
    for item in dataclasses.fields(spec):
        arguments += [f"--{item.name.replace('_', '-')}", str(getattr(spec, item.name))]
    return arguments


def from_arguments(kind: type[S], namespace: argparse.Namespace) -> S:
    """Parse a spec from the command line."""
    return kind(**{item.name: getattr(namespace, item.name) for item in dataclasses.fields(kind)})


# The child's side.


def ip(address: str) -> int:
    """Convert an address for C."""
    return int(ipaddress.IPv4Address(address))


def ns(seconds: float) -> int:
    """Convert seconds for C."""
    return int(seconds * _NS)


def wait_mode(wait: Wait, coalesce_us: int = 0) -> int:
    """Return the C constant of the way to wait."""
    if wait == "busy":
        return int(lib.UM_RAW_WAIT_BUSY)
    return int(lib.UM_RAW_WAIT_COALESCE if coalesce_us > 0 else lib.UM_RAW_WAIT_BLOCK)


def check(result: int, doing: str) -> int:
    """Return the result, or raise its error."""
    if result == -errno.ETIMEDOUT:
        hint = "see that both hosts are up, have a multicast route and reach each other (`ping`)"
        raise LinkError(f"{doing}: nothing arrived", hint=hint, errno=errno.ETIMEDOUT)
    if result < 0:
        raise error_from_result(result, doing)
    return result


def report(found: dict[str, Any]) -> None:
    """Print the child's result as one JSON line."""
    print(json.dumps(found), flush=True)


def fields_of(binding: Any, struct: Any) -> dict[str, Any]:
    """Return a result struct of C as a dict of its fields. `binding` is the struct's ffi."""
    return {name: getattr(struct, name) for name, _ in binding.typeof(struct).item.fields}


@contextmanager
def _socket(fd: int, doing: str) -> Iterator[int]:
    check(fd, doing)
    try:
        yield fd
    finally:
        os.close(fd)


def send_config(binding: Any, spec: SendSpec) -> Any:
    """Return the arguments of the sending end in C."""
    return binding.new(
        "um_raw_send_config *",
        {
            "group_ip": ip(spec.group),
            "group_port": spec.port,
            "message_bytes": spec.message_bytes,
            "messages_per_datagram_count": spec.messages_per_datagram,
            "segments_per_send_count": spec.segments_per_send,
            "batch_count": spec.batch,
            "duration_ns": ns(spec.seconds),
            "max_message_count": spec.max_messages,
            "pace_messages_per_second": spec.pace_messages_per_second,
        },
    )


def _send(spec: SendSpec) -> None:
    config, result = send_config(ffi, spec), ffi.new("um_raw_send_result *")
    datagram_bytes = spec.message_bytes * spec.messages_per_datagram
    segment_bytes = datagram_bytes if spec.segments_per_send > 1 else 0
    opened = lib.um_raw_open_sender(ip(spec.interface), segment_bytes, spec.buffer_bytes)
    with _socket(opened, f"opening a sender on {spec.interface}") as fd:
        check(lib.um_raw_send(fd, config, result), f"sending to {spec.group}:{spec.port}")
    report(fields_of(ffi, result))


def receive_config(binding: Any, spec: ReceiveSpec) -> Any:
    """Return the arguments of the receiving end in C."""
    return binding.new(
        "um_raw_receive_config *",
        {
            "message_bytes": spec.message_bytes,
            "max_datagram_bytes": spec.max_datagram_bytes,
            "batch_count": spec.batch,
            "wait": wait_mode(spec.wait, spec.coalesce_us),
            "gro": bool(spec.gro),
            "coalesce_ns": spec.coalesce_us * 1000,
            "first_timeout_ns": ns(spec.first_timeout_seconds),
            "idle_timeout_ns": ns(spec.idle_timeout_seconds),
        },
    )


def _receive(spec: ReceiveSpec) -> None:
    config, result = receive_config(ffi, spec), ffi.new("um_raw_receive_result *")
    doing = f"receiving {spec.group}:{spec.port} on {spec.interface}"
    opened = lib.um_raw_open_receiver(
        ip(spec.interface), ip(spec.group), spec.port, bool(spec.gro), spec.buffer_bytes
    )
    with _socket(opened, doing) as fd:
        report({"ready": True, "buffer_bytes": check(lib.um_raw_buffer_bytes(fd, True), doing)})
        check(lib.um_raw_receive(fd, config, result), doing)
    report(fields_of(ffi, result))


def end_config(binding: Any, spec: EndSpec | PingSpec) -> Any:
    """Return the arguments of a ping-pong end in C."""
    return binding.new(
        "um_raw_pingpong_config *",
        {
            "interface_ip": ip(spec.interface),
            "listen_ip": ip(spec.listen),
            "listen_port": spec.listen_port,
            "peer_ip": ip(spec.peer),
            "peer_port": spec.peer_port,
            "message_bytes": spec.message_bytes,
            "wait": wait_mode(spec.wait),
            "timeout_ns": ns(spec.timeout_seconds),
        },
    )


def _echo(spec: EndSpec) -> None:
    config = end_config(ffi, spec)
    result = ffi.new("um_raw_echo_result *")
    doing = f"answering on {spec.listen}:{spec.listen_port}"
    with _socket(lib.um_raw_open_pingpong(config), doing) as fd:
        report({"ready": True})
        check(lib.um_raw_echo(fd, config, result), doing)
    report(fields_of(ffi, result))


def percentiles_us(samples_ns: np.ndarray[Any, np.dtype[np.uint64]]) -> dict[str, float]:
    """Return the reported figures of a round trip in microseconds."""
    p50, p99, p999 = np.percentile(samples_ns, (50, 99, 99.9)) / 1000
    return {
        "p50_us": float(p50),
        "p99_us": float(p99),
        "p999_us": float(p999),
        "min_us": float(samples_ns.min()) / 1000,
        "max_us": float(samples_ns.max()) / 1000,
    }


def _ping(spec: PingSpec) -> None:
    config = end_config(ffi, spec)
    result = ffi.new("um_raw_ping_result *")
    samples = np.zeros(spec.samples, dtype=np.uint64)
    doing = f"sending to {spec.peer}:{spec.peer_port}"
    with _socket(lib.um_raw_open_pingpong(config), doing) as fd:
        buffer = ffi.from_buffer("uint64_t[]", samples, require_writable=True)
        asked = lib.um_raw_ping(fd, config, spec.warmup, spec.samples, ns(spec.seconds), buffer, result)
        check(asked, doing)
    if result.sample_count == 0:
        raise LinkError(f"{doing}: no datagram came back", hint="measure for longer, or for more samples")
    report({**fields_of(ffi, result), "round_trip_us": percentiles_us(samples[: result.sample_count])})


def _add_arguments(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    hints = get_type_hints(kind)
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        choices = get_args(hint) or None
        required = item.default is dataclasses.MISSING
        parser.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=str if choices else hint,
            choices=choices,
            required=required,
            default=None if required else item.default,
        )


SPECS: dict[str, type[Any]] = {
    "send": SendSpec,
    "receive": ReceiveSpec,
    "echo": EndSpec,
    "ping": PingSpec,
}


def run_end(module: str, ends: Mapping[str, Callable[[Any], None]], arguments: Sequence[str] | None) -> int:
    """Run the end of a measurement that the command line selects."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    for role, kind in SPECS.items():
        _add_arguments(roles.add_parser(role, help=kind.__doc__), kind)
    parsed = parser.parse_args(arguments)
    if parsed.cpu != ANY_CPU:
        os.sched_setaffinity(0, {parsed.cpu})
    try:
        ends[parsed.role](from_arguments(SPECS[parsed.role], parsed))
    except (UmError, XdpError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one end of a measurement over kernel sockets."""
    ends: dict[str, Callable[[Any], None]] = {
        "send": _send,
        "receive": _receive,
        "echo": _echo,
        "ping": _ping,
    }
    return run_end("umstack.bench.raw", ends, arguments)


if __name__ == "__main__":
    sys.exit(main())

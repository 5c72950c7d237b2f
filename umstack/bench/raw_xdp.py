"""Raw AF_XDP baselines for the stack's figures over rings, measured in the same run.

This is the child's side of `raw-xdp` in `umstack.bench.raw`, with the same roles, specs and results, over the rings of
one queue in native copy mode and with the stack's steering program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import umstack_xdp as xdp
from umstack.bench import raw
from umstack.errors import LinkError
from umstack_xdp.xsk import binding

_SETTINGS = xdp.RingSettings(queues=1)


@contextmanager
def _port(interface: str, group: str, port: int) -> Iterator[xdp.RingSet]:
    """Open rings on the interface of that address. If a group is given, join it and steer it to the rings."""
    found = xdp.find_interface(interface)
    with (
        xdp.Steering.attach(found, xdp.AttachMode.NATIVE, max_slots=1) as steering,
        xdp.RingSet(found, xdp.RingMode.COPY, _SETTINGS) as rings,
        xdp.GroupMemberships(found) as memberships,
    ):
        for queue, fd in rings.sockets.items():
            steering.put_socket(0, queue, fd)
        if group:
            steering.add_rule(group, port, 0)
            memberships.join(group)
        yield rings
        steering.close()


def _send(spec: raw.SendSpec) -> None:
    ffi, lib = binding().ffi, binding().lib
    config, result = raw.send_config(ffi, spec), ffi.new("um_raw_send_result *")
    with _port(spec.interface, "", 0) as rings:
        sent = lib.um_xsk_raw_send(rings.handle, raw.ip(spec.interface), config, result)
        raw.check(sent, f"sending to {spec.group}:{spec.port}")
    raw.report(raw.fields_of(ffi, result))


def _receive(spec: raw.ReceiveSpec) -> None:
    ffi, lib = binding().ffi, binding().lib
    config, result = raw.receive_config(ffi, spec), ffi.new("um_raw_receive_result *")
    with _port(spec.interface, spec.group, spec.port) as rings:
        raw.report({"ready": True, "buffer_bytes": rings.facts.locked_bytes})
        raw.check(lib.um_xsk_raw_receive(rings.handle, config, result), f"receiving {spec.group}:{spec.port}")
    raw.report(raw.fields_of(ffi, result))


def _echo(spec: raw.EndSpec) -> None:
    ffi, lib = binding().ffi, binding().lib
    config, result = raw.end_config(ffi, spec), ffi.new("um_raw_echo_result *")
    with _port(spec.interface, spec.listen, spec.listen_port) as rings:
        raw.report({"ready": True})
        raw.check(lib.um_xsk_raw_echo(rings.handle, config, result), f"answering on {spec.listen}")
    raw.report(raw.fields_of(ffi, result))


def _ping(spec: raw.PingSpec) -> None:
    ffi, lib = binding().ffi, binding().lib
    config, result = raw.end_config(ffi, spec), ffi.new("um_raw_ping_result *")
    samples = np.zeros(spec.samples, dtype=np.uint64)
    doing = f"sending to {spec.peer}:{spec.peer_port}"
    with _port(spec.interface, spec.listen, spec.listen_port) as rings:
        buffer = ffi.from_buffer("uint64_t[]", samples, require_writable=True)
        bounds = (spec.warmup, spec.samples, raw.ns(spec.seconds))
        raw.check(lib.um_xsk_raw_ping(rings.handle, config, *bounds, buffer, result), doing)
    if result.sample_count == 0:
        raise LinkError(f"{doing}: no datagram came back", hint="measure for longer, or for more samples")
    round_trip = raw.percentiles_us(samples[: result.sample_count])
    raw.report({**raw.fields_of(ffi, result), "round_trip_us": round_trip})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one end of a measurement over rings."""
    ends: dict[str, Callable[[Any], None]] = {
        "send": _send,
        "receive": _receive,
        "echo": _echo,
        "ping": _ping,
    }
    return raw.run_end("umstack.bench.raw_xdp", ends, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The two ends of a round trip through the stack: one sends messages, and the other sends every message back.

`python -m umstack.bench.round_trip_ends ping|echo SPEC`, the spec being a `RoundTripSpec` in JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import umstack
from umstack._sim_bench import ffi, lib
from umstack.bench.children import say
from umstack.bench.endpoint import EndSpec, await_receivers, await_sources, await_turn, run
from umstack.bench.raw import percentiles_us
from umstack.errors import LinkError, error_from_result

Wait = Literal["block", "busy"]
Loop = Literal["python", "core"]

_COUNTER_BYTES = lib.UM_ECHO_COUNTER_BYTES
_END_MESSAGE = b"end."
_SILENCE_SECONDS = 5.0
_SILENCE_NS = int(_SILENCE_SECONDS * 1e9)
_WARMUP_COUNT = 500
_LOOKS_BETWEEN_CLOCKS = 64
_REQUESTS, _REPLIES = "bench.requests", "bench.replies"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripSpec(EndSpec):
    """Arguments of both ends of a round trip."""

    size: int = 64
    wait: Wait = "block"
    loop: Loop = "python"
    seconds: float = 2.0
    samples: int = 200_000


def ping(spec: RoundTripSpec) -> None:
    """Send one message after another and record the time until each one comes back."""
    with spec.open_context() as context:
        source, receiver = context.source(_REQUESTS), context.receiver(_REPLIES)
        _meet(context, source, receiver)
        samples = np.zeros(spec.samples, dtype=np.uint64)
        measure = ping_in_core if spec.loop == "core" else _ping_in_python
        found = measure(spec, source, receiver, samples)
        count = found["samples"]
        if count == 0:
            raise LinkError("no message came back in time", hint="measure for longer, or for more samples")
        say(**found, **percentiles_us(samples[:count]), stats=context.stats())
        await_turn(context)


def echo(spec: RoundTripSpec) -> None:
    """Send every message back until the client has finished."""
    with spec.open_context() as context:
        source, receiver = context.source(_REPLIES), context.receiver(_REQUESTS)
        _meet(context, source, receiver)
        serve = serve_in_core if spec.loop == "core" else _serve_in_python
        say(**serve(spec, source, receiver), stats=context.stats())
        await_turn(context)


def _meet(context: umstack.Context, source: umstack.Source, receiver: umstack.Receiver) -> None:
    """Find the other end, and keep the protocol running until the order to start."""
    say(ready=True, transport=source.transport)
    await_turn(context)
    await_sources(context, [receiver])
    await_receivers(source, 1)
    say(met=True)
    await_turn(context)


# In Python


def _next_message(spec: RoundTripSpec, receiver: umstack.Receiver) -> bytes:
    """Return the next message, waiting as the spec requires."""
    receive = receiver.receive
    if spec.wait == "block":
        if (message := receive(_SILENCE_SECONDS)) is not None:
            return message
    else:
        deadline = time.monotonic() + _SILENCE_SECONDS
        while time.monotonic() < deadline:
            # A check that finds nothing is as cheap as reading the clock.
            for _ in range(_LOOKS_BETWEEN_CLOCKS):
                if (message := receive(0)) is not None:
                    return message
    raise LinkError(f"nothing arrived for {_SILENCE_SECONDS:.0f} s", hint="see that both hosts are up")


def _ping_in_python(
    spec: RoundTripSpec, source: umstack.Source, receiver: umstack.Receiver, samples: Any
) -> dict[str, Any]:
    clock, filler = time.perf_counter_ns, b"." * (spec.size - _COUNTER_BYTES)
    misplaced = count = 0
    start = deadline = clock()
    cpu_seconds = 0.0
    for counter in range(_WARMUP_COUNT + spec.samples):
        if counter == _WARMUP_COUNT:
            start = clock()
            deadline = start + int(spec.seconds * 1e9)
            cpu_seconds = time.process_time()
        message = counter.to_bytes(_COUNTER_BYTES, "little") + filler
        sent_ns = clock()
        if counter > _WARMUP_COUNT and sent_ns >= deadline:
            break
        source.send(message, True)
        while _next_message(spec, receiver) != message:
            misplaced += 1
        if counter >= _WARMUP_COUNT:
            samples[count] = clock() - sent_ns
            count += 1
    cpu_seconds = time.process_time() - cpu_seconds
    seconds = (clock() - start) / 1e9
    source.send(_END_MESSAGE, True)
    return {"samples": count, "misplaced": misplaced, "seconds": seconds, "cpu_seconds": cpu_seconds}


def _serve_in_python(
    spec: RoundTripSpec, source: umstack.Source, receiver: umstack.Receiver
) -> dict[str, Any]:
    count = 0
    cpu_seconds = time.process_time()
    while len(message := _next_message(spec, receiver)) != len(_END_MESSAGE):
        source.send(message, True)
        count += 1
    return {"samples": count, "cpu_seconds": time.process_time() - cpu_seconds}


# In the core: the same calls from C


def _core_arguments(
    spec: RoundTripSpec, source: umstack.Source, receiver: umstack.Receiver
) -> tuple[Any, Any, Any]:
    config = ffi.new(
        "um_echo_config *",
        {"message_bytes": spec.size, "busy": spec.wait == "busy", "timeout_ns": _SILENCE_NS},
    )
    return receiver._memory.handle, source._handle, config


def _core_result(result: Any, status: int, doing: str) -> dict[str, Any]:
    if status < 0:
        raise error_from_result(status, doing)
    return {
        "samples": result.message_count,
        "misplaced": result.misplaced_count,
        "seconds": result.elapsed_ns / 1e9,
        "cpu_seconds": result.cpu_ns / 1e9,
    }


def ping_in_core(
    spec: RoundTripSpec, source: umstack.Source, receiver: umstack.Receiver, samples: Any
) -> dict[str, Any]:
    result = ffi.new("um_echo_result *")
    buffer = ffi.from_buffer("uint64_t[]", samples, require_writable=True)
    replies, requests, config = _core_arguments(spec, source, receiver)
    duration_ns = int(spec.seconds * 1e9)
    status = lib.um_echo_ping(
        replies, requests, config, _WARMUP_COUNT, spec.samples, duration_ns, buffer, result
    )
    return _core_result(result, status, "asking for a reply")


def serve_in_core(spec: RoundTripSpec, source: umstack.Source, receiver: umstack.Receiver) -> dict[str, Any]:
    result = ffi.new("um_echo_result *")
    requests, replies, config = _core_arguments(spec, source, receiver)
    status = lib.um_echo_serve(requests, replies, config, result)
    return _core_result(result, status, "waiting for a request")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], RoundTripSpec, {"ping": ping, "echo": echo}))

"""A type checker accepts programs that use the public names and rejects names that do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import umstack
import umstack.errors

pytest.importorskip("mypy", reason="mypy is not installed")

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
from array import array
from decimal import Decimal
from typing import Any

import numpy
import umstack
import umstack_xdp as xdp

def publish(context: umstack.Context) -> None:
    try:
        context.source("orders", flow_control="min", late_join=True).send(b"data")
    except (umstack.OptionError, umstack.MessageTooLong) as error:
        print(error.hint)

print(xdp.Attachment)

def payloads(source: umstack.Source, request: umstack.Request) -> None:
    source.send(bytearray(3))
    source.send(memoryview(b"data"))
    source.send(array("d", [1.5]))
    source.send(numpy.zeros(3))
    source.send_many([b"one", bytearray(b"two")])
    source.send_packed(b"onetwo", array("i", [0, 3, 6]))
    source.send_packed(b"onetwo", numpy.array([0, 3, 6], "int32"))
    request.respond(numpy.zeros(3))

def options(**given: Any) -> None:
    with umstack.Context("lo", link="socket", mode="embedded", resolver_cache=1) as context:
        context.source("orders", transport_lbtrm_multicast_address="239.1.2.3", **given)
        context.receiver("orders", transport_lbtrm_nak_backoff_interval=Decimal("0.5"))
        context.event_queue(queue_size_warning=5, receiver_queue_block_count="8")
        context.wildcard_receiver(prefix="or", wildcard_maximum_topics=5, queue_age_enabled=1)
        context.hot_failover_receiver("orders", hf_optional_messages=0, queue_age_enabled=1)
    umstack.Config().context_options(link="socket")

async def wait() -> None:
    async with umstack.Context() as context, context.source("orders") as source:
        await source.wait_connected_async()
        print((await source.wait_drained_async(timeout=1)).is_complete)
        async with context.receiver("orders") as receiver:
            await receiver.wait_connected_async(2, timeout=1)
            names: list[str] = receiver.sources
            async for message in receiver:
                print(message.data, names)
"""

WRONG = """
import umstack
import umstack_xdp as xdp

umstack.Nonsense()
xdp.Nonsense()
try:
    pass
except umstack.OptionErorr:
    pass
"""

WRONG_CALLS = """
import umstack

def calls(context: umstack.Context, source: umstack.Source, request: umstack.Request) -> None:
    umstack.Context("lo", resolver_cach=1)
    umstack.Context("lo", flow_control="min")
    context.source("orders", flow_contrl="min")
    context.source("orders", flow_control=1)
    context.receiver("orders", late_join=1)
    context.receiver("orders", ordered_delivery=[1])
    context.receiver("orders", queue_age_enabled=1)
    context.event_queue(wildcard_maximum_topics=5)
    context.wildcard_receiver("orders", flow_control="min")
    context.hot_failover_receiver("orders", wildcard_maximum_topics=5)
    umstack.Config().source_options(nonsense=1)
    source.send("text")
    source.send(5)
    source.send_hot_failover("text", 1)
    source.request("text")
    request.respond("text")
    source.send_many([b"data", "text"])
"""


def _checked(folder: Path, program: str) -> list[str]:
    """Return the errors that mypy reports for a program, one per line."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_a_right_program_is_accepted(tmp_path: Path) -> None:
    assert _checked(tmp_path, RIGHT) == []


def test_names_that_do_not_exist_are_rejected(tmp_path: Path) -> None:
    errors = _checked(tmp_path, WRONG)
    assert [line.split(":")[1] for line in errors] == ["5", "6", "9"], errors


def test_wrong_options_and_payloads_are_rejected(tmp_path: Path) -> None:
    """Each call has an option that its scope does not have, an option of the wrong type, or a payload of no bytes."""
    first = WRONG_CALLS.splitlines().index('    umstack.Context("lo", resolver_cach=1)') + 1
    wrong = [str(line) for line in range(first, len(WRONG_CALLS.splitlines()) + 1)]
    errors = _checked(tmp_path, WRONG_CALLS)
    assert sorted({line.split(":")[1] for line in errors if ": error:" in line}, key=int) == wrong, errors


def test_every_error_class_is_exported() -> None:
    classes = {name for name, one in vars(umstack.errors).items() if isinstance(one, type)}
    errors = {name for name in classes if issubclass(getattr(umstack.errors, name), umstack.UmError)}
    assert len(errors) > 20
    for name in errors:
        assert name in umstack.__all__
        assert getattr(umstack, name) is getattr(umstack.errors, name)

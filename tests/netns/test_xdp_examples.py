"""The examples in the public docstrings of `umstack_xdp` run, on the interface of a host in the lab."""

from __future__ import annotations

import select
import textwrap

import pytest

import umstack_xdp as xdp
from tests.unit.test_docstrings import EXAMPLES
from umstack.lab import Lab

XDP_EXAMPLES = [name for name in EXAMPLES if name.startswith("umstack_xdp.")]


@pytest.mark.parametrize("name", XDP_EXAMPLES)
def test_the_example_runs(name: str, shared_lab: Lab) -> None:
    """`steering` is an attached program, on another host so that the example may attach one; none is left."""
    host, other = shared_lab.hosts[1], shared_lab.hosts[0]
    code = compile(textwrap.dedent(EXAMPLES[name]), f"{name}: example", "exec")

    def run() -> None:
        exec(code, {"xdp": xdp, "select": select, "steering": steering})
        assert xdp.occupants("eth0") == ()

    with other.call(lambda: xdp.Steering.attach("eth0", xdp.AttachMode.NATIVE)) as steering:
        host.call(run)

"""Filters and spread where the NIC has none: a real veth refuses, and says what to do instead (issue: ntuple / RSS)."""

from __future__ import annotations

import subprocess

import pytest

from umstack.lab import Lab
from xdp import FlowSteering, FlowSteeringUnsupportedError


def test_a_veth_has_no_filters(shared_lab: Lab) -> None:
    """Not supported is told apart from any other refusal, names the interface, and changes no feature."""
    host = shared_lab.hosts[1]

    def features() -> str:
        shown = host.run(["ethtool", "-k", "eth0"], stdout=subprocess.PIPE, text=True)
        return shown.communicate(timeout=10)[0]

    def refused(act: str) -> None:
        with FlowSteering("eth0") as steering:
            with pytest.raises(
                FlowSteeringUnsupportedError, match=r"not supported by eth0.*ethtool -L eth0 combined 1"
            ):
                steering.steer("239.77.1.2", 14400, 0) if act == "steer" else steering.spread([0])

    before = features()
    assert "ntuple-filters: off" in before
    for act in ("steer", "spread"):
        host.call(lambda act=act: refused(act))
    assert features() == before

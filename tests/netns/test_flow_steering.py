"""NIC filters and RSS on a NIC without them: a real veth refuses, with what to do instead."""

from __future__ import annotations

import ctypes
import errno
import subprocess

import pytest

from umstack.lab import Lab
from umstack_xdp import FlowSteering, FlowSteeringUnsupportedError
from umstack_xdp.flow_steering import EthtoolDevice

GET_CHANNELS = 0x3C


def test_a_veth_has_no_filters(shared_lab: Lab) -> None:
    """An unsupported feature is distinguished from other refusals, names the interface, and changes nothing."""
    host = shared_lab.hosts[1]

    def features() -> str:
        shown = host.run(["ethtool", "-k", "eth0"], stdout=subprocess.PIPE, text=True)
        return shown.communicate(timeout=10)[0]

    def refused(act: str) -> None:
        said = r"not supported by eth0.*ethtool -L eth0 combined 1"
        with FlowSteering("eth0") as steering, pytest.raises(FlowSteeringUnsupportedError, match=said):
            steering.steer("239.77.1.2", 14400, 0) if act == "steer" else steering.spread([0])

    before = features()
    assert "ntuple-filters: off" in before
    for act in ("steer", "spread"):
        host.call(lambda act=act: refused(act))
    assert features() == before


def test_requests_reach_the_driver(shared_lab: Lab) -> None:
    """A veth's answers are reported: its queues, a feature that can be changed, and one that cannot."""
    device = EthtoolDevice("eth0")

    def change_and_restore(feature: str) -> list[bool]:
        before = device.is_on(feature)
        device.switch(feature, not before)
        changed = device.is_on(feature)
        device.switch(feature, before)
        return [before, changed, device.is_on(feature)]

    def ask_for_channels() -> list[int]:
        request = (ctypes.c_uint32 * 9)(GET_CHANNELS)
        device.call((ctypes.c_char * ctypes.sizeof(request)).from_buffer(request))
        return list(request)

    host = shared_lab.hosts[1]
    before, changed, restored = host.call(lambda: change_and_restore("rx-gro"))
    assert (changed, restored) == (not before, before)
    with pytest.raises(OSError, match=r"supported") as refusal:
        host.call(lambda: device.switch("rx-ntuple-filter", True))
    assert refusal.value.errno == errno.EOPNOTSUPP
    assert host.call(ask_for_channels)[5] == 1, "one receive queue"
    with pytest.raises(OSError, match="No such device"):
        host.call(lambda: EthtoolDevice("eth9").is_on("rx-gro"))

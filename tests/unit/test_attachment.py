"""What is said of an XDP program that is in the way (issue: coexistence with another XDP program)."""

from __future__ import annotations

import pytest

from xdp import Occupant


@pytest.mark.parametrize(
    ("name", "mode", "link_id", "command"),
    [
        ("filter", "native", 7, "bpftool link detach id 7"),
        ("filter", "native", None, "ip link set dev eth1 xdpdrv off"),
        ("filter", "generic", None, "ip link set dev eth1 xdpgeneric off"),
        ("filter", "offload", None, "ip link set dev eth1 xdpoffload off"),
        ("xdp_dispatcher", "native", 7, "xdp-loader unload eth1 --all"),
    ],
)
def test_the_command_fits_how_it_was_attached(
    name: str, mode: str, link_id: int | None, command: str
) -> None:
    """A link is detached, a netlink attachment is taken off in its mode, libxdp's dispatcher is libxdp's to unload."""
    assert Occupant(3, name, mode, link_id, 0, ()).removal("eth1") == command


def test_an_occupant_is_described_by_all_that_is_known() -> None:
    """Name, id, mode, processes and user; what cannot be known is said to be so."""
    known = Occupant(3, "filter", "native", 7, 1000, ("suricata (812)", "systemd (1)"))
    assert (
        str(known) == "filter (id 3, native mode; held by suricata (812), systemd (1), loaded by user 1000)"
    )
    unknown = Occupant(4, "", "generic", None, None, ())
    assert (
        str(unknown) == "a program without a name (id 4, generic mode; held by no process that can be seen)"
    )
    dispatcher = Occupant(5, "xdp_dispatcher", "native", 9, 0, ())
    assert "libxdp's dispatcher of several programs" in str(dispatcher)

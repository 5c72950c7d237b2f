"""Messages about an XDP program that occupies an interface."""

from __future__ import annotations

import pytest

from umstack_xdp import Occupant


@pytest.mark.parametrize(
    ("name", "mode", "link_id", "removal"),
    [
        ("filter", "native", 7, "bpftool link show id 7 (as root) shows which process holds it"),
        ("filter", "native", None, "if nothing needs it any more: ip link set dev eth1 xdpdrv off"),
        ("filter", "generic", None, "if nothing needs it any more: ip link set dev eth1 xdpgeneric off"),
        ("filter", "offload", None, "if nothing needs it any more: ip link set dev eth1 xdpoffload off"),
        (
            "xdp_dispatcher",
            "native",
            7,
            "xdp-loader status eth1 lists its programs; if none is needed any more: xdp-loader unload eth1 --all",
        ),
    ],
)
def test_the_way_to_free_the_interface_fits_how_it_was_attached(
    name: str, mode: str, link_id: int | None, removal: str
) -> None:
    """A link goes with its process, a netlink attachment has a command, libxdp's dispatcher is libxdp's to unload."""
    assert Occupant(3, name, mode, link_id, 0, ()).removal("eth1") == removal


def test_a_program_of_a_running_process_is_not_taken_down() -> None:
    """If a process holds the program, its owner must end it: no command to do so is shown."""
    way = Occupant(3, "steering", "native", 7, 0, ("umstack (812)",)).removal("eth1")
    assert way == "stop umstack (812), if it is no longer needed"
    without_link = Occupant(3, "filter", "native", None, 0, ("guard (9)",)).removal("eth1")
    assert without_link == "once guard (9) no longer needs it: ip link set dev eth1 xdpdrv off"


def test_only_our_programs_are_reported_to_steer() -> None:
    """Our programs show whether they withhold groups from sockets; unnamed programs do not."""
    assert Occupant(3, "steering_linear", "native", 7, 0, ()).steers
    assert Occupant(3, "filter", "native", 7, 0, ()).steers is False
    assert Occupant(3, "", "native", None, None, (), is_known=False).steers is None


def test_an_occupant_is_described_by_all_that_is_known() -> None:
    """Name, id, mode, processes and user are shown; unknown values are marked as unknown."""
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

"""The layers of an interface (VLAN devices and bonds), read from messages as rtnetlink sends them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from tests.unit.test_ladder import BEST
from umstack_xdp import ring_place
from umstack_xdp.facts import AttachedXdp, Facts
from umstack_xdp.interface import Interface
from umstack_xdp.ladder import Mode, Verdict, chosen, decide
from umstack_xdp.ring_place import RingPlace, ring_places
from umstack_xdp.stacking import StackedDevice, nic_that_sends, nics_below, stack_of, vlans_above


def link(index: int, name: str, **attributes: Any) -> ifinfmsg:
    """Return a message that was encoded and decoded, as if it came from the kernel."""
    kind, data = attributes.pop("kind", None), attributes.pop("data", {})
    attrs = [["IFLA_IFNAME", name], *([f"IFLA_{key}", value] for key, value in attributes.items())]
    if kind is not None:
        info = [["IFLA_INFO_KIND", kind]]
        if data:
            info.append(["IFLA_INFO_DATA", {"attrs": list(data.items())}])
        attrs.append(["IFLA_LINKINFO", {"attrs": info}])
    message = ifinfmsg()
    message["index"] = index
    message["attrs"] = attrs
    message.encode()
    received = ifinfmsg(message.data)
    received.decode()
    return received


NICS = [link(1, "lo"), link(2, "eth1", MASTER=4), link(3, "eth2", MASTER=4)]
BOND = link(4, "bond0", kind="bond", data={"IFLA_BOND_MODE": 1, "IFLA_BOND_ACTIVE_SLAVE": 3})
LACP = link(4, "bond0", kind="bond", data={"IFLA_BOND_MODE": 4})
VLAN = link(5, "bond0.100", LINK=4, kind="vlan", data={"IFLA_VLAN_ID": 100, "IFLA_VLAN_PROTOCOL": 0x8100})


def test_a_vlan_of_a_bond_is_resolved_to_its_devices() -> None:
    """The result has the lower devices, their mode, and the active one."""
    vlan, bond = stack_of([*NICS, BOND, VLAN], "bond0.100")
    assert vlan == StackedDevice("bond0.100", "vlan", ("bond0",), vlan=100, vlan_protocol="802.1Q")
    assert bond == StackedDevice("bond0", "bond", ("eth1", "eth2"), mode="active-backup", active="eth2")
    assert str(vlan) == "bond0.100 is VLAN 100 (802.1Q) of bond0"
    assert str(bond) == "bond0 is a bond (active-backup) of eth1, eth2 (active)"
    (lacp,) = stack_of([*NICS, LACP], "bond0")
    assert (lacp.mode, lacp.active) == ("802.3ad", None)
    assert stack_of(NICS, "eth1") == stack_of(NICS, "none") == ()


def test_a_provider_vlan_a_team_and_a_bridge_are_named() -> None:
    """Other kinds are reported by their kind."""
    provider = link(6, "eth1.9", LINK=2, kind="vlan", data={"IFLA_VLAN_ID": 9, "IFLA_VLAN_PROTOCOL": 0x88A8})
    assert str(stack_of([*NICS, provider], "eth1.9")[0]) == "eth1.9 is VLAN 9 (802.1ad) of eth1"
    team = link(4, "team0", kind="team")
    assert str(stack_of([*NICS, team], "team0")[0]) == "team0 is a team of eth1, eth2"
    assert str(stack_of([link(4, "br0", kind="bridge")], "br0")[0]) == "br0 is a bridge of nothing here"


def test_a_lower_device_in_another_namespace_is_not_guessed() -> None:
    """An index of another namespace would mean a different device here."""
    vlan = link(5, "v100", LINK=2, LINK_NETNSID=0, kind="vlan", data={"IFLA_VLAN_ID": 100})
    (device,) = stack_of([*NICS, vlan], "v100")
    assert device.lower == ()
    assert vlans_above([*NICS, vlan], 2) == ()
    assert vlans_above([*NICS, BOND, VLAN], 4) == ("bond0.100",)


def test_a_loop_of_devices_ends() -> None:
    """Bad input: an impossible loop does not hang the caller."""
    first = link(2, "a", LINK=3, kind="macvlan")
    second = link(3, "b", LINK=2, kind="macvlan")
    assert len(stack_of([first, second], "a")) == 8


def on_eth1(number: int = 100, protocol: int = 0x8100, **data: Any) -> ifinfmsg:
    """Return a VLAN device of eth1."""
    known = {"IFLA_VLAN_ID": number, "IFLA_VLAN_PROTOCOL": protocol, **data}
    return link(6, "eth1.100", LINK=2, kind="vlan", data=known)


PLAIN = [link(1, "lo"), link(2, "eth1"), link(3, "eth2")]


def test_rings_of_a_vlan_device_are_on_its_nic() -> None:
    """They are on the lower device, unless there is more than one 802.1Q tag."""
    stack = stack_of([*PLAIN, on_eth1()], "eth1.100")
    assert nics_below(stack, "eth1.100") == ("eth1",)
    assert nics_below(stack_of(PLAIN, "eth1"), "eth1") == ("eth1",)
    provider = stack_of([*PLAIN, on_eth1(protocol=0x88A8)], "eth1.100")
    assert nics_below(provider, "eth1.100") == ()
    inner = link(7, "inner", LINK=6, kind="vlan", data={"IFLA_VLAN_ID": 7, "IFLA_VLAN_PROTOCOL": 0x8100})
    assert nics_below(stack_of([*PLAIN, on_eth1(), inner], "inner"), "inner") == ()
    away = link(6, "eth1.100", LINK=2, LINK_NETNSID=0, kind="vlan", data={"IFLA_VLAN_PROTOCOL": 0x8100})
    assert nics_below(stack_of([*PLAIN, away], "eth1.100"), "eth1.100") == ()
    macvlan = link(6, "upper0", LINK=2, kind="macvlan")
    assert nics_below(stack_of([*PLAIN, macvlan], "upper0"), "upper0") == ()


def test_the_tag_has_the_priority_that_the_kernel_would_set() -> None:
    """It is the egress map's entry for traffic without a priority; 802.1Q stores it in the three highest bits."""
    mapping = [("IFLA_VLAN_QOS_MAPPING", {"from": number, "to": to}) for number, to in ((2, 7), (0, 5))]
    (device,) = stack_of([*PLAIN, on_eth1(IFLA_VLAN_EGRESS_QOS={"attrs": mapping})], "eth1.100")
    assert (device.vlan, device.vlan_priority) == (100, 5)
    (device,) = stack_of([*PLAIN, on_eth1()], "eth1.100")
    assert device.vlan_priority == 0
    nowhere = Interface(2, "eth1", 1500, "", (), True, True, True, False)
    assert RingPlace(nowhere, nowhere, 100, 5).tag_control == 0xA064
    assert RingPlace(nowhere, nowhere, 100).tag_control == 100
    assert RingPlace(nowhere, nowhere).tag_control == 0


def of_a_vlan(**of_nic: Any) -> Facts:
    """Return the facts of a VLAN device on the best possible NIC, except for the given facts."""
    nic = replace(BEST, addresses=(), **of_nic)
    stack = stack_of([*PLAIN, on_eth1()], "eth1.100")
    return replace(BEST, interface="eth1.100", driver="802.1Q VLAN Support", stack=stack, nics=(nic,))


@pytest.mark.parametrize(
    ("of_nic", "problem", "remedy"),
    [
        ({"is_up": False}, "eth1 is down", "ip link set dev eth1 up"),
        (
            {"features": {"rx-vlan-hw-parse": True}},
            "eth1 takes VLAN tags off before a program sees them",
            "ethtool -K eth1 rx-vlan-hw-parse off",
        ),
        (
            {"attached": AttachedXdp(7, "native", "other_filter (id 7)", "detach it")},
            "there already: other_filter",
            "detach it",
        ),
    ],
)
def test_obstacles_of_a_vlan_device_are_those_of_its_nic(
    of_nic: dict[str, Any], problem: str, remedy: str
) -> None:
    """The ladder checks the NIC; each obstacle there is listed once, with its command, for every mode."""
    assert chosen(decide(of_a_vlan())) is Mode.ZERO_COPY
    steps = decide(of_a_vlan(**of_nic))
    assert chosen(steps) is Mode.SOCKET
    for step in steps[:-1]:
        (reason,) = step.reasons
        assert problem in reason.problem
        assert reason.remedy == remedy
    without_tag = replace(BEST, features={"rx-vlan-hw-parse": True})
    assert chosen(decide(without_tag)) is Mode.ZERO_COPY


def test_the_driver_of_the_nic_decides() -> None:
    """A VLAN device's own driver cannot run a program, and is not checked."""
    assert chosen(decide(of_a_vlan(driver="veth"))) is Mode.NATIVE
    assert chosen(decide(replace(of_a_vlan(), is_up=False))) is None
    assert chosen(decide(replace(of_a_vlan(), addresses=()))) is None


def member(index: int, name: str, state: int = 0, link_status: int = 0) -> ifinfmsg:
    """Return a member of bond0 as the kernel reports it. Default: active and up."""
    message = ifinfmsg()
    data = [["IFLA_BOND_SLAVE_STATE", state], ["IFLA_BOND_SLAVE_MII_STATUS", link_status]]
    info = [["IFLA_INFO_SLAVE_KIND", "bond"], ["IFLA_INFO_SLAVE_DATA", {"attrs": data}]]
    message["index"] = index
    message["attrs"] = [["IFLA_IFNAME", name], ["IFLA_MASTER", 4], ["IFLA_LINKINFO", {"attrs": info}]]
    message.encode()
    received = ifinfmsg(message.data)
    received.decode()
    return received


def bond(mode: int, **data: Any) -> ifinfmsg:
    """Return the bond of these members."""
    return link(4, "bond0", kind="bond", data={"IFLA_BOND_MODE": mode, **data})


@pytest.mark.parametrize(
    ("mode", "members", "active", "sends_by"),
    [
        (1, [member(2, "eth1"), member(3, "eth2", state=1)], 2, "eth1"),
        (1, [member(2, "eth1", state=1), member(3, "eth2")], 3, "eth2"),
        (
            1,
            [member(2, "eth1", state=1, link_status=2), member(3, "eth2", state=1, link_status=2)],
            None,
            None,
        ),
        (4, [member(2, "eth1"), member(3, "eth2")], None, "eth1"),
        (4, [member(2, "eth1", state=1), member(3, "eth2")], None, "eth2"),
        (2, [member(2, "eth1", link_status=2), member(3, "eth2")], None, "eth2"),
        (2, [member(2, "eth1", link_status=2), member(3, "eth2", link_status=2)], None, None),
    ],
)
def test_rings_of_a_bond_are_on_every_member_and_send_on_one(
    mode: int, members: list[ifinfmsg], active: int | None, sends_by: str | None
) -> None:
    """Bonds send on the active member, or on the first that is up and in the aggregator, or on none; a VLAN
    of the bond behaves alike.
    """
    data = {} if active is None else {"IFLA_BOND_ACTIVE_SLAVE": active}
    links = [link(1, "lo"), *members, bond(mode, **data), VLAN]
    for name in ("bond0", "bond0.100"):
        stack = stack_of(links, name)
        assert nics_below(stack, name) == ("eth1", "eth2")
        assert nic_that_sends(stack, name) == sends_by
    assert nic_that_sends(stack_of(links, "eth1"), "eth1") == "eth1"


def test_a_ring_place_contains_its_vlan_and_its_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bond of one NIC is a bond, which another NIC may join."""

    def of_name(name: str) -> Interface:
        return Interface(2, name, 1500, "", (), True, True, True, False)

    monkeypatch.setattr(ring_place, "find_interface", of_name)
    links = [link(1, "lo"), member(2, "eth1"), bond(1, IFLA_BOND_ACTIVE_SLAVE=2), VLAN]
    for name, vlan in (("bond0", 0), ("bond0.100", 100)):
        (place,) = ring_places(of_name(name), stack_of(links, name))
        assert place == RingPlace(of_name(name), of_name("eth1"), vlan, is_bonded=True)
    (place,) = ring_places(of_name("eth1"), stack_of(PLAIN, "eth1"))
    assert place == RingPlace(of_name("eth1"), of_name("eth1"))


@pytest.mark.parametrize("mode", [0, 3, 5, 6])
def test_other_bond_modes_have_no_rings(mode: int) -> None:
    """In round robin, broadcast and adaptive balancing the kernel copies datagrams or changes addresses."""
    stack = stack_of([link(1, "lo"), member(2, "eth1"), member(3, "eth2"), bond(mode)], "bond0")
    assert nics_below(stack, "bond0") == ()
    assert chosen(decide(replace(BEST, interface="bond0", stack=stack))) is Mode.SOCKET


@pytest.mark.parametrize("name", ["bond0", "bond0.100"])
def test_every_member_of_a_bond_must_support_rings(name: str) -> None:
    """The mode is one that all members support; a member that is itself stacked rules out every mode."""
    stack = stack_of([*NICS, BOND, VLAN], name)
    nics = tuple(replace(BEST, interface=nic, addresses=()) for nic in nics_below(stack, name))
    on_bond = replace(BEST, interface=name, driver="bonding", stack=stack, nics=nics)
    assert chosen(decide(on_bond)) is Mode.ZERO_COPY
    assert chosen(decide(replace(on_bond, nics=(nics[0], replace(nics[1], driver="veth"))))) is Mode.NATIVE
    of_macvlan = StackedDevice("eth2", "macvlan", ("eth3",))
    steps = decide(replace(on_bond, nics=(nics[0], replace(nics[1], stack=(of_macvlan,)))))
    assert chosen(steps) is Mode.SOCKET
    assert "eth2 is a macvlan of eth3: its frames come by the queues of eth3" in steps[0].reasons[0].problem


def test_rings_are_refused_where_they_would_receive_nothing() -> None:
    """Other stacked devices work over sockets, and the ladder reports why rings are impossible, even on a driver that
    declares all features."""
    macvlan = link(6, "upper0", LINK=2, kind="macvlan")
    steps = decide(replace(BEST, interface="upper0", stack=stack_of([*PLAIN, macvlan], "upper0")))
    assert chosen(steps) is Mode.SOCKET
    for step in steps[:-1]:
        assert step.verdict is Verdict.CANNOT
        assert "come by the queues of eth1" in step.reasons[0].problem
        assert "link=socket" in step.reasons[0].remedy
    assert (
        chosen(decide(replace(BEST, interface="upper0", stack=stack_of([*PLAIN, macvlan], "upper0")), "xdp"))
        is None
    )
    assert chosen(decide(replace(BEST, vlans_above=("eth1.100",)))) is Mode.ZERO_COPY

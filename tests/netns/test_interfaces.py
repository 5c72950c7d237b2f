"""Interface facts on a lab's hosts: which interface is selected, where multicast goes, and changes."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

import pytest
from pyroute2 import IPRoute

import umstack_xdp.interface as interface_module
from umstack._engine.host_identity import host_id
from umstack.lab import Lab
from umstack_xdp import (
    InterfaceWatch,
    NoMulticastRouteError,
    NoSuchInterfaceError,
    find_interface,
    interfaces,
    multicast_route,
    require_multicast_route,
)

MakeLab = Callable[..., Lab]


def test_an_interface_is_found_by_whatever_names_it(shared_lab: Lab) -> None:
    """A name, an address, a network and the default select the same interface, with its facts."""
    host = shared_lab.hosts[1]
    for wanted in ("eth0", host.address, "10.77.0.0/24", "10.0.0.0/8", None):
        found = host.call(lambda wanted=wanted: find_interface(wanted))
        assert (found.name, found.address, found.mtu_bytes) == ("eth0", host.address, 1500), wanted
        assert found.is_usable
        assert found.is_multicast
        assert not found.is_loopback
    loopback = host.call(lambda: find_interface("127.0.0.1"))
    assert loopback.is_loopback
    assert [interface.name for interface in host.call(interfaces)] == ["lo", "eth0"]


def test_a_namespace_is_a_host_of_lbtipc(shared_lab: Lab) -> None:
    """Contexts of one process in several namespaces do not find one another's control sockets."""
    first, *others = [host_id(), *(host.call(host_id) for host in shared_lab.hosts)]
    assert len({first, *others}) == 1 + len(shared_lab.hosts)
    assert [host.call(host_id) for host in shared_lab.hosts] == others
    assert host_id() == first


@pytest.mark.parametrize("wanted", ["eth9", "10.99.0.1", "10.99.0.0/16", "not/a/network"])
def test_an_interface_that_is_not_there_lists_those_that_are(shared_lab: Lab, wanted: str) -> None:
    """The error names the requested interface and the existing ones."""
    with pytest.raises(NoSuchInterfaceError) as refusal:
        shared_lab.hosts[1].call(lambda: find_interface(wanted))
    assert wanted in str(refusal.value)
    assert "eth0 (up, 10.77.0.2/24, MTU 1500)" in str(refusal.value)


def test_a_missing_multicast_route_is_an_error_with_the_command(make_lab: MakeLab) -> None:
    """If there is no route, or a route to another interface, the error has the command that fixes it."""
    host = make_lab(hosts=2).hosts[0]

    def change_route(command: str, name: str) -> None:
        with IPRoute() as route:
            route.route(command, dst="224.0.0.0/4", oif=route.link_lookup(ifname=name)[0])

    def require(name: str) -> None:
        require_multicast_route(find_interface(name), "239.1.2.3")

    host.call(lambda: require("eth0"))
    host.call(lambda: change_route("del", "eth0"))
    assert host.call(lambda: multicast_route("239.1.2.3")) is None
    with pytest.raises(NoMulticastRouteError, match=r"ip route add 224\.0\.0\.0/4 dev eth0"):
        host.call(lambda: require("eth0"))
    host.call(lambda: change_route("add", "lo"))
    assert host.call(lambda: multicast_route("239.1.2.3")) == "lo"
    with pytest.raises(
        NoMulticastRouteError, match=r"leads through lo.*ip route add 239\.1\.2\.3/32 dev eth0"
    ):
        host.call(lambda: require("eth0"))


def test_without_a_usable_interface_there_is_no_default(make_lab: MakeLab) -> None:
    """An interface that is down or has no carrier is not selected, and the error states that reason."""
    host = make_lab(hosts=2).hosts[0]
    host.unplug()
    with pytest.raises(NoSuchInterfaceError, match="eth0 \\(no carrier"):
        host.call(find_interface)
    host.link_down()
    with pytest.raises(NoSuchInterfaceError, match="eth0 \\(down"):
        host.call(find_interface)


@pytest.mark.parametrize("moment", ["_addresses", "_facts"])
def test_an_interface_that_is_renamed_meanwhile_is_found_whole(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whenever another process renames it, a reading contains it once, with its address, by its new name."""
    host = make_lab(hosts=2).hosts[0]
    read = getattr(interface_module, moment)
    names = iter(["eth7", "eth8"])

    def renamed_first(*arguments: object) -> object:
        if (name := next(names, None)) is not None:
            with IPRoute() as route:
                (index,) = (number for number, now in socket.if_nameindex() if now.startswith("eth"))
                route.link("set", index=index, state="down")
                route.link("set", index=index, ifname=name)
        return read(*arguments)

    monkeypatch.setattr(interface_module, moment, renamed_first)
    found = host.call(interfaces)
    assert [(one.name, one.address) for one in found] == [("lo", "127.0.0.1"), ("eth8", host.address)]


def test_a_watch_reports_what_changed(make_lab: MakeLab) -> None:
    """The watch's descriptor becomes readable on changes; each change is reported once, with old and new state."""
    lab = make_lab(hosts=2)
    host = lab.hosts[0]
    with host.call(lambda: InterfaceWatch("eth0")) as watch:
        assert host.call(watch.poll) is None
        host.unplug()
        assert select.select([watch], [], [], 10)[0]
        change = host.call(lambda: watch.wait(10))
        assert change is not None
        assert change.after is not None
        assert (change.before.has_carrier, change.after.has_carrier) == (True, False)
        host.plug()
        while not (watch.interface and watch.interface.has_carrier):
            assert host.call(lambda: watch.wait(10)) is not None
        lab.down()
    with pytest.raises(NoSuchInterfaceError):
        InterfaceWatch("no-such-interface")


def test_a_watch_reports_that_the_interface_is_gone(make_lab: MakeLab) -> None:
    """An interface that is removed ends the watch with a change to nothing."""
    lab = make_lab(hosts=2)
    host = lab.hosts[0]

    def remove() -> None:
        with IPRoute() as route:
            route.link("del", index=route.link_lookup(ifname="eth0")[0])

    with host.call(lambda: InterfaceWatch("eth0")) as watch:
        host.call(remove)
        while watch.interface is not None:
            change = host.call(lambda: watch.wait(10))
            assert change is not None
        assert change.after is None
        assert host.call(lambda: watch.wait(0.01)) is None

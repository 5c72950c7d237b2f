"""Tests on the interfaces that `scripts/under-kernel --nics 2` gives a machine; they exist only there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from umstack.lab import Host, namespaces
from umstack.lab.links import index_of, netlink

NICS = ("nic0", "nic1")
MISSING = [name for name in NICS if not Path("/sys/class/net", name).exists()]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> str:
    """Report why no test of this folder runs, if so."""
    return f"tests/netns/nics: no {', '.join(MISSING)}: see scripts/under-kernel --help" if MISSING else ""


@pytest.fixture(scope="session")
def nic_hosts() -> Iterator[tuple[Host, Host]]:
    """Return two hosts, each with one of the interfaces as its eth0. They end with the machine."""
    hosts = (
        Host("nic-host0", "", 0, "10.79.0.1", 24),
        Host("nic-host1", "", 1, "10.79.0.2", 24),
    )
    for host, nic in zip(hosts, NICS, strict=True):
        namespaces.create(host.namespace)
        with netlink(f"moving {nic}") as route:
            route.link("set", index=index_of(route, nic), net_ns_fd=host.namespace, ifname=host.interface)
        host.configure()
    yield hosts
    for host in hosts:
        host.end_children()
        namespaces.remove(host.namespace)

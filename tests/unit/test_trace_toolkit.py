"""Tools for building a trace: kernel headers of any version, bcc, and parsing of groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from umstack.errors import Unsupported
from umstack.trace import Group, RingReport, toolkit, tracer
from umstack.trace.toolkit import compiling_with, find_headers, load_bcc
from umstack.trace.tracer import ring_reports

NO_SUCH_RELEASE = "0.0.0-none"


def make(directory: Path, *names: str) -> None:
    """Create empty files in a directory of headers."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()


KCONFIG, AUTOCONF = "include/linux/kconfig.h", "include/generated/autoconf.h"


def test_headers_in_two_directories_are_combined(tmp_path: Path) -> None:
    """In Debian's layout the newest version is used; the common half is the source, and the other half is on
    the path.
    """
    for version in ("6.9.0-1", "6.10.0-2"):
        make(tmp_path / f"linux-headers-{version}-common", KCONFIG)
        make(tmp_path / f"linux-headers-{version}-amd64", AUTOCONF)
    found = find_headers(NO_SUCH_RELEASE, tmp_path)
    assert found.source == tmp_path / "linux-headers-6.10.0-2-common"
    assert f"-I{tmp_path}/linux-headers-6.10.0-2-amd64/include/generated/uapi" in found.include_flags


def test_headers_in_one_directory_are_found(tmp_path: Path) -> None:
    """Other layouts have everything in one directory. A directory that was never configured is skipped."""
    make(tmp_path / "linux-7.0", KCONFIG)
    make(tmp_path / "linux-headers-6.8.0-45-generic", KCONFIG, AUTOCONF)
    assert find_headers(NO_SUCH_RELEASE, tmp_path).source == tmp_path / "linux-headers-6.8.0-45-generic"


def test_missing_headers_name_the_packages(tmp_path: Path) -> None:
    """The error lists the packages to install."""
    with pytest.raises(Unsupported, match=r"apt-get install python3-bpfcc linux-headers-amd64"):
        find_headers(NO_SUCH_RELEASE, tmp_path)


def test_the_compiler_variables_are_set_only_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is restored afterwards."""
    make(tmp_path / "linux-6", KCONFIG, AUTOCONF)
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    with compiling_with(find_headers(NO_SUCH_RELEASE, tmp_path)):
        assert os.environ["BCC_KERNEL_SOURCE"] == str(tmp_path / "linux-6")
    assert "BCC_KERNEL_SOURCE" not in os.environ


def test_missing_bcc_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists the packages to install; for a broken bcc it has the reason, and no partial module stays."""
    monkeypatch.setattr(toolkit, "_imported", lambda: None)
    monkeypatch.setattr(toolkit, "DISTRIBUTION_PACKAGES", (tmp_path,))
    with pytest.raises(Unsupported, match="python3-bpfcc"):
        load_bcc()
    make(tmp_path / "bcc", "__init__.py")
    (tmp_path / "bcc/__init__.py").write_text("import no_such_module_of_bcc\n")
    with pytest.raises(Unsupported, match="no_such_module_of_bcc"):
        load_bcc()


def test_the_rings_of_running_contexts_are_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has the rings' counters that are not zero; contexts on sockets and other interfaces are omitted."""
    contexts = [
        {
            "pid": 7,
            "interface": "eth0",
            "link_counters": {"xdp_rx_dropped": 3, "xdp_tx_ring_full": 0, "sent": 9},
        },
        {"pid": 8, "interface": "eth1", "link_counters": {"xdp_rx_dropped": 1}},
        {"pid": 9, "interface": "eth0", "link_counters": {"sent": 9}},
    ]
    monkeypatch.setattr(tracer, "read_statistics", lambda _pid: contexts)
    assert ring_reports("eth0") == [RingReport(7, "eth0", {"xdp_rx_dropped": 3})]
    assert [report.pid for report in ring_reports(None)] == [7, 8]


@pytest.mark.parametrize(
    ("text", "group"),
    [("239.1.2.3", Group("239.1.2.3")), ("239.1.2.3:14400", Group("239.1.2.3", 14400))],
)
def test_groups_are_parsed(text: str, group: Group) -> None:
    """A group can be `ADDRESS` or `ADDRESS:PORT`."""
    assert Group.parse(text) == group
    assert str(group) == text


@pytest.mark.parametrize("text", ["239.1.2", "239.1.2.3:", "239.1.2.3:70000", "239.1.2.3:-1", "orders"])
def test_an_invalid_group_is_refused(text: str) -> None:
    """Anything else is a ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        Group.parse(text)

"""The mode ladder on hand-made facts (W7), and the table of drivers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from umstack.cli.doctor import shown_timestamps
from umstack_xdp.drivers import known_drivers, render_drivers_markdown
from umstack_xdp.facts import (
    AttachedXdp,
    Coalescing,
    Facts,
    HugePages,
    Irq,
    QueueCounts,
    RingSizes,
    Timestamping,
    Unknown,
)
from umstack_xdp.ladder import LADDER, Mode, Step, Verdict, Wanted, chosen, decide
from umstack_xdp.probe import kernel_version

REPOSITORY = Path(__file__).resolve().parents[2]
ALL_CAPABILITIES = frozenset({"CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF", "CAP_IPC_LOCK"})
ALL_XDP = frozenset({"basic", "redirect", "ndo-xmit", "xsk-zerocopy", "rx-sg", "ndo-xmit-sg"})
BEST = Facts(
    interface="eth1",
    index=3,
    is_up=True,
    has_carrier=True,
    is_multicast=True,
    is_loopback=False,
    addresses=("10.1.0.1/16",),
    mtu_bytes=1500,
    driver="ice",
    bus="0000:17:00.0",
    speed_mbps=100_000,
    kernel_release="6.18.1",
    kernel_version=(6, 18),
    queues=QueueCounts(rx=8, tx=8, rx_max=32, tx_max=32, combined=8, combined_max=32),
    rings=RingSizes(rx=2048, tx=2048, rx_max=8160, tx_max=8160),
    coalescing=Coalescing(8, 0, 8, 0, False, False),
    features={"rx-lro": False, "rx-gro-hw": False},
    xdp_features=ALL_XDP,
    rx_metadata_features=frozenset(),
    xsk_features=frozenset(),
    timestamping=Timestamping(0, receives=True, sends=True),
    zero_copy_max_segments=8,
    attached=None,
    irqs=(Irq(60, "ice-eth1-TxRx-0", "0"),),
    numa_node=0,
    napi_defer_hard_irqs=2,
    gro_flush_timeout_ns=200_000,
    napi=(),
    busy_poll_us=0,
    busy_read_us=0,
    unprivileged_bpf_disabled=2,
    huge_pages=HugePages(2 << 20, 64, 64),
    capabilities=ALL_CAPABILITIES,
    memlock_limit_bytes=None,
    missing_parts=(),
)
UNKNOWN = Unknown("not asked")
OCCUPANT = AttachedXdp(77, "native", "other_filter (id 77, native mode)", "bpftool link detach id 5")
VETH = replace(
    BEST,
    driver="veth",
    bus=UNKNOWN,
    xdp_features=ALL_XDP - {"xsk-zerocopy"},
    zero_copy_max_segments=UNKNOWN,
)
LOOPBACK = replace(
    BEST, interface="lo", driver="loopback", is_loopback=True, is_multicast=False, xdp_features=frozenset()
)

Z, N, G, S = Mode.ZERO_COPY, Mode.NATIVE, Mode.GENERIC, Mode.SOCKET


def step(steps: list[Step], mode: Mode) -> Step:
    """The step of one mode."""
    return next(step for step in steps if step.mode is mode)


@pytest.mark.parametrize(
    ("facts", "mode", "blocked", "problem", "remedy"),
    [
        (BEST, Z, None, "", ""),
        (VETH, N, Z, "veth is not on the allow-list of zero-copy", "docs/drivers.md"),
        (LOOPBACK, S, N, "loopback declares no XDP basic and redirect", "docs/drivers.md"),
        (LOOPBACK, S, G, "past the kernel, which is where loopback ends", "use link=socket"),
        (
            replace(BEST, driver="mystery", xdp_features=UNKNOWN),
            G,
            N,
            "mystery is not known",
            "docs/drivers.md",
        ),
        (replace(BEST, driver="mystery"), N, Z, "not on the allow-list", "docs/drivers.md"),
        (replace(BEST, driver=UNKNOWN, xdp_features=UNKNOWN), G, N, "its driver is not known", "drivers.md"),
        (replace(BEST, xdp_features=ALL_XDP - {"xsk-zerocopy"}), N, Z, "declares no zero-copy", "firmware"),
        (replace(BEST, xdp_features=ALL_XDP - {"redirect"}), G, N, "declares no XDP redirect", "drivers.md"),
        (
            replace(BEST, driver="gve", xdp_features=UNKNOWN, kernel_version=(6, 1), kernel_release="6.1.9"),
            G,
            N,
            "XDP in gve needs Linux 6.4, this is 6.1.9",
            "newer kernel",
        ),
        (
            replace(BEST, driver="igb", kernel_version=(6, 12), kernel_release="6.12.0"),
            N,
            Z,
            "zero-copy in igb needs Linux 6.14",
            "newer kernel",
        ),
        (replace(BEST, kernel_version=(5, 10)), S, G, "the bypass needs Linux 5.15", "newer kernel"),
        (
            replace(BEST, capabilities=frozenset()),
            S,
            G,
            "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF",
            "setcap cap_net_raw,cap_net_admin,cap_bpf",
        ),
        (
            replace(BEST, capabilities=frozenset({"CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"})),
            Z,
            None,
            "",
            "",
        ),
        (
            replace(
                BEST, capabilities=ALL_CAPABILITIES - {"CAP_IPC_LOCK"}, memlock_limit_bytes=8 * 1024 * 1024
            ),
            S,
            G,
            "need 201326592 bytes of locked memory, the limit is 8388608",
            "ulimit -l unlimited",
        ),
        (replace(BEST, memlock_limit_bytes=65536), Z, None, "", ""),
        (
            replace(BEST, missing_parts=("the AF_XDP rings are not built; apt-get install libxdp-dev",)),
            S,
            G,
            "the AF_XDP rings are not built",
            "apt-get install libxdp-dev",
        ),
        (replace(BEST, attached=OCCUPANT), S, G, "there already: other_filter (id 77", "link detach id 5"),
        (
            replace(BEST, driver="mlx5_core", features={"rx-lro": True, "rx-gro-hw": False}),
            G,
            N,
            "mlx5_core takes no XDP program while rx-lro is on",
            "ethtool -K eth1 rx-lro off",
        ),
        (replace(BEST, features={"rx-lro": True, "rx-gro-hw": True}), Z, None, "", ""),
        (replace(BEST, mtu_bytes=9000), Z, None, "", ""),
        (
            replace(BEST, mtu_bytes=9000, zero_copy_max_segments=1),
            N,
            Z,
            "MTU 9000 takes 3 buffers: the driver's zero-copy takes 1",
            "ip link set dev eth1 mtu 3818",
        ),
        (
            replace(BEST, mtu_bytes=9000, xdp_features=ALL_XDP - {"rx-sg"}),
            G,
            N,
            "declares no rx-sg",
            "mtu 3818",
        ),
        (
            replace(BEST, mtu_bytes=9000, kernel_version=(6, 1)),
            S,
            G,
            "more than one since Linux 6.9",
            "mtu 3818",
        ),
        (replace(BEST, mtu_bytes=3818, kernel_version=(6, 1), zero_copy_max_segments=1), Z, None, "", ""),
        (replace(BEST, is_up=False), None, S, "eth1 is down", "ip link set dev eth1 up"),
        (replace(BEST, addresses=()), None, S, "has no IPv4 address", "ip address add"),
        (replace(BEST, is_multicast=False), None, S, "does no multicast", "multicast on"),
    ],
)
def test_the_mode_follows_from_the_facts(
    facts: Facts, mode: Mode | None, blocked: Mode | None, problem: str, remedy: str
) -> None:
    """Each fact leads to its mode, and the report gives the reason a mode is ruled out and how to change it."""
    steps = decide(facts)
    assert chosen(steps) is mode
    assert [step.mode for step in steps] == list(Mode)
    if blocked is None:
        return
    refused = step(steps, blocked)
    assert refused.verdict is Verdict.CANNOT
    assert any(problem in reason.problem and remedy in reason.remedy for reason in refused.reasons), (
        refused.reasons
    )


@pytest.mark.parametrize("wanted", list(Wanted))
def test_a_forced_mode_is_that_mode_or_none(wanted: Wanted) -> None:
    """On a capable host, each requested mode is used; other modes are marked as not tried."""
    steps = decide(BEST, wanted)
    expected = {Wanted.AUTO: Z, Wanted.XDP: Z}.get(wanted) or Mode(wanted.value)
    assert chosen(steps) is expected
    assert all(step.verdict is Verdict.NOT_TRIED for step in steps if step.mode is not expected)


def test_a_forced_mode_fails_with_what_is_missing() -> None:
    """Zero-copy on a veth, and the bypass without privileges, are refused with the reason; nothing else is used."""
    for facts, wanted, mode in (
        (VETH, "zero-copy", Z),
        (replace(BEST, capabilities=frozenset()), "xdp", G),
        (replace(VETH, capabilities=frozenset()), "native", N),
    ):
        steps = decide(facts, wanted)
        assert chosen(steps) is None
        assert step(steps, mode).reasons
        assert step(steps, S).verdict is Verdict.NOT_TRIED


def test_rings_of_another_size_need_other_limits() -> None:
    """The locked memory is held against the rings that will be opened."""
    facts = replace(BEST, capabilities=ALL_CAPABILITIES - {"CAP_IPC_LOCK"}, memlock_limit_bytes=1 << 20)
    assert chosen(decide(facts, ring_bytes=1 << 20)) is Z
    assert chosen(decide(facts, ring_bytes=(1 << 20) + 1)) is S


def test_the_ladder_goes_from_the_best_to_the_surest() -> None:
    """W7: zero-copy, native, generic, socket; a rung needs all that the next one down needs, the program aside."""
    assert [rung.mode for rung in LADDER] == [Z, N, G, S]
    for better, worse in ((0, 1), (1, 3), (2, 3)):
        assert set(LADDER[worse].of_interface) <= set(LADDER[better].of_interface)
        assert set(LADDER[worse].of_nic) <= set(LADDER[better].of_nic)


def test_facts_are_json() -> None:
    """Facts survive JSON; unknown facts keep their reason."""
    read = json.loads(json.dumps(replace(BEST, attached=OCCUPANT, bus=UNKNOWN).to_json()))
    assert read["bus"] == {"unknown": "not asked"}
    assert read["attached"] == asdict(OCCUPANT)
    assert read["xdp_features"] == sorted(ALL_XDP)
    assert read["queues"]["rx_max"] == 32


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.1.0-13-amd64", (6, 1)), ("6.18.44", (6, 18)), ("5.15-rc3", (5, 15)), ("7.0+", (7, 0))],
)
def test_kernel_releases_are_read(release: str, version: tuple[int, int]) -> None:
    """Distributions decorate the release; the first two numbers are the version."""
    assert kernel_version(release) == version


def test_the_driver_table_is_consistent() -> None:
    """Zero-copy is never older than XDP in the driver; the table is in order; what must be off is an offload."""
    drivers = known_drivers()
    assert {"ixgbe", "i40e", "ice", "igc", "mlx5_core", "stmmac", "virtio_net", "veth"} <= drivers.keys()
    for driver in drivers.values():
        assert driver.native is not None
        assert driver.zero_copy is None or driver.zero_copy >= driver.native
        assert set(driver.needs_off) <= {"rx-lro", "rx-gro-hw"}
        assert driver.expect.endswith(".")
        assert driver.native_commit is None or re.fullmatch("[0-9a-f]{12}", driver.native_commit)
    assert sum(driver.native_commit is not None for driver in drivers.values()) >= 20


def test_the_driver_page_is_up_to_date() -> None:
    """docs/drivers.md is what `python -m umstack_xdp.drivers` prints."""
    page = (REPOSITORY / "docs/drivers.md").read_text()
    assert page == render_drivers_markdown(), "run: python -m umstack_xdp.drivers > docs/drivers.md"
    made = subprocess.run(
        [sys.executable, "-m", "umstack_xdp.drivers"], capture_output=True, text=True, check=True
    )
    assert made.stdout == page


@pytest.mark.parametrize(
    ("changes", "received", "sent"),
    [
        (
            {},
            "by the NIC over rings: no, its driver does not provide them",
            "no, the NIC does not support it over rings",
        ),
        (
            {
                "rx_metadata_features": frozenset({"timestamp", "hash"}),
                "xsk_features": frozenset({"tx-timestamp"}),
            },
            "yes (link_xdp_nic_timestamps), by the clock /dev/ptp0",
            "supported by the NIC, not used yet",
        ),
        (
            {
                "rx_metadata_features": frozenset({"timestamp"}),
                "timestamping": Timestamping(None, False, False),
            },
            "its driver supports the call, but has no clock for it",
            "no, the NIC does not support it over rings",
        ),
        (
            {"rx_metadata_features": UNKNOWN, "xsk_features": UNKNOWN},
            "unknown (not asked)",
            "sent: unknown (not asked)",
        ),
    ],
)
def test_the_doctor_reports_available_timestamps(changes: dict[str, Any], received: str, sent: str) -> None:
    """Features that the NIC's driver has or lacks, as the kernel reports them; unknown ones stay unknown."""
    said = shown_timestamps(replace(BEST, **changes))
    assert said.startswith("received: by the kernel; ")
    assert received in said
    assert sent in said

"""The opener of the link on hand-made facts (W7): modes not tried, modes tried in order, and the reports."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import umstack_xdp as xdp
from tests.unit.loopback import configuration_file
from tests.unit.test_ladder import ALL_CAPABILITIES, BEST, OCCUPANT, VETH
from umstack import Context, GenericModeWarning
from umstack._engine.link import DataLink, OpenedRings
from umstack._engine.ring_link import walk_down
from umstack.errors import PermissionNeeded, UmError, Unsupported
from umstack_xdp.facts import Facts
from umstack_xdp.interface import Interface
from umstack_xdp.ladder import Mode, decide

Z, N, G, S = Mode.ZERO_COPY, Mode.NATIVE, Mode.GENERIC, Mode.SOCKET
NO_PRIVILEGE = replace(BEST, capabilities=frozenset({"CAP_NET_RAW", "CAP_NET_ADMIN"}))
LITTLE_MEMORY = replace(BEST, capabilities=ALL_CAPABILITIES - {"CAP_IPC_LOCK"}, memlock_limit_bytes=1 << 16)
ETH1 = Interface(
    index=3,
    name="eth1",
    mac="02:00:00:00:00:01",
    mtu_bytes=1500,
    is_up=True,
    has_carrier=True,
    is_multicast=True,
    is_loopback=False,
    addresses=(),
)


class Kernel:
    """One that refuses these modes, each with its errno; it notes which were tried."""

    def __init__(self, refusals: Mapping[Mode, int]) -> None:
        """Nothing has been tried yet."""
        self.refusals, self.tried = refusals, list[Mode]()

    def open(self, mode: Mode) -> list[OpenedRings]:
        """Refuse, or return a useless object."""
        self.tried.append(mode)
        if number := self.refusals.get(mode):
            raise xdp.RingError(f"{mode} refused", hint=f"do without {mode}", errno=number, step="bind")
        ring_set = SimpleNamespace(place=xdp.RingPlace(ETH1, ETH1))
        return [OpenedRings(cast(Any, object()), cast(Any, ring_set))]


def walked(facts: Facts, wanted: str, refusals: Mapping[Mode, int] | None = None) -> tuple[DataLink, Kernel]:
    """The link that comes of it, and what was tried on the way."""
    kernel = Kernel(refusals or {})
    return walk_down(wanted, ETH1, decide(facts, wanted), kernel.open), kernel


@pytest.mark.parametrize(
    ("facts", "wanted", "refusals", "tried", "steps"),
    [
        (BEST, "auto", {}, [Z], [(Z, True, 0)]),
        (VETH, "auto", {}, [N], [(Z, False, 0), (N, True, 0)]),
        (VETH, "xdp", {}, [N], [(Z, False, 0), (N, True, 0)]),
        (
            BEST,
            "auto",
            {Z: errno.EOPNOTSUPP, N: errno.EBUSY},
            [Z, N, G],
            [(Z, True, errno.EOPNOTSUPP), (N, True, errno.EBUSY), (G, True, 0)],
        ),
        (
            VETH,
            "auto",
            {N: errno.EINVAL, G: errno.ENOBUFS},
            [N, G],
            [(Z, False, 0), (N, True, errno.EINVAL), (G, True, errno.ENOBUFS), (S, True, 0)],
        ),
        (NO_PRIVILEGE, "auto", {}, [], [(Z, False, 0), (N, False, 0), (G, False, 0), (S, True, 0)]),
        (BEST, "generic", {}, [G], [(G, True, 0)]),
        (BEST, "socket", {}, [], [(S, True, 0)]),
    ],
)
def test_each_step_is_tried_on_purpose_or_not_at_all(
    facts: Facts,
    wanted: str,
    refusals: Mapping[Mode, int],
    tried: list[Mode],
    steps: list[tuple[Mode, bool, int]],
) -> None:
    """W7: a forbidden mode is skipped with its reason; the other modes are tried in order and keep their errno."""
    link, kernel = walked(facts, wanted, refusals)
    assert kernel.tried == tried
    assert [(step.mode, step.tried, step.errno) for step in link.steps] == steps
    assert link.mode is steps[-1][0]
    assert link.kind == ("socket" if link.mode is S else "xdp")
    assert [bool(step.reason) for step in link.steps] == [True] * (len(steps) - 1) + [False]
    assert all(step.remedy for step in link.steps[:-1])


@pytest.mark.parametrize(
    ("wanted", "refusals", "is_reported"),
    [
        ("xdp", {Z: errno.EOPNOTSUPP, N: errno.EINVAL}, True),
        ("auto", {Z: errno.EOPNOTSUPP, N: errno.EINVAL}, True),
        ("xdp", {Z: errno.EOPNOTSUPP}, False),
        ("generic", {}, False),
        ("auto", {Z: errno.EOPNOTSUPP, N: errno.EINVAL, G: errno.ENOBUFS}, False),
    ],
)
def test_a_step_down_to_generic_mode_has_its_reasons(
    wanted: str, refusals: Mapping[Mode, int], is_reported: bool
) -> None:
    """W7: generic mode that was not requested by name is reported, with each refused mode and its remedy."""
    link, _ = walked(BEST, wanted, refusals)
    reasons = link.step_down()
    assert (reasons is not None) == is_reported
    if reasons is not None:
        assert "native: native refused (do without native)" in reasons


@pytest.mark.parametrize(
    ("facts", "wanted", "refusals", "kind", "expected", "number"),
    [
        (VETH, "zero-copy", {}, Unsupported, "zero-copy: veth is not on the allow-list.*docs/drivers", 0),
        (NO_PRIVILEGE, "xdp", {}, PermissionNeeded, "native, generic: .*lacks CAP_BPF.*run as root", 0),
        (LITTLE_MEMORY, "native", {}, PermissionNeeded, "bytes of locked memory.*ulimit -l unlimited", 0),
        (
            replace(BEST, attached=OCCUPANT),
            "native",
            {},
            Unsupported,
            "there already: other_filter .*link detach id 5",
            0,
        ),
        (replace(BEST, kernel_version=(5, 10)), "xdp", {}, Unsupported, "needs Linux 5.15.*newer kernel", 0),
        (BEST, "native", {N: errno.EBUSY}, Unsupported, "native refused; do without native", errno.EBUSY),
        (BEST, "generic", {G: errno.EPERM}, PermissionNeeded, "generic refused", errno.EPERM),
    ],
)
def test_a_forced_link_fails_with_what_is_missing(
    facts: Facts, wanted: str, refusals: Mapping[Mode, int], kind: type[UmError], expected: str, number: int
) -> None:
    """W7: the capability, the driver or the setting is named, with the command that would change it."""
    with pytest.raises(kind, match=expected) as refused:
        walked(facts, wanted, refusals)
    assert refused.value.errno == number
    assert "eth1" in refused.value.message


def test_a_context_warns_of_a_step_down_to_generic_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The warning names the interface, the reasons and what to turn off; without a step down there is none."""
    config = configuration_file(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GenericModeWarning)
        Context("lo", config=config).close()
    monkeypatch.setattr(DataLink, "step_down", lambda _link: "native: no (do this)")
    with pytest.warns(
        GenericModeWarning, match=r"lo uses generic mode.*native: no \(do this\).*link=socket"
    ) as caught:
        Context("lo", config=config).close()
    assert caught[0].filename == __file__

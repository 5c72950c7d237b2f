"""The mode ladder is monotone: a better fact never causes a worse mode (W7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_ladder import ALL_CAPABILITIES, ALL_XDP, BEST, OCCUPANT
from umstack_xdp.drivers import known_drivers
from umstack_xdp.facts import Facts, Unknown
from umstack_xdp.ladder import Mode, chosen, decide

UNKNOWN = Unknown("not asked")
MISSING = ("the AF_XDP rings are not built; build again",)
ORDER = [*Mode, None]
SOME_XDP = st.sets(st.sampled_from(sorted(ALL_XDP)))
SOME_CAPABILITIES = st.sets(st.sampled_from([*sorted(ALL_CAPABILITIES), "CAP_SYS_ADMIN"]))
KERNELS = st.tuples(st.integers(4, 7), st.integers(0, 20))


def pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Pairs of a worse and a better value."""
    return st.tuples(values, values).map(lambda pair: (min(pair), max(pair)))


def set_pairs(values: st.SearchStrategy[set[str]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Pairs of a set and a superset."""
    return st.tuples(values, values).map(lambda pair: (frozenset(pair[0] & pair[1]), frozenset(pair[0])))


BETTER = {
    "is_up": st.just((False, True)),
    "is_multicast": st.just((False, True)),
    "addresses": st.just(((), ("10.0.0.1/8",))),
    "kernel_version": pairs(KERNELS),
    "capabilities": set_pairs(SOME_CAPABILITIES),
    "memlock_limit_bytes": pairs(st.integers(0, 64 << 20)) | st.just((0, None)),
    "missing_parts": st.just((MISSING, ())),
    "xdp_features": set_pairs(SOME_XDP) | st.just((UNKNOWN, ALL_XDP)),
    "zero_copy_max_segments": pairs(st.integers(0, 8)),
    "mtu_bytes": pairs(st.integers(576, 9216)).map(lambda pair: (pair[1], pair[0])),
    "attached": st.just((OCCUPANT, None)),
    "features": st.just(({"rx-lro": True, "rx-gro-hw": True}, {"rx-lro": False, "rx-gro-hw": False})),
}


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    """Facts of any host, good and bad."""
    changes: dict[str, Any] = {
        name: draw(st.sampled_from(draw(values)))
        for name, values in BETTER.items()
        if draw(st.integers(0, 3)) == 0
    }
    changes["driver"] = draw(st.sampled_from([*known_drivers(), "mystery", UNKNOWN]))
    return replace(BEST, **changes)


@given(any_facts(), st.data())
def test_a_better_fact_never_gives_a_worse_mode(facts: Facts, data: st.DataObject) -> None:
    """For any other facts, improving one fact keeps or improves the mode."""
    name = data.draw(st.sampled_from(sorted(BETTER)))
    worse, better = data.draw(BETTER[name])
    before = chosen(decide(replace(facts, **{name: worse})))
    after = chosen(decide(replace(facts, **{name: better})))
    assert ORDER.index(after) <= ORDER.index(before), (name, worse, better)


@given(any_facts())
def test_every_excluded_mode_has_reasons_and_remedies(facts: Facts) -> None:
    """An impossible mode has reasons with remedies; the socket is used if it is possible and nothing better
    is.
    """
    for step in decide(facts):
        assert all(reason.problem and reason.remedy for reason in step.reasons)
        assert bool(step.reasons) == (step.verdict == "cannot")

"""The simulator's joins have the defaults of the product, so its proofs are about the product."""

from __future__ import annotations

import pytest

from tests.sim.product import drawn_identity, product_join, product_session
from umstack.sim import ADAPTIVE_JOIN, ADAPTIVE_SESSION, MS, SECOND
from umstack.sim.options import SessionOptions, TransportOptions

DIFFERENT = {
    "ignore_interval_ns": (500 * MS, 100 * MS),
    "sm_floor_ns": (0, MS),
    "flow_group_minimum_size": (1, 0),
    "flow_stall_timeout_ns": (0, 60 * SECOND),
    "repair_budget_bps": (0, 100_000_000),
}
"""Options of a simulated session whose default is not the product's, and both defaults."""


@pytest.mark.parametrize(
    ("options", "join"),
    [
        ({"recovery_timing": "fixed"}, {"window_bytes": 0}),  # no status messages, as UM
        ({"recovery_timing": "fixed", "flow_control_receiver_window": 1 << 21}, {}),
        ({"recovery_timing": "adaptive"}, ADAPTIVE_JOIN),
        ({}, ADAPTIVE_JOIN),
    ],
)
def test_a_join_has_the_defaults_of_the_product(options: dict[str, str | int], join: dict[str, int]) -> None:
    """Each option of a simulated join equals that of a receiver opened with the same options."""
    simulated = TransportOptions(**join)
    product = product_join(**options)
    assert {name: getattr(simulated, name) for name in product} == product
    assert len(product) >= 11


@pytest.mark.parametrize(("timing", "session"), [("fixed", {}), ("adaptive", ADAPTIVE_SESSION)])
def test_a_session_differs_from_the_product_only_as_stated(timing: str, session: dict[str, int]) -> None:
    """Each option of a simulated session equals that of a source opened without options, or is listed."""
    simulated = SessionOptions(**session)
    product = product_session(recovery_timing=timing)
    differing = {
        name: (getattr(simulated, name), value)
        for name, value in product.items()
        if getattr(simulated, name) != value
    }
    assert differing == DIFFERENT


def test_a_session_starts_at_a_random_term_and_has_a_random_id() -> None:
    """AE-3: no two of a thousand configurations have both values in common, and the terms are spread."""
    terms, ids = zip(*(drawn_identity() for _ in range(1000)), strict=True)
    assert len(set(terms)) > 990
    assert len(set(ids)) > 990
    assert min(terms) < 2**30 < 3 * 2**30 < max(terms)

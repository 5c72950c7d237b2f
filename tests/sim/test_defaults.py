"""The simulator's joins have the defaults of the product, so its proofs are about the product."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest

from umstack._engine.receiver_sessions import receiver_session_config
from umstack._engine.transport_address import LbtrmAddress
from umstack.config import ReceiverOptions
from umstack.sim import ADAPTIVE_JOIN
from umstack.sim.options import TransportOptions

OWN = {"datagram_max_bytes", "loss_capacity", "topic_capacity", "random_seed", "send_naks"}
"""Sizes of the simulated host, its seed, and a switch that is compared as a truth value."""
ADDRESS = LbtrmAddress("10.0.0.1", "239.1.1.1", 1, 14400, 14401)
CORE = SimpleNamespace(
    options=SimpleNamespace(transport_lbtrm_receiver_datagram_max_size_bytes=8192),
    datagram_bytes=8192,
    receiver_id=1,
)


@pytest.mark.parametrize(("timing", "join"), [("fixed", {}), ("adaptive", ADAPTIVE_JOIN)])
def test_a_join_has_the_defaults_of_the_product(timing: str, join: dict[str, int]) -> None:
    """Each option of a simulated join equals that of a receiver opened without options."""
    product = receiver_session_config(ADDRESS, ReceiverOptions(recovery_timing=timing), CORE)
    simulated = TransportOptions(**join)
    names = [field.name for field in fields(TransportOptions) if field.name not in OWN]
    if timing == "fixed":
        assert (
            product.window_bytes == 0
        )  # no status messages, as UM; a join with flow control sets the window
        names.remove("window_bytes")
    assert {name: getattr(simulated, name) for name in names} == {
        name: getattr(product, name) for name in names
    }
    assert bool(product.send_naks) is simulated.send_naks

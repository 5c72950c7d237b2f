"""Simulated sessions, sources and joins with the options that a user of the product sets, such as
`recovery_timing fixed`. They are read from the configuration that the product hands to the core.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from umstack._engine.receiver_sessions import receiver_session_config
from umstack._engine.sessions import source_session_config
from umstack._engine.transport_address import LbtrmAddress
from umstack.config import Config
from umstack.sim.options import SessionOptions, TransportOptions

OWN = {"datagram_max_bytes", "loss_capacity", "topic_capacity", "term_length", "window_bytes"}
"""Sizes of the simulated host, and of the source's log, which would take 100 MB."""
ASSIGNED = {"session_id", "nak_port", "initial_sqn", "initial_term_id", "random_seed"}
"""Values that the product draws at random or takes from the operating system."""
_ADDRESS = LbtrmAddress("10.0.0.1", "239.1.1.1", 1, 14400, 14401)
_CORE: Any = SimpleNamespace(
    options=Config().context_options(),
    datagram_bytes=8192,
    datagram_max_bytes=8192,
    is_fragmented=False,
    receiver_id=1,
)


def drawn_identity() -> tuple[int, int]:
    """Return the initial term id and the session id of a session that the product would open."""
    config = source_session_config(_CORE, Config().source_options())
    return config.initial_term_id, config.session_id


def product_session(**options: str | int) -> dict[str, Any]:
    """Return the options of a simulated session that the product opens for a source with these options."""
    config = source_session_config(_CORE, Config().source_options(**options))
    return {
        field.name: getattr(config, field.name)
        for field in fields(SessionOptions)
        if field.name not in OWN | ASSIGNED
    }


def product_join(**options: str | int) -> dict[str, Any]:
    """Return the options of a simulated join that the product makes for a receiver with these options."""
    config = receiver_session_config(_ADDRESS, Config().receiver_options(**options), _CORE)
    return {
        field.name: getattr(config, field.name)
        for field in fields(TransportOptions)
        if field.name == "window_bytes" or field.name not in OWN | ASSIGNED
    }

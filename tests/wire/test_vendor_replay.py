"""A real Ultra Messaging source is discovered and received: the capture of two contexts of 6.14, replayed."""

from __future__ import annotations

import json

import pytest

from tests.unit.vendor_capture import vendor_capture
from tests.wire.conftest import emitted


def test_a_real_source_is_received_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    """W1, UM-4: the vendor counts 10,000 messages for a wildcard receiver, 7,500 for a receiver of one topic."""
    directory = emitted(tmp_path_factory, "emit_vendor", str(vendor_capture()))
    facts = json.loads((directory / "facts.json").read_text())
    assert (facts["wildcard"], facts["one"]) == (10_000, 7_500), facts
    assert sum(facts["by_topic"].values()) == 10_000

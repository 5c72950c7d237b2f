"""Topics with keys and LBT-TCP, which has no tags: neither side does without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.loopback import open_context
from tests.unit.test_resolution_flood import send
from tests.waiting import wait_for
from umstack import Context
from umstack._engine.transport_address import TcpAddress
from umstack.errors import OptionError
from umstack.resolution.codec import Advertisement, encode_advertisement, pack


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with a key for topics that begin with `keyed`, and none for topic resolution."""
    file = tmp_path / "keys"
    file.write_text(f"topic keyed* 7 {'0a' * 32}\n")
    file.chmod(0o600)
    return file


def _open(keys: Path) -> Context:
    return open_context(authentication_scope="all", authentication_key_file=str(keys))


def test_a_source_over_tcp_is_refused_for_a_topic_with_a_key(keys: Path) -> None:
    """UM-108: what cannot be tagged is not sent untagged."""
    with _open(keys) as context:
        with pytest.raises(OptionError, match="cannot be sent over TCP"):
            context.source("keyed", transport="tcp")
        context.source("open", transport="tcp").close()


def test_an_advertisement_of_tcp_leads_no_keyed_receiver_away(keys: Path) -> None:
    """UM-108: a forged advertisement cannot have a receiver of a topic with a key take messages without tags."""
    with _open(keys) as context:
        keyed, plain = context.receiver("keyed"), context.receiver("open")
        address = TcpAddress("127.0.0.1", 77, 9)
        records = [encode_advertisement(Advertisement(topic, 5, 60, address)) for topic in ("keyed", "open")]
        send(pack([], records, 1400))
        wait_for(lambda: plain.stats()["delivery_controllers"] == 1, "the topic without a key")
        assert keyed.stats()["delivery_controllers"] == 0

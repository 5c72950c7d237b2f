"""Facts of parts of a capture, merged in any order, are the facts of the whole, to the row."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

from tests.unit.capture_bytes import pcap
from tests.unit.unicast_bytes import lbtru_session, lbttcp_session
from umstack.analysis.tables import tables_of
from umstack.capture import split
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import Facts, facts_of

TRAFFIC = Traffic(seed=5, sessions=2, receivers=3, messages_per_datagram=3, message_bytes=40, loss=0.02)


@pytest.fixture(scope="module", params=["LBT-RM", "LBT-RU", "LBT-TCP"])
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a capture with losses of each transport."""
    path = tmp_path_factory.mktemp("facts") / "switch.pcap"
    if request.param == "LBT-RM":
        return str(generate(path, 3000, TRAFFIC).path)
    path.write_bytes(pcap(lbtru_session() if request.param == "LBT-RU" else lbttcp_session()))
    return str(path)


@pytest.fixture(scope="module")
def whole(capture: str) -> Facts:
    """Return its facts."""
    return facts_of([capture])


@settings(max_examples=10)
@given(part_bytes=st.integers(20_000, 700_000), seed=st.integers(0, 2**32), fold=st.booleans())
def test_merging_parts_gives_the_whole(
    capture: str, whole: Facts, part_bytes: int, seed: int, fold: bool
) -> None:
    """Facts of a capture that is split anywhere and merged in any order, together or one by one, are the
    same.
    """
    parts = [facts_of([part]) for part in split(capture, part_bytes)]
    random.Random(seed).shuffle(parts)
    merged = Facts()
    if fold:
        for part in parts:
            merged = Facts.merged([merged, part])
    else:
        merged = Facts.merged(parts)
    assert merged.equals(whole)
    expected = tables_of(whole)
    assert all(table.equals(expected[name]) for name, table in tables_of(merged).items())


def test_facts_of_other_packets_differ(capture: str, whole: Facts) -> None:
    """A part that is omitted or counted twice is detected."""
    parts = [facts_of([part]) for part in split(capture, 100_000)]
    assert len(parts) > 2
    assert not Facts.merged(parts[1:]).equals(whole)
    assert not Facts.merged([*parts, parts[0]]).equals(whole)


def test_no_facts_make_tables_without_rows(tmp_path: Path) -> None:
    """Without facts, all tables exist and are empty."""
    (tmp_path / "empty.pcap").write_bytes(b"")
    tables = tables_of(facts_of([str(tmp_path / "empty.pcap")]))
    assert {name for name, table in tables.items() if len(table)} == {"remarks"}
    assert len(tables_of(Facts())) == len(tables)

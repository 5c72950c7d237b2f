"""A capture of a filtering LBT-RU session: filtered datagrams are not lost, and reports are not retransmissions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("polars")

import pyarrow as pa

from tests.wire.conftest import emitted
from tests.wire.emit_filtering import COUNT
from umstack.analysis.tables import Tables, tables_of
from umstack.capture import decode
from umstack.facts.facts import Facts, facts_of, facts_of_packets
from umstack.facts.packed import packed, unpacked
from umstack.report import make_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the capture of two sessions, without and with keys, and their source's counts."""
    return emitted(tmp_path_factory, "emit_filtering")


@pytest.fixture(scope="module")
def capture(folder: Path) -> str:
    """The capture."""
    return str(folder / "wire.pcapng")


@pytest.fixture(scope="module")
def counted(folder: Path) -> list[dict[str, Any]]:
    """The counts of each session's source. Nothing was lost, so nothing was retransmitted."""
    found: list[dict[str, Any]] = json.loads((folder / "facts.json").read_text())
    assert [(one["rxs_sent"], one["naks_rcved"]) for one in found] == [(0, 0), (0, 0)]
    return found


@pytest.fixture(scope="module")
def facts(capture: str) -> Facts:
    """The facts of the capture."""
    return facts_of([capture])


@pytest.fixture(scope="module")
def tables(facts: Facts) -> Tables:
    """The tables of the capture."""
    return tables_of(facts)


def test_filter_reports_are_separate_rows(capture: str, counted: list[dict[str, Any]]) -> None:
    """Each report is a `FILTER` with the first and last filtered sqn, and is not a retransmission."""
    rows = [row for batch in decode(capture) for row in batch.to_pylist() if row["transport"] == "LBT-RU"]
    assert not any(row["retransmission"] for row in rows)
    for one in counted:
        reports = [
            row["sqns"]
            for row in rows
            if row["packet_type"] == "FILTER" and row["session_id"] == one["session_id"]
        ]
        assert one["filter_reports_sent"] <= len(reports)
        assert all(len(sqns) in (0, 2) for sqns in reports)
        assert any(sqns and sqns[1] > sqns[0] for sqns in reports)
        assert [] in reports


def test_filter_reports_are_not_retransmissions(
    facts: Facts, tables: Tables, counted: list[dict[str, Any]]
) -> None:
    """The report counts neither as a retransmission nor as a loss."""
    assert tables["sessions"]["retransmissions"].sum() == 0
    assert [len(tables[name]) for name in ("repairs", "losses", "incidents", "duplicates")] == [0, 0, 0, 0]
    assert tables["rates"]["retransmissions"].sum() == 0
    of_kind = facts.counts.filter(kind="FILTER")
    assert of_kind["packets"].sum() >= sum(one["filter_reports_sent"] for one in counted)


def test_the_core_counts_the_same_as_rows(capture: str, facts: Facts) -> None:
    """Facts are the same if the core counts and if all packets become rows, also after storing and reading."""
    assert facts_of_packets(decode(capture, only_ours=True)).equals(facts)
    assert unpacked([packed(facts)])[0].equals(facts)


def test_filtered_datagrams_are_not_missing(tables: Tables) -> None:
    """No sqn is missing at either receiver, although each received about half of them."""
    assert len(tables["gaps"]) == 0
    covered = tables["coverage"]
    assert covered["missing"].to_list() == [0] * 4
    assert (covered["high"] - covered["low"] + 1 - covered["distinct"]).min() >= COUNT


def test_a_copy_that_was_not_captured_is_missing(folder: Path, capture: str) -> None:
    """Only the one uncaptured datagram is missing at a receiver with many filtered ones."""
    [whole] = pa.Table.from_batches(decode(capture, only_ours=True)).combine_chunks().to_batches()
    first = json.loads((folder / "facts.json").read_text())[0]["session_id"]
    rows = whole.select(["session_id", "packet_type", "destination_port", "transport_sqn"]).to_pylist()
    sent = [
        at
        for at, row in enumerate(rows)
        if row["session_id"] == first and row["packet_type"] == "DATA" and row["destination_port"] == 14360
    ]
    lost = sent[COUNT // 2]
    facts = facts_of_packets([whole.slice(0, lost), whole.slice(lost + 1)])
    [gap] = tables_of(facts)["gaps"].to_dicts()
    number = rows[lost]["transport_sqn"]
    assert (gap["receiver"], gap["missing"]) == ("127.0.0.1:14360", 2)
    assert (gap["first_sqn"], gap["last_sqn"]) == (number - 1, number)


def test_the_report_shows_no_losses(capture: str, tmp_path: Path) -> None:
    """A capture without losses, gaps or repairs causes no sentence on them."""
    report = make_report([capture], tmp_path / "out")
    assert not {one.topic for one in report.findings} & {"gaps", "repairs", "duplicates"}
    assert not any(one.topic.startswith("loss-") for one in report.findings)

"""Rows that grow with the losses of a capture: in memory or in a file, they are the same, and memory stays flat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import polars as pl

from umstack.analysis import rare_rows
from umstack.analysis.numbering import Numbered
from umstack.analysis.rare_rows import RareSlices
from umstack.analysis.tables import tables_of
from umstack.capture.generate import Traffic, generate
from umstack.facts import row_pile
from umstack.facts.facts import facts_of
from umstack.facts.packed import packed, unpacked
from umstack.facts.row_pile import RowPile, in_slices

_ROWS = pl.DataFrame(
    {
        "name": ["source at the first host", "b", None, "source at the first host", "d", "d", None],
        "block": [3, 1, 2, 1, 3, 3, 2],
        "sqns": [[1, 2], None, [], [3], [4], [5], [6, 7, 8]],
    }
)
_PEAK = """
import sys
from umstack.report import make_report
found = make_report([sys.argv[1]], sys.argv[2]).summary["lost"][0]["losses"]
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(found, int(peak.split()[1]))
"""
_GROWTH_KIB = 72 << 10
"""It was 155 MiB with all rows in memory, and is 27 MiB, for one slice, with the others in a file."""


def filled(*, spills: bool) -> RowPile:
    """Return a pile with the rows of the example, added in three parts."""
    pile = RowPile(spills=spills)
    for part in (_ROWS[:3], _ROWS[3:4], _ROWS[4:]):
        pile.add_by(part, pl.col("block"))
    return pile


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Write two rows or more to the file, which is in this folder."""
    monkeypatch.setattr(row_pile, "SLICE_ROWS", 2)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.mark.usefixtures("small")
def test_rows_in_a_file_are_those_in_memory() -> None:
    """Text, lists and nulls; in order of the key, then as added; nothing is written unless it is allowed."""
    held, written = filled(spills=False), filled(spills=True)
    assert (held.is_in_file, written.is_in_file) == (False, True)
    assert len(held) == len(written) == len(_ROWS)
    expected = pl.concat([_ROWS.filter(block=block) for block in (1, 2, 3)])
    assert held.frame().equals(expected)
    assert written.frame().equals(expected)
    for pile in (held, written):
        assert [(key, len(rows)) for key, rows in pile.groups()] == [((1,), 2), ((2,), 2), ((3,), 3)]
        assert pl.concat(rows for _, rows in pile.groups()).equals(expected)


@pytest.mark.usefixtures("small")
def test_the_rows_of_a_key_are_in_one_slice() -> None:
    """A slice ends where a key does; rows without a key are divided anywhere; changes apply to rows that are read."""
    pile = filled(spills=True)
    doubled = pile.changed(lambda rows: rows.with_columns(pl.col("block") * 2))
    assert [rows["block"].to_list() for rows in doubled.slices()] == [[2, 2], [4, 4], [6, 6, 6]]
    assert [rows["block"].to_list() for rows in pile.slices()] == [[1, 1], [2, 2], [3, 3, 3]]
    assert pile.frame()["block"].to_list() == [1, 1, 2, 2, 3, 3, 3]
    unordered = RowPile()
    for row in _ROWS.iter_slices(1):
        unordered.add(row)
    assert [len(rows) for rows in unordered.slices()] == [2, 2, 2, 1]
    assert unordered.frame().equals(_ROWS)


@pytest.mark.usefixtures("small")
def test_a_table_in_slices_overlaps_the_next_one() -> None:
    """Each slice has the first row of the next one, so that neighbours can be compared."""
    found = [rows["block"].to_list() for rows in in_slices(_ROWS, overlap=1)]
    assert found == [[3, 1, 2], [2, 1, 3], [3, 3, 2], [2]]


def test_the_file_has_no_name(small: Path) -> None:
    """No name remains if the process is killed: there is none while it runs."""
    pile = filled(spills=True)
    opened = {str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()}
    assert any(name.startswith(str(small)) for name in opened)
    assert len(pile.frame()) == len(_ROWS)
    assert list(small.iterdir()) == []


def test_a_pile_without_rows_has_its_schema() -> None:
    """One slice without rows, so that what is computed from slices has its columns."""
    pile = RowPile()
    with pytest.raises(ValueError, match="without a schema"):
        pile.frame()
    pile.add(_ROWS.clear())
    assert [rows.schema for rows in pile.slices()] == [_ROWS.schema]
    assert list(pile.groups()) == []


def test_tables_from_slices_are_those_from_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions of which two points saw all, refused NAKs and bursts: each table is the same to the row, and so are
    the facts that workers exchange."""
    for name, at_receiver in (("switch", None), ("receiver", 1)):
        traffic = Traffic(sessions=2, snap_bytes=96, loss=0.03, shared=0.3, at_receiver=at_receiver)
        generate(tmp_path / f"{name}.pcap", 20_000, traffic)
    captures = sorted(map(str, tmp_path.glob("*.pcap")))
    facts = facts_of(captures)
    expected = tables_of(facts)
    assert not facts.rare.is_in_file
    assert min(len(expected[name]) for name in ("losses", "incidents", "repairs", "suggestions")) > 0
    assert len(expected["nak_storms"]) > 0
    monkeypatch.setattr(row_pile, "SLICE_ROWS", 500)
    monkeypatch.setattr(rare_rows, "_BLOCK_BITS", (8, 8))
    spilt = facts_of(captures)
    assert spilt.rare.is_in_file
    numbered = Numbered.of(spilt)
    assert len(list(RareSlices.of(spilt, numbered.known))) > 5
    found = tables_of(spilt)
    assert found.keys() == expected.keys()
    assert [name for name, table in found.items() if not table.equals(expected[name])] == []
    assert spilt.equals(facts)
    assert unpacked([packed(spilt)], spills=True)[0].equals(facts)


def test_memory_stays_flat_with_losses(tmp_path: Path) -> None:
    """A report on 100 thousand losses needs little more memory than one on as many packets with few losses."""
    found = []
    for loss in (0.001, 0.1):
        path = generate(tmp_path / "switch.pcap", 500_000, Traffic(snap_bytes=96, loss=loss)).path
        command = [sys.executable, "-c", _PEAK, str(path), str(tmp_path / "out")]
        child = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(tuple(map(int, child.stdout.split())))
    (few, least_kib), (many, most_kib) = found
    assert many - few > 100_000
    assert most_kib - least_kib < _GROWTH_KIB

"""Folders of a pipeline's tables, filled as its tasks fill them, without Spark."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from umstack.capture import split
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import Facts, facts_of
from umstack.facts.kinds import SESSION
from umstack.facts.packed import packed
from umstack.pipeline.derive import take_batch
from umstack.pipeline.layout import DAY_NS, Layout, Settings
from umstack.pipeline.maintenance import write_empty_tables

DAY = date(2026, 3, 4)
START_NS = int((DAY - date(1970, 1, 1)).days) * DAY_NS
SETTINGS = Settings("captures")


def made_capture(folder: Path, start_ns: int = START_NS, **changed: Any) -> str:
    """Write a capture of 1500 packets of two sessions; return its path."""
    traffic = Traffic(
        seed=8, sessions=2, receivers=2, loss=0.02, datagrams_per_second=500, start_ns=start_ns, **changed
    )
    return str(generate(folder / f"switch-{start_ns // DAY_NS % 10_000:04}.pcap", 1500, traffic).path)


def packed_facts(facts: Facts) -> pa.Table:
    """Facts of one day, as the stream has them in a batch; notes and packets without a time have day 0."""
    first = min(facts.counts["first_ns"], default=0)
    return packed(facts, first // DAY_NS * DAY_NS)


def batches_of(capture: str, part_bytes: int = 250_000) -> list[pa.Table]:
    """Return the packed facts of the parts of a capture."""
    return [packed_facts(facts_of([part])) for part in split(capture, part_bytes)]


def made_layout(root: Path) -> Layout:
    """Make a folder of empty tables."""
    layout = Layout(root)
    layout.state.mkdir(parents=True)
    write_empty_tables(layout)
    layout.save(SETTINGS)
    return layout


def take(layout: Layout, number: int, rows: pa.Table) -> None:
    """Add a batch, session by session."""
    for key in sorted({(row["publisher"], row["session_id"]) for row in rows.select(SESSION).to_pylist()}):
        is_own = pc.and_(pc.equal(rows["publisher"], key[0]), pc.equal(rows["session_id"], key[1]))
        take_batch(layout, SETTINGS, key, number, rows.filter(is_own))

"""The files of a pipeline without Spark: batches, crashes between any two file operations, compaction, versions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.testing import assert_frame_equal

from tests.unit.capture_bytes import Packet, data, frame, nak, pcap
from tests.unit.pipeline_tables import (
    DAY,
    SETTINGS,
    START_NS,
    batches_of,
    made_capture,
    made_layout,
    packed_facts,
    take,
)
from umstack.analysis.tables import Tables, tables_of
from umstack.capture import Split, decode, split
from umstack.cli.pipeline import command
from umstack.facts.facts import Counter, facts_of
from umstack.facts.packed import packed, unpacked
from umstack.pipeline import parts, table_schema
from umstack.pipeline.derive import derive_session
from umstack.pipeline.layout import (
    BRONZE,
    DAY_NS,
    FACTS,
    SILVER,
    Layout,
    TablesError,
    beside,
    opened,
    session_of,
)
from umstack.pipeline.maintenance import compact_all, derive_again
from umstack.pipeline.read_back import read_tables
from umstack.pipeline.table_schema import markdown, schemas
from umstack.report.findings import findings
from umstack.report.outputs import summarised

ROOT = Path(__file__).parents[2]


def _equal(made: Tables, wanted: Tables) -> None:
    assert made.keys() == wanted.keys()
    for name, table in wanted.items():
        # The last bits of floats depend on how many rows Polars computes at once.
        assert_frame_equal(made[name], table, rel_tol=1e-12, abs_tol=0)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a capture of one day with two sessions."""
    return made_capture(tmp_path_factory.mktemp("capture"))


@pytest.fixture(scope="module")
def wanted(capture: str) -> Tables:
    """Return the tables of a report on it."""
    return tables_of(facts_of([capture]))


def test_tables_of_batches_in_any_order_are_those_of_the_report(
    tmp_path: Path, capture: str, wanted: Tables
) -> None:
    """Each batch is added, some twice; enough of them for a compaction on the way."""
    layout, batches = made_layout(tmp_path / "tables"), batches_of(capture, 100_000)
    assert len(batches) > parts.PARTS_MAX
    for number, rows in reversed(list(enumerate(batches))):
        take(layout, number, rows)
        if number % 3 == 0:
            take(layout, number, rows)
    tables, packets, _, settings = read_tables(layout.root)
    _equal(tables, wanted)
    assert packets == 1500
    assert settings == SETTINGS
    session = next(name for name in layout.sessions() if name != "none")
    files = list(layout.partition(BRONZE, FACTS, DAY, session).iterdir())
    assert len(files) < parts.PARTS_MAX


class _Killed(Exception):
    """Stands for the end of the process."""


class _Crash:
    """Ends the process before or after the file operation with this number, as SIGKILL may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for of, name in (
            (Path, "replace"),
            (Path, "unlink"),
            (parts, "exchange"),
            (shutil, "rmtree"),
            (shutil, "copy2"),
        ):
            self._patch(monkeypatch, of, name)

    def _patch(self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
        real = getattr(of, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self._count()
            done = real(*arguments, **named)
            self._count()
            return done

        monkeypatch.setattr(of, name, counted)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise _Killed


@pytest.mark.timeout(400)
def test_a_batch_killed_at_any_file_operation_and_repeated_counts_once(
    tmp_path: Path, capture: str, wanted: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every point of a crash, within compaction as well: the repeated batch completes the tables."""
    monkeypatch.setattr(parts, "PARTS_MAX", 2)
    batches = batches_of(capture, 800_000)
    assert len(batches) >= 3
    crash, crashes, at = _Crash(monkeypatch), 0, 1
    is_over = False
    while not is_over:
        layout = made_layout(tmp_path / f"tables-{at}")
        is_over = True
        for number, rows in enumerate(batches):
            crash.left = at if number == 2 else 0
            try:
                take(layout, number, rows)
            except _Killed:
                crashes, is_over = crashes + 1, False
                crash.left = 0
                take(layout, number, rows)
        crash.left = 0
        tables, packets, _, _ = read_tables(layout.root)
        _equal(tables, wanted)
        assert packets == 1500
        # The first operations are those on facts, also their compaction; the others write tables.
        at += 1 if at < 12 else 121
    assert crashes > 12


def test_a_new_day_changes_its_own_files_only(tmp_path: Path) -> None:
    """A session of another day is not derived again; a day between two joins them, as a report on all three does."""
    layout = made_layout(tmp_path / "tables")
    starts = [START_NS + day * DAY_NS for day in (0, 2, 1)]
    captures = [made_capture(tmp_path, start_ns=start) for start in starts]
    for number, capture in enumerate(captures[:2]):
        before = {file: file.stat().st_mtime_ns for file in layout.root.glob("*/*/date=2026-03-04/*/*")}
        take(layout, number, packed_facts(facts_of([capture])))
        assert number == 0 or len(before) > 20
        assert all(file.stat().st_mtime_ns == changed for file, changed in before.items())
        _equal(read_tables(layout.root)[0], tables_of(facts_of(captures[: number + 1])))
    take(layout, 2, packed_facts(facts_of([captures[2]])))
    _equal(read_tables(layout.root)[0], tables_of(facts_of(captures)))
    # One analysis of the three days, not one of each.
    assert len(pl.read_parquet(layout.table(SILVER, "sessions") / "**" / "rows.parquet")) == 2
    days = sorted({folder.name for folder in layout.table(SILVER, "losses").glob("date=*")})
    assert days == ["date=1970-01-01", "date=2026-03-04", "date=2026-03-05", "date=2026-03-06"]


def test_late_captures_change_the_rollups_of_their_day_only(tmp_path: Path) -> None:
    """A file of yesterday arrives today: its sessions are analysed over both days, and today's rollups stay."""
    layout = made_layout(tmp_path / "tables")
    capture = made_capture(tmp_path, start_ns=START_NS + DAY_NS - 1_500_000_000)
    parts = split(capture, 250_000)
    late = parts.pop(1)
    for number, part in enumerate(parts):
        take(layout, number, _packed_by_day(part))

    def rollups() -> dict[Path, int]:
        found = layout.root.glob("gold/*_days/date=2026-*/*/rows.parquet")
        return {file: file.stat().st_mtime_ns for file in found}

    before = rollups()
    assert {file.parents[1].name for file in before} == {"date=2026-03-04", "date=2026-03-05"}
    take(layout, len(parts), _packed_by_day(late))
    changed = [file for file, changed_ns in rollups().items() if before.get(file) != changed_ns]
    assert {file.parents[1].name for file in changed} == {"date=2026-03-04"}
    assert {file.parents[2].name for file in changed} == {"session_days", "topic_days", "receiver_days"}
    _equal(read_tables(layout.root)[0], tables_of(facts_of([capture])))


def test_a_capture_that_arrives_after_its_day_was_compacted_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions over three days: the first midnight arrives last, and its batch is killed, compacted and repeated.

    The tables are those of one report on everything, and every rollup adds up to the rows of its day.
    """
    capture = made_capture(tmp_path, start_ns=START_NS + DAY_NS - 1_500_000_000)
    next_day = made_capture(tmp_path, start_ns=START_NS + 2 * DAY_NS)
    first, *late, last = split(capture, 250_000)
    layout = made_layout(tmp_path / "tables")
    before = pa.concat_tables([_packed_by_day(first), _packed_by_day(last)])
    take(layout, 0, before)
    take(layout, 1, packed_facts(facts_of([next_day])))
    compact_all(layout.root)
    rows = pa.concat_tables(map(_packed_by_day, late))
    wanted = tables_of(facts_of([capture, next_day]))
    crash = _Crash(monkeypatch)
    # Before any facts, between those of two days, and among the tables.
    for at in (1, 4, 60):
        killed = Layout(shutil.copytree(layout.root, tmp_path / f"killed-{at}"))
        crash.left = at
        with pytest.raises(_Killed):
            take(killed, 2, rows)
        compact_all(killed.root)
        take(killed, 2, rows)
        _equal(read_tables(killed.root)[0], wanted)
        _check_rollups(killed, wanted)


def _check_rollups(layout: Layout, wanted: Tables) -> None:
    """Compare the rollups with sums over the rows of a report, day by day."""

    def gold(name: str) -> pl.DataFrame:
        found = layout.root / "gold" / name / "date=2026-*" / "*" / "rows.parquet"
        return pl.read_parquet(found, hive_partitioning=True).cast({"date": pl.Date})

    day = pl.from_epoch(pl.col("lost_ns") // DAY_NS, time_unit="d").alias("date")
    lost = wanted["losses"].with_columns(day)
    sums = [
        pl.len().cast(pl.Int64).alias("lost"),
        pl.col("repaired_ns").is_null().sum().cast(pl.Int64).alias("unrepaired"),
    ]
    key = ["date", "publisher", "session_id"]
    of_receivers = lost.group_by(*key, "receiver").agg(*sums).sort(*key, "receiver")
    assert of_receivers["date"].n_unique() == 3
    assert_frame_equal(
        gold("receiver_days").select(of_receivers.columns).sort(*key, "receiver"), of_receivers
    )
    of_sessions = lost.group_by(key).agg(*sums).sort(key)
    assert_frame_equal(gold("session_days").select(of_sessions.columns).sort(key), of_sessions)
    sent = gold("session_days").group_by("publisher", "session_id").agg(pl.col("messages").sum())
    totals = wanted["topics"].group_by("publisher", "session_id").agg(pl.col("messages").sum())
    assert_frame_equal(sent.sort("session_id"), totals.sort("session_id"))
    for name in ("session_days", "topic_days", "receiver_days"):
        names = {
            "session_days": key,
            "topic_days": [*key, "topic_index"],
            "receiver_days": [*key, "receiver"],
        }
        assert not gold(name).select(names[name]).is_duplicated().any()
    assert gold("topic_days")["messages"].sum() == wanted["topics"]["messages"].sum()


def _packed_by_day(part: Split) -> pa.Table:
    """Return the facts of a part by day, as the stream has them."""
    counter = Counter(DAY_NS)
    for batch in decode(part, only_ours=True, tally=counter.tally):
        counter.take(batch)
    return pa.concat_tables(packed(facts, window_ns) for window_ns, facts in counter.facts().items())


def test_compaction_leaves_one_file_of_the_same_facts(tmp_path: Path, capture: str, wanted: Tables) -> None:
    """`--compact` and `--derive-again` change nothing in the tables."""
    layout, batches = made_layout(tmp_path / "tables"), batches_of(capture)
    for number, rows in enumerate(batches):
        take(layout, number, rows)
    before, after = compact_all(layout.root)
    assert before > after == len(list(layout.table(BRONZE, FACTS).rglob("part-*.parquet")))
    for file in layout.root.glob("silver/*/*/*/rows.parquet"):
        file.unlink()
    assert derive_again(layout.root) == len(layout.sessions())
    _equal(read_tables(layout.root)[0], wanted)
    # A batch that is repeated after its file was merged counts once.
    take(layout, len(batches) - 1, batches[-1])
    _equal(read_tables(layout.root)[0], wanted)


def test_a_repeated_batch_replaces_its_file_until_it_is_compacted(tmp_path: Path) -> None:
    """A file whose batches another one covers, as a killed compaction leaves it, is neither read nor kept."""

    def rows(number: int) -> pa.Table:
        return pa.table({"number": [number]})

    def numbers(least: int) -> list[int]:
        found: list[int] = parts.merged_parts(tmp_path, lambda table: table, least)["number"].to_pylist()
        return sorted(found)

    for batch, number in ((1, 10), (1, 11), (2, 20)):
        parts.add_part(tmp_path, batch, rows(number))
    assert numbers(least=3) == [11, 20]
    assert numbers(least=2) == [11, 20]
    parts.add_part(tmp_path, 1, rows(12))
    parts.write_parquet(tmp_path / "part-000000000001-000000000001.parquet", rows(11))
    assert numbers(least=2) == [11, 20]
    assert [file.name for file in tmp_path.iterdir()] == ["part-000000000001-000000000002.parquet"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_killed_compaction_shows_each_packet_once(
    tmp_path: Path, capture: str, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    """To programs that read the files themselves if folders can be exchanged, and after another one in any case."""
    layout = made_layout(tmp_path / "tables")
    for number, rows in enumerate(batches_of(capture, 800_000)):
        take(layout, number, rows)
    whole = _packets(layout)
    if not can_exchange:
        monkeypatch.setattr(parts, "exchange", lambda *_: False)
    crash, seen = _Crash(monkeypatch), list[int]()
    is_over = False
    while not is_over:
        root = tmp_path / f"killed-{len(seen)}"
        copied = Layout(shutil.copytree(layout.root, root, ignore=shutil.ignore_patterns("silver", "gold")))
        crash.left = len(seen) + 1
        try:
            compact_all(copied.root)
            is_over = True
        except _Killed:
            seen.append(_packets(copied))
        crash.left = 0
        compact_all(copied.root)
        assert _packets(copied) == whole
        assert not [*copied.state.glob("compaction/*/*/*")]
        assert len([*copied.table(BRONZE, FACTS).rglob("part-*")]) == len(copied.folders(FACTS))
    assert len(seen) > 8
    assert ({*seen} == {whole}) == can_exchange


def _packets(layout: Layout) -> int:
    """The packets in all files of facts, read as any program reads them."""
    files = layout.table(BRONZE, FACTS).rglob("*.parquet")
    found = unpacked(pq.read_table(file, partitioning=None) for file in files)
    return sum(int(facts.counts["packets"].sum()) for facts in found.values())


def test_an_older_file_lacks_a_column_and_a_folder_of_another_version_is_refused(
    tmp_path: Path, capture: str
) -> None:
    """A missing column is null until the tables are derived again."""
    layout = made_layout(tmp_path / "tables")
    for number, rows in enumerate(batches_of(capture)):
        take(layout, number, rows)
    for file in layout.table(SILVER, "sessions").rglob("rows.parquet"):
        pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["restarts"]), file)
    assert read_tables(layout.root)[0]["sessions"]["restarts"].null_count() == 2
    derive_again(layout.root)
    assert read_tables(layout.root)[0]["sessions"]["restarts"].to_list() == [0, 0]
    written = json.loads((layout.state / "layout.json").read_text())
    for version in (1, 3):
        (layout.state / "layout.json").write_text(json.dumps(written | {"version": version}))
        for refused in (lambda: opened(layout.root), lambda: read_tables(layout.root)):
            with pytest.raises(TablesError, match=f"have version {version}"):
                refused()


def test_an_unfinished_batch_and_a_second_writer_are_refused(tmp_path: Path) -> None:
    """Readers of all tables wait for a batch, and do not read half of one; a folder without tables is an error."""
    layout = made_layout(tmp_path / "tables")
    with layout.owned(), pytest.raises(TablesError, match="another process"), layout.owned():
        pass
    with pytest.raises(_Killed), layout.changing():
        raise _Killed
    with pytest.raises(TablesError, match="interrupted"):
        read_tables(layout.root)
    with layout.changing():
        pass
    assert read_tables(layout.root)[1] == 0
    with pytest.raises(TablesError, match="has no tables"):
        read_tables(tmp_path)


def test_a_file_that_a_killed_process_began_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """By the next writer after a killed batch, and by a compaction, which may have been killed without a batch."""
    layout = made_layout(tmp_path / "tables")
    folder = layout.partition(BRONZE, FACTS, date(2026, 1, 1), "a_7")

    def leave_one() -> None:
        killed = (
            "import os, pathlib, pyarrow as pa; from umstack.pipeline.parts import write_parquet\n"
            "pathlib.Path.replace = lambda *_: os._exit(9)\n"
            f"write_parquet(pathlib.Path({str(folder / 'part.parquet')!r}), pa.table({{'a': [1]}}))"
        )
        assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
        assert [file.name.startswith(".part.parquet.") for file in folder.iterdir()] == [True]

    leave_one()
    prepared = beside(folder) / "part.parquet"
    prepared.parent.mkdir(parents=True)
    prepared.write_bytes(b"of a killed compaction")
    with pytest.raises(_Killed), layout.changing():
        raise _Killed
    with layout.owned():
        assert not [*folder.iterdir()]
        assert not prepared.exists()
    leave_one()
    assert parts.compact(folder) == 0
    assert not [*folder.iterdir()]


def test_every_column_has_a_note_and_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/tables.md is generated; a note on a missing column, or a column without one, fails."""
    page = (ROOT / "docs" / "tables.md").read_text()
    assert markdown() in page, (
        "run: python -m umstack.pipeline.table_schema, and paste it into docs/tables.md"
    )
    for tables in schemas().values():
        for name, schema in tables.items():
            for field in schema:
                unit = field.metadata.get(b"unit", b"").decode()
                assert field.metadata[b"comment"], f"{name}.{field.name}"
                assert not field.name.endswith("_ns") or unit.startswith("ns"), f"{name}.{field.name}"
                assert not field.name.endswith("_bytes") or unit == "bytes", f"{name}.{field.name}"
    monkeypatch.setitem(table_schema._SILVER, "losses", ("loss", {"no_such": ("nothing", "")}))
    schemas.cache_clear()
    with pytest.raises(LookupError, match="no_such"):
        schemas()


@pytest.fixture(autouse=True)
def _forget_schemas() -> Iterator[None]:
    yield
    schemas.cache_clear()


def test_rollups_add_up_to_the_silver_tables(tmp_path: Path, capture: str, wanted: Tables) -> None:
    """Losses per day and receiver, messages per day and topic."""
    layout = made_layout(tmp_path / "tables")
    take(layout, 0, packed_facts(facts_of([capture])))

    def gold(name: str) -> pl.DataFrame:
        return pl.read_parquet(str(layout.root / "gold" / name / "**" / "rows.parquet"))

    lost = wanted["losses"].group_by("receiver").agg(lost=pl.len()).sort("receiver")
    rolled = gold("receiver_days").group_by("receiver").agg(pl.col("lost").sum()).sort("receiver")
    assert rolled["lost"].to_list() == lost["lost"].to_list()
    assert gold("topic_days")["messages"].sum() == wanted["topics"]["messages"].sum()
    assert gold("session_days")["lost"].sum() == len(wanted["losses"])
    assert len(derive_session(layout, SETTINGS, session_of(min(layout.sessions())))) == 1
    assert set(gold("findings")["severity"]) <= {"bad", "worth_a_look", "good", "note"}
    assert len(gold("findings")) > 3


def test_copies_are_a_finding_on_no_session(tmp_path: Path) -> None:
    """The findings of a folder include the copies that a mirror made, as the report does."""
    frames = [(START_NS + number * 1_000_000, frame(data(number))) for number in range(20)]
    mirrored = [Packet(time_ns + late_ns, sent) for time_ns, sent in frames for late_ns in (0, 3_000)]
    file = tmp_path / "mirror.pcap"
    file.write_bytes(pcap(mirrored))
    facts = facts_of([str(file)])
    layout = made_layout(tmp_path / "tables")
    take(layout, 0, packed_facts(facts))
    made = pl.read_parquet(str(layout.root / "gold/findings/**/rows.parquet")).filter(topic="copies")
    [wanted] = [one for one in findings(summarised(tables_of(facts), [])) if one.topic == "copies"]
    assert made.select("publisher", "text").rows() == [("", wanted.text)]


def test_a_session_without_data_is_no_finding_on_the_folder(tmp_path: Path) -> None:
    """One of which only NAKs were captured, beside one that sent: the folder has session data."""
    sent = [Packet(START_NS + number * 1_000_000, frame(data(number))) for number in range(20)]
    asked = Packet(START_NS + 5_000_000, frame(nak(3, nak_port=14391)))
    file = tmp_path / "both.pcap"
    file.write_bytes(pcap([*sent, asked]))
    layout = made_layout(tmp_path / "tables")
    take(layout, 0, packed_facts(facts_of([str(file)])))
    assert len(layout.sessions()) == 3
    made = pl.read_parquet(str(layout.root / "gold/findings/**/*.parquet"))
    assert "traffic" in made["topic"]
    assert "sessions" not in made["topic"]


def test_reading_tables_back_needs_no_spark(tmp_path: Path) -> None:
    """`umstack report --tables` and `umstack pipeline --compact` run with the extra `report` alone."""
    layout = made_layout(tmp_path / "tables")
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from umstack.pipeline.maintenance import compact_all\n"
        "from umstack.report import make_report_of_tables\n"
        f"compact_all({str(layout.root)!r}); make_report_of_tables({str(layout.root)!r}, {str(tmp_path / 'out')!r})"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert (tmp_path / "out" / "report.html").exists()


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """Usage errors, the error for a folder without tables, and maintenance as one object."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(command, [*arguments, "--tables", str(tmp_path)])

    for arguments, text in (
        ((), "name captures"),
        (("captures", "--compact"), "name captures"),
        (("captures", "--interface", "lo"), "need --topics"),
        (("captures", "--json"), "--json needs"),
        (("captures", "--work", "work"), "--work needs the URL"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert text in refused.output
    assert isinstance(run("--compact").exception, TablesError)
    layout = made_layout(tmp_path)
    take(layout, 0, packed_facts(facts_of([made_capture(tmp_path)])))
    files = len(layout.folders(FACTS))
    assert json.loads(run("--compact", "--json").output) == {
        "ok": True,
        "files_before": files,
        "files": files,
    }
    derived = json.loads(run("--derive-again", "--mtu", "9000", "--json").output)
    assert derived == {"ok": True, "sessions": len(layout.sessions())}
    assert read_tables(tmp_path)[3].mtu == 9000

"""Tables of parts without the times that no table needs are those of all times, however captures are divided.

So are those of losses that are judged by windows of numbers, each by another worker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import numpy as np
import pyarrow as pa

from tests.story import RECEIVERS, Story
from tests.truth_scenarios import SCENARIOS, scenarios
from tests.unit.capture_bytes import pcap, stalled_session
from tests.unit.unicast_bytes import lbtru_filtered, lbtru_session, lbttcp_session
from umstack.analysis import needed_times, numbering, rare_rows
from umstack.analysis.judged import Captured, Habits
from umstack.analysis.needed_times import EVERYTHING, Ranges, needed, outline, thinned
from umstack.analysis.rare_rows import by_window
from umstack.analysis.tables import tables_of, tables_of_part
from umstack.capture import decode
from umstack.capture.generate import Traffic, generate
from umstack.facts import row_pile
from umstack.facts import sends as sends_module
from umstack.facts.facts import Facts, facts_of, facts_of_packets
from umstack.facts.kept_times import KeptTimes, NotKeptError
from umstack.facts.packed import packed, unpacked
from umstack.facts.row_pile import RowPile
from umstack.facts.sends import Sends, SendsInPieces, expanded, neighbours_of
from umstack.facts.sessions import Session

SEED = random.SystemRandom().randrange(2**32)
GENERATED = Traffic(seed=5, sessions=2, receivers=3, messages_per_datagram=3, message_bytes=40, loss=0.02)
KINDS = ("switch", "receiver", "lbtru", "filtered", "lbttcp", "stalled")
BRIEF = Traffic(seed=7, sessions=1, message_bytes=40, loss=0.05, at_receiver=1)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only the first and the last time of each part, write few times to files, and divide numbers into small
    blocks: the parts here are short."""
    monkeypatch.setattr(needed_times, "_EDGE", 1)
    monkeypatch.setattr(sends_module, "_SPILL_SENDS", 50)
    monkeypatch.setattr(rare_rows, "_BLOCK_BITS", (4, 4))


def captures(kind: str, folder: Path) -> list[Path]:
    """Write captures of a kind."""
    path = folder / "switch.pcap"
    if kind in ("switch", "receiver"):
        return [generate(path, 3000, replace(GENERATED, at_receiver=1 if kind == "receiver" else None)).path]
    packets = {
        "lbtru": lbtru_session,
        "filtered": lambda: sorted(lbtru_filtered(), key=lambda one: one.time_ns),
        "lbttcp": lbttcp_session,
        "stalled": stalled_session,
    }[kind]
    path.write_bytes(pcap(packets()))
    return [path]


def rows_of(paths: list[Path]) -> list[pa.Table]:
    """Return the packets of each capture; a capture without any is left out."""
    found = [list(decode(str(path), only_ours=True)) for path in paths]
    return [pa.Table.from_batches(batches).combine_chunks() for batches in found if batches]


def divided(captured: list[pa.Table], chance: random.Random, *, mixes: bool = False) -> Iterator[Facts]:
    """Yield the facts of random parts: rows that follow each other, or with `mixes` any."""
    for rows in captured:
        order = list(range(len(rows)))
        if mixes:
            chance.shuffle(order)
        inner = range(1, len(order))
        cuts = sorted(chance.sample(inner, min(chance.randrange(1, 9), len(inner))))
        for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
            yield facts_of_packets(rows.take(sorted(order[start:stop])).combine_chunks().to_batches())


def disturbed(rows: pa.Table, how: str, chance: random.Random) -> pa.Table:
    """Return packets as a network or a clock changes them."""
    times = rows["time_ns"].to_numpy().copy()
    place = rows.schema.get_field_index("time_ns")
    some = chance.sample(range(40, len(rows) - 40), 60)
    if how == "copies":
        # Single ones, and all packets of two spans.
        again = np.array([*some, *range(300, 330), *range(310, 320)])
        later = rows.take(again).set_column(place, "time_ns", pa.array(times[again] + 2_000_000))
        rows = pa.concat_tables([rows, later])
        return rows.take(np.argsort(rows["time_ns"].to_numpy(), kind="stable"))
    if how == "reordered":
        for at in some:
            times[at] = times[min(len(times) - 1, at + chance.randrange(1, 30))] + 1
    else:
        times[len(times) // 2 :] -= 1_000_000
    return rows.set_column(place, "time_ns", pa.array(times))


def reduced(parts: list[Facts]) -> Facts:
    """Return the facts of all parts with the needed times, as they are sent."""
    outlines = [packed(_each(part, lambda _, sends: outline(sends))) for part in parts]
    try:
        numbers = needed(unpacked(outlines, spills=True).get(0, Facts()))
    except NotKeptError:
        numbers = {}
    thin = [_each(part, lambda one, sends: thinned(sends, numbers.get(one, EVERYTHING))) for part in parts]
    return unpacked(map(packed, thin), spills=True).get(0, Facts())


def _each(facts: Facts, change: Callable[[Session, Sends], Sends]) -> Facts:
    return replace(facts, sends={one: change(one[1:3], sends) for one, sends in facts.sends.items()})


def assert_same_tables(parts: list[Facts], chance: random.Random) -> Facts:
    """Compare the tables of the reduced parts, in any order, with those of all facts."""
    wanted = tables_of(Facts.merged(parts))
    chance.shuffle(parts)
    facts = reduced(parts)
    found = tables_of(facts)
    for name, table in wanted.items():
        assert found[name].equals(table), name
    assert_same_in_windows(facts, chance)
    return facts


def assert_same_in_windows(facts: Facts, chance: random.Random) -> None:
    """Compare the tables of losses that are judged by windows, in any order, with those judged at once.

    Sessions of several points are left out: their clocks are compared by all rows.
    """
    points: dict[Session, set[str]] = {}
    for point, publisher, session_id, _ in facts.sends:
        points.setdefault((publisher, session_id), set()).add(point)
    if any(len(several) > 1 for several in points.values()):
        return
    rows, count = facts.frame("rare"), chance.randrange(1, 6)
    parts = by_window(rows, count)
    windows = []
    for number in range(count):
        pile = RowPile()
        pile.add(parts.get(number, rows.clear()))
        windows.append(Captured.of(replace(facts, rare=pile)))
    habits = Habits.of(shown for one in windows for shown in one.habits())
    frames = [{name: rows} for one in windows for made in one.judged(habits) for name, rows in made.items()]
    chance.shuffle(frames)
    found = tables_of_part(replace(facts, rare=RowPile.of(rows.clear())), judged=frames)
    for name, table in tables_of_part(facts).items():
        assert found[name].equals(table), (name, count)


@pytest.mark.parametrize("mixes", [False, True], ids=["in order", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_captures_divided_at_random(kind: str, mixes: bool, tmp_path: Path) -> None:
    """Captures with losses, pauses and skipped numbers have the same tables from a few parts or from many."""
    print("seed", SEED)
    chance = random.Random(SEED)
    parts = list(divided(rows_of(captures(kind, tmp_path)), chance, mixes=mixes))
    assert_same_tables(parts, chance)


@pytest.mark.parametrize("kind", ["switch", "receiver"])
@pytest.mark.parametrize("how", ["copies", "reordered", "set back"])
def test_disturbed_captures(kind: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers seen again or out of order, and a clock that is set back, have the same tables from parts."""
    monkeypatch.setattr(needed_times, "_EDGE", 100)
    print("seed", SEED)
    chance = random.Random(SEED)
    [rows] = rows_of(captures(kind, tmp_path))
    parts = list(divided([disturbed(rows, how, chance)], chance))
    assert_same_tables(parts, chance)


def test_windows_share_the_habits_of_receivers_and_the_lives_of_a_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NAKs for other numbers show whether a receiver has stopped asking; a number of two lives is lost twice."""
    monkeypatch.setattr(rare_rows, "_BLOCK_BITS", (0, 0))
    monkeypatch.setattr(row_pile, "SLICE_ROWS", 2)
    ms = 1_000_000
    story = Story()
    for start in (10**18, 10**18 + 10_000 * ms):
        story.stream(start, ms, 1, 300)
        for sqn, nak_ms, again_ms in ((2, (10, 40), 41), (3, (50,), 24), (4, (200,), 201)):
            for after in nak_ms:
                story.nak(start + after * ms, RECEIVERS[0], sqn)
            story.again(start + again_ms * ms, sqn)
        story.nak(start + 20 * ms, RECEIVERS[1], 3)
    facts = story.facts()
    lost = tables_of(facts)["losses"].filter(receiver=RECEIVERS[0])
    assert lost["sqn"].to_list() == [2, 2, 3, 3, 4, 4]
    assert None not in lost["repaired_ns"]
    for seed in range(8):
        assert_same_in_windows(facts, random.Random(seed))


def test_each_packet_is_a_part(tmp_path: Path) -> None:
    """Facts of single packets have the same tables."""
    chance = random.Random(SEED)
    [rows] = rows_of([generate(tmp_path / "receiver.pcap", 200, BRIEF).path])
    parts = [facts_of_packets(rows.slice(at, 1).to_batches()) for at in range(len(rows))]
    assert len(parts) == 200
    assert_same_tables(parts, chance)


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=list(SCENARIOS))
def test_scenarios_divided_at_random(number: int, tmp_path: Path) -> None:
    """Every scenario of a network has the same tables: copies, restarts, clocks, tails, several points."""
    print("seed", SEED)
    chance = random.Random(SEED)
    parts = list(divided(rows_of(scenarios()[number].written(tmp_path)), chance))
    assert_same_tables(parts, chance)


def test_a_part_may_have_only_copies(tmp_path: Path) -> None:
    """Copies of a mirror that are alone in a part are counted as copies, and as nothing else."""
    made = scenarios()[list(SCENARIOS).index("mirror_of_two_ports")]
    [rows, *_] = rows_of(made.written(tmp_path))
    copied = rows.filter(rows["copy"])
    facts = facts_of_packets(copied.combine_chunks().to_batches())
    assert len(copied) == facts.remarks["packets"].sum() > 0
    assert not len(facts.counts)


def test_few_times_are_kept(tmp_path: Path) -> None:
    """Parts keep times in proportion to losses; a session that two points captured keeps all."""
    path = generate(tmp_path / "switch.pcap", 50_000, replace(GENERATED, sessions=1, loss=0.001)).path
    facts = facts_of([str(path)])
    [(stream, sends)] = reduced([facts]).sends.items()
    assert isinstance(sends.times_ns, KeptTimes)
    lost = len(tables_of(facts)["losses"])
    assert lost > 50
    assert len(sends.times_ns.places) < 3 * lost
    elsewhere = facts.renamed({stream[0]: "elsewhere"}, {})
    both = reduced([facts, elsewhere]).sends.values()
    assert all(not isinstance(one.times_ns, KeptTimes) for one in both)
    with pytest.raises(NotKeptError):
        np.diff(sends.times_ns)


def test_overlapping_parts_without_times_are_refused() -> None:
    """A copy among omitted times of another part has no place, even if the numbers seem to follow each other."""
    times = np.arange(10) * 10
    places = np.array([0, 9])
    kept = Sends.of_kept(places.astype(np.uint32), times[places], places)
    copy = Sends.of(np.zeros(1, np.uint32), np.array([45]))
    both = SendsInPieces()
    both.add(kept)
    both.add(copy)
    with pytest.raises(NotKeptError):
        both.sends()
    later = SendsInPieces()
    later.add(Sends.of(np.zeros(1, np.uint32), np.array([95])))
    later.add(kept)
    numbers, times_ns, found = later.sends().kept()
    assert [numbers.tolist(), times_ns.tolist(), found.tolist()] == [[0, 9, 0], [0, 90, 95], [0, 9, 10]]


def test_runs_by_number_are_those_of_single_numbers() -> None:
    """Runs that overlap are in the order that all their numbers have, one by one, by number and time."""
    print("seed", SEED)
    chance = random.Random(SEED)
    for _ in range(200):
        firsts = np.array([chance.randrange(60) for _ in range(chance.randrange(1, 12))])
        lengths = np.array([chance.randrange(1, 15) for _ in firsts])
        times = np.arange(int(lengths.sum())) * 10
        sqns = expanded(firsts, lengths)
        order = np.lexsort((times, sqns))
        starts = np.concatenate(([0], np.flatnonzero(np.diff(sqns[order]) != 1) + 1))
        wanted = [sqns[order][starts], np.diff(starts, append=len(sqns)), times[order]]
        found = numbering._by_number(firsts, lengths, times)
        kept = numbering._by_number(firsts, lengths, KeptTimes(np.arange(len(times)), times))
        assert [one.tolist() for one in found] == [one.tolist() for one in wanted]
        assert kept[2].places.tolist() == list(range(len(times)))
        assert kept[2].times_ns.tolist() == wanted[2].tolist()


def test_omitted_times_are_no_pause() -> None:
    """The neighbours of a time are those in the capture, and none are between two kept times with others between."""
    sends = Sends.of(np.arange(100, dtype=np.uint32), np.arange(100) * 10)
    places = np.array([0, 1, 50, 99])
    kept = Sends.of_kept(sends.sqns[places], sends.times_ns[places], places)
    wanted = np.array([-1, 0, 5, 10, 250, 499, 501, 990, 991])
    within, before_ns, after_ns = neighbours_of(kept.times_ns, wanted)
    assert wanted[within].tolist() == [5, 10]
    assert [before_ns.tolist(), after_ns.tolist()] == [[0, 0], [10, 10]]
    assert neighbours_of(sends.times_ns, wanted)[0].tolist() == [False, False, *[True] * 6, False]


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ([], []),
        ([(5, 7), (6, 9), (11, 11)], [(5, 9), (11, 11)]),
        ([(3, 9), (4, 5), (9, 10), (11, 12)], [(3, 12)]),
        ([(2**32 - 2, 2**32 + 1)], [(0, 1), (2**32 - 2, 2**32 - 1)]),
        ([(-3, 2)], [(0, 2), (2**32 - 3, 2**32 - 1)]),
        ([(7, 7 + 2**32)], [(0, 2**32 - 1)]),
    ],
)
def test_ranges_of_wire_numbers(ranges: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    """Ranges of unwrapped numbers become ranges on the wire, joined where they overlap or meet."""
    firsts, lasts = (np.array([one[end] for one in ranges], np.int64) for end in (0, 1))
    found = Ranges.of(firsts, lasts)
    assert list(zip(found.firsts.tolist(), found.lasts.tolist(), strict=True)) == wanted
    numbers = np.array([0, 1, 2, 4, 9, 10, 12, 13, 2**32 - 1], np.uint32)
    held = [any(first <= one <= last for first, last in wanted) for one in numbers.tolist()]
    assert found.hold(numbers).tolist() == held

"""Facts: everything that the analyses need from captures, counted once while packets are decoded.

Merging the facts of two parts of a capture, in any order, gives the facts of the whole: counts add up, spans widen, and
rows are sorted. A part can be a file of a rotation, a split of a file, or the packets appended since the last run.
Sequence numbers are 32-bit wire numbers; the facts `references` hold the numbers needed to unwrap them.

Memory: one row per millisecond of a session. The rows of NAKs, NCFs and retransmissions can be in a file
(`umstack.facts.row_pile`). Errors: `CaptureError` for files that cannot be read. No object here is shared by threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from umstack.capture import CaptureNotes, decode
from umstack.capture.reading.capture_files import copies
from umstack.capture.reading.schema import LBTRU, LBTTCP
from umstack.capture.reading.split import Split
from umstack.capture.reading.tally import Tally
from umstack.facts.kinds import (
    BUCKET_NS,
    DATA,
    EPOCH_NS,
    FILTER,
    KINDS,
    NAK,
    NCF,
    NEEDED,
    NOTE,
    RETRANSMISSION,
    SEGMENTS,
    SESSION_MESSAGE,
)
from umstack.facts.labels import labelled
from umstack.facts.marks import MarkPile, sampled, sent_marks
from umstack.facts.packet_columns import note_status, select, sent_messages, stream_messages, topics
from umstack.facts.points import points, points_in, renamed, series_of
from umstack.facts.recovered import recovery_frames
from umstack.facts.row_pile import RowPile
from umstack.facts.runs import coalesced, passed_coalesced, passed_of, runs_of
from umstack.facts.schema import FACTS, frame_schema, merges
from umstack.facts.sends import Sends, SendsInPieces, Stream
from umstack.facts.sessions import (
    Receiver,
    Session,
    identified,
    receivers_in,
    renumbered,
    sessions_in,
    with_receivers,
)
from umstack.facts.tallied import copies_remark, tallied

_MANY_PIECES = 128

_KEY = ("point", "publisher", "session_id")
_FRAMES = tuple(name for name in FACTS if name not in ("sends", "rare"))
"""The frames that are held in memory. They grow with the milliseconds, not with the losses."""


@dataclass(slots=True)
class Facts:
    """Facts of captures, one frame per kind. `packets` counts all packets of the stack, of every type."""

    packets: int = 0
    sends: dict[Stream, Sends] = field(default_factory=dict)
    """First sendings in order of time, by point of capture, publisher, session id and, over LBT-RU, receiver."""
    counts: pl.DataFrame = field(default_factory=lambda: _nothing("counts"))
    rates: pl.DataFrame = field(default_factory=lambda: _nothing("rates"))
    """Rates of the datagrams sent to multicast groups."""
    receiver_rates: pl.DataFrame = field(default_factory=lambda: _nothing("receiver_rates"))
    """Rates of the data sent to each receiver over LBT-RU and LBT-TCP."""
    sizes: pl.DataFrame = field(default_factory=lambda: _nothing("sizes"))
    topics: pl.DataFrame = field(default_factory=lambda: _nothing("topics"))
    runs: pl.DataFrame = field(default_factory=lambda: _nothing("runs"))
    passed: pl.DataFrame = field(default_factory=lambda: _nothing("passed"))
    """Over LBT-RU, the runs of datagrams that a filtering source skipped for a receiver."""
    references: pl.DataFrame = field(default_factory=lambda: _nothing("references"))
    leads: pl.DataFrame = field(default_factory=lambda: _nothing("leads"))
    """Leads of session messages, which reveal that the last datagrams before them are missing."""
    rare: RowPile = field(default_factory=lambda: RowPile.of(_nothing("rare")))
    """In any order; `frame` returns them sorted."""
    recoveries: pl.DataFrame = field(default_factory=lambda: _nothing("recoveries"))
    stores: pl.DataFrame = field(default_factory=lambda: _nothing("stores"))
    marks: pl.DataFrame = field(default_factory=lambda: _nothing("marks"))
    """When some numbers were sent, and acknowledged by Stores: a sample of each topic, the same for all parts."""
    endpoints: pl.DataFrame = field(default_factory=lambda: _nothing("endpoints"))
    remarks: pl.DataFrame = field(default_factory=lambda: _nothing("remarks"))
    fragments: pl.DataFrame = field(default_factory=lambda: _nothing("fragments"))

    @classmethod
    def merged(cls, parts: Iterable[Facts]) -> Facts:
        """Return the facts of all parts together. Their order does not matter."""
        pieces = Pieces()
        for part in parts:
            pieces.packets += part.packets
            for stream, sends in part.sends.items():
                pieces.add_sends(stream, sends)
            for name, frame in part.frames():
                pieces.add(name, frame)
        return pieces.facts()

    def frames(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield the name and rows of each frame; those of `rare` in several parts if there are many."""
        for name in _FRAMES:
            yield name, getattr(self, name)
        for rows in self.rare.slices():
            yield "rare", rows

    def frame(self, name: str) -> pl.DataFrame:
        """Return the rows of a frame in order. Memory holds all of them."""
        if name == "rare":
            return _combined(name, self.rare.frame())
        rows: pl.DataFrame = getattr(self, name)
        return rows

    def points(self) -> set[str]:
        """Return all points of capture."""
        return points_in(frame for _, frame in self.frames()) | {stream[0] for stream in self.sends}

    def sessions(self) -> set[Session]:
        """Return all sessions."""
        return sessions_in(frame for _, frame in self.frames()) | {stream[1:3] for stream in self.sends}

    def renamed(self, names: Mapping[str, str], numbers: Mapping[Session, int]) -> Facts:
        """Return the facts with these names of points and numbers of sessions."""

        def change(rows: pl.DataFrame) -> pl.DataFrame:
            return renumbered(renamed(rows, names), numbers)

        frames = {name: change(getattr(self, name)) for name in _FRAMES}
        sends = {
            (names.get(point, point), publisher, numbers.get((publisher, number), number), receiver): rows
            for (point, publisher, number, receiver), rows in self.sends.items()
        }
        return Facts(self.packets, sends, rare=self.rare.changed(change), **frames)

    def receivers(self) -> set[Receiver]:
        """Return all receivers of multicast sessions whose port is known."""
        return receivers_in(self.counts)

    def with_receivers(self, names: Mapping[Receiver, str]) -> Facts:
        """Return the facts with these names of receivers."""
        rare = self.rare.changed(lambda rows: with_receivers(rows, names))
        return replace(self, counts=with_receivers(self.counts, names), rare=rare)

    def equals(self, other: Facts) -> bool:
        """Return true if all counts and rows are equal."""
        return (
            self.packets == other.packets
            and self.sends.keys() == other.sends.keys()
            and all(sends.equals(other.sends[stream]) for stream, sends in self.sends.items())
            and all(self.frame(name).equals(other.frame(name)) for name in (*_FRAMES, "rare"))
        )


def _nothing(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema=frame_schema(name))


def _combined(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Combine the rows of several parts. The order of the result does not depend on the order of the parts."""
    if not len(rows):
        return rows
    if name == "rare":
        return rows.sort(*_RARE_ORDER, pl.col("sqns").list.eval(pl.element().cast(pl.String)).list.join(","))
    if name == "runs":
        return coalesced(rows)
    if name == "passed":
        return passed_coalesced(rows)
    if name == "marks":
        return sampled(_totalled(name, rows))
    if name == "references":
        key = ["publisher", "session_id", "epoch"]
        return rows.sort(*key, "time_ns", "sqn").unique(key, keep="first", maintain_order=True)
    return _totalled(name, rows)


def _totalled(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    how = merges(name)
    key = [column for column, by in how.items() if by == "key"]
    totals = [_TOTALS[by](pl.col(column)) for column, by in how.items() if by != "key"]
    return rows.group_by(key).agg(totals).select(list(how)).sort(key)


_TOTALS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "sum": pl.Expr.sum,
    "min": pl.Expr.min,
    "max": pl.Expr.max,
}


_RARE_ORDER = (
    *("publisher", "session_id", "time_ns", "kind", "point", "receiver", "sqn", "ncf_reason", "udp_bytes"),
)


class Pieces:
    """Collects rows of facts and combines them into one frame per kind."""

    def __init__(self, *, spills: bool = False) -> None:
        """Start without rows. If `spills`, the times of many first sendings and many rows of `rare` are kept in
        files."""
        self._spills = spills
        self.packets = 0
        self._rare = RowPile(spills=spills)
        self._rare.add(_nothing("rare"))
        self.marks = MarkPile()
        """Marks of sendings that the core counted."""
        self._of: dict[str, list[pl.DataFrame]] = {}
        self._sends: dict[Stream, SendsInPieces] = {}

    def add(self, name: str, rows: pl.DataFrame) -> None:
        """Add rows with the schema of `name`. Many pieces are combined, so memory does not grow with the batches."""
        if name == "rare":
            self._rare.add(rows)
            return
        if not len(rows):
            return
        waiting = self._of.setdefault(name, [])
        waiting.append(rows)
        if len(waiting) >= _MANY_PIECES:
            self._of[name] = [_combined(name, pl.concat(waiting))]

    def add_sends(self, stream: Stream, sends: Sends) -> None:
        """Add first sendings. There are none if every packet was cut before its sequence number."""
        if not len(sends):
            return
        if stream not in self._sends:
            self._sends[stream] = SendsInPieces(spills=self._spills)
        self._sends[stream].add(sends)

    def facts(self) -> Facts:
        """Return the facts of everything added."""
        for rows in self.marks.frames():
            self.add("marks", rows)
        self.marks = MarkPile()
        frames = {
            name: _combined(name, pl.concat([_nothing(name), *self._of.get(name, [])])) for name in _FRAMES
        }
        sends = {stream: self._sends[stream].sends() for stream in sorted(self._sends)}
        return Facts(self.packets, sends, rare=self._rare, **frames)


def facts_of(sources: Sequence[str | Split], *, hardware_times: bool = False) -> Facts:
    """Return the facts of files, or splits of files. Each is decoded once; of identical files only one is read.

    The times of first sendings, whose size grows with the captures, and the rows of `rare`, which grow with the losses,
    are kept in unnamed files in TMPDIR or /var/tmp.
    """
    doubles = copies([one for one in sources if isinstance(one, str)])
    counter = Counter(spills=True)
    for source in sources:
        if isinstance(source, str) and source in doubles:
            counter.note(source, f"the same as {doubles[source]}, not read again")
            continue
        notes = CaptureNotes()
        read = decode(source, only_ours=True, notes=notes, tally=counter.tally, hardware_times=hardware_times)
        for batch in read:
            counter.take(batch)
        for note in notes.notes:
            counter.note(notes.path, note.template, note.count)
    return counter.facts().get(0, Facts())


def facts_of_packets(batches: Iterable[pa.RecordBatch]) -> Facts:
    """Return the facts of packets decoded elsewhere, in batches as `umstack.capture.decode` yields them."""
    counter = Counter()
    for batch in batches:
        counter.take(batch)
    return counter.facts().get(0, Facts())


class Counter:
    """Counts packets while they are decoded. The facts are grouped by windows of time if `window_ns` is not 0."""

    def __init__(self, window_ns: int = 0, *, spills: bool = False) -> None:
        """Start without packets. If `spills`, the times of many first sendings and many rows of `rare` are kept in
        files."""
        self._spills = spills
        self._window_ns = window_ns
        self._pieces: dict[int, Pieces] = {}
        self.tally = Tally(window_ns, EPOCH_NS)
        """An argument of `decode`: the core counts first sendings here, and take() collects them each batch."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Count the packets of a batch, and those in the tally."""
        if len(self.tally):
            self._take_tally()
        if not len(batch):
            return
        for window_ns, rows in self._by_window(identified(batch)):
            pieces = self._of(window_ns)
            pieces.packets += len(rows)
            rows = _without_copies(pieces, rows)
            if not len(rows):
                continue
            messages = sent_messages(rows)
            _take_topics(pieces, topics(rows, messages))
            _take_runs(pieces, stream_messages(rows, messages))
            pieces.add("marks", _shaped("marks", sent_marks(rows, messages)))
            for name, found in recovery_frames(rows):
                pieces.add(name, _combined(name, _shaped(name, found)))
            _take(pieces, select(rows, [*NEEDED]))

    def _take_tally(self) -> None:
        tally = self.tally
        with tally.emptied() as found:
            for window_ns, counts in tallied(found, tally.path, tally.interfaces, self._window_ns).items():
                pieces = self._of(window_ns)
                pieces.packets += counts.packets
                for stream, rows in counts.sends:
                    pieces.add_sends(stream, rows)
                for sender, marks in counts.marks:
                    pieces.marks.add(sender, marks)
                for name, frame in counts.frames:
                    pieces.add(name, frame)

    def note(self, path: str, template: str, count: int | None = None) -> None:
        """Keep a note on a file (`CaptureNote.template` and `count`). It has no time."""
        row = {
            "point": series_of(path),
            "kind": NOTE,
            "status": note_status(path, template),
            "packets": 1 if count is None else count,
        }
        self._of(0).add("remarks", pl.DataFrame([row], frame_schema("remarks")))

    def facts(self) -> dict[int, Facts]:
        """Return the facts by window. Remarks without a time, and everything if there are no windows, are at key 0."""
        return {window_ns: pieces.facts() for window_ns, pieces in sorted(self._pieces.items())}

    def _of(self, window_ns: int) -> Pieces:
        if window_ns not in self._pieces:
            self._pieces[window_ns] = Pieces(spills=self._spills)
        return self._pieces[window_ns]

    def _by_window(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not self._window_ns:
            yield 0, batch
            return
        times = pc.fill_null(batch.column("time_ns"), 0).to_numpy()
        windows = times // self._window_ns * self._window_ns
        if windows[0] == windows[-1] and (windows == windows[0]).all():
            yield int(windows[0]), batch
            return
        for window_ns in np.unique(windows).tolist():
            yield window_ns, batch.filter(pa.array(windows == window_ns))


def _without_copies(pieces: Pieces, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the packets that are no copies; the copies are counted as a remark."""
    copied = pc.fill_null(batch.column("copy"), False)
    if not pc.any(copied).as_py():
        return batch
    counts = points(batch).filter(copied).value_counts()
    for point, packets in zip(
        counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True
    ):
        pieces.add("remarks", copies_remark(point, packets))
    return batch.filter(pc.invert(copied))


def _take_topics(pieces: Pieces, batch: pa.RecordBatch) -> None:
    if not len(batch):
        return
    counted = pl.from_arrow(batch)
    assert isinstance(counted, pl.DataFrame)
    named = counted.rename(
        {"source_address": "publisher", "message_sqn_low": "lowest_sqn", "message_sqn_high": "highest_sqn"}
    )
    pieces.add("topics", _combined("topics", _shaped("topics", named)))


def _take_runs(pieces: Pieces, messages: pa.Table | None) -> None:
    if messages is not None and len(messages):
        found = pl.from_arrow(messages)
        assert isinstance(found, pl.DataFrame)
        pieces.add("runs", _shaped("runs", runs_of(found)))


def _shaped(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.col(column).cast(kind) for column, kind in frame_schema(name).items())


def _take(pieces: Pieces, batch: pa.RecordBatch) -> None:
    for kind, of_kind in labelled(batch):
        rows = pl.from_arrow(of_kind)
        assert isinstance(rows, pl.DataFrame)
        rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String), kind=pl.lit(kind))
        if kind in SEGMENTS:
            _take_segments(pieces, rows)
        elif kind in KINDS:
            _take_session(pieces, kind, rows)
        _take_remarks(pieces, kind, rows)


def _take_remarks(pieces: Pieces, kind: str, rows: pl.DataFrame) -> None:
    remarkable = rows if kind not in KINDS else rows.filter(pl.col("status") != "ok")
    if len(remarkable):
        counted = remarkable.group_by("point", "kind", "status").agg(packets=pl.len())
        pieces.add("remarks", _shaped("remarks", counted))
    cut = rows.filter("ip_fragment") if kind != NOTE else rows.clear()
    if len(cut):
        counted = cut.group_by("source_address", "destination_address").agg(
            fragments=pl.col("ip_fragments").sum(),
            bytes=pl.col("frame_bytes").sum(),
            first_ns=pl.col("time_ns").min(),
            last_ns=pl.col("time_ns").max(),
        )
        pieces.add("fragments", _shaped("fragments", counted))


def _counted(rows: pl.DataFrame, volume: str) -> pl.DataFrame:
    return rows.group_by([*_KEY, "receiver", "group", "kind", "block"]).agg(
        transport=pl.col("transport").max(),
        first_ns=pl.col("time_ns").min(),
        last_ns=pl.col("time_ns").max(),
        packets=pl.len(),
        messages=pl.col("message_count").sum(),
        message_bytes=pl.col("message_bytes").cast(pl.Int64).sum(),
        udp_bytes=pl.col(volume).cast(pl.Int64).sum(),
    )


def _take_segments(pieces: Pieces, rows: pl.DataFrame) -> None:
    """Count segments of an LBT-TCP connection, or of a TCP connection whose protocol is still unknown."""
    pieces.add("counts", _shaped("counts", _counted(rows, "tcp_bytes")))
    of_session = rows.filter((pl.col("transport") == LBTTCP) & ~pl.col("to_source"))
    _take_rates(pieces, of_session.filter(pl.col("tcp_bytes") > 0), is_repair=False)


def _take_rates(pieces: Pieces, rows: pl.DataFrame, *, is_repair: bool) -> None:
    start = (pl.col("time_ns") // BUCKET_NS * BUCKET_NS).alias("start_ns")
    volume = pl.col("frame_bytes").cast(pl.Int64).sum()
    by_ms = rows.group_by([*_KEY, "receiver", start]).agg(datagrams=pl.len(), bytes=volume)
    again = {
        "retransmissions": pl.col("datagrams") if is_repair else pl.lit(0),
        "retransmitted_bytes": pl.col("bytes") if is_repair else pl.lit(0),
    }
    whole, to_group = by_ms.with_columns(**again), pl.col("receiver").is_null()
    pieces.add("rates", _shaped("rates", whole.filter(to_group)))
    pieces.add("receiver_rates", _shaped("receiver_rates", whole.filter(~to_group)))


def _take_session(pieces: Pieces, kind: str, rows: pl.DataFrame) -> None:
    is_data, is_repair = kind == DATA, kind == RETRANSMISSION
    pieces.add("counts", _shaped("counts", _counted(rows, "udp_bytes")))
    if is_data or is_repair:
        _take_rates(pieces, rows, is_repair=is_repair)
    if is_data:
        stream_key = [*_KEY, "receiver"]
        sendings = rows.select([*stream_key, "sqn", "time_ns"])
        for stream, sent in sendings.partition_by(stream_key, as_dict=True).items():
            numbers = sent.filter(pl.col("sqn").is_not_null())
            sqns = numbers["sqn"].cast(pl.UInt32).to_numpy()
            sends = Sends.of(sqns, numbers["time_ns"].to_numpy())
            pieces.add_sends((stream[0], stream[1], stream[2], stream[3] or ""), sends)
        with_messages = rows.filter(pl.col("message_count") > 0)
        sized = with_messages.group_by([*stream_key, "block", "udp_bytes", "message_count"])
        wide = sized.agg(
            datagrams=pl.len(),
            message_bytes=pl.col("message_bytes").cast(pl.Int64).sum(),
            frame_bytes=pl.col("frame_bytes").cast(pl.Int64).sum(),
        )
        pieces.add("sizes", _shaped("sizes", wide))
    if is_data or kind == FILTER:
        of_lbtru = rows.filter(pl.col("transport") == LBTRU)
        if len(of_lbtru):
            pieces.add("passed", _shaped("passed", passed_of(kind, of_lbtru)))
    if is_data or is_repair or kind == SESSION_MESSAGE:
        epoch = (pl.col("time_ns") // EPOCH_NS).alias("epoch")
        numbered = rows.filter(pl.col("sqn").is_not_null()).with_columns(epoch)
        if kind == SESSION_MESSAGE:
            time = pl.col("time_ns")
            by_lead = numbered.group_by([*_KEY, "receiver", "epoch", "sqn"])
            pieces.add("leads", _shaped("leads", by_lead.agg(first_ns=time.min(), last_ns=time.max())))
            # The number after its lead, because a session that starts at 0 has a lead of 2**32 - 1 before it sends.
            numbered = numbered.with_columns(sqn=(pl.col("sqn") + 1) % 2**32)
        first = pl.struct("time_ns", "sqn").sort_by("time_ns", "sqn").first().alias("first")
        found = numbered.group_by("publisher", "session_id", "epoch").agg(first).unnest("first")
        pieces.add("references", _shaped("references", found))
    if kind in (NAK, NCF, RETRANSMISSION):
        pieces.add("rare", _shaped("rare", rows))

"""Losses, recovery and NAK storms, judged slice by slice of the sequence numbers.

A slice has all rows of its numbers (`umstack.analysis.rare_rows`), so several workers can judge the slices of a
session. This takes two steps, because the habits of a receiver show only in all slices: `habits`, then `judged`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from umstack.analysis import losses
from umstack.analysis.clocks import Clocks, on_one_clock
from umstack.analysis.numbering import Numbered, Seen
from umstack.analysis.rare_rows import RareSlices
from umstack.analysis.stalls import last_of_each, paced_streams, stalls_of
from umstack.analysis.suggestions import Waits
from umstack.facts.facts import Facts
from umstack.facts.sessions import short_receivers

Frames = dict[str, pl.DataFrame]
"""Frames of a slice by name."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How long receivers wait, and where most of their NAKs were captured."""

    retries: pl.DataFrame
    best: pl.DataFrame

    @classmethod
    def of(cls, slices: Iterable[Frames]) -> Habits:
        """Combine the habits that slices show. Their frames may come one by one."""
        found = list(slices)
        return cls(
            losses.longest_retries(one["retries"] for one in found if "retries" in one),
            losses.best_of(one["points"] for one in found if "points" in one),
        )


@dataclass(frozen=True, slots=True)
class Captured:
    """Facts with unwrapped numbers, all times on one clock, and short names of receivers."""

    facts: Facts
    numbered: Numbered
    everything: list[Seen]
    compared: Clocks
    slices: RareSlices
    as_captured: RareSlices
    """The slices with the times of each point's own clock."""

    @classmethod
    def of(cls, facts: Facts) -> Captured:
        """Unwrap the numbers of facts and compare the clocks."""
        facts = facts.with_receivers(short_receivers(facts.receivers()))
        numbered = Numbered.of(facts)
        as_captured = RareSlices.of(facts, numbered.known)
        everything, slices, compared = on_one_clock(numbered.everything, as_captured)
        return cls(facts, numbered, everything, compared, slices, as_captured)

    def habits(self) -> Iterator[Frames]:
        """Yield for each slice what it shows of the receivers' habits, for `Habits.of`."""
        for rows in self.slices:
            retries = losses.retries_of(rows, self.everything)
            yield {"retries": retries, "points": losses.points_of(rows)}

    def judged(self, habits: Habits) -> Iterator[Frames]:
        """Yield the frames of each slice, for `Judged.add`. `habits` are those of all slices."""
        paced = paced_streams(self.facts)
        is_one = self.slices is self.as_captured
        pairs = ((rows, rows) for rows in self.slices)
        for rows, own in pairs if is_one else zip(self.slices, self.as_captured, strict=True):
            lost = losses.losses_of(rows, self.everything, habits.retries)
            yield {
                "losses": lost,
                **Waits.of_slice(lost, losses.asked(rows, habits.best)),
                "requests": losses.requested(rows, habits.best),
                "repairs": losses.counted_repairs(rows),
                "refusals": losses.counted_refusals(rows),
                "stalls": stalls_of(own, paced),
            }


class Judged:
    """Collects the frames of all slices, in any order. The rows that grow with losses are in files."""

    def __init__(self) -> None:
        """Start without slices."""
        self.losses, self.waits, self._storms = losses.Losses(), Waits(), losses.Storms()
        self._counted: dict[str, list[pl.DataFrame]] = {"repairs": [], "refusals": [], "stalls": []}
        self._adders: dict[str, Callable[[pl.DataFrame], None]] = {
            "losses": self.losses.add,
            "waits": self.waits.add_losses,
            "repeats": self.waits.add_repeats,
            "retried": self.waits.add_retried,
            "requests": self._storms.add,
            **{name: parts.append for name, parts in self._counted.items()},
        }

    def add(self, frames: Frames) -> None:
        """Add frames of a slice. Each frame of each slice must be added once."""
        for name, rows in frames.items():
            self._adders[name](rows)

    def tables(self) -> Frames:
        """Return the finished tables of everything added."""
        return {
            "losses": self.losses.frame(),
            "repairs": losses.total_repairs(self._counted["repairs"], self._counted["refusals"]),
            "stalls": last_of_each(pl.concat(self._counted["stalls"])),
            "nak_storms": self._storms.frame(),
            "recovery_latency": losses.recovery_latency(self.losses),
            "recovery_histogram": losses.recovery_histogram(self.losses),
        }

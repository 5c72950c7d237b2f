"""Times of some of the first sendings of a session, by index, for analyses that do not need all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


class NotKeptError(LookupError):
    """A time that was not kept is needed."""


@dataclass(frozen=True, slots=True)
class KeptTimes:
    """The times of some first sendings. Indices count all of them, as those of an array of all times do."""

    places: Any
    """Indices in ascending order. The first and the last sending are among them."""
    times_ns: Any
    """The time of each of these, int64."""

    def __len__(self) -> int:
        return int(self.places[-1]) + 1

    def __getitem__(self, wanted: Any) -> Any:
        """Return the time at an index, or the times at an array of indices. NotKeptError if one was not kept."""
        places = np.asarray(wanted)
        places = np.where(places < 0, places + len(self), places)
        at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
        if np.any(self.places[at] != places):
            raise NotKeptError(f"a time of {len(self)} was not kept, {len(self.places)} were")
        return self.times_ns[at]

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raise NotKeptError: numpy would take this for an array of all times."""
        raise NotKeptError("all times are needed, and only some were kept")

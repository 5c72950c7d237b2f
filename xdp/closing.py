"""Base class of objects with close(): `with` closes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Ends with the block it was opened for."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """End it and release what it holds."""

    def __enter__(self) -> Self:
        """Nothing more to do: it is open from its creation on."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

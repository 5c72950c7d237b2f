"""Buffer and ArrowArray: the types of one payload and of many, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy.typing
    import typing_extensions  # known to every type checker; collections.abc has Buffer from CPython 3.12 on

    # The annotations of NumPy arrays declare the buffer protocol for CPython 3.12 and later only.
    Buffer = typing_extensions.Buffer | numpy.typing.NDArray[Any]
else:
    Buffer = Any
"""An object that exports a contiguous buffer: bytes, bytearray, memoryview, array, a NumPy array."""


class ArrowArray(Protocol):
    """A pyarrow.Array, which has no types without further packages."""

    def buffers(self) -> Any:
        """Return its buffers: validity, offsets and data."""

"""libbpf itself, for what others may do on a host and this project does not."""

from __future__ import annotations

import ctypes


def libbpf() -> ctypes.CDLL:
    """The library of the system. Its functions return a negative errno when they fail."""
    return ctypes.CDLL("libbpf.so.1", use_errno=True)

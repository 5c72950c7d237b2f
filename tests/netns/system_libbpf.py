"""The system's libbpf, with which tests do what other programs on a host do, such as detaching a link."""

from __future__ import annotations

import ctypes
import os


def libbpf() -> ctypes.CDLL:
    """Return the system's library. Its functions return a negative errno when they fail."""
    return ctypes.CDLL("libbpf.so.1", use_errno=True)


def detach_link(link_id: int) -> None:
    """Detach a program that another process holds, as `bpftool link detach` does."""
    link = libbpf().bpf_link_get_fd_by_id(link_id)
    assert link >= 0
    try:
        assert libbpf().bpf_link_detach(link) == 0
    finally:
        os.close(link)

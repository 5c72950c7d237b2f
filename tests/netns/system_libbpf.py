"""libbpf itself, for what others may do on a host and this project does not."""

from __future__ import annotations

import ctypes
import os


def libbpf() -> ctypes.CDLL:
    """The library of the system. Its functions return a negative errno when they fail."""
    return ctypes.CDLL("libbpf.so.1", use_errno=True)


def detach_link(link_id: int) -> None:
    """Do what `bpftool link detach` does: take off a program that somebody else holds."""
    link = libbpf().bpf_link_get_fd_by_id(link_id)
    assert link >= 0
    try:
        assert libbpf().bpf_link_detach(link) == 0
    finally:
        os.close(link)

"""A build that was interrupted is repeated by the next one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ffi"))

import build  # noqa: E402


def test_a_module_whose_linker_failed_is_linked_again(tmp_path: Path) -> None:
    """A linker that ends early leaves an empty file, newer than its objects and linked by the same command before."""
    marker, target, source = tmp_path / "fails", tmp_path / "module.so", tmp_path / "object.o"
    linker = tmp_path / "linker"
    linker.write_text(f'#!/bin/sh\n[ -e {marker} ] && {{ : > "$3"; exit 1; }}\ncat "$1" > "$3"\n')
    linker.chmod(0o755)
    source.write_bytes(b"first")
    build.link([str(linker)], [source], target)
    assert target.read_bytes() == b"first"

    source.write_bytes(b"second")
    marker.touch()
    with pytest.raises(build.BuildError):
        build.link([str(linker)], [source], target)
    assert target.read_bytes() == b""

    marker.unlink()
    build.link([str(linker)], [source], target)
    assert target.read_bytes() == b"second"

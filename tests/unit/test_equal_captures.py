"""Captures with the same content: found without reading files that differ at an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from umstack.capture.reading import capture_files
from umstack.capture.reading.capture_files import copies


def test_only_files_with_equal_length_and_ends_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files of equal length, those that differ at an end are not read whole; others are compared by all bytes."""
    body = bytes(range(256)) * 100
    contents = {
        "a": b"head" + body + b"tail",
        "b": b"haed" + body + b"tail",
        "c": b"head" + body + b"tial",
        "d": b"head" + body + b"tail",
        "e": b"head" + body[:12800] + b"!" + body[12801:] + b"tail",
        "f": b"head" + body + b"tail and more",
        "g": b"",
        "h": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    hashed: list[str] = []
    original = capture_files._digest

    def counted(path: str) -> bytes:
        hashed.append(Path(path).name)
        return original(path)

    monkeypatch.setattr(capture_files, "_digest", counted)
    found = copies(str(tmp_path / name) for name in contents)
    assert found == {str(tmp_path / "d"): str(tmp_path / "a")}
    assert sorted(hashed) == ["a", "d", "e"]

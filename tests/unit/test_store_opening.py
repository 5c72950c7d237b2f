"""The state of a repository that is opened again: the next commit and position, and the numbers that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from umstack._core import ffi
from umstack.store.repository import Repository, RepositorySettings
from umstack.store.repository.opening import _gaps

SMALL = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)


def test_only_gaps_between_spans_of_one_source_are_missing() -> None:
    """The numbers between two sources belong to neither."""
    spans = ffi.new("um_store_span[3]")
    for span, (source, first, last) in zip(spans, ((1, 0, 1), (1, 4, 5), (2, 9, 9)), strict=True):
        span.source, span.first_sqn, span.last_sqn = source, first, last
    assert [(one.source, one.first_sqn, one.last_sqn) for one in _gaps(spans, 3)] == [(1, 2, 3)]


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def test_a_log_without_messages_goes_on_at_its_position(tmp_path: Path) -> None:
    """The newest segment stays although nothing of it is kept: neither position nor commit number begins again."""
    with Repository(tmp_path, SMALL) as repository:
        source = repository.register_source("orders", 7).number
        repository.append(source, 0, b"x")
        repository.commit()
    with Repository(tmp_path, SMALL) as repository:
        before = repository._next_position, repository._next_commit
        repository.release({source: 1})
        repository.reclaim()
        assert len(_segments(tmp_path)) == 1
    with Repository(tmp_path, SMALL) as repository:
        assert (repository._next_position, repository._next_commit) == before
        assert repository.read(source, 0) == []


@pytest.mark.parametrize("is_torn", [False, True])
def test_the_number_of_an_interrupted_commit_is_not_used_again(tmp_path: Path, is_torn: bool) -> None:
    """Otherwise records that it left behind would pass for those of the next commit."""
    folder = tmp_path / "written"
    with Repository(folder, SMALL) as repository:
        source = repository.register_source("orders", 7).number
        repository.append(source, 0, b"whole")
        repository.commit()
        (file,) = _segments(folder)
        end = len(file.read_bytes().rstrip(b"\0"))
        repository.append(source, 1, b"interrupted")
        repository.commit()
        content = bytearray(file.read_bytes())
        if is_torn:
            content[-(-end // 8) * 8 + 4] ^= 1
        crashed = bytes(content)
    file.write_bytes(crashed)
    with Repository(folder, SMALL) as repository:
        assert len(list(repository.recovery.damaged)) == is_torn
        assert [one.sqn for one in repository.read(source, 0)] == ([0] if is_torn else [0, 1])
        assert repository._next_commit == 3

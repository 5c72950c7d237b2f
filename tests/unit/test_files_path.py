"""Which paths and links may travel: none that leads out of the tree, by whatever combination."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umstack.files import UnsafePath
from umstack.files.path import check_link, path_parts, shown

NAMES = st.sampled_from([b"a", b"b", b"..", b".", b"", b"x y", b"\xff"])
HOSTILE = [
    b"",
    b"/etc/passwd",
    b"..",
    b"../up",
    b"a/../../up",
    b"a/..",
    b"./a",
    b"a//b",
    b"a/",
    b"a\0b",
    b"a/\0",
    b"n" * 256,
    b"/".join([b"d"] * 129),
    b"/".join([b"n" * 200] * 21),
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_path_is_refused(path: bytes) -> None:
    """Absolute, climbing, empty, too long or too deep: no such path travels."""
    with pytest.raises(UnsafePath):
        path_parts(path)


@pytest.mark.parametrize("path", [b"a", b"a/b", b"...", b"..a", b"a b/\xff\xfe", b"-rf", b"~", b"n" * 255])
def test_an_odd_but_harmless_path_is_taken(path: bytes) -> None:
    """Names that the file system accepts and that stay inside the target are transferred byte for byte."""
    assert b"/".join(path_parts(path)) == path


@given(st.lists(NAMES, max_size=6))
def test_a_path_that_is_taken_stays_inside(names: list[bytes]) -> None:
    """A path that passes means the same place however it is read."""
    path = b"/".join(names)
    try:
        parts = path_parts(path)
    except UnsafePath:
        return
    assert os.path.normpath(b"/root/" + path) == b"/root/" + path
    assert all(part not in (b"", b".", b"..") for part in parts)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"l", b"/etc"),
        (b"l", b".."),
        (b"l", b"../x"),
        (b"d/l", b"../.."),
        (b"d/l", b"x/../../.."),
        (b"d/l", b"x/.."),
        (b"l", b""),
        (b"l", b"/"),
        (b"l", b"a\0b"),
        (b"l", b"a//b"),
        (b"l", b"./.."),
        (b"l", b"n" * 5000),
    ],
)
def test_a_link_out_of_the_tree_is_refused(path: bytes, target: bytes) -> None:
    """No link is made that leads out by itself, or that could with the help of another."""
    with pytest.raises(UnsafePath):
        check_link(path_parts(path), target)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(NAMES, min_size=1, max_size=5)), min_size=1, max_size=6)
)
def test_links_together_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[int, list[bytes]]]
) -> None:
    """Any set of links that pass, made in one tree, resolve to places inside it or to nothing."""
    root = tmp_path_factory.mktemp("links").resolve()
    (root / "a" / "b" / "a").mkdir(parents=True)
    folders = [b"", b"a/", b"a/b/", b"a/b/a/"]
    for number, (depth, names) in enumerate(links):
        path = folders[depth] + b"link%d" % number
        target = b"/".join(names).replace(b"x y", b"link%d" % (number - 1))
        try:
            check_link(path_parts(path), target)
        except UnsafePath:
            continue
        (root / os.fsdecode(path)).symlink_to(os.fsdecode(target))
    for found in root.rglob("link*"):
        try:
            resolved = found.resolve()
        except RuntimeError:  # a loop leads nowhere
            continue
        assert PurePosixPath(resolved).is_relative_to(root), f"{found} leads to {resolved}"


def test_a_link_within_the_tree_is_taken() -> None:
    """Up to the root and down again is inside."""
    check_link(path_parts(b"a/b/l"), b"../../c/d")
    check_link(path_parts(b"a/b/l"), b"../..")
    check_link(path_parts(b"l"), b"a/b")
    check_link(path_parts(b"l"), b"a/b/")


def test_what_is_printed_is_printable(tmp_path: Path) -> None:
    """A path cannot move the cursor of the terminal that shows a message."""
    assert shown(b"a\x1b[2Jb\n\xff").isprintable()
    assert shown("grün".encode()) == "grün"

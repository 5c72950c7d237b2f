"""docs/threat-model.md: every promise has a test, and every test named there exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
PROMISES = PAGE.partition("## Promises")[2].partition("\n## ")[0]


def _rows() -> list[list[str]]:
    lines = [line for line in PROMISES.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in rows if row[0] != "promise"]


def test_every_promise_has_a_test() -> None:
    """The proof is a test, a fuzzer or a run of the simulator."""
    rows = _rows()
    assert len(rows) > 20
    assert [row[0] for row in rows if not re.search(r"tests/|`test_|`umstack sim", row[-1])] == []


def test_the_named_tests_exist() -> None:
    """The proofs are files under tests/ and functions of tests."""
    named = {name for row in _rows() for name in re.findall(r"`([^`]+)`", row[-1])}
    files = {name for name in named if name.startswith("tests/")}
    functions = {name for name in named if re.fullmatch(r"test_\w+", name)}
    modules = {name for name in named if re.fullmatch(r"test_\w+\.py", name)}
    sources = list((ROOT / "tests").rglob("test_*.py"))
    defined = {name for file in sources for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    assert files
    assert functions
    assert {name for name in files if not (ROOT / name).exists()} == set()
    assert functions - defined == set()
    assert modules - {file.name for file in sources} == set()

"""Each module of tests that opens contexts opens them with a driver, too, or there is a reason (tests/unit/ways.py)."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.ways import WITHOUT_A_DRIVER

OPENS = re.compile(r"\bopen_context\(|(?<!\w)Context\(\"lo\"|umstack\.Context\(")
BOTH_WAYS = re.compile(r"usefixtures\(\"way\"\)|(sending|receiving): Context|\bway: str")


def test_each_module_that_opens_contexts_has_both_ways_or_a_reason() -> None:
    """Issue 43: the whole suite of the public API runs against both."""
    modules = {
        path.stem.removeprefix("test_"): path.read_text() for path in Path(__file__).parent.glob("test_*.py")
    }
    del modules["ways"]
    alone = {name for name, text in modules.items() if OPENS.search(text) and not BOTH_WAYS.search(text)}
    assert alone == {name for names in WITHOUT_A_DRIVER.values() for name in names.split()}

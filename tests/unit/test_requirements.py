"""Requirements: each has a sentence and a proof, and each number in use has an entry."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_architecture import shown, text_files

ROOT = Path(__file__).resolve().parents[2]


def test_the_requirements_table_is_up_to_date() -> None:
    """The page is the output of scripts/requirements."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "requirements")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    page = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    assert made == page, "run: scripts/requirements > docs/requirements.md"


def test_every_requirement_has_a_test_or_a_reason() -> None:
    """No requirement has both tests and a reason, because the reason would become stale."""
    script = runpy.run_path(str(ROOT / "scripts" / "requirements"))
    proofs, reasons = script["collect"](), script["NOT_A_TEST"]
    required = {(kind, number) for kind, numbers in script["REQUIRED"].items() for number in numbers}
    assert {("UM", 143), ("UX", 12), ("UX", 13), ("UX", 27)} <= required
    assert sorted(required - proofs.keys() - reasons.keys()) == []
    assert sorted(reasons.keys() & proofs.keys()) == []
    assert sorted(reasons.keys() - required) == []


SCRIPT = runpy.run_path(str(ROOT / "scripts" / "requirements"))
SENTENCES: dict[str, dict[str, str]] = SCRIPT["SENTENCES"]
CONSTRAINT = re.compile(r"(?<![\w.#-])W(\d{1,2})(?![\w-])")
# C11 is also a language.
CONTRADICTION = re.compile(r'(?<![\w.#"-])C([1-9]\d?)(?![\w+-])(?! compiler|,? and Python| and restricted)')
# Recorded data, and this file with its intentionally wrong examples.
EXCLUDED = re.compile(
    r"^(?:tests/fuzz/corpus/|packaging/locks/|LICENSE|tests/unit/(?:test_requirements\.py|data/))"
)


def numbers_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield each requirement or constraint number in a text, with its kind."""
    for kind, first, last in SCRIPT["ITEM"].findall(text):
        yield kind, int(first)
        if last:
            yield kind, int(last)
    yield from (("C", int(number)) for number in CONTRADICTION.findall(text))
    yield from (("W", int(number)) for number in CONSTRAINT.findall(text))


def unknown_numbers(name: str, text: str) -> list[str]:
    """Return the numbers of a text that have no entry."""
    return [
        f"{name}: {kind}-{number} has no entry in docs/requirements.toml"
        for kind, number in numbers_in(text)
        if str(number) not in SENTENCES.get(kind, {})
    ]


def test_every_number_has_an_entry() -> None:
    """Each number in code, tests or docs has a sentence."""
    wrong = [
        one
        for path, text in text_files()
        if not EXCLUDED.match(shown(path))
        for one in unknown_numbers(shown(path), text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text", ["(UM-144)", "proves UX-29.", "AE-1..AE-50", "as C19 has it", "(W17)", "UP-95"]
)
def test_a_number_without_an_entry_is_found(text: str) -> None:
    """The check above finds each kind, also at the end of a range."""
    assert unknown_numbers("x", text)


@pytest.mark.parametrize("text", ["UM-143 and UX-28, AE-49; C18, W16", "C11 and Python 3.11", "0xC99, a.W99"])
def test_known_numbers_and_other_words_are_accepted(text: str) -> None:
    """Known numbers and similar words are not findings."""
    assert not unknown_numbers("x", text)


def test_every_entry_has_a_sentence() -> None:
    """A sentence has at least five words, starts with a capital or a name, and ends with a period."""
    wrong = [
        f"{kind}-{number}: {sentence!r}"
        for kind, items in SENTENCES.items()
        for number, sentence in items.items()
        if len(sentence.split()) < 5 or not sentence.endswith(".")
    ]
    assert not wrong, "\n".join(wrong)
    assert [int(number) for number in SENTENCES["W"]] == [*range(1, 17)]
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert all(f'id="w{number}"' in design for number in SENTENCES["W"])


def test_the_site_links_each_number() -> None:
    """Numbers in text become links; existing links, code and entries are unchanged."""
    hook = runpy.run_path(str(ROOT / "docs" / "site" / "numbers.py"))["with_links"]
    assert hook("<p>(UM-116, W4)</p>", "../") == (
        '<p>(<a href="../requirements.html#um-116">UM-116</a>, <a href="../design.html#w4">W4</a>)</p>'
    )
    assert (
        hook("<td>C7 after an NCF</td>", "") == '<td><a href="requirements.html#c-7">C7</a> after an NCF</td>'
    )
    for same in (
        '<span id="um-1">UM-1</span>',
        '<a href="x">UM-1</a>',
        "<code>UM-1</code>",
        "C11 and Python 3.11",
    ):
        assert hook(same, "") == same

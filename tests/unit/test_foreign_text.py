"""Text that others chose is shown harmlessly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umstack.foreign_text import displayed, displayed_lines


def test_what_does_not_print_is_escaped() -> None:
    """Terminal escapes, line ends, overrides of direction and surrogates become escapes; the rest stays."""
    assert displayed("\x1b[2J") == "\\x1b[2J"
    assert displayed("a\nb\rc\x00\x7f\x9b") == "a\\x0ab\\x0dc\\x00\\x7f\\x9b"
    assert displayed("\u202e\u2028\ud800\U000e0001") == "\\u202e\\u2028\\ud800\\U000e0001"
    assert displayed("prices/ü 価格 [/red]") == "prices/ü 価格 [/red]"


@given(st.text(alphabet=st.characters(), max_size=300), st.integers(10, 100))
def test_the_result_is_one_printable_line_of_bounded_length(text: str, length: int) -> None:
    """Whatever the text: nothing but printable characters, no longer than was asked, and it can be encoded."""
    shown = displayed(text, length)
    assert shown.isprintable()
    assert len(shown) <= length
    shown.encode()


def test_lines_of_ours_stay_lines() -> None:
    """A message of several lines keeps them; what is quoted in it does not act."""
    assert displayed_lines("one \x1b[m\ntwo") == "one \\x1b[m\ntwo"

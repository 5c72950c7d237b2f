"""Replaced words (docs/glossary.md) and habits of stilted English appear in no code, comment, name or page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.unit.test_architecture import shown, text_files

LINES_SHOWN = 60

# Patterns of replaced words, each with its replacement. Only words without another meaning here are listed.
REPLACED = {
    # data path
    r"um_port\w*|->port_keeps|bool port_keeps": "ring set (um_rings, um_ring_link)",
    r"kept[ _](?:rows?|frames?|payloads?|count|lock|returned|last|bytes|open|close|capacity|fixture)"
    r"|(?:lock|find|prefetch|frame|append)_kept|um_\w*_kept(?:_\w+)?|um_kept_\w+|um_block_keeps|test_kept_\w+"
    r"|ring_kept": "in-frame payload; pin, unpin",
    r"um_(?:rows|block)_gather|gather_all": "materialize",
    r"um_lent|um_\w+_lent(?:_\w+)?|um_\w+_lend|lent frames?": "borrow and return (a frame), claim (log space)",
    r"(?:\w+_)?(?:take|taken|takes|give|given|gives)_back(?:_\w+)?": "acquire/release, borrow/return, submit/reclaim",
    r"fresh[ _]datagrams?|(?:begin|build|next|datagram|cell|entry)_fresh|um_fresh\w*"
    r"|(?:test|fuzz)_fresh_\w+": "staged datagrams, staging buffer",
    r"(?:lay|lays|laid|laying)[ _]out": "stage; for C structures: layout",
    r"past the caches|around the caches": "non-temporal store",
    r"um_hold\w*|hold_store\w*|hold stores?|um_(?:stream|line)_(?:stream|fence)\w*": "reorder buffer; non-temporal",
    # scheduling
    r"naps?|napped|napping|\w+_nap(?:_\w+)?": "receive coalescing",
    r"lingers?|lingered|lingering|um_linger\w*|adaptive_linger\w*|test_linger": "spin, adaptive spin",
    r"hurry|hurries|hurried|hurrying|\w+_or_hurry|was_hurried": "flush requested",
    r"hear_receivers|hears_of_room|is_time_to_hear|heard_(?:ns|at)": "control poll",
    r"ask_loop|asked_ns|unasked_datagrams": "request (of the loop, of a flush)",
    r"leftovers?|leave_to_loop|leave_bytes": "deferred tail",
    r"keep_close|run[ -]ahead": "write-ahead bound",
    r"housekeeping|house is kept|keeps? house|patiently|patience_of": "duty cycle, service, with a timeout",
    r"rest_until|rest_ns|looks? after": "skip",
    r"whoever|whomever": "name the thread or the caller",
    r"for ever|FOR_EVER": "forever; of a timeout: without a timeout",
    # protocol
    r"found missing|asked for again|asks? for again": "gap, lost; re-NAK",
    r"falls? silent|(?:is|are|was|been|stays?|goes|went) silent|silent (?:source|session|topic|receiver)s?": "idle",
    r"without nonblock": "what exists: a timeout",
}
# Habits of English that cost a reader a second reading (CONTRIBUTING.md, "Change").
UNIT = (
    r"(?:NAKs?|messages?|rows?|bytes?|datagrams?|lines?|times?|packets?|files?|frames?|names?|copies|entries|seconds?"
    r"|calls?|events?|records?|sessions?|topics?|repairs?|retransmissions?|losses|connections?|allocations?|wake-ups?"
    r"|numbers?|ns|ms|us)"
)
RATE = (
    r"an? (?:loss|second|datagram|session|message|row|batch|client|receiver|source|topic|call|frame|file|packet"
    r"|millisecond|day|block|interval|entry|connection|line|side|pass)"
)
HABITS = {
    r"(?:that|what|which|still|it|they) lacks?": "missing, lost",
    r"anew|found[ _]again|(?:go(?:es|ne|ing)?|went)[ _]on[ _]with": "again, restart, resume, continue",
    r"so (?:many|much|long|often|few|far) (?:at (?:most|least)|may|ahead)|for so long": "name the quantity",
    r"told|tells?|telling|says|(?:is|are|was|were|be|been|being)[ _]said": "report, return, log, contain, name",
    r"to be had|(?:can|could) be had|for want of|of no use|for nothing": "available, without, wasted",
    rf"{UNIT} {RATE}(?! (?:that|which|who|later|before|after|ago))": "per",
    r"what (?:is|was|are|were) (?:sent|received|lost|read|written|missing|known|wanted|kept|left|due|new|published"
    r"|delivered|retained|captured|recorded|counted|configured|asked|requested|advertised|done|open|held)": "name it",
    r"rooms?|houses?|walls|design wall|faces?": "space, component, constraint, API",
    r"wish(?:es|ed)?|strangers?|mend(?:s|ed|ing)?": "request; unknown sender; fix",
}
REPLACED |= HABITS
# A clause without a noun that stands for one, at the start of a sentence that is no question.
NOUNLESS = re.compile(r'(?:^|[.:*#"] +|"""|// )What (?!.*\?)')
# Names that users have in files, dashboards and programs are data; the glossary maps them.
PROMISED = re.compile(
    r"--linger\b|\.tell\(\)|\bSO_LINGER\b|\bresolver_\*linger\w*"
    r"|\b(?:\w+_)?(?:pend|pend_adaptive|pend_behavior|no_source)_linger_\w+"
    r"|\b(?:umstack_context_|umstack_link_)?(?:delivery_hold_datagrams|loop_naps|hold_store_datagrams|hold_store_full"
    r"|held_datagrams|ring_kept|ring_sent_in_place|tr_dgrams_dropped_stranger)(?:_total)?\b"
)
ANY = "|".join(f"(?P<w{number}>{word})" for number, word in enumerate(REPLACED))
WORD = re.compile(rf"(?<![^\W_])(?:{ANY})(?![^\W_])", re.IGNORECASE)
INSTEAD = list(REPLACED.values())
# The glossary and this file name the words; licences and recorded inputs are not ours to change.
EXCLUDED = re.compile(
    r"^(?:docs/glossary\.md|CHANGELOG\.md|LICENSE|tests/unit/(?:test_vocabulary\.py|data/um_options\.txt))$"
)


def findings(name: str, text: str) -> Iterator[str]:
    """Yield each place of a text with a replaced word, and the word to use."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := NOUNLESS.search(line):
            yield f"{name}:{number}: {match.group().strip()!r}, use: a noun"
        for match in WORD.finditer(PROMISED.sub(" ", line)):
            instead = INSTEAD[int(str(match.lastgroup)[1:])]
            yield f"{name}:{number}: {match.group()!r}, use: {instead}"


def test_replaced_words_are_gone() -> None:
    """Code, comments, names of tests, pages and file names are checked."""
    found: list[str] = []
    for path, text in text_files():
        if not EXCLUDED.match(name := shown(path)):
            found += findings(name, path.stem)
            found += findings(name, text)
    folders = Counter("/".join(place.split(":")[0].split("/")[:-1][:2]) or "." for place in found)
    counts = ", ".join(f"{folder} {count}" for folder, count in folders.most_common())
    assert not found, f"{len(found)} in all: {counts}\n" + "\n".join(found[:LINES_SHOWN])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the loop naps under load", "naps"),
        ("static int64_t next_nap_ns(um_context *context)", "next_nap_ns"),
        ("um_linger_init(&linger)", "um_linger_init"),
        ("void um_receiving_take_back(um_context *context)", "um_receiving_take_back"),
        ("datagrams are laid out by the publisher", "laid out"),
        ("None waits for ever", "for ever"),
        ('#include "core/hold_store.h"', "hold_store"),
        ("a sqn that lacks", "that lacks"),
        ("begin anew", "anew"),
        ("so many at most", "so many at most"),
        ("the source is told", "told"),
        ("def tell_source(self)", "tell"),
        ("a header that says how long it is", "says"),
        ("what can be had", "can be had"),
        ("1.02 NAKs a loss", "NAKs a loss"),
        ("what is sent bears the tag", "what is sent"),
        ("um_retained_wish", "wish"),
        ("test_a_stranger_is_refused", "stranger"),
        ('"""What a source retains."""', '"""What'),
    ],
)
def test_a_replaced_word_is_detected(text: str, word: str) -> None:
    """The pattern matches in identifiers and in text."""
    assert next(finding.split("'")[1] for finding in findings("x", text)) == word


@pytest.mark.parametrize(
    "text",
    [
        "pend_adaptive_linger_limit 100 and loop_naps are names that users have",
        "a snapshot, an equivalent, a talent, a silently shed frame, um_portable",
        "the layout of a frame",
        "What is a batch?",
        "an interface and a surface; the wall clock; the last message a second later",
        "forever",
    ],
)
def test_other_words_are_accepted(text: str) -> None:
    """Names that users rely on, and words that only look similar, cause no false alarm."""
    assert not list(findings("x", text.replace("um_portable", "portable")))

"""Messages published in any way arrive once each, complete, in order and with their sqn."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.loopback import DATAGRAM, connect, open_context
from tests.waiting import collect
from umstack import Context, Source
from umstack.errors import MessageTooLong

EDGE = DATAGRAM - 32
"""The longest message of a single datagram."""

lengths = st.one_of(
    st.integers(0, 100),
    st.integers(EDGE - 2, EDGE + 2),
    st.integers(2 * (EDGE - 16) - 2, 2 * (EDGE - 16) + 2),
    st.integers(0, 20_000),
)
one = st.tuples(st.just("one"), st.tuples(lengths), st.booleans(), st.sampled_from(["send", "claim", "view"]))
batch = st.tuples(
    st.just("batch"), st.lists(lengths, min_size=2, max_size=5).map(tuple), st.booleans(), st.just("send")
)
many = st.tuples(
    st.just("many"),
    st.lists(lengths, max_size=20).map(tuple),
    st.booleans(),
    st.sampled_from(["list", "arrow", "packed"]),
)
aborted = st.tuples(st.just("aborted"), st.tuples(st.integers(0, EDGE)), st.booleans(), st.just("claim"))
refused = st.tuples(st.just("refused"), st.tuples(st.just(EDGE + 1)), st.booleans(), st.just("claim"))
flush = st.tuples(st.just("flush"), st.just(()), st.booleans(), st.just(""))
steps = st.lists(st.one_of(one, batch, many, aborted, refused, flush), max_size=12)

Step = tuple[str, tuple[int, ...], bool, str]


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with open_context() as context:
        yield context


class Publisher:
    """Executes steps and records the expected messages."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.expected: list[bytes] = []
        self.returned: dict[int, int] = {}

    def content(self, length: int) -> bytes:
        """Return a unique message: its number, repeated."""
        return (b"%d," % len(self.expected) * (length // 2 + 1))[:length]

    def note(self, content: bytes, returned: int | None = None) -> None:
        if returned is not None:
            self.returned[len(self.expected)] = returned
        self.expected.append(content)

    def carry_out(self, step: Step) -> None:
        kind, sizes, flush, way = step
        getattr(self, f"_{kind}")(sizes, flush, way)

    def _one(self, sizes: tuple[int, ...], flush: bool, way: str) -> None:
        content = self.content(sizes[0])
        if way == "claim" and len(content) <= EDGE:
            with self.source.claim(len(content), flush) as view:
                view[:] = content
            self.note(content)
        else:
            data = memoryview(bytearray(content)) if way == "view" else content
            self.note(content, self.source.send(data, flush))

    def _batch(self, sizes: tuple[int, ...], flush: bool, _way: str) -> None:
        for position, size in enumerate(sizes):
            mark = {0: "start", len(sizes) - 1: "end"}.get(position)
            content = self.content(size)
            self.note(content, self.source.send(content, flush and mark == "end", batch=mark))  # type: ignore[arg-type]

    def _many(self, sizes: tuple[int, ...], flush: bool, way: str) -> None:
        contents = []
        for size in sizes:
            contents.append(self.content(size))
            self.note(contents[-1])
        if way == "list":
            taken = self.source.send_many(contents, flush)
        elif way == "arrow":
            taken = self.source.send_many(pa.array([b"skipped", *contents], pa.binary()).slice(1), flush)
        else:
            offsets = [0]
            for content in contents:
                offsets.append(offsets[-1] + len(content))
            taken = self.source.send_packed(b"".join(contents), array("i", offsets), flush)
        assert taken == len(sizes)

    def _aborted(self, sizes: tuple[int, ...], flush: bool, _way: str) -> None:
        def claim_and_fail() -> None:
            with self.source.claim(sizes[0], flush) as view:
                view[:] = bytes(sizes[0])
                raise KeyError

        with pytest.raises(KeyError):
            claim_and_fail()

    def _refused(self, sizes: tuple[int, ...], flush: bool, _way: str) -> None:
        with pytest.raises(MessageTooLong), self.source.claim(sizes[0], flush):
            pass
        with pytest.raises(MessageTooLong):
            self.source.send(bytes(self.source.message_maximum_bytes + 1), flush)

    def _flush(self, _sizes: tuple[int, ...], _flush: bool, _way: str) -> None:
        self.source.flush()


@settings(max_examples=150)
@given(steps=steps, minimum=st.sampled_from([1, 200, 2048, 60000]), ordered=st.sampled_from([1, -1]))
def test_published_messages_arrive(context: Context, steps: list[Step], minimum: int, ordered: int) -> None:
    """UM-16, UM-34, UM-42, UM-52, UM-57, UX-23: sqns have no holes, in spite of refused sends."""
    source, receiver = connect(
        context,
        "anything",
        implicit_batching_minimum_length=minimum,
        implicit_batching_interval=60000,
        ordered_delivery=ordered,
    )
    with source, receiver:
        publisher = Publisher(source)
        for step in steps:
            publisher.carry_out(step)
        source.flush()
        messages = collect(receiver, len(publisher.expected))
        assert [message.data for message in messages] == publisher.expected
        following = 0
        for number, message in enumerate(messages):
            assert message.first_sequence_number == following
            following = message.sequence_number + 1
            assert publisher.returned.get(number, message.sequence_number) == message.sequence_number
        assert not receiver.poll(1, 0).messages()

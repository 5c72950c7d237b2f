"""Requests and responses between contexts over loopback: matching, deletion, timeouts, limits, misbehaving peers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.loopback import PORTS, open_context
from tests.unit.requesting import counter, echo, pair, port_of, whole
from tests.waiting import SECONDS, wait_for
from umstack import (
    BackPressured,
    Closed,
    Context,
    Message,
    PendingRequest,
    Request,
    Response,
    ResponseFailed,
    ResponsesDropped,
    ResponseTimeout,
)
from umstack.errors import (
    InvalidArgument,
    MessageTooLong,
    NotBytes,
    OptionError,
    ResourceLimit,
)
from umstack.requests.codec import (
    FRAGMENT_MAX_BYTES,
)

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context(**PORTS) as opened:
        yield opened


# One to one, one to many


def test_a_request_gets_its_response(context: Context) -> None:
    """One requester and one responder exchange messages; the responder sees the request."""
    seen: list[Request] = []

    def on_message(message: Any) -> None:
        if isinstance(message, Request):
            seen.append(message)
        echo(message)

    source, _ = pair(context, "one", on_message)
    source.send(b"plain", flush=True)
    with source.request(b"who?") as request:
        response = request.first(timeout=SECONDS)
    assert response.data == b"re:who?"
    assert response.responder.startswith("127.0.0.1:")
    assert abs(response.received_ns - time.time_ns()) < SECONDS * 1e9
    [message] = seen
    assert isinstance(message, Message)
    assert message.is_request
    assert message.data == b"who?"
    assert message.request_index == request.index
    assert message.requester == ("127.0.0.1", port_of(context))
    assert (counter(context, "requests_sent"), counter(context, "responses_rcved")) == (1, 1)
    [session] = [one for one in context.stats()["receiver_transports"] if one["lbm_msgs_rcved"]]
    assert session["lbm_reqs_rcved"] == 1


def test_a_plain_message_is_not_a_request(context: Context) -> None:
    """`respond()` on a message without a request raises an error."""
    source, receiver = context.source("plain"), context.receiver("plain")
    receiver.wait_connected(timeout=SECONDS)
    source.send(b"plain", flush=True)
    message = next(iter(receiver))
    assert not message.is_request
    with pytest.raises(InvalidArgument, match="no request"):
        message.respond(b"x")


def test_many_responders_and_many_responses_each(context: Context) -> None:
    """Any number of responders with any number of responses each; iteration ends with the timeout."""

    def respond_thrice(number: int) -> Callable[[Any], None]:
        def on_message(message: Any) -> None:
            if isinstance(message, Request):
                for n in range(3):
                    message.respond(b"%d-%d" % (number, n))

        return on_message

    with open_context(**PORTS) as other:
        receivers = [
            owner.receiver("many", respond_thrice(n))
            for n, owner in enumerate([context, other, other, other])
        ]
        source = context.source("many")
        for receiver in receivers:
            wait_for(lambda one=receiver: one.stats()["delivery_controllers"], "topic resolution")
        got: list[bytes] = []
        for response in source.request(b"all", timeout=SECONDS):
            got.append(response.data)
            if len(got) == 12:
                break
    assert sorted(got) == sorted(b"%d-%d" % pair for pair in itertools.product(range(4), range(3)))
    for number in b"0123":
        mine = [data for data in got if data[0] == number]
        assert mine == sorted(mine)


def test_iteration_ends_with_the_timeout(context: Context) -> None:
    """Without a responder the iteration ends, and the error of first() names the topic."""
    source = context.source("nobody")
    begun = time.monotonic()
    assert list(source.request(b"x", timeout=0.1)) == []
    assert 0.1 <= time.monotonic() - begun < SECONDS
    with pytest.raises(ResponseTimeout, match=r"'nobody' within 0\.05 s"):
        source.request(b"x").first(timeout=0.05)
    request = source.request(b"x")
    assert request.receive(timeout=0) is None
    assert request.receive(timeout=0.02) is None
    assert not request.closed
    request.close()
    assert request.closed
    assert list(request) == []
    with pytest.raises(Closed, match="the request on 'nobody' is closed"):
        request.receive()
    wait_for(lambda: counter(context, "requests_pending") == 0, "no request left")


@pytest.mark.parametrize("length", [0, 1, 1400, 65_000, FRAGMENT_MAX_BYTES + 1, 1_048_576])
def test_messages_of_any_length(context: Context, length: int) -> None:
    """Fragmented requests work, and responses beyond the 16-bit length of LBMC up to the longest."""
    data = random.Random(length).randbytes(length)
    asked: list[bytes] = []

    def on_message(message: Any) -> None:
        if isinstance(message, Request):
            asked.append(message.data)
            message.respond(data)

    source, _ = pair(context, "long", on_message)
    question = data[: source.message_maximum_bytes]
    assert source.request(question).first(timeout=SECONDS).data == data
    assert asked == [question]


def test_a_response_that_is_too_long_is_refused(context: Context) -> None:
    """The responder refuses a response beyond the limit; so does a requester with a smaller limit, which
    stays usable.
    """
    failed: list[MessageTooLong] = []

    def on_message(message: Any) -> None:
        if isinstance(message, Request):
            try:
                message.respond(bytes(1_048_577))
            except MessageTooLong as error:
                failed.append(error)
            message.respond(bytes(5000))
            message.respond(b"short")

    with open_context(**PORTS, response_maximum_message_length=4999) as requester:
        receiver = context.receiver("too long", on_message)
        source = requester.source("too long")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        request = source.request(b"x", timeout=SECONDS)
        with pytest.raises(ResponsesDropped, match="1 responses dropped"):
            request.receive()
        assert request.first().data == b"short"
        assert counter(requester, "responses_dropped") == 1
    assert "1048577 bytes" in str(failed[0])


# Time and thread of responses


def test_responding_later_and_from_another_thread(context: Context) -> None:
    """Responses can be sent after the callback has returned, from other threads, and to several waiting
    requests.
    """
    requests: list[Request] = []
    source, _ = pair(context, "later", lambda m: requests.append(m) if isinstance(m, Request) else None)
    pending = [source.request(b"%d" % n) for n in range(50)]
    wait_for(lambda: len(requests) == 50, "the requests")
    random.Random(1).shuffle(requests)
    threads = [threading.Thread(target=lambda r=one: r.respond(b"re:" + r.data)) for one in requests]
    for thread in threads:
        thread.start()
    for n, request in enumerate(pending):
        assert request.first(timeout=SECONDS).data == b"re:%d" % n
    for thread in threads:
        thread.join()
    assert counter(context, "response_connections_opened") == 1


def test_threads_that_wait_at_once(context: Context) -> None:
    """When many requests are open, each thread gets its own responses, whichever thread receives them."""
    source, _ = pair(context, "threads")
    wrong: list[object] = []

    def ask(thread: int) -> None:
        for n in range(100):
            data = b"%d/%d" % (thread, n)
            if source.request(data).first(timeout=SECONDS).data != b"re:" + data:
                wrong.append(data)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counter(context, "responses_rcved") == 800
    assert counter(context, "responses_late") == 0


def test_polled_rows_of_requests(context: Context) -> None:
    """In a batch of mixed rows, the requests can be responded to; the columns are unchanged."""
    receiver = context.receiver("rows")
    source = context.source("rows")
    wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
    source.send(b"a", flush=True)
    request = source.request(b"b")
    source.send(b"c", flush=True)
    rows: list[Any] = []
    while len(rows) < 3:
        batch = receiver.poll(timeout=SECONDS)
        rows += batch.messages()
        assert batch.payload.tobytes() == b"".join(batch.payloads())
    assert [(row.data, row.is_request) for row in rows] == [(b"a", False), (b"b", True), (b"c", False)]
    rows[1].respond(memoryview(b"yes"))
    with pytest.raises(NotBytes):
        rows[1].respond("text")
    assert request.first(timeout=SECONDS).data == b"yes"
    batch = None
    assert request.closed


def test_requests_in_a_shared_event_queue(context: Context) -> None:
    """Responding requires that the receiver of the topic is open; the queue may be closed."""
    queue = context.event_queue()
    receivers = [context.receiver(topic, queue=queue) for topic in ("q1", "q2")]
    sources = [context.source(topic) for topic in ("q1", "q2")]
    for receiver in receivers:
        wait_for(lambda one=receiver: one.stats()["delivery_controllers"], "topic resolution")
    pending = [source.request(source.topic.encode()) for source in sources]
    requests: dict[str, Request] = {}
    while len(requests) < 2:
        requests |= {row.topic: row for row in queue.poll(timeout=SECONDS) if isinstance(row, Request)}
    receivers[0].close()
    with pytest.raises(Closed, match="'q1': its receiver is closed"):
        requests["q1"].respond(b"x")
    requests["q2"].respond(b"y")
    assert pending[1].first(timeout=SECONDS).data == b"y"
    pending[0].close()


def test_sequential_mode() -> None:
    """UM-14: one thread runs the requester, the responder and the protocol of both."""
    with open_context("sequential", **PORTS) as context:
        receiver = context.receiver("seq", echo)
        source = context.source("seq")
        while not receiver.stats()["delivery_controllers"]:
            context.process_events(0.01)
        for n in range(20):
            assert source.request(b"%d" % n).first(timeout=SECONDS).data == b"re:%d" % n
        data = bytes(300_000)
        assert len(source.request(data, timeout=SECONDS).first().data) == len(data) + 3
        with pytest.raises(ResponseTimeout):
            context.source("seq nobody").request(b"").first(timeout=0.05)

        async def wait() -> Response:
            return await source.request(b"x")

        with pytest.raises(OptionError, match="the context's own thread"):
            asyncio.run(wait())


def test_asyncio(context: Context) -> None:
    """Responses are awaited and iterated in an event loop, for many requests together, with a timeout, and
    cancelled.
    """
    source, _ = pair(context, "async")

    async def main() -> None:
        assert (await source.request(b"x")).data == b"re:x"
        many = [source.request(b"%d" % n).first_async(SECONDS) for n in range(50)]
        assert [response.data for response in await asyncio.gather(*many)] == [
            b"re:%d" % n for n in range(50)
        ]
        assert [r.data async for r in source.request(b"all", timeout=0.2)] == [b"re:all"]
        nobody = context.source("async nobody")
        with pytest.raises(ResponseTimeout):
            await nobody.request(b"x", timeout=0.05)
        waiting = nobody.request(b"x")
        task = asyncio.create_task(waiting.first_async())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting.closed
        ended = nobody.request(b"x")
        task = asyncio.create_task(ended.first_async())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(nobody.close)
        with pytest.raises(Closed, match="source 'async nobody' is closed"):
            await task

    asyncio.run(main())
    assert counter(context, "requests_pending") == 0


# Matching of responses


def test_a_number_in_use_is_not_assigned_again(context: Context) -> None:
    """The 2**32 numbers wrap, and those of open requests are skipped."""
    source, _ = pair(context, "reuse")
    kept = source.request(b"kept")
    intake = context._requests._intake
    assert intake is not None
    intake._numbers = itertools.count((kept.index - 2) % 2**32)
    others = [source.request(b"other") for _ in range(4)]
    assert [one.index for one in others] == [(kept.index + n) % 2**32 for n in (-2, -1, 1, 2)]
    for request in [kept, *others]:
        expected = b"re:kept" if request is kept else b"re:other"
        assert request.first(timeout=SECONDS).data == expected
    intake._numbers = itertools.count(2**32 - 1)
    assert [source.request(b"").index for _ in range(2)] == [2**32 - 1, 0]


def test_late_responses_are_dropped_and_counted(context: Context) -> None:
    """Responses to a request that was closed, timed out, was garbage collected or never existed are dropped."""
    requests: list[Request] = []
    source, _ = pair(context, "late", lambda m: requests.append(m) if isinstance(m, Request) else None)
    with pytest.raises(ResponseTimeout):
        source.request(b"0").first(timeout=0.01)
    source.request(b"1").close()
    timed_out = source.request(b"2", timeout=0.01)
    source.request(b"3")
    gc.collect()
    open_one = source.request(b"4")
    wait_for(lambda: len(requests) == 5 and timed_out.closed, "the requests")
    for request in requests:
        request.respond(request.data)
    assert open_one.first(timeout=SECONDS).data == b"4"
    assert counter(context, "responses_late") == 4
    assert timed_out.receive() is None


def test_closing_ends_requests(context: Context) -> None:
    """When a source, a receiver or a context closes, readers and responders get a clear error."""
    requests: list[Request] = []
    errors: list[BaseException] = []
    source, receiver = pair(
        context, "deleted", lambda m: requests.append(m) if isinstance(m, Request) else None
    )
    pending = source.request(b"x")

    def wait(request: PendingRequest) -> None:
        try:
            request.receive()
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=wait, args=(pending,))
    thread.start()
    wait_for(lambda: requests, "the request")
    source.close()
    thread.join(SECONDS)
    assert "source 'deleted' is closed" in str(errors.pop())
    with pytest.raises(Closed):
        source.request(b"x")
    receiver.close()
    with pytest.raises(Closed, match="its receiver is closed"):
        requests[0].respond(b"x")
    requests.clear()

    with open_context(**PORTS) as other:
        source, receiver = pair(
            other, "deleted 2", lambda m: requests.append(m) if isinstance(m, Request) else None
        )
        pending = source.request(b"x")
        thread = threading.Thread(target=wait, args=(pending,))
        thread.start()
        wait_for(lambda: requests, "the request")
    thread.join(SECONDS)
    assert len(errors) == 1
    assert "closed" in str(errors[0])
    with pytest.raises(Closed):
        requests[0].respond(b"x")


def test_limits_of_requests(context: Context) -> None:
    """The number of open requests is bounded; closing one, or its timeout, frees space."""
    with open_context(**PORTS, request_pending_maximum=3) as bounded:
        source = bounded.source("bounded")
        kept = [source.request(b"x") for _ in range(2)]
        short = source.request(b"x", timeout=0.01)
        time.sleep(0.02)  # let the request time out while nothing reads it
        kept.append(source.request(b"x"))
        assert short.closed
        with pytest.raises(ResourceLimit, match="3 requests are open"):
            source.request(b"x")
        kept.pop().close()
        kept.append(source.request(b"x"))
    with open_context(request_tcp_bind_request_port=0) as closed, pytest.raises(OptionError):
        closed.source("no port").request(b"x")
    source = context.source("explicit")
    source.send(b"first", batch="start")
    with pytest.raises(InvalidArgument, match="explicit batch"):
        source.request(b"x")
    with pytest.raises(NotBytes):
        source.request("text")
    assert counter(context, "requests_pending") == 0


def test_unread_responses_are_bounded(context: Context) -> None:
    """An application that does not read keeps a bounded number and gets an event; other requests continue."""
    with open_context(**PORTS, request_response_buffer=100_000) as requester:
        receiver = context.receiver("unread", _respond_many)
        source = requester.source("unread")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        request = source.request(b"100", timeout=SECONDS)
        wait_for(
            lambda: counter(requester, "responses_rcved") + counter(requester, "responses_dropped") == 100,
            "all",
        )
        dropped = counter(requester, "responses_dropped")
        assert dropped >= 10
        for n in range(100 - dropped):
            response = request.receive(timeout=0)
            assert response is not None
            assert response.data[:3] == b"%03d" % n
        with pytest.raises(ResponsesDropped, match=f"{dropped} responses dropped"):
            request.receive(timeout=0)
        request.close()
        assert source.request(b"1").first(timeout=SECONDS).data[:3] == b"000"
        abandoned = source.request(b"70", timeout=SECONDS)
        wait_for(lambda: counter(requester, "responses_rcved") >= 100 - dropped + 1 + 70, "the responses")
        del abandoned
        gc.collect()
        assert len(list(itertools.islice(source.request(b"70", timeout=SECONDS), 70))) == 70


def _respond_many(message: Any) -> None:
    if isinstance(message, Request):
        for n in range(int(message.data)):
            message.respond(b"%03d" % n + bytes(1000))


# Responders' connections


def test_idle_connections_end_and_reopen(context: Context) -> None:
    """C13: a connection ends response_tcp_deletion_timeout after the last response; the next one reopens it."""
    with open_context(**PORTS, response_tcp_deletion_timeout=100) as responder:
        receiver = responder.receiver("idle", echo)
        source = context.source("idle")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        for round_number in (1, 2):
            assert source.request(b"x").first(timeout=SECONDS).data == b"re:x"
            assert counter(responder, "response_connections_opened") == round_number
            wait_for(lambda: counter(responder, "response_connections") == 0, "the end of the connection")
            wait_for(lambda: counter(context, "request_responders") == 0, "the end at the port")
        assert counter(responder, "response_connections_failed") == 0


def test_connections_to_requesters_are_bounded(context: Context) -> None:
    """The longest idle connection is closed for another requester's."""
    with open_context(**PORTS, response_connections_maximum=2) as responder:
        receiver = responder.receiver("fan", echo)
        others = [open_context(**PORTS) for _ in range(4)]
        try:
            sources = [one.source("fan") for one in others]
            wait_for(lambda: receiver.stats()["delivery_controllers"] == 4, "topic resolution")
            for _ in range(2):
                for source in sources:
                    assert source.request(b"x").first(timeout=SECONDS).data == b"re:x"
            assert counter(responder, "response_connections") == 2
            assert counter(responder, "response_connections_opened") == 8
        finally:
            for one in others:
                one.close()


def captured_request(context: Context, topic: str, listener: socket.socket) -> Request:
    """Return a request whose responses are sent to a listener of the test."""
    requests: list[Request] = []
    source, _receiver = pair(context, topic, lambda m: requests.append(m) if isinstance(m, Request) else None)
    with source.request(b"x"):
        wait_for(lambda: requests, "the request")
    requests[0].requester = listener.getsockname()
    return requests[0]


def test_a_requester_that_does_not_read() -> None:
    """Queued responses are bounded: respond() waits, raises an error, and finally closes the connection."""
    with (
        open_context(
            **PORTS, response_tcp_deletion_timeout=300, response_session_sender_socket_buffer=4096
        ) as responder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = captured_request(responder, "unread peer", listener)
        sent = 0
        while counter(responder, "resp_would_block") == 0:
            try:
                request.respond(bytes(65_000), timeout=0)
            except BackPressured:
                continue
            sent += 1
            assert sent < 1000
        [one] = responder._requests.responder._connections.values()
        assert one.waiting_bytes <= 65536 + 65_100
        begun = time.monotonic()
        with pytest.raises((BackPressured, ResponseFailed)):
            request.respond(bytes(65_000), timeout=0.05)
        assert time.monotonic() - begun < SECONDS
        assert counter(responder, "resp_blocked") == 1
        wait_for(lambda: counter(responder, "response_connections") == 0, "the end of the connection")
        assert counter(responder, "response_connections_stalled") == 1
        assert 1 <= counter(responder, "responses_unsent") <= sent


def test_a_requester_that_reads_slowly_gets_everything() -> None:
    """If a long response goes to a peer with a small window, the stream thread sends the queued rest."""
    with (
        open_context(**PORTS, response_session_sender_socket_buffer=4096) as responder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = captured_request(responder, "slow peer", listener)
        thread = threading.Thread(target=lambda: request.respond(bytes(1_000_000)))
        thread.start()
        peer, _ = listener.accept()
        expected = 1_000_000 + 64 * -(-1_000_000 // FRAGMENT_MAX_BYTES)
        got = 0
        with peer:
            peer.settimeout(SECONDS)
            while got < expected:
                got += len(peer.recv(10_000))
        thread.join(SECONDS)
        assert got == expected
        assert counter(responder, "resp_blocked") >= 1
        assert counter(responder, "responses_unsent") == 0


def test_a_requester_that_has_closed(context: Context) -> None:
    """A responder handles a closed port, a port that closes accepted connections, and a port that reopens."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    request = captured_request(context, "gone", listener)
    request.respond(b"1")
    peer, _ = listener.accept()
    peer.settimeout(SECONDS)
    assert peer.recv(100)[-1:] == b"1"
    peer.close()
    listener.close()
    wait_for(lambda: counter(context, "response_connections") == 0, "the end of the connection")

    def refused() -> bool:
        try:
            request.respond(b"2")
        except ResponseFailed:
            return True
        return False

    wait_for(lambda: refused() or counter(context, "response_connections_failed") >= 2, "the refusal")
    with socket.create_server(("127.0.0.1", port)) as again:
        request.respond(b"3")
        peer, _ = again.accept()
        with peer:
            peer.settimeout(SECONDS)
            data = peer.recv(1000)
            assert data[-1:] == b"3"


def test_a_response_of_which_a_part_was_sent_is_not_sent_again() -> None:
    """If the requester closes amid a response, it fails: on a new connection, a part would arrive twice."""
    with (
        open_context(**PORTS, response_session_sender_socket_buffer=4096) as responder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.settimeout(SECONDS)
        request = captured_request(responder, "cut", listener)
        request.respond(b"1")
        peer, _ = listener.accept()
        failures: list[ResponseFailed] = []

        def respond() -> None:
            try:
                request.respond(bytes(1_000_000), timeout=SECONDS)
            except ResponseFailed as failure:
                failures.append(failure)

        thread = threading.Thread(target=respond)
        thread.start()
        wait_for(lambda: counter(responder, "resp_blocked") == 1, "a response that waits for its requester")
        peer.close()
        wait_for(lambda: failures or counter(responder, "response_connections_opened") > 1, "the failure")
        assert counter(responder, "response_connections_opened") == 1
        thread.join(SECONDS)
        assert len(failures) == 1


def test_a_hundred_responders(context: Context) -> None:
    """Many responders at once, up to a separate limit; further ones are disconnected and counted."""
    with open_context(**PORTS, request_responders_maximum=100) as requester:
        source = requester.source("hundred")
        pending = source.request(b"x", timeout=SECONDS)
        port = requester._streams.port().endpoint
        peers = []
        for n in range(100):
            peers.append(socket.create_connection(port))
            peers[-1].sendall(whole(pending.index, b"%d" % n))
        got = [int(response.data) for response in itertools.islice(pending, 100)]
        assert sorted(got) == list(range(100))
        assert counter(requester, "request_responders") == 100
        with socket.create_connection(port) as one_more:
            one_more.settimeout(SECONDS)
            one_more.sendall(whole(pending.index, b"100"))
            with contextlib.suppress(ConnectionError):
                assert one_more.recv(1) == b""
        assert counter(requester, "request_responders_refused") == 1
        for peer in peers:
            peer.close()
        wait_for(lambda: counter(requester, "request_responders") == 0, "the end of the connections")


def test_a_forked_child_has_no_requests(context: Context) -> None:
    """The connections belong to the parent: a child that reads or responds gets an error, and consumes nothing."""
    requests: list[Request] = []
    source, _ = pair(context, "fork", lambda m: requests.append(m) if isinstance(m, Request) else None)
    pending = source.request(b"x", timeout=SECONDS)
    wait_for(lambda: requests, "the request")
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            lambda: pending.receive(0),
            lambda: requests[0].respond(b"child"),
            lambda: source.request(b""),
        ):
            try:
                call()
            except Closed:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    requests[0].respond(b"parent")
    assert pending.first().data == b"parent"

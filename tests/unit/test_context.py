"""Context: options and errors at creation, the two modes, statistics, closing without a trace."""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.held import held, wait_until_released
from tests.unit.loopback import OWN_ADDRESSES, collect_events, connect, open_context, payloads
from tests.unit.ways import ITS_SESSION, OPENS_ITSELF, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Closed, Config, Context, Message, Receiver, Source
from umstack.bench.round_trip_ends import RoundTripSpec, ping_in_core, serve_in_core
from umstack.errors import ConfigError, InterfaceError, OptionError, Unsupported
from umstack.resolution.service import WITHDRAWN_MAX
from umstack.telemetry.counters import schema
from umstack_xdp.interface import find_interface

pytestmark = pytest.mark.usefixtures("way")

# ---- creation ----


def test_a_context_describes_itself() -> None:
    """The public API shows interface, mode and link in effect, as attributes and in the repr."""
    with open_context() as context:
        assert (context.interface.name, context.link, context.is_sequential) == ("lo", "socket", False)
        assert repr(context) == "<Context lo embedded socket>"
        assert not context.closed
    assert context.closed


@alone(OPENS_ITSELF)
@pytest.mark.parametrize("interface", ["lo", "127.0.0.1", "127.0.0.0/8"])
def test_an_interface_goes_by_name_address_or_network(interface: str) -> None:
    """UM's interface options: any of the three names one."""
    with Context(interface, **OWN_ADDRESSES) as context:
        assert context.interface.name == "lo"


@alone(OPENS_ITSELF)
def test_options_come_from_arguments_over_configuration(tmp_path: Path) -> None:
    """W10: a text file as UM's, overridden by arguments; both checked alike."""
    file = tmp_path / "um.cfg"
    file.write_text("context operational_mode sequential\nsource implicit_batching_interval 50\n")
    for config in (file, str(file), Config.load(file)):
        with Context("lo", config=config, **OWN_ADDRESSES) as context:
            assert context.is_sequential
            with context.source("configured") as source:
                assert source.options.implicit_batching_interval_ns == 50_000_000
            with context.source("overridden", implicit_batching_interval=70) as source:
                assert source.options.implicit_batching_interval_ns == 70_000_000
    with Context("lo", config=file, mode="embedded", **OWN_ADDRESSES) as context:
        assert not context.is_sequential
    file.write_text("context operational_mode sideways\n")
    with pytest.raises(ConfigError, match=r"um\.cfg:1: .*sequential"):
        Context("lo", config=file)


@alone(OPENS_ITSELF)
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Context("lo", no_such_option=1), "no_such_option"),
        (lambda: Context("lo", resolver_multicast_prot=1), "resolver_multicast_port"),
        (lambda: Context("lo", resolver_multicast_ttl="many"), "resolver_multicast_ttl"),
        (lambda: Context("lo", mode="backwards"), "embedded"),
        (lambda: Context("lo", link="pigeon"), "socket"),
        (lambda: Context("lo", transport_lbtrm_datagram_max_size=70000), "65507"),
    ],
    ids=["unknown", "misspelt", "ill-typed", "mode", "link", "range"],
)
def test_a_wrong_option_is_named(make: Any, expected: str) -> None:
    """The error names the option, suggests a similar one, and lists the allowed values."""
    with pytest.raises(OptionError, match=expected):
        make()


def test_wrong_options_of_sources_and_receivers_are_named() -> None:
    """The same for options given where an object is made; nothing of it is left behind."""
    with open_context() as context:
        with pytest.raises(OptionError, match="implicit_batching_interval"):
            context.source("x", implicit_batching_intervall=1)
        with pytest.raises(OptionError, match="ordered_delivery"):
            context.receiver("x", ordered_delivery=7)
        with pytest.raises(OptionError, match="flow_control"):
            context.receiver("x", flow_control="min")
        assert context.stats()["sources"] == context.stats()["receivers"] == []


@alone(OPENS_ITSELF)
@pytest.mark.parametrize("interface", ["no-such-interface", "203.0.113.1", "203.0.113.0/24"])
def test_an_interface_that_is_not_there_lists_those_that_are(interface: str) -> None:
    """Issue, bad input: no such interface."""
    with pytest.raises(InterfaceError, match=f"{interface}.*lo"):
        Context(interface)


@alone(OPENS_ITSELF)
def test_a_datagram_size_that_fits_the_mtu_is_used() -> None:
    """W4: the largest possible size is accepted as configured, and is the default."""
    fits = min(find_interface("lo").mtu_bytes - 28, 65507)
    with Context("lo", transport_lbtrm_datagram_max_size=fits, **OWN_ADDRESSES) as context:
        assert context.datagram_bytes == fits
    with Context("lo", **OWN_ADDRESSES) as context:
        assert context.datagram_bytes == fits, "0 follows the MTU"


def test_an_impossible_forced_link_reports_the_alternative() -> None:
    """W7: a forced mode fails with the missing requirement; auto tries the next mode."""
    with pytest.raises(Unsupported, match=r"loopback ends.*link=socket"):
        Context("lo", link="xdp")
    with open_context(link="auto") as context:
        assert context.link == "socket"


@alone(ITS_SESSION)
@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_a_session_takes_a_port_beyond_a_range_that_is_taken(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When every port of the range is taken, the system chooses one, a warning names it, and receivers find it."""
    option = {"lbtrm": "transport_lbtrm_source_port", "tcp": "transport_tcp_port"}[transport]
    ports = {f"{option}_low": 29990, f"{option}_high": 29990}
    with (
        open_context(**ports) as first,
        open_context(**ports) as second,
        first.source("one", transport=transport),
        caplog.at_level("WARNING", "umstack.source"),
    ):
        source, receiver = connect(second, "two", transport=transport)
        source.send(b"beyond", flush=True)
        assert [message.data for message in collect(receiver, 1)] == [b"beyond"]
        port = int(source.transport.split(":")[2])
        assert port != 29990
        assert (
            f"{option}_low to {option}_high (29990-29990) is taken: a session uses port {port}" in caplog.text
        )


# ---- the two modes ----


def _tasks() -> set[str]:
    """The threads of this process, by number."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


def _thread_status(name: str) -> dict[str, str]:
    """Return this process's thread of that name in /proc, or empty if there is none."""
    for task in _tasks():
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"/proc/self/task/{task}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if fields["Name"] == name:
                return fields
    return {}


@alone("with a driver, a thread reads its control socket")
def test_sequential_mode_does_nothing_by_itself() -> None:
    """UM-14: no thread is made; nothing progresses until the application calls process_events."""
    threads = _tasks()
    with open_context("sequential") as context:
        assert not _tasks() - threads
        receiver = context.receiver("still")
        source = context.source("still", flow_control="min")
        time.sleep(0.1)
        assert not source.is_connected
        assert context.stats()["context"]["loop_iterations"] == 0
        deadline = time.monotonic() + SECONDS
        while not source.is_connected and time.monotonic() < deadline:
            context.process_events(0.01)
        source.send(b"moves", flush=True)
        assert payloads(collect(receiver, 1)) == [b"moves"]
    assert not _tasks() - threads


def test_a_receiver_does_not_find_a_source_of_its_context_that_has_ended() -> None:
    """The final advertisement is still on its way back to the context: in sequential mode, until it is processed."""
    with open_context("sequential") as context:
        former = context.source("ended")
        deadline = time.monotonic() + SECONDS
        while "ended" not in context.topics() and time.monotonic() < deadline:
            context.process_events(0.01)
        former.close()
        receiver = context.receiver("ended")
        assert context.topics() == ["ended"]
        assert receiver.sources == []
        latter = context.source("ended")
        assert [message.data for message in _sent_and_received(context, latter, receiver)] == [b"alive"]
        assert receiver.sources == [f"{latter.transport}[{latter.topic_index}]"]


def _sent_and_received(context: Context, source: Source, receiver: Receiver) -> list[Message]:
    deadline = time.monotonic() + SECONDS
    while not receiver.sources and time.monotonic() < deadline:
        context.process_events(0.01)
    source.send(b"alive", flush=True)
    return collect(receiver, 1)


def test_the_ended_sources_that_a_context_remembers_are_bounded() -> None:
    """The oldest is forgotten."""
    with open_context("sequential") as context, context.source("x") as source:
        address = source._publication.session.address
        for number in range(WITHDRAWN_MAX + 1):
            context._resolver.withdraw("x", number, address)
        found = [context._resolver.has_withdrawn("x", number, address) for number in range(WITHDRAWN_MAX + 1)]
        assert found == [False, *[True] * WITHDRAWN_MAX]


def test_embedded_mode_has_a_thread() -> None:
    """UM-13: creating a context makes the thread that handles timers, sockets and the protocol."""
    before = _tasks()
    with open_context():
        wait_for(lambda: _thread_status("umstack-context"))
    wait_for(lambda: not _tasks() - before)


@alone("the driver of the tests has its memory in this process")
def test_a_source_session_has_its_memory_from_first_use() -> None:
    """A topic that sends nothing costs under 2 MiB, though the log of its session has 96 MiB; messages are backed."""
    with open_context() as context, context.source("first"):
        before = _backed_bytes()
        sources = [context.source(f"topic {number}") for number in range(4)]
        assert len({source.transport for source in sources}) == 4
        assert _backed_bytes() - before < 4 * 2 * 2**20
        sources[0].send_many([bytes(1400)] * 20_000)
        assert _backed_bytes() - before > 20_000 * 1400


def _backed_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_protocol_thread_flushes_a_batch_whose_interval_has_passed() -> None:
    """UM-26: a flush is carried out by the thread that sends. A batch that only gets old waits for the thread that runs
    the protocol, which in sequential mode is the caller of process_events().
    """
    with open_context("sequential") as context:
        source = context.source("flushed", flow_control="none", implicit_batching_interval=3)
        source.send(b"at once", flush=True)
        assert source.stats()["msgs_sent"] == 1
        source.send(b"later")
        time.sleep(0.02)  # the interval passes, and nothing runs the protocol
        assert source.stats()["msgs_sent"] == 1
        context.process_events(0)
        assert source.stats()["msgs_sent"] == 2
        assert source.stats()["flushes_interval"] == 1
    with open_context() as context:
        source = context.source("flushed", flow_control="none", implicit_batching_interval=3)
        source.send(b"later")
        wait_for(lambda: source.stats()["flushes_interval"] == 1, "the context's thread")


def test_process_events_runs_for_at_least_its_time() -> None:
    """UM-14: the timeout is a minimum run time; 0 is one pass that does not sleep."""
    with open_context("sequential") as context:
        started = time.monotonic()
        context.process_events(0.15)
        assert 0.15 <= time.monotonic() - started < 1
        started = time.monotonic()
        for _ in range(100):
            context.process_events(0)
        assert time.monotonic() - started < 1
        assert context.stats()["context"]["loop_iterations"] >= 100


def test_round_trips_are_not_taken_for_a_load() -> None:
    """A loaded receiver coalesces receives. One that answers each datagram by itself is not loaded, however fast."""
    trips = 20000
    spec = RoundTripSpec(samples=trips, seconds=2)
    with open_context("sequential") as asking, open_context("sequential") as answering:
        replies, requests = asking.receiver("replies"), answering.receiver("requests")
        ask = asking.source("requests", flow_control="min")
        answer = answering.source("replies", flow_control="min")
        deadline = time.monotonic() + SECONDS
        while not (ask.known_receivers and answer.known_receivers) and time.monotonic() < deadline:
            asking.process_events(0)
            answering.process_events(0)
        serving = threading.Thread(target=serve_in_core, args=(spec, answer, requests))
        serving.start()
        done = ping_in_core(spec, ask, replies, array.array("Q", bytes(8 * trips)))
        serving.join()
        for context in (asking, answering):
            assert context.stats()["context"]["loop_naps"] < done["samples"] / 100


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_unblock_makes_process_events_return(timeout: float | None) -> None:
    """UM-14, lbm_context_unblock: from another thread, before or while it runs."""
    with open_context("sequential") as context:
        context.unblock()
        started = time.monotonic()
        context.process_events(timeout)
        timer = threading.Timer(0.05, context.unblock)
        timer.start()
        context.process_events(timeout)
        timer.join()
        assert time.monotonic() - started < 1


def test_a_blocking_send_lets_a_sequential_context_get_on() -> None:
    """UM-14: the thread that waits in a send is the only one there is; it must still find the receiver."""
    with open_context("sequential") as context:
        receiver = context.receiver("waits")
        source = context.source("waits", flow_control="min")
        assert source.send(b"found you", flush=True, timeout=SECONDS) == 0
        assert payloads(collect(receiver, 1)) == [b"found you"]


def test_a_busy_poll_runs_the_duty_cycle() -> None:
    """W8: a loop of polls that never wait resolves topics, receives and answers all the same."""
    with open_context("sequential", file_descriptor_management_behavior="busy_wait") as context:
        receiver = context.receiver("busy")
        source = context.source("busy")
        got: list[bytes] = []
        deadline = time.monotonic() + SECONDS
        while len(got) < 10 and time.monotonic() < deadline:
            source.send(b"x", flush=True)
            got += payloads(receiver.poll(10, 0).messages())
        assert len(got) >= 10


def test_other_threads_run_while_a_poll_waits() -> None:
    """W8: neither mode holds the interpreter lock while it waits."""
    for mode in ("embedded", "sequential"):
        with open_context(mode) as context, context.receiver("quiet") as receiver:
            turns, stop = [0], threading.Event()

            def spin(turns: list[int] = turns, stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    turns[0] += 1
                    time.sleep(0)

            other = threading.Thread(target=spin)
            other.start()
            receiver.poll(1, 0.2)
            stop.set()
            other.join()
            assert turns[0] > 100, mode


# ---- statistics ----


def test_statistics_have_every_counter_by_name() -> None:
    """Design section 4: ctx.stats() has every counter of the schema, under UM's names."""
    with open_context() as context:
        source, receiver = connect(context, "counted")
        source.send(b"12345", flush=True)
        collect(receiver, 1)
        stats = context.stats()
        found = {
            "context": stats["context"],
            "link": stats["link_counters"],
            "source_transport": stats["source_transports"][0],
            "receiver_transport": stats["receiver_transports"][0],
            "source": stats["sources"][0],
            "receiver": stats["receivers"][0],
        }
        for group, counters in found.items():
            assert {c.name for c in schema().group(group).counters} <= counters.keys(), group
        assert (stats["interface"], stats["link"], stats["datagram_bytes"]) == ("lo", "socket", 1472)
        assert found["source"]["messages_sent"] == found["receiver"]["messages_delivered"] == 1
        assert found["source"]["bytes_sent"] == found["receiver"]["bytes_delivered"] == 5
        assert found["source_transport"]["msgs_sent"] == found["receiver_transport"]["msgs_rcved"] == 1
        assert found["source_transport"]["transport"] == found["receiver_transport"]["transport"]
        assert source.stats().items() >= {"messages_sent": 1, "msgs_sent": 1}.items()


def test_statistics_may_be_read_while_everything_moves() -> None:
    """Counters may be read at any time, from any thread, while objects come and go."""
    with open_context() as context:
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                context.stats()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for i in range(30):
                with context.receiver("moving") as receiver, context.source("moving") as source:
                    source.send(b"%d" % i, flush=True)
                    receiver.poll(10, 0.001)
        finally:
            stop.set()
            reader.join()


# ---- ending ----


def test_use_of_a_closed_context_raises() -> None:
    """Every call on a closed context raises Closed; what was made from it is closed too; closing twice is nothing."""
    context = open_context()
    source, receiver = connect(context, "closed")
    context.close()
    context.close()
    assert source.closed
    assert receiver.closed
    for call in (
        lambda: context.source("x"),
        lambda: context.receiver("x"),
        lambda: context.process_events(0),
        context.stats,
        lambda: source.send(b"x"),
        receiver.poll,
    ):
        with pytest.raises(Closed):
            call()
    context.unblock()


def _mapped_megabytes() -> int:
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    anonymous = [line for line in maps if len(line.split()) == 5]
    sizes = [int(a, 16) - int(b, 16) for line in anonymous for b, a in [line.split()[0].split("-")]]
    return sum(sizes) >> 20


@pytest.mark.parametrize(("mode", "times"), [("embedded", 60), ("sequential", 40)])
def test_contexts_leave_nothing_behind(mode: str, times: int) -> None:
    """Issue: memory is bounded. A hundred contexts, used and closed, leak no descriptor, thread or map."""

    def use() -> None:
        with (
            open_context(mode) as context,
            context.receiver("leak") as receiver,
            context.source("leak", flow_control="min") as source,
        ):
            source.send(b"x", flush=True, timeout=SECONDS)
            with source.claim(10):
                pass
            assert receiver.receive(SECONDS) == b"x"

    for _ in range(3):
        use()
    before, megabytes = held(), _mapped_megabytes()
    for _ in range(times):
        use()
    wait_until_released(before)
    assert _mapped_megabytes() <= megabytes + 8


def test_sources_and_receivers_leave_nothing_behind() -> None:
    """The same for what is made and closed within one context."""
    with open_context() as context:

        def use() -> None:
            with context.receiver("leak") as receiver, context.source("leak", flow_control="min") as source:
                source.send(b"x", flush=True, timeout=SECONDS)
                collect(receiver, 1)

        for _ in range(3):
            use()
        before, megabytes = held(), _mapped_megabytes()
        for _ in range(50):
            use()
        wait_until_released(before)
        assert _mapped_megabytes() <= megabytes + 8


def test_a_failed_creation_leaves_nothing_behind() -> None:
    """An error half-way gives back what was taken before it."""
    with open_context():
        pass
    before = held()
    for _ in range(5):
        with pytest.raises(OptionError):
            open_context(resolver_datagram_max_size=65535, transport_lbtrm_datagram_max_size=600)
        with pytest.raises(OptionError):
            open_context(delivery_hold_datagrams=1)
    wait_until_released(before)


@pytest.fixture
def program() -> Iterator[Any]:
    """Runs a Python program against this checkout and returns what became of it."""

    def run(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", text, *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            cwd=Path(__file__).parents[2],
        )

    return run


@alone(OPENS_ITSELF)
def test_a_program_may_end_without_closing(program: Any) -> None:
    """Nothing hangs or crashes when the interpreter goes down around an open context."""
    done = program(
        "from tests.unit.loopback import *\n"
        "context = open_context()\n"
        "source, receiver = connect(context, 'open')\n"
        "callback = context.receiver('open', lambda event: None)\n"
        "source.send_many([b'x'] * 1000, flush=True)\n"
        "batch = receiver.poll(100, 1)\n"
        "view = batch.payload\n"
        "print('done', flush=True)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_contexts_close_in_any_order() -> None:
    """Several contexts of one process are independent."""
    contexts = [open_context() for _ in range(4)]
    pairs = [connect(context, f"order {i}") for i, context in enumerate(contexts)]
    for i in (2, 0, 3, 1):
        source, receiver = pairs[i]
        source.send(b"last", flush=True)
        assert payloads(collect(receiver, 1)) == [b"last"]
        contexts[i].close()


def test_threads_that_race_to_close() -> None:
    """Closing from several threads at once closes once."""
    for _ in range(10):
        context = open_context()
        connect(context, "race")
        closers = [threading.Thread(target=context.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(SECONDS)
            assert not closer.is_alive()


def test_threads_make_sources_and_receivers_at_once() -> None:
    """Any thread may make objects: every source has a topic index of its own and every message arrives."""
    with open_context() as context:
        made: list[tuple[Any, Any]] = []

        def make(number: int) -> None:
            receiver = context.receiver(f"made {number}")
            made.append((context.source(f"made {number}", flow_control="min"), receiver))

        makers = [threading.Thread(target=make, args=(number,)) for number in range(16)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        assert len({source.topic_index for source, _ in made}) == 16
        for source, receiver in made:
            # Sources share sessions: that one is connected does not say that this receiver knows the source.
            wait_for(lambda receiver=receiver: receiver.stats()["delivery_controllers"], "topic resolution")
            source.send(source.topic.encode(), flush=True, timeout=SECONDS)
            wait_for(lambda receiver=receiver: receiver.stats()["messages_delivered"] == 1)
            rows = collect_events(receiver, 2)
            assert [row.data for row in rows if isinstance(row, Message)] == [receiver.topic.encode()]


# ---- signals ----

_INTERRUPTED = """
import faulthandler, json, os, signal, threading, time
from tests.unit.loopback import *

faulthandler.dump_traceback_later(60, exit=True)  # shows the call that does not end
embedded, sequential = open_context(), open_context("sequential")
receiver, quiet = embedded.receiver("quiet"), sequential.receiver("quiet")
source, silent = (c.source("nobody", flow_control="min") for c in (embedded, sequential))
calls = {
    "poll": lambda: receiver.poll(1, None),
    "poll with a timeout": lambda: receiver.poll(1, 20),
    "receive": lambda: receiver.receive(),
    "iterate": lambda: list(receiver),
    "send": lambda: source.send(b"x"),
    "send_many": lambda: source.send_many([b"x"]),
    "claim": lambda: source.claim(1).__enter__(),
    "wait_connected": lambda: source.wait_connected(),
    "sequential poll": lambda: quiet.poll(1, None),
    "sequential send": lambda: silent.send(b"x"),
    "process_events": lambda: sequential.process_events(None),
}
delays = {}
for what, call in calls.items():
    pressed = []

    def press():
        time.sleep(0.15)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    try:
        call()
    except KeyboardInterrupt:
        delays[what] = time.monotonic() - pressed[0]
embedded.close(), sequential.close()
print(json.dumps(delays))
"""


@alone(OPENS_ITSELF)
def test_ctrl_c_ends_every_call_that_waits(program: Any) -> None:
    """An interrupt from the keyboard is handled within a fifth of a second, whatever the call waits for."""
    done = program(_INTERRUPTED)
    assert done.returncode == 0, done.stderr
    delays = json.loads(done.stdout)
    assert len(delays) == 11
    assert max(delays.values()) < 0.2 + 0.3, f"a fifth of a second, and what a busy machine adds: {delays}"


def test_a_handled_signal_does_not_shorten_a_wait() -> None:
    """As with the standard library's calls: a signal whose handler returns lets the wait go on."""
    with open_context() as context, context.receiver("patient") as receiver:
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            timers = [threading.Timer(0.02 * i, os.kill, (os.getpid(), signal.SIGUSR1)) for i in range(1, 4)]
            for timer in timers:
                timer.start()
            started = time.monotonic()
            assert not receiver.poll(1, 0.3)
            assert time.monotonic() - started >= 0.3
        finally:
            for timer in timers:
                timer.join()
            signal.signal(signal.SIGUSR1, before)


def test_signals_are_not_taken_by_the_context_thread() -> None:
    """It blocks them all: they belong to the application's threads, one of which may wait to be interrupted."""
    with open_context():
        wait_for(lambda: _thread_status("umstack-context"))
        blocked = int(_thread_status("umstack-context")["SigBlk"], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            assert blocked >> number - 1 & 1, number

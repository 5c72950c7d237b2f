"""`umstack bench`: how fast the stack is on this machine, next to raw kernel sockets in the same run.

One file, because it is one command: each sub-command is its options and a call into `umstack.bench`, and the options
that the sub-commands share are declared once at the top.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from umstack.bench import (
    capture,
    compare,
    environment,
    flow,
    late_join,
    latency,
    pipeline,
    recovery,
    ring_targets,
    scale,
    targets,
    throughput,
    upkeep,
)
from umstack.bench.plot import check_plot, draw_comparison
from umstack.bench.result import Result, faults
from umstack.bench.round_trip_ends import Loop, RoundTripSpec, Wait
from umstack.bench.stream_ends import Api, Input, Queue, Reads, StreamSpec
from umstack.bench.throughput import Progress, Segmentation
from umstack.cli import bench_requests, bench_resolution
from umstack.cli.bench_options import OPTION_LINES, PEERS, PIN, ROUNDS, TRANSPORT
from umstack.cli.bench_tables import (
    capture_table,
    comparison_table,
    flow_table,
    late_join_table,
    latency_table,
    live_table,
    monitor_table,
    pipeline_table,
    recovery_table,
    scale_table,
    target_table,
    throughput_table,
    upkeep_table,
)
from umstack.cli.capture import PRIORITY_OPTION
from umstack.cli.interruption import INTERRUPTED_STATUS, stoppable, terminable
from umstack.errors import UmError, Unsupported

_FILE_WIDTH = 160
_EXAMPLES = """\b
Examples:
  umstack bench throughput --size 64 --size 1024
  umstack bench throughput --size 64 --api message --seconds 5
  umstack bench latency --wait busy --loop core
  umstack bench recovery --loss 1%
  umstack bench late-join
  umstack bench compare --plot links.svg
  umstack bench all
  umstack bench throughput -o source.transport_lbtrm_transmission_window_size=50331648
"""


def _rate(text: str) -> float:
    """A fraction, or a percentage: `0.01` or `1%`."""
    try:
        rate = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise click.BadParameter(f"{text} is not a rate: give a fraction like 0.01 or a percentage like 1%")
    return rate


_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
_LINK = click.option(
    "--link",
    type=click.Choice(["auto", "socket", "xdp"]),
    default="socket",
    show_default=True,
    help="The link.",
)
_RECEIVERS = click.option(
    "--receivers", type=click.IntRange(1, 16), default=1, show_default=True, help="Subscribers."
)
_WAITS = click.option(
    "--wait",
    "waits",
    type=click.Choice(get_args(Wait)),
    multiple=True,
    default=get_args(Wait),
    show_default=True,
    help="How the ends of a round trip wait for the next message.",
)
_LOOP = click.option(
    "--loop",
    type=click.Choice(get_args(Loop)),
    default="core",
    show_default=True,
    help="Where the loop of the round trips runs.",
)
_MODE = click.option(
    "--mode",
    type=click.Choice(["embedded", "sequential"]),
    show_default=True,
    help="What runs the protocol: a thread of the context, or the application's.",
)


def _size(maximum: int, what: str = "Message size in bytes.", *, default: int = 64) -> Callable[[Any], Any]:
    return click.option(
        "--size", type=click.IntRange(8, maximum), default=default, show_default=True, help=what
    )


def _sizes(*default: int) -> Callable[[Any], Any]:
    return click.option(
        "--size",
        "sizes",
        type=click.IntRange(8, 65000),
        multiple=True,
        default=default,
        show_default=True,
        help="Message size in bytes; may be given again.",
    )


def _loss(default: str, what: str = "Datagrams lost.") -> Callable[[Any], Any]:
    return click.option("--loss", type=_rate, metavar="RATE", default=default, show_default=True, help=what)


def _common(seconds: float) -> Callable[[Any], Any]:
    """The options every measurement has, with the seconds it takes by default."""
    length = click.option(
        "--seconds",
        type=click.FloatRange(min=0.05),
        default=seconds,
        show_default=True,
        help="Length of each measurement.",
    )

    def decorate(function: Any) -> Any:
        for option in (_JSON, OPTION_LINES, PIN, ROUNDS, length):
            function = option(function)
        return function

    return decorate


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Say on standard error what is being measured."""
    console = Console(stderr=True)
    with console.status(title) as status:
        if console.is_terminal:
            yield lambda text: status.update(f"{title}: {text}")
        else:
            yield lambda text: console.print(f"{title}: {text}", highlight=False)


def _report(
    results: Sequence[Result],
    described: dict[str, Any],
    as_json: bool,
    table: Callable[[Sequence[Result]], Table],
    **more: Any,
) -> None:
    """Print what was found; a stack that did not keep its promise is a failure."""
    if as_json:
        click.echo(json.dumps({"environment": described, "results": results, **more}))
    else:
        _print_table(table(results))
    broken = faults(results)
    for fault in broken:
        click.echo(f"umstack bench: {fault}", err=True)
    if broken:
        raise click.exceptions.Exit(1)


def _print_table(table: Table) -> None:
    console = Console()
    # A table in a file is not cut to the width a terminal would have had.
    Console(width=None if console.is_terminal else _FILE_WIDTH).print(table)


def _describe(config: str, is_pinned: bool, segmentation: str = "real", **of_run: Any) -> dict[str, Any]:
    return environment.describe(
        mtu=1500, segmentation=segmentation, pinned=is_pinned, options=config.split("\n"), **of_run
    )


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Measure throughput, latency and recovery next to raw kernel sockets in the same run.

    Publisher and subscribers are processes of their own on hosts of a lab (`umstack lab --help`) made for the run,
    which needs root. Order and completeness are checked on every message; a run in which one is missing fails.
    """


@command.command("throughput", epilog="Example: umstack bench throughput --size 64 --size 1024 --seconds 3")
@_sizes(64, 1024)
@click.option(
    "--api",
    type=click.Choice(get_args(Api)),
    default="batch",
    show_default=True,
    help="How Python uses the stack.",
)
@click.option(
    "--input",
    "form",
    type=click.Choice(get_args(Input)),
    default="packed",
    show_default=True,
    help="With the batch API: what the publisher hands over.",
)
@click.option(
    "--segmentation",
    type=click.Choice(get_args(Segmentation)),
    default="real",
    show_default=True,
    help="real: GSO super-packets are cut at the host, as by a NIC. offload: they cross whole. none: no GSO, no GRO.",
)
@click.option(
    "--flow-control",
    type=click.Choice(["none", "min", "max"]),
    default="min",
    show_default=True,
    help="Whose window bounds the publisher.",
)
@click.option(
    "--topics", type=click.IntRange(1, 1000), default=1, show_default=True, help="Topics on the session."
)
@click.option(
    "--queue",
    type=click.Choice(get_args(Queue)),
    default="shared",
    show_default=True,
    help="Several topics: one event queue for all receivers, or each its own.",
)
@click.option(
    "--reads",
    type=click.Choice(get_args(Reads)),
    default="counter",
    show_default=True,
    help="With the batch API: what the subscriber reads of a message, its counter or all of it.",
)
@_RECEIVERS
@click.option(
    "--batch",
    "batch_messages",
    type=click.IntRange(0, 65536),
    default=0,
    help="Messages a send; default: 256 KiB.",
)
@click.option("--baselines/--no-baselines", "has_baselines", default=True, help="Measure raw sockets too.")
@PEERS
@_MODE
@_LINK
@TRANSPORT
@_common(2.0)
def _throughput(
    sizes: Sequence[int],
    form: Input,
    segmentation: Segmentation,
    flow_control: str,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    has_baselines: bool,
    others: Sequence[str],
    as_json: bool,
    mode: str | None,
    transport: str,
    **stream: Any,
) -> None:
    """How many messages a second, and how that stands to raw sockets."""
    config = throughput.options_text(flow_control, segmentation, options, transport)
    stream["transport"] = transport
    specs = [
        StreamSpec(size=size, input=form, config=config, mode=mode or "embedded", **stream) for size in sizes
    ]
    plan = throughput.ThroughputPlan(specs, segmentation, rounds, is_pinned, has_baselines, others)
    with _progress("throughput") as progress:
        results = throughput.measure(plan, progress)
    described = _describe(config, is_pinned, segmentation, rounds=rounds)
    _report(results, described, as_json, throughput_table)


@command.command("latency", epilog="Example: umstack bench latency --wait busy --loop core")
@_WAITS
@click.option(
    "--loop",
    "loops",
    type=click.Choice(get_args(Loop)),
    multiple=True,
    default=get_args(Loop),
    show_default=True,
    help="Where the loop runs that sends and waits.",
)
@_size(1024)
@click.option(
    "--count",
    "samples",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Round trips at most.",
)
@click.option(
    "--napi",
    type=click.Choice(get_args(latency.Napi)),
    default="interrupts",
    show_default=True,
    help="How the drivers of the lab's hosts work (`umstack nic init`).",
)
@_loss("0", "Datagrams lost, in each direction.")
@PEERS
@_MODE
@_LINK
@TRANSPORT
@_common(2.0)
def _latency(
    waits: Sequence[Wait],
    loops: Sequence[Loop],
    options: Sequence[str],
    rounds: int,
    napi: latency.Napi,
    loss: float,
    is_pinned: bool,
    others: Sequence[str],
    as_json: bool,
    mode: str | None,
    transport: str,
    **trip: Any,
) -> None:
    """How long a message takes there and back, and how that stands to a datagram between raw sockets."""
    config = throughput.options_text("min", "real", options, transport)
    trip["transport"] = transport
    specs = [
        RoundTripSpec(wait=wait, loop=loop, config=config, mode=mode or "sequential", **trip)
        for wait in waits
        for loop in loops
    ]
    plan = latency.LatencyPlan(specs, rounds, loss, is_pinned, napi, others)
    with _progress("latency") as progress:
        results = latency.measure(plan, progress)
    described = _describe(config, is_pinned, rounds=rounds, loss=loss, napi=napi)
    _report(results, described, as_json, latency_table)


@command.command("upkeep", epilog="Example: umstack bench upkeep --rounds 15")
@click.option("--rounds", default=15, show_default=True, help="Rounds; the figures are medians.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5),
    default=10.0,
    show_default=True,
    help="How long `umstack top` is watched.",
)
@_JSON
def _upkeep(rounds: int, seconds: float, as_json: bool) -> None:
    """What starting and watching a process costs: import, first message, scrapes, `umstack top`. Needs no root."""
    with _progress("upkeep") as progress:
        figures = upkeep.measure(upkeep.UpkeepPlan(rounds, seconds), progress)
    if as_json:
        click.echo(
            json.dumps({"environment": _describe("", is_pinned=False, rounds=rounds), "figures": figures})
        )
    else:
        _print_table(upkeep_table(figures))


@command.command("recovery", epilog="Example: umstack bench recovery --loss 1% --size 1024")
@_loss("1%")
@_size(65000, "Message size of the stream in bytes.")
@_RECEIVERS
@click.option("--round-trip/--no-round-trip", "has_round_trip", default=True, help="Measure round trips too.")
@click.option(
    "--tuned/--defaults",
    "is_tuned",
    default=False,
    help="Timers set by hand for a fast network, or those of a context that sets no option.",
)
@_LOOP
@PEERS
@_LINK
@TRANSPORT
@_common(2.0)
def _recovery(
    loss: float,
    has_round_trip: bool,
    is_tuned: bool,
    loop: Loop,
    link: str,
    seconds: float,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    others: Sequence[str],
    as_json: bool,
    transport: str,
    **stream: Any,
) -> None:
    """What losing datagrams at the switch costs: a stream without loss and with it, and round trips with it."""
    config = throughput.options_text("min", "real", options, transport)
    tuned = recovery.tuned_for(transport, recovery.STREAM_OPTIONS) if is_tuned else ""
    stream["transport"] = transport
    spec = StreamSpec(config=f"{tuned}{config}", link=link, seconds=seconds, **stream)
    trip = recovery.round_trip_spec(config, seconds, is_tuned, transport)
    trip = dataclasses.replace(trip, link=link, loop=loop)
    plan = recovery.RecoveryPlan(spec, trip if has_round_trip else None, loss, rounds, is_pinned, others)
    with _progress("recovery") as progress:
        results = recovery.measure(plan, progress)
    described = _describe(spec.config, is_pinned, rounds=rounds, loss=loss, round_trip_options=trip.config)
    _report(results, described, as_json, recovery_table)


@command.command("late-join", epilog="Example: umstack bench late-join --size 64")
@_size(65000)
@click.option(
    "--backlog",
    type=click.IntRange(min=1000),
    help="Messages retained; otherwise as many as are 100 MB, two million at most.",
)
@_common(2.0)
def _late_join(
    size: int,
    backlog: int | None,
    seconds: float,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    as_json: bool,
) -> None:
    """How fast a receiver that joins late fetches what is retained, and what that costs a live stream."""
    config = throughput.options_text("min", "real", options)
    count = backlog or min(2_000_000, 100_000_000 // size)
    plan = late_join.LateJoinPlan(size, count, config, seconds=seconds, rounds=rounds, is_pinned=is_pinned)
    with _progress("late join") as progress:
        results = late_join.measure(plan, progress)
    _report(results, _describe(config, is_pinned, rounds=rounds), as_json, late_join_table)


@command.command("flow", epilog="Example: umstack bench flow --cost-us 10")
@click.option(
    "--cost-us",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="What the slowest subscriber spends on a message.",
)
@_size(65000)
@click.option(
    "--receivers",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Subscribers, one of them slow.",
)
@_LINK
@_common(2.0)
def _flow(
    cost_us: float, options: Sequence[str], rounds: int, is_pinned: bool, as_json: bool, **stream: Any
) -> None:
    """Whether a publisher with flow control finds the pace of its slowest subscriber, and loses nothing."""
    config = throughput.options_text("min", "real", options)
    plan = flow.FlowPlan(StreamSpec(config=config, **stream), cost_us, rounds, is_pinned)
    with _progress("flow control") as progress:
        results = flow.measure(plan, progress)
    _report(results, _describe(config, is_pinned, rounds=rounds), as_json, flow_table)


@command.command("scale", epilog="Example: umstack bench scale --topics 1 --topics 1000 --receivers 1")
@click.option(
    "--topics",
    type=click.IntRange(1, 4000),
    multiple=True,
    default=(1, 10, 100, 1000),
    show_default=True,
    help="Topics on one session.",
)
@click.option(
    "--receivers",
    type=click.IntRange(1, 16),
    multiple=True,
    default=(1, 2, 4, 8),
    show_default=True,
    help="Subscribers of one topic.",
)
@_size(1400)
@_LINK
@_common(1.0)
def _scale(
    topics: Sequence[int],
    receivers: Sequence[int],
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    as_json: bool,
    **stream: Any,
) -> None:
    """What a message costs as topics and subscribers become many; compared with the first number given."""
    config = throughput.options_text("min", "real", options)
    plan = scale.ScalePlan(StreamSpec(config=config, **stream), topics, receivers, rounds, is_pinned)
    with _progress("scale") as progress:
        results = scale.measure(plan, progress)
    _report(results, _describe(config, is_pinned, rounds=rounds), as_json, scale_table)


@command.command("compare", epilog="Example: umstack bench compare --seconds 2 --plot links.svg")
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(8, compare.SIZE_MAX),
    multiple=True,
    default=compare.SIZES,
    show_default=True,
    help="Message size in bytes; above 1400 in a lab at MTU 9000.",
)
@_WAITS
@_LOOP
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg|png",
    help="Draw the comparison into a file.",
)
@_common(1.0)
def _compare(plot: Path | None, as_json: bool, **asked: Any) -> None:
    """Kernel sockets against AF_XDP: throughput, processor time a message and round trips at several sizes.

    One table of both links and of what raw sockets and raw rings do in the same rounds.
    """
    if plot is not None:
        check_plot(plot)
    plan = compare.ComparePlan(**asked)
    with _progress("comparison") as progress:
        results, rows = compare.measure(plan, progress)
    if plot is not None:
        draw_comparison(rows, plan.waits, plot)
    described = _describe(
        throughput.options_text("min", "real", plan.options),
        plan.is_pinned,
        rounds=plan.rounds,
        jumbo_mtu=9000,
    )
    listed = [row.as_json() for row in rows]
    _report(results, described, as_json, lambda _: comparison_table(rows, plan.waits), comparison=listed)


@command.command(
    "capture", epilog="Example: umstack bench capture --size 64 --size 1400 --link socket --link xdp"
)
@_sizes(64, 1400)
@click.option(
    "--link",
    "links",
    type=click.Choice(["socket", "xdp"]),
    multiple=True,
    default=("socket", "xdp"),
    show_default=True,
    help="The link; may be given again.",
)
@click.option(
    "--at",
    "place",
    type=click.Choice(get_args(capture.Place)),
    default="subscriber",
    show_default=True,
    help="Whose interface is captured; over AF_XDP only the switch sees the data.",
)
@click.option(
    "--snaplen", type=click.IntRange(64), metavar="BYTES", help="Keep so much of a frame; else all of it."
)
@PRIORITY_OPTION
@_common(1.0)
def _capture(
    sizes: Sequence[int],
    links: Sequence[str],
    place: capture.Place,
    snaplen: int | None,
    priority: str,
    seconds: float,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    as_json: bool,
) -> None:
    """What `umstack capture` costs a stream that it captures: the same with and without, in turn."""
    config = throughput.options_text("min", "real", options)
    specs = [
        StreamSpec(size=size, link=link, seconds=seconds, config=config, mode="embedded")
        for link in links
        for size in sizes
    ]
    told = ["--priority", priority, *(("--snaplen", str(snaplen)) if snaplen else ())]
    with _progress("capture") as progress:
        results = capture.measure(capture.CapturePlan(specs, place, told, rounds, is_pinned), progress)
    _report(results, _describe(config, is_pinned, rounds=rounds), as_json, capture_table)


@command.command("rings", epilog="Example: umstack bench rings --seconds 2 --rounds 5")
@_common(1.0)
def _rings(as_json: bool, **asked: Any) -> None:
    """The AF_XDP link against the figures the project set itself for it (docs/performance.md).

    The exit status says whether everything was measured and delivered; which targets were met the table says.
    """
    plan = compare.ComparePlan(**asked)
    with _progress("rings") as progress:
        results, reached = ring_targets.measure(plan, progress)
    described = _describe(
        throughput.options_text("min", "real", plan.options), plan.is_pinned, rounds=plan.rounds
    )
    listed = [target.as_json() for target in reached]
    _report(results, described, as_json, lambda _: target_table(reached), targets=listed)


def _packets(default: int) -> Callable[[Any], Any]:
    return click.option(
        "--packets",
        type=click.IntRange(1000),
        default=default,
        show_default=True,
        help="Packets of the capture.",
    )


_SNAPLEN = click.option(
    "--snaplen", type=click.IntRange(0), default=96, show_default=True, help="Kept of a packet; 0: all of it."
)


@command.command("decode", epilog="Example: umstack bench decode --packets 5000000 --snaplen 0")
@_packets(2_000_000)
@_SNAPLEN
@ROUNDS
@_JSON
def _decode(packets: int, snaplen: int, rounds: int, as_json: bool) -> None:
    """How fast a generated capture is decoded into columns by one thread, next to tshark where it is installed."""
    with _progress("decode") as progress:
        found = pipeline.measure_decode(pipeline.PipelinePlan(packets, snaplen, rounds), progress)
    _report_pipeline(found, as_json)


@command.command("report", epilog="Example: umstack bench report --packets 10000000")
@_packets(10_000_000)
@_SNAPLEN
@_JSON
def _report_bench(packets: int, snaplen: int, as_json: bool) -> None:
    """How long `umstack report` takes for a generated capture on this machine, and how much memory."""
    with _progress("report") as progress:
        found = pipeline.measure_report(pipeline.PipelinePlan(packets, snaplen), progress)
    _report_pipeline(found, as_json)


def _report_pipeline(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"environment": _describe("", is_pinned=False), "results": [found]}))
    else:
        _print_table(pipeline_table(found))


@command.command("live", epilog="Example: umstack bench live --rate 200000 --size 100 --seconds 15")
@click.option(
    "--rate",
    type=click.IntRange(1, 10_000_000),
    default=200_000,
    show_default=True,
    help="Messages published a second.",
)
@_size(65000, default=100)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.05),
    default=15.0,
    show_default=True,
    help="How long they are published.",
)
@OPTION_LINES
@_JSON
def _live(rate: int, size: int, seconds: float, options: Sequence[str], as_json: bool) -> None:
    """Whether a live query of Spark keeps up with a publisher, and how much memory it takes.

    Publisher, recorder and Spark share this machine's cores and talk over loopback; root is not needed. Every
    message is checked. The exit status says whether all arrived once; which targets were met the table says.
    """
    try:
        from umstack.bench import live
    except ImportError as error:
        raise Unsupported(f"a live query needs {error.name}", hint="pip install 'umstack[spark]'") from None
    plan = live.LivePlan(rate, size, seconds, options)
    stop = threading.Event()
    try:
        with _progress("live") as progress, terminable(once=True), stoppable(stop.set):
            found = live.measure(plan, progress, stop)
    except (KeyboardInterrupt, UmError) as error:
        # An interrupt from the terminal reaches the publisher too, which may end first.
        if isinstance(error, UmError) and not stop.is_set():
            raise
        click.echo("umstack bench: interrupted, nothing was measured", err=True)
        raise SystemExit(INTERRUPTED_STATUS) from None
    reached = live.judged(found)
    if not as_json:
        _print_table(live_table(found))
    listed = [target.as_json() for target in reached]
    described = environment.describe(interface="lo", pinned=False, options=plan.config().splitlines())
    _report([found], described, as_json, lambda _: target_table(reached), targets=listed)


@command.command("monitor", epilog="Example: umstack bench monitor --rate 20000 --messages 10")
@click.option(
    "--rate",
    type=click.IntRange(1, 10_000_000),
    default=200_000,
    show_default=True,
    help="Datagrams captured a second.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    help="Messages of 100 bytes in each.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=5),
    default=30.0,
    show_default=True,
    help="How long they are captured.",
)
@_JSON
def _monitor_bench(rate: int, messages: int, seconds: float, as_json: bool) -> None:
    """How far `umstack monitor` is behind a capture that grows, and how many cores it takes, fed and idle."""
    try:
        from umstack.bench import monitoring
    except ImportError as error:
        raise Unsupported(
            f"watching needs {error.name}", hint="pip install 'umstack[spark,report]'"
        ) from None
    with _progress("monitor") as progress:
        found = monitoring.measure(monitoring.MonitorPlan(rate, messages, seconds), progress)
    if as_json:
        click.echo(json.dumps({"environment": _describe("", is_pinned=False), "results": [found]}))
    else:
        _print_table(monitor_table(found))


@command.command("all", epilog="Example: umstack bench all --seconds 2 --rounds 5")
@_loss("1%")
@click.option(
    "--soak-messages",
    type=click.IntRange(4),
    default=targets.SOAK_MESSAGES,
    show_default=True,
    help="Messages over which memory must not grow.",
)
@_common(1.0)
def _all(options: Sequence[str], is_pinned: bool, as_json: bool, **plan: Any) -> None:
    """Everything, at short settings, against the figures the project set itself (docs/performance.md).

    The exit status says whether everything was measured and delivered; which targets were met the table says.
    """
    config = throughput.options_text("min", "real", options)
    with _progress("everything") as progress:
        results, reached = targets.measure_all(targets.AllPlan(config, is_pinned=is_pinned, **plan), progress)
    described = _describe(config, is_pinned, rounds=plan["rounds"], loss=plan["loss"])
    listed = [target.as_json() for target in reached]
    _report(results, described, as_json, lambda _: target_table(reached), targets=listed)


command.add_command(bench_requests.command)
command.add_command(bench_resolution.command)
command.add_command(bench_resolution.wildcard_command)

"""`umstack bench`: measures the stack next to raw kernel sockets in the same run.

One file, because each sub-command is only its options and a call into `umstack.bench`.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from umstack.bench import (
    compare,
    driver,
    environment,
    flow,
    ipc,
    isolation,
    latency,
    pipeline,
    recovery,
    ring_targets,
    scale,
    store,
    store_stream,
    targets,
    throughput,
)
from umstack.bench.plot import check_plot, draw_comparison
from umstack.bench.round_trip_ends import Loop, RoundTripSpec, Wait
from umstack.bench.stream_ends import Api, Input, Queue, Reads, StreamSpec
from umstack.bench.throughput import Segmentation
from umstack.cli.bench_options import (
    JSON,
    OPTION_LINES,
    PEERS,
    ROUNDS,
    TRANSPORT,
    common_options,
    describe,
    print_table,
    progress_shown,
    report_results,
    size_option,
    sizes_option,
)
from umstack.cli.bench_tables import (
    comparison_table,
    flow_table,
    ipc_table,
    isolation_table,
    latency_table,
    live_table,
    pipeline_table,
    recovery_tables,
    scale_table,
    store_tables,
    target_table,
    throughput_table,
)
from umstack.cli.interruption import INTERRUPTED_STATUS, stoppable, terminable
from umstack.driving.threads import THREADING_MODES
from umstack.errors import UmError, Unsupported
from umstack.store.repository import Durability

_EXAMPLES = """\b
Examples:
  umstack bench throughput --size 64 --size 1024
  umstack bench throughput --size 64 --api message --seconds 5
  umstack bench latency --wait busy --loop core
  umstack bench recovery --loss 1%
  umstack bench compare --plot links.svg
  umstack bench all
  umstack bench throughput -o source.transport_lbtrm_transmission_window_size=50331648
"""


def _rate(text: str) -> float:
    """Parse a fraction or a percentage: `0.01` or `1%`."""
    try:
        rate = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise click.BadParameter(f"{text} is not a rate: give a fraction like 0.01 or a percentage like 1%")
    return rate


_LINK = click.option(
    "--link",
    type=click.Choice(["auto", "socket", "xdp"]),
    default="socket",
    show_default=True,
    help="Link.",
)
_RECEIVERS = click.option(
    "--subscribers",
    "--receivers",
    "receivers",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Number of subscribers.",
)
_WAITS = click.option(
    "--wait",
    "waits",
    type=click.Choice(get_args(Wait)),
    multiple=True,
    default=get_args(Wait),
    show_default=True,
    help="How both ends wait for the next message; repeatable.",
)
_LOOP = click.option(
    "--loop",
    type=click.Choice(get_args(Loop)),
    default="core",
    show_default=True,
    help="Where the round-trip loop runs.",
)
_MODE = click.option(
    "--mode",
    type=click.Choice(["embedded", "sequential"]),
    show_default=True,
    help="embedded: a thread of the context runs the protocol; sequential: the application does.",
)


def _loss(default: str, what: str = "Rate of dropped datagrams.") -> Callable[[Any], Any]:
    return click.option("--loss", type=_rate, metavar="RATE", default=default, show_default=True, help=what)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Measure throughput, latency and recovery next to raw kernel sockets in the same run.

    Publisher and subscribers are processes on the hosts of a temporary lab (`umstack lab --help`), which needs root.
    Every message is checked; a run that loses, reorders or duplicates one fails.
    """


@command.command("throughput", epilog="Example: umstack bench throughput --size 64 --size 1024 --seconds 3")
@sizes_option(64, 1024)
@click.option(
    "--api",
    type=click.Choice(get_args(Api)),
    default="batch",
    show_default=True,
    help="Python API to use.",
)
@click.option(
    "--input",
    "form",
    type=click.Choice(get_args(Input)),
    default="packed",
    show_default=True,
    help="Batch API: form of the publisher's data.",
)
@click.option(
    "--segmentation",
    type=click.Choice(get_args(Segmentation)),
    default="real",
    show_default=True,
    help="real: cut GSO super-packets at the host, as a NIC does. offload: forward them whole. none: no GSO, no GRO.",
)
@click.option(
    "--flow-control",
    type=click.Choice(["none", "min", "max"]),
    default="min",
    show_default=True,
    help="Flow control of the source.",
)
@click.option(
    "--topics",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of topics on the session.",
)
@click.option(
    "--queue",
    type=click.Choice(get_args(Queue)),
    default="shared",
    show_default=True,
    help="With several topics: one event queue for all receivers, or one each.",
)
@click.option(
    "--reads",
    type=click.Choice(get_args(Reads)),
    default="counter",
    show_default=True,
    help="Batch API: the subscriber reads only each message's counter, or the whole message.",
)
@_RECEIVERS
@click.option(
    "--batch",
    "batch_messages",
    type=click.IntRange(0, 65536),
    default=0,
    help="Messages per send. Default: 256 KiB.",
)
@click.option("--baselines/--no-baselines", "has_baselines", default=True, help="Also measure raw sockets.")
@PEERS
@_MODE
@_LINK
@TRANSPORT
@common_options(2.0)
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
    """Measure messages per second, next to raw sockets."""
    config = throughput.options_text(flow_control, segmentation, options, transport)
    stream["transport"] = transport
    specs = [
        StreamSpec(size=size, input=form, config=config, mode=mode or "embedded", **stream) for size in sizes
    ]
    plan = throughput.ThroughputPlan(specs, segmentation, rounds, is_pinned, has_baselines, others)
    with progress_shown("throughput") as progress:
        results = throughput.measure(plan, progress)
    described = describe(config, is_pinned, segmentation, rounds=rounds)
    report_results(results, described, as_json, throughput_table)


@command.command("latency", epilog="Example: umstack bench latency --wait busy --loop core")
@_WAITS
@click.option(
    "--loop",
    "loops",
    type=click.Choice(get_args(Loop)),
    multiple=True,
    default=get_args(Loop),
    show_default=True,
    help="Where the loop of sends and waits runs; repeatable.",
)
@size_option(1024)
@click.option(
    "--count",
    "samples",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Maximum number of round trips.",
)
@click.option(
    "--napi",
    type=click.Choice(get_args(latency.Napi)),
    default="interrupts",
    show_default=True,
    help="Interrupt mode of the lab's drivers (`umstack nic init`).",
)
@_loss("0", "Rate of dropped datagrams in each direction.")
@PEERS
@_MODE
@_LINK
@TRANSPORT
@common_options(2.0)
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
    """Measure the round trip of a message, next to a datagram between raw sockets."""
    config = throughput.options_text("min", "real", options, transport)
    trip["transport"] = transport
    specs = [
        RoundTripSpec(wait=wait, loop=loop, config=config, mode=mode or "sequential", **trip)
        for wait in waits
        for loop in loops
    ]
    plan = latency.LatencyPlan(specs, rounds, loss, is_pinned, napi, others)
    with progress_shown("latency") as progress:
        results = latency.measure(plan, progress)
    described = describe(config, is_pinned, rounds=rounds, loss=loss, napi=napi)
    report_results(results, described, as_json, latency_table)


@command.command("recovery", epilog="Example: umstack bench recovery --subscribers 3 --loss 2% --size 1024")
@_loss("1%", "Rate of datagrams dropped at each subscriber's port, independently of the others.")
@size_option(65000, "Message size of the stream in bytes.")
@_RECEIVERS
@click.option(
    "--round-trip/--no-round-trip", "has_round_trip", default=True, help="Also measure round trips."
)
@click.option(
    "--capture/--no-capture",
    "is_captured",
    default=True,
    help="Also measure stalls and times to repair, from captures in additional runs. Not over TCP.",
)
@click.option(
    "--tuned/--defaults",
    "is_tuned",
    default=False,
    help="Use timers tuned for a fast network, or the defaults.",
)
@_LOOP
@PEERS
@_LINK
@TRANSPORT
@common_options(2.0)
def _recovery(
    loss: float,
    has_round_trip: bool,
    is_captured: bool,
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
    """Measure the cost of loss: a stream with and without it, and round trips with it.

    The stream without loss is measured twice: without the program at the switch's ports that drops datagrams, and with
    it, because the program uses the publisher's processor.

    For each subscriber and for all together: losses, times from NAK to repair, repairs per loss, and the share of time
    in which the publisher sent nothing new for over 5 ms.
    """
    config = throughput.options_text("min", "real", options, transport)
    tuned = recovery.tuned_for(transport, recovery.STREAM_OPTIONS) if is_tuned else ""
    stream["transport"] = transport
    spec = StreamSpec(config=f"{tuned}{config}", link=link, seconds=seconds, **stream)
    trip = recovery.round_trip_spec(config, seconds, is_tuned, transport)
    trip = dataclasses.replace(trip, link=link, loop=loop)
    plan = recovery.RecoveryPlan(
        spec,
        trip if has_round_trip else None,
        loss,
        rounds,
        is_pinned,
        others,
        is_captured and transport != "tcp",
    )
    with progress_shown("recovery") as progress:
        results = recovery.measure(plan, progress)
    described = describe(spec.config, is_pinned, rounds=rounds, loss=loss, round_trip_options=trip.config)
    report_results(results, described, as_json, recovery_tables)


@command.command("flow", epilog="Example: umstack bench flow --cost-us 10")
@click.option(
    "--cost-us",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Microseconds that the slowest subscriber spends per message.",
)
@size_option(65000)
@click.option(
    "--receivers",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Number of subscribers, one of them slow.",
)
@_LINK
@common_options(2.0)
def _flow(
    cost_us: float, options: Sequence[str], rounds: int, is_pinned: bool, as_json: bool, **stream: Any
) -> None:
    """Check that flow control slows a publisher to its slowest subscriber without loss."""
    config = throughput.options_text("min", "real", options)
    plan = flow.FlowPlan(StreamSpec(config=config, **stream), cost_us, rounds, is_pinned)
    with progress_shown("flow control") as progress:
        results = flow.measure(plan, progress)
    report_results(results, describe(config, is_pinned, rounds=rounds), as_json, flow_table)


@command.command("isolation", epilog="Example: umstack bench isolation --link xdp --topics 8")
@size_option(65000)
@click.option(
    "--topics",
    type=click.IntRange(2, 64),
    default=8,
    show_default=True,
    help="Number of topics, one of them never read.",
)
@_LINK
@common_options(2.0)
def _isolation(options: Sequence[str], rounds: int, is_pinned: bool, as_json: bool, **stream: Any) -> None:
    """Measure topics over two sessions, in turns with a reader of one that reads and one that never does.

    The rate and the delay are those of the other topics, once the reader that never reads is cut loose.
    """
    lines = [*isolation.ISOLATION_OPTIONS.strip().splitlines(), *options]
    config = throughput.options_text("min", "real", lines)
    plan = isolation.IsolationPlan(StreamSpec(config=config, **stream), rounds, is_pinned)
    with progress_shown("isolation") as progress:
        results = isolation.measure(plan, progress)
    report_results(results, describe(config, is_pinned, rounds=rounds), as_json, isolation_table)


@command.command("ipc", epilog="Example: umstack bench ipc --size 64 --readers 1")
@sizes_option(64, 1024)
@click.option(
    "--readers",
    type=click.IntRange(1, 16),
    multiple=True,
    default=(1, 2),
    show_default=True,
    help="Number of subscriber processes of a stream; repeatable.",
)
@click.option(
    "--round-trip/--no-round-trip", "has_round_trip", default=True, help="Also measure round trips."
)
@common_options(2.0)
def _ipc(
    sizes: Sequence[int],
    readers: Sequence[int],
    has_round_trip: bool,
    seconds: float,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    as_json: bool,
) -> None:
    """Measure LBT-IPC between processes of this machine, in turns with a bare ring in C.

    Streams are batches from Python, receiver-paced, with every message checked. The ring has one producer and one
    consumer, which always poll, and neither topics nor loss accounting.
    """
    config = throughput.options_text("min", "real", options, "lbtipc")
    plan = ipc.IpcPlan(config, sizes, readers, seconds, rounds, is_pinned, has_round_trip)
    with progress_shown("ipc") as progress:
        results = ipc.measure(plan, progress)
    report_results(results, describe(config, is_pinned, rounds=rounds), as_json, ipc_table)


@command.command("driver", epilog="Example: umstack bench driver --link xdp --seconds 1")
@click.option(
    "--subscribers",
    type=click.IntRange(2, 16),
    default=8,
    show_default=True,
    help="Number of subscribers that share a topic.",
)
@click.option(
    "--contexts",
    "attached_contexts",
    type=click.IntRange(1, 500),
    default=200,
    show_default=True,
    help="Number of attached contexts whose memory is measured.",
)
@click.option(
    "--threading-mode",
    type=click.Choice(THREADING_MODES),
    default=THREADING_MODES[0],
    show_default=True,
    help="Threads of the driver (docs/driver.md).",
)
@_LINK
@common_options(2.0)
def _driver(seconds: float, options: Sequence[str], as_json: bool, is_pinned: bool, **asked: Any) -> None:
    """Compare `umstack driver` with contexts of their own in turns, and with its targets (docs/performance.md).

    Streams and round trips through a driver; the processor time of a driver with many subscribers; two publishers; idle
    applications. Status 0 if everything was measured and delivered; the table shows which targets were met.
    """
    config = throughput.options_text("min", "real", options)
    plan = driver.DriverPlan(config, seconds=seconds, is_pinned=is_pinned, **asked)
    with progress_shown("driver") as progress:
        results, reached = driver.measure(plan, progress)
    listed = [target.as_json() for target in reached]
    described = describe(config, is_pinned, rounds=plan.rounds)
    report_results(results, described, as_json, lambda _: target_table(reached), targets=listed)


@command.command("store", epilog="Example: umstack bench store --directory /var/lib/umstack --seconds 5")
@sizes_option(64, 1024, 1400)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Directory on the volume to measure; temporary files are made there.",
)
@click.option(
    "--durability",
    type=click.Choice([one.value for one in Durability]),
    default=Durability.DISK.value,
    show_default=True,
    help="Durability of a commit. The loop syncs with disk only.",
)
@click.option(
    "--stream-size",
    type=click.IntRange(1, 1300),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Size of a message of the stream.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.05),
    default=2.0,
    show_default=True,
    help="Length of each measurement.",
)
@ROUNDS
@JSON
def _store(
    sizes: Sequence[int],
    directory: Path,
    durability: str,
    stream_size: int,
    seconds: float,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure a Store's repository, and a stream that Stores keep, with everything on this machine.

    The repository takes turns with a loop of 1 MiB write and fdatasync in the same directory. Bytes per second are
    those of the segment files, with record headers of 32 bytes.

    A publisher sends one message after the other without a Store, with one, and with a quorum of three in turns: the
    rate at a subscriber and of stable messages; the time from a send to its stability, in turns with a write and
    fdatasync of 4 KiB; and the rate at which a reader gets the messages from a Store.
    """
    kind = Durability(durability)
    plan = store.StorePlan(directory, sizes, kind, seconds, rounds)
    streams = store_stream.StoreStreamPlan(directory, stream_size, kind, seconds, rounds)
    with progress_shown("store") as progress:
        results = [*store.measure(plan, progress), *store_stream.measure(streams, progress)]
    report_results(results, describe("", False, rounds=rounds), as_json, store_tables)


@command.command("scale", epilog="Example: umstack bench scale --topics 1 --topics 1000 --receivers 1")
@click.option(
    "--topics",
    type=click.IntRange(1, 4000),
    multiple=True,
    default=(1, 10, 100, 1000),
    show_default=True,
    help="Number of topics on one session; repeatable.",
)
@click.option(
    "--receivers",
    type=click.IntRange(1, 16),
    multiple=True,
    default=(1, 2, 4, 8),
    show_default=True,
    help="Number of subscribers of one topic; repeatable.",
)
@size_option(1400)
@_LINK
@common_options(1.0)
def _scale(
    topics: Sequence[int],
    receivers: Sequence[int],
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    as_json: bool,
    **stream: Any,
) -> None:
    """Measure the cost per message for growing numbers of topics and subscribers."""
    config = throughput.options_text("min", "real", options)
    plan = scale.ScalePlan(StreamSpec(config=config, **stream), topics, receivers, rounds, is_pinned)
    with progress_shown("scale") as progress:
        results = scale.measure(plan, progress)
    report_results(results, describe(config, is_pinned, rounds=rounds), as_json, scale_table)


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
    help="Write a plot of the comparison to this file.",
)
@common_options(1.0)
def _compare(plot: Path | None, as_json: bool, **asked: Any) -> None:
    """Compare kernel sockets and AF_XDP: throughput, CPU time per message and round trips at several sizes.

    Prints one table of both links, raw sockets and raw rings, measured in the same rounds.
    """
    if plot is not None:
        check_plot(plot)
    plan = compare.ComparePlan(**asked)
    with progress_shown("comparison") as progress:
        results, rows = compare.measure(plan, progress)
    if plot is not None:
        draw_comparison(rows, plan.waits, plot)
    described = describe(
        throughput.options_text("min", "real", plan.options),
        plan.is_pinned,
        rounds=plan.rounds,
        jumbo_mtu=9000,
    )
    listed = [row.as_json() for row in rows]
    report_results(
        results, described, as_json, lambda _: comparison_table(rows, plan.waits), comparison=listed
    )


@command.command("rings", epilog="Example: umstack bench rings --seconds 2 --rounds 5")
@common_options(1.0)
def _rings(as_json: bool, **asked: Any) -> None:
    """Compare the AF_XDP link with its targets (docs/performance.md).

    Status 0 if everything was measured and delivered; the table shows which targets were met.
    """
    plan = compare.ComparePlan(**asked)
    with progress_shown("rings") as progress:
        results, reached = ring_targets.measure(plan, progress)
    described = describe(
        throughput.options_text("min", "real", plan.options), plan.is_pinned, rounds=plan.rounds
    )
    listed = [target.as_json() for target in reached]
    report_results(results, described, as_json, lambda _: target_table(reached), targets=listed)


def _packets(default: int) -> Callable[[Any], Any]:
    return click.option(
        "--packets",
        type=click.IntRange(1000),
        default=default,
        show_default=True,
        help="Number of packets in the capture.",
    )


_SNAPLEN = click.option(
    "--snaplen",
    type=click.IntRange(0),
    default=96,
    show_default=True,
    help="Bytes kept of each packet; 0: all.",
)


@command.command("decode", epilog="Example: umstack bench decode --packets 5000000 --snaplen 0")
@_packets(2_000_000)
@_SNAPLEN
@ROUNDS
@JSON
def _decode(packets: int, snaplen: int, rounds: int, as_json: bool) -> None:
    """Measure how fast one thread decodes a generated capture, next to tshark if installed."""
    with progress_shown("decode") as progress:
        found = pipeline.measure_decode(pipeline.PipelinePlan(packets, snaplen, rounds), progress)
    _report_pipeline(found, as_json)


@command.command("report", epilog="Example: umstack bench report --packets 10000000")
@_packets(10_000_000)
@_SNAPLEN
@JSON
def _report_bench(packets: int, snaplen: int, as_json: bool) -> None:
    """Measure the time and memory of `umstack report` on a generated capture."""
    with progress_shown("report") as progress:
        found = pipeline.measure_report(pipeline.PipelinePlan(packets, snaplen), progress)
    _report_pipeline(found, as_json)


def _report_pipeline(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"environment": describe("", is_pinned=False), "results": [found]}))
    else:
        print_table(pipeline_table(found))


@command.command("live", epilog="Example: umstack bench live --rate 200000 --size 100 --seconds 15")
@click.option(
    "--rate",
    type=click.IntRange(1, 10_000_000),
    default=200_000,
    show_default=True,
    help="Messages published per second.",
)
@size_option(65000, default=100)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.05),
    default=15.0,
    show_default=True,
    help="Seconds of publishing.",
)
@OPTION_LINES
@JSON
def _live(rate: int, size: int, seconds: float, options: Sequence[str], as_json: bool) -> None:
    """Check that a live query of Spark keeps up with a publisher, and measure its memory.

    Publisher, recorder and Spark share this machine and communicate over loopback; root is not needed. Every message
    is checked. Status 0 if each arrived once; the table shows which targets were met.
    """
    try:
        from umstack.bench import live
    except ImportError as error:
        raise Unsupported(f"a live query needs {error.name}", hint="pip install 'umstack[spark]'") from None
    plan = live.LivePlan(rate, size, seconds, options)
    stop = threading.Event()
    try:
        with progress_shown("live") as progress, terminable(once=True), stoppable(stop.set):
            found = live.measure(plan, progress, stop)
    except (KeyboardInterrupt, UmError) as error:
        # An interrupt from the terminal reaches the publisher too, which may end first.
        if isinstance(error, UmError) and not stop.is_set():
            raise
        click.echo("umstack bench: interrupted, nothing was measured", err=True)
        raise SystemExit(INTERRUPTED_STATUS) from None
    reached = live.judged(found)
    if not as_json:
        print_table(live_table(found))
    listed = [target.as_json() for target in reached]
    described = environment.describe(interface="lo", pinned=False, options=plan.config().splitlines())
    report_results([found], described, as_json, lambda _: target_table(reached), targets=listed)


@command.command("all", epilog="Example: umstack bench all --seconds 2 --rounds 5")
@_loss("1%")
@click.option(
    "--soak-messages",
    type=click.IntRange(4),
    default=targets.SOAK_MESSAGES,
    show_default=True,
    help="Number of messages over which memory must not grow.",
)
@common_options(1.0)
def _all(options: Sequence[str], is_pinned: bool, as_json: bool, **plan: Any) -> None:
    """Measure everything briefly and compare it with the targets (docs/performance.md).

    Status 0 if everything was measured and delivered; the table shows which targets were met.
    """
    config = throughput.options_text("min", "real", options)
    with progress_shown("everything") as progress:
        results, reached = targets.measure_all(targets.AllPlan(config, is_pinned=is_pinned, **plan), progress)
    described = describe(config, is_pinned, rounds=plan["rounds"], loss=plan["loss"])
    listed = [target.as_json() for target in reached]
    report_results(results, described, as_json, lambda _: target_table(reached), targets=listed)

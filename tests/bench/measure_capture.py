"""Measure the cost of `umstack capture`: a stream with and without it, in turns. Needs root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import click
from rich.table import Table

from umstack.bench import capture
from umstack.bench.result import Result
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import options_text
from umstack.cli.bench_options import common_options, describe, progress_shown, report_results, sizes_option
from umstack.cli.bench_tables import count_text, empty_table, rate_text, ratio_text
from umstack.cli.capture import PRIORITY_OPTION


def capture_table(results: Sequence[Result]) -> Table:
    """Return a table of rates with and without a capture, and of the packets captured."""
    right = ("messages/s", "datagrams/s", "x without", "captured", "dropped", "cpu s: capture", "lost")
    table = empty_table(("link", "size", "capture"), right)
    for one in results:
        report = one["detail"].get("capture", {})
        table.add_row(
            one["link"],
            str(one["size"]),
            f"at the {report['at']}" if report else "none",
            rate_text(one["messages_per_second"]),
            rate_text(one["datagrams_per_second"]),
            ratio_text(one, "without_capture"),
            *(f"{report[name]:,}" if report else "" for name in ("packets", "dropped")),
            f"{report['cpu_seconds']:.2f}" if report else "",
            count_text(one["lost"]),
        )
    return table


@click.command(
    epilog="Example: python -m tests.bench.measure_capture --size 64 --size 1400 --link socket --link xdp"
)
@sizes_option(64, 1400)
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
@common_options(1.0)
def command(
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
    """Measure the cost of `umstack capture`: a stream with and without it, in turns."""
    config = options_text("min", "real", options)
    specs = [
        StreamSpec(size=size, link=link, seconds=seconds, config=config, mode="embedded")
        for link in links
        for size in sizes
    ]
    capture_options = ["--priority", priority, *(("--snaplen", str(snaplen)) if snaplen else ())]
    with progress_shown("capture") as progress:
        results = capture.measure(
            capture.CapturePlan(specs, place, capture_options, rounds, is_pinned), progress
        )
    report_results(results, describe(config, is_pinned, rounds=rounds), as_json, capture_table)


if __name__ == "__main__":
    command()

"""The runs of the demo: one for each link, and one with late subscribers. Each brings its network up and down."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from umstack.demo.capture import capture_directory, capturing, clear_captures
from umstack.demo.errors import DemoFailed
from umstack.demo.network import Network, network
from umstack.demo.result import DemoReport, DemoResult
from umstack.demo.settings import CAPTURE_SNAP_BYTES, LIBRARY_EXCLUDED, DemoSettings, Link
from umstack.demo.transfer import RECOVERY_SUBSCRIBERS, DemoProgress, OnProgress, Transfer
from umstack.demo.workspace import work_directory
from umstack.files import Found, walk


def run_demo(settings: DemoSettings, on_progress: OnProgress) -> DemoReport:
    """Carry out a run over each requested link. `on_progress` is called several times per second, on this thread.

    If AF_XDP is unavailable, `both` uses sockets alone and the report contains the reason; `xdp` raises DemoFailed.
    """
    report = DemoReport()
    if settings.report is not None:
        clear_captures(settings.report)
    if settings.link != "socket":
        found = _run_over("xdp", settings, on_progress)
        if isinstance(found, DemoResult):
            report.runs.append(found)
        elif settings.link == "xdp":
            raise DemoFailed(f"no AF_XDP here: {found}", hint="use --link socket")
        else:
            report.why_no_rings = found
    if settings.link != "xdp":
        found = _run_over("socket", settings, on_progress)
        assert isinstance(found, DemoResult)
        report.runs.append(found)
    if settings.has_recovery:
        recovery = replace(settings, subscribers=RECOVERY_SUBSCRIBERS)
        found = _run_over("socket", recovery, on_progress, is_recovery=True)
        report.recovery, report.why_no_recovery = (None, found) if isinstance(found, str) else (found, None)
    if settings.has_store:
        report.stored = _run_stored(settings, on_progress)
    if settings.has_driver:
        found = _run_shared(settings, on_progress, has_rings=report.runs[0].link == "xdp")
        report.driver, report.why_no_driver = (None, found) if isinstance(found, str) else (found, None)
    return report


def _run_shared(settings: DemoSettings, on_progress: OnProgress, *, has_rings: bool) -> DemoResult | str:
    """Return the result of the run through a driver, or the reason why it is impossible."""
    from umstack.demo.sharing import SHARING_SUBSCRIBERS, SharedTransfer, why_out_of_reach

    start = time.monotonic()
    settings = replace(settings, subscribers=SHARING_SUBSCRIBERS)
    progress = DemoProgress("xdp" if has_rings else "socket", is_shared=True)
    progress.files, progress.bytes = _measure(settings)
    on_progress(progress)
    with work_directory(progress.bytes * settings.subscribers) as work, network(settings) as net:
        if net.kind != "lab":
            return f"there is no second host ({net.why})"
        if settings.loss and net.can_lose:
            net.lose(settings.loss)
        if (why := why_out_of_reach(work.parent)) is not None:
            return why
        folder = work / "transfer"
        folder.mkdir()
        run = SharedTransfer(settings, net, folder, progress, on_progress)
        run.play()
        shutil.rmtree(folder)
    run.result.seconds = time.monotonic() - start
    return run.result


def _run_stored(settings: DemoSettings, on_progress: OnProgress) -> DemoResult:
    """Return the result of the run whose subscriber reads from a Store, after the publisher has ended."""
    from umstack.demo.storing import STORING_MTU_BYTES, STORING_SUBSCRIBERS, StoredTransfer

    start = time.monotonic()
    settings = replace(settings, subscribers=STORING_SUBSCRIBERS, mtu_bytes=STORING_MTU_BYTES)
    progress = DemoProgress("socket", is_stored=True)
    progress.files, progress.bytes = _measure(settings)
    on_progress(progress)
    with work_directory(progress.bytes * STORING_SUBSCRIBERS) as work, network(settings) as net:
        if settings.loss and net.can_lose:
            net.lose(settings.loss)
        run = StoredTransfer(settings, net, work, progress, on_progress)
        run.play()
    run.result.seconds = time.monotonic() - start
    return run.result


def _run_over(
    link: Link, settings: DemoSettings, on_progress: OnProgress, *, is_recovery: bool = False
) -> DemoResult | str:
    """Return the result of one run, or the reason why it is impossible."""
    if link == "xdp" and settings.transport == "tcp":
        return "TCP is the kernel's"
    start = time.monotonic()
    progress = DemoProgress(link, is_recovery)
    progress.files, progress.bytes = _measure(settings)
    on_progress(progress)
    with work_directory(progress.bytes * settings.subscribers) as work, network(settings) as net:
        if link == "xdp" and (why := net.why_no_rings()) is not None:
            return why
        if is_recovery and net.kind != "lab":
            return f"there is no cable to take out ({net.why})"
        lossless: DemoResult | None = None
        if settings.loss and net.can_lose:
            if not is_recovery:
                lossless = _without_loss(settings, net, work, progress, on_progress)
                if not lossless.ok:
                    return lossless
            net.lose(settings.loss)
        name = "recovery" if is_recovery else link
        captures = None if settings.report is None else capture_directory(settings.report) / name
        setup_seconds = time.monotonic() - start
        result = _transferred(settings, net, work, progress, on_progress, captures)
    result.setup_seconds = setup_seconds
    result.seconds = time.monotonic() - start
    if lossless is not None:
        result.lossless_megabytes_per_second = lossless.megabytes_per_second
    return result


def _without_loss(
    settings: DemoSettings, net: Network, work: Path, progress: DemoProgress, on_progress: OnProgress
) -> DemoResult:
    """Carry out the same transfer on a network that loses nothing yet. It is captured like the lossy one, so that loss
    is the only difference; the capture is not part of the report."""
    captures = settings.report / "lossless" if settings.report is not None else None
    progress.is_lossless = True
    result = _transferred(settings, net, work, progress, on_progress, captures)
    progress.is_lossless = False
    if captures is not None:
        shutil.rmtree(captures, ignore_errors=True)
    return result


def _transferred(
    settings: DemoSettings,
    net: Network,
    work: Path,
    progress: DemoProgress,
    on_progress: OnProgress,
    captures: Path | None,
) -> DemoResult:
    """Carry out one transfer, captured in the folder `captures`, if any. Leaves nothing in `work`."""
    is_whole = progress.is_recovery or settings.transport == "tcp"
    snap_bytes = None if is_whole else CAPTURE_SNAP_BYTES
    folder = work / "transfer"
    folder.mkdir()
    run = Transfer(settings, net, folder, progress, on_progress)
    with capturing(net, captures, snap_bytes, settings.transport != "lbtrm"):
        (run.play_recovery if progress.is_recovery else run.play)()
    shutil.rmtree(folder)
    return run.result


def _measure(settings: DemoSettings) -> tuple[int, int]:
    """Return the number of files in the tree and their bytes."""
    exclude = LIBRARY_EXCLUDED.__contains__ if settings.is_default_tree else None
    sizes = [
        item.size_bytes
        for item in walk(settings.tree, exclude=exclude)
        if isinstance(item, Found) and item.kind == "file"
    ]
    if not sizes:
        raise DemoFailed(f"there is no file in {settings.tree}", hint="name another directory with --tree")
    return len(sizes), sum(sizes)

"""Tiers: a test belongs to the folder of tests/ that contains it, is marked with its name, and is counted under it.

The tiers `c` and `fuzz` may contain, besides Python tests, an executable `run`. It becomes one test: exit status 0
is success, 77 is "cannot run here" (its last line is the reason), anything else is failure. The fuzzers' `run` gets
`--seconds N` for each fuzzer (UMSTACK_FUZZ_SECONDS, 1 if unset).

UMSTACK_REQUIRE_TIERS=unit,sim fails the session if one of these tiers ran no test, or skipped all its tests.

`-n 3 --no-loadscope-reorder` (pytest-xdist; used by scripts/test) runs files in parallel. The tests of one file run
in one process; all Spark tests run in one process and start first; the slow tiers follow.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import repeats

TESTS = Path(__file__).parent
TIERS = {
    "unit": "Python units, style and architecture; no privilege",
    "property": "Hypothesis over codecs and state machines; no privilege",
    "c": "C units under the sanitizers",
    "sim": "whole stacks under virtual time, one seed a run",
    "wire": "golden bytes, tshark and scapy on sent datagrams",
    "bpf": "BPF programs through BPF_PROG_TEST_RUN; root",
    "spark": "captures as DataFrames: data source, analyses, report; Java",
    "netns": "real sockets and rings between network namespaces; root",
    "fuzz": "fuzzers for every parser, a short run of each",
}
SHARED_BY_THE_TIER = {"c", "spark"}
"""Tiers whose files share an expensive setup, so all their tests run in one process."""
PRIVILEGED_TIERS = {"bpf", "netns"}
STATISTICS = "UMSTACK_STAT_DIR"
"""Folder of the counter files of the tests, apart from those of other programs on the host."""
SKIP_STATUS = 77
RUN_TIMEOUT_SECONDS = 600
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def tier_of(path: Path) -> str | None:
    """Return the tier of a file under tests/, or None."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 and parts[0] in TIERS else None


def longest_first(tier: str | None) -> tuple[bool, int]:
    """Sort key for parallel runs: tests that share one process first, then from slow tiers to quick ones."""
    return tier not in SHARED_BY_THE_TIER, -list(TIERS).index(tier) if tier else 0


class TierCounts:
    """Counts outcomes by tier and fails the session if a required tier did not run."""

    def __init__(self, required: list[str]) -> None:
        """Start with nothing counted."""
        self.required = required
        self.outcomes: dict[str, Counter[str]] = {}

    def ran(self, tier: str) -> int:
        """Return how many tests of the tier ran, with any outcome."""
        counts = self.outcomes.get(tier, Counter())
        return counts.total() - counts["skipped"]

    def missing(self) -> list[str]:
        """Return the required tiers in which no test ran."""
        return [tier for tier in self.required if self.ran(tier) == 0]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: by its call, or by the phase that prevented the call."""
        tier = tier_of(TESTS.parent / report.nodeid.partition("::")[0])
        if tier is None or (report.when != "call" and report.passed):
            return
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        elif report.when != "call" and report.failed:
            outcome = "error"
        self.outcomes.setdefault(tier, Counter())[outcome] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session in which a required tier did not run."""
        if self.missing() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts of each tier before pytest's closing line."""
        terminalreporter.section("tiers")
        for tier in TIERS:
            counts = self.outcomes.get(tier)
            if counts is None and tier not in self.required:
                continue
            texts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts and counts[outcome]]
            terminalreporter.write_line(f"{tier:10}{', '.join(texts) or 'nothing ran'}")
        for tier in self.missing():
            terminalreporter.write_line(f"required tier '{tier}' did not run", red=True)


def restore_signals() -> None:
    """Restore signals that a shell's background job or nohup ignores: tests end programs by signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the tiers as markers and start counting."""
    restore_signals()
    # How long an example takes depends on what else the machine does; a fixture serves all examples of a test.
    unchecked = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("tests", deadline=None, suppress_health_check=unchecked)
    settings.load_profile("tests")
    if STATISTICS not in os.environ:
        folder = tempfile.mkdtemp(prefix="umstack-stat-")
        os.environ[STATISTICS] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    for tier, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {meaning}")
    required = [
        name.strip() for name in os.environ.get("UMSTACK_REQUIRE_TIERS", "").split(",") if name.strip()
    ]
    if unknown := set(required) - set(TIERS):
        raise pytest.UsageError(
            f"UMSTACK_REQUIRE_TIERS: no tier {', '.join(sorted(unknown))}; there are {', '.join(TIERS)}"
        )
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TierCounts(required), "tier-counts")
        config.pluginmanager.register(repeats.Repeats(), "repeats")
    config.pluginmanager.register(repeats, "marks-repeats")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and skip tests that need privileges the user does not have."""
    privileged = os.geteuid() == 0
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: longest_first(tier_of(item.path)))
    for item in items:
        tier = tier_of(item.path)
        if tier is None:
            raise pytest.UsageError(
                f"{item.path} is in no tier: move it to one of tests/{{{','.join(TIERS)}}}/"
            )
        item.add_marker(tier)
        if tier in PRIVILEGED_TIERS and not privileged:
            item.add_marker(
                pytest.mark.skip(reason=f"the {tier} tier needs root: sudo scripts/test --tier {tier}")
            )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Choose which tests run in one process if there are several."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            tier = tier_of(TESTS.parent / file)
            return tier if tier in SHARED_BY_THE_TIER else file

    return Together(config, log)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect an executable tests/c/run or tests/fuzz/run as a test."""
    if (
        file_path.name != "run"
        or tier_of(file_path) not in ("c", "fuzz")
        or not os.access(file_path, os.X_OK)
    ):
        return None
    collector: pytest.Collector = RunFile.from_parent(parent, path=file_path)
    return collector


class RunFile(pytest.File):
    """The file of a `run` test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the single test."""
        yield RunItem.from_parent(self, name="run")


class RunItem(pytest.Item):
    """A tier's own runner as one test."""

    def __init__(self, *, name: str, parent: pytest.Collector) -> None:
        """Give the runner more time than a Python test gets."""
        super().__init__(name, parent)
        self.add_marker(pytest.mark.timeout(RUN_TIMEOUT_SECONDS))

    def runtest(self) -> None:
        """Run the executable and judge it by its exit status."""
        arguments = (
            ["--seconds", os.environ.get("UMSTACK_FUZZ_SECONDS", "1")] if tier_of(self.path) == "fuzz" else []
        )
        done = subprocess.run(
            [self.path, *arguments],
            cwd=TESTS.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(done.stdout)
        if done.returncode == SKIP_STATUS:
            pytest.skip((done.stdout.strip().splitlines() or ["no reason given"])[-1])
        if done.returncode != 0:
            pytest.fail(f"{self.path} ended with status {done.returncode}", pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the location of the test."""
        return self.path, None, f"{tier_of(self.path)}/{self.name}"


@pytest.fixture(autouse=True)
def restore_logger_levels() -> Iterator[None]:
    """Restore the level of the stack's loggers: commands that run in the test process set it."""
    loggers = [logging.getLogger(name) for name in ("umstack", "xdp")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers

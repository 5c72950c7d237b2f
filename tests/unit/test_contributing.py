"""Each command of CONTRIBUTING.md is run: here, by another test, or by a step of a workflow."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_habits import WORKFLOW, yaml_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"

SHORTER = {
    "scripts/dev": "scripts/dev",
    "scripts/dev test tests/unit/test_source.py -k flush": "scripts/dev test tests/unit/test_source.py -k flush -q",
    "scripts/dev lint": "scripts/dev lint --collect-only -q",
    "umstack bench ... --json": "umstack bench throughput --size 64 --seconds 0.1 --json",
    "umstack sim --seeds 10000": "umstack sim --seeds 3",
    "umstack sim --seeds 10000 --transport lbtru": "umstack sim --seeds 3 --transport lbtru",
    "umstack sim --seeds 10000 --adversary": "umstack sim --seeds 3 --adversary",
    "umstack sim --seeds 10000 --resolution": "umstack sim --seeds 3 --resolution",
    "umstack sim --seed 4711 --adversary --trace": "umstack sim --seed 4711 --adversary --trace",
    "scripts/dev chaos --minutes 10 --seed 4711 --plan": "scripts/dev chaos --minutes 10 --seed 4711 --plan",
}
"""Run here, in a form that takes seconds."""

PROFILE = (
    "perf record -g --call-graph dwarf .venv/bin/umstack bench throughput --size 64",
    "perf report",
)

BY_TEST = {
    "UMSTACK_BUILD=debug scripts/dev build": f"{__name__}::test_the_debug_build_compiles_without_a_warning",
    PROFILE[0]: f"{__name__}::test_the_profile_names_functions_of_the_core",
    PROFILE[1]: f"{__name__}::test_the_profile_names_functions_of_the_core",
    "tests/c/run publication_log": "tests.c.test_run::test_a_chosen_program_reports_its_progress",
    "umstack bench all": "tests.unit.test_bench::test_all_prints_one_object_with_results_and_targets",
    "scripts/requirements": "tests.unit.test_requirements::test_the_requirements_table_is_up_to_date",
    "scripts/requirements > docs/requirements.md": (
        "tests.unit.test_requirements::test_the_requirements_table_is_up_to_date"
    ),
    "python -m umstack.config": "tests.unit.test_config::test_the_documentation_is_up_to_date",
    "python -m umstack.telemetry.counters --markdown": (
        "tests.unit.test_counters::test_the_documentation_is_up_to_date"
    ),
    "python -m umstack_xdp.drivers": "tests.unit.test_ladder::test_the_driver_page_is_up_to_date",
    "scripts/dev release 0.3.0 --dry-run": (
        "tests.unit.test_release::test_a_dry_run_shows_the_release_and_changes_nothing"
    ),
    "scripts/package --prove": "tests.netns.test_package::test_the_wheel_brings_its_libraries_and_their_licences",
}

BY_WORKFLOW = {
    "scripts/dev setup": "scripts/dev setup",
    ".venv/bin/pip install pre-commit && .venv/bin/pre-commit install": (
        ".venv/bin/pip install pre-commit && .venv/bin/pre-commit install"
    ),
    "scripts/dev lock": "scripts/dev lock",
    "scripts/dev build": "scripts/dev build",
    "scripts/dev docs": "scripts/dev docs",
    ".ci/run": ".ci/run",
    "scripts/test": ".ci/run",
    "tests/c/run": ".ci/run",
    "umstack bench rings": ".venv/bin/umstack bench rings",
    "scripts/test --coverage": "scripts/test --coverage",
    "UMSTACK_SANITIZE=address,undefined scripts/dev build": "UMSTACK_SANITIZE=address,undefined scripts/dev build",
    "LD_PRELOAD=$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 scripts/dev test "
    "tests/unit/test_source.py": "LD_PRELOAD=$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 "
    "scripts/dev test tests/unit/test_source.py",
    "scripts/dev fuzz --seconds 600": "scripts/dev fuzz --seconds 600",
    "tests/fuzz/run --replay HEX NAME": "tests/fuzz/run --replay 00 decode",
    "tests/fuzz/run --seconds 36000 --keep DIR [NAME]": "tests/fuzz/run --seconds 36 --keep build/kept decode",
    "tests/fuzz/run --minimise DIR [NAME]": "tests/fuzz/run --minimise build/kept decode",
    "scripts/dev chaos --minutes 10": "scripts/dev chaos --minutes 10",
    "scripts/dev chaos --minutes 10 --seed 4711": "scripts/dev chaos --minutes 10",
}
"""The command of a step, on hosted machines."""


def documented() -> set[str]:
    """The commands of the page: its indented blocks without their comments, and commands within sentences."""
    text = PAGE.read_text()
    blocks = {re.split(r" {2,}", line)[0] for line in re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)}
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    starts = r"(scripts/\w|\.ci/|tests/\w+/run|umstack \w|python -m |\w+=\S+ scripts/)"
    return blocks | {span for span in spans if re.match(starts, span) and not span.endswith(".py")}


def steps() -> list[str]:
    """The command lines of all workflows."""
    jobs = [job for path in WORKFLOW.parent.glob("*.yml") for job in yaml_of(path)["jobs"].values()]
    return [
        line.strip().removeprefix("sudo ").removeprefix("./")
        for job in jobs
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]


def environment() -> dict[str, str]:
    """The environment in which `umstack` is a command, and no tier is required."""
    required = {"UMSTACK_REQUIRE_TIERS": "", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return os.environ | required


def run(command: str) -> str:
    """Run a command in the project's folder and return its output."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment(), text=True, capture_output=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_documented_command_is_run_somewhere() -> None:
    """No command of the page is missing below, and each command below is on the page."""
    known = SHORTER.keys() | BY_TEST.keys() | BY_WORKFLOW.keys()
    assert documented() == known


@pytest.mark.parametrize("command", SHORTER)
def test_a_documented_command_ends_well(command: str) -> None:
    """It has the documented program and task, and exits with 0."""
    shorter = SHORTER[command]
    assert shorter.split()[:2] == command.replace("...", "throughput").split()[:2]
    assert run(shorter)


@pytest.mark.parametrize("command", BY_TEST)
def test_the_test_of_a_documented_command_exists(command: str) -> None:
    """The named test is in the named file."""
    module, name = BY_TEST[command].split("::")
    assert f"def {name}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("command", BY_WORKFLOW)
def test_the_step_of_a_documented_command_exists(command: str) -> None:
    """A step of a workflow runs it."""
    assert any(line.startswith(BY_WORKFLOW[command]) for line in steps())


def test_the_debug_build_compiles_without_a_warning(tmp_path: Path) -> None:
    """-O1 enables warnings that -O2 does not."""
    command = [sys.executable, "ffi/build.py", "--into", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"UMSTACK_BUILD": "debug"}, text=True, capture_output=True
    )
    assert built.returncode == 0, built.stderr
    assert list((tmp_path / "umstack").rglob("_core*.so")), built.stderr


def test_the_profile_names_functions_of_the_core(tmp_path: Path) -> None:
    """The extension module has the symbols that a profile needs."""
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid")
    if shutil.which("perf") is None or not paranoid.exists():
        pytest.skip("no perf on this machine")
    if os.geteuid() != 0 and int(paranoid.read_text()) > 2:
        pytest.skip("perf needs root on this machine")
    bench = f"{sys.executable} -m umstack bench throughput --size 64 --seconds 0.2"
    record = PROFILE[0].replace("perf record", f"perf record -o {tmp_path}/perf.data")
    run(record.replace(".venv/bin/umstack bench throughput --size 64", bench))
    assert "um_" in run(f"{PROFILE[1]} --stdio --no-children -g none -i {tmp_path}/perf.data")

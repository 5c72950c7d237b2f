"""Shell scripts, the workflow, pre-commit and templates, which people and CI run beside the tests."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_architecture import ROOT, project_files, shown

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def tool(name: str) -> str:
    """A program of the environment, or of the system."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    return found


def yaml_of(path: Path) -> Any:
    """A YAML file, parsed."""
    return pytest.importorskip("yaml").safe_load(path.read_text())


def shell_scripts() -> list[str]:
    """Every project file that a shell reads."""
    return [
        shown(path)
        for path in project_files()
        if path.suffix == ".sh" or path.read_bytes()[:64].startswith((b"#!/usr/bin/env bash", b"#!/bin/sh"))
    ]


def test_shellcheck_finds_nothing() -> None:
    """Every script is free of what shellcheck calls mistakes."""
    scripts = shell_scripts()
    assert {"scripts/dev", "scripts/test", "scripts/setup.sh", ".ci/run"} <= set(scripts)
    done = subprocess.run(
        [tool("shellcheck"), "--external-sources", "--format=gcc", *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_what_ci_runs() -> None:
    """Hosted machines run .ci/run on every supported Python, and the site."""
    job = yaml_of(WORKFLOW)["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    steps = [step.get("run") for step in job["steps"]]
    assert "./.ci/run" in steps
    assert "./scripts/dev docs" in steps
    assert (ROOT / ".ci" / "run").exists()
    needs = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={PYTHONS[0]}"' in needs


def test_the_weekly_workflow_runs_ten_minutes_of_faults() -> None:
    """The schedule is weekly, and the job has time to set up and to settle."""
    workflow = yaml_of(WORKFLOW.with_name("chaos.yml"))
    minute, hour, day, month, weekday = workflow[True]["schedule"][0]["cron"].split()
    assert (day, month) == ("*", "*")
    assert all(field.isdigit() for field in (minute, hour, weekday))
    steps = [step.get("run", "") for step in workflow["jobs"]["chaos"]["steps"]]
    assert any("scripts/dev chaos --minutes 10" in step for step in steps)


def test_actionlint_finds_nothing() -> None:
    """The workflows are ones that the hosted service accepts."""
    workflows = [str(path) for path in sorted(WORKFLOW.parent.glob("*.yml"))]
    done = subprocess.run([tool("actionlint"), *workflows], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pre_commit_runs_the_linters_of_the_tests() -> None:
    """Its hooks are local, so that they have the versions that pyproject.toml pins."""
    repositories = yaml_of(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    entries = " ".join(hook["entry"] for hook in repositories[0]["hooks"])
    for linter in ("ruff check", "ruff format", "clang-format", "mypy", "shellcheck", "test_architecture"):
        assert linter in entries, linter
    assert all(hook["language"] == "system" for hook in repositories[0]["hooks"])


def test_templates_ask_for_what_a_maintainer_needs() -> None:
    """Issues say where it happened, pull requests how it is proved."""
    issues = {path.stem: path.read_text() for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")}
    assert issues.keys() == {"bug", "feature", "performance"}
    assert "umstack doctor --json" in issues["bug"]
    assert "scripts/test" in (ROOT / ".github" / "pull_request_template.md").read_text()


def test_the_changelog_has_a_place_for_what_comes() -> None:
    """Keep a Changelog: an Unreleased section first, then versions."""
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    assert all(line.startswith("## [") for line in headings)


def never_filled(source: str) -> Iterator[str]:
    """Yield the local lists, sets and dictionaries of a test that start empty and are only asserted or iterated over:
    such an assertion cannot fail.
    """
    for test in ast.walk(ast.parse(source)):
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        nodes = list(ast.walk(test))
        empty = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            if ast.unparse(node.value) in ("[]", "{}", "set()", "dict()", "list()")
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        read = {
            id(child)
            for node in nodes
            for child in ast.iter_child_nodes(node)
            if isinstance(node, ast.Compare | ast.Assert | ast.For | ast.comprehension)
            or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        }
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in empty]
        filled = {node.id for node in uses if isinstance(node.ctx, ast.Load) and id(node) not in read}
        stored = [node.id for node in uses if isinstance(node.ctx, ast.Store)]
        yield from (f"{test.name}: {name}" for name in empty - filled if stored.count(name) == 1)


def test_no_assertion_is_on_a_list_that_is_never_filled() -> None:
    """Every list that a test compares or iterates over is filled somewhere in the test."""
    found = [
        f"{shown(path)}: {name}"
        for path in project_files()
        if path.match("test_*.py")
        for name in never_filled(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_a_list_that_is_never_filled_is_found() -> None:
    """The check finds the mistake, and accepts lists that are filled, passed on or appended to in another function."""
    wrong = "def test_a():\n    losses: list = []\n    for one in losses:\n        assert one\n"
    assert list(never_filled(wrong)) == ["test_a: losses"]
    assert list(never_filled("def test_a():\n    lost = []\n    assert lost == []\n")) == ["test_a: lost"]
    for filling in ("lost.append(1)", "lost += [1]", "read_into(lost)", "lost[0] = 1", "lost = [1]"):
        assert not list(never_filled(f"def test_a():\n    lost = []\n    {filling}\n    assert lost\n"))

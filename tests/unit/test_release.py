"""Releases: the changelog, the version, the commit messages, and the release command."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

import umstack

ROOT = Path(__file__).resolve().parents[2]
ITEM_WORDS_MAX = 25
CORRECTED = {"2cd050b6": "tests: run the example of a Store, too"}
"""Subjects of commits that were made without the hook, as they should read: landed history is not rewritten."""
LINK = re.compile(r"\[[^]]+\]\([^)]+\)")


def script(name: str) -> ModuleType:
    """Import a program of scripts/ as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


release, commit_message = script("release"), script("commit-message")


def git(*words: str, folder: Path = ROOT) -> str:
    """Return git's output; skip the test without git or a repository."""
    try:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("no git on this machine")
    except subprocess.CalledProcessError as error:
        if not (folder / ".git").exists():
            pytest.skip("not a git checkout")
        pytest.fail(f"git {words[0]}: {error.stderr}")
    return done.stdout.strip()


def releases() -> dict[str, str]:
    """Return the commit of each release, newest first."""
    text = release.sections(ROOT)
    return {
        name: re.search(r"^Commit `([0-9a-f]{8})`", body)[1]
        for name, body in text.items()
        if name != "Unreleased"
    }


def test_the_version_is_that_of_the_newest_release() -> None:
    """`umstack.__version__` is the only source; the newest section of the changelog has the same number."""
    newest = next(iter(releases()))
    assert umstack.__version__ == newest
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_each_release_has_a_date_a_commit_and_upgrade_notes_first() -> None:
    """Sections are in order, and breaking changes precede new features."""
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = [(match["name"], match["date"]) for match in release.SECTION.finditer(text)]
    assert headings[0][0] == "Unreleased"
    versions = [release.numbers(name) for name, _ in headings[1:]]
    assert versions == sorted(versions, reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in headings[1:])
    for name, body in release.sections(ROOT).items():
        titles = re.findall(r"^### (.+)$", body, re.MULTILINE)
        assert not titles or titles[0] == "Upgrade notes", name


def test_items_of_the_changelog_are_one_short_line() -> None:
    """An item names its component and has at most 25 words besides its link."""
    wrong = []
    for line in (ROOT / "CHANGELOG.md").read_text().splitlines():
        if line.startswith("- "):
            text = LINK.sub("", line)
            if not re.match(r"- [a-z]+: ", line) or len(text.split()) - 1 > ITEM_WORDS_MAX:
                wrong.append(f"{len(text.split()) - 1} words: {line}")
        elif line.startswith("  "):
            wrong.append(f"a second line: {line}")
    assert not wrong, "\n".join(wrong)


def test_links_of_the_changelog_lead_to_pages() -> None:
    """Each linked page exists."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "CHANGELOG.md").read_text())
    missing = [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    assert links
    assert not missing


def test_commits_since_the_last_release_have_plain_subjects() -> None:
    """A commit message is `component: imperative summary` with at most 72 characters."""
    newest = next(iter(releases().values()))
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone has no history to check")
    history = git("log", "--no-merges", "--format=%h%x00%B%x01", f"{newest}..HEAD")
    wrong = []
    for entry in filter(None, (part.strip() for part in history.split("\x01"))):
        commit, message = entry.split("\x00")
        message = CORRECTED.get(commit[:8], message)
        wrong += [
            f"{commit} {message.splitlines()[0]}: {reason}" for reason in commit_message.complaints(message)
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "message",
    [
        "A word",
        "core: " + "x" * 70,
        "core: Layout",
        "core: fixed the loss map",
        "core: wip",
        "core: add the loss map.",
        "core: add the loss map\nwithout an empty line",
        "",
    ],
)
def test_a_bad_commit_message_is_refused(message: str, tmp_path: Path) -> None:
    """The hook exits with 1 and shows an example."""
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/commit-message"), str(file)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "example: " in done.stderr


@pytest.mark.parametrize(
    "message",
    ["core: seed the generator", "lbtru, tcp: filter at the source\n\nWhy.", "io: ring the eventfd once"],
)
def test_a_good_commit_message_is_accepted(message: str) -> None:
    """Imperatives that look like other forms are accepted."""
    assert not commit_message.complaints(message)


def checkout(folder: Path, unreleased: str) -> Path:
    """Return a repository with the files that a release changes, and the scripts."""
    (folder / "umstack").mkdir(parents=True)
    (folder / "scripts").mkdir()
    (folder / "umstack/__init__.py").write_text('__version__ = "0.2.0"\n')
    (folder / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [Unreleased]\n\n{unreleased}\n## [0.2.0] - 2026-11-25\n"
    )
    (folder / "scripts/release").write_bytes((ROOT / "scripts/release").read_bytes())
    (folder / ".gitignore").write_text("dist/\n")
    git("init", "--quiet", folder=folder)
    git("config", "user.name", "Test", folder=folder)
    git("config", "user.email", "test@example.org", folder=folder)
    git("add", "--all", folder=folder)
    git("commit", "--quiet", "-m", "all: begin", folder=folder)
    return folder


def run_release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the release command of the checkout."""
    command = [sys.executable, str(folder / "scripts/release"), *arguments, "--without-wheel"]
    return subprocess.run(command, capture_output=True, text=True)


ITEMS = "### Added\n\n- core: one thing.\n"


def test_a_dry_run_shows_the_release_and_changes_nothing(tmp_path: Path) -> None:
    """Version, date, notes and tag are shown; the checkout is unchanged."""
    folder = checkout(tmp_path / "umstack", ITEMS)
    before = git("rev-parse", "HEAD", folder=folder)
    done = run_release(folder, "0.3.0", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "tag v0.3.0" in done.stdout
    assert "- core: one thing." in done.stdout
    assert before[:8] in done.stdout
    assert git("rev-parse", "HEAD", folder=folder) == before
    assert not git("tag", folder=folder)
    assert not git("status", "--porcelain", folder=folder)


def test_a_release_sets_version_changelog_and_tag(tmp_path: Path) -> None:
    """The tag is on a commit that changes two files, and the unreleased section is empty again."""
    folder = checkout(tmp_path / "umstack", ITEMS)
    released = git("rev-parse", "--short=8", "HEAD", folder=folder)
    assert run_release(folder, "0.3.0").returncode == 0
    assert release.version_of(folder) == "0.3.0"
    assert release.sections(folder)["Unreleased"] == ""
    assert f"Commit `{released}`." in release.sections(folder)["0.3.0"]
    assert git("describe", "--exact-match", folder=folder) == "v0.3.0"
    assert git("show", "--format=%s", "--name-only", "HEAD", folder=folder).split("\n") == [
        "release: set version 0.3.0",
        "",
        "CHANGELOG.md",
        "umstack/__init__.py",
    ]
    assert (folder / "dist/umstack-0.3.0.md").read_text().startswith("# umstack 0.3.0\n")


@pytest.mark.parametrize(
    ("version", "unreleased", "reason"),
    [("0.2.0", ITEMS, "not above"), ("0.3", ITEMS, "not a version"), ("0.3.0", "", "no items")],
)
def test_a_release_that_is_not_ready_is_refused(
    version: str, unreleased: str, reason: str, tmp_path: Path
) -> None:
    """The command ends with status 1, prints the reason on stderr, and changes nothing."""
    folder = checkout(tmp_path / "umstack", unreleased)
    done = run_release(folder, version)
    assert done.returncode == 1
    assert reason in done.stderr
    assert not git("status", "--porcelain", folder=folder)


def test_uncommitted_changes_are_refused(tmp_path: Path) -> None:
    """A release is made from commits."""
    folder = checkout(tmp_path / "umstack", ITEMS)
    (folder / "new").touch()
    done = run_release(folder, "0.3.0")
    assert done.returncode == 1
    assert "not committed" in done.stderr

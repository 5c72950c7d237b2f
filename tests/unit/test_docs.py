"""The documentation is correct as far as a test can check: it builds, paths and symbols exist, all is documented."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import umstack
from tests.unit.test_architecture import project_files, shown

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site" / "mkdocs.yml"
QUESTIONS = 20
QUESTION = re.compile(
    r"^\| (?P<question>[^|]+\?) \| `(?P<symbol>[^`|]+)` \| `(?P<file>[^`|]+)` \|$", re.MULTILINE
)
PATH_IN_PAGE = re.compile(r"`((?:bpf|ffi|xdp|umstack|tests|scripts|examples|docs)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
SOURCES = {".py", ".c", ".h"}
MADE_BY_USERS = {"Context", "Config", "UmError"}
"""Classes that the application makes itself; the others come from methods, whose docstrings say how."""


@cache
def sources() -> dict[str, str]:
    """The text of every source file by its path."""
    return {shown(path): path.read_text() for path in project_files() if path.suffix in SOURCES}


def files_with(symbol: str) -> list[str]:
    """The source files that hold a symbol: where a stale answer should point to."""
    word = re.compile(rf"\b{re.escape(symbol)}\b")
    return sorted(
        name for name, text in sources().items() if word.search(text) and not name.startswith("tests/")
    )


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as strictly as `scripts/dev docs` builds it."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(SITE),
        "-d",
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.timeout(300)
def test_the_site_builds_and_shows_the_api(site: Path) -> None:
    """Every page is there, every public name has its place, every command its help, every example its text."""
    reference = (site / "reference" / "api.html").read_text()
    missing = [
        name for name in umstack.__all__ if name != "Event" and f'id="umstack.{name}"' not in reference
    ]
    assert not missing, f"not in docs/reference/api.md: {missing}"
    commands = (site / "reference" / "commands.html").read_text()
    assert 'id="umstack-send"' in commands
    assert "Usage: umstack send" in commands
    guides = "".join(path.read_text() for path in (site / "guides").glob("*.html"))
    text = re.sub(r"<[^>]*>", "", guides)
    assert "8&lt;--" not in text
    assert "the last has sequence number" in text


@pytest.mark.timeout(300)
def test_the_site_needs_no_network(site: Path) -> None:
    """No page loads a script, a style, a font or a picture from another host."""
    fetched = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"https?:|<link[^>]*\shref=\"https?:(?![^>]*canonical)"
    )
    wrong = [path.name for path in site.rglob("*.html") if fetched.search(path.read_text())]
    assert not wrong


# Names in pages


def test_twenty_questions_have_their_answers() -> None:
    """docs/architecture.md ends with twenty questions; each symbol is in the file that the page names."""
    asked = [
        match.groupdict() for match in QUESTION.finditer((ROOT / "docs" / "architecture.md").read_text())
    ]
    assert len(asked) == QUESTIONS, [answer["question"] for answer in asked]
    wrong = []
    for answer in asked:
        symbol, file = answer["symbol"], answer["file"]
        text = sources().get(file)
        if text is None or not re.search(rf"\b{re.escape(symbol)}\b", text):
            reason = "there is no such file" if text is None else f"{symbol} is not in it"
            wrong.append(
                f"where is {answer['question']} {file}: {reason}; {symbol} is in {files_with(symbol)}"
            )
    assert not wrong, "docs/architecture.md:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/architecture.md",
        "docs/glossary.md",
        "docs/threat-model.md",
    ],
)
def test_paths_that_a_page_names_exist(page: str) -> None:
    """A path in code style is a file or a folder of the project."""
    wrong = []
    for named in sorted(set(PATH_IN_PAGE.findall((ROOT / page).read_text()))):
        if not (ROOT / named).exists():
            alike = [name for name in sources() if Path(name).name == Path(named).name]
            wrong.append(
                f"{page} names {named}, which does not exist" + (f"; there is {alike}" if alike else "")
            )
    assert not wrong, "\n".join(wrong)


def test_links_between_pages_outside_the_site_lead_somewhere() -> None:
    """mkdocs checks the pages of docs/; these are beside it."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    pages += sorted((ROOT / ".github").rglob("*.md"))
    wrong = [
        f"{shown(page)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not wrong, "\n".join(wrong)


# Docstrings of the API


def public_members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public attributes of a class that this project defines, inherited ones included."""
    for name, value in inspect.getmembers_static(owner):
        home = next((base for base in owner.__mro__ if name in vars(base)), object)
        if not name.startswith("_") and home.__module__.split(".")[0] in ("umstack", "umstack_xdp"):
            yield name, value


def complaints_about_function(name: str, function: Any, class_text: str) -> Iterator[str]:
    """Return what a function's docstring lacks: parameters, the unit of timeouts, raised errors."""
    text = inspect.getdoc(function) or ""
    if not text:
        yield f"{name} has no docstring"
        return
    said = f"{text}\n{class_text}"
    parameters = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    yield from (
        f"{name} does not say what {parameter} is"
        for parameter in parameters
        if not re.search(rf"\b{re.escape(parameter)}\b", said)
    )
    if "timeout" in parameters and "second" not in said:
        yield f"{name} does not say that its timeout is in seconds"
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = {
        node.exc.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    }
    yield from (
        f"{name} does not say that it raises {error}"
        for error in sorted(raised)
        if error[0].isupper() and error not in said
    )


def complaints_about_class(name: str, owner: type) -> Iterator[str]:
    """Return what the docstrings of a class and its public members lack."""
    text = inspect.getdoc(owner) or ""
    if not text or text.startswith(f"{name}("):
        yield f"{name} has no docstring"
    is_tuple = issubclass(owner, tuple)
    constructor = vars(owner).get("__init__")
    if inspect.isfunction(constructor) and name in MADE_BY_USERS:
        yield from complaints_about_function(f"{name}()", constructor, text)
    for member, value in public_members(owner):
        label = f"{name}.{member}"
        if isinstance(value, property):
            if not inspect.getdoc(value.fget):
                yield f"{label} has no docstring"
        elif isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
            yield from complaints_about_function(label, getattr(value, "__func__", value), "")
        elif inspect.ismemberdescriptor(value) and not is_tuple and not re.search(rf"\b{member}\b", text):
            yield f"{label} is an attribute that the docstring of {name} does not mention"


def test_the_api_is_documented() -> None:
    """Every public class, method, property and attribute has a description; parameters, units and errors are named."""
    found = [
        complaint
        for name in umstack.__all__
        if inspect.isclass(owner := getattr(umstack, name))
        for complaint in complaints_about_class(name, owner)
    ]
    assert not found, f"{len(found)} gaps:\n" + "\n".join(found)


class _Undocumented:
    """Has an example of every gap."""

    __slots__ = ("color",)

    def silent(self) -> None:
        if self:
            raise ValueError("x")

    silent.__doc__ = None

    def vague(self, size: int, timeout: float) -> None:
        """Waits for its timeout."""
        raise ValueError(size)


_Undocumented.__module__ = "umstack.example"


def test_a_gap_is_seen() -> None:
    """The rule above sees each kind of gap."""
    found = list(complaints_about_class("Example", _Undocumented))
    assert found == [
        "Example.color is an attribute that the docstring of Example does not mention",
        "Example.silent has no docstring",
        "Example.vague does not say what size is",
        "Example.vague does not say that its timeout is in seconds",
        "Example.vague does not say that it raises ValueError",
    ]

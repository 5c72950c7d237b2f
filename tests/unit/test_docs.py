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
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import umstack
from tests.unit.browser import needs_chromium, opened
from tests.unit.test_architecture import project_files, shown
from umstack.config.setting import OPTIONS

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
    listed = (site / "reference/api.html").read_text()
    for name in umstack.__all__:
        page = site / f"reference/umstack.{name}.html"
        if name != "Event":
            assert f'href="{page.name}"' in listed, f"not in docs/reference/api.md: {name}"
            assert f'id="umstack.{name}"' in page.read_text()
    context = re.sub(r"<[^>]*>", "", (site / "reference/umstack.Context.html").read_text())
    assert re.search(r"timeout\s*:\s*float\s*\|\s*None", context), "signatures have types"
    commands = (site / "reference" / "commands.html").read_text()
    assert 'id="umstack-send"' in commands
    assert "Usage: umstack send" in commands
    guides = "".join(path.read_text() for path in (site / "guides").glob("*.html"))
    text = re.sub(r"<[^>]*>", "", guides)
    assert "8&lt;--" not in text
    assert "the last has sequence number" in text


class _Links(HTMLParser):
    """The ids of a page, and the links in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.links |= {given[name] for name in ("href", "src") if name in given}


@pytest.mark.timeout(300)
def test_links_of_the_site_resolve(site: Path) -> None:
    """Every link within the site leads to a file, and every fragment to an element of it."""
    pages = {path: _Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                continue
            if not target.exists():
                wrong.append(f"{path.name}: {link}: no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{path.name}: {link}: no such element")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.timeout(300)
def test_each_option_is_an_entry_of_the_site(site: Path) -> None:
    """An entry has an anchor of its scope and name, its default and its meaning."""
    page = (site / "options.html").read_text()
    for scope, option in ((scope, name) for scope, options in OPTIONS.items() for name in options):
        assert f'id="{scope}-{option}"' in page
    text = " ".join(re.sub(r"<[^>]*>", "", page).split())
    assert "0/1 · default 1 · Ultra Messaging: 0 · 0 | 1" in text


@needs_chromium
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_a_browser_shows_the_site_from_files(site: Path, width: int, height: int) -> None:
    """No page scrolls sideways, and the search finds an option without a server."""
    with opened((site / "index.html").as_uri(), width, height) as (browser, errors):
        for page in (
            "options",
            "reference/api",
            "reference/umstack.Context",
            "performance",
            "counters",
            "index",
        ):
            browser.goto((site / f"{page}.html").as_uri())
            assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page
        assert browser.inner_text(".figures strong >> nth=0")
        assert browser.evaluate("document.querySelector('img[src$=\"layers.svg\"]').naturalWidth > 0")
        browser.keyboard.press("f")
        browser.wait_for_selector(".md-search__input:focus")
        browser.keyboard.type("link_xdp_checksum")
        browser.wait_for_selector('.md-search-result__item a[href*="options.html"]', state="attached")
        assert errors == []


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

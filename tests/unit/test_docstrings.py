"""Public docstrings name every parameter, result and error, and their examples run.

tests/netns/test_xdp_examples.py runs the examples of `umstack_xdp`, which need an interface.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import select
import textwrap
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import umstack
import umstack.capture
import umstack.scapy
import umstack_xdp as xdp
from umstack.config import Scope
from umstack.telemetry.host_clock import host_clock, kernel_clock

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/api.md").read_text()
XDP_PAGE = (ROOT / "docs/reference/xdp.md").read_text()
NAMES = re.findall(r"^::: (\S+)$", PAGE + XDP_PAGE, re.MULTILINE)
EXAMPLE = re.compile(r"^Example:\n    ```python\n(.*?)^    ```$", re.MULTILINE | re.DOTALL)


def lookup(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def members() -> dict[str, Any]:
    """Public classes and functions by name, and the public methods and properties of the classes."""
    found: dict[str, Any] = {}
    for name in NAMES:
        value = found[name] = lookup(name)
        if inspect.isclass(value):
            for base in value.__mro__:
                if base.__module__.startswith("umstack"):
                    for key, member in vars(base).items():
                        if not key.startswith("_") and is_documented(member):
                            found.setdefault(f"{name}.{key}", unwrapped(member))
    return found


def is_documented(member: Any) -> bool:
    return isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)


def unwrapped(member: Any) -> Any:
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


MEMBERS = members()
FUNCTIONS = {name: value for name, value in MEMBERS.items() if inspect.isfunction(value)}
BUILT_BY_CALLERS = (
    *(f"umstack.{name}" for name in ("Context", "Config", "MessageProperties", "UmError")),
    *(f"umstack.{name}" for name in ("Byte", "Short", "Long", "Float")),
    *(f"umstack_xdp.{name}" for name in ("Attachment", "AttachedProgram", "BpfObject", "FlowSteering")),
    *(f"umstack_xdp.{name}" for name in ("GroupMemberships", "InterfaceWatch", "RingSet", "Steering")),
)
EXEMPT_FROM_EXAMPLE = {
    name for name, value in MEMBERS.items() if inspect.isclass(value) and issubclass(value, Exception)
} - {"umstack.UmError", "umstack_xdp.XdpError"}


def doc_of(value: Any) -> str:
    return inspect.getdoc(value) or ""


def section(doc: str, *titles: str) -> str:
    for title in titles:
        match = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", doc, re.MULTILINE)
        if match:
            return match[1]
    return ""


def parameters(value: Any) -> set[str]:
    return {name for name in inspect.signature(value).parameters if name not in ("self", "cls", "_cls")}


def missing_parameters(value: Any, doc: str) -> set[str]:
    return parameters(value) - set(re.findall(r"^    \**(\w+): ", section(doc, "Args"), re.MULTILINE))


def raises(function: Any) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


@pytest.mark.parametrize("name", MEMBERS)
def test_the_first_line_is_a_short_sentence(name: str) -> None:
    """A property's sentence may have two lines; all others have fewer than 100 characters."""
    first = doc_of(MEMBERS[name]).split("\n\n")[0]
    assert first.rstrip().endswith((".", ")"))
    if not isinstance(MEMBERS[name], property):
        assert "\n" not in first
        assert len(first) < 100


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_parameter_result_and_error_is_documented(name: str) -> None:
    """Args names each parameter; Returns or Yields and Raises exist where the function returns or raises."""
    function = FUNCTIONS[name]
    doc = doc_of(function)
    assert not missing_parameters(function, doc)
    if inspect.signature(function).return_annotation not in (None, "None"):
        assert section(doc, "Returns", "Yields")
    if raises(function):
        assert section(doc, "Raises")


@pytest.mark.parametrize("kind", BUILT_BY_CALLERS)
def test_constructors_document_their_parameters(kind: str) -> None:
    """Args is in the docstring of the class or of its constructor, which the site merges."""
    value = lookup(kind)
    constructor = (
        value.__new__ if "__new__" in dir(value) and value.__init__ is object.__init__ else value.__init__
    )
    if issubclass(value, int | float) and not inspect.isabstract(value):
        constructor = value.__new__
    assert not missing_parameters(constructor, f"{doc_of(value)}\n\n{doc_of(constructor)}")


def examples() -> dict[str, str]:
    return {name: block for name, value in MEMBERS.items() for block in EXAMPLE.findall(doc_of(value))}


EXAMPLES = examples()
LOOPBACK_EXAMPLES = [name for name in EXAMPLES if not name.startswith("umstack_xdp.")]


def test_every_public_name_of_xdp_is_on_its_page() -> None:
    assert {name.removeprefix("umstack_xdp.") for name in NAMES if name.startswith("umstack_xdp.")} == set(
        xdp.__all__
    )


def test_each_class_and_function_has_an_example() -> None:
    """Properties and errors need none."""
    needed = {name for name, value in MEMBERS.items() if not isinstance(value, property)}
    assert not needed - EXEMPT_FROM_EXAMPLE - set(EXAMPLES)


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that examples use: a loopback context, a source, a receiver, an event queue, a responder."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "umstack.cfg").write_text("source late_join 1\n")

    def respond(event: umstack.Event) -> None:
        if isinstance(event, umstack.Request):
            event.respond(b"42")

    with pytest.MonkeyPatch.context() as patch, umstack.Context("lo") as ctx:
        patch.chdir(folder)
        tap = ctx.tap("day.pcapng")
        names: dict[str, Any] = {
            "umstack": umstack,
            "Scope": Scope,
            "array": array,
            "select": select,
            "host_clock": host_clock,
            "kernel_clock": kernel_clock,
            "ctx": ctx,
            "src": ctx.source("orders"),
            "rcv": ctx.receiver("orders"),
            "queue": ctx.event_queue(),
            "prices": ctx.source("prices"),
        }
        ctx.receiver("prices", respond)
        warm_up(names)
        tap.stop()
        yield names


def warm_up(names: dict[str, Any]) -> None:
    """Send until both receivers have found their source."""
    end = time.monotonic() + 10
    while names["rcv"].receive(timeout=0.05) is None and time.monotonic() < end:
        names["src"].send(b"hello", flush=True)
    while time.monotonic() < end:
        try:
            names["prices"].request(b"price?").first(timeout=0.1)
            return
        except umstack.ResponseTimeout:
            continue


@pytest.mark.parametrize("name", LOOPBACK_EXAMPLES)
def test_the_example_runs(name: str, namespace: dict[str, Any]) -> None:
    """Top-level await is allowed; each example has a message to read."""
    namespace["src"].send(b"hello", flush=True)
    source = textwrap.dedent(EXAMPLES[name])
    code = compile(source, f"{name}: example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    local = dict(namespace)
    result = eval(code, local)
    if inspect.iscoroutine(result):
        asyncio.run(asyncio.wait_for(result, 10))

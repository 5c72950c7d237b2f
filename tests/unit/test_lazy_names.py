"""The public names of both packages: each is imported when it is asked for, and nothing stands in its place."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("umstack", "umstack_xdp")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_found(package: str) -> None:
    """A name asked for is what its module calls so; what is no name is refused as Python does."""
    module = import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is getattr(import_module(f"{package}.{module._HOME[name]}"), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_completion_shows_what_is_public(package: str) -> None:
    """dir(): public names and modules, and nothing that the package imported for itself."""
    code = f"import {package}; print(*[name for name in dir({package}) if not name.startswith('__')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    module = import_module(package)
    extra = set(said.split()) - set(module.__all__)
    assert set(module.__all__) <= set(said.split())
    assert all(f"{package}.{name}" in sys.modules for name in extra), extra


@pytest.mark.parametrize("package", PACKAGES)
def test_a_type_checker_sees_the_same_names(package: str) -> None:
    """Names imported for type checkers are exactly those of the package, from the same modules."""
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    [seen] = [node.body for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    homes = {
        alias.asname: f"{node.module}"
        for node in seen
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert homes == {name: f"{package}.{home}" for name, home in module._HOME.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_something_public(package: str) -> None:
    """It would stand in the name's place as soon as anything imports it."""
    folder = Path(str(import_module(package).__file__)).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(import_module(package).__all__)


def test_importing_the_packages_imports_none_of_what_is_dear() -> None:
    """Neither the core nor netlink is loaded before something of it is wanted."""
    dear = {"pyroute2", "cffi", "umstack._core"}
    code = f"import sys, umstack, umstack_xdp; print(*sorted({dear} & sys.modules.keys()))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == []


def test_a_context_on_kernel_sockets_loads_nothing_that_it_does_not_use() -> None:
    """Netlink, the rings, asyncio and the statistics are more than half of the time to a first message."""
    code = """
import sys, umstack
with umstack.Context("lo") as context:
    receiver, source = context.receiver("lazy"), context.source("lazy", flow_control="min")
    source.wait_connected(timeout=10)
    source.send(b"message", flush=True)
    assert next(iter(receiver)).data == b"message"
    dear = {"pyroute2", "asyncio", "umstack_xdp.probe", "umstack_xdp.xsk", "umstack_xdp.broker_client"}
    dear |= {"hmac", "argparse", "numpy", "click"}
    print(*sorted(dear & sys.modules.keys()))
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.split() == []

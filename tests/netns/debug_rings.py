"""A pytest plugin: the tests of its process use the AF_XDP module at the path in UMSTACK_RINGS. A debug build of that
module asserts the owner of every frame."""

from __future__ import annotations

import importlib.util
import os
import sys

_NAME = "umstack_xdp._xsk"

spec = importlib.util.spec_from_file_location(_NAME, os.environ["UMSTACK_RINGS"])
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[_NAME] = module

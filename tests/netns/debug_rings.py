"""A pytest plugin: the tests of its process use the AF_XDP module whose path UMSTACK_RINGS names. A debug build of it
asserts the owner of every frame."""

from __future__ import annotations

import importlib.util
import os
import sys

_NAME = "xdp._xsk"

spec = importlib.util.spec_from_file_location(_NAME, os.environ["UMSTACK_RINGS"])
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[_NAME] = module

"""The demo: one publisher multicasts a file tree to several subscribers across a lossy switch, over AF_XDP rings and
over kernel sockets, then once more to one that starts in the middle and one whose cable is unplugged for a while, and
to one that starts after the publisher has ended and reads from a Store. Every byte is compared. `umstack demo` displays
the demo; this package does not use the terminal.
"""

from umstack.demo.errors import DemoFailed
from umstack.demo.result import DemoReport, DemoResult, SubscriberResult
from umstack.demo.run import run_demo
from umstack.demo.settings import DemoSettings, default_tree
from umstack.demo.transfer import DemoProgress

__all__ = [
    "DemoFailed",
    "DemoProgress",
    "DemoReport",
    "DemoResult",
    "DemoSettings",
    "SubscriberResult",
    "default_tree",
    "run_demo",
]

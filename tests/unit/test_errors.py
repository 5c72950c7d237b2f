"""The error tree: every error contains the next step, and results of the core map to the right class."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from umstack import errors
from umstack.errors import UmError, error_from_os, error_from_result

REPOSITORY = Path(__file__).parents[2]


def tree(root: type[UmError]) -> list[type[UmError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in tree(child))]


@pytest.mark.parametrize("kind", tree(UmError), ids=lambda kind: kind.__name__)
def test_every_class_has_a_hint(kind: type[UmError]) -> None:
    """Design section 4: errors are one tree, each saying what to do next."""
    assert kind.default_hint
    assert kind.__doc__


def test_the_message_and_the_hint_are_both_shown() -> None:
    error = errors.LinkError("cannot open the socket", hint="plug it in", errno=errno.EIO)
    assert str(error) == "cannot open the socket; plug it in"
    assert (error.message, error.hint, error.errno) == ("cannot open the socket", "plug it in", errno.EIO)


def test_config_error_is_an_option_error_with_a_place() -> None:
    error = errors.ConfigError("no such option", file="um.cfg", line=7)
    assert isinstance(error, errors.OptionError)
    assert str(error).startswith("um.cfg:7: no such option; ")


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (-errno.EPERM, errors.PermissionNeeded),
        (-errno.EACCES, errors.PermissionNeeded),
        (-errno.EAGAIN, errors.WouldBlock),
        (-errno.ENOTCONN, errors.NotConnected),
        (-errno.ENODEV, errors.InterfaceError),
        (-errno.EADDRNOTAVAIL, errors.InterfaceError),
        (-errno.ENETDOWN, errors.InterfaceError),
        (-errno.ENETUNREACH, errors.LinkError),
        (-errno.EADDRINUSE, errors.LinkError),
        (-errno.EMSGSIZE, errors.MessageTooLong),
        (-errno.EINVAL, errors.InvalidArgument),
        (-errno.EOPNOTSUPP, errors.Unsupported),
        (-errno.ENOSYS, errors.Unsupported),
        (-errno.ENOMEM, errors.ResourceLimit),
        (-errno.ENOSPC, errors.ResourceLimit),
        (-errno.EMFILE, errors.ResourceLimit),
        (-errno.EPIPE, errors.Closed),
        (-errno.EBADF, errors.Closed),
        (-errno.ECHILD, errors.SystemFailure),
        (-1001, errors.NotConnected),
        (-1002, errors.BackPressured),
        (-1003, errors.WouldBlock),
        (-1004, errors.Closed),
        (-1005, errors.PositionExhausted),
        (-1006, errors.RateLimited),
    ],
)
def test_result_becomes_error(result: int, kind: type[UmError]) -> None:
    """AE-12..AE-14: each result of the core has its class, and the context is in the text."""
    error = error_from_result(result, "sending on orders")
    assert type(error) is kind
    assert str(error).startswith("sending on orders: ")
    assert error.errno == (0 if result < -1000 else -result)


def test_every_publish_result_of_the_core_is_translated() -> None:
    """AE-14: the enum of the core and the translator know the same results."""
    header = (REPOSITORY / "ffi/core/foundation/base.h").read_text()
    body = header.partition("enum um_publish_result {")[2].partition("};")[0]
    results = [int(number) for number in re.findall(r"= (-\d+)", body)]
    assert results
    for result in results:
        assert type(error_from_result(result, "x")) is not errors.SystemFailure


def test_a_result_that_is_no_error_is_refused() -> None:
    with pytest.raises(ValueError, match="not an error"):
        error_from_result(0, "sending")


def test_os_error_becomes_error() -> None:
    """The error for a missing multicast route contains the command to add one."""
    error = error_from_os(OSError(errno.ENETUNREACH, "x"), "sending from eth1")
    assert type(error) is errors.LinkError
    assert "ip route add 224.0.0.0/4" in str(error)


def test_every_refusal_to_publish_can_be_caught_as_would_block() -> None:
    """Each refusal of a non-blocking send can be caught as one class."""
    for kind in (errors.BackPressured, errors.RateLimited, errors.NotConnected):
        assert issubclass(kind, errors.WouldBlock)

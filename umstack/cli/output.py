"""Errors while a command writes its output: a full disk, a quota, a pipe whose reader is gone.

One place translates them, so that no command ends with a traceback.
"""

from __future__ import annotations

import errno
import os
import sys

_WRITE_ERRORS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EPIPE, errno.ECONNRESET)
)


def write_problem(error: OSError) -> str:
    """Return what is wrong with the output; raise other errors again, because they are defects."""
    if error.errno not in _WRITE_ERRORS:
        raise error
    if isinstance(error, BrokenPipeError):
        return "the process that read the output is gone"
    where = "" if error.filename is None else f" {error.filename}"
    return f"the output{where} is incomplete: {os.strerror(error.errno)}"


def silence_stdout() -> None:
    """Discard buffered output, so that it raises nothing when the interpreter exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

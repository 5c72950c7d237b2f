"""Running a streaming query: starting it, waiting for it so that it can be stopped, and its failure as one line."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from umstack.errors import SystemFailure, error_from_path

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_STARTS = 12
_NOT_CONNECTED = "Python worker failed to connect back"
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception|Failure): .*", re.MULTILINE)


def start_query(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Start a query with this checkpoint. A checkpoint that cannot be written is an error with its path."""
    try:
        return writer.option("checkpointLocation", str(checkpoint)).start()
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        for number in _WRITE_ERRORS:
            if os.strerror(number) in text:
                raise error_from_path(OSError(number, text), f"checkpoint {checkpoint}") from error
        raise


def start_connected(
    start: Callable[[], StreamingQuery],
    wait: Callable[[StreamingQuery], object] = StreamingQuery.processAllAvailable,
) -> StreamingQuery:
    """Start a query, and wait for it. A query whose source did not start in time is started again.

    Spark gives the Python process of a stream's source ten seconds to import PySpark and connect. No setting changes
    that (createSimpleWorker in Spark's PythonWorkerFactory), and on a busy machine it takes longer. The source starts
    before the first batch, and the checkpoint has all earlier ones, so nothing is lost or repeated.

    Args:
        start: Starts the query.
        wait: Waits for the query; by default until it has processed the existing data.

    Returns:
        The query, which runs unless `wait` has waited for its end.
    """
    for left in reversed(range(_STARTS)):
        query = start()
        try:
            wait(query)
            return query
        except BaseException as error:
            query.stop()
            if left == 0 or _NOT_CONNECTED not in str(error):
                raise
            _LOG.warning("%s; starting the query again", str(error).splitlines()[0])
    raise AssertionError("the last start returns or raises")


def run_query(
    start: Callable[[], StreamingQuery], started: Callable[[], None], wait: Callable[[StreamingQuery], object]
) -> None:
    """Start a query as start_connected() does, wait for it, and stop it.

    Args:
        start: Starts the query.
        started: Called once, when the query has been started.
        wait: Waits for the query; its failure is a SystemFailure.
    """
    has_started = False

    def start_and_report() -> StreamingQuery:
        nonlocal has_started
        query = start()
        if not has_started:
            has_started = True
            started()
        return query

    start_connected(start_and_report, wait).stop()


def wait_for_existing(query: StreamingQuery, stop: threading.Event, what: str, hint: str) -> bool:
    """Wait until all existing data is processed, in a thread because it may take long. False if stopped."""
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(query.processAllAvailable)
        while not stop.wait(_LOOK_SECONDS) and not taking.done():
            pass
        if not taking.done():
            query.stop()
            return False
        try:
            taking.result()
        except PySparkException as error:
            raise _failure(error, what, hint) from error
        return True


def wait_for_end(query: StreamingQuery, stop: threading.Event, what: str, hint: str) -> None:
    """Wait until the query fails or `stop` is set."""
    while query.isActive:
        if stop.wait(_LOOK_SECONDS):
            return
    if (error := query.exception()) is not None:
        raise _failure(error, what, hint) from error


def _failure(error: Exception, what: str, hint: str) -> SystemFailure:
    """Return the error that ended a query, as one line: the exception of a Python traceback, else the first line."""
    text = str(error) or type(error).__name__
    raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
    line = raised[-1] if raised else text.splitlines()[0]
    return SystemFailure(f"{what} ended: {line}", hint=hint)

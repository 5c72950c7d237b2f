"""Publishes rows: each partition of a DataFrame opens a context and sends its rows' payloads.

A row is published when every receiver known to flow control has it. Sent rows cannot be withdrawn, so a task that Spark
repeats publishes its rows again or fails the job, depending on the option onRetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from umstack.config import Scope
from umstack.context import Context
from umstack.errors import NotConnected, OptionError, SystemFailure, WouldBlock
from umstack.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from umstack.spark.live_options import PublishOptions

PAYLOAD, TOPIC = "payload", "topic"


@dataclass
class Published(WriterCommitMessage):
    """The number of rows that a partition has published."""

    rows: int


def check_columns(schema: StructType, options: PublishOptions, overwrite: bool) -> None:
    """Check the columns before any row is published."""
    if overwrite:
        raise OptionError("published rows cannot be overwritten", hint='write with mode("append")')
    types = {field.name: field.dataType.simpleString() for field in schema}
    if types.get(PAYLOAD) not in ("binary", "string"):
        raise OptionError(
            "rows need a column payload, binary or string", hint='select(... .alias("payload"))'
        )
    if options.topic is None and types.get(TOPIC) != "string":
        raise OptionError("no topic is named", hint='option("topic", ...), or a string column topic')


class PartitionPublisher:
    """Publishes one partition."""

    def __init__(self, options: PublishOptions) -> None:
        config = options.config
        if options.receivers and config.get(Scope.SOURCE, "flow_control") is None:
            config = config.with_options(Scope.SOURCE, {"flow_control": "min"})
        self._options = options
        self._stack = ExitStack()
        self._context = self._stack.enter_context(Context(options.interface, config=config))
        self._publishers: dict[str, Publisher] = {}
        self.rows = 0

    def publish(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; their order within a topic is kept."""
        payload = batch.column(PAYLOAD)
        if payload.null_count:
            raise OptionError("a payload is null", hint="filter such rows out, or publish an empty payload")
        payload = payload.cast(pa.binary())
        if self._options.topic is not None:
            self._send(self._options.topic, payload)
            return
        topics = batch.column(TOPIC)
        for topic in topics.unique().to_pylist():
            if topic is None:
                raise OptionError("a topic is null", hint='filter such rows out, or option("topic", ...)')
            self._send(topic, payload.filter(pc.equal(topics, topic)))

    def _send(self, topic: str, payload: Any) -> None:
        if topic not in self._publishers:
            self._publishers[topic] = self._open(topic)
        self._publishers[topic].send_many(payload)
        self.rows += len(payload)

    def _open(self, topic: str) -> Publisher:
        source = self._stack.enter_context(self._context.source(topic))
        if self._options.receivers:
            source.wait_connected(self._options.receivers, timeout=self._options.timeout)
        return Publisher(source, self._on_wait)

    def _on_wait(self, seconds: float, why: WouldBlock) -> None:
        if seconds > self._options.timeout:
            raise why

    def drain(self) -> None:
        """Wait until the receivers have received everything."""
        for topic, publisher in self._publishers.items():
            drained = publisher.source.wait_drained(self._options.timeout)
            if drained.given_up:
                lost = ", ".join(f"{receiver}: {count}" for receiver, count in drained.given_up.items())
                raise NotConnected(
                    f"receivers of {topic!r} lost datagrams for good: {lost}",
                    hint="see docs/recovery.md; rows in these datagrams are missing there",
                )
            if not drained:
                raise NotConnected(
                    f"receivers of {topic!r} did not take all rows within {self._options.timeout:.0f} s",
                    hint="check the receivers, or raise the option timeout",
                )

    def close(self) -> None:
        """Close the sources and the context."""
        self._stack.close()


def publish_all(options: PublishOptions, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish a partition's rows and wait for the receivers."""
    task = TaskContext.get()
    if task is not None and task.attemptNumber() > 0 and not options.publishes_again:
        raise SystemFailure(
            "a task failed after it may have published rows, and onRetry does not allow to publish them again",
            hint='check which rows the receivers have; option("onRetry", "publish") publishes such rows again',
        )
    publisher: PartitionPublisher | None = None
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            publisher = publisher or PartitionPublisher(options)
            publisher.publish(batch)
        if publisher is not None:
            publisher.drain()
        return Published(publisher.rows if publisher is not None else 0)
    finally:
        if publisher is not None:
            publisher.close()


class RowPublisher(DataSourceArrowWriter):
    """Publishes a DataFrame."""

    def __init__(self, schema: StructType, options: PublishOptions, overwrite: bool) -> None:
        check_columns(schema, options, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish one partition's rows."""
        return publish_all(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to do: every partition has waited for its receivers."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to do: published rows cannot be withdrawn."""


class StreamPublisher(DataSourceStreamArrowWriter):
    """Publishes the rows of a streaming query."""

    def __init__(self, schema: StructType, options: PublishOptions, overwrite: bool) -> None:
        check_columns(schema, options, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish one partition's rows."""
        return publish_all(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: every partition has waited for its receivers."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: published rows cannot be withdrawn."""

"""A Spark session with the settings of the analyses: this interpreter for the workers, Arrow, UTC, little logging."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from umstack.errors import UmError
from umstack.spark.driver_folder import driver_folder

LOOPBACK = "127.0.0.1"
DEFAULT_DRIVER_MEMORY = "2g"
_JAVA_MAJOR = 17

# Set by spark-submit, which has already started the JVM with a master.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

# Loggers whose warnings are expected here.
_CHATTY = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.spark.SparkConf",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.sql.catalyst.util",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.sql.execution.window.WindowExec",
    "org.apache.spark.util.Utils",
)
# A short exception has no newline at its end; without one the next line of any writer would follow it directly.
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.alwaysWriteExceptions = false
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%notEmpty{%ex{short}%n}
# umstack.spark.streaming_query reports the failure of a query, as one line.
logger.query.name = org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
logger.query.level = off
"""

_OPTIONS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    # Enough tasks for the data left after the first aggregation; AQE combines small partitions.
    "spark.sql.shuffle.partitions": "16",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Recording each column's place in the source for messages takes longer than making the columns.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.python.daemon.module": "umstack.spark.worker_daemon",
}


_MIB_AT_LEAST = 512
_MIB_A_CORE = 256

SMALL_BYTES = 64 << 20
_FOR_LITTLE = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for little data, for which planning and compiling a query take longer than running it."""
_JVM = "-XX:+UseParallelGC"
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m"
"""Options for a JVM that runs for a minute: no optimizing compiler, space for Spark's 20,000 classes at once."""
_JVM_FOR_LITTLE = f"{QUICK_JVM} -XX:NewSize=160m"


def class_archive() -> Path:
    """Path of the class-data-sharing archive, which umstack.report.class_archive makes."""
    return Path(sys.prefix) / "share" / "umstack" / f"spark-{pyspark.__version__}.jsa"


def shared_classes() -> str:
    """Return the JVM options that use the archive, if it exists."""
    # A JVM that cannot use it would log that at length; it starts without the archive.
    return f'-XX:SharedArchiveFile="{class_archive()}" -Xlog:cds*=off' if class_archive().exists() else ""


def is_local(master: str | None) -> bool:
    """Return true if this machine does the work: the driver's JVM is then the executor."""
    return _SUBMITTED not in os.environ if master is None else master.startswith("local")


def enough_memory(master: str | None) -> str:
    """Driver memory for work whose tables stay on disk; a driver that also runs the tasks gets some per core."""
    tasks = cores(master) if is_local(master) else 2
    return f"{_MIB_AT_LEAST + _MIB_A_CORE * tasks}m"


def cores(master: str | None) -> int:
    """Number of concurrent tasks on this machine; for a cluster, of which nothing is known yet, the number of parts."""
    return len(os.sched_getaffinity(0)) if is_local(master) else int(_OPTIONS["spark.sql.shuffle.partitions"])


class SparkUnavailable(UmError):
    """Spark cannot be started here."""

    default_hint = (
        f"install Java {_JAVA_MAJOR} (apt-get install openjdk-{_JAVA_MAJOR}-jre-headless) and umstack[spark]"
    )


@contextmanager
def spark_session(
    name: str,
    master: str | None = None,
    *,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    options: Mapping[str, str] | None = None,
    is_little: bool = False,
) -> Iterator[SparkSession]:
    """A session on `master` (None: that of spark-submit, or this machine's cores); stopped at the end if started here.

    `is_little`: the captures have less than about SMALL_BYTES.
    """
    running = _running_session()
    if running is not None:
        yield running
        return
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise SparkUnavailable("there is no java on PATH and no JAVA_HOME")
    if master is None and is_local(master):
        master = "local[*]"
    with driver_folder("umstack-spark-") as folder:
        tuned = {**_OPTIONS, **(_FOR_LITTLE if is_little else {})}
        tuned["spark.driver.extraJavaOptions"] = _driver_options(master, is_little)
        tuned["spark.driver.defaultJavaOptions"] = tuned["spark.executor.defaultJavaOptions"] = (
            shared_classes()
        )
        session = _build(
            name, master, {**tuned, "spark.driver.memory": driver_memory, **(options or {})}, folder
        )
        try:
            yield session
        finally:
            session.stop()


def _running_session() -> SparkSession | None:
    """Return the session of this process, if there is one: also in a thread in which none is active."""
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return None
    # That of a stopped context is no longer usable.
    return session if session.sparkContext._jsc is not None else None


@contextmanager
def _same_interrupt() -> Iterator[None]:
    """Restore the handler of Ctrl-C, because PySpark's would make a JVM call inside the interrupted one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@cache
def _virtual_machine_folder() -> Path:
    """Return the folder for temporary files of the virtual machine, which lives as long as this process.

    The virtual machine leaves its libraries there if it is killed; the next process removes the folder.
    """
    lifetime = ExitStack()
    folder = lifetime.enter_context(driver_folder("umstack-jvm-"))
    atexit.register(lifetime.close)
    return folder


def _driver_options(master: str | None, is_little: bool) -> str:
    if is_little:
        return _JVM_FOR_LITTLE
    # With executors elsewhere it only plans.
    return _JVM if is_local(master) else QUICK_JVM


def _build(name: str, master: str | None, options: dict[str, str], folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    logging = folder / "log4j2.properties"
    quiet = [f"logger.l{n}.name = {name}\nlogger.l{n}.level = error\n" for n, name in enumerate(_CHATTY)]
    logging.write_text(_LOGGING + "".join(quiet))
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
        if is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
            builder = builder.config("spark.driver.host", LOOPBACK).config("spark.local.dir", str(folder))
    chosen = {"spark.sql.warehouse.dir": str(folder / "warehouse"), **options}
    chosen["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={logging.as_uri()}"
    chosen["spark.driver.extraJavaOptions"] += f" -Djava.io.tmpdir={_virtual_machine_folder()}"
    for option, value in chosen.items():
        builder = builder.config(option, value)
    try:
        with _same_interrupt():
            return builder.getOrCreate()
    except Exception as error:
        raise SparkUnavailable(f"Spark did not start: {error}") from error

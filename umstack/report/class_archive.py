"""Makes a class-data-sharing archive, so that Spark's JVM maps its classes instead of loading and verifying them.

    python -m umstack.report.class_archive        once per installed Java and PySpark

This takes most of a minute and 180 MB; later small reports are five to seven seconds faster. umstack's Spark sessions
use the archive if it exists (umstack.spark.spark_session); a different Java ignores it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark import SparkContext

from umstack.capture.generate import Traffic, generate
from umstack.report.run import ReportOptions, make_report
from umstack.spark.spark_session import class_archive, spark_session

_PACKETS = 2000
_EXIT_SECONDS = 120


def make_class_archive() -> Path:
    """Record the classes that a JVM loads for a report on a small capture; return the archive's path."""
    archive = class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    written = archive.with_suffix(".part")
    recording = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={written} -Xlog:cds*=off"}
    with tempfile.TemporaryDirectory(prefix="umstack-classes-") as folder:
        capture = generate(Path(folder) / "any.pcap", _PACKETS, Traffic(loss=0.01)).path
        with spark_session("umstack classes", options=recording, is_little=True):
            make_report([str(capture)], Path(folder) / "report", ReportOptions(engine="spark"))
        # The JVM exits when its stdin closes, and writes the archive as it exits.
        gateway = SparkContext._gateway
        assert gateway is not None
        machine = gateway.proc
        machine.stdin.close()
        machine.wait(_EXIT_SECONDS)
    written.replace(archive)
    return archive


if __name__ == "__main__":
    print(make_class_archive())

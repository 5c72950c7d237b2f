"""Makes the archive of classes that Spark's virtual machines map instead of reading, checking and linking them anew.

    python -m umstack.report.class_archive        once, for the Java and the PySpark that are installed

It takes most of a minute and 180 MB, and a small report five to seven seconds less from then on. Spark sessions of
umstack use it where it is (umstack.spark.spark_session); a Java it was not made by goes on without.
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
    """Have a virtual machine make a report on a small capture, and keep the classes that took."""
    archive = class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    written = archive.with_suffix(".part")
    recording = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={written} -Xlog:cds*=off"}
    with tempfile.TemporaryDirectory(prefix="umstack-classes-") as folder:
        capture = generate(Path(folder) / "any.pcap", _PACKETS, Traffic(loss=0.01)).path
        with spark_session("umstack classes", options=recording, is_little=True):
            make_report([str(capture)], Path(folder) / "report", ReportOptions(engine="spark"))
        # The archive is written as the virtual machine ends, which it does when nobody talks to it any more.
        gateway = SparkContext._gateway
        assert gateway is not None
        machine = gateway.proc
        machine.stdin.close()
        machine.wait(_EXIT_SECONDS)
    written.replace(archive)
    return archive


if __name__ == "__main__":
    print(make_class_archive())

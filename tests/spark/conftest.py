"""One Spark session for all tests here, because starting one takes seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

# Several failures of a task are only allowed if the master is not plain local.
TWO_CORES_THREE_FAILURES = "local[2,3]"


def need_java() -> None:
    """Skip if Spark cannot run."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17: apt-get install openjdk-17-jre-headless")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the splits of captures in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A master and two workers, shared by all tests that use a cluster."""
    need_java()
    from tests.spark.cluster import standalone

    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session; skips without Java."""
    need_java()
    from umstack.spark.spark_session import spark_session

    options = {"spark.sql.shuffle.partitions": "1"}
    with spark_session(
        "umstack tests", TWO_CORES_THREE_FAILURES, driver_memory="1g", options=options, is_little=True
    ) as session:
        yield session

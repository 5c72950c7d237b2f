"""A local object store of Amazon's protocol, used like any other store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from pyarrow.fs import FileSelector, S3FileSystem

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def running_store() -> Iterator[str]:
    """Run a store, and let this process reach it; yield the query part of a URI that does."""
    # A line for each request takes longer than the request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        _, port = server.get_host_and_port()
        with pytest.MonkeyPatch.context() as patched:
            for name, value in KEYS.items():
                patched.setenv(name, value)
            for name in ("http_proxy", "HTTP_PROXY"):
                patched.delenv(name, raising=False)
            yield f"scheme=http&endpoint_override=127.0.0.1:{port}&allow_bucket_creation=true&region=us-east-1"
    finally:
        server.stop()


def made_bucket(name: str, query: str) -> Any:
    """Make a bucket; return the file system of its store. All stores of a process have the same buckets."""
    filesystem = S3FileSystem.from_uri(f"s3://{name}?{query}")[0]
    filesystem.create_dir(name)
    return filesystem


def objects(filesystem: Any, folder: str) -> dict[str, bytes]:
    """Return the objects below a folder of a store."""
    found = filesystem.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
    contents = {}
    for one in found:
        if one.is_file:
            with filesystem.open_input_stream(one.path, compression=None) as stream:
                contents[one.path.removeprefix(f"{folder}/")] = stream.read()
    return contents


def copied_to(folder: Path, contents: dict[str, bytes]) -> Path:
    """Write objects as files."""
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder

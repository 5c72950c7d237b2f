"""Metrics for Prometheus: names from the schema, figures from contexts, bounded and harmless labels."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.held import held, wait_until_released
from tests.unit.loopback import connect, open_context, write_counters
from tests.waiting import SECONDS, collect
from umstack.errors import OptionError, SystemFailure
from umstack.store.server import StoreServer
from umstack.telemetry.counters import CounterKind, schema
from umstack.telemetry.endpoint import MetricsEndpoint
from umstack.telemetry.exporter_text import GROUPS, OTHERS, Exposition, metric_of, metrics_of, program, render
from umstack.telemetry.http_server import parse_address
from umstack.telemetry.statistics_reader import statistics_directory

parser = pytest.importorskip("prometheus_client.parser", reason="the extra `metrics` is not installed")

Samples = dict[str, list[tuple[dict[str, str], float]]]


def parsed(text: str) -> Samples:
    """Return samples by name, read by an independent parser."""
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def scraped(url: str) -> Samples:
    """Return the current answer of an endpoint."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return parsed(answer.read().decode())


def free_address() -> str:
    """Return an address without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def report(number: int = 0, **objects: Any) -> dict[str, Any]:
    """Return a report of a context that has only these objects."""
    return {
        "pid": 7,
        "number": number,
        "command": "/usr/bin/python3 /srv/feed.py --key secret",
        "started_at": 1.5,
        "interface": "eth1",
        "link": "socket",
        **{group.key: [] if group.labels else {} for group in GROUPS},
        **objects,
    }


def exposed(*reports: dict[str, Any], topics_max: int = 2000) -> Samples:
    """Return the samples made from these reports."""
    return parsed(render(Exposition(topics_max).families(reports)))


def test_every_counter_of_the_schema_is_a_metric() -> None:
    """One metric per counter, with a unique name that Prometheus accepts; only counters that grow are totals."""
    counters = [counter for group in schema().groups for counter in group.counters]
    metrics = [metric for group in GROUPS for metric in metrics_of(group.name)]
    assert {group.name for group in GROUPS} == {group.name for group in schema().groups}
    assert len({metric.name for metric in metrics}) == len(metrics) == len(counters)
    for metric in metrics:
        assert re.fullmatch(r"umstack_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.counter.kind is CounterKind.COUNTER)
        assert metric.help.startswith(metric.counter.doc)


def test_metrics_use_base_units() -> None:
    """Milliseconds become seconds, in the name and the figure; the name contains `bytes` even if the counter's name
    does not."""
    slowest = metric_of(schema().group("receiver_transport").counter("nak_stm_max"))
    assert slowest.name == "umstack_receiver_transport_nak_stm_max_seconds"
    found = exposed(report(receiver_transports=[{"transport": "T", "nak_stm_max": 250.0}]))
    ((_, value),) = found["umstack_receiver_transport_nak_stm_max_seconds"]
    assert value == 0.25
    assert metric_of(schema().group("source_transport").counter("snd_pos")).name.endswith("_snd_pos_bytes")
    assert metric_of(schema().group("source").counter("bytes_sent")).name == "umstack_source_bytes_sent_total"


def test_a_minimum_without_a_sample_is_absent() -> None:
    """None is not reported as zero."""
    found = exposed(report(receiver_transports=[{"transport": "T", "nak_stm_min": None, "lost": 0}]))
    assert "umstack_receiver_transport_nak_stm_min_seconds" not in found
    assert found["umstack_receiver_transport_lost_total"][0][1] == 0


@pytest.mark.parametrize(
    "topic", ['quo"te', "back\\slash", "line\nfeed", "\x1b[2Jgone", "[/red]", "\u202eright", "ü"]
)
def test_topic_names_are_harmless_labels(topic: str) -> None:
    """A topic name cannot break the format, and no control character reaches a terminal."""
    text = render(Exposition().families([report(receivers=[{"topic": topic, "messages_delivered": 3}])]))
    assert "\x1b" not in text
    ((labels, value),) = parsed(text)["umstack_receiver_messages_delivered_total"]
    assert value == 3
    assert labels["topic"].isprintable()
    if topic.isprintable():
        assert labels["topic"] == topic


def test_the_number_of_labels_is_bounded() -> None:
    """Two thousand of ten thousand topics have a series, the others share one sum, and none is lost."""
    receivers = [{"topic": f"t{number}", "messages_delivered": number} for number in range(10_000)]
    found = exposed(report(receivers=receivers))
    samples = found["umstack_receiver_messages_delivered_total"]
    assert len(samples) == 2001
    assert sum(value for _, value in samples) == sum(range(10_000))
    (others,) = [value for labels, value in samples if labels["topic"] == OTHERS]
    assert others == sum(range(2000, 10_000))
    folded = {labels["label"]: value for labels, value in found["umstack_folded_labels"]}
    assert folded == {"topic": 8000, "transport": 0, "queue": 0, "store": 0}


def test_a_series_stays_as_long_as_its_topic() -> None:
    """A topic listed earlier does not replace one that has a series; a removed topic frees its place."""
    exposition = Exposition(topics_max=1)

    def shown(*topics: str) -> list[str]:
        listed = [{"topic": topic, "messages_delivered": 1} for topic in topics]
        samples = parsed(render(exposition.families([report(receivers=listed)])))
        return [labels["topic"] for labels, _ in samples["umstack_receiver_messages_delivered_total"]]

    assert shown("b") == ["b"]
    assert shown("a", "b") == [OTHERS, "b"]
    assert shown("a") == ["a"]


def test_objects_with_the_same_labels_are_one_series() -> None:
    """Two receivers of a topic are added; extremes of merged sessions remain extremes."""
    found = exposed(report(receivers=[{"topic": "t", "messages_delivered": n} for n in (3, 4)]))
    assert [value for _, value in found["umstack_receiver_messages_delivered_total"]] == [7]
    sessions = [
        {"transport": "T", "nak_tx_min": n, "nak_tx_mean": n, "nak_tx_max": n, "recovery_counts": [n] * 64}
        for n in (2, 6)
    ]
    found = exposed(report(receiver_transports=sessions))
    values = [found[f"umstack_receiver_transport_nak_tx_{kind}"][0][1] for kind in ("min", "mean", "max")]
    assert values == [2, 4, 6]
    assert found["umstack_receiver_transport_recovery_seconds_count"][0][1] == 8 * 64


def test_recovery_times_are_a_histogram() -> None:
    """Buckets add up from the shortest to +Inf, which equals the count; the last also contains longer times."""
    counts = [0] * 64
    counts[0], counts[20], counts[63] = 5, 2, 1
    found = exposed(report(receiver_transports=[{"transport": "T", "recovery_counts": counts}]))
    buckets = found["umstack_receiver_transport_recovery_seconds_bucket"]
    values = [value for _, value in buckets]
    assert values == sorted(values)
    assert (values[0], values[-2], values[-1]) == (5, 7, 8)
    assert buckets[0][0]["le"] == repr(2**17 / 1e9)
    assert buckets[-1][0]["le"] == "+Inf"
    assert found["umstack_receiver_transport_recovery_seconds_sum"][0][1] > 2**32 * 0.8 / 1e9


def test_arguments_of_a_command_are_not_published() -> None:
    """The program's name identifies it; its arguments may be secret."""
    found = exposed(report())
    assert found["umstack_context_info"][0][0]["program"] == "feed.py"
    assert program("/usr/local/bin/umstack send secret") == "umstack"
    assert program("/usr/bin/python3 -u -m umstack recv secret") == "umstack"
    assert program("python3 -c secret") == program("python3") == "python3"
    assert program("") == ""


def test_a_context_is_scraped() -> None:
    """Context(metrics=...) serves the figures of stats(), under the schema's names, while it is open."""
    address = free_address()
    with open_context(metrics=address) as context:
        source, receiver = connect(context, "scraped")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
        found = scraped(f"http://{address}/metrics")
        ((labels, value),) = found["umstack_source_messages_sent_total"]
        assert (labels["topic"], labels["pid"], value) == ("scraped", str(os.getpid()), 1)
        assert found["umstack_receiver_messages_delivered_total"][0][1] == 1
        assert found["umstack_receiver_transport_recovery_seconds_count"][0][1] == 0
        sent = context.stats()["link_counters"]["datagrams_sent"]
        assert 0 < found["umstack_link_datagrams_sent_total"][0][1] <= sent
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=2)


def test_a_context_with_one_of_everything_is_scraped(tmp_path: Path) -> None:
    """Each group of the schema has series with the labels of its objects, also for objects that have queues."""
    address = free_address()
    with (
        open_context(metrics=address) as context,
        StoreServer(context, tmp_path, ("127.0.0.1", 0)),
    ):
        source, receiver = connect(context, "everything")
        context.receiver("queued", queue=context.event_queue())
        context.wildcard_receiver(prefix="every")
        context.hot_failover_receiver("everything")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
        stats = context.stats()
        found = scraped(f"http://{address}/metrics")
    for group in GROUPS:
        names = {name for metric in metrics_of(group.name) for name in found if name == metric.name}
        assert names, group.name
        labels = [labels for name in names for labels, _ in found[name]]
        assert all(set(group.labels) <= set(one) for one in labels)
    queues = {labels["queue"] for labels, _ in found["umstack_event_queue_events"]}
    assert queues == {item["queue"] for item in stats["event_queues"]}


def test_every_label_has_a_bound() -> None:
    """Objects of many names in any group are folded into one series of others."""
    for group in GROUPS:
        for label in group.labels:
            objects = [{**dict.fromkeys(group.labels, "one"), label: f"n{number}"} for number in range(3000)]
            found = exposed(report(**{group.key: objects}))
            folded = {labels["label"]: value for labels, value in found["umstack_folded_labels"]}
            assert folded[label] >= 1000, (group.key, label)


def test_contexts_of_a_process_share_an_address() -> None:
    """The second context appears on the same page; when the first is closed, the page still shows the second."""
    address = free_address()
    with open_context(metrics=address) as first, open_context(metrics=address):
        assert [
            labels["context"] for labels, _ in scraped(f"http://{address}/metrics")["umstack_context_info"]
        ] == [
            "0",
            "1",
        ]
        first.close()
        ((labels, _),) = scraped(f"http://{address}/metrics")["umstack_context_info"]
        assert labels["context"] == "1"


def test_an_unavailable_address_is_an_error() -> None:
    """For a port in use the error states how to find its owner, and for an invalid address the format of an
    address. No context stays open.
    """
    with MetricsEndpoint("127.0.0.1:0", list) as other, pytest.raises(SystemFailure, match="in use"):
        open_context(metrics=f"127.0.0.1:{other.port}")
    for text in ("9464", "host:port", ":99999", "[::1"):
        with pytest.raises(OptionError, match="HOST:PORT"):
            open_context(metrics=text)


def test_a_context_whose_metrics_cannot_be_served_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter file, which is already there by then, is removed, too."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    before = held()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SystemFailure):
            open_context(statistics=True, metrics=f"127.0.0.1:{taken.getsockname()[1]}")
    wait_until_released(before)
    assert not list(statistics_directory().glob(f"{os.getpid()}-*.counters"))


def test_addresses() -> None:
    """An address is a host, an IPv6 address in brackets, or nothing for all addresses."""
    assert parse_address(":9464") == ("", 9464)
    assert parse_address("[::1]:1") == ("::1", 1)
    assert parse_address("localhost:65535") == ("localhost", 65535)
    with MetricsEndpoint(":0", list) as everywhere:
        assert scraped(f"http://127.0.0.1:{everywhere.port}/metrics")["umstack_folded_labels"]


def test_other_paths_are_not_found() -> None:
    """Only /metrics is served."""
    with MetricsEndpoint("127.0.0.1:0", list) as endpoint, pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/etc/passwd", timeout=5)


def test_idle_scrapers_are_bounded() -> None:
    """Eight connections that send single bytes keep no scraper out: the oldest of them ends."""
    with MetricsEndpoint("127.0.0.1:0", list) as endpoint, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", endpoint.port))) for _ in range(8)]
        for one in idle:
            one.sendall(b"G")
        for _ in range(3):
            assert scraped(endpoint.url)
        idle[0].settimeout(SECONDS)
        assert idle[0].recv(1) == b""


def test_a_request_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then is disconnected after the time for a request."""
    monkeypatch.setattr("umstack.telemetry.http_server._CONNECTION_SECONDS", 0.3)
    with (
        MetricsEndpoint("127.0.0.1:0", list) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port)) as slow,
    ):
        slow.settimeout(0.02)
        ends_at = time.monotonic() + SECONDS
        is_open = True
        while is_open and time.monotonic() < ends_at:
            try:
                slow.sendall(b"G")
                is_open = slow.recv(1) != b""
            except TimeoutError:
                continue
            except ConnectionError:
                is_open = False
        assert not is_open


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "localhost.evil.example"])
def test_a_name_from_elsewhere_reads_no_metrics(host: str) -> None:
    """A page elsewhere whose name leads here (DNS rebinding) reads nothing; an address and our name do."""
    with MetricsEndpoint("127.0.0.1:0", list) as endpoint:
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(endpoint.url, headers={"Host": host}), timeout=5)
        ours = urllib.request.Request(endpoint.url, headers={"Host": f"{socket.gethostname()}:9464"})
        assert urllib.request.urlopen(ours, timeout=5).status == 200


def test_a_registry_of_the_application_accepts_contexts() -> None:
    """An application that uses prometheus_client gets the same metrics in its registry."""
    from prometheus_client import CollectorRegistry, generate_latest

    from umstack.telemetry.registry_collector import Collector

    with open_context() as context:
        context.source("registered")
        registry = CollectorRegistry()
        registry.register(Collector([context]))
        found = parsed(generate_latest(registry).decode())
        assert found["umstack_source_messages_sent_total"][0][0]["topic"] == "registered"
        context.close()
        assert "umstack_source_messages_sent_total" not in parsed(generate_latest(registry).decode())


# ---- umstack exporter ----


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate the files of these tests from others."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    return tmp_path / "stat"


@pytest.fixture
def exporter(folder: Path) -> Iterator[str]:
    """Yield the address of a running exporter; it must end at once and cleanly."""
    address = free_address()
    command = [sys.executable, "-m", "umstack", "exporter", "--listen", address, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.usefixtures("folder")
def test_the_exporter_finds_every_process(exporter: str) -> None:
    """Contexts of this process and of another are on one page, and those of a killed process leave it."""
    assert "umstack_context_info" not in scraped(exporter)
    program_text = (
        "import time; from tests.unit.loopback import open_context\n"
        "context = open_context(statistics=True); context.source('theirs')\n"
        "context._counter_file.write(); print('up', flush=True); time.sleep(60)"
    )
    with open_context(statistics=True) as ours:
        ours.source("ours")
        write_counters(ours)
        with subprocess.Popen(
            [sys.executable, "-c", program_text], stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
            found = scraped(exporter)["umstack_source_messages_sent_total"]
            assert {labels["topic"]: labels["pid"] for labels, _ in found} == {
                "ours": str(os.getpid()),
                "theirs": str(other.pid),
            }
            other.kill()
            other.wait()
        found = scraped(exporter)["umstack_source_messages_sent_total"]
        assert [labels["topic"] for labels, _ in found] == ["ours"]

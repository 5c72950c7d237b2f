"""The files in packaging/ for Prometheus and Grafana, checked with Prometheus' own programs.

scripts/test unpacks promtool and prometheus from the distribution's package into build/tools.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import open_context
from tests.unit.test_metrics import free_address
from umstack.store.server import StoreServer
from umstack.telemetry.alerts import ALERTS, in_promql, render_alerts
from umstack.telemetry.counters import CounterKind
from umstack.telemetry.dashboard import dashboard, render_dashboard
from umstack.telemetry.exporter_text import (
    COMMIT_SECONDS,
    GROUPS,
    LATENCY_SECONDS,
    RECOVERY_SECONDS,
    metrics_of,
)

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging" / "prometheus" / "umstack.rules.yml"
NAMES = {metric.name for group in GROUPS for metric in metrics_of(group.name)}


def tool(name: str) -> str:
    """Return a program of the prometheus package, or skip the test with the way to install it."""
    unpacked = ROOT / "build" / "tools" / "usr" / "bin"
    found = shutil.which(name, path=f"{os.environ['PATH']}:{unpacked}")
    if found is None:
        pytest.skip(f"no {name} in PATH or build/tools: scripts/test fetches it where apt-get is")
    return found


def test_the_rules_file_is_up_to_date() -> None:
    """The committed rules are those generated from the schema."""
    assert RULES.read_text() == render_alerts(), f"umstack exporter --print alerts > {RULES}"


def test_the_rules_cover_the_known_faults() -> None:
    """Loss, NAK storm, slow receiver, back-pressure, ring starvation and window used each have a rule and a
    remedy."""
    names = " ".join(alert.name for alert in ALERTS)
    for word in ("Loss", "NakStorm", "SlowReceiver", "BackPressure", "RingStarvation", "WindowUsed"):
        assert word in names
    assert all(alert.remedy and alert.summary for alert in ALERTS)


def test_an_unknown_counter_is_refused() -> None:
    """A rule cannot name a counter that the schema does not have."""
    assert in_promql("{source_transport.naks_rcved} > 0") == "umstack_source_transport_naks_rcved_total > 0"
    with pytest.raises(KeyError):
        in_promql("{source_transport.naks_recieved} > 0")


def test_the_dashboard_shows_every_counter() -> None:
    """Each metric has a panel; counters are shown as rates; panel ids are unique."""
    shown = dashboard()
    panels = [inner for panel in shown["panels"] for inner in (panel, *panel.get("panels", ()))]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    mentioned = {name for text in expressions for name in re.findall(r"umstack_\w+", text)}
    assert mentioned == NAMES | {
        f"{name}_bucket" for name in (LATENCY_SECONDS, RECOVERY_SECONDS, COMMIT_SECONDS)
    }
    assert len({panel["id"] for panel in panels}) == len(panels)
    for metric in (metric for group in GROUPS for metric in metrics_of(group.name)):
        if metric.counter.kind is CounterKind.COUNTER:
            assert any(f"rate({metric.name}" in text for text in expressions), metric.name


def test_promtool_accepts_the_rules_and_the_metrics(tmp_path: Path) -> None:
    """Prometheus' linter accepts both files."""
    promtool = tool("promtool")
    checked = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout
    with (
        open_context(metrics=(address := free_address())) as context,
        StoreServer(context, tmp_path, ("127.0.0.1", 0)),
    ):
        context.source("linted")
        context.receiver('l"in\\t\ned')
        text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read()
    assert f'store="{tmp_path}"'.encode() in text
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    # UM's names contain `msgs` and `pckts`; promtool advises against such names (status 3), which is no format error
    # (1).
    assert checked.returncode in (0, 3), checked.stderr.decode()
    assert b"error" not in checked.stderr.lower().replace(b"_error", b""), checked.stderr.decode()


SERIES = 'instance="host", transport="T"'
FIRING: dict[str, dict[str, str]] = {
    "UmstackUnrecoverableLoss": {
        f"umstack_receiver_transport_unrecovered_txw_total{{{SERIES}}}": "0+1x20",
        f"umstack_receiver_transport_unrecovered_tmo_total{{{SERIES}}}": "0x20",
    },
    "UmstackLoss": {
        f"umstack_receiver_transport_lost_total{{{SERIES}}}": "0+20x20",
        f"umstack_receiver_transport_msgs_rcved_total{{{SERIES}}}": "0+1000x20",
    },
    "UmstackNakStorm": {
        f"umstack_source_transport_naks_rcved_total{{{SERIES}}}": "0+3000x20",
        f"umstack_source_transport_msgs_sent_total{{{SERIES}}}": "0+10000x20",
    },
    "UmstackRetransmitLimit": {f"umstack_source_transport_naks_shed_total{{{SERIES}}}": "0+1x20"},
    "UmstackSlowReceiver": {'umstack_receiver_queue_full_pauses_total{topic="t"}': "0+1x20"},
    "UmstackBackPressure": {f"umstack_source_transport_back_pressured_total{{{SERIES}}}": "0+100x20"},
    "UmstackWindowUsed": {
        f"umstack_source_transport_pub_pos_bytes{{{SERIES}}}": "1950x20",
        f"umstack_source_transport_snd_pos_bytes{{{SERIES}}}": "1000x20",
        f"umstack_source_transport_pub_lmt_bytes{{{SERIES}}}": "2000x20",
    },
    "UmstackRingStarvation": {'umstack_link_xdp_rx_ring_full_total{interface="eth1"}': "0+1x20"},
    "UmstackStoreDiskFull": {'umstack_store_disk_full_total{store="/srv"}': "0+1x20"},
    "UmstackStoreDamaged": {
        'umstack_store_damaged_reads_total{store="/srv"}': "0+1x20",
        'umstack_store_disk_errors_total{store="/srv"}': "0x20",
    },
    "UmstackReceiveDrops": {'umstack_link_receive_drops_total{interface="eth1"}': "0+1x20"},
}
"""Figures every 15 s under which exactly one rule fires."""


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_rule_fires_for_its_fault(alert: Any, tmp_path: Path) -> None:
    """In Prometheus' own evaluation the rule fires alone, with its figures, and does not fire while all
    counters stand still.
    """
    series = FIRING[alert.name]
    at_rest = dict.fromkeys(series, "1000x20")
    cases = []
    for figures, fires in ((series, True), (at_rest, False)):
        expected = [{"alertname": one.name, "eval_time": "4m", "exp_alerts": []} for one in ALERTS]
        tested = expected if not fires else [one for one in expected if one["alertname"] != alert.name]
        inputs = [{"series": name, "values": values} for name, values in figures.items()]
        cases.append({"interval": "15s", "input_series": inputs, "alert_rule_test": tested})
        if fires:
            condition = [{"expr": f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})', "eval_time": "4m",
                          "exp_samples": [{"labels": "{}", "value": 1}]}]  # fmt: skip
            cases[-1]["promql_expr_test"] = condition
    text = json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": cases})
    file = tmp_path / "test.yml"
    file.write_text(text)
    checked = subprocess.run([tool("promtool"), "test", "rules", file], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def ask(server: str, path: str) -> Any:
    """Return the data of a response of Prometheus' API, or None while it does not respond."""
    try:
        with urllib.request.urlopen(f"http://{server}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


@pytest.mark.timeout(120)
def test_a_real_prometheus_scrapes_and_loads_the_rules(tmp_path: Path) -> None:
    """A separate server finds a context's figures by their names and evaluates every rule without an error."""
    prometheus = tool("prometheus")
    server, address = free_address(), free_address()
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [{"job_name": "umstack", "static_configs": [{"targets": [address]}]}],
            }
        )
    )
    command = [
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={server}",
    ]
    with open_context(metrics=address) as context, (tmp_path / "log").open("w") as log:
        context.source("seen \x1b[31m")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 60
            found = rules = None
            while not (found and rules) and time.monotonic() < deadline:
                time.sleep(0.5)
                found = (ask(server, "query?query=umstack_source_messages_sent_total") or {}).get("result")
                groups = (ask(server, "rules") or {}).get("groups") or [{"rules": []}]
                rules = [rule for rule in groups[0]["rules"] if rule["health"] != "unknown"]
            assert found, (tmp_path / "log").read_text()[-2000:]
            assert found[0]["metric"]["topic"] == "seen \\x1b[31m"
            assert [(rule["name"], rule["health"]) for rule in rules or []] == [
                (one.name, "ok") for one in ALERTS
            ]
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.parametrize("what", ["alerts", "dashboard"])
def test_the_command_prints_them(what: str) -> None:
    """An installed package prints both without this checkout."""
    command = [sys.executable, "-m", "umstack", "exporter", "--print", what]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert made == (render_alerts() if what == "alerts" else render_dashboard())

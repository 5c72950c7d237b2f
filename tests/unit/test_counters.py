"""The counter schema and what is made from it (W10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from umstack._engine.tcp_peers import TcpPeers
from umstack.config import Config
from umstack.requests.counters import RequesterCounters, ResponderCounters, ResponseTagCounters
from umstack.resolution import ResolutionCounters
from umstack.streams.counters import StreamCounters
from umstack.telemetry import counters
from umstack.telemetry.counters import UNSET_MINIMUM, CounterKind, parse_schema, schema

REPOSITORY = Path(__file__).parents[2]

UM_SOURCE = """msgs_sent bytes_sent txw_msgs txw_bytes nak_pckts_rcved naks_rcved naks_ignored naks_shed
naks_rx_delay_ignored rxs_sent rx_bytes_sent rctlr_data_msgs rctlr_rx_msgs num_clients bytes_buffered"""
UM_RECEIVER = """msgs_rcved bytes_rcved nak_pckts_sent naks_sent lost ncfs_ignored ncfs_shed ncfs_rx_delay
ncfs_unknown nak_stm_min nak_stm_mean nak_stm_max nak_tx_min nak_tx_mean nak_tx_max duplicate_data unrecovered_txw
unrecovered_tmo lbm_msgs_rcved lbm_msgs_no_topic_rcved lbm_reqs_rcved dgrams_dropped_size dgrams_dropped_type
dgrams_dropped_version dgrams_dropped_hdr dgrams_dropped_sid dgrams_dropped_other out_of_order"""
UM_CONTEXT = """tr_dgrams_sent tr_dgrams_rcved tr_bytes_sent tr_bytes_rcved tr_dgrams_dropped_ver
tr_dgrams_dropped_type tr_dgrams_dropped_malformed tr_dgrams_send_failed tr_src_topics tr_rcv_topics
tr_rcv_unresolved_topics lbtrm_unknown_msgs_rcved lbtru_unknown_msgs_rcved send_blocked send_would_block resp_blocked
resp_would_block uim_dup_msgs_rcved uim_msgs_no_stream_rcved fragments_lost fragments_unrecoverably_lost
rcv_cb_svc_time_min rcv_cb_svc_time_max rcv_cb_svc_time_mean"""


@pytest.mark.parametrize(
    ("group", "names"),
    [("source_transport", UM_SOURCE), ("receiver_transport", UM_RECEIVER), ("context", UM_CONTEXT)],
)
def test_um_counters_are_all_there_or_absent_with_a_reason(group: str, names: str) -> None:
    """Every UM counter exists by its name, or a reason is given."""
    absent = {name for entry in schema().absent for name in entry.names if entry.reason}
    present = {counter.name for counter in schema().group(group).counters if not counter.extension}
    assert present == set(names.split()) - absent


def test_snapshots_are_those_of_um() -> None:
    """Counters that Ultra Messaging marks (snap) are levels; all its other counters accumulate."""
    snapshots = {
        counter.name
        for group in schema().groups
        for counter in group.counters
        if counter.kind is CounterKind.SNAPSHOT and not counter.extension
    }
    assert snapshots == {
        "txw_msgs",
        "txw_bytes",
        "rctlr_data_msgs",
        "rctlr_rx_msgs",
        "num_clients",
        "events",
        "bytes_buffered",
        "tr_src_topics",
        "tr_rcv_topics",
        "tr_rcv_unresolved_topics",
    }


def test_the_committed_c_header_is_up_to_date() -> None:
    """W10: ffi/core/foundation/counters.h is what `python -m umstack.telemetry.counters --c-header` prints."""
    assert (REPOSITORY / "ffi/core/foundation/counters.h").read_text() == counters.render_c_header()


def test_the_documentation_is_up_to_date() -> None:
    """W10: docs/counters.md is what `python -m umstack.telemetry.counters --markdown` prints."""
    assert (REPOSITORY / "docs/counters.md").read_text() == counters.render_markdown()


def test_counters_kept_in_python_are_not_in_the_c_structs() -> None:
    """Topic resolution runs in Python: its counters have no field in C and all have one in Python."""
    in_python = {c.name for c in schema().group("context").counters if not c.in_core}
    kinds = (
        ResolutionCounters, StreamCounters, RequesterCounters, ResponderCounters, ResponseTagCounters,
    )  # fmt: skip
    of_peers = TcpPeers(Config().context_options(), None).stats()
    assert in_python == {name for kind in kinds for name in kind().as_dict()} | of_peers.keys()
    assert not any(f" {name};" in counters.render_c_header() for name in in_python)


def test_values_are_reported_in_um_units() -> None:
    """nak_stm_* are in milliseconds; a minimum without a sample is absent (all ones in C)."""
    group = schema().group("receiver_transport")
    report = group.report(
        {"nak_stm_min": UNSET_MINIMUM, "nak_stm_mean": 53_250_000, "lost": 7, "nak_tx_mean": 1500}
    )
    assert report == {"nak_stm_min": None, "nak_stm_mean": 53.25, "lost": 7, "nak_tx_mean": 1.5}
    assert "counters->nak_stm_min = UINT64_MAX;" in counters.render_c_header()


def test_the_cdef_has_the_fields_of_the_header() -> None:
    fields = [line.strip() for line in counters.render_cdef().splitlines() if line.startswith("    uint64_t")]
    header = [
        line.strip() for line in counters.render_c_header().splitlines() if line.startswith("    uint64_t")
    ]
    assert fields == header


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            'schema_version=1\n[g]\ndoc="d"\ncounters=[{name="a",kind="counter",unit="u",origin="x",doc="d"}]',
            "origin",
        ),
        ('schema_version=1\n[g]\ndoc="d"\ncounters=[{name="a",kind="k",unit="u",origin="um",doc="d"}]', "k"),
        (
            'schema_version=1\n[g]\ndoc="d"\ncounters=[{name="a",kind="counter",unit="u",origin="um",doc="d"},'
            '{name="a",kind="counter",unit="u",origin="um",doc="d"}]',
            "twice",
        ),
        (
            'schema_version=1\n[g]\ndoc="d"\ncounters=[{name="a",kind="counter",unit="u",origin="um",doc="d",z=1}]',
            "unknown fields",
        ),
    ],
)
def test_a_wrong_schema_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_schema(text)


def test_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert counters.main(["--cdef"]) == 0
    assert capsys.readouterr().out == counters.render_cdef()


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="no counter group"):
        schema().group("nothing")
    with pytest.raises(KeyError, match="no counter 'nothing'"):
        schema().group("link").counter("nothing")
    assert schema().group("link").counter("syscalls").unit == "calls"

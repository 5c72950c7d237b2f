"""Configuration: the option table, UM-style text, typed options, relations between options (W10)."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest

from umstack.config import Config, Kind, Option, Scope, lint_load
from umstack.config.documentation import render_options_markdown
from umstack.config.keyword_types import render_keywords
from umstack.config.option import shown
from umstack.config.setting import OPTION_HOLDERS, OPTIONS
from umstack.errors import ConfigError, OptionError

REPOSITORY = Path(__file__).parents[2]
EVERY_OPTION = [option for table in OPTIONS.values() for option in table.values()]
_FREE_TEXTS = (Kind.TEXT, Kind.ADDRESSES, Kind.INTERFACE, Kind.IPV4_INTERFACE)


def option_id(option: Option) -> str:
    return f"{option.scope}.{option.name}"


@pytest.mark.parametrize("option", EVERY_OPTION, ids=option_id)
def test_a_default_is_valid_and_a_difference_has_a_reason(option: Option) -> None:
    """W10: UM's default, or ours with the reason."""
    spec = option.spec
    assert option.read(spec.default) == option.default
    assert spec.doc.endswith(".")
    if spec.um is not None and str(spec.um) != str(spec.default):
        assert spec.reason, f"{option.name} differs from UM without a reason"
    else:
        assert not spec.reason


@pytest.mark.parametrize("option", EVERY_OPTION, ids=option_id)
def test_an_option_survives_being_written_and_read(option: Option) -> None:
    """Every option can be set from text, and what was set reads back as it was written."""
    text = f'{option.scope.upper()} {option.name.upper()} "{option.spec.default}"'
    (setting,) = Config.parse(text).settings()
    assert setting.option == option
    assert option.read(setting.text) == option.default


@pytest.mark.parametrize("option", EVERY_OPTION, ids=option_id)
def test_the_bounds_of_an_option_belong_to_it(option: Option) -> None:
    """The least and the most value are taken as they are, one less and one more are refused."""
    spec = option.spec
    if spec.choices:
        return
    for bound, beyond, said in ((spec.minimum, -1, "too small"), (spec.maximum, 1, "too large")):
        if bound is None:
            continue
        assert shown(spec, option.read(bound)) == str(bound)
        outside = Decimal(str(bound)) + beyond
        if not (spec.zero and outside == 0):
            with pytest.raises(OptionError, match=said):
                option.read(str(outside))


@pytest.mark.parametrize("option", EVERY_OPTION, ids=option_id)
def test_nonsense_is_refused_with_what_is_allowed(option: Option) -> None:
    """An ill-typed value is refused; the error names the option and gives its default."""
    nonsense = " " if option.spec.kind in _FREE_TEXTS else "nonsense!"
    with pytest.raises(OptionError, match=option.name) as caught:
        option.read(nonsense)
    assert f"the default is {option.spec.default}" in str(caught.value)


@pytest.mark.parametrize(
    ("scope", "name", "um_default"),
    [
        (Scope.SOURCE, "implicit_batching_interval", 200),
        (Scope.SOURCE, "implicit_batching_minimum_length", 2048),
        (Scope.SOURCE, "transport_lbtrm_transmission_window_size", 25165824),
        (Scope.SOURCE, "transport_lbtrm_ignore_interval", 500),
        (Scope.RECEIVER, "transport_lbtrm_nak_initial_backoff_interval", 50),
        (Scope.RECEIVER, "transport_lbtrm_nak_backoff_interval", 200),
        (Scope.RECEIVER, "transport_lbtrm_nak_suppress_interval", 1000),
        (Scope.RECEIVER, "transport_lbtrm_nak_generation_interval", 10000),
        (Scope.CONTEXT, "transport_lbtrm_data_rate_limit", 10_000_000),
        (Scope.CONTEXT, "transport_lbtrm_retransmit_rate_limit", 5_000_000),
        (Scope.CONTEXT, "transport_lbtrm_rate_interval", 10),
        (Scope.SOURCE, "transport_lbtrm_sm_minimum_interval", 200),
        (Scope.SOURCE, "transport_lbtrm_sm_maximum_interval", 10000),
        (Scope.RECEIVER, "transport_lbtrm_activity_timeout", 60000),
        (Scope.CONTEXT, "transport_lbtrm_multicast_address_low", "224.10.10.10"),
        (Scope.CONTEXT, "transport_lbtrm_source_port_high", 14399),
        (Scope.CONTEXT, "delivery_control_maximum_total_map_entries", 200000),
        (Scope.RECEIVER, "delivery_control_maximum_burst_loss", 1024),
        (Scope.SOURCE, "transport_topic_sequence_number_info_interval", 5000),
        (Scope.SOURCE, "transport_topic_sequence_number_info_active_threshold", 60),
        (Scope.CONTEXT, "resolver_multicast_address", "224.9.10.11"),
        (Scope.CONTEXT, "resolver_multicast_port", 12965),
        (Scope.SOURCE, "resolver_advertisement_maximum_initial_interval", 500),
        (Scope.RECEIVER, "resolver_query_minimum_initial_interval", 20),
        (Scope.RECEIVER, "use_otr", 2),
        (Scope.RECEIVER, "otr_request_initial_delay", 2000),
        (Scope.RECEIVER, "otr_request_minimum_interval", 1000),
        (Scope.RECEIVER, "otr_request_maximum_interval", 10000),
        (Scope.RECEIVER, "otr_request_message_timeout", 60000),
        (Scope.RECEIVER, "otr_request_outstanding_maximum", 200),
        (Scope.RECEIVER, "otr_message_caching_threshold", 10000),
        (Scope.RECEIVER, "otr_request_log_alert_cooldown", 300),
        (Scope.RECEIVER, "retransmit_message_caching_proximity", 5000),
        (Scope.CONTEXT, "response_tcp_deletion_timeout", 20000),
        (Scope.RECEIVER, "transport_lbtru_nak_initial_backoff_interval", 0),
    ],
)
def test_um_defaults_are_those_of_the_configuration_guide(
    scope: Scope, name: str, um_default: object
) -> None:
    """UM-17, UM-62, UM-64, UM-68, UM-126, UM-142, UX-14, C11, C13: names, scopes and UM's defaults."""
    assert OPTIONS[scope][name].spec.um == um_default


def test_fields_are_named_for_what_they_hold() -> None:
    """Units are in names: durations are nanoseconds, sizes bytes."""
    for option in EVERY_OPTION:
        suffix = option.field.removeprefix(option.name)
        expected = {Kind.MILLISECONDS: "_ns", Kind.SECONDS: "_ns", Kind.BYTES: "_bytes"}
        if option.spec.kind in expected:
            assert suffix == expected[option.spec.kind]


@pytest.mark.parametrize("holder", OPTION_HOLDERS.values(), ids=lambda holder: holder.__name__)
def test_field_types_are_the_types_of_the_values(holder: type) -> None:
    """The typed access mypy checks is what is there at run time."""
    for field in dataclasses.fields(holder):
        if field.name == "given":
            continue
        assert type(field.default).__name__ == field.type, field.name


def test_units_are_converted() -> None:
    """ms with decimals and seconds become ns exactly; names are in any case, later lines win."""
    config = Config.parse(
        "# tuning\n"
        "Receiver TRANSPORT_LBTRM_NAK_BACKOFF_INTERVAL 0.05\n"
        "receiver transport_lbtrm_nak_initial_backoff_interval 0.1   # with a comment\n"
        "\n"
        "source transport_topic_sequence_number_info_active_threshold 30\n"
        "source flow_control MIN\n"
        'context default_interface "my-eth"\n'
        "context transport_lbtrm_datagram_max_size 1000\r\n"
        "context transport_lbtrm_datagram_max_size 1400\r\n"
    )
    receiver = config.receiver_options()
    assert receiver.transport_lbtrm_nak_backoff_interval_ns == 50_000
    assert receiver.transport_lbtrm_nak_initial_backoff_interval_ns == 100_000
    source = config.source_options()
    assert source.transport_topic_sequence_number_info_active_threshold_ns == 30_000_000_000
    assert source.flow_control == "min"
    context = config.context_options()
    assert context.default_interface == "my-eth"
    assert context.transport_lbtrm_datagram_max_size_bytes == 1400
    assert context.source_datagram_size_bytes == 1400


def test_arguments_win_over_the_file_and_the_origin_is_known() -> None:
    """Keyword overrides take the option's name and unit, as text or number."""
    config = Config.parse("source transport_lbtrm_ignore_interval 50", file="um.cfg")
    assert (
        config.source_options(transport_lbtrm_ignore_interval=60).transport_lbtrm_ignore_interval_ns
        == 60_000_000
    )
    assert (
        config.source_options(transport_lbtrm_ignore_interval=0.5).transport_lbtrm_ignore_interval_ns
        == 500_000
    )
    assert config.source_options().transport_lbtrm_ignore_interval_ns == 50_000_000
    setting = config.get(Scope.SOURCE, "transport_lbtrm_ignore_interval")
    assert setting is not None
    assert setting.origin == "um.cfg:1"
    changed = config.with_options(Scope.SOURCE, {"transport_lbtrm_ignore_interval": Decimal("1.5")})
    assert [s.origin for s in changed.settings()] == ["argument"]
    assert config.merged(changed).source_options().transport_lbtrm_ignore_interval_ns == 1_500_000


def test_load_reads_a_file_and_names_it(tmp_path: Path) -> None:
    """Unknown options are refused with file and line."""
    path = tmp_path / "um.cfg"
    path.write_text(
        "\ufeffcontext resolver_cache 0\n\nsource trasport_lbtrm_ignore_interval 3\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert (caught.value.file, caught.value.line) == (str(path), 3)
    assert "did you mean transport_lbtrm_ignore_interval?" in str(caught.value)
    path.write_text("context resolver_cache 0\n")
    assert Config.load(path).context_options().resolver_cache is False
    with pytest.raises(OptionError, match="cannot read the configuration"):
        Config.load(tmp_path / "absent.cfg")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not text"):
        Config.load(path)


@pytest.mark.parametrize(
    ("written", "kept"),
    [("LBT-RM", "lbtrm"), ("lbt-ru", "lbtru"), ("LBTRU", "lbtru"), ("TCP", "tcp"), ("lbt-ipc", "lbtipc")],
)
def test_transports_are_written_as_um_writes_them(written: str, kept: str) -> None:
    """Transport names match in any case, with or without the hyphen; the default is LBT-RM."""
    assert Config().source_options(transport=written).transport == kept
    assert Config().source_options().transport == "lbtrm"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sorce transport lbtrm", "did you mean source?"),
        ("source transport broker", "'broker' is not available here; give lbtrm | lbtru | tcp | lbtipc"),
        ("receiver transport_lbtrm_ignore_interval 3", "its scope is source"),
        ("receiver retransmit_initial_sequence_number_request 1", "responds with an empty range"),
        ("source transport_lbtru_transmission_window_limit 1", "never grows"),
        ("event_queue queue_count_enabled 1", "rows are always counted"),
        ("xsp zero_transports_function 1", "there are no extra receive threads"),
        ("context dynamic_fragmentation_reduction 0", "give 1;"),
        ("context transport_lbtrm_rate_interval 0.05", "is too small; give 0.1..1000 ms"),
        (
            "context transport_lbtrm_datagram_max_size 400",
            "give 0 (from the interface MTU) or 500..65507 bytes",
        ),
        ("context transport_lbtrm_datagram_max_size 65535", "is too large"),
        ("context resolver_multicast_address 10.0.0.1", "is not a multicast group"),
        ("context resolver_multicast_address 224.1.2", "is not an IP address"),
        ("context resolver_multicast_port 1.5", "is not a whole number"),
        ("context resolver_cache 2", "give 0 | 1"),
        ("receiver ordered_delivery 2", "give 1 | -1 | 0"),
        ("receiver transport_lbtrm_nak_backoff_interval inf", "is not a number"),
        ("receiver transport_lbtrm_nak_backoff_interval 1e30", "is not a number of sensible size"),
        ("context resolver_cache", "`scope option value`"),
        ("context default_interface my eth", "quotes"),
        ('context default_interface "my eth', "close the quote"),
    ],
)
def test_a_bad_line_is_refused_with_its_place_and_a_way_out(line: str, said: str) -> None:
    """Unknown or ill-typed options are refused with file, line and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        Config.parse(f"# first\n{line}\n", file="um.cfg")
    assert str(caught.value).startswith("um.cfg:2: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("scope", "name", "value"),
    [
        ("context", "resolver_unicast_daemon", "[2001:db8::1]:15380"),
        ("context", "request_tcp_interface", "2001:db8::1"),
        ("context", "response_tcp_interface", "fe80::1/64"),
        ("source", "transport_lbtru_interface", "2001:db8::1"),
        ("receiver", "transport_lbtru_interface", "2001:db8::1"),
    ],
)
def test_ipv6_is_refused_by_name(scope: str, name: str, value: str) -> None:
    """Where only IPv4 is available, an IPv6 address is refused with what to do."""
    with pytest.raises(
        OptionError, match=r"has the IPv6 address .*only IPv4 is supported: give an IPv4 address"
    ):
        getattr(Config(), f"{scope}_options")(**{name: value})


@pytest.mark.parametrize("name", ["address", "incoming_address", "outgoing_address"])
def test_an_ipv6_group_of_topic_resolution_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"resolver_multicast_{name} is an IPv6 group.*only IPv4"):
        Config().context_options(**{f"resolver_multicast_{name}": "ff15::1"})


def test_lbt_rm_takes_ipv6_groups_and_addresses() -> None:
    """Options of LBT-RM take addresses of either family, in any notation; groups are stored in the short one."""
    context = Config().context_options(
        transport_lbtrm_multicast_address_low="FF15:0::7",
        transport_lbtrm_multicast_address_high="ff15::9",
        transport_lbtrm_multicast_sources="10.0.0.1, 2001:DB8::1",
        default_interface="fe80::1%eth1",
        resolver_multicast_interface="fd00:1::/64",
    )
    assert context.transport_lbtrm_multicast_address_low == "ff15::7"
    assert context.multicast_sources == {"10.0.0.1", "2001:db8::1"}
    source = Config().source_options(
        transport_lbtrm_multicast_address="ff15::7", flow_control_receivers_allowed="2001:db8::/32,10.0.0.0/8"
    )
    assert source.transport_lbtrm_multicast_address == "ff15::7"


@pytest.mark.parametrize("group", ["2001:db8::1", "::", "ff15::7%eth0", "ff15::7/64"])
def test_an_ipv6_address_that_is_no_group_is_refused(group: str) -> None:
    with pytest.raises(OptionError, match=r"is not (a multicast group|an IP address)"):
        Config().source_options(transport_lbtrm_multicast_address=group)


def test_a_pool_has_groups_of_one_family() -> None:
    with pytest.raises(OptionError, match="another family"):
        Config().context_options(transport_lbtrm_multicast_address_high="ff15::9")
    with pytest.raises(OptionError, match="is above"):
        Config().context_options(
            transport_lbtrm_multicast_address_low="ff15::9", transport_lbtrm_multicast_address_high="ff15::7"
        )


def test_a_bad_argument_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no source option 'flow_controll'"):
        Config().source_options(flow_controll="min")
    with pytest.raises(OptionError, match="is not a number"):
        Config().source_options(transport_lbtrm_ignore_interval=True)


@pytest.mark.parametrize(
    ("scope", "overrides", "said"),
    [
        ("context", {"transport_lbtrm_multicast_address_low": "224.10.10.20"}, "address_low is above"),
        ("context", {"transport_lbtrm_multicast_address_low": "0.0.0.0"}, "needs groups"),
        ("context", {"transport_lbtrm_source_port_high": 14000}, "port_low is above"),
        ("context", {"resolver_multicast_address": "0.0.0.0"}, "needs a group"),
        ("context", {"transport_lbtrm_multicast_sources": "10.0.0.1, x"}, "'x' is not the address"),
        ("context", {"transport_lbtrm_multicast_sources": "224.1.1.1"}, "is not the address of a source"),
        ("context", {"request_tcp_port_low": 14396}, "request_tcp_port_low is above"),
        ("context", {"transport_lbtru_port_low": 14390}, "transport_lbtru_port_low is above"),
        ("receiver", {"transport_lbtru_port_high": 14300}, "transport_lbtru_port_low is above"),
        ("context", {"request_tcp_activity_timeout": 19999}, "below 20000"),
        ("source", {"transport_lbtrm_sm_minimum_interval": 20000}, "sm_minimum_interval is above"),
        (
            "source",
            {"resolver_advertisement_minimum_initial_interval": 600},
            "minimum_initial_interval is above",
        ),
        ("source", {"flow_control": "tagged"}, "needs a group"),
        (
            "source",
            {"flow_control_without_receivers": "publish", "flow_control_group_minimum_size": 2},
            "waits for no receiver",
        ),
        ("receiver", {"resolver_query_minimum_initial_interval": 600}, "minimum_initial_interval is above"),
    ],
)
def test_contradictions_are_refused(scope: str, overrides: dict[str, str | int], said: str) -> None:
    """A reversed pool and other impossible combinations are errors."""
    with pytest.raises(OptionError, match=said):
        getattr(Config(), f"{scope}_options")(**overrides)


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("transport_lbtrm_datagram_max_size", 65507),
        ("transport_lbtru_datagram_max_size", 65507),
        ("transport_tcp_datagram_max_size", 65535),
    ],
)
def test_the_datagram_maximum_of_each_transport_has_its_range(name: str, largest: int) -> None:
    """UM-46: 500 bytes at least, and at most what a UDP datagram carries, or 65535 over TCP."""
    for size in (500, largest):
        assert getattr(Config().context_options(**{name: size}), f"{name}_bytes") == size
    for size in (499, largest + 1):
        with pytest.raises(OptionError, match=name):
            Config().context_options(**{name: size})


def test_defaults_have_no_warnings() -> None:
    """Our defaults satisfy every relation that the vendor requires; Ultra Messaging's own do not."""
    assert Config().lint() == []


def test_a_measured_ignore_interval_is_in_no_relation() -> None:
    """C8: a measured ignore interval follows the round trip, so only a configured one can violate the relation. With
    Ultra Messaging's 500 ms, against a back-off of 200 ms, the check reports it.
    """
    (warning,) = Config.parse("source transport_lbtrm_ignore_interval 500").lint()
    assert warning.options[0] == "transport_lbtrm_ignore_interval"
    line = "receiver transport_lbtrm_nak_backoff_interval 100"
    assert Config.parse(line).lint() == []
    (warning,) = Config.parse(f"{line}\nsource recovery_timing fixed").lint()
    assert warning.options[0] == "transport_lbtrm_ignore_interval"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("receiver transport_lbtrm_nak_generation_interval 300", "transport_lbtrm_nak_generation_interval"),
        ("source transport_lbtrm_ignore_interval 500", "transport_lbtrm_ignore_interval"),
        (
            "receiver transport_lbtrm_nak_initial_backoff_interval 300",
            "transport_lbtrm_nak_initial_backoff_interval",
        ),
        ("context transport_lbtrm_retransmit_rate_limit 1000000000", "transport_lbtrm_retransmit_rate_limit"),
        ("receiver otr_request_maximum_interval 20000", "otr_request_maximum_interval"),
        ("context response_tcp_deletion_timeout 9000", "otr_request_maximum_interval"),
        ("context transport_lbtrm_retransmit_rate_limit 0", "transport_lbtrm_retransmit_rate_limit"),
        (
            "source transport_topic_sequence_number_info_active_threshold 29",
            "transport_topic_sequence_number_info_active_threshold",
        ),
        ("receiver transport_lbtrm_activity_timeout 12500", "transport_lbtrm_activity_timeout"),
        ("receiver delivery_control_loss_check_interval 2501", "transport_lbtrm_nak_generation_interval"),
        ("receiver transport_lbtrm_activity_timeout 29999", "transport_lbtrm_activity_timeout"),
        ("receiver transport_lbtru_nak_generation_interval 300", "transport_lbtru_nak_generation_interval"),
        ("source transport_lbtru_ignore_interval 500", "transport_lbtru_ignore_interval"),
        (
            "receiver transport_lbtru_nak_initial_backoff_interval 300",
            "transport_lbtru_nak_initial_backoff_interval",
        ),
        ("context transport_lbtru_retransmit_rate_limit 0", "transport_lbtru_retransmit_rate_limit"),
        ("receiver transport_lbtru_activity_timeout 29999", "transport_lbtru_activity_timeout"),
        (
            "source late_join 1\nreceiver retransmit_request_message_timeout 60000",
            "retransmit_request_message_timeout",
        ),
        (
            "source late_join 1\nreceiver use_otr 1\nreceiver otr_request_maximum_interval 20000",
            "otr_request_maximum_interval",
        ),
        (
            "receiver transport_lbtru_acknowledgement_interval 6000",
            "transport_lbtru_acknowledgement_interval",
        ),
        (
            "source flow_control min\nreceiver recovery_timing fixed\nsource transport_lbtrm_ignore_interval 100",
            "flow_control_receiver_window",
        ),
    ],
)
def test_lint_finds_each_broken_relation(line: str, options: str) -> None:
    """Each vendor relation, violated alone, gives a warning that names the option."""
    warnings = Config.parse(line).lint()
    assert any(options in warning.options for warning in warnings)
    assert all(name in str(warning) for warning in warnings for name in warning.options[:1])


def test_flow_control_over_fixed_receivers_needs_their_window() -> None:
    """Fixed receivers report only a window that was set, so a set window or no flow control gives no warning."""
    fixed = "receiver recovery_timing fixed\nsource transport_lbtrm_ignore_interval 100"
    for rest in (
        "source flow_control none",
        "source flow_control min\nreceiver flow_control_receiver_window 65536",
    ):
        warnings = Config.parse(f"{fixed}\n{rest}").lint()
        assert all("flow_control_receiver_window" not in warning.options for warning in warnings)


def test_lint_of_a_load_knows_the_window_the_vendor_computes() -> None:
    """80,000 datagrams/s of 600 bytes and 0.69 s give a window of 33 MB."""
    config = Config.parse("source transport_lbtrm_transmission_window_size 33119999")
    arguments = (config.context_options(), config.source_options(), config.receiver_options())
    (window,) = lint_load(
        *arguments, peak_bytes_per_second=48_000_000, average_bytes_per_second=10**9, round_trip_ns=20_000_000
    )
    assert "33120000 or more" in str(window)
    (limit,) = lint_load(*arguments, peak_bytes_per_second=1000, average_bytes_per_second=1_000_000)
    assert "800000 or less" in str(limit)
    *_, buffer = lint_load(
        *arguments, peak_bytes_per_second=1000, average_bytes_per_second=10**9, subscribers=20
    )
    assert "3000000 or more for 20 subscribers" in str(buffer)


def test_derived_context_values() -> None:
    options = Config().context_options(
        default_interface="eth1",
        resolver_multicast_outgoing_address="224.9.9.9",
        resolver_multicast_incoming_port=5,
    )
    assert options.interface == "eth1"
    assert options.resolver_outgoing == ("224.9.9.9", 12965)
    assert options.resolver_incoming == ("224.9.10.11", 5)
    assert Config().receiver_options().effective_preactivity_timeout_ns == 30_000_000_000


def test_the_documentation_is_up_to_date() -> None:
    """W10: docs/options.md is what `python -m umstack.config` prints."""
    assert (REPOSITORY / "docs/options.md").read_text() == render_options_markdown()


def test_keyword_types_are_those_of_the_tables() -> None:
    """umstack/config/keywords.py is generated."""
    assert (REPOSITORY / "umstack/config/keywords.py").read_text() == render_keywords()

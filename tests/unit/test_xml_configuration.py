"""Ultra Messaging's XML configuration files: templates, applications, contexts, topics, and what they restrict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.loopback import open_context
from umstack.cli import command as umstack
from umstack.config import Config, FindingKind, Scope, examine
from umstack.errors import ConfigError, OptionError

DOCUMENT = """<?xml version="1.0" encoding="UTF-8" ?>
<um-configuration version="1.0">
  <license format="string">ignored</license>
  <templates>
    <template name="all">
      <options type="context">
        <option name="resolver_multicast_port" default-value="12000"/>
        <option name="resolver_multicast_address" default-value="239.1.1.1"/>
      </options>
      <options type="source">
        <option name="late_join" default-value="1"/>
        <option name="implicit_batching_minimum_length" default-value="1"/>
      </options>
    </template>
    <template name="wide">
      <options type="source"><option name="implicit_batching_minimum_length" default-value="8000"/></options>
      <options type="receiver"><option name="ordered_delivery" default-value="0"/></options>
    </template>
  </templates>
  <applications>
    <application name="ticker" template="all">
      <contexts>
        <context name="fast">
          <options type="context"><option name="resolver_multicast_port" default-value="13000"/></options>
          <sources>
            <topic topicname="orders" template="wide">
              <options type="source"><option name="late_join" default-value="0"/></options>
            </topic>
            <topic pattern="^trade"><options type="source">
              <option name="transport_lbtrm_multicast_address" default-value="239.1.1.7"/>
            </options></topic>
          </sources>
          <receivers order="allow,deny">
            <topic pattern="^trade" rule="allow"/>
            <topic pattern="^trade[.]secret" rule="deny"/>
          </receivers>
          <wildcard-receivers order="deny,allow"><wildcard-receiver pattern="^x" rule="deny"/></wildcard-receivers>
        </context>
        <context/>
      </contexts>
      <event-queues><event-queue>
        <options type="event-queue"><option name="queue_size_warning" default-value="5"/></options>
      </event-queue></event-queues>
    </application>
    <application name="other"><contexts><context>
      <options type="context">
        <option name="resolver_multicast_port" default-value="12965" order="allow,deny">
          <allow> 12965 </allow><allow>12966</allow>
        </option>
      </options>
      <options type="receiver"><option name="ordered_delivery"><deny>0</deny></option></options>
    </context></contexts></application>
  </applications>
</um-configuration>
"""


def load(**chosen: str) -> Config:
    """The configuration of an application and context."""
    return Config.parse(DOCUMENT, "um.xml", **chosen)


def test_inner_elements_win_over_templates() -> None:
    """The template of the application, then the context's own options; each setting has its line as origin."""
    fast, plain = load(application="ticker", context="fast"), load(application="ticker")
    assert fast.context_options().resolver_multicast_port == 13000
    assert plain.context_options().resolver_multicast_port == 12000
    assert fast.context_options().resolver_multicast_address == "239.1.1.1"
    assert fast.source_options().late_join
    setting = fast.get(Scope.CONTEXT, "resolver_multicast_port")
    assert setting is not None
    assert setting.origin == "um.xml:24" == f"um.xml:{DOCUMENT[: DOCUMENT.index('13000')].count(chr(10)) + 1}"


def test_topics_have_own_options() -> None:
    """By name or pattern, with templates; an option by name wins over them."""
    config = load(application="ticker", context="fast")
    orders, trades = (config.of_topic(Scope.SOURCE, one).source_options() for one in ("orders", "trade.1"))
    assert (orders.late_join, orders.implicit_batching_minimum_length_bytes) == (False, 8000)
    assert (trades.late_join, trades.implicit_batching_minimum_length_bytes) == (True, 1)
    assert trades.transport_lbtrm_multicast_address == "239.1.1.7"
    assert config.of_topic(Scope.SOURCE, "else").source_options() == config.source_options()
    named = config.with_options(Scope.SOURCE, {"late_join": 1})
    assert named.of_topic(Scope.SOURCE, "orders").source_options().late_join
    assert config.of_topic(Scope.SOURCE, "orders").source_options(late_join=1).late_join


def test_denied_topics_are_refused() -> None:
    """The kind of rule that `order` names last decides, as the vendor documents."""
    config = load(application="ticker", context="fast")
    config.of_topic(Scope.RECEIVER, "trade.1")
    for topic in ("quote", "trade.secret.1"):
        with pytest.raises(OptionError, match=f"um.xml:33 denies receiver topic '{topic}'"):
            config.of_topic(Scope.RECEIVER, topic)
    config.of_topic(Scope.WILDCARD_RECEIVER, "^y")
    with pytest.raises(OptionError, match="denies wildcard_receiver topic"):
        config.of_topic(Scope.WILDCARD_RECEIVER, "^x")


def test_contexts_are_denied_with_blanks_in_the_order() -> None:
    """`order` of contexts may have blanks, as that of topics and values may."""
    application = '<applications><application><contexts order="{}"/></application></applications>'
    text = f'<um-configuration version="1.0">{application}</um-configuration>'
    Config.parse(text.format("deny, allow"))
    for order in ("allow,deny", " allow, deny "):
        with pytest.raises(ConfigError, match="denies a context without a name"):
            Config.parse(text.format(order))
    with pytest.raises(ConfigError, match="the file has no application"):
        Config.parse('<um-configuration version="1.0"/>')


def test_denied_values_are_refused() -> None:
    """Only listed values pass allow,deny; a denied one never passes."""
    config = load(application="other")
    assert config.context_options().resolver_multicast_port == 12965
    assert config.context_options(resolver_multicast_port=12966).resolver_multicast_port == 12966
    with pytest.raises(OptionError, match="must not be 12967") as error:
        config.context_options(resolver_multicast_port=12967)
    assert error.value.hint == "it allows 12965, 12966"
    with pytest.raises(OptionError, match="ordered_delivery must not be 0"):
        config.receiver_options(ordered_delivery=0)
    assert config.receiver_options(ordered_delivery=-1).ordered_delivery


def test_an_application_is_chosen(tmp_path: Path) -> None:
    """By argument or behind `#`; without a name, the file must leave no choice."""
    file = tmp_path / "um.xml"
    file.write_text(DOCUMENT)
    assert Config.load(f"{file}#other").context_options().resolver_multicast_port == 12965
    assert Config.load(file, application="ticker").event_queue_options().queue_size_warning == 5
    with pytest.raises(ConfigError, match="several applications") as error:
        Config.load(file)
    assert "other, ticker" in str(error.value.hint)
    with pytest.raises(ConfigError, match="no application 'none'"):
        Config.load(file, application="none")
    with pytest.raises(OptionError, match="has no applications"):
        Config.parse("source late_join 1", application="ticker")
    hashed = tmp_path / "um#x.cfg"
    hashed.write_text("source late_join 1")
    assert Config.load(hashed).source_options().late_join


def wrong(text: str) -> tuple[int, str]:
    """The line and message of the error about a document."""
    with pytest.raises(ConfigError) as error:
        Config.parse(text, "um.xml")
    return error.value.line, error.value.message


HEAD = "<um-configuration>\n<applications>\n"
OPTION = '<application><contexts><context><options type="source">\n{}\n</options></context></contexts></application>'
TAIL = "\n</applications></um-configuration>"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("<html/>", 1, "has no element <html>"),
        (HEAD + "<aplication/>" + TAIL, 3, "<applications> has no element <aplication>"),
        (HEAD + '<application nam="x"/>' + TAIL, 3, "<application> has no attribute nam"),
        (HEAD + '<application template="x"/>' + TAIL, 3, "no template 'x'"),
        (HEAD + "</applications>", 3, "no element found"),
        (HEAD + "\n\n</application>", 5, "mismatched tag"),
        (HEAD + OPTION.format('<option default-value="1"/>') + TAIL, 4, "<option> has no name"),
        (HEAD + OPTION.format('<option name="late_joint"/>') + TAIL, 4, '"late_joint">: there is no source option'),
        (HEAD + OPTION.format('<option name="late_join" default-value="x"/>') + TAIL, 4, '<option name="late_join">'),
        (HEAD + OPTION.format('<option name="late_join" order="allow"/>') + TAIL, 4, 'order is "allow"'),
        (HEAD + OPTION.format("late_join 1") + TAIL, 4, "has no text"),
        (HEAD + '<application><contexts><context><sources><topic pattern="("/></sources></context></contexts>'
         "</application>" + TAIL, 3, "not a regular expression"),
        (HEAD + '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="a.xml"/>' + TAIL, 3, "not included"),
        ('<!DOCTYPE d [\n<!ENTITY a "b">\n]>' + HEAD + TAIL, 2, "the entity a is declared"),
        ('<!DOCTYPE d [\n<!ENTITY a SYSTEM "file:///etc/passwd">]>' + HEAD + TAIL, 2, "the entity a is declared"),
    ],
)  # fmt: skip
def test_errors_name_line_and_element(text: str, line: int, message: str) -> None:
    """Whatever is wrong, the error has the line of the element."""
    found, said = wrong(text)
    assert (found, message in said) == (line, True), said


def test_check_reports_each_option_once(tmp_path: Path) -> None:
    """`config check` lists wrong and absent options by line, in templates that are used twice, too."""
    text = DOCUMENT.replace('name="late_join" default-value="1"', 'name="late_joint" default-value="1"')
    text = text.replace('<option name="implicit_batching_minimum_length" default-value="1"/>',
                        '<option name="smart_src_user_buffer_count" default-value="2"/>')  # fmt: skip
    file = tmp_path / "um.xml"
    file.write_text(text)
    _, findings = examine(text, "um.xml")
    faults = [(one.kind, one.line) for one in findings if one.kind is not FindingKind.WARNING]
    assert faults == [(FindingKind.WRONG, 11), (FindingKind.ABSENT, 12)]
    done = CliRunner().invoke(umstack, ["config", "check", str(file), "--json"])
    (found,) = json.loads(done.stdout)["files"]
    assert done.exit_code == 1
    assert [one["line"] for one in found["findings"] if one["kind"] == "wrong"] == [11]


def test_contradictions_of_a_topic_are_reported() -> None:
    """The relation is wrong only for the topic's own options."""
    text = DOCUMENT.replace(
        '<option name="transport_lbtrm_multicast_address" default-value="239.1.1.7"/>',
        '<option name="transport_lbtrm_multicast_address" default-value="10.0.0.1"/>',
    )
    config, _ = examine(DOCUMENT, "um.xml")
    assert config.context_options().resolver_multicast_port == 13000
    _, findings = examine(text, "um.xml")
    assert any("10.0.0.1" in one.message for one in findings)


def test_the_vendors_types_of_hot_failover_are_absent() -> None:
    """HFX options have a reason; a named event queue has one, too."""
    text = HEAD + OPTION.replace("source", "hfx").format('<option name="ordered_delivery"/>') + TAIL
    _, (finding, *_) = examine(text, "um.xml")
    assert (finding.kind, finding.line) == (FindingKind.ABSENT, 4)
    queue = '<application><event-queues><event-queue name="q"><options type="event-queue"/></event-queue>'
    _, (finding, *_) = examine(HEAD + queue + "</event-queues></application>" + TAIL, "um.xml")
    assert (finding.kind, finding.line) == (FindingKind.ABSENT, 3)


def test_a_context_uses_the_options_of_its_topics(tmp_path: Path) -> None:
    """Context(config=...) applies them to sources and receivers."""
    file = tmp_path / "um.xml"
    file.write_text(DOCUMENT)
    config = Config.load(file, application="ticker", context="fast")
    with open_context(config=config) as context:
        assert context.source("orders").options.implicit_batching_minimum_length_bytes == 8000
        assert context.source("else").options.implicit_batching_minimum_length_bytes == 1
        with pytest.raises(OptionError, match="denies receiver topic"):
            context.receiver("quote")
        with pytest.raises(OptionError, match="denies wildcard_receiver"):
            context.wildcard_receiver("^x")

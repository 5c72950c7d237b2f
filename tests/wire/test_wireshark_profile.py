"""The Wireshark profile (packaging/wireshark): its preferences are the stack's defaults, and tshark accepts all of
it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from umstack.config import Scope, find_option

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "packaging" / "wireshark" / "umstack"
SAMPLE = Path(__file__).with_name("wire-sample.pcap")
DEFAULTS = {
    "lbtrm.mc_address_low": (Scope.CONTEXT, "transport_lbtrm_multicast_address_low"),
    "lbtrm.mc_address_high": (Scope.CONTEXT, "transport_lbtrm_multicast_address_high"),
    "lbtrm.dport_low": (Scope.SOURCE, "transport_lbtrm_destination_port"),
    "lbtrm.dport_high": (Scope.SOURCE, "transport_lbtrm_destination_port"),
    "lbtrm.sport_low": (Scope.CONTEXT, "transport_lbtrm_source_port_low"),
    "lbtrm.sport_high": (Scope.CONTEXT, "transport_lbtrm_source_port_high"),
    "lbmr.mc_incoming_address": (Scope.CONTEXT, "resolver_multicast_address"),
    "lbmr.mc_incoming_port": (Scope.CONTEXT, "resolver_multicast_port"),
    "lbmr.mc_outgoing_address": (Scope.CONTEXT, "resolver_multicast_address"),
    "lbmr.mc_outgoing_port": (Scope.CONTEXT, "resolver_multicast_port"),
}

needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def preferences() -> dict[str, str]:
    """Return the protocol preferences of the profile."""
    text = (PROFILE / "preferences").read_text()
    return dict(re.findall(r"^(lb\w+\.\w+): (.+)$", text, re.MULTILINE))


def tshark(home: Path, *arguments: str) -> list[str]:
    """Return the output of tshark with the profile; fails if it reports errors."""
    folder = home / "wireshark" / "profiles" / "umstack"
    if not folder.exists():
        shutil.copytree(PROFILE, folder)
    done = subprocess.run(
        ["tshark", "-C", "umstack", *arguments],
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "XDG_CONFIG_HOME": str(home), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Running as user")]
    assert (done.returncode, complaints) == (0, [])
    return done.stdout.splitlines()


@pytest.mark.parametrize("preference", DEFAULTS)
def test_addresses_and_ports_are_the_options_defaults(preference: str) -> None:
    """Groups and ports of the profile are the defaults of a context."""
    scope, name = DEFAULTS[preference]
    assert preferences()[preference] == str(find_option(scope, name).default)


@needs_tshark
def test_every_preference_is_known(tmp_path: Path) -> None:
    """Tshark rejects unknown preferences and invalid values in options."""
    given = [f"-o{name}:{value}" for name, value in preferences().items()]
    assert len(given) == 14
    assert tshark(tmp_path, *given, "-r", str(SAMPLE), "-c", "1")


@needs_tshark
def test_columns_show_a_recovery(tmp_path: Path) -> None:
    """The columns show NAKed and retransmitted sqns."""
    lines = tshark(tmp_path, "-r", str(SAMPLE))
    assert any(" NAK " in line and "103,104" in line for line in lines), lines
    assert any("DATA(RX) sqn 0x67" in line for line in lines), lines


@needs_tshark
def test_colours_and_buttons_are_filters_that_find(tmp_path: Path) -> None:
    """Each filter compiles, and the filters for a recovery find its packets in the reference capture."""
    colours = re.findall(r"^@([^@]+)@([^@]+)@", (PROFILE / "colorfilters").read_text(), re.MULTILINE)
    buttons = re.findall(
        r'^"TRUE","([^"]+)","([^"]+)"', (PROFILE / "dfilter_buttons").read_text(), re.MULTILINE
    )
    assert (len(colours), len(buttons)) == (8, 4)
    found = {name: len(tshark(tmp_path, "-r", str(SAMPLE), "-Y", text)) for name, text in colours + buttons}
    nothing = {name for name, count in found.items() if count == 0}
    assert nothing <= {"Malformed", "Sequence number not in order"}, found

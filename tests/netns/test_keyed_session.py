"""Attacks on a session with keys by a host without keys are refused and counted by reason, and do not harm
the stream.

The attacks are those of tests/netns/test_hostile_datagrams.py and docs/threat-model.md. A host without keys
can forge addresses and receive every datagram.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.netns.endpoints import GROUP, GROUP_PORT, TOPIC, WAIT_SECONDS, Ends, EndsIn, assert_whole
from tests.netns.test_hostile_datagrams import RATE, Hostile, Scene, Stream
from tests.netns.test_recovery import MakeLab
from tests.tag_oracle import HEAD, session_tag
from umstack.key_file import read_key_file, write_new_key_file
from umstack.lab import Lab
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode
from umstack.scapy import LBTRM, LBTRMSm

RESOLUTION = ("224.9.10.11", 12965)
FAR = 60_000


def keys_in(folder: Path, scope: str = "all") -> dict[str, Any]:
    """Return context options for a new key file in a folder."""
    file = folder / "keys"
    write_new_key_file(file, ["*"])
    return {"authentication_key_file": str(file), "authentication_scope": scope}


class Keyed(Scene):
    """The scene with keys, and the key file, which the hostile host does not have."""

    def __init__(self, stream: Stream, keys: dict[str, Any]) -> None:
        """Record the counters."""
        super().__init__(stream)
        self.file = Path(keys["authentication_key_file"])

    def session_message(self, lead: int, trail: int) -> bytes:
        """Return a session message without a tag."""
        return bytes(self.identity.header() / LBTRMSm(sm_sqn=2**31, lead=lead, trail=trail))


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stream, dict[str, Any]]]:
    """Return a keyed stream that runs for all tests of the file, and a third host that receives it."""
    keys = keys_in(tmp_path_factory.mktemp("keyed"))
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=3))
        ends = Ends(lab, stack)
        subscriber = ends.subscribe(1, context=keys)
        publisher = ends.publish(receivers=1, rate=RATE, context=keys)
        transport = publisher.ask(send=10**9)["stats"]["source_transports"][0]["transport"]
        subscriber.await_received(500)
        with closing(Hostile(lab, 2, transport)) as hostile:
            yield Stream(publisher, subscriber, hostile), keys


@pytest.fixture
def scene(stream: tuple[Stream, dict[str, Any]]) -> Keyed:
    """Return the scene at the start of a test."""
    return Keyed(*stream)


def test_session_messages_that_claim_data_far_ahead(scene: Keyed) -> None:
    """If forged session messages were accepted, they would move the window past missing data and lose that
    data without an event.
    """
    sqn = scene.hostile.overheard().sqn
    forged = [scene.session_message(sqn + FAR + n, sqn + FAR) for n in range(30)]
    scene.hostile.to_group(forged)
    scene.await_received("dgrams_dropped_tag_missing", len(forged))
    scene.assert_unharmed()


def test_session_messages_that_cause_naks(scene: Keyed) -> None:
    """If they were accepted, a lead far ahead and an old trail would make the receiver NAK numbers that were
    never sent.
    """
    sqn = scene.hostile.overheard().sqn
    before = scene.subscriber.ask().counter("receiver_transports", "naks_sent")
    scene.hostile.to_group([scene.session_message(sqn + FAR, sqn)] * 10)
    report = scene.await_received("dgrams_dropped_tag_missing", 10)
    assert report.counter("receiver_transports", "naks_sent") == before
    scene.assert_unharmed()


def test_an_invented_receiver_with_a_closed_window(scene: Keyed) -> None:
    """If the forged receiver were accepted, its status messages would hold the sender back."""
    sqn = scene.hostile.overheard().sqn
    before = scene.publisher.ask()
    scene.hostile.to_publisher([scene.identity.status(sqn, window_bytes=0)] * 20)
    report = scene.await_sent("dgrams_dropped_tag_missing", 20)
    assert report.counter("source_transports", "receivers_known") == 1
    assert scene.sent(report, "status_malformed") == 0
    after = scene.publisher.await_report(lambda now: now["sent"] > before["sent"] + RATE // 2)
    assert after["at"] - before["at"] < 2
    scene.assert_unharmed()


def test_advertisements_of_sources_that_do_not_exist(scene: Keyed) -> None:
    """If forged advertisements were accepted, they would fill the table of receiving sessions."""
    sessions = scene.subscriber.ask().counter("context", "sessions")
    before = scene.subscriber.ask().counter("context", "tr_dgrams_dropped_tag_missing")
    for number in range(700):
        address = LbtrmAddress(scene.identity.source, GROUP, 0x10000 + number, GROUP_PORT, 14390)
        datagram = encode(ResolutionDatagram(advertisements=(Advertisement(TOPIC, number, 60, address),)))
        scene.hostile._forge(*RESOLUTION, [datagram])
        if number % 50 == 49:
            time.sleep(0.01)  # the socket's buffer must not overflow
    report = scene.await_received("tr_dgrams_dropped_tag_missing", 700, "context")
    assert report.counter("context", "sessions") == sessions
    assert before + 700 <= report.counter("context", "tr_dgrams_dropped_tag_missing")
    scene.assert_unharmed()


def test_naks_for_a_whole_window(scene: Keyed) -> None:
    """If it were accepted, one datagram would cause hundreds of retransmissions."""
    sqn = scene.hostile.overheard().sqn
    scene.hostile.to_publisher([scene.identity.nak(*range(sqn - 350, sqn))] * 10)
    report = scene.await_sent("dgrams_dropped_tag_missing", 10)
    assert scene.sent(report, "rxs_sent") == 0
    assert scene.sent(report, "ncfs_sent") == 0
    scene.assert_unharmed()


def test_what_was_overheard_is_replayed_or_changed(scene: Keyed) -> None:
    """A datagram is accepted once; a changed datagram, or one sent by another host, has a wrong tag."""
    real = scene.hostile.overhear()
    scene.hostile.to_group([real] * 500)
    scene.await_received("dgrams_dropped_tag_replayed", 500)
    changed = [real[:at] + bytes([real[at] ^ 1]) + real[at + 1 :] for at in (8, 12, 16, 40, len(real) - 1)]
    scene.hostile.to_group(changed)
    report = scene.await_received("dgrams_dropped_tag_wrong", len(changed))
    assert report.counter("receiver_transports", "duplicate_data") == 0
    scene.hostile.to_publisher([real] * 10)  # a tag made for another purpose
    scene.await_sent("dgrams_dropped_tag_wrong", 10)
    scene.assert_unharmed()


def test_tags_of_other_keys_and_other_times(scene: Keyed) -> None:
    """An unknown key, a known identifier with another key, and the right key at another time are refused."""
    identity = scene.identity
    (_, (key,)) = read_key_file(scene.file).topics[0]
    plain = scene.session_message(1, 1)
    newest = int.from_bytes(scene.hostile.overhear()[-19:-12])

    def tagged(identifier: int, secret: bytes, stamp: int) -> bytes:
        covered = plain + HEAD + bytes([identifier]) + stamp.to_bytes(7)
        session = ((identity.source, identity.nak_port), (GROUP, GROUP_PORT), identity.session_id)
        return covered + session_tag(secret, *session, covered)

    ahead = newest + 500
    scene.hostile.to_group([tagged(key.id + 1, bytes(32), ahead)])
    scene.await_received("dgrams_dropped_tag_key")
    scene.hostile.to_group([tagged(key.id, bytes(32), ahead)])
    scene.await_received("dgrams_dropped_tag_wrong")
    scene.hostile.to_group([tagged(key.id, key.secret, newest - (3600 * 4 << 22))])
    scene.await_received("dgrams_dropped_tag_stale")
    scene.assert_unharmed()


def test_control_messages_with_keys_alone(make_lab: MakeLab, ends_in: EndsIn, tmp_path: Path) -> None:
    """With scope control, DATA needs no trailer but control messages do (NAKs repair losses)."""
    keys = keys_in(tmp_path, "control")
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, context=keys)
    publisher = ends.publish(receivers=1, rate=RATE, context=keys)
    lab.port(1).set(loss=0.02)
    transport = publisher.ask(send=10**9)["stats"]["source_transports"][0]["transport"]
    subscriber.await_received(2_000)
    with closing(Hostile(lab, 2, transport)) as hostile:
        assert hostile.overhear()[-28:-20] != HEAD
        scene = Scene(Stream(publisher, subscriber, hostile))
        forged = LBTRM(nak_port=scene.identity.nak_port, session_id=scene.identity.session_id)
        hostile.to_group([bytes(forged / LBTRMSm(sm_sqn=2**31, lead=2**20, trail=2**20))] * 10)
        scene.await_received("dgrams_dropped_tag_missing", 5)  # some are lost on the way
        hostile.to_publisher([scene.identity.nak(1, 2, 3)] * 10)
        scene.await_sent("dgrams_dropped_tag_missing", 10)
        lab.port(1).set(loss=0)
        scene.assert_unharmed()
        transport = subscriber.ask().received_transport
        assert transport["lost"] > 0
        assert transport["unrecovered_tmo"] == 0


@pytest.mark.parametrize("link", ["socket", "xdp"])
def test_lost_datagrams_are_repaired_with_keys(
    make_lab: MakeLab, ends_in: EndsIn, tmp_path: Path, link: str
) -> None:
    """Data, NAKs, NCFs and retransmissions have tags on sockets and on rings; their sizes fit the path."""
    context = keys_in(tmp_path) | {"link": link}
    lab = make_lab(hosts=2, segmentation="real")
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, context=context)
    publisher = ends.publish(receivers=1, context=context)
    lab.port(1).set(loss=0.02, duplicate=0.02, reorder=0.02)
    publisher.ask(send=20_000)
    report = subscriber.await_received(20_000)
    assert_whole(report, 20_000)
    transport = report.received_transport
    assert transport["lost"] > 100
    assert transport["dgrams_dropped_tag_replayed"] > 100, "duplicates are recognised by their stamps"
    for name in ("missing", "key", "wrong", "stale"):
        assert transport[f"dgrams_dropped_tag_{name}"] == 0
    final = publisher.ask(stop=WAIT_SECONDS)
    assert final["drained"]
    assert final.sent_transport["dgrams_dropped_tag_wrong"] == 0
    assert final.sent_transport["rxs_sent"] > 0
    assert final.counter("link_counters", "oversize_sends") == 0


def test_keys_are_rotated_under_a_stream(make_lab: MakeLab, ends_in: EndsIn, tmp_path: Path) -> None:
    """A second key is first accepted, then used for tags, then the only key; nothing is lost, and the old key
    is refused.
    """
    keys = keys_in(tmp_path)
    file = Path(keys["authentication_key_file"])
    old, resolution = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    new = f"topic * 2 {'5a' * 32}"
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, context=keys)
    publisher = ends.publish(receivers=1, rate=RATE, context=keys)
    transport = publisher.ask(send=10**9)["stats"]["source_transports"][0]["transport"]
    subscriber.await_received(500)
    with closing(Hostile(lab, 2, transport)) as hostile:
        scene = Scene(Stream(publisher, subscriber, hostile))
        before = hostile.overhear()
        assert before[-20] == 1
        for lines in ([old, new, resolution], [new, old, resolution], [new, resolution]):
            file.write_text("\n".join(lines) + "\n")
            time.sleep(2.5)  # both ends read the file once per second
            scene.assert_unharmed()
        assert hostile.overhear()[-20] == 2
        hostile.to_group([before] * 10)
        scene.await_received("dgrams_dropped_tag_key", 10)
        scene.assert_unharmed()

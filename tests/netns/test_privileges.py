"""AF_XDP with privileges really dropped: as root, with the exact capabilities, and through a broker; and the effects
when a process or the broker is killed, missing, or not allowed."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import umstack_xdp as xdp
from tests.kernels import needs_passed_rings
from tests.netns.contexts import UNLIMITED, Member
from tests.waiting import collect, wait_for
from umstack.lab import Host, Lab
from umstack_xdp import broker as xdp_broker
from umstack_xdp.broker_client import ask_broker, open_brokered_rings
from umstack_xdp.broker_protocol import MESSAGE_MAX_BYTES, OpenRequest, encode_request
from umstack_xdp.listening import listen_at
from umstack_xdp.xsk import unavailable

NOBODY, OTHER_USER = 65534, 65533
NEEDED = "+net_raw,+net_admin,+bpf"
SMALL_MEMLOCK_BYTES = 8 << 20
"""The usual limit of locked memory, which is below the frames of one queue."""
JOINING_DATAGRAMS = 4

# Echoes messages and answers questions, one JSON object per line.
APPLICATION = """
import json, sys, time
from pathlib import Path
import umstack, umstack_xdp as xdp
from umstack._engine.ring_link import open_link
path, link, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def show(**fields):
    print(json.dumps(fields), flush=True)
if link == "walk":
    found = open_link("auto", xdp.find_interface("eth0"), xdp.RingSettings(), Path(path))
    show(steps=[step.as_json() for step in found.steps])
    found.close()
    sys.exit()
try:
    context = umstack.Context("eth0", link=link, link_xdp_broker=path, **options)
except umstack.UmError as error:
    show(error=type(error).__name__, message=str(error), errno=error.errno)
    sys.exit(1)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
def echo(count, topic):
    with context.receiver(f"there/{topic}") as receiver, context.source(f"back/{topic}", flow_control="min") as source:
        source.wait_connected(timeout=10)
        while count:
            batch = receiver.poll(count, 0.05).messages()
            count -= len(batch)
            if batch:
                source.send_many([message.data for message in batch], flush=True)
        sys.stdin.readline()
with context:
    show(mode=context.link_mode, effective=int(status["CapEff"], 16), bare=status["NoNewPrivs"].strip() == "1")
    for line in iter(sys.stdin.readline, ""):
        if line.startswith("echo"):
            echo(int(line.split()[1]), line.split()[2])
        stats = context.stats()
        show(rings=stats["rings"], link_counters=stats["link_counters"])
"""

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def without_privileges(uid: int = NOBODY) -> list[str]:
    """Return the command that permanently drops every capability of the program that it runs."""
    return privileges("-all", uid)


def privileges(capabilities: str, uid: int = NOBODY) -> list[str]:
    """Return the command that runs a program as nobody with exactly these capabilities."""
    chosen = capabilities if capabilities == "-all" else f"-all,{capabilities}"
    return [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        "--no-new-privs",
        f"--inh-caps={chosen}",
        f"--ambient-caps={chosen}",
        f"--bounding-set={chosen}",
    ]


class Application:
    """The program above in its own process."""

    def __init__(self, host: Host, path: Path, command: list[str], link: str, **options: Any) -> None:
        """Start it and read its first line."""
        argv = [*command, sys.executable, "-c", APPLICATION, str(path), link, json.dumps(options)]
        self.process = host.run(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        self.first = self.read()

    def read(self) -> dict[str, Any]:
        """Return its next answer."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        assert line, f"the application ended with {self.process.wait()}"
        said: dict[str, Any] = json.loads(line)
        return said

    def command(self, words: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def ask(self, words: str) -> dict[str, Any]:
        """Send a command and return the answer."""
        self.command(words)
        return self.read()

    def end(self, *, kill: bool = False) -> None:
        """End it by its input, or kill it."""
        if kill:
            self.process.kill()
        self.process.communicate()


@contextmanager
def application(
    host: Host, path: Path, command: list[str], link: str = "xdp", **options: Any
) -> Iterator[Application]:
    """Run the program, and end it afterwards."""
    started = Application(host, path, command, link, **{**UNLIMITED, **options})
    try:
        yield started
    finally:
        started.end()


class BrokerProcess:
    """`umstack broker` on a host."""

    def __init__(self, host: Host, path: Path, *options: str) -> None:
        """Start it and wait until it listens."""
        self.host, self.path = host, path
        argv = [sys.executable, "-m", "umstack", "broker", "--path", str(path), "--json", *options]
        self.process = host.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        wait_for(lambda: reachable(path), "the broker")
        host.call(lambda: ask_broker(path))

    def descriptors(self) -> list[str]:
        """Return its open descriptors."""
        found = []
        for one in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                found.append(str(one.readlink()).split(":")[0])
        return sorted(found)

    def end(self) -> dict[str, Any]:
        """Stop it as systemd would; return its summary."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=10)
        assert self.process.returncode == 0
        summary: dict[str, Any] = json.loads(out)
        return summary


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder for sockets that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="umstack-broker-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def broker(shared_lab: Lab, folder: Path) -> Iterator[BrokerProcess]:
    """Run a broker on the first host that serves the user nobody."""
    started = BrokerProcess(shared_lab.hosts[0], folder / "xdp.sock", "--allow-user", str(NOBODY))
    yield started
    if started.process.poll() is None:
        started.process.terminate()
    started.process.communicate()


def test_the_broker_keeps_what_it_needs(shared_lab: Lab, broker: BrokerProcess) -> None:
    """Root's other capabilities are dropped permanently and system calls are filtered; the doctor reports
    both.
    """
    lines = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    kept = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 38 | 1 << 39
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert int(status[name], 16) & ~kept == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    facts = shared_lab.hosts[0].call(lambda: ask_broker(broker.path))
    assert facts.confinement == dict.fromkeys(
        ("capabilities", "no_new_privileges", "landlock", "seccomp"), "in force"
    )


FORBIDDEN = """
import os, pathlib, socket, sys
from umstack_xdp.confinement import confine
folder = pathlib.Path(sys.argv[1])
(folder / "there").touch()
said = confine([folder])
assert set(said.values()) == {"in force"}, said
def refused(what):
    try:
        what()
    except OSError:
        return True
    return False
print(
    refused(lambda: (folder / "new").touch()),
    refused(lambda: pathlib.Path("/root").iterdir().__next__()),
    refused(lambda: os.execv("/bin/true", ["true"])),
    refused(os.fork),
    refused(lambda: os.setuid(0)),
    refused(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    (folder / "there").unlink() is None,
    pathlib.Path("/proc/self/comm").read_text() != "",
)
"""


def test_a_confined_process_cannot_do_harm(folder: Path) -> None:
    """A confined process cannot write files, read homes, run programs or create processes; it can remove the
    broker's socket.
    """
    done = subprocess.run([sys.executable, "-c", FORBIDDEN, str(folder)], capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 8, done.stdout + done.stderr


def program_is_gone(host: Host) -> bool:
    """Return true if no XDP program is on the host's interface."""
    return host.call(lambda: xdp.occupants("eth0")) == ()


def exchange(app: Application, peer_host: Host, count: int = 300) -> dict[str, Any]:
    """Send messages to it and get them back in order; return its counters."""
    peer = Member(peer_host, link="socket")
    try:
        topic = time.monotonic_ns()
        with peer.receiver(f"back/{topic}") as receiver, peer.source(f"there/{topic}") as source:
            app.command(f"echo {count} {topic}")
            source.wait_connected(timeout=10)
            sent = [b"%06d" % i + bytes(994) for i in range(count)]
            source.send_many(sent, flush=True)
            assert [message.data for message in collect(receiver, count, 20)] == sent
            return app.ask("all has come")
    finally:
        peer.context.close()


def went_by_rings(counters: dict[str, Any], count: int = 300) -> bool:
    """Return true if the exchange used rings both ways, except for datagrams between a join and its rule."""
    return (
        sum(counters["rings"]["received_by_queue"]) > count // 2
        and counters["link_counters"]["ring_kernel_path"] <= JOINING_DATAGRAMS
        and counters["link_counters"]["datagrams_sent"] > count // 2
        and counters["link_counters"]["send_errors"] == 0
    )


# ---- with its own privileges ----


@pytest.mark.parametrize(
    ("command", "held", "options"),
    [
        ([], None, {}),
        (privileges(f"{NEEDED},+ipc_lock"), 4, {}),
        (privileges(NEEDED), 3, {"link_xdp_receive_frames": 64}),
    ],
    ids=["root", "capabilities", "capabilities and few frames"],
)
def test_who_has_the_capabilities_needs_no_broker(
    shared_lab: Lab, folder: Path, command: list[str], held: int | None, options: dict[str, Any]
) -> None:
    """AF_XDP opens for root, or with exactly CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF and either CAP_IPC_LOCK
    or frames within the limit of locked memory.
    """
    host, peer, _ = shared_lab.hosts
    limited = ["prlimit", f"--memlock={SMALL_MEMLOCK_BYTES}", *command]
    with application(host, folder / "none", limited, **options) as app:
        assert app.first.get("mode") == "native", app.first
        if held is not None:
            assert app.first["effective"].bit_count() == held
        assert went_by_rings(exchange(app, peer))


def test_too_little_locked_memory_is_named(shared_lab: Lab, folder: Path) -> None:
    """The three capabilities without CAP_IPC_LOCK under the usual limit are refused, with the reason."""
    command = ["prlimit", f"--memlock={SMALL_MEMLOCK_BYTES}", *privileges(NEEDED)]
    with application(shared_lab.hosts[0], folder / "none", command) as app:
        assert "CAP_IPC_LOCK" in app.first["message"]
    assert program_is_gone(shared_lab.hosts[0])


@pytest.mark.parametrize("lacking", ["net_raw", "net_admin", "bpf"])
def test_each_of_the_capabilities_is_needed(shared_lab: Lab, folder: Path, lacking: str) -> None:
    """Without one of the three capabilities a forced link fails and names it; nothing stays attached."""
    rest = f"{NEEDED},+ipc_lock".replace(f"+{lacking},", "").replace(f",+{lacking}", "")
    with application(shared_lab.hosts[0], folder / "none", privileges(rest)) as app:
        assert app.first["error"] == "PermissionNeeded"
        assert f"lacks CAP_{lacking.upper()}" in app.first["message"]
    assert program_is_gone(shared_lab.hosts[0])


def test_without_privileges_and_broker(shared_lab: Lab, folder: Path) -> None:
    """W7: the ladder ends at sockets and keeps the reason; a forced link fails and names the capabilities."""
    host = shared_lab.hosts[0]
    with application(host, folder / "none", without_privileges(), "walk") as app:
        *refused, last = app.first["steps"]
        assert (last["mode"], last["errno"]) == ("socket", 0)
        assert [step["mode"] for step in refused] == ["zero-copy", "native", "generic"]
        assert not any(step["tried"] for step in refused)
        assert all("lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF" in step["reason"] for step in refused)
        assert all("start `umstack broker`" in step["remedy"] for step in refused)
    with application(host, folder / "none", without_privileges()) as app:
        assert app.first["error"] == "PermissionNeeded"
        assert "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF" in app.first["message"]


# ---- through the broker ----


@needs_passed_rings
def test_an_application_without_privileges_has_rings_by_the_broker(
    shared_lab: Lab, broker: BrokerProcess
) -> None:
    """A process without capabilities receives and sends over AF_XDP under a limit below its frames;
    everything is returned and can be used again.
    """
    host, peer, _ = shared_lab.hosts
    before = broker.descriptors()
    for _ in range(2):
        with application(
            host, broker.path, ["prlimit", f"--memlock={SMALL_MEMLOCK_BYTES}", *without_privileges()]
        ) as app:
            assert app.first == {"mode": "native", "effective": 0, "bare": True}
            counters = exchange(app, peer)
            assert went_by_rings(counters)
            assert counters["rings"]["program_attached"] is True
            assert counters["rings"]["broker_lost"] == ""
        assert program_is_gone(host)
    wait_for(lambda: broker.descriptors() == before, "the broker's descriptors")
    # Zero copy was not tried: the driver is not on the ladder's list.
    summary = broker.end()
    confinement = summary.pop("confinement")
    assert summary == {"path": str(broker.path), "lent": 2, "returned": 2, "refused": 0}
    assert set(confinement.values()) == {"in force"}, confinement
    assert not broker.path.exists()


@needs_passed_rings
def test_the_broker_loads_the_program_with_times(shared_lab: Lab, broker: BrokerProcess) -> None:
    """Receive timestamps: a confined broker loads a program for one device, and the application finds the times in
    borrowed frames."""
    host, peer, _ = shared_lab.hosts
    with application(host, broker.path, without_privileges(), link_xdp_nic_timestamps=1) as app:
        counters = exchange(app, peer)
        assert went_by_rings(counters)
        assert counters["rings"]["frame_times"] == "nic"
        assert counters["rings"]["nic_clock"].startswith("none: the NIC has no clock")
        assert counters["link_counters"]["ring_times_missing"] == 0


@needs_passed_rings
def test_every_queue_is_lent_and_jumbo_frames_too(make_lab: Callable[..., Lab], folder: Path) -> None:
    """Rings of two queues with frames of several buffers are mapped from descriptors."""
    lab = make_lab(hosts=2, queues=2, mtu=9000)
    with ExitStack() as stack:
        broker = BrokerProcess(lab.hosts[0], folder / "xdp.sock", "--allow-group", str(NOBODY))
        stack.callback(broker.process.communicate)
        stack.callback(broker.process.terminate)
        app = stack.enter_context(application(lab.hosts[0], broker.path, without_privileges()))
        counters = exchange(app, lab.hosts[1])
        assert went_by_rings(counters, 20)
        assert (counters["rings"]["queues"], counters["rings"]["multi_buffer"]) == (2, True)


@needs_passed_rings
def test_a_killed_application_leaves_nothing(shared_lab: Lab, broker: BrokerProcess) -> None:
    """After kill -9 of the application, the broker removes program and rules immediately, and the next
    application gets the interface.
    """
    host, peer, _ = shared_lab.hosts
    before = broker.descriptors()
    with application(host, broker.path, without_privileges()) as app:
        exchange(app, peer)
        app.end(kill=True)
        wait_for(lambda: program_is_gone(host), "the program's end")
        wait_for(lambda: broker.descriptors() == before, "the broker's descriptors")
        with application(host, broker.path, without_privileges()) as another:
            assert another.first["mode"] == "native"


@needs_passed_rings
def test_a_killed_broker_takes_its_programs_along(shared_lab: Lab, broker: BrokerProcess) -> None:
    """After kill -9 of the broker, the kernel removes the program; the application continues over sockets and
    reports the reason.
    """
    host, peer, _ = shared_lab.hosts
    with application(host, broker.path, without_privileges()) as app:
        assert went_by_rings(exchange(app, peer))
        broker.process.kill()
        broker.process.wait()
        wait_for(lambda: program_is_gone(host), "the program's end")
        rings = app.ask("stats")["rings"]
        assert rings["program_attached"] is False
        assert str(broker.path) in rings["broker_lost"]
        counters = exchange(app, peer)
        assert counters["link_counters"]["ring_kernel_path"] > 0
    # The socket's file still exists: a new broker replaces it, and a link reports that nobody answers.
    with application(host, broker.path, without_privileges()) as app:
        assert "Connection refused" in app.first["message"]
    with application(host, broker.path, without_privileges(), "walk") as app:
        *refused, last = app.first["steps"]
        assert last["mode"] == "socket"
        assert [(step["mode"], step["errno"]) for step in refused[1:]] == [
            ("native", errno.ECONNREFUSED),
            ("generic", errno.ECONNREFUSED),
        ]
    again = BrokerProcess(host, broker.path, "--allow-user", str(NOBODY))
    with application(host, broker.path, without_privileges()) as app:
        assert app.first["mode"] == "native"
    again.end()


def reachable(path: Path) -> bool:
    """Return true if a process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0


def test_the_doctor_knows_the_broker(shared_lab: Lab, broker: BrokerProcess) -> None:
    """The doctor shows a process without privileges the mode that the broker opens for it."""
    doctor = [*without_privileges(), sys.executable, "-m", "umstack", "doctor", "eth0", "--json"]
    for path, expected in ((broker.path, "native"), (Path("/nowhere"), "socket")):
        asked = shared_lab.hosts[0].run([*doctor, "--broker", str(path)], stdout=subprocess.PIPE, cwd="/")
        (report,) = json.loads(asked.communicate()[0])["interfaces"]
        assert report["mode"] == expected, report["steps"]
        assert (report["broker"] is not None) is (expected == "native")


ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "umstack", "broker", "--allow-user", sys.argv[2]])
"""


@needs_passed_rings
def test_systemd_can_listen_for_it(shared_lab: Lab, folder: Path) -> None:
    """Socket activation: the broker serves the socket with which it was started, and keeps its file."""
    host, path = shared_lab.hosts[0], folder / "xdp.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        fd = listener.fileno()
        argv = [sys.executable, "-c", ACTIVATE, str(fd), str(NOBODY)]
        process = host.run(argv, pass_fds=(fd,), stderr=subprocess.DEVNULL)
        with application(host, path, without_privileges()) as app:
            assert app.first["mode"] == "native"
        process.terminate()
        assert process.wait(10) == 0
    assert path.is_socket()


# ---- refused users and refused requests ----


def a_client(host: Host) -> socket.socket:
    """Return a socket of the host's network namespace."""
    return host.call(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))


def answers(host: Host, path: Path, *messages: bytes, descriptors: tuple[int, ...] = ()) -> list[str]:
    """Return the broker's answers on one connection: refusals, an empty string for a grant, `gone` at the end."""
    said = []
    with a_client(host) as client:
        client.settimeout(5)
        client.connect(str(path))
        for message in messages:
            with suppress(BrokenPipeError):  # it closed the connection: its earlier answers can still be read
                socket.send_fds(client, [message], list(descriptors))
            try:
                reply = client.recv(MESSAGE_MAX_BYTES)
            except (
                ConnectionResetError
            ):  # if the broker left data unread, the reset arrives before its answers
                reply = client.recv(MESSAGE_MAX_BYTES)
            said.append(str(json.loads(reply).get("error", {}).get("message", "")) if reply else "gone")
    return said


def an_open_request(**changes: Any) -> bytes:
    """Return a request for rings, with some settings changed."""
    settings = xdp.RingSettings(**{"receive_frames": 64, "send_frames": 64, **changes})
    return encode_request(OpenRequest("eth0", "eth0", xdp.AttachMode.NATIVE, xdp.RingMode.COPY, settings))


MALFORMED = [
    b"\xff\xfe",
    b"[]",
    b"{}",
    b'{"version": 1, "do": "ask"}',
    b'{"version": 3, "do": "reboot"}',
    b'{"version": 3, "do": ["ask"]}',
    b"[" * 9000,
    b'{"version": 3, "do": "add_rule", "address": "239.1.2.3", "port": 65536}',
    b'{"version": 3, "do": "add_rule", "address": {}, "port": 1}',
    b'{"version": 3, "do": "open", "interface": "eth0", "namespace": 1}',
    b'{"version": 3, "do": "open", "interface": "' + b"e" * 99 + b'"}',
    b" " * (MESSAGE_MAX_BYTES + 100),
]


def test_malformed_requests_are_refused_and_nothing_leaks(shared_lab: Lab, broker: BrokerProcess) -> None:
    """Each bad request is answered with the reason and closed; attached descriptors are not kept; the broker
    continues.
    """
    before = broker.descriptors()
    for message in MALFORMED:
        said, then = answers(shared_lab.hosts[0], broker.path, message, b"{}", descriptors=(0, 1, 2))
        assert said not in ("", "gone"), message
        assert then == "gone", message
    wait_for(lambda: broker.descriptors() == before, "the broker's descriptors")
    assert shared_lab.hosts[0].call(lambda: ask_broker(broker.path)).lent == {}


def test_requests_out_of_bounds_are_refused(shared_lab: Lab, broker: BrokerProcess) -> None:
    """Too many queues, too much memory, a wrong number of frames, a rule without rings, a port that may not
    be steered, too many rules, and rings requested twice are each refused by name, and the connection
    continues.
    """
    host = shared_lab.hosts[0]
    before = broker.descriptors()
    rule = b'{"version": 3, "do": "%s_rule", "address": "239.1.2.3", "port": %d}'
    said = answers(
        host,
        broker.path,
        an_open_request(queues=2),
        an_open_request(queues=64, receive_frames=65536),
        rule % (b"add", 2000),
        an_open_request(),
        an_open_request(),
        rule % (b"add", 53),
        rule % (b"remove", 2001),
        *[rule % (b"add", 2000 + port) for port in range(1, 258)],
    )
    for what, expected in zip(said[:3], ("Invalid argument", "it lends", "no rings"), strict=True):
        assert expected in what
    assert said[3] == ""
    assert "already" in said[4]
    assert "port 53 may not be steered" in said[5]
    assert "not steered" in said[6]
    assert set(said[7:-1]) == {""}
    assert "256 rules" in said[-1]
    assert "power of two" in answers(host, broker.path, an_open_request(receive_frames=100))[0]
    elsewhere = json.dumps({**json.loads(an_open_request()), "interface": "lo"}).encode()
    assert "lo has no rings on eth0" in answers(host, broker.path, elsewhere)[0]
    wait_for(lambda: program_is_gone(host), "the program's end")
    wait_for(lambda: broker.descriptors() == before, "the broker's descriptors")


def test_the_network_namespace_is_the_kernels_word(shared_lab: Lab, broker: BrokerProcess) -> None:
    """A process of another namespace gets no rings of interfaces of this namespace, whichever interface it
    requests.
    """
    host, other, _ = shared_lab.hosts
    inode = host.call(lambda: Path("/proc/thread-self/ns/net").stat().st_ino)
    claim = json.dumps({**json.loads(an_open_request()), "namespace": inode}).encode()
    assert "in another network namespace" in answers(other, broker.path, claim)[0]
    assert program_is_gone(host)


def lent_descriptors(client: socket.socket, request: bytes) -> tuple[dict[str, Any], list[int]]:
    """Return the broker's answer to a request, with its descriptors."""
    client.settimeout(5)
    client.send(request)
    message, descriptors, _, _ = socket.recv_fds(client, MESSAGE_MAX_BYTES, 65)
    return dict(json.loads(message)), descriptors


@needs_passed_rings
def test_rings_whose_sockets_are_kept_are_charged(shared_lab: Lab, folder: Path) -> None:
    """Closing the connection removes the program but frees nothing: until the sockets are closed they are charged to
    the user, and the process that keeps them is named. Closing them frees both."""
    host = shared_lab.hosts[0]
    broker = BrokerProcess(host, folder / "xdp.sock", "--frames-max-mib", "2")
    request = an_open_request(receive_frames=512, huge_pages=False)
    other = json.loads(an_open_request(receive_frames=256, huge_pages=False))
    elsewhere = json.dumps({**other, "interface": "lo", "device": "lo", "attach_mode": "generic"}).encode()
    try:
        before = broker.descriptors()
        with a_client(host) as client:
            client.connect(str(broker.path))
            reply, kept = lent_descriptors(client, request)
            assert "shape" in reply, reply
        wait_for(lambda: program_is_gone(host), "the program's end")
        started = time.monotonic()
        refusal = answers(host, broker.path, request)[0]
        assert f"(pid {os.getpid()}, user 0) hung up and keeps the sockets of eth0 open" in refusal
        assert time.monotonic() - started < 3
        assert "of them returned, their sockets still open" in answers(host, broker.path, elsewhere)[0]
        for one in kept:
            os.close(one)
        wait_for(lambda: broker.descriptors() == before, "the broker's descriptors")
        assert answers(host, broker.path, request) == [""]
    finally:
        broker.end()


@needs_passed_rings
def test_no_user_locks_out_root(shared_lab: Lab, broker: BrokerProcess) -> None:
    """A user has few connections, idle connections end, and opens on a busy queue wait in turn; root is
    served immediately.
    """
    host = shared_lab.hosts[0]
    hog = """
import socket, sys, time
def connect():
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(sys.argv[1])
    return client
request = sys.stdin.read().encode()
clients = [connect() for _ in range(64)]
said = []
for client in clients:
    client.setblocking(False)
    try:
        client.send(request)
    except OSError:
        pass
print("sent", flush=True)
time.sleep(60)
"""
    with a_client(host) as holder:
        holder.connect(str(broker.path))
        reply, kept = lent_descriptors(holder, an_open_request())
        assert "shape" in reply
    argv = [*without_privileges(), sys.executable, "-c", hog, str(broker.path)]
    process = host.run(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(an_open_request().decode())
        process.stdin.close()
        assert process.stdout.readline() == "sent\n"
        started = time.monotonic()
        for _ in range(8):
            assert host.call(lambda: ask_broker(broker.path)).lent == {}
        assert time.monotonic() - started < 1
        peers = subprocess.run(
            ["ss", "-x", "-H", "src", str(broker.path)], capture_output=True, text=True
        ).stdout
        assert peers.count("ESTAB") <= 16, peers
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for one in kept:
            os.close(one)
    wait_for(lambda: answers(host, broker.path, an_open_request()) == [""], "rings again")


@needs_passed_rings
def test_the_second_application_learns_who_has_the_interface(shared_lab: Lab, broker: BrokerProcess) -> None:
    """An interface belongs to one application: the broker's EBUSY and the ladder's reason name the process,
    whose rings continue.
    """
    host, peer, _ = shared_lab.hosts
    with application(host, broker.path, without_privileges()) as app:

        def open_another() -> None:
            interface = xdp.find_interface("eth0")
            settings = xdp.RingSettings()
            place = xdp.RingPlace(interface, interface)
            open_brokered_rings(broker.path, place, xdp.AttachMode.NATIVE, xdp.RingMode.COPY, settings)

        with pytest.raises(xdp.BrokerError, match=f"lent to .*pid {app.process.pid}, user {NOBODY}") as busy:
            host.call(open_another)
        assert busy.value.errno == errno.EBUSY
        with application(host, broker.path, without_privileges()) as another:
            assert (
                f"(pid {app.process.pid}, user {NOBODY}); use another interface, or stop that process"
                in (another.first["message"])
            )
        with application(host, broker.path, without_privileges(), "walk") as walking:
            assert walking.first["steps"][-1]["mode"] == "socket"
        assert went_by_rings(exchange(app, peer))


def test_who_is_not_allowed_is_refused(shared_lab: Lab, broker: BrokerProcess) -> None:
    """The kernel reports the user of the connection."""
    with application(shared_lab.hosts[0], broker.path, without_privileges(OTHER_USER)) as app:
        assert app.first["error"] == "PermissionNeeded"
        assert (
            f"native, generic: the broker at {broker.path}: user {OTHER_USER} may not" in app.first["message"]
        )


def test_a_full_table_of_idle_connections_ends_the_oldest_for_root(
    shared_lab: Lab, broker: BrokerProcess
) -> None:
    """64 idle connections do not keep root out, because root replaces the one that was idle longest."""
    before = broker.descriptors()
    with ExitStack() as stack:
        clients = [stack.enter_context(a_client(shared_lab.hosts[0])) for _ in range(64)]
        for client in clients:
            client.connect(str(broker.path))
        wait_for(lambda: len(broker.descriptors()) == len(before) + 64, "64 connections")
        assert shared_lab.hosts[0].call(lambda: ask_broker(broker.path)).lent == {}
        clients[0].settimeout(5)
        assert clients[0].recv(1) == b""
    wait_for(lambda: broker.descriptors() == before, "the broker's descriptors")


@pytest.mark.parametrize("name", [b"x\neth0 lent: root", b"\xff\x1b[2J"], ids=["a line", "no text"])
def test_a_hostile_name_forges_no_line(shared_lab: Lab, folder: Path, name: bytes) -> None:
    """A process chooses the bytes of its name; the log shows them in one printable line, and the broker continues."""
    host, path = shared_lab.hosts[0], folder / "xdp.sock"
    argv = [sys.executable, "-m", "umstack", "broker", "--path", str(path)]
    broker = host.run(argv, stderr=subprocess.PIPE)
    unknown = """
import pathlib, socket, sys
pathlib.Path("/proc/self/comm").write_bytes(bytes.fromhex(sys.argv[2]))
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect(sys.argv[1])
client.recv(9999)
"""
    try:
        wait_for(lambda: reachable(path), "the broker")
        command = [*without_privileges(OTHER_USER), sys.executable, "-c", unknown, str(path), name.hex()]
        assert host.run(command, cwd="/").wait(10) == 0
        assert host.call(lambda: ask_broker(path)).lent == {}
    finally:
        broker.terminate()
        _, log = broker.communicate(timeout=10)
    lines = log.decode().splitlines()
    (refused,) = [line for line in lines if f"user {OTHER_USER}" in line]
    assert refused.startswith("refused: ")
    assert refused.isprintable()
    assert not any(line.startswith("eth0 lent") for line in lines)


def test_a_broker_needs_the_capabilities_itself(folder: Path) -> None:
    """A broker without the capabilities reports this at its start."""
    command = [*without_privileges(), sys.executable, "-m", "umstack", "broker", "--path", str(folder / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd="/", env={**os.environ})
    assert ended.returncode == 1
    assert "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF" in ended.stderr


@needs_passed_rings
def test_the_command_lends_the_named_interfaces(shared_lab: Lab, folder: Path) -> None:
    """With --interface the named interfaces are served, and others are refused by name."""
    host = shared_lab.hosts[0]
    for named, expected in (("lo", "eth0 is not lent"), ("eth0", "")):
        broker = BrokerProcess(host, folder / "xdp.sock", "--interface", named)
        try:
            said = answers(host, broker.path, an_open_request())
            assert said == [expected]
        finally:
            summary = broker.end()
        assert (summary["lent"] > 0, summary["refused"] > 0) == (named == "eth0", named == "lo")


@needs_passed_rings
def test_a_connection_with_rings_may_say_nothing(shared_lab: Lab, folder: Path) -> None:
    """The idle timeout applies to connections without rings; a connection with rings stays open."""
    idle_timeout_s, path = 0.4, folder / "xdp.sock"

    def lend_and_wait() -> tuple[bytes | None, bytes]:
        policy = xdp_broker.Policy(idle_timeout_s=idle_timeout_s)
        with (
            listen_at(path) as listener,
            xdp_broker.Broker(listener, policy, lambda event: None) as broker,
        ):
            thread = threading.Thread(target=broker.serve)
            thread.start()
            try:
                with ExitStack() as stack:
                    holder, idle = (
                        stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                        for _ in "ab"
                    )
                    for client in (holder, idle):
                        client.settimeout(5)
                        client.connect(str(path))
                    reply, kept = lent_descriptors(holder, an_open_request())
                    assert "shape" in reply, reply
                    ended = idle.recv(1)
                    time.sleep(2 * idle_timeout_s)
                    holder.setblocking(False)
                    try:
                        said: bytes | None = holder.recv(1)
                    except BlockingIOError:
                        said = None
                    for one in kept:
                        os.close(one)
                    return said, ended
            finally:
                broker.stop()
                thread.join(10)

    assert shared_lab.hosts[0].call(lend_and_wait) == (None, b"")

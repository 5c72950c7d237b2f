"""Confinement: the privileges that a process drops permanently before it serves others.

It drops capabilities beyond those named, new privileges of executed programs, system calls it never makes (seccomp) and
access to files it does not need (Landlock). Each measure is applied if the kernel and the libraries support it; the
result lists the measures in force and why others are not. Confinement applies to the calling thread and the threads it
starts, and cannot be undone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

IN_FORCE = "in force"
_KEPT_CAPABILITIES = ("NET_ADMIN", "NET_RAW", "IPC_LOCK", "BPF", "PERFMON")
_READABLE = ("/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev/null", "/dev/urandom")
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 44)  # AF_XDP

# System calls of CPython, libbpf, libxdp and pyroute2 while the broker serves. No exec, no new process, no ptrace,
# no mount, no namespace, no module, no key, no io_uring.
_SYSTEM_CALLS = (
    "accept accept4 access bind bpf brk capget clock_getres clock_gettime clock_nanosleep close "
    "close_range connect dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 "
    "epoll_wait eventfd2 exit exit_group faccessat faccessat2 fcntl fstat fstatfs ftruncate futex getcwd "
    "getdents64 getegid geteuid getgid getpeername getpid getppid getrandom getresgid getresuid getrlimit "
    "getrusage getsockname getsockopt gettid gettimeofday getuid ioctl listen lseek lstat madvise "
    "membarrier memfd_create mmap mprotect mremap munmap nanosleep newfstatat open openat pipe2 poll "
    "ppoll pread64 prlimit64 pselect6 read readlink readlinkat readv recvfrom recvmsg restart_syscall "
    "rseq rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity sched_yield select sendmsg sendto "
    "set_robust_list setsockopt shutdown sigaltstack socketpair stat statfs statx sysinfo tgkill time "
    "uname unlink unlinkat write writev "
)
_CLONE_THREAD = 0x00010000

# include/uapi/linux/landlock.h; the numbers of the calls are the same on every architecture.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_DIR, _REMOVE_FILE = 1 << 0, 1 << 2, 1 << 3, 1 << 5
_FILE_RIGHTS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS_BITS_NOW = 16
_NETWORK_ABI, _SCOPE_ABI = 4, 6
_BIND_AND_CONNECT_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3


def confine(removable: Iterable[Path] = ()) -> dict[str, str]:
    """Drop all privileges not needed; in the `removable` directories files may still be removed.

    Returns for each measure `in force`, or the reason why it is not.
    """
    with contextlib.suppress(ImportError):
        import_module("pyseccomp")  # executes programs to find its library, so imported first
    measures: dict[str, Callable[[], None]] = {
        "capabilities": _drop_capabilities,
        "no_new_privileges": _refuse_new_privileges,
        "landlock": lambda: _restrict_files(removable),
        "seccomp": _filter_system_calls,
    }
    return {name: _outcome(measure) for name, measure in measures.items()}


def _outcome(measure: Callable[[], None]) -> str:
    try:
        measure()
    except ImportError as error:
        return f"{error}: pip install 'umstack[broker]'"
    except (OSError, RuntimeError) as error:
        return str(error)
    return IN_FORCE


def _drop_capabilities() -> None:
    prctl = import_module("pyprctl")
    kept = {getattr(prctl.Cap, name) for name in _KEPT_CAPABILITIES}
    state = prctl.CapState.get_current()
    if state.permitted & {prctl.Cap.SETPCAP}:
        for capability in prctl.capbset_probe() - kept:
            prctl.capbset_drop(capability)
    prctl.cap_ambient_clear_all()
    state.permitted &= kept
    state.effective &= kept
    state.inheritable.clear()
    state.set_current()


def _refuse_new_privileges() -> None:
    import_module("pyprctl").set_no_new_privs()


def _filter_system_calls() -> None:
    seccomp = import_module("pyseccomp")
    allowed = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in _SYSTEM_CALLS.split():
        if seccomp.resolve_syscall(seccomp.system_arch(), name) >= 0:  # this call exists on this architecture
            allowed.add_rule(seccomp.ALLOW, name)
    for family in _FAMILIES:
        allowed.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, family))
    # Threads, but no processes; the C library falls back to the call whose flags a filter can see.
    is_thread = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
    allowed.add_rule(seccomp.ALLOW, "clone", is_thread)
    allowed.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    allowed.load()


def _restrict_files(removable: Iterable[Path]) -> None:
    version = _landlock(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    handled = (1 << _FILE_RIGHTS_BITS.get(version, _FILE_RIGHTS_BITS_NOW)) - 1
    attributes = struct.pack(
        "=QQQ",
        handled,
        _BIND_AND_CONNECT_TCP if version >= _NETWORK_ABI else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPE_ABI else 0,
    )
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _NETWORK_ABI else 8
    ruleset = _landlock(_LANDLOCK_CREATE, attributes, size, 0)
    try:
        readable = {*_READABLE, sys.prefix, sys.base_prefix, *sys.path, str(Path(__file__).parent.parent)}
        for path in sorted(filter(None, readable)):
            _allow(ruleset, Path(path), _EXECUTE | _READ_FILE | _READ_DIR)
        for folder in removable:
            _allow(ruleset, folder, _READ_DIR | _REMOVE_FILE)
        _landlock(_LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # a missing file needs no right
        return
    try:
        of_files = rights if path.is_dir() else rights & (_EXECUTE | _READ_FILE)
        rule = struct.pack("=Qi", of_files, descriptor)
        _landlock(_LANDLOCK_ADD, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _landlock(number: int, *arguments: bytes | int | None) -> int:
    if platform.machine() == "alpha":
        raise OSError(errno.ENOSYS, "Landlock's system calls have other numbers here")
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    typed = [ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments]
    result = int(call(ctypes.c_long(number), *typed))
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, f"this kernel refuses Landlock: {os.strerror(reason)}")
    return result

"""Linux isolation by system call: namespaces, a small read-only root, no capabilities, resource limits.

Standard library only: the sandbox runs this file without any package. Everything goes through libc by
ctypes, because Python 3.11 has no `os.unshare` and the `unshare` command cannot nest without another exec.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys

NEWNS, NEWUTS, NEWIPC = 0x20000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _DUMPABLE, _NO_NEW_PRIVS, _SUBREAPER = 1, 4, 38, 36
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_RECURSIVE = 0x8000
_NOBODY = 65534
SCRATCH = "/scratch"

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("fd", ctypes.c_uint64),
    ]


def _call(name: str, *args: object) -> None:
    if getattr(_libc, name)(*args) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = kind.encode() if kind else None
    _call(
        "mount",
        source.encode(),
        target.encode(),
        encoded,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )


def _write(proc: int, name: str, text: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def set_dumpable(on: bool) -> None:
    """Say whether processes of the same user may trace this one and read its memory."""
    _call("prctl", _DUMPABLE, int(on), 0, 0, 0)


def _new_user(proc: int, flags: int, inside: int) -> None:
    """Enter a new user namespace (and others) with the current user as its only one."""
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", NEWUSER | flags)
    set_dumpable(True)  # else the files below belong to root
    _write(proc, "self/setgroups", "deny")
    _write(proc, "self/uid_map", f"{inside} {uid} 1")
    _write(proc, "self/gid_map", f"{inside} {gid} 1")
    set_dumpable(False)


def enter_namespaces(proc: int, binds: list[str]) -> None:
    """Leave the host: own network, processes (from the next fork on), IPC, and a root of `binds` alone.

    `proc` is an open /proc. Raises `OSError` where the kernel or a container forbids it.
    """
    flags = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS
    try:
        if os.geteuid() != 0:
            raise PermissionError
        _call("unshare", flags)
    except PermissionError:
        _new_user(proc, flags, 0)
    _mount("none", "/", None, _REC | _PRIVATE)
    _build_root(binds)


def _build_root(binds: list[str]) -> None:
    new = "/proc"  # a folder that exists everywhere and from which nothing is bound
    _mount("tmpfs", new, "tmpfs", _NOSUID, "size=1m,mode=755")
    for path in binds:
        inside = new + path
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        if os.path.lexists(inside):
            continue
        if os.path.islink(path):
            os.symlink(os.readlink(path), inside)
            continue
        if os.path.isdir(path):
            os.mkdir(inside)
        else:
            os.close(os.open(inside, os.O_CREAT | os.O_WRONLY))
        _mount(path, inside, None, _BIND | _REC)
    os.mkdir(new + SCRATCH)
    os.mkdir(new + "/dev")
    devices = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
    for device in devices:
        os.close(os.open(new + device, os.O_CREAT | os.O_WRONLY))
    _read_only(new, _NODEV)
    for device in devices:
        _mount(device, new + device, None, _BIND)
    os.chdir(new)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _DETACH)
    os.chdir("/")


def _read_only(path: str, more: int) -> None:
    attr = _MountAttr(set=_RDONLY | _NOSUID | more)
    number = ctypes.c_long(_SYS_MOUNT_SETATTR)
    size = ctypes.c_size_t(ctypes.sizeof(attr))
    if _libc.syscall(number, -100, path.encode(), _AT_RECURSIVE, ctypes.byref(attr), size) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount_setattr (Linux 5.12 and later): {os.strerror(error)}")


def become_nobody() -> None:
    """Give up root for good. The limit on processes does not hold for root."""
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def enter_run(proc: int, scratch_mb: int) -> None:
    """Give one run its own users, processes (from the next fork on), IPC, mounts and an empty scratch folder."""
    _new_user(proc, NEWPID | NEWNS | NEWIPC, 1000)
    with contextlib.suppress(OSError):  # one more wall, not one that the others need
        _write(proc, "sys/user/max_user_namespaces", "0")
    _mount(
        "tmpfs",
        SCRATCH,
        "tmpfs",
        _NOSUID | _NODEV,
        f"size={scratch_mb}m,nr_inodes={scratch_mb * 64},mode=700",
    )


def die_first(proc: int) -> None:
    """Ask the kernel to end this process before any other where memory runs out."""
    with contextlib.suppress(OSError):
        _write(proc, "self/oom_score_adj", "1000")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it."""
    if sys.platform == "linux":
        _call("prctl", _SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    if sys.platform == "linux":
        _call("prctl", _PDEATHSIG, 9, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up every capability, and any way to get one by starting a program."""
    if sys.platform != "linux":
        return
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() == 0 and not _namespaced():
        return  # root that asked to run without isolation
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def _namespaced() -> bool:
    return os.path.isdir(SCRATCH) and not os.path.exists("/proc/self")


def limit(memory_mb: int, cpu_s: int, file_mb: int, files: int, processes: int) -> None:
    """Set the limits of one run."""
    for name, value in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_CPU", cpu_s),
        ("RLIMIT_FSIZE", file_mb << 20),
        ("RLIMIT_NOFILE", files),
        ("RLIMIT_NPROC", processes),
        ("RLIMIT_MEMLOCK", 0),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_STACK", 64 << 20),
        ("RLIMIT_AS", memory_mb << 20),
    ):
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # one second between the signal that can be named in the report and the kill
        top = value + 1 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else value
        try:
            resource.setrlimit(number, (value, top))
        except (OSError, ValueError):
            if sys.platform == "linux":  # elsewhere some limits cannot be set
                raise

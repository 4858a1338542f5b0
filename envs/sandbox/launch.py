"""How the host starts a sandbox: what is shown of the host, bubblewrap's command, and the probe from inside."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from envs.errors import GraderError

INSIDE = "/sandbox"  # where bubblewrap shows the folder of the worker

# Each name is what would be wrong if its test came out False.
PROBE = """
import os, socket
def refused(action):
    try:
        action()
    except OSError:
        return True
    return False
def look():
    return {
        "the host's processes are visible": os.getpid() < 10,
        "the host's files are writable": refused(lambda: open("/probe", "w"))
        and refused(lambda: open("/usr/lib/probe", "w")),
        "the home folder is visible": not os.path.exists("/home") and not os.path.exists("/etc/passwd"),
        "there is a network": [name for _, name in socket.if_nameindex()] in ([], ["lo"]),
        "it runs as root": os.getuid() != 0,
    }
"""


def binds(paths: tuple[str, ...]) -> list[str]:
    """Return what a sandbox sees of the host, read-only: libraries, and this Python without its packages."""
    prefix, folders = sys.base_prefix, ["/usr"] if sys.base_prefix == "/usr" else []
    wanted = [
        *folders,
        *("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32", "/usr/share/zoneinfo"),
        "/etc/ld.so.cache",
        prefix,
        sysconfig.get_path("stdlib"),
        sys.base_exec_prefix,
        os.path.dirname(os.path.realpath(sys.executable)),
        *paths,
    ]
    found: list[str] = []
    for path in wanted:
        inside = any(path == known or path.startswith(known + "/") for known in found)
        if os.path.exists(path) and not inside:
            found.append(path)
    return found


def bubblewrap(binds: list[str], worker: str) -> list[str]:
    """Return the command up to the program. Raises `GraderError` where bubblewrap is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise GraderError("bwrap is not installed")
    command = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    if os.geteuid() == 0:  # then the server drops root itself, so that limits on processes hold
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user"]
    parents = {str(parent) for path in binds for parent in Path(path).parents}
    for parent in sorted(parents - {"/"} - set(binds)):  # parents sort before what is inside them
        command += ["--perms", "0755", "--dir", parent]
    for path in binds:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    return [
        *command,
        "--dev",
        "/dev",
        "--ro-bind",
        os.path.dirname(worker),
        INSIDE,
        "--dir",
        "/scratch",
        "--remount-ro",
        "/",
    ]

"""What untrusted code may try: name -> (code of an answer, statuses of the run that are right)."""

from __future__ import annotations

ATTACKS: dict[str, tuple[str, str]] = {
    "endless loop": ("def f(x):\n while True: pass", "timeout"),
    "endless loop that swallows exceptions and signals": (
        "import signal\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n except Exception: pass\n"
        "def f(x):\n while True:\n  try:\n   while True: pass\n  except BaseException: pass",
        "timeout died",
    ),
    "sleep": ("import time\ndef f(x):\n time.sleep(60)", "timeout"),
    "fork bomb": (
        "import os\ndef f(x):\n while True:\n  try: os.fork()\n  except OSError: pass",
        "timeout",
    ),
    "thread bomb": (
        "import threading, time\ndef f(x):\n for _ in range(5000):\n"
        "  threading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
        "raised timeout",
    ),
    "memory bomb": ("def f(x):\n return bytearray(10 << 30)", "raised timeout"),
    "slow memory bomb": ("def f(x):\n kept = []\n while True: kept.append(bytearray(1 << 24))", "raised died timeout"),
    "endless output": ("def f(x):\n while True: print('a' * 100000)", "flood timeout"),
    "a gigabyte of result": ("def f(x):\n return 'a' * (1 << 29)", "raised flood died timeout"),
    "endless errors": ("import sys\ndef f(x):\n while True: print('a' * 100000, file=sys.stderr)", "flood timeout"),
    "a big file": ("def f(x):\n with open('big', 'wb') as f:\n  while 1: f.write(bytes(1 << 20))", "raised timeout"),
    "many files": ("def f(x):\n for n in range(10**6): open(str(n), 'w').close()", "raised timeout"),
    "many descriptors": ("def f(x):\n kept = [open('/dev/null') for _ in range(10**4)]", "raised timeout"),
    "os._exit before the tests": ("import os\nos._exit(0)", "died"),
    "os._exit in a call": ("import os\ndef f(x):\n os._exit(0)", "died"),
    "sys.exit before the tests": ("import sys\nsys.exit(0)", "raised"),
    "sys.exit in a call": ("import sys\ndef f(x):\n sys.exit(0)", "raised"),
    "exit at exit": ("import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)", "raised"),
    "killing the parent": ("import os\ndef f(x):\n os.kill(os.getppid(), 9)\n return 0", "failed died"),
    "killing everything": (
        "import os\ndef f(x):\n for n in [*range(1, 3000), -1]:\n"
        "  try:\n   if n != os.getpid(): os.kill(n, 9)\n  except OSError: pass\n return 0",
        "failed died",
    ),
    "always equal": ("class E:\n def __eq__(self, other): return True\ndef f(x):\n return E()", "failed"),
    "an always equal number": (
        "class E(int):\n def __eq__(self, other): return True\n __hash__ = int.__hash__\ndef f(x):\n return E(7)",
        "failed",
    ),
    "an always equal list": (
        "class E(list):\n def __eq__(self, other): return True\ndef f(x):\n return E([1])",
        "failed",
    ),
    "changing the grader": (
        "import sys\nfor module in list(sys.modules.values()):\n"
        " for name in ('check', 'watch', 'call', 'pump', 'decode', 'encode', 'unpack'):\n"
        "  if hasattr(module, name): setattr(module, name, lambda *a, **k: ('passed', '', None))\n"
        "k = sys.modules.get('keeper')\nif k: k.Keeper.check = lambda *a: ('passed', '', None)\n"
        "import builtins\nbuiltins.AssertionError = ValueError\ndef f(x):\n return 0",
        "failed raised",
    ),
    "printing the pass token": (
        "import json, os\nbody = json.dumps({'status': 'passed', 'value': None, 'nonce': 'x'}).encode()\n"
        "for fd in range(64):\n"
        " try: os.write(fd, len(body).to_bytes(4, 'big') + body)\n except OSError: pass\ndef f(x):\n return 0",
        "died",
    ),
    "answering without being asked": (
        "import gc, os, json\nnonces = [o['nonce'] for o in gc.get_objects() if isinstance(o, dict) and 'nonce' in o]\n"
        "body = json.dumps({'nonce': nonces[0], 'value': 0} if nonces else {}).encode()\n"
        "for _ in range(9): os.write(3, len(body).to_bytes(4, 'big') + body)\ndef f(x):\n return 0",
        "failed died",
    ),
    "deleting its folder": (
        "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n"
        "try: os.rmdir(os.getcwd())\nexcept OSError: pass\ndef f(x):\n return 0",
        "failed",
    ),
    "a daemon": (
        "import os, time\ndef f(x):\n if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
        "   while True: time.sleep(1)\n  os._exit(0)\n return 0",
        "failed",
    ),
    "a crash": ("import ctypes\ndef f(x):\n ctypes.string_at(0)", "died"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n return [f(x)]",
        "died raised timeout",
    ),
    "a result without end": ("def f(x):\n a = []\n a.append(a)\n return a", "failed"),
    "a shell": (
        "import subprocess\ndef f(x):\n return subprocess.run(['/bin/sh', '-c', 'true']).returncode + 2",
        "raised",
    ),
    "no function": ("x = 1", "raised"),
    "no Python": ("def f(", "raised"),
}  # fmt: skip

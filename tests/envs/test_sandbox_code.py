"""The code sandbox: what untrusted code may try, that nothing comes of it, and that the next run is right."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError, GraderError, UnknownName
from envs.sandbox import codec
from envs.sandbox_code import Limits, Run, Sandbox, SandboxConfig, shared
from tests.envs.code_attacks import ATTACKS

QUICK = Limits(wall_s=6.0, cpu_s=1)  # for what is to be cut off
STEADY = Limits(wall_s=60.0, cpu_s=20)  # for what is to come through, on a machine under load
TESTS = "MARK = 'expected-7351'\ndef check(f):\n    assert f(1) == 2\n    assert f(5) == 6\n"
GOOD = "def f(x):\n    return x + 1\n"


def _missing(level: str) -> str | None:
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    try:
        Sandbox(SandboxConfig(level)).close()
    except GraderError as error:
        return str(error)
    return None


@pytest.fixture(scope="module", params=["namespaces", "bubblewrap"])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    reason = _missing(request.param)
    if reason is not None:
        pytest.skip(f"{request.param} does not work here: {reason}")
    os.environ["FLUXFORGE_TEST_SECRET"] = "secret-9042"
    with Sandbox(SandboxConfig(request.param)) as sandbox:
        yield sandbox
    del os.environ["FLUXFORGE_TEST_SECRET"]


@pytest.fixture(scope="module")
def bare() -> Iterator[Sandbox]:
    with Sandbox(SandboxConfig("none", allow_unsandboxed=True)) as sandbox:
        yield sandbox


def still_right(box: Sandbox) -> None:
    """The next task is graded right, and no process of the last one is left."""
    assert box.check(GOOD, "f", TESTS, STEADY).status == "passed"
    assert box.check(GOOD.replace("1", "2"), "f", TESTS, STEADY).status == "failed"
    assert box._server is not None
    until = time.monotonic() + 20
    while len(left := psutil.Process(box._server.process.pid).children(recursive=True)) > 2:
        assert time.monotonic() < until, left  # bubblewrap has two processes, namespaces one
        time.sleep(0.05)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_wrong_answer_and_no_more(box: Sandbox, name: str) -> None:
    code, expected = ATTACKS[name]
    run = box.check(code, "f", TESTS, QUICK)
    assert run.status in expected.split(), (run.status, run.reason)
    assert run.reason
    still_right(box)


def seen(box: Sandbox, code: str) -> Run:
    """Run `look()` of `code` inside and bring its result out."""
    run = box.check(
        code, "look", f"def check(look):\n    # {TESTS.splitlines()[0]}\n    return look()", STEADY
    )
    assert run.status == "passed", run
    return run


def test_no_network(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = (
            "import socket\ndef look():\n tried = []\n"
            f" for kind, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n"
            "  try:\n"
            f"   socket.socket(kind, socket.SOCK_STREAM).connect((host, {port}))\n"
            "   tried.append('open')\n"
            "  except OSError: tried.append('closed')\n"
            f" try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))\n"
            " except OSError: pass\n"
            " return tried"
        )
        assert seen(box, code).value == ["closed", "closed"]
        with pytest.raises(TimeoutError):
            server.accept()
    still_right(box)


def test_no_writes_outside(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("as it was")
    targets = [str(tmp_path / "new"), str(tmp_path / "known"), "/new", "/usr/lib/new", "/dev/new", "/tmp/new"]
    code = (
        "import os\ndef look():\n done = []\n"
        f" for path in {targets!r}:\n"
        "  for way in (lambda: open(path, 'w').close(), lambda: os.makedirs(path + '/x'), lambda: os.unlink(path)):\n"
        "   try:\n    way()\n    done.append(path)\n   except OSError: pass\n"
        " open('fine', 'w').write('scratch')\n return done"
    )
    assert seen(box, code).value == []
    assert [path.name for path in tmp_path.iterdir()] == ["known"]
    assert (tmp_path / "known").read_text() == "as it was"
    assert seen(box, "import os\ndef look():\n return os.listdir('.')").value == []  # a scratch folder each


def test_no_environment_no_files_no_processes_of_the_host(box: Sandbox) -> None:
    code = (
        "import glob, os\ndef look():\n"
        " found = dict(os.environ)\n"
        " texts = []\n"
        " for name in glob.glob('/proc/*/environ') + ['/proc/1/mem', '/etc/passwd', '/etc/shadow']:\n"
        "  try: texts.append(open(name, 'rb').read(100000))\n"
        "  except OSError: pass\n"
        " return found, len(texts), sorted(os.listdir('/')), os.getuid(), os.getpid()"
    )
    environment, texts, root, uid, pid = seen(box, code).value
    assert "secret-9042" not in str(environment) and set(environment) == {"HOME", "PATH", "LANG"}
    assert texts == 0 and uid != 0 and pid < 10
    assert not {"home", "work", "tmp", "etc/passwd", "proc"} & set(root)


def test_no_way_back_to_privileges(box: Sandbox) -> None:
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef look():\n"
        " return [libc.unshare(0x10000000), libc.mount(b'none', b'/', None, 32, None), libc.setuid(0),"
        " libc.ptrace(16, 1, 0, 0), libc.umount2(b'/', 2), libc.chroot(b'.'), libc.sethostname(b'x', 1)]"
    )
    results = seen(box, code).value
    assert results == [-1] * len(results)


def test_expected_values_are_not_in_the_process_that_runs_the_answer(box: Sandbox) -> None:
    """The whole memory that the code can name is searched for a word of the tests."""
    code = (
        "import gc, sys\ndef look():\n word = 'expected-' + '7351'\n"
        " frames = [sys._getframe()]\n"
        " while frames[-1].f_back: frames.append(frames[-1].f_back)\n"
        " things = [*gc.get_objects(), *(frame.f_locals for frame in frames)]\n"
        " hits = 0\n"
        " for thing in things:\n"
        "  if isinstance(thing, (dict, list, tuple)):\n"
        "   values = thing.values() if isinstance(thing, dict) else thing\n"
        "   hits += sum(isinstance(v, (str, bytes)) and v is not word and word in str(v) for v in list(values))\n"
        " return hits"
    )
    assert seen(box, code).value == 0


def test_runs_do_not_see_each_other(box: Sandbox) -> None:
    assert seen(box, "import builtins\ndef look():\n builtins.left = 1\n return 0").value == 0
    assert seen(box, "import builtins\ndef look():\n return hasattr(builtins, 'left')").value is False


def test_a_script_has_real_streams(box: Sandbox) -> None:
    code = (
        "import sys\nfirst = sys.stdin.buffer.readline()\nsecond = input()\nrest = sys.stdin.read()\n"
        "print(first, second, rest.split(), flush=True)\nsys.stdout.buffer.write(b'raw')\n"
        "print(__name__, file=sys.stderr)"
    )
    run = box.script(code, "a\nb\nc d\n", STEADY)
    assert run.status == "ok" and run.err == "__main__\n", run
    assert run.out == "b'a\\n' b ['c', 'd']\nraw"
    assert box.script("import sys; sys.exit()", "", STEADY).status == "ok"
    assert box.script("import sys; sys.exit(2)", "", STEADY).exit == 2
    assert box.script("1 / 0", "", STEADY).err.startswith("ZeroDivisionError")
    assert (
        box.script("print(sum(map(int, open(0).read().split())))", "1 2 " * 50_000, STEADY).out == "150000\n"
    )


def test_the_same_answer_gets_the_same_result(box: Sandbox) -> None:
    code = "import random\nprint(random.random(), hash('a'), {'a', 'b', 'c'})"
    assert len({box.script(code, "", STEADY).out for _ in range(3)}) == 1


def test_a_killed_server_is_replaced_and_the_run_repeated(box: Sandbox) -> None:
    assert box._server is not None
    os.killpg(box._server.process.pid, signal.SIGKILL)
    still_right(box)
    server = box._server
    killer = threading.Timer(0.3, lambda: os.killpg(server.process.pid, signal.SIGKILL))
    killer.start()
    run = box.check("import time\ntime.sleep(1)\n" + GOOD, "f", TESTS, Limits(wall_s=30))
    killer.join()
    assert run.status == "passed"


def test_broken_tests_are_our_fault_not_the_answers(box: Sandbox) -> None:
    with pytest.raises(GraderError, match="tests cannot be loaded"):
        box.check(GOOD, "f", "def check(f", STEADY)
    with pytest.raises(GraderError, match="tests cannot be loaded"):
        box.check(GOOD, "f", "x = 1", STEADY)
    still_right(box)


def test_tests_that_do_not_end_are_cut_off(box: Sandbox) -> None:
    run = box.check(GOOD, "f", "def check(f):\n while True: pass", Limits(wall_s=4.0))
    assert run.status == "timeout" and "tests" in run.reason
    assert (
        box.check(GOOD, "f", "def check(f):\n try: f(1)\n except BaseException: pass", STEADY).status
        == "passed"
    )


def test_a_run_that_the_clock_ended_gets_a_second_and_longer_try(box: Sandbox) -> None:
    slow = "import time\ntime.sleep(4)\n" + GOOD
    short = Limits(wall_s=3.0, cpu_s=20)
    first = box.check(slow, "f", TESTS, short)
    assert first.status == "timeout" and first.clock
    assert box.check(slow, "f", TESTS, Limits(wall_s=3.0, cpu_s=20, patience=2)).status == "passed"
    endless = box.check("while True: pass", "f", TESTS, Limits(wall_s=60.0, cpu_s=1, patience=5))
    assert endless.status == "timeout" and not endless.clock


def test_odd_results_and_changed_arguments_are_told(box: Sandbox) -> None:
    tests = "def check(f):\n f([1])"
    assert not box.check("def f(x): return [x, (1.5, {2}), None]", "f", tests, STEADY).odd
    assert box.check("def f(x): return iter(x)", "f", tests, STEADY).odd
    run = box.check("def f(x): x.append(2)", "f", tests, STEADY)
    assert run.changed and not run.odd


def test_threads_share_one_sandbox(box: Sandbox) -> None:
    found: list[str] = []

    def work(number: int) -> None:
        found.append(box.check(GOOD, "f", f"def check(f): assert f({number}) == {number + 1}", STEADY).status)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["passed"] * 8


def test_a_fork_gets_a_server_of_its_own(box: Sandbox) -> None:
    still_right(box)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(box.check(GOOD, "f", TESTS, STEADY).status != "passed")
            box.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    still_right(box)


def test_further_folders_can_be_imported_from(tmp_path: Path) -> None:
    if _missing("namespaces"):
        pytest.skip("namespaces do not work here")
    (tmp_path / "extra_module.py").write_text("VALUE = 41\n")
    tmp_path.chmod(0o755)  # the sandbox is nobody where its owner is root
    with Sandbox(SandboxConfig("namespaces", paths=(str(tmp_path),))) as sandbox:
        run = sandbox.script("import extra_module; print(extra_module.VALUE + 1)", "", STEADY)
    assert run.out == "42\n", run


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(x):\n while True: pass", "timeout"),
        ("import os\ndef f(x):\n os._exit(0)", "died"),
        ("def f(x):\n return bytearray(10 << 30)", "raised"),
        ("def f(x):\n while True: print('a' * 100000)", "flood"),
        ("class E:\n def __eq__(self, other): return True\ndef f(x): return E()", "failed"),
        ("import os\nos.chmod('.', 0)\ndef f(x): return 0", "failed"),
    ],
)
def test_without_isolation_limits_and_deadline_still_hold(bare: Sandbox, code: str, expected: str) -> None:
    assert bare.check(code, "f", TESTS, QUICK).status == expected
    assert bare.check(GOOD, "f", TESTS, STEADY).status == "passed"
    assert bare.level == "none"


def test_without_isolation_daemons_are_still_ended(bare: Sandbox, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import os, time\ndef f(x):\n if os.fork() == 0:\n  os.setsid()\n  pid = os.fork()\n  if pid:\n"
        f"   open({str(note)!r}, 'w').write(str(pid))\n   os._exit(0)\n  while True: time.sleep(1)\n"
        f" while not os.path.exists({str(note)!r}) or not open({str(note)!r}).read(): time.sleep(0.01)\n return 2"
    )
    bare.check(code, "f", TESTS, Limits(wall_s=20))
    assert not psutil.pid_exists(int(note.read_text()))


def test_where_nothing_isolates_it_is_refused_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_start(self: Sandbox, level: str) -> None:
        raise OSError(f"no {level} today")

    monkeypatch.setattr(Sandbox, "_start", no_start)
    with pytest.raises(
        GraderError, match=r"bubblewrap: no bubblewrap today; namespaces: no namespaces today"
    ):
        Sandbox(SandboxConfig())
    with pytest.raises(ConfigError, match="allow_unsandboxed"):
        SandboxConfig("none")
    with pytest.raises(UnknownName, match="bubblewrap"):
        SandboxConfig("bublewrap")
    with pytest.raises(ConfigError, match="wall_s"):
        Limits(wall_s=0)


def test_a_level_that_does_not_isolate_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe looks from inside: a server that isolates nothing is found out."""
    start = Sandbox._start
    monkeypatch.setattr(Sandbox, "_start", lambda self, _level: start(self, "none"))
    with pytest.raises(GraderError, match="not isolated: .*host's processes are visible"):
        Sandbox(SandboxConfig("namespaces"))


def test_the_shared_sandbox_is_one_a_process() -> None:
    config = SandboxConfig(allow_unsandboxed=True)
    assert shared(config) is shared(SandboxConfig(allow_unsandboxed=True))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=15,
)


@given(plain)
@settings(max_examples=60, deadline=None)
def test_plain_values_come_over_as_they_are(value: object) -> None:
    import json

    back = codec.decode(json.loads(json.dumps(codec.encode(value))))
    assert back == value and type(back) is type(value)


def test_derived_classes_lose_what_they_override() -> None:
    class Loud(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __str__(self) -> str:
            return "other"

        __hash__ = str.__hash__

    encoder = codec.Encoder()
    assert encoder.encode([Loud("true")]) == ["true"] and encoder.odd
    opaque = codec.decode(codec.encode(iter([1])))
    assert opaque != [1] and bool(opaque) and isinstance(opaque, codec.Opaque)
    for wrong in ({"x": 1}, {"t": 5}, {}, {"i": "zz"}, {"s": [[1]]}):
        with pytest.raises(codec.NotPlain):
            codec.decode(wrong)

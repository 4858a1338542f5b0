"""The chat client against a stub server on 127.0.0.1: retries, deadlines, secrets, the cache, JSON replies."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.endpoint import Endpoint
from envs.errors import ConfigError, DataError, EndpointError, UnknownName
from envs.intent import EMPTY, Add, Goal
from envs.judge import Judge
from envs.structured import ask_json, read_json
from envs.task import SourceTask
from tests.envs.stubserver import ask_eight, close, cut, drip, fail, say, serve

HELLO = [{"role": "user", "content": "Grüß Gott"}]
SECRET = "sk-never-print-me"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}},
    "required": ["n"],
    "additionalProperties": False,
}


def endpoint(url: str, **settings: Any) -> Endpoint:
    more = {"backoff_s": 0.01, "key_env": "FLUXFORGE_TEST_KEY", **settings}
    return Endpoint.parse(f"openai:{url}#org/model", **more)


def test_what_is_sent_and_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUXFORGE_TEST_KEY", SECRET)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # not for this machine's own servers
    with serve(say("hello")) as stub:
        asked = endpoint(stub.url + "/", extra={"top_p": 0.5})
        reply = asked.ask(HELLO, temperature=0.3, seed=5, max_tokens=9, schema=SCHEMA)
    (path, headers, body) = stub.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert body.pop("response_format") == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "strict": True, "schema": SCHEMA},
    }
    expected = {"model": "org/model", "messages": HELLO, "temperature": 0.3, "seed": 5}
    assert body == expected | {"max_tokens": 9, "top_p": 0.5}
    assert (reply.text, reply.model, reply.attempts, reply.cached) == ("hello", "stub-1", 1, False)
    assert json.loads(reply.raw)["choices"][0]["message"]["content"] == "hello"
    assert reply.usage["completion_tokens"] == 3 and not reply.cut_short
    counts = asked.usage.as_dict()
    assert (counts["replies"], counts["prompt_tokens"], counts["completion_tokens"]) == (1, 7, 3)
    assert SECRET not in repr(asked) + asked.name


def test_without_a_key_or_schema_neither_is_sent() -> None:
    with serve(say("x")) as stub:
        endpoint(stub.url).ask(HELLO)
        endpoint(stub.url, structured=False).ask(HELLO, schema=SCHEMA)
    for _, headers, body in stub.requests:
        assert "Authorization" not in headers and "response_format" not in body


@pytest.mark.parametrize(
    "fault", [fail(500), fail(503), fail(429), close, cut, say(["no text"]), fail(200, "{not json")]
)
def test_faults_that_pass_are_tried_again(fault: Any) -> None:
    with serve(fault, fault, say("at last")) as stub:
        asked = endpoint(stub.url)
        reply = asked.ask(HELLO)
    assert (reply.text, reply.attempts, asked.usage.as_dict()["retries"]) == ("at last", 3, 2)


def test_retries_are_bounded() -> None:
    with serve(fail(500, "out of order")) as stub:
        asked = endpoint(stub.url, retries=2)
        with pytest.raises(EndpointError, match="500: out of order .attempt 3, no retry left"):
            asked.ask(HELLO)
    assert len(stub.requests) == 3
    assert asked.usage.as_dict()["failures"] == 1


def test_a_refusal_is_not_tried_again_and_hides_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUXFORGE_TEST_KEY", SECRET)
    with serve(fail(401, f"wrong key {SECRET}")) as stub:
        with pytest.raises(EndpointError, match="401.*FLUXFORGE_TEST_KEY") as caught:
            endpoint(stub.url).ask(HELLO)
    assert len(stub.requests) == 1
    assert SECRET not in str(caught.value) and "***" in str(caught.value)


def test_a_field_that_is_none_is_left_out() -> None:
    with serve(say("x")) as stub:
        endpoint(stub.url, extra={"seed": None, "max_tokens": None, "max_completion_tokens": 7}).ask(HELLO)
    body = stub.requests[0][2]
    assert "seed" not in body and "max_tokens" not in body and body["max_completion_tokens"] == 7


def test_a_server_that_refuses_the_schema_is_explained() -> None:
    with serve(fail(400, "response_format?")) as stub:
        with pytest.raises(EndpointError, match="structured=False"):
            endpoint(stub.url).ask(HELLO, schema=SCHEMA)


def test_nobody_listens() -> None:
    with serve(say("x")) as stub:
        url = stub.url
    with pytest.raises(EndpointError, match="could not be reached"):
        endpoint(url, retries=1).ask(HELLO)


def test_a_dripping_server_is_left_at_the_limit_of_an_attempt() -> None:
    with serve(drip, say("quick")) as stub:
        start = time.monotonic()
        reply = endpoint(stub.url, timeout_s=0.3).ask(HELLO)
    assert reply.text == "quick" and reply.attempts >= 2
    assert time.monotonic() - start < 4  # the whole drip takes five seconds


def test_the_deadline_covers_all_retries() -> None:
    with serve(fail(503, "later", Retry_After="100")) as stub:
        start = time.monotonic()
        with pytest.raises(EndpointError, match="deadline of 20 s"):
            endpoint(stub.url, deadline_s=20).ask(HELLO)
    assert time.monotonic() - start < 15  # it does not wait for what cannot help
    assert len(stub.requests) == 1


def test_retry_after_is_obeyed() -> None:
    with serve(fail(429, "slow down", Retry_After="0.4"), say("ok")) as stub:
        start = time.monotonic()
        assert endpoint(stub.url).ask(HELLO).text == "ok"
    assert time.monotonic() - start >= 0.4


def test_it_can_be_called_inside_a_running_loop() -> None:
    async def inside(url: str) -> str:
        return endpoint(url).ask(HELLO).text

    with serve(say("from a loop")) as stub:
        assert asyncio.run(inside(stub.url)) == "from a loop"


def test_an_empty_reply_is_a_reply() -> None:
    with serve(say(None, "length")) as stub:
        reply = endpoint(stub.url).ask(HELLO)
    assert reply.text == "" and reply.cut_short


def test_the_cache_answers_the_same_request_only(tmp_path: Path) -> None:
    with serve(script=lambda number, body: say(f"reply {number}")) as stub:
        asked = endpoint(stub.url, cache=tmp_path)
        first = asked.ask(HELLO)
        again = endpoint(stub.url, cache=tmp_path).ask(HELLO)
        assert (first.text, first.cached) == ("reply 1", False)
        assert (again.text, again.cached, again.key, again.raw) == ("reply 1", True, first.key, first.raw)
        others: list[dict[str, Any]] = [
            {"temperature": 0.1},
            {"seed": 1},
            {"max_tokens": 513},
            {"schema": SCHEMA},
            {"schema": {"type": "object"}},
        ]
        texts = [asked.ask(HELLO, **settings).text for settings in others]
        texts += [
            asked.ask([*HELLO, *HELLO]).text,
            asked.ask([{"role": "system", "content": "Grüß Gott"}]).text,
        ]
        texts += [endpoint(stub.url, cache=tmp_path, extra={"top_p": 0.5}).ask(HELLO).text]
        texts += [Endpoint.parse(f"openai:{stub.url}#other", cache=tmp_path).ask(HELLO).text]
        assert texts == [f"reply {n}" for n in range(2, 11)]
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert asked.usage.as_dict()["cached"] == 0


def test_the_cache_outlives_the_server_and_failures_are_not_kept(tmp_path: Path) -> None:
    with serve(fail(500), say("kept")) as stub:
        with pytest.raises(EndpointError):
            endpoint(stub.url, cache=tmp_path, retries=0).ask(HELLO)
        assert not list(tmp_path.rglob("*.json"))
        endpoint(stub.url, cache=tmp_path).ask(HELLO)
    assert endpoint(stub.url, cache=tmp_path, retries=0).ask(HELLO).text == "kept"


@pytest.mark.parametrize("damage", ["", '{"request": {}, "raw": "{}"}', "[]", '{"raw": 3'])
def test_a_damaged_entry_is_asked_anew_and_replaced(tmp_path: Path, damage: str) -> None:
    with serve(script=lambda number, body: say(f"reply {number}")) as stub:
        asked = endpoint(stub.url, cache=tmp_path)
        asked.ask(HELLO)
        (path,) = tmp_path.rglob("*.json")
        path.write_text(damage)
        assert [asked.ask(HELLO).text, asked.ask(HELLO).text] == ["reply 2", "reply 2"]
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == [path.name]


def test_processes_and_threads_that_share_a_cache_agree(tmp_path: Path) -> None:
    # Each request gets another reply, so agreement can only come from the cache.
    with serve(script=lambda number, body: say(f"reply {number}")) as stub:
        context = multiprocessing.get_context("spawn")
        with context.Pool(3) as pool:
            seen = pool.map(ask_eight, [(stub.url, tmp_path)] * 3)
        assert seen[0] == seen[1] == seen[2]
        shared = endpoint(stub.url, cache=tmp_path)
        ask = [{"role": "user", "content": "threads"}]
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            texts = {reply.text for reply in threads.map(lambda _: shared.ask(ask), range(16))}
    assert len(texts) == 1
    counts = shared.usage.as_dict()
    assert counts["replies"] + counts["cached"] == 16
    assert not list(tmp_path.rglob(".part-*"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("http://127.0.0.1/v1", "KIND:URL#MODEL"),
        ("openai:http://127.0.0.1/v1", "KIND:URL#MODEL"),
        ("openai:http://127.0.0.1/v1#", "no model"),
        ("openai:127.0.0.1:8000#m", r"http\(s\)"),
        ("openai:https://user:hunter2@host/v1#m", "environment variable"),
        ("openai:https://user:hunter2@host/v1", "KIND:URL#MODEL"),
        ("openai:https://host/v1?key=hunter2#m", "environment variable"),
    ],
)
def test_specs_that_cannot_be_read(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Endpoint.parse(spec)
    assert "hunter2" not in str(caught.value)


def test_unknown_kinds_and_settings() -> None:
    with pytest.raises(UnknownName, match="openai"):
        Endpoint.parse("opnai:http://127.0.0.1/v1#m")
    with pytest.raises(ConfigError, match="positive"):
        Endpoint.parse("openai:http://127.0.0.1/v1#m", timeout_s=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"n": 1}', {"n": 1}),
        ('```json\n{"n": 1}\n```', {"n": 1}),
        ('```\n{"n": 1}\n```\nHope that helps {smile}.', {"n": 1}),
        ('Sure: {"n": {"deep": "} {"}} done', {"n": {"deep": "} {"}}),
        ('<think>maybe {"n": 2}</think>\n{"n": 1}', {"n": 1}),
        ('{"n": 1}\n{"n": 1}', {"n": 1}),
        ('{"n": "</think>"}', {"n": "</think>"}),
    ],
)
def test_json_is_found_in_its_wrapping(text: str, expected: dict[str, Any]) -> None:
    assert read_json(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "no", "[1]", '{"n": 1', '{"n": 1} {"n": 2}', '{"n": 1, "n": 2}', '{"n": NaN}', '{"a":' * 20_000],
)
def test_what_is_no_single_json_object_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        read_json(text)


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.lists(st.text())))
def test_every_object_is_read_back_from_a_fence(value: dict[str, Any]) -> None:
    assert read_json(f"```json\n{json.dumps(value, indent=1)}\n```") == value


def test_a_wrong_object_is_repaired_once() -> None:
    with serve(say('{"n": 0}'), say('```json\n{"n": 4}\n```')) as stub:
        asked = ask_json(endpoint(stub.url), HELLO, SCHEMA)
    assert asked.value == {"n": 4} and asked.problem is None and len(asked.replies) == 2
    talk = stub.requests[1][2]["messages"]
    assert [message["role"] for message in talk] == ["user", "assistant", "user"]
    assert "minimum" in talk[2]["content"] and talk[1]["content"] == '{"n": 0}'


def test_a_second_wrong_object_is_the_end() -> None:
    with serve(say("I cannot"), say('{"n": 1', "length")) as stub:
        asked = ask_json(endpoint(stub.url), HELLO, SCHEMA)
    assert asked.value is None and len(asked.replies) == 2 and len(stub.requests) == 2
    assert asked.problem is not None and "cut short" in asked.problem


def test_a_reply_is_tidied_and_checked_beyond_the_schema() -> None:
    def odd(value: dict[str, Any]) -> str | None:
        return None if value["n"] % 2 else "n must be odd"

    with serve(say('{"n": "2"}'), say('{"n": "3"}')) as stub:
        asked = ask_json(endpoint(stub.url), HELLO, SCHEMA, tidy=lambda v: {"n": int(v["n"])}, check=odd)
    assert asked.value == {"n": 3}
    assert "n must be odd" in stub.requests[1][2]["messages"][2]["content"]


def test_the_judge_of_messages_speaks_through_it(tmp_path: Path) -> None:
    goal = Goal("g1", "deliver to Brooklyn", "delivery address", "Brooklyn")
    task = SourceTask("toy/0", "toy", "train", "I need a delivery.", "", (goal,), {})
    verdict = {"reason": "it does", "conveys": True, "adds": False, "coherent": True}
    with serve(say(json.dumps(verdict))) as stub:
        judge = Judge(endpoint(stub.url, cache=tmp_path))
        found = [judge.judge([Add(goal)], "Bring it to Brooklyn.", EMPTY, task) for _ in range(2)]
    assert found[0] == found[1] and found[0].faithful and found[0].error is None
    assert judge.settings["model"] == "org/model" and len(stub.requests) == 1
    assert "response_format" in stub.requests[0][2]

"""Plans: who sits on which GPU, what fits, what is refused with a fit that is near and true."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError, UnknownName
from recipes import cli, placement, preflight
from recipes.config import load_config, parse_overrides
from recipes.memory import total
from recipes.nearest import run_plan
from recipes.placement import Cluster, Pool, TooBig, cluster_here, cluster_named, clusters
from recipes.plan import ClusterPlan, PlanOptions, make_plan, plan_here
from recipes.schema import OpdConfig

TEACHER = ("--opd.loss", "full", "--opd.teacher", "model", "--opd.teacher_model", "122b")


def config_of(tracker: str, *words: str) -> OpdConfig:
    return load_config("opd", ["--tracker", tracker, *words])


def pool(plan: ClusterPlan, role: str) -> Pool:
    return next(pool for pool in plan.pools if pool.role == role)


def gpus(pool: Pool) -> list[tuple[int, int]]:
    return [place for replica in pool.gpus for place in replica]


@pytest.mark.parametrize("name", ["1x8x80", "1x8x141", "2x8x80", "2x8x141"])
@pytest.mark.parametrize("tracker", ["2b", "4b", "9b"])
def test_the_named_trackers_fit_every_preset_with_base_and_teacher(name: str, tracker: str) -> None:
    plan = make_plan(config_of(tracker, *TEACHER), clusters()[name], PlanOptions(base="122b"))
    assert [p.role for p in plan.pools] == ["base and teacher", "students", "trainer"]
    assert pool(plan, "base and teacher").tensor_parallel == (4 if name.endswith("80") else 2)
    assert not plan.colocated


def test_what_is_placed_where_on_one_node() -> None:
    plan = make_plan(config_of("9b", *TEACHER), clusters()["1x8x80"], PlanOptions(base="122b"))
    assert gpus(pool(plan, "base and teacher")) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert gpus(pool(plan, "students")) == [(0, 4), (0, 5)]
    assert gpus(pool(plan, "trainer")) == [(0, 6), (0, 7)]
    text = plan.text()
    assert "base and teacher (122b): 1 engine, tensor parallel 4" in text
    assert "on node 0, GPUs 0-3" in text and "idle GPUs: 0" in text
    apart = make_plan(config_of("9b", *TEACHER), clusters()["2x8x141"], PlanOptions(base="35b"))
    assert [p.role for p in apart.pools][:2] == ["base", "teacher"]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["tiny", "2b", "4b", "9b"]),
    st.integers(1, 3),
    st.integers(1, 9),
    st.floats(20, 200),
    st.booleans(),
    st.sampled_from([None, "9b", "35b"]),
    st.booleans(),
)
def test_nothing_is_overfull_and_only_colocated_roles_share(
    tracker: str, nodes: int, each: int, gib: float, full: bool, base: str | None, teacher: bool
) -> None:
    words = [*(["--student.lora", "null"] if full else []), *(TEACHER[:5] if teacher else ())]
    config = config_of(tracker, *words, *(["9b"] if teacher else []))
    cluster = Cluster("made", nodes, each, gib)
    try:
        plan = make_plan(config, cluster, PlanOptions(base))
    except TooBig:
        return
    load: dict[tuple[int, int], float] = {}
    for one in plan.pools:
        for replica in one.gpus:
            assert len(replica) == one.tensor_parallel * one.pipeline_parallel
            assert one.pipeline_parallel > 1 or len({node for node, _ in replica}) == 1
            for place in replica:
                assert plan.colocated or place not in load
                load[place] = load.get(place, 0.0) + total(one.memory)
    assert all(0 <= node < nodes and 0 <= gpu < each for node, gpu in load)
    assert max(load.values()) <= cluster.usable_gib + 1e-9


def test_a_single_gpu_holds_engine_and_trainer() -> None:
    plan = make_plan(config_of("2b"), Cluster("one", 1, 1, 79), PlanOptions())
    assert plan.colocated and gpus(pool(plan, "students")) == gpus(pool(plan, "trainer")) == [(0, 0)]
    assert any("share their GPUs" in note for note in plan.notes)


def test_a_model_larger_than_a_node_is_a_pipeline_over_nodes() -> None:
    plan = make_plan(config_of("2b"), Cluster("thin", 3, 4, 40), PlanOptions(base="122b"))
    base = pool(plan, "base")
    assert (base.tensor_parallel, base.pipeline_parallel) == (4, 2)
    assert {node for node, _ in gpus(base)} == {0, 1}


@pytest.mark.parametrize(
    ("tracker", "words", "name", "options", "reason"),
    [
        (
            "9b",
            ("--student.lora", "null", *TEACHER),
            "1x8x80",
            PlanOptions("122b"),
            r"the trainer needs \d+ GiB",
        ),
        ("122b", ("--student.lora", "null"), "2x8x141", PlanOptions(), r"the trainer needs \d+ GiB"),
        ("122b", (), "1x8x80", PlanOptions("122b"), "needs 8 GPUs, 4 are left"),
        ("2b", TEACHER, "1x8x80", PlanOptions("35b", ranks=12), "trainer"),
    ],
)
def test_a_refusal_names_a_fit_that_fits(
    tracker: str, words: tuple[str, ...], name: str, options: PlanOptions, reason: str
) -> None:
    with pytest.raises(TooBig, match=rf"does not fit {name}: .*{reason}") as caught:
        run_plan(config_of(tracker, *words), clusters()[name], options)
    hints = str(caught.value).partition("Nearest fit: ")[2].split("; or ")
    assert hints[0]
    for hint in hints:
        changes = hint.split()
        cluster, base, given = clusters()[name], options.base, list(words)
        if changes[0] == "--cluster":
            cluster = clusters()[changes[1]]
        elif changes[0] == "--base":
            base = changes[1]
        elif changes[0] == "--tracker":
            tracker = changes[1]
        else:
            given = [word for word in given if word not in ("--student.lora", "null")] + changes
        make_plan(config_of(tracker, *given), cluster, PlanOptions(base, options.ranks))


def test_nothing_near_is_said_as_such() -> None:
    with pytest.raises(TooBig, match="Nothing near it fits: take a smaller tracker"):
        run_plan(config_of("2b"), Cluster("huge but tiny GPUs", 400, 8, 4), PlanOptions())


def test_options_are_heeded_or_refused() -> None:
    plan = make_plan(config_of("9b"), clusters()["1x8x80"], PlanOptions(ranks=3, zero=3))
    assert pool(plan, "trainer").replicas == 3 and pool(plan, "trainer").zero == 3
    with pytest.raises(UnknownName, match="cluster '1x8x90'"):
        cluster_named("1x8x90")
    wide = config_of("2b", "--engine.tensor_parallel", "16")
    with pytest.raises(TooBig, match="engine.tensor_parallel"):
        make_plan(wide, clusters()["1x8x80"], PlanOptions())


def test_the_step_counts_samples_and_what_a_rank_gets() -> None:
    config = config_of(
        "2b", "--opd.dialogues=64", "--opd.group=4", "--opd.teacher=privileged", "--opd.loss=full"
    )
    plan = make_plan(config, clusters()["1x8x141"], PlanOptions())
    step = plan.step
    assert step.samples == 256 and step.tokens == step.scored == pytest.approx(256 * step.tokens_a_dialogue)
    assert step.tokens_a_rank * pool(plan, "trainer").replicas == pytest.approx(step.tokens)
    assert "frozen start" in pool(plan, "trainer").memory


def test_the_command_prints_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--tracker", "4b", "--cluster", "2x8x80", "--base", "35b"]) == 0
    assert re.search(r"plan: tracker 4b on 2x8x80: 2 x 8 GPUs", capsys.readouterr().out)
    assert cli.main(["plan", "--tracker", "4b", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["cluster"]["gpus_per_node"] == 8 and {p["role"] for p in made["pools"]} == {
        "students",
        "trainer",
    }
    assert cli.main(["plan", "--tracker", "122b", "--student.lora", "null"]) == 2
    assert "Nearest fit" in capsys.readouterr().err
    assert parse_overrides(["--json"]) == {"json": True}  # not a recipe key: it must not reach the recipe


def test_a_run_on_gpus_prints_its_plan_and_refuses_what_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(placement, "gpus_free_gib", lambda: [78.0, 79.0])
    monkeypatch.setattr("rollout.models.vllm_available", lambda: (True, "vLLM is installed"))
    assert cluster_here() == Cluster("this machine", 1, 2, 78.0)
    plan = plan_here(config_of("2b", "--engine.replicas", "2"))
    assert plan is not None and gpus(pool(plan, "students")) == [(0, 0), (0, 1)]
    assert gpus(pool(plan, "trainer")) == [(0, 0)]
    with pytest.raises(TooBig, match=r"3 engines of 1 GPUs .* need 3 GPUs, this machine has 2"):
        plan_here(config_of("2b", "--engine.replicas", "3"))
    with pytest.raises(TooBig, match="the first GPU would hold 1 engine of"):
        plan_here(config_of("9b", "--student.lora", "null"))
    assert (
        plan_here(config_of("2b", "--engine.replicas", "3", "--engine.ray_address", "10.0.0.1:6379")) is None
    )
    assert plan_here(config_of("owner/unheard-of")) is None
    inside = plan_here(config_of("2b", "--engine.replicas", "2", "--engine.kind", "local"))
    assert inside is not None and gpus(pool(inside, "students")) == [(0, 0), (0, 0)]
    monkeypatch.setattr(preflight, "gpu_free_gib", lambda: 79.0)
    assert cli.main(["opd", "--tracker", "2b", "--dry-run", "--name", "never-started"]) == 0
    assert "plan: tracker 2b on this machine: 1 x 2 GPUs" in capsys.readouterr().out
    monkeypatch.setattr(placement, "gpus_free_gib", list)
    assert plan_here(config_of("2b")) is None and cluster_named(None) == clusters()["1x8x80"]


def test_every_error_is_the_users() -> None:
    assert issubclass(TooBig, ConfigError)

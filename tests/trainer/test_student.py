from __future__ import annotations

import copy
import math
import sys
from pathlib import Path

import pytest
import torch

from envs.errors import CheckpointError, ConfigError, DataError, TrainingError, UnknownName
from trainer.student import LoraConfig, Student, StudentConfig
from trainer.teacher import ModelTeacher
from trainer.types import Branch, Row

sys.path.insert(0, str(Path(__file__).parent))
import tiny_models

MODELS = {"llama": tiny_models.llama, "qwen": tiny_models.qwen35}
ALL_LOSSES = ["expert", "full", "sampled", "state", "student_topk", "teacher_topk"]


def student(kind="llama", lora=None, **changes) -> Student:
    settings = {"dtype": "float32", "lr": 0.02, "schedule": "constant", "tokens_per_micro": 10**6} | changes
    return Student(StudentConfig(model="", lora=lora, **settings), model=MODELS[kind]())


def gradients(made: Student, rows, loss, **options):
    """The gradients of a step, and its metrics; clipping off and the update undone by the caller's throwing it away."""
    seen = {}
    step = made.optimizer.step

    def spy():
        seen.update({n: made.optimizer.grad_buffer(n).clone() for n in made.optimizer.parameters})
        return step()

    made.optimizer.step = spy  # type: ignore[method-assign]
    metrics = made.step(rows, loss, **options)
    return seen, metrics


def assert_same_gradients(a, b):
    assert a.keys() == b.keys()
    for name in a:
        scale = max(b[name].abs().max().item(), 1e-3)
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=2e-5 * scale, msg=name)


def teacher_for(made: Student) -> ModelTeacher:
    return ModelTeacher(tiny_models.llama(seed=5), privileged=True)


@pytest.mark.parametrize("kind", MODELS)
def test_the_hybrid_is_padded_and_plain_attention_packed(kind):
    assert student(kind).packed == (kind == "llama")


@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_packing_padding_micro_batches_and_order_change_nothing(loss):
    rows = tiny_models.rows(count=6)
    base = student()
    reference, metrics = gradients(base, rows, loss, teacher=teacher_for(base))
    others = [
        (student(packing="padded"), rows),
        (student(tokens_per_micro=1), rows),  # one row a micro-batch
        (student(tokens_per_micro=70), rows),
        (student(packing="padded", tokens_per_micro=120), rows),
        (student(), rows[::-1]),
        (student(gradient_checkpointing=True), rows),
    ]
    assert others[1][0].packed and not others[0][0].packed
    for made, given in others:
        found, other_metrics = gradients(made, given, loss, teacher=teacher_for(made))
        assert_same_gradients(found, reference)
        for name in ("loss", "grad_norm", "trained_tokens"):
            assert other_metrics[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name


def test_hybrid_gradients_do_not_depend_on_micro_batches():
    rows = tiny_models.rows(count=4)
    reference, _ = gradients(student("qwen"), rows, "expert")
    found, _ = gradients(student("qwen", tokens_per_micro=1), rows, "expert")
    assert_same_gradients(found, reference)


def test_gradient_equals_plain_autograd():
    """Against the model's own logits, one row at a time, no packing and no fused loss."""
    rows = tiny_models.rows(branches=False)
    made = student()
    found, metrics = gradients(made, rows, {"expert": 1.0})
    model = tiny_models.llama()
    count = sum(row.trained() for row in rows)
    total = torch.zeros(())
    for row in rows:
        logq = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        at = 0
        for start, end in row.spans:
            for t in range(start, end):
                total = total - row.weights[at] * logq[t - 1, row.ids[t]] / count
                at += 1
    total.backward()
    assert metrics["loss"] == pytest.approx(total.item(), rel=1e-4)
    assert_same_gradients(found, {n: p.grad for n, p in model.named_parameters()})


def test_two_ranks_with_shared_denominators_add_up():
    rows = tiny_models.rows(count=6, branches=False)
    whole, _ = gradients(student(clip=0.0), rows, "state")
    counts = {"state": float(sum(row.trained() for row in rows))}
    one, _ = gradients(student(clip=0.0), rows[:2], "state", denominators=counts)
    two, _ = gradients(student(clip=0.0), rows[2:], "state", denominators=counts)
    assert_same_gradients({n: one[n] + two[n] for n in one}, whole)


def test_mixed_losses_have_their_own_counts():
    rows = tiny_models.rows()
    made = student()
    teacher = teacher_for(made)
    full, m_full = gradients(student(), rows, "full", teacher=teacher)
    expert, m_expert = gradients(student(), rows, "expert")
    both, m = gradients(made, rows, {"full": 1.0, "expert": 0.25}, teacher=teacher)
    assert_same_gradients(both, {n: full[n] + 0.25 * expert[n] for n in full})
    assert m["full/loss"] == pytest.approx(m_full["loss"], rel=1e-4)
    assert m["expert/loss"] == pytest.approx(m_expert["loss"], rel=1e-4)
    assert m["loss"] == pytest.approx(m["full/loss"] + 0.25 * m["expert/loss"], rel=1e-5)


@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_one_token_responses_train(loss):
    row = Row("one", ids=[3, 4], spans=[(1, 2)], old_logprobs=[-2.0], weights=[1.0])
    row.teacher_ids, row.teacher_spans = [9, 3, 4], [(2, 3)]
    made = student()
    assert made.step([row], loss, teacher=teacher_for(made))["grad_norm"] > 0


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_steps_learn(lora):
    made = student(lora=lora)
    rows = tiny_models.rows(count=3)
    losses = [made.step(rows, "expert")["loss"] for _ in range(40)]
    assert losses[-1] < 0.6 * losses[0]


def test_distillation_approaches_the_teacher():
    made = student()
    teacher = ModelTeacher(tiny_models.llama(seed=5), privileged=False)
    rows = tiny_models.rows(count=3, branches=False)
    for row in rows:
        row.weights = []
    values = [made.step(rows, "full", teacher=teacher)["divergence"] for _ in range(60)]
    assert 0 <= values[-1] < 0.3 * values[0]


@pytest.mark.parametrize("kind", MODELS)
def test_lora_merged_equals_adapter_forward(kind):
    made = student(kind, lora=LoraConfig(rank=4, alpha=8))
    rows = tiny_models.rows(count=3)
    for _ in range(3):
        made.step(rows, "expert")
    plain = MODELS[kind](seed=99)
    missing = plain.load_state_dict(made.export_weights(), strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys
    merged = Student(StudentConfig(model="", dtype="float32"), model=plain)
    torch.testing.assert_close(merged.hidden(rows), made.hidden(rows), rtol=1e-4, atol=1e-4)
    assert made.trained_count < 0.5 * made.parameters_count


def test_export_and_save_pretrained_round_trip(tmp_path):
    from transformers import AutoModelForCausalLM

    made = student()
    rows = tiny_models.rows(count=2)
    made.step(rows, "expert")
    weights = made.export_weights()
    assert "lm_head.weight" not in weights and "model.embed_tokens.weight" in weights  # tied
    untied = Student(StudentConfig(model="", dtype="bfloat16"), model=tiny_models.llama(tied=False))
    assert untied.export_weights()["lm_head.weight"].dtype == torch.bfloat16
    made.save_pretrained(tmp_path / "m")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    again = Student(StudentConfig(model="", dtype="float32"), model=loaded)
    assert torch.equal(again.hidden(rows), made.hidden(rows))
    assert Student(StudentConfig(model=str(tmp_path / "m"), dtype="float32")).packed


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_is_exact(lora, dtype, tmp_path):
    import json

    from safetensors.torch import load_file, save_file

    rows = tiny_models.rows(count=3)
    options = {"lora": lora, "dtype": dtype, "warmup_steps": 2, "total_steps": 9, "schedule": "cosine"}
    straight = student(**options)
    for _ in range(5):
        straight.step(rows, "expert")
    first = student(**options)
    for _ in range(2):
        first.step(rows, "expert")
    tensors, scalars = first.state_dict()
    save_file(tensors, tmp_path / "s.safetensors")
    text = json.dumps(scalars)
    random_after = torch.rand(3)
    resumed = student(**options, seed=7)
    resumed.load_state_dict(load_file(tmp_path / "s.safetensors"), json.loads(text))
    assert torch.equal(torch.rand(3), random_after)
    for _ in range(3):
        resumed.step(rows, "expert")
    mine, theirs = resumed.export_weights(), straight.export_weights()
    assert all(torch.equal(mine[n], theirs[n]) for n in theirs)
    with pytest.raises(CheckpointError, match="lora_rank"):
        student(lora=LoraConfig(rank=2), dtype=dtype).load_state_dict(tensors, scalars)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_a_frozen_teacher_stays_while_the_student_moves(lora):
    made = student(lora=lora)
    rows = tiny_models.rows(count=3, branches=False)
    made.step(rows, "expert")  # warm-up: the frozen start is not the base model
    teacher = ModelTeacher.frozen(made, privileged=False)
    start = made.hidden(rows)
    assert torch.equal(teacher.hidden(rows), start)
    hinted = ModelTeacher.frozen(made, privileged=True).hidden(rows)
    torch.testing.assert_close(hinted, made.hidden(rows, which="teacher"))
    first = made.step(rows, "full", teacher=teacher)
    assert (
        first["divergence"] == pytest.approx(0.0, abs=1e-5) and first["grad_norm"] < 1e-3
    )  # teacher = student
    for _ in range(3):
        made.step(rows, "expert")
    assert torch.equal(teacher.hidden(rows), start)
    assert not torch.equal(made.hidden(rows), start)
    assert made.step(rows, "full", teacher=teacher)["divergence"] > 1e-3


def test_logprobs_are_those_of_the_model():
    made = student()
    rows = tiny_models.rows(count=2)
    row = rows[0]
    logq = made.base(torch.tensor([row.ids]), segments=(_segment(row),)).logits[0].log_softmax(-1)
    golden = [logq[t - 1, row.ids[t]].item() for start, end in row.spans for t in range(start, end)]
    assert made.logprobs(rows)[: len(golden)].tolist() == pytest.approx(golden, rel=1e-4, abs=1e-5)


def _segment(row):
    from trainer.packing import Segment

    return Segment(len(row.ids))


def test_damaged_values_are_refused_and_nothing_moves():
    made = student()
    rows = tiny_models.rows(count=3, branches=False)
    before = {n: t.clone() for n, t in made.export_weights().items()}
    bad = copy.deepcopy(rows)
    bad[2].weights[0] = math.nan
    with pytest.raises(TrainingError, match="not finite"):
        made.step(bad, "expert")
    with torch.no_grad():
        broken = tiny_models.llama(seed=5)
        broken.model.norm.weight.fill_(math.inf)
    with pytest.raises(TrainingError, match="'full'.*rows"):
        made.step(rows, "full", teacher=ModelTeacher(broken, privileged=False))
    after = made.export_weights()
    assert all(torch.equal(before[n], after[n]) for n in before)
    clean, _ = gradients(made, rows, "expert")
    fresh, _ = gradients(student(), rows, "expert")
    assert_same_gradients(clean, fresh)  # nothing of the refused steps is left in the sums


def test_bad_calls():
    made = student()
    rows = tiny_models.rows(count=2, branches=False)
    with pytest.raises(ConfigError, match="needs a teacher"):
        made.step(rows, "full")
    with pytest.raises(UnknownName, match="Did you mean 'expert'"):
        made.step(rows, "expertt")
    rows[1].old_logprobs = []
    with pytest.raises(ConfigError, match="'row1' has 0 of 1 old_logprobs"):
        made.step(rows, "state")
    with pytest.raises(DataError, match="nothing to train on"):
        made.step([Row("x", ids=[1, 2, 3], spans=[])], "expert")
    with pytest.raises(DataError, match="branch 0"):
        made.step([Row("x", ids=[1, 2, 3], spans=[], branches=[Branch(9, [1])])], "expert")
    with pytest.raises(ConfigError, match="dtype"):
        student(dtype="float8")
    with pytest.raises(ConfigError, match="LoRA targets"):
        student(lora=LoraConfig(targets=("lm_head",)))
    with pytest.raises(ConfigError, match="LoRA targets.*no_such"):
        student(lora=LoraConfig(targets=("no_such_layer",)))
    with pytest.raises(ConfigError, match="cannot load a model"):
        Student(StudentConfig(model="/nowhere/at/all", dtype="float32"))


@pytest.mark.parametrize("kind", list(MODELS))
def test_frozen_embeddings_stay_and_the_rest_learns_as_before(kind):
    rows = tiny_models.rows()
    whole, frozen = student(kind), student(kind, freeze_embeddings=True)
    before = {name: tensor.clone() for name, tensor in frozen.export_weights().items()}
    seen, metrics = gradients(whole, rows, "expert")
    mine, frozen_metrics = gradients(frozen, rows, "expert")
    embeddings = {name for name in before if "embed_tokens" in name or "lm_head" in name}
    assert embeddings and set(seen) - set(mine) == embeddings
    for name, grad in mine.items():
        torch.testing.assert_close(grad, seen[name], rtol=1e-4, atol=1e-6)
    assert frozen_metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    after = frozen.export_weights()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) == (name in embeddings) for name in before)
    tensors, scalars = frozen.state_dict()
    assert not any("embed_tokens" in name for name in tensors)
    again = student(kind, freeze_embeddings=True)
    again.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, scalars)
    for one in (frozen, again):
        one.step(rows, "expert")
    assert all(
        torch.equal(a, b)
        for a, b in zip(frozen.export_weights().values(), again.export_weights().values(), strict=True)
    )

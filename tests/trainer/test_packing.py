from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch

from envs.errors import DataError
from trainer.packing import (
    PACKED_ATTENTION,
    View,
    backbone_hidden,
    pack,
    pad,
    plan,
    probe_packing,
    row_view,
    teacher_view,
)
from trainer.types import Branch, Row

sys.path.insert(0, str(Path(__file__).parent))
import tiny_models


def hidden_and_grads(model, batches, implementation):
    model = copy.deepcopy(model)
    model.config._attn_implementation = implementation
    hidden = torch.cat([backbone_hidden(model.get_decoder(), batch) for batch in batches])
    rng = torch.Generator().manual_seed(1)
    (hidden * torch.randn(hidden.shape, generator=rng)).sum().backward()
    return hidden.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_same(a, b):
    torch.testing.assert_close(a[0], b[0], rtol=1e-5, atol=1e-5)
    assert a[1].keys() == b[1].keys()
    for name in a[1]:
        scale = b[1][name].abs().max().item()
        torch.testing.assert_close(a[1][name], b[1][name], rtol=1e-4, atol=1e-5 * max(scale, 1.0), msg=name)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("branches", [False, True])
def test_packed_equals_padded_equals_one_at_a_time(branches, kv_heads):
    model = tiny_models.llama(kv_heads=kv_heads)
    views = [row_view(row) for row in tiny_models.rows(branches=branches)]
    alone = hidden_and_grads(model, [pad([view]) for view in views], "sdpa")
    assert_same(hidden_and_grads(model, [pad(views)], "sdpa"), alone)
    assert_same(hidden_and_grads(model, [pack(views)], PACKED_ATTENTION), alone)
    assert_same(hidden_and_grads(model, [pack(views[:2]), pack(views[2:])], PACKED_ATTENTION), alone)


def test_padded_is_exact_on_a_hybrid_model_which_cannot_be_packed():
    model = tiny_models.qwen35()
    views = [row_view(row) for row in tiny_models.rows()]
    alone = hidden_and_grads(model, [pad([view]) for view in views], "sdpa")
    assert_same(hidden_and_grads(model, [pad(views)], "sdpa"), alone)
    assert not probe_packing(model, model.get_decoder(), vocab=tiny_models.VOCAB)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probe_accepts_plain_attention(dtype):
    model = tiny_models.llama().to(dtype)
    assert probe_packing(model, model.get_decoder(), vocab=tiny_models.VOCAB)
    assert model.config._attn_implementation == PACKED_ATTENTION
    assert model.training  # as it was


def test_probe_refuses_a_sliding_window():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        attn_implementation="sdpa",
    )
    model = MistralForCausalLM(config)
    assert not probe_packing(model, model.get_decoder(), vocab=97)


def test_order_targets_and_positions():
    row = Row(
        "a", ids=[5, 6, 7, 8, 9], spans=[(1, 3), (4, 5)], branches=[Branch(2, [50, 51]), Branch(5, [60])]
    )
    other = Row("b", ids=[1, 2, 3], spans=[(2, 3)])
    for batch in (pack([row_view(row), row_view(other)]), pad([row_view(row), row_view(other)])):
        assert batch.targets_M.tolist() == [6, 7, 9, 50, 51, 60, 3]
        assert batch.branch_M.tolist() == [False] * 3 + [True] * 3 + [False]
        assert batch.view_M.tolist() == [0] * 6 + [1]
        flat = batch.input_ids_BT.flatten()[batch.predict_M]
        assert flat.tolist() == [5, 6, 8, 6, 50, 9, 2]  # the token before each target
    packed = pack([row_view(row), row_view(other)])
    assert packed.position_ids_BT.tolist() == [[0, 1, 2, 3, 4, 2, 3, 5, 0, 1, 2]]


def test_the_end_of_sequence_token_counts_even_where_it_is_the_pad_token():
    """Masks come from lengths, so padding with the id of a trained token hides nothing."""
    row, longer = Row("a", ids=[5, 6, 0], spans=[(1, 3)]), Row("b", ids=[1, 2, 3, 4, 0], spans=[(3, 5)])
    batch = pad([row_view(row), row_view(longer)], pad_id=0)
    assert batch.targets_M.tolist() == [6, 0, 4, 0]
    assert batch.attention_mask_BT is not None
    assert batch.attention_mask_BT.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_unneeded_tail_is_dropped():
    row = Row("a", ids=list(range(10)), spans=[(2, 4)], branches=[Branch(6, [1])])
    assert len(row_view(row, branches=False).ids) == 4
    assert len(row_view(row).ids) == 6
    assert row_view(row, spans=False).trained() == 1


@pytest.mark.parametrize("packed", [True, False])
def test_plan_covers_every_view_once_within_the_budget(packed):
    views = [row_view(row) for row in tiny_models.rows(count=17)] + [View([1, 2], [])]
    micros = plan(views, 60, packed=packed)
    assert sorted(i for micro in micros for i in micro) == list(
        range(17)
    )  # the one with nothing to train is out
    for micro in micros:
        if packed:
            size = sum(views[i].tokens() for i in micro)
        else:
            batch = pad([views[i] for i in micro])
            size = batch.input_ids_BT.numel()
        assert size <= 60 or len(micro) == 1
    assert len(plan(views, 10**6, packed=packed)) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row("x", ids=[1, 2, 3], spans=[(0, 2)]), r"'x': spans \(0, 2\)"),
        (Row("x", ids=[1, 2, 3], spans=[(2, 4)]), r"end by 3"),
        (Row("x", ids=[1, 2, 3], spans=[(2, 3), (1, 2)]), "in order"),
        (Row("x", ids=[1, 2, 3], spans=[(1, 3)], weights=[1.0]), "1 weights for 2 trained"),
        (Row("x", ids=[1, 2, 3], spans=[(1, 3)], old_logprobs=[0.1]), "1 old_logprobs for 2"),
        (Row("x", ids=[1, 2, 3], spans=[], branches=[Branch(4, [1])]), "branch 0: at=4"),
        (Row("x", ids=[1, 2, 3], spans=[], branches=[Branch(1, [])]), "ids not empty"),
    ],
)
def test_rows_that_do_not_fit_are_named(row, message):
    with pytest.raises(DataError, match=message):
        row_view(row)


def test_teacher_tokens_must_be_the_students_own():
    row = Row("x", ids=[1, 2, 3], spans=[(1, 3)])
    with pytest.raises(DataError, match="no teacher_ids"):
        teacher_view(row)
    row.teacher_ids, row.teacher_spans = [9, 9, 1, 2, 4], [(3, 5)]
    with pytest.raises(DataError, match="differ from the student's at number 1"):
        teacher_view(row)
    row.teacher_ids = [9, 9, 1, 2, 3]
    assert teacher_view(row).trained() == 2
    row.teacher_spans = [(3, 4)]
    with pytest.raises(DataError, match="1 against 2"):
        teacher_view(row)

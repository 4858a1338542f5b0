"""The top-k losses against the full divergence on the tiny model: value, direction of the gradient, time.

    make bench ARGS="--rows topk"

Student and teacher are the model `tiny`; the teacher's context also shows the expert's line in each message. Tokens:
the expert's lines of held-out dialogues. The gradient is that of the hidden states.

Shape suffixes: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.divergence import fused_divergence
from trainer.topk import TopkSums, fused_student_topk, fused_teacher_topk

DIALOGUES = 3
SIZES = (1, 4, 16, 64)
ROUNDS = 3

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Hidden states of the student [N, D], of the teacher [N, D], the head of both [V, D], the targets [N]."""


def make_inputs(dialogues: int = DIALOGUES) -> Inputs:
    """Return the inputs from a forward pass of both contexts, float32."""
    from transformers import AutoTokenizer

    from envs.mix import DialogueStream
    from rollout.models import resolve_model
    from rollout.render import Renderer
    from rollout.tracker import TemplateReplies, get_protocol
    from trainer.rows import oracle_row
    from trainer.student import Student, StudentConfig

    folder = resolve_model("tiny")
    renderer, protocol = Renderer(AutoTokenizer.from_pretrained(folder)), get_protocol("log")
    stream = DialogueStream(("calls", "sql", "math"), "heldout", 0, 1, {"drift": 1.0})
    rows = []
    for index in range(dialogues):
        plain, hinted = (
            oracle_row(stream.dialogue_at(index), renderer, protocol, TemplateReplies(0), privileged=shown)
            for shown in (False, True)
        )
        plain.teacher_ids, plain.teacher_spans = hinted.ids, hinted.spans
        rows.append(plain)
    student = Student(StudentConfig(model=str(folder), dtype="float32", freeze_embeddings=True))
    targets = [i for row in rows for start, end in row.spans for i in row.ids[start:end]]
    hidden, teacher = student.hidden(rows), student.hidden(rows, "teacher")
    return hidden.clone(), teacher.clone(), student.head_VD.detach(), torch.tensor(targets)


def gradient(loss: Callable[[Tensor], Tensor], hidden_ND: Tensor) -> tuple[float, Tensor, float]:
    """Return (value, gradient [N, D], seconds of the fastest round)."""
    best = float("inf")
    for _ in range(ROUNDS):
        leaf = hidden_ND.clone().requires_grad_()
        started = time.perf_counter()
        value = loss(leaf)
        value.backward()
        best = min(best, time.perf_counter() - started)
    assert leaf.grad is not None
    return value.item(), leaf.grad, best


def rows() -> list[dict[str, Any]]:
    hidden_ND, teacher_ND, head_VD, targets_N = make_inputs()
    weights_N = torch.full((len(targets_N),), 1.0 / len(targets_N))

    def topk(fused: Callable[..., tuple[Tensor, TopkSums]], k: int) -> Callable[[Tensor], Tensor]:
        return lambda leaf: fused(leaf, head_VD, teacher_ND, head_VD, targets_N, weights_N, k)[0]

    found = []
    for name, fused, beta in (
        ("student_topk", fused_student_topk, 1.0),
        ("teacher_topk", fused_teacher_topk, 0.0),
    ):
        full = gradient(
            lambda leaf, beta=beta: fused_divergence(leaf, head_VD, teacher_ND, head_VD, weights_N, beta)[0],
            hidden_ND,
        )
        for k in SIZES:
            value, grad_ND, seconds = gradient(topk(fused, k), hidden_ND)
            cosine = torch.cosine_similarity(grad_ND.flatten(), full[1].flatten(), 0).item()
            row = f"{name} k={k}, {len(targets_N)} tokens"
            found.append(
                {
                    "row": f"{row}: nats against full",
                    "ours": value,
                    "other": full[0],
                    "ratio": value / full[0],
                }
                | {"goal": "at most 1", "gradient_cosine": cosine}
            )
            found.append(
                {
                    "row": f"{row}: gradient cosine to full",
                    "ours": cosine,
                    "other": None,
                    "ratio": None,
                    "goal": None,
                }
            )
            found.append(
                {
                    "row": f"{row}: s against full",
                    "ours": seconds,
                    "other": full[2],
                    "ratio": full[2] / seconds,
                }
                | {"goal": None}
            )
    return found

"""Teachers in this process: a model scores the student's own tokens, with or without a privileged context.

Shape suffixes: N trained tokens, E the teacher's width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.errors import ConfigError
from trainer.linear_ce import fused_logprobs
from trainer.models import compute_dtype, load_causal_lm, refuse_scaled_logits
from trainer.packing import Batch, View, pack, pad, probe_packing, row_view, teacher_view
from trainer.student import Student, hidden_of_views
from trainer.types import Row


class ModelTeacher:
    """A frozen model. `privileged` teachers read `teacher_ids` of a row, the others its `ids`.

    Make one with `ModelTeacher.load(folder, ...)`, or `ModelTeacher.frozen(student, ...)`: the student as it is now.
    """

    def __init__(
        self, model: Any, *, privileged: bool, tokens_per_micro: int = 4096, name: str = "teacher"
    ) -> None:
        self.privileged = privileged
        self.tokens_per_micro = tokens_per_micro
        self.name = name
        self.model = model.eval().requires_grad_(False)
        refuse_scaled_logits(model.config, name)
        self.backbone = model.get_decoder()
        self.packed = probe_packing(self.model, self.backbone, vocab=self.head_VE.shape[0])

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        privileged: bool,
        dtype: str = "auto",
        device: str = "cpu",
        tokens_per_micro: int = 4096,
    ) -> ModelTeacher:
        """Load a teacher from a model folder. Raises `ConfigError` where that fails."""
        model = load_causal_lm(folder, compute_dtype(dtype, device)).to(device)
        return cls(model, privileged=privileged, tokens_per_micro=tokens_per_micro, name=str(folder))

    @staticmethod
    def frozen(student: Student, *, privileged: bool, tokens_per_micro: int = 4096) -> ModelTeacher:
        """Return the student as it is now: a copy of its weights, or with LoRA of its adapter alone."""
        if student.config.lora is not None:
            return FrozenAdapterTeacher(student, privileged=privileged, tokens_per_micro=tokens_per_micro)
        config: Any = student.base.config
        kept, config._attn_implementation = config._attn_implementation, "sdpa"
        hooks = [(p, p._post_accumulate_grad_hooks) for p in student.base.parameters()]
        grads = [(p, p.grad) for p in student.base.parameters()]
        try:
            for parameter, _ in hooks:  # neither hooks nor sums of gradients belong to the copy
                parameter._post_accumulate_grad_hooks = None
                parameter.grad = None
            model = copy.deepcopy(student.base)
        finally:
            config._attn_implementation = kept
            for parameter, hook in hooks:
                parameter._post_accumulate_grad_hooks = hook
            for parameter, grad in grads:
                parameter.grad = grad
        return ModelTeacher(
            model, privileged=privileged, tokens_per_micro=tokens_per_micro, name="frozen student"
        )

    @property
    def head_VE(self) -> Tensor:
        return self.model.get_output_embeddings().weight.detach()

    def view(self, row: Row) -> View:
        return teacher_view(row) if self.privileged else row_view(row, branches=False)

    @torch.no_grad()
    def hidden(self, rows: Sequence[Row]) -> Tensor:
        """Return the hidden states [N, E] that predict the rows' span tokens in the teacher's context, in order.

        Raises `DataError` for a row without a fitting privileged context.
        """
        views = [self.view(row) for row in rows]
        return hidden_of_views(views, self._batch, self.backbone, self.tokens_per_micro, self.packed)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """Return fp32 [N] log p of the rows' span tokens, in order."""
        targets = [i for row in rows for start, end in row.spans for i in row.ids[start:end]]
        hidden_NE = self.hidden(rows)
        return fused_logprobs(hidden_NE, self.head_VE, torch.tensor(targets, device=hidden_NE.device))[0]

    def _batch(self, views: list[View]) -> Batch:
        return (pack(views) if self.packed else pad(views)).to(self.head_VE.device)

    def check(
        self,
        student: Student,
        *,
        student_tokenizer: Any | None = None,
        teacher_tokenizer: Any | None = None,
        longest: int = 0,
    ) -> None:
        """Refuse a teacher that cannot score this student; raise `ConfigError` naming both values and the fix.

        Vocabulary sizes may differ by padding rows alone. With tokenizers, the maps id -> token must be equal on the
        shared range, and so must the special tokens. `longest` is the longest row in tokens. A canary sequence is
        scored twice: the scores must be finite, equal, and far from uniform.
        """
        if student_tokenizer is not None and teacher_tokenizer is not None:
            check_tokenizers(student_tokenizer, teacher_tokenizer)
        elif student.vocab != self.head_VE.shape[0]:
            raise ConfigError(
                f"student vocabulary {student.vocab}, teacher vocabulary {self.head_VE.shape[0]} ({self.name}): "
                "give both tokenizers, so that it can be checked that they differ by padding alone"
            )
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and longest + 1 > limit:
            raise ConfigError(
                f"the longest row has {longest} tokens but teacher {self.name} reads at most {limit}: "
                "shorten dialogues (max_model_len) or take a teacher with a longer context"
            )
        self.canary(min(student.vocab, self.head_VE.shape[0]))

    @torch.no_grad()
    def canary(self, vocab: int) -> Tensor:
        """Score a fixed sequence twice; return its log-probs. Raises `ConfigError` where they make no sense."""
        ids = _canary_ids(self.model.config, vocab)
        row = Row(id="canary", ids=ids, spans=[(1, len(ids))], teacher_ids=ids, teacher_spans=[(1, len(ids))])
        first_N, second_N = self.logprobs([row]), self.logprobs([row])
        hidden_NE = self.hidden([row])
        _, entropy_N = fused_logprobs(hidden_NE, self.head_VE, torch.tensor(ids[1:], device=hidden_NE.device))
        uniform = torch.log(torch.tensor(float(self.head_VE.shape[0]))).item()
        if not bool(torch.isfinite(first_N).all()):
            raise ConfigError(
                f"teacher {self.name} gives log-probs that are not finite: its weights are damaged"
            )
        if not torch.equal(first_N, second_N):
            raise ConfigError(f"teacher {self.name} scores the same tokens differently a second time")
        if entropy_N.mean().item() > uniform - 1e-3:
            raise ConfigError(
                f"teacher {self.name} is uniform over its vocabulary (entropy {entropy_N.mean().item():.4f} of "
                f"{uniform:.4f} nats): its weights were not loaded"
            )
        return first_N


class FrozenAdapterTeacher(ModelTeacher):
    """The student's base model under a copy of its adapter: a frozen start that costs only the adapter's memory."""

    def __init__(self, student: Student, *, privileged: bool, tokens_per_micro: int = 4096) -> None:
        self.privileged = privileged
        self.tokens_per_micro = tokens_per_micro
        self.name = "frozen adapter"
        self.student = student
        self.weights = student.frozen_copy()
        self.model = student.base
        self.backbone = student.backbone
        self.packed = student.packed

    @torch.no_grad()
    def hidden(self, rows: Sequence[Row]) -> Tensor:
        was_training = self.student.model.training
        self.student.model.eval()
        try:
            with self.student.with_weights(self.weights):
                return super().hidden(rows)
        finally:
            self.student.model.train(was_training)


def check_tokenizers(student: Any, teacher: Any) -> None:
    """Raise `ConfigError` unless both map every shared id to the same token and have the same special tokens."""
    student_vocab, teacher_vocab = student.get_vocab(), teacher.get_vocab()
    shared = min(max(student_vocab.values()), max(teacher_vocab.values())) + 1
    by_id = {i: token for token, i in student_vocab.items() if i < shared}
    other = {i: token for token, i in teacher_vocab.items() if i < shared}
    for i in range(shared):
        if by_id.get(i) != other.get(i):
            raise ConfigError(
                f"tokenizers differ: id {i} is {by_id.get(i)!r} for the student and {other.get(i)!r} for the teacher. "
                "Take a teacher of the student's own model family"
            )
    longer = student_vocab if len(student_vocab) > len(teacher_vocab) else teacher_vocab
    extra = sorted(token for token, i in longer.items() if i >= shared)
    if extra:
        raise ConfigError(
            f"tokenizers differ: one has {len(extra)} tokens more ({extra[0]!r}, ...). Only padding rows of the "
            "embedding may differ; take a teacher of the student's own model family"
        )
    for name in ("eos_token", "bos_token", "pad_token"):
        ours, theirs = getattr(student, name, None), getattr(teacher, name, None)
        if ours != theirs and name != "pad_token":
            raise ConfigError(
                f"{name} is {ours!r} for the student and {theirs!r} for the teacher: set both to the same, else the "
                "student never learns to stop"
            )


def _canary_ids(config: Any, vocab: int) -> list[int]:
    length = min(16, getattr(config, "max_position_embeddings", 16) or 16)
    return [(7 + 131 * k) % vocab for k in range(length)]

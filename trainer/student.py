"""The student: a causal language model, its optimizer, and one optimizer step from rows.

A step runs the backbone alone, picks the positions that predict trained tokens before the head is applied, and lets
a fused loss make loss, hidden-state gradient and head gradient a chunk at a time.

Shape suffixes: M trained tokens of a micro-batch, N those of one loss, D width, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from envs.errors import CheckpointError, ConfigError, DataError, TrainingError
from trainer.linear_ce import fused_logprobs
from trainer.losses import StateWeight, Tokens
from trainer.models import (
    LoraConfig,
    add_lora,
    compute_dtype,
    load_causal_lm,
    lora_delta,
    plain_name,
    refuse_scaled_logits,
)
from trainer.optim import MasterAdamW, OptimConfig, Schedule
from trainer.packing import (
    Batch,
    View,
    backbone_hidden,
    pack,
    pad,
    plan,
    probe_packing,
    row_view,
    teacher_view,
)
from trainer.terms import Term, terms_of, token_values
from trainer.types import Row

if TYPE_CHECKING:
    from trainer.teacher import ModelTeacher


@dataclass(frozen=True, slots=True)
class StudentConfig:
    """`model` is a folder. `dtype` "auto" is bfloat16 where the machine is fast in it, else float32; masters and sums
    are float32 always. `tokens_per_micro` bounds the tokens of one forward pass. `freeze_embeddings`: input and output
    embeddings stay, so that words never trained on keep their place."""

    model: str
    lora: LoraConfig | None = None
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    total_steps: int = 1000
    schedule: Schedule = "cosine"
    final_lr_ratio: float = 0.0
    clip: float = 1.0
    tokens_per_micro: int = 1280
    gradient_checkpointing: bool = False
    freeze_embeddings: bool = False
    packing: Literal["auto", "padded"] = "auto"
    seed: int = 0
    device: str = "cpu"


class Student:
    """A trainable model. `model` may be passed instead of loaded (tests); it is moved to the compute dtype."""

    def __init__(self, config: StudentConfig, model: Any | None = None) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        self.dtype = compute_dtype(config.dtype, config.device)
        base: Any = load_causal_lm(config.model, self.dtype) if model is None else model
        base = base.to(device=config.device, dtype=self.dtype)
        refuse_scaled_logits(base.config, config.model)
        self.tied = base.get_output_embeddings().weight is base.get_input_embeddings().weight
        self.base: Any = base
        self.model: Any = base if config.lora is None else add_lora(base, config.lora)
        if config.freeze_embeddings:
            for embeddings in (base.get_input_embeddings(), base.get_output_embeddings()):
                embeddings.weight.requires_grad_(False)
        self.model.train()
        if config.gradient_checkpointing:
            self.base.gradient_checkpointing_enable({"use_reentrant": False})
        self.backbone: nn.Module = self.base.get_decoder()
        self.vocab = self.head_VD.shape[0]
        self.packed = config.packing == "auto" and probe_packing(self.base, self.backbone, vocab=self.vocab)
        trained = [(plain_name(n), p) for n, p in self.model.named_parameters() if p.requires_grad]
        self.head_name = next((n for n, p in trained if p is self.head_VD), None)
        self.optimizer = MasterAdamW(
            trained,
            OptimConfig(
                lr=config.lr,
                betas=config.betas,
                weight_decay=config.weight_decay,
                warmup_steps=config.warmup_steps,
                total_steps=config.total_steps,
                schedule=config.schedule,
                final_lr_ratio=config.final_lr_ratio,
                clip=config.clip,
            ),
        )

    @property
    def head_VD(self) -> Tensor:
        """The output embedding's weight (the input embedding's where the two are tied)."""
        return self.base.get_output_embeddings().weight

    @property
    def parameters_count(self) -> int:
        """Parameters of the whole model, adapters included, tied weights once."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def trained_count(self) -> int:
        return sum(p.numel() for p in self.optimizer.parameters.values())

    def step(
        self,
        rows: Sequence[Row],
        loss: str | Mapping[str, float] = "expert",
        *,
        teacher: ModelTeacher | None = None,
        beta: float = 1.0,
        ratio_clip: float = 2.0,
        top_k: int = 16,
        state_weight: StateWeight = "none",
        denominators: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Do one optimizer step on `rows` and return metrics (floats).

        `loss` is a name or {name: weight}: each loss has its own global token count, so mixing dilutes none. `expert`
        trains the branches if any row has one, else the spans; the others train the spans. `denominators` replaces the
        counts of this call where other ranks hold rows too.

        Raises `ConfigError` (no teacher where one is needed), `DataError` (a row that does not fit, nothing to train
        on) and `TrainingError` (a loss or gradient that is not finite); the weights are unchanged after any of them.
        """
        started = time.perf_counter()
        terms = terms_of(rows, {loss: 1.0} if isinstance(loss, str) else loss, denominators)
        use_spans = any(not term.branches for term in terms)
        use_branches = any(term.branches for term in terms)
        if any(term.spec.needs_teacher for term in terms) and teacher is None:
            raise ConfigError(f"loss {loss!r} needs a teacher: pass teacher=ModelTeacher(...)")
        for row in rows if any(term.spec.needs_old_logprobs for term in terms) else ():
            if len(row.old_logprobs) != row.trained():
                raise ConfigError(
                    f"loss {loss!r} needs the sampler's log-probs, but row {row.id!r} has {len(row.old_logprobs)} "
                    f"of {row.trained()} old_logprobs"
                )
        options = {"beta": beta, "ratio_clip": ratio_clip, "top_k": top_k, "state_weight": state_weight}
        views = [row_view(row, spans=use_spans, branches=use_branches) for row in rows]
        micros = plan(views, self.config.tokens_per_micro, packed=self.packed)
        teacher_s = 0.0
        try:
            for micro in micros:
                micro_rows = [rows[i] for i in micro]
                teacher_ND = None
                if teacher is not None and any(term.spec.needs_teacher for term in terms):
                    at = time.perf_counter()
                    teacher_ND = teacher.hidden(micro_rows)
                    teacher_s += time.perf_counter() - at
                batch = self._batch([views[i] for i in micro])
                self._backward(batch, micro_rows, terms, teacher, teacher_ND, options)
            metrics = self.optimizer.step()
        except BaseException:
            self.optimizer.zero_grad()  # what was added up belongs to a step that did not happen
            raise
        tokens = sum(view.tokens() for view in views)
        metrics |= {
            "loss": sum(t.weight * t.sums["loss"] for t in terms),
            "micro_batches": float(len(micros)),
        }
        metrics |= {
            "tokens": float(tokens),
            "trained_tokens": sum(t.count for t in terms),
            "teacher_s": teacher_s,
        }
        for term in terms:
            prefix = "" if len(terms) == 1 else f"{term.name}/"
            for name, value in term.sums.items():
                if name != "loss":
                    metrics[prefix + name] = value / term.count
                elif len(terms) > 1:
                    metrics[prefix + name] = value
            metrics |= {prefix + name: value for name, value in term.maxima.items()}
        return metrics | {"step_s": time.perf_counter() - started}

    def _batch(self, views: list[View]) -> Batch:
        return (pack(views) if self.packed else pad(views)).to(self.head_VD.device)

    def _backward(
        self,
        batch: Batch,
        rows: list[Row],
        terms: list[Term],
        teacher: ModelTeacher | None,
        teacher_NE: Tensor | None,
        options: Mapping[str, Any],
    ) -> None:
        """Add the gradients of one micro-batch up and its diagnostics to `terms`."""
        hidden_MD = backbone_hidden(self.backbone, batch)
        head_grad_VD = None if self.head_name is None else self.optimizer.grad_buffer(self.head_name)
        total = hidden_MD.new_zeros((), dtype=torch.float32)
        for term in terms:
            chosen_N = (batch.branch_M == term.branches).nonzero().squeeze(1)
            if chosen_N.numel() == 0:
                continue
            weights, old = token_values(rows, term.branches)
            tokens = Tokens(
                hidden_MD.index_select(0, chosen_N),
                self.head_VD.detach(),
                batch.targets_M[chosen_N],
                torch.tensor(weights, dtype=torch.float32, device=hidden_MD.device) * term.weight,
                torch.tensor(old, dtype=torch.float32, device=hidden_MD.device) if old else None,
                teacher_NE if term.spec.needs_teacher else None,
                teacher.head_VE if teacher is not None else None,
                head_grad_VD,
                rows_N=batch.view_M[chosen_N],
            )
            told = {name: options[name] for name in term.spec.options}
            result = term.spec.function(tokens, denominator=term.count, **told)
            if not bool(torch.isfinite(result.loss)):
                bad = (~torch.isfinite(result.per_token_N)).nonzero().flatten().tolist()
                names = sorted({rows[int(batch.view_M[chosen_N[k]])].id for k in bad})
                raise TrainingError(
                    f"loss {term.name!r} is not finite at {len(bad)} of {len(chosen_N)} tokens, in rows {names[:5]}. "
                    "The step was refused and the weights are unchanged."
                )
            total = total + result.loss
            term.sums["loss"] = term.sums.get("loss", 0.0) + result.loss.item() / (term.weight or 1.0)
            for name, value in result.sums.items():
                term.sums[name] = term.sums.get(name, 0.0) + float(value)
            for name, value in result.maxima.items():
                term.maxima[name] = max(term.maxima.get(name, float("-inf")), float(value))
        if total.requires_grad:
            total.backward()

    @torch.no_grad()
    def hidden(self, rows: Sequence[Row], which: Literal["row", "teacher"] = "row") -> Tensor:
        """Return the detached hidden states [N, D] that predict the rows' span tokens, in order.

        `which` "teacher" reads the same tokens behind each row's privileged context (`teacher_ids`).
        """
        views = [teacher_view(row) if which == "teacher" else row_view(row, branches=False) for row in rows]
        was_training = self.model.training
        self.model.eval()
        try:
            return hidden_of_views(
                views, self._batch, self.backbone, self.config.tokens_per_micro, self.packed
            )
        finally:
            self.model.train(was_training)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], which: Literal["row", "teacher"] = "row") -> Tensor:
        """Return fp32 [N] log q of the rows' span tokens, in order."""
        targets = [i for row in rows for start, end in row.spans for i in row.ids[start:end]]
        hidden_ND = self.hidden(rows, which)
        return fused_logprobs(hidden_ND, self.head_VD, torch.tensor(targets, device=hidden_ND.device))[0]

    @torch.no_grad()
    def export_weights(self) -> dict[str, Tensor]:
        """Return the weights by Hugging Face names in the compute dtype, adapters merged, for an engine.

        A tied head is left out, as in a saved model. Plain weights share memory with the student: copy or load
        them before the next step.
        """
        deltas: dict[str, Tensor] = {}
        if self.config.lora is not None:
            from peft.tuners.lora import LoraLayer

            for name, layer in self.model.named_modules():
                if isinstance(layer, LoraLayer):
                    delta = lora_delta(layer)
                    deltas[plain_name(f"{name}.weight")] = delta
        weights: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            plain = plain_name(name)
            if ".lora_" in plain:
                continue
            tensor = parameter.detach()
            weights[plain] = (tensor.float() + deltas[plain]).to(self.dtype) if plain in deltas else tensor
        return weights

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a plain Hugging Face model folder (safetensors, config), adapters merged. No tokenizer."""
        import copy

        weights = self.export_weights()
        config = copy.deepcopy(self.base.config)
        config._attn_implementation = None
        config.architectures = [type(self.base).__name__]
        config.dtype = self.dtype
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        from safetensors.torch import save_file

        tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        if self.base.generation_config is not None:
            self.base.generation_config.save_pretrained(folder)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return (tensors, scalars) that restore training exactly: masters, moments, generator state; JSON scalars."""
        tensors, scalars = self.optimizer.state_dict()
        tensors["rng.torch"] = torch.get_rng_state()
        scalars |= {"dtype": str(self.dtype), "lora_rank": self.config.lora.rank if self.config.lora else 0}
        return tensors, scalars

    def load_state_dict(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises `CheckpointError` where it is of another student."""
        mine = {"dtype": str(self.dtype), "lora_rank": self.config.lora.rank if self.config.lora else 0}
        for key, value in mine.items():
            if scalars.get(key) != value:
                raise CheckpointError(
                    f"the checkpoint was written with {key}={scalars.get(key)!r}, this run has {key}={value!r}"
                )
        self.optimizer.load_state_dict(tensors, scalars)
        torch.set_rng_state(tensors["rng.torch"].cpu())

    def frozen_copy(self) -> dict[str, Tensor]:
        """Return copies of the trained parameters as they are now, by name; for `with_weights`."""
        return {name: p.detach().clone() for name, p in self.optimizer.parameters.items()}

    @contextmanager
    def with_weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the model compute with `weights` (from `frozen_copy`) in this block. Not for backward passes."""
        parameters = self.optimizer.parameters
        kept = {name: parameters[name].data for name in weights}
        try:
            for name, tensor in weights.items():
                parameters[name].data = tensor
            yield
        finally:
            for name, tensor in kept.items():
                parameters[name].data = tensor


@torch.no_grad()
def hidden_of_views(
    views: Sequence[View], make_batch: Any, backbone: nn.Module, tokens_per_micro: int, packed: bool
) -> Tensor:
    """Return [N, D] hidden states of the views' trained tokens, in the order of the views."""
    parts: dict[int, Tensor] = {}
    for micro in plan(views, tokens_per_micro, packed=packed):
        hidden_MD = backbone_hidden(backbone, make_batch([views[i] for i in micro]))
        sizes = [views[i].trained() for i in micro]
        parts |= dict(zip(micro, hidden_MD.split(sizes), strict=True))
    if not parts:
        raise DataError(f"no trained tokens in {len(views)} rows")
    return torch.cat([parts[i] for i in sorted(parts)])

"""The `local` engine: transformers in this process, on whatever device there is.

Shape suffixes: `B` rows, `L` cached columns (left-padded), `V` vocabulary, `D` hidden size, `P` scored positions,
`K` candidates.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from envs.errors import EngineError
from rollout.checks import GREEDY_BELOW, check_weights
from rollout.engine import Completion, EngineConfig, GenerateRequest, ScoreRequest, Scores
from rollout.engine_loop import COUNTERS, LoopEngine

MAX_ROWS = 64
"""Dialogues decoded together; more wait their turn."""
FORWARD_TOKENS = 8192
"""Tokens of one forward over prompts or sequences to score, padding included."""
CROP_COLUMNS = 32
"""Columns that only padding stands in are dropped from the cache once there are so many."""
HEAD_ROWS = 256
"""Positions whose logits exist at once."""


_load_one_at_a_time = threading.Lock()  # transformers builds models under process-wide switches


class LocalEngine(LoopEngine):
    """`Engine` over a Hugging Face causal language model, with continuous batching.

    New requests join the running batch between two tokens. There is no prefix cache: `cached_tokens` is 0. A
    request's sampled tokens depend on its own seed, not on its neighbours, as far as float arithmetic allows.
    `EngineConfig.extra`: `device` ("cuda" where there is one, else "cpu"), `max_rows`.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(lambda: LocalCore(config), name=f"local engine ({config.model})")


@dataclass(slots=True)
class Row:
    """A request that is being decoded."""

    request: GenerateRequest
    done: Future[Completion]
    random: torch.Generator
    max_tokens: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[np.ndarray] = field(default_factory=list)
    top_logprobs: list[np.ndarray] = field(default_factory=list)


class LocalCore:
    """Model, running rows and their cache. All rows share one left-padded cache of width L."""

    def __init__(self, config: EngineConfig) -> None:
        extra = dict(config.extra)
        self.device = torch.device(extra.pop("device", "cuda" if torch.cuda.is_available() else "cpu"))
        self.max_rows = int(extra.pop("max_rows", MAX_ROWS))
        if extra:
            raise EngineError(
                f"the local engine knows only 'device' and 'max_rows' in extra, not {sorted(extra)}"
            )
        if self.device.type == "cpu":
            torch.set_num_threads(config.threads)  # of this thread: OpenMP keeps the number per thread
        self.model = load_model(config.model, config.dtype).to(self.device)
        self.max_model_len = config.max_model_len
        self.vocab_size = self.model.get_input_embeddings().num_embeddings
        self.weight_version = 0
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._seeds = torch.Generator().manual_seed(config.seed)
        self._waiting: list[Row] = []
        self._scores: list[tuple[ScoreRequest, Future[Scores]]] = []
        self._rows: list[Row] = []
        self._cache: DynamicCache | None = None
        self._mask_BL = torch.empty(0)
        # Layers whose cache is a plain tensor of columns, or a state without columns, can be put side by side.
        self._can_join = not any(DynamicCache(config=self.model.config).is_sliding)

    def capabilities(self) -> Mapping[str, bool]:
        return {"score_candidates": True}

    def shut(self) -> None:
        self._cache = None
        del self.model

    def active(self) -> int:
        return len(self._rows) + len(self._waiting) + len(self._scores)

    def admit_generate(self, request: GenerateRequest, done: Future[Completion]) -> None:
        seed = request.seed
        if seed is None:
            seed = int(torch.randint(2**62, (), generator=self._seeds))
        random = torch.Generator().manual_seed(seed)
        room = self.max_model_len - len(request.prompt_ids)
        self._waiting.append(Row(request, done, random, min(request.max_tokens, room)))

    def admit_score(self, request: ScoreRequest, done: Future[Scores]) -> None:
        self._scores.append((request, done))

    @torch.inference_mode()
    def step(self) -> None:
        if self._scores:
            self._score_some()
        elif self._rows:
            self._decode()
        if self._waiting and (self._can_join or not self._rows) and len(self._rows) < self.max_rows:
            self._prefill()

    # Generation -------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        longest = max(len(row.request.prompt_ids) for row in self._waiting)
        room = min(self.max_rows - len(self._rows), max(1, FORWARD_TOKENS // longest))
        rows, self._waiting = self._waiting[:room], self._waiting[room:]
        ids_BL, mask_BL = pad([row.request.prompt_ids for row in rows], self.device, left=True)
        cache = DynamicCache(config=self.model.config)
        positions_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
        logits_BV = self._forward(ids_BL, mask_BL, positions_BL, cache)
        if self._cache is not None and self._rows:
            columns = max(mask_BL.shape[1], self._mask_BL.shape[1])
            for old, new in zip(self._cache.layers, cache.layers, strict=True):
                join_layer(old, new, columns)
            mask_BL = torch.cat([pad_left(self._mask_BL, columns), pad_left(mask_BL, columns)])
        else:
            self._cache = cache
        self._mask_BL = mask_BL
        self._rows = self._rows + rows
        self.counters["prompt_tokens"] += sum(len(row.request.prompt_ids) for row in rows)
        self._take(rows, logits_BV)

    def _decode(self) -> None:
        assert self._cache is not None
        ids_B1 = torch.tensor([[row.ids[-1]] for row in self._rows], device=self.device)
        self._mask_BL = F.pad(self._mask_BL, (0, 1), value=1)
        positions_B1 = self._mask_BL.sum(1, keepdim=True) - 1
        self._take(self._rows, self._forward(ids_B1, self._mask_BL, positions_B1, self._cache))

    def _forward(
        self, ids_BT: torch.Tensor, mask_BL: torch.Tensor, positions_BT: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Return the fp32 logits [B, V] of the last column."""
        output = self.model(
            input_ids=ids_BT,
            attention_mask=mask_BL,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def _take(self, rows: list[Row], logits_BV: torch.Tensor) -> None:
        """Sample a token for each of `rows`, finish those that are done, and drop them from the cache."""
        logprobs_BV = logits_BV.log_softmax(-1)
        ids_B = sample(logits_BV, [r.request.temperature for r in rows], [r.random for r in rows])
        chosen_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0].tolist()
        most = max(row.request.top_k_logprobs for row in rows)
        top = logprobs_BV.topk(most) if most else None
        top_ids_BK, top_logprobs_BK = (
            (top.indices.cpu().numpy(), top.values.cpu().numpy()) if top else (None, None)
        )
        for at, (row, token) in enumerate(zip(rows, ids_B.tolist(), strict=True)):
            row.ids.append(token)
            row.logprobs.append(chosen_B[at])
            if row.request.top_k_logprobs and top_ids_BK is not None and top_logprobs_BK is not None:
                row.top_ids.append(top_ids_BK[at, : row.request.top_k_logprobs])
                row.top_logprobs.append(top_logprobs_BK[at, : row.request.top_k_logprobs])
        self.counters["output_tokens"] += len(rows)
        keep = [at for at, row in enumerate(self._rows) if not self._finish(row)]
        if len(keep) == len(self._rows):
            return
        self._rows = [self._rows[at] for at in keep]
        if not keep or self._cache is None:
            self._cache = None
            return
        keep_B = torch.tensor(keep, device=self.device)
        self._cache.reorder_cache(cast(torch.LongTensor, keep_B))
        self._mask_BL = self._mask_BL[keep_B]
        empty = int(self._mask_BL.any(0).int().argmax())
        if empty >= CROP_COLUMNS and self._can_join:
            self._mask_BL = self._mask_BL[:, empty:]
            for layer in cast(list[Any], self._cache.layers):
                if getattr(layer, "keys", None) is not None:
                    layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]

    def _finish(self, row: Row) -> bool:
        stopped = row.ids[-1] in row.request.stop_ids
        if not stopped and len(row.ids) < row.max_tokens:
            return False
        row.done.set_result(
            Completion(
                output_ids=tuple(row.ids),
                logprobs=tuple(row.logprobs),
                finish_reason="stop" if stopped else "length",
                weight_version=self.weight_version,
                top_ids_PK=np.stack(row.top_ids).astype(np.int64) if row.top_ids else None,
                top_logprobs_PK=np.stack(row.top_logprobs) if row.top_logprobs else None,
            )
        )
        return True

    # Scoring ----------------------------------------------------------------------------------------------

    def _score_some(self) -> None:
        """Score as many waiting sequences as fit one forward; the longest first, so that padding stays small."""
        self._scores.sort(key=lambda item: len(item[0].ids), reverse=True)
        count = max(1, FORWARD_TOKENS // len(self._scores[0][0].ids))
        batch, self._scores = self._scores[:count], self._scores[count:]
        ids_BL, mask_BL = pad([request.ids for request, _ in batch], self.device, left=False)
        hidden_BLD = self.model.base_model(
            input_ids=ids_BL, attention_mask=mask_BL, use_cache=False
        ).last_hidden_state
        for row, (request, done) in enumerate(batch):
            at_P = torch.tensor(list(request.positions), dtype=torch.long, device=self.device)
            self.counters["prompt_tokens"] += len(request.ids)
            self.counters["scored_tokens"] += len(request.positions)
            done.set_result(self._scores_of(request, hidden_BLD[row, at_P - 1], ids_BL[row, at_P]))

    def _scores_of(self, request: ScoreRequest, hidden_PD: torch.Tensor, ids_P: torch.Tensor) -> Scores:
        head = self.model.get_output_embeddings()
        candidates_PK = request.candidates_PK
        width = request.top_k or (candidates_PK.shape[1] if candidates_PK is not None else 0)
        tokens_P = np.empty(len(ids_P), dtype=np.float32)
        logprobs_PK = np.empty((len(ids_P), width), dtype=np.float32)
        top_PK = np.empty((len(ids_P), request.top_k), dtype=np.int64)
        for start in range(0, len(ids_P), HEAD_ROWS):
            rows = slice(start, start + HEAD_ROWS)
            logprobs_PV = head(hidden_PD[rows]).float().log_softmax(-1)
            tokens_P[rows] = logprobs_PV.gather(1, ids_P[rows, None])[:, 0].cpu().numpy()
            if candidates_PK is not None:
                chosen_PK = torch.as_tensor(candidates_PK[rows].astype(np.int64), device=self.device)
                logprobs_PK[rows] = logprobs_PV.gather(1, chosen_PK).cpu().numpy()
            elif request.top_k:
                top = logprobs_PV.topk(request.top_k)
                top_PK[rows], logprobs_PK[rows] = top.indices.cpu().numpy(), top.values.cpu().numpy()
        return Scores(
            token_logprobs_P=tokens_P,
            logprobs_PK=logprobs_PK if width else None,
            top_ids_PK=top_PK if request.top_k else None,
            weight_version=self.weight_version,
        )

    # Weights ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        groups: dict[int, list[str]] = {}
        for name, parameter in parameters.items():
            groups.setdefault(id(parameter), []).append(name)
        check_weights(weights, {name: tuple(p.shape) for name, p in parameters.items()}, groups.values())
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
        self.weight_version = version
        self.counters["weight_loads"] += 1


def load_model(folder: str, dtype: str) -> Any:
    """Return the causal language model of `folder` in eval mode; raise `EngineError` where it cannot be served."""
    from rollout.models import best_compute_dtype

    name = best_compute_dtype() if dtype == "auto" else dtype
    if name not in ("bfloat16", "float32"):
        raise EngineError(f"dtype must be auto, bfloat16 or float32, got {dtype!r}")
    try:
        with _load_one_at_a_time:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, name), local_files_only=True
            )
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot load a causal language model from {folder}: {error}") from error
    for key in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(model.config, key, None) not in (None, 1, 1.0):
            raise EngineError(
                f"{folder} scales its logits ({key}), which the local engine does not do when it scores"
            )
    return model.eval()


def pad(sequences: list[Any], device: torch.device, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask (1 where there is a token), int64 [B, L]."""
    length = max(len(ids) for ids in sequences)
    ids_BL = torch.zeros(len(sequences), length, dtype=torch.long)
    mask_BL = torch.zeros(len(sequences), length, dtype=torch.long)
    for row, ids in enumerate(sequences):
        at = slice(length - len(ids), length) if left else slice(0, len(ids))
        ids_BL[row, at] = torch.tensor(list(ids))
        mask_BL[row, at] = 1
    return ids_BL.to(device), mask_BL.to(device)


def pad_left(mask_BL: torch.Tensor, columns: int) -> torch.Tensor:
    return F.pad(mask_BL, (columns - mask_BL.shape[1], 0))


def join_layer(old: Any, new: Any, columns: int) -> None:
    """Append the rows of cache layer `new` to `old`, both padded on the left to `columns`."""
    if getattr(old, "keys", None) is not None:  # [B, heads, L, D]
        for name in ("keys", "values"):
            both = [
                F.pad(t, (0, 0, columns - t.shape[2], 0)) for t in (getattr(old, name), getattr(new, name))
            ]
            setattr(old, name, torch.cat(both))
    for name in ("conv_states", "recurrent_states"):  # linear attention: a few [B, ...] by number, no columns
        states = getattr(old, name, None) or []
        for at in range(len(states)):
            states[at] = torch.cat([states[at], getattr(new, name)[at]])


def sample(
    logits_BV: torch.Tensor, temperatures: list[float], randoms: list[torch.Generator]
) -> torch.Tensor:
    """Return a token per row, int64 [B]: the best one at temperature 0, else by inverting the distribution function.

    One uniform number per row and token, from the row's own generator: a row's tokens do not depend on the others.
    """
    best_B = logits_BV.argmax(-1)
    hot = [row for row, temperature in enumerate(temperatures) if temperature >= GREEDY_BELOW]
    if not hot:
        return best_B
    scale_B1 = torch.tensor([[temperatures[row]] for row in hot], device=logits_BV.device)
    uniform_B = torch.cat([torch.rand(1, generator=randoms[row], dtype=torch.float64) for row in hot])
    total_BV = (logits_BV[hot] / scale_B1).softmax(-1).double().cumsum(-1)
    target_B1 = uniform_B.to(logits_BV.device)[:, None] * total_BV[:, -1:]
    best_B[hot] = torch.searchsorted(total_BV, target_B1, right=True)[:, 0].clamp(max=logits_BV.shape[1] - 1)
    return best_B

"""Rows to batches: packed (one sequence, attention confined to its row) or padded (one row a line).

Packed: the rows of a micro-batch, each followed by its branches, stand one after another in one [1, T] sequence.
Position ids start again at every row and go on from `at` for a branch. The point-wise layers run without a single
padding token, and an attention function of our own loops over the rows. Models whose layers carry state along the
sequence (linear attention, convolutions) cannot be packed like this; `probe_packing` finds out on the model itself.

Padded: rows are padded on the right, every branch becomes a row of its own (its prefix is copied).

Both give the trained tokens in the same order: row by row, the tokens of its spans, then those of its branches.

Shape suffixes: B lines, T tokens a line, M trained tokens, S tokens of one row with its branches, Q branch tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from envs.errors import DataError
from trainer.types import Branch, Row

PACKED_ATTENTION = "fluxforge_packed"


@dataclass(frozen=True, slots=True)
class View:
    """What one model sees of a row: the ids, where the trained tokens stand in them, and the branches."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]
    branches: Sequence[Branch] = ()

    def trained(self) -> int:
        return sum(end - start for start, end in self.spans) + sum(len(b.ids) for b in self.branches)

    def tokens(self) -> int:
        return len(self.ids) + sum(len(b.ids) for b in self.branches)


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of a packed sequence: `length` tokens, then the branch tokens with `mask_QS` (True: attend)."""

    length: int
    mask_QS: Tensor | None = None

    def tokens(self) -> int:
        return self.length + (0 if self.mask_QS is None else self.mask_QS.shape[0])


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one forward pass. `predict_M` indexes the flattened [B * T] positions: where to read the
    distribution over `targets_M`. `branch_M` is True for branch tokens. `view_M` is the view's number."""

    input_ids_BT: Tensor
    position_ids_BT: Tensor
    attention_mask_BT: Tensor | None
    segments: tuple[Segment, ...] | None
    predict_M: Tensor
    targets_M: Tensor
    branch_M: Tensor
    view_M: Tensor

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        segments = self.segments
        if segments is not None:
            segments = tuple(
                Segment(s.length, None if s.mask_QS is None else s.mask_QS.to(device)) for s in segments
            )
        mask = self.attention_mask_BT
        return Batch(
            self.input_ids_BT.to(device),
            self.position_ids_BT.to(device),
            None if mask is None else mask.to(device),
            segments,
            self.predict_M.to(device),
            self.targets_M.to(device),
            self.branch_M.to(device),
            self.view_M.to(device),
        )


def row_view(row: Row, *, spans: bool = True, branches: bool = True) -> View:
    """Return the student's view of `row`, with the trained tokens of its spans, its branches, or both.

    The ids end where no trained token needs them. Raises `DataError` for spans or branches that do not fit.
    """
    check_row(row)
    kept_spans = row.spans if spans else []
    kept_branches = row.branches if branches else []
    end = max([end for _, end in kept_spans] + [b.at for b in kept_branches], default=0)
    return View(row.ids[:end], kept_spans, kept_branches)


def teacher_view(row: Row) -> View:
    """Return the privileged view of `row`: the same trained tokens behind the teacher's context.

    Raises `DataError` when there is none or when its trained tokens are not the row's.
    """
    check_row(row)
    if row.teacher_ids is None or row.teacher_spans is None:
        raise DataError(
            f"row {row.id!r} has no teacher_ids and teacher_spans, which a privileged teacher reads"
        )
    _check_spans(row.id, "teacher_spans", row.teacher_spans, len(row.teacher_ids))
    own = [i for start, end in row.spans for i in row.ids[start:end]]
    theirs = [i for start, end in row.teacher_spans for i in row.teacher_ids[start:end]]
    if own != theirs:
        at = next(
            (k for k, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b),
            min(len(own), len(theirs)),
        )
        raise DataError(
            f"row {row.id!r}: the teacher's trained tokens differ from the student's at number {at} "
            f"({len(theirs)} against {len(own)} tokens). Build teacher_ids from the student's own ids."
        )
    end = max((end for _, end in row.teacher_spans), default=0)
    return View(row.teacher_ids[:end], row.teacher_spans)


def check_row(row: Row) -> None:
    """Raise `DataError` naming the row and the field that does not fit."""
    _check_spans(row.id, "spans", row.spans, len(row.ids))
    for name, values in (("old_logprobs", row.old_logprobs), ("weights", row.weights)):
        if values and len(values) != row.trained():
            raise DataError(f"row {row.id!r} has {len(values)} {name} for {row.trained()} trained tokens")
    for number, branch in enumerate(row.branches):
        if not 1 <= branch.at <= len(row.ids) or not branch.ids:
            raise DataError(
                f"row {row.id!r}, branch {number}: at={branch.at} must be in [1, {len(row.ids)}] and ids not empty"
            )


def _check_spans(row_id: str, name: str, spans: Sequence[tuple[int, int]], length: int) -> None:
    last = 1  # the first token has nothing before it to be predicted from
    for start, end in spans:
        if not last <= start <= end <= length:
            raise DataError(
                f"row {row_id!r}: {name} ({start}, {end}) must be in order, from 1 on, and end by {length}"
            )
        last = end


def pack(views: Sequence[View]) -> Batch:
    """Return `views` as one packed sequence (B = 1)."""
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    trained = _Trained()
    for number, view in enumerate(views):
        base = len(ids)
        ids.extend(view.ids)
        positions.extend(range(len(view.ids)))
        for start, end in view.spans:
            trained.add(number, range(base + start - 1, base + end - 1), view.ids[start:end], branch=False)
        for branch in view.branches:
            at = len(ids)
            ids.extend(branch.ids)
            positions.extend(range(branch.at, branch.at + len(branch.ids)))
            predict = [base + branch.at - 1, *range(at, at + len(branch.ids) - 1)]
            trained.add(number, predict, branch.ids, branch=True)
        segments.append(Segment(len(view.ids), _branch_mask(view) if view.branches else None))
    return trained.batch(torch.tensor([ids]), torch.tensor([positions]), None, tuple(segments))


def _branch_mask(view: View) -> Tensor:
    length, total = len(view.ids), view.tokens()
    mask_QS = torch.zeros(total - length, total, dtype=torch.bool)
    at = 0
    for branch in view.branches:
        size = len(branch.ids)
        mask_QS[at : at + size, : branch.at] = True
        mask_QS[at : at + size, length + at : length + at + size] = torch.ones(
            size, size, dtype=torch.bool
        ).tril()
        at += size
    return mask_QS


def pad(views: Sequence[View], pad_id: int = 0) -> Batch:
    """Return `views` one a line, padded on the right, with every branch on a line of its own."""
    lines: list[Sequence[int]] = []
    trained = _Trained()
    places: list[
        tuple[int, int, Sequence[int], Sequence[int], bool]
    ] = []  # view, line, predict, targets, branch
    for number, view in enumerate(views):
        if any(end > start for start, end in view.spans):
            for start, end in view.spans:
                places.append((number, len(lines), range(start - 1, end - 1), view.ids[start:end], False))
            lines.append(view.ids)
        for branch in view.branches:
            predict = range(branch.at - 1, branch.at + len(branch.ids) - 1)
            places.append((number, len(lines), predict, branch.ids, True))
            lines.append([*view.ids[: branch.at], *branch.ids])
    width = max(len(line) for line in lines)
    for number, line, predict, targets, branch in places:
        trained.add(number, [line * width + p for p in predict], targets, branch=branch)
    input_ids_BT = torch.full((len(lines), width), pad_id)
    mask_BT = torch.zeros(len(lines), width, dtype=torch.long)
    for number, line in enumerate(lines):
        input_ids_BT[number, : len(line)] = torch.tensor(line)
        mask_BT[number, : len(line)] = 1
    positions_BT = torch.arange(width).expand(len(lines), width)
    return trained.batch(input_ids_BT, positions_BT, None if bool(mask_BT.all()) else mask_BT, None)


class _Trained:
    """Collects the trained tokens of a batch in order."""

    def __init__(self) -> None:
        self.predict: list[int] = []
        self.targets: list[int] = []
        self.branch: list[bool] = []
        self.view: list[int] = []

    def add(self, view: int, predict: Sequence[int], targets: Sequence[int], *, branch: bool) -> None:
        assert len(predict) == len(targets)
        self.predict.extend(predict)
        self.targets.extend(targets)
        self.branch.extend([branch] * len(targets))
        self.view.extend([view] * len(targets))

    def batch(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, segments: tuple[Segment, ...] | None
    ) -> Batch:
        return Batch(
            ids,
            positions,
            mask,
            segments,
            torch.tensor(self.predict, dtype=torch.long),
            torch.tensor(self.targets, dtype=torch.long),
            torch.tensor(self.branch, dtype=torch.bool),
            torch.tensor(self.view, dtype=torch.long),
        )


def plan(views: Sequence[View], tokens_per_micro: int, *, packed: bool) -> list[list[int]]:
    """Split views into micro-batches of at most `tokens_per_micro` tokens (a longer view stands alone).

    Packed: in the given order. Padded: by falling length, padding and copied prefixes counted. Views without trained
    tokens are left out.
    """
    kept = [i for i, view in enumerate(views) if view.trained()]
    if not packed:
        kept.sort(key=lambda i: (-_longest_line(views[i]), i))
    micros: list[list[int]] = []
    size = lines = width = 0
    for i in kept:
        if packed:
            size += views[i].tokens()
        else:
            lines += _lines(views[i])
            width = max(width, _longest_line(views[i]))
            size = lines * width
        if not micros or size > tokens_per_micro:
            micros.append([])
            size, lines, width = views[i].tokens(), _lines(views[i]), _longest_line(views[i])
            size = size if packed else lines * width
        micros[-1].append(i)
    return micros


def _lines(view: View) -> int:
    return len(view.branches) + any(end > start for start, end in view.spans)


def _longest_line(view: View) -> int:
    return max([len(view.ids) if view.spans else 0] + [b.at + len(b.ids) for b in view.branches])


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    segments: tuple[Segment, ...] | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of each row to itself alone; a transformers attention function.

    `query` [1, heads, T, width], `key` and `value` with as many heads or a divisor. Returns [1, T, heads, width].
    Raises `ValueError` for what it does not do (the probe then chooses padded batches).
    """
    if segments is None or sliding_window is not None or softcap is not None or query.shape[0] != 1:
        raise ValueError(
            "packed attention needs segments, one line, and neither a sliding window nor a soft cap"
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # the grouped form of the CPU kernel is slower than a repeat
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    sizes = [s.tokens() for s in segments]
    # split, not slices: the gradient of a slice is a zero tensor of full length, once for every row
    parts = zip(segments, query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    out = []
    for segment, q, k, v in parts:
        L = segment.length
        options = {"dropout_p": dropout, "scale": scaling}
        if segment.mask_QS is None:
            out.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, **options))
            continue
        q_row, q_branch = q.split([L, q.shape[2] - L], 2)
        out.append(F.scaled_dot_product_attention(q_row, k[:, :, :L], v[:, :, :L], is_causal=True, **options))
        out.append(F.scaled_dot_product_attention(q_branch, k, v, attn_mask=segment.mask_QS, **options))
    return torch.cat([o.transpose(1, 2) for o in out], dim=1), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def backbone_hidden(backbone: nn.Module, batch: Batch) -> Tensor:
    """Run `backbone` (a model without its head) on `batch`; return the hidden states [M, D] that predict the
    trained tokens, in order."""
    kwargs: dict[str, Any] = {} if batch.segments is None else {"segments": batch.segments}
    hidden_BTD = backbone(
        input_ids=batch.input_ids_BT,
        position_ids=batch.position_ids_BT,
        attention_mask=batch.attention_mask_BT,
        use_cache=False,
        **kwargs,
    ).last_hidden_state
    return hidden_BTD.flatten(0, 1).index_select(0, batch.predict_M)


@torch.no_grad()
def probe_packing(model: nn.Module, backbone: nn.Module, *, vocab: int, seed: int = 0) -> bool:
    """Return whether packed rows (with branches) equal rows alone on this very model.

    Two checks: changing the first row must leave the second row's hidden states as they are, bit for bit, and packed
    hidden states must equal padded ones up to the rounding of the dtype. On success the model is left with packed
    attention switched on; else as it was.
    """
    config: Any = model.config
    before = config._attn_implementation
    was_training = model.training
    model.eval()
    rng = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device

    def ids(n: int) -> list[int]:
        return torch.randint(0, vocab, (n,), generator=rng).tolist()

    second = View(ids(29), [(1, 29)], [Branch(7, ids(5)), Branch(20, ids(3))])
    first, other = (
        View(ids(19), [(1, 19)], [Branch(11, ids(4))]),
        View(ids(19), [(1, 19)], [Branch(11, ids(4))]),
    )
    try:
        alone_MD = torch.cat([backbone_hidden(backbone, pad([v]).to(device)) for v in (first, second)])
        config._attn_implementation = PACKED_ATTENTION
        packed_MD = backbone_hidden(backbone, pack([first, second]).to(device))
        moved_MD = backbone_hidden(backbone, pack([other, second]).to(device))
    except (ValueError, TypeError, RuntimeError):
        config._attn_implementation = before
        return False
    finally:
        model.train(was_training)
    n = first.trained()
    exact = torch.equal(packed_MD[n:], moved_MD[n:])
    error = (packed_MD.float() - alone_MD.float()).norm() / alone_MD.float().norm()
    tolerance = 1e-4 if packed_MD.dtype == torch.float32 else 5e-2
    fits = exact and bool(error < tolerance)
    if not fits:
        config._attn_implementation = before
    return fits

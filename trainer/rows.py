"""From dialogues and trajectories to training rows. Token ids go in verbatim; nothing is re-tokenised.

Three kinds of row:
- an *oracle row*: the tracker's part is the expert's lines along the perfect log (warm-up, imitation);
- a *student row*: what the tracker itself wrote, scored by a teacher, trained on policy;
- the *privileged context* of a student row: the same outputs after messages that also hold the expert's
  lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.dialogue import Dialogue
from rollout.expert import expert_edit, oracle_log_texts
from rollout.render import Renderer
from rollout.tracker import TemplateReplies, TrackerProtocol
from rollout.trajectory import Trajectory
from trainer.losses import group_advantages
from trainer.types import Branch, Row


def oracle_row(
    dialogue: Dialogue,
    renderer: Renderer,
    protocol: TrackerProtocol,
    replies: TemplateReplies | None,
    *,
    privileged: bool,
) -> Row:
    """Return the row of a perfect tracker. With `privileged`, each message also shows the expert's lines."""
    texts: list[str] = []
    log: Mapping[str, str] = {}
    for edit in oracle_log_texts(dialogue):
        texts.append(protocol.target(log, edit))
        log = protocol.apply(log, texts[-1]).log
    outputs = [renderer.encode_output(text) for text in texts]
    hints = texts if privileged else [None] * len(texts)
    ids, spans = _assemble(dialogue, outputs, hints, renderer, protocol, replies)
    suffix = "|hinted" if privileged else ""
    return Row(id=f"{dialogue.id}{suffix}", ids=ids, spans=spans, weights=[1.0] * _count(spans))


def logs_before(trajectory: Trajectory) -> list[Mapping[str, str]]:
    """Return the log that the tracker itself had before each turn."""
    return [{}, *(turn.log for turn in trajectory.turns[:-1])]


def student_row(
    trajectory: Trajectory,
    renderer: Renderer,
    protocol: TrackerProtocol,
    replies: TemplateReplies | None,
    *,
    privileged: bool = False,
    branches: bool = False,
    turn_weights: Sequence[float] | None = None,
) -> Row:
    """Return the row of what the tracker wrote.

    `privileged` adds the teacher's context with the expert's lines shown; `branches` hangs the expert's lines
    off the row as side branches; `turn_weights` gives one advantage a turn (default 1).
    """
    spans = trajectory.spans()
    weights = turn_weights if turn_weights is not None else [1.0] * len(spans)
    row = Row(
        id=trajectory.dialogue.id,
        ids=trajectory.ids(),
        spans=spans,
        old_logprobs=[p for turn in trajectory.turns for p in turn.logprobs],
        weights=[w for w, (start, end) in zip(weights, spans, strict=True) for _ in range(end - start)],
    )
    if privileged or branches:
        logs = logs_before(trajectory)
        texts = [protocol.target(log, expert_edit(trajectory.dialogue, t, log)) for t, log in enumerate(logs)]
        if privileged:
            outputs = [turn.output_ids for turn in trajectory.turns]
            row.teacher_ids, row.teacher_spans = _assemble(
                trajectory.dialogue, outputs, texts, renderer, protocol, replies
            )
        if branches:
            row.branches = [
                Branch(at=start, ids=renderer.encode_output(text))
                for (start, _), text in zip(spans, texts, strict=True)
            ]
    return row


def turn_advantages(scores: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return per-turn advantages in a group of trajectories of one dialogue: score minus the group's mean.

    `scores[i][t]` is sample i's state score at turn t. Not divided by the standard deviation, which would
    weigh easy and hard turns alike (Liu et al. 2025, "Understanding R1-Zero-Like Training").
    """
    by_turn = [group_advantages(list(column)) for column in zip(*scores, strict=True)]
    return [list(sample) for sample in zip(*by_turn, strict=True)]


def _assemble(
    dialogue: Dialogue,
    outputs: Sequence[Sequence[int]],
    hints: Sequence[str | None],
    renderer: Renderer,
    protocol: TrackerProtocol,
    replies: TemplateReplies | None,
) -> tuple[list[int], list[tuple[int, int]]]:
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for t, (output, hint) in enumerate(zip(outputs, hints, strict=True)):
        reply = replies(dialogue, t - 1) if replies is not None and t else None
        message = protocol.user_message(dialogue.turns[t].utterance, reply=reply, hint=hint)
        if t == 0:
            ids += renderer.start(protocol.system_prompt(), message)
        else:
            ids += renderer.next(message, outputs[t - 1])
        spans.append((len(ids), len(ids) + len(output)))
        ids += output
    return ids, spans


def _count(spans: Sequence[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)

"""The expert edit: what the message of a turn calls for, given the tracker's own state.

The oracle's state cannot simply be copied into a log that has drifted. The expert changes only what the
turn's edits touch, under the names the tracker already uses: a replaced goal is set where the tracker
keeps it (or added, if it was missed), a withdrawn one is deleted wherever it stands, and where nothing is
left to do the answer is KEEP. The same rules with a mistake put in give slips, to build contexts to
recover from.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from envs.dialogue import Dialogue
from envs.intent import Add, Delete, Goal, Replace, Switch
from rollout.match import (
    FILLERS,
    SLOT_OVERLAP,
    match,
    similarity,
    slot_overlap,
    stale_keys,
    token_f1,
    tokens,
)
from rollout.tracker import TASK_KEY, LogProtocol, find_key, tidy

KEEP = "KEEP"
_KEY_WORDS = 3
_RELATED_TEXT = 0.5
"""Least token F1 at which an unmatched free-text item is taken for a garbled form of a goal."""
_LOG = LogProtocol()


def expert_edit(dialogue: Dialogue, t: int, log: Mapping[str, str]) -> str:
    """Return the log lines that turn `t` (0-based) calls for when the tracker's state before it is `log`."""
    before = dialogue.turns[t - 1].state.goals if t else ()
    after = dialogue.turns[t].state.goals
    gone = dialogue.superseded(t)
    homes = {goal: key for key, goal in match(log, before, dialogue.superseded(t - 1) if t else ())}
    editor = _Editor(dict(log), before, after, gone, homes, dialogue.turns[t].utterance)
    for edit in dialogue.turns[t].edits:
        match edit:
            case Add(goal):
                editor.want(goal)
            case Delete(goal):
                editor.drop(goal)
            case Replace(old, new):
                editor.change(old, new)
            case Switch(_, new):
                editor.switch(new)
    return "\n".join(editor.lines) or KEEP


def oracle_log_texts(dialogue: Dialogue) -> list[str]:
    """Return what a tracker that never errs writes, one text a turn."""
    texts: list[str] = []
    log: dict[str, str] = {}
    for t in range(len(dialogue.turns)):
        texts.append(expert_edit(dialogue, t, log))
        log = _LOG.apply(log, texts[-1]).log
    return texts


def goal_text(goal: Goal) -> str:
    """Return what a SET line says of a goal: the value where there is one, else the text; on one line."""
    return tidy(goal.value if goal.slot and goal.value else goal.text)


def edit_correct(dialogue: Dialogue, t: int, prior: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether going from `prior` to `after` in turn `t` amounts to the expert edit.

    Items that say a wanted goal are compared by goal; all others by name and text, so they must be untouched.
    """
    expert = _LOG.apply(prior, expert_edit(dialogue, t, prior)).log
    return _meaning(dialogue, t, after) == _meaning(dialogue, t, expert)


def same_edit(dialogue: Dialogue, t: int, prior: Mapping[str, str], text: str) -> bool:
    """Return whether log lines amount to the expert edit of turn `t` on `prior`."""
    return edit_correct(dialogue, t, prior, _LOG.apply(prior, text).log)


class _Editor:
    """Edit lines under construction, and the log as it stands after them."""

    def __init__(
        self,
        log: dict[str, str],
        before: tuple[Goal, ...],
        after: tuple[Goal, ...],
        gone: list[Goal],
        homes: dict[Goal, str],
        utterance: str,
    ) -> None:
        self.log = log
        self.after = after
        self.gone = gone
        self.homes = homes
        self.utterance = utterance
        self.slots = {goal.slot for goal in (*before, *after, *gone) if goal.slot and goal.value}
        # An item that says a goal, before or after, is nobody else's to overwrite or delete.
        self.taken = {*homes.values(), *(key for key, _ in match(log, after, gone))}
        self.lines: list[str] = []

    def want(self, goal: Goal, home: str | None = None) -> None:
        """Make the log say `goal`, at `home` if given."""
        said = next((key for key, known in match(self.log, self.after, self.gone) if known == goal), None)
        if said is not None:
            if home is not None and home != said:
                self._delete(home)
            self.taken.add(said)
            return
        if home is None:
            home = self._related(goal)
        if home is None:
            home = self._new_key(goal)
        self._set(home, goal)

    def drop(self, goal: Goal) -> None:
        """Make the log not say `goal`."""
        home = self._home(goal)
        if home is not None:
            self._delete(home)
        self._delete_copies(goal)

    def change(self, old: Goal, new: Goal) -> None:
        self.want(new, self._home(old))
        self._delete_copies(old)

    def switch(self, name: str) -> None:
        if self.log.get(TASK_KEY) != name:
            self._write(f"TASK {name}")

    def _home(self, goal: Goal) -> str | None:
        """Return the key under which the tracker keeps `goal`, or what it made of it."""
        key = self.homes.get(goal)
        return key if key is not None and key in self.log else self._related(goal)

    def _related(self, goal: Goal) -> str | None:
        """Return the free key whose item is most like `goal` in slot, name or words."""
        free = [key for key in self.log if key not in self.taken and key != TASK_KEY]
        scores = {key: self._relation(key, goal) for key in free}
        best = max(scores, key=lambda key: scores[key], default=None)
        return best if best is not None and scores[best] > 0 else None

    def _relation(self, key: str, goal: Goal) -> float:
        if goal.slot and goal.value:
            overlap = slot_overlap(goal.slot, key)
            rival = max(slot_overlap(slot, key) for slot in self.slots | {goal.slot})
            return overlap if overlap >= SLOT_OVERLAP and overlap == rival else 0.0
        if find_key({key: ""}, base_key(goal)) is not None:
            return 1.0
        f1 = token_f1(self.log[key], goal.text)
        return f1 if f1 >= _RELATED_TEXT else 0.0

    def _new_key(self, goal: Goal) -> str:
        base = key = self._spoken_key(goal)
        number = 2
        while find_key(self.log, key) is not None:
            key, number = f"{base} {number}", number + 1
        return key

    def _spoken_key(self, goal: Goal) -> str:
        """Return a name that the message gives away: the slot where the message says it, else words of the goal's
        own text beside the value ("keep only 12 beehives" -> "only beehives"), if they name this goal and no other.
        """
        heard = tokens(self.utterance)
        if not (goal.slot and goal.value and heard) or slot_overlap(goal.slot, self.utterance) == 1:
            return base_key(goal)
        value = set(tokens(goal.value))
        words = [word for word in tokens(goal.text) if word in heard and word.isalpha()]
        key = " ".join([word for word in words if word not in FILLERS | value][:_KEY_WORDS])
        return key if key and self._says(key, goal_text(goal), goal) else base_key(goal)

    def _set(self, key: str, goal: Goal) -> None:
        text = goal_text(goal)
        if not self._says(key, text, goal) and goal.slot:
            text = tidy(f"{goal.slot} {text}")  # the tracker's name does not say the slot, so the text does
            if not self._says(key, text, goal):
                self._delete(key)
                key, text = self._new_key(goal), goal_text(goal)
        self._write(f"SET {key}: {text}")
        self.taken.add(key)

    def _says(self, key: str, text: str, goal: Goal) -> bool:
        return bool(match({key: text}, [goal], [*self.after, *self.gone]))

    def _delete_copies(self, goal: Goal) -> None:
        for key in stale_keys(self.log, self.after, [goal]):
            if key not in self.taken:
                self._delete(key)

    def _delete(self, key: str) -> None:
        self._write(f"DEL {key}")

    def _write(self, line: str) -> None:
        self.lines.append(line)
        self.log = _LOG.apply(self.log, line).log


def base_key(goal: Goal) -> str:
    """Return the short name a goal gets in a log that has none for it: its slot, else its first content
    words."""
    if goal.slot:
        return tidy(goal.slot.replace(":", " ").replace("_", " "))
    words = [word for word in tokens(goal.text) if word not in FILLERS and word.isalpha()]
    return " ".join(words[:_KEY_WORDS]) or "requirement"


def slip(dialogue: Dialogue, t: int, log: Mapping[str, str], rng: random.Random) -> str:
    """Return plausible but wrong lines for turn `t`: the edit missed, the stale value kept beside or in
    place of the new one, the wrong item deleted or overwritten, or on a quiet turn an edit where none was
    called for."""
    right = expert_edit(dialogue, t, log)
    wrong = [text for text in _mistakes(dialogue, t, log, right) if not same_edit(dialogue, t, log, text)]
    return rng.choice(wrong) if wrong else "SET note: the usual"


def slipped_prefix(dialogue: Dialogue, rng: random.Random) -> list[str]:
    """Return texts for the first turns, the last of which is a slip: a context to recover from.

    The slip falls on a turn that leaves at least one turn after it, where possible one whose slot the user
    comes back to. Empty for a dialogue of one turn.
    """
    last = len(dialogue.turns) - 1
    edited = [t for t in range(last) if dialogue.turns[t].edits]
    if not edited:
        return []
    revisited = [
        t
        for t in edited
        if _slots(dialogue, t) & set().union(*(_slots(dialogue, u) for u in range(t + 1, last + 1)))
    ]
    at = rng.choice(revisited or edited)
    texts = oracle_log_texts(dialogue)[:at]
    log: dict[str, str] = {}
    for text in texts:
        log = _LOG.apply(log, text).log
    return [*texts, slip(dialogue, at, log, rng)]


def _mistakes(dialogue: Dialogue, t: int, log: Mapping[str, str], right: str) -> list[str]:
    """Return candidate wrong outputs; some may turn out to be right and are sieved by the caller."""
    keys = [key for key in log if key != TASK_KEY]
    gone = dialogue.superseded(t)
    wrong = [KEEP, *(f"DEL {key}" for key in keys)]
    sets = [line for line in right.splitlines() if line.startswith("SET ")]
    for line in sets:
        key, _, text = line.removeprefix("SET ").partition(": ")
        wrong += [f"SET {other}: {text}" for other in keys if other != key]  # overwrites another requirement
        if find_key(log, key) is not None:
            wrong.append(f"SET new {key}: {text}")  # the stale one stays beside it
        wrong += [
            f"SET {key}: {goal_text(goal)}"
            for goal in gone
            if goal.slot and slot_overlap(goal.slot, key) == 1
        ]
    for goal in gone:  # something withdrawn comes back
        home = next((key for key in keys if similarity(key, goal_text(goal), goal)), base_key(goal))
        wrong.append(f"SET {home}: {goal_text(goal)}")
    return list(dict.fromkeys(wrong))


def _slots(dialogue: Dialogue, t: int) -> set[str]:
    """Return what turn `t` touches: slots, or goal ids up to the variant for goals without a slot."""
    touched: list[Goal] = []
    for edit in dialogue.turns[t].edits:
        match edit:
            case Add(goal) | Delete(goal):
                touched.append(goal)
            case Replace(old, new):
                touched += [old, new]
            case Switch():
                pass
    return {goal.slot or goal.id.partition(".")[0] for goal in touched}


def _meaning(dialogue: Dialogue, t: int, log: Mapping[str, str]) -> Counter[tuple[str, ...]]:
    said = dict(match(log, dialogue.turns[t].state.goals, dialogue.superseded(t)))
    return Counter(
        ("goal", said[key].id) if key in said else ("item", tidy(key).casefold(), tidy(text))
        for key, text in log.items()
    )

"""Noise: exact words survive, edits stay, the final request stays neutral, and the same seed gives the same text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.dialogue import Dialogue, build
from envs.errors import ConfigError, UnknownName
from envs.fidelity import bare, check_utterance
from envs.intent import EMPTY, Add, Delete, Edit, Goal, IntentState, Replace, Switch
from envs.noise import FRAGMENTS, Noise
from envs.personas import PERSONAS, Persona
from envs.simulator import Staged, TemplateSimulator
from envs.task import Family, SourceTask, get_family
from envs.words import mentions, numbers_in
from tests.envs.wording_toys import OPENING, Toy, goal

TOY = Toy()
WILD = Persona(
    "wild",
    "Everything at once.",
    openers=("hey.", "Well well."),
    opener_rate=0.5,
    closers=("thx", "Bye!"),
    closer_rate=0.5,
    fragments=0.3,
    typos=0.6,
    lower=0.6,
    no_stop=0.6,
    no_apostrophe=0.6,
    no_article=0.5,
)


class Prose:
    """Free-text goals, as of a word problem; a variant changes a number."""

    name = "prose"
    structured = True
    splits = ("train",)
    variants_flip = True

    def task(self, index: int) -> SourceTask:
        texts = (
            f"Tom's farm has {index + 7} hens.",
            "Each hen lays two eggs, doesn't it?",
            "How many eggs are there?",
        )
        goals = tuple(Goal(f"g{n}", text, f"s{n}") for n, text in enumerate(texts))
        return SourceTask(f"prose/train/{index}", "prose", "train", "A word problem.", "", goals, {})

    def variants(self, task: SourceTask, goal: Goal, rng: random.Random) -> list[Goal]:
        number = re.search(r"\d+", goal.text)
        if not number:
            return []
        return [
            Goal(f"{goal.id}.v{k}", goal.text.replace(number.group(), str(k)), goal.slot)
            for k in (55, 66, 77)
        ]

    def decoys(self, task: SourceTask, rng: random.Random) -> list[Goal]:
        return []


def check_exact(dialogue: Dialogue, plain: Dialogue) -> None:
    """Values survive verbatim, and free texts do; what the plain message names the noisy one names as well."""
    assert [turn.edits for turn in dialogue.turns] == [turn.edits for turn in plain.turns]
    assert [turn.state for turn in dialogue.turns] == [turn.state for turn in plain.turns]
    live = EMPTY
    for turn in dialogue.turns:
        for edit in turn.edits:
            match edit:
                case Add(new):
                    assert (new.value if new.value is not None else bare(new)) in turn.utterance
                case Replace(old, new) if new.value is not None:
                    assert new.value in turn.utterance
                    assert old.value in turn.utterance or mentions(turn.utterance, new.slot or "")
                case Replace(old, new):
                    assert bare(old) in turn.utterance and bare(new) in turn.utterance
                case Delete(gone):
                    assert mentions(turn.utterance, gone.value or bare(gone)) or mentions(
                        turn.utterance, gone.slot or ""
                    )
        live = turn.state
    assert live == dialogue.final


personas = st.sampled_from([*PERSONAS.values(), WILD])


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 300), st.sampled_from(("train", "heldout")), st.integers(0, 20), personas,
       st.sampled_from((None, 0.0, 0.5, 1.0)), st.sampled_from((0.0, 0.4, 1.0)),
       st.sampled_from(("drift", "clean", "turn_matched")))  # fmt: skip
def test_the_edits_stay_exact(
    index: int, split: str, seed: int, persona: Persona, typos: float | None, merged: float, condition: str
) -> None:
    task = TOY.task(split, index)
    noise = Noise(persona=persona, typo_rate=typos, merge_rate=merged)
    noisy = build(TOY, task, condition, 3, seed, noise)
    assert noisy == build(
        TOY, task, condition, 3, seed, Noise(persona=persona, typo_rate=typos, merge_rate=merged)
    )
    check_exact(noisy, build(TOY, task, condition, 3, seed, Noise(merge_rate=merged)))
    live = EMPTY
    for turn in noisy.turns:
        assert not check_utterance(turn.edits, turn.utterance, live, task), turn.utterance
        live = turn.state
    assert noisy.turns[0].utterance.startswith(OPENING)
    final = noisy.turns[-1]
    if condition != "clean":
        assert not final.edits and not numbers_in(final.utterance)
        for known in (*task.goals, *noisy.superseded(len(noisy.turns) - 1)):
            assert not mentions(final.utterance, known.value or "\0")
            assert not mentions(final.utterance, known.slot or "\0")


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 100),
    st.integers(0, 20),
    personas,
    st.sampled_from((0.0, 1.0)),
    st.sampled_from((0.0, 1.0)),
)
def test_free_texts_survive_letter_for_letter(
    index: int, seed: int, persona: Persona, typos: float, merged: float
) -> None:
    family: Family = Prose()  # type: ignore[assignment]
    task = family.task(index)  # type: ignore[attr-defined]
    noise = Noise(persona=persona, typo_rate=typos, merge_rate=merged)
    noisy, plain = (build(family, task, "drift", 3, seed, n) for n in (noise, Noise(merge_rate=merged)))
    lowered = [turn.utterance for turn in noisy.turns]
    assert [t.edits for t in noisy.turns] == [t.edits for t in plain.turns]
    for said, turn in zip(lowered, noisy.turns, strict=True):
        for edit in turn.edits:
            for wanted in [edit.old, edit.new] if isinstance(edit, Replace) else [edit.goal]:  # type: ignore[union-attr]
                assert bare(wanted) in said


@pytest.mark.parametrize("name", ["calls", "sql", "math"])
def test_procedural_families_keep_their_values(name: str) -> None:
    family = get_family(name)
    for split in family.splits:
        for task in islice(family.load(None, split), 8):
            for persona in ("hurried", "sloppy", "terse"):
                noisy = build(family, task, "drift", 1, 0, Noise(persona=persona))
                live = EMPTY
                for turn in noisy.turns:
                    assert not check_utterance(turn.edits, turn.utterance, live, task), turn.utterance
                    live = turn.state


def says(persona: str | Persona, edits: Sequence[Edit], typos: float | None = None) -> set[str]:
    noise = Noise(TemplateSimulator("train"), persona=persona, typo_rate=typos)
    live = IntentState(tuple(e.goal for e in edits if isinstance(e, Delete)))
    return {noise.utter(edits, 2, 9, "", random.Random(n), live) for n in range(150)}


def test_personas_write_as_they_should() -> None:
    add = [Add(goal("delivery address"))]
    plain = says("plain", add)
    fragments = {f.format(slot="delivery address", value="Brooklyn") for f in FRAGMENTS["train"]["add"]}
    assert not plain & fragments
    assert says("terse", add) & fragments
    assert any(said.endswith(tuple(PERSONAS["chatty"].closers)) for said in says("chatty", add))
    assert any(said.startswith(PERSONAS["formal"].openers) for said in says("formal", add))
    hurried = says("hurried", add)
    assert any(said == said.lower().replace("brooklyn", "Brooklyn") for said in hurried)
    assert any(not re.search(r"[.!?]$", said) for said in hurried)
    assert says("sloppy", add, typos=1.0) - says("sloppy", add, typos=0.0)


def test_a_message_never_runs_into_the_next() -> None:
    edits = [Add(goal("delivery address")), Add(goal("pickup day"))]
    for said in says(PERSONAS["chatty"], edits):
        assert not re.search(r"(Brooklyn|Wednesday) [A-Z]", said), said


def test_switches_are_said() -> None:
    assert all("book_table" in said for said in says(WILD, [Switch("f", "book_table")]))


def test_every_option_is_in_the_id_and_in_the_settings() -> None:
    task = TOY.task("train", 1)
    own = Persona("plain", "Not the one of that name.", typos=0.2)
    many = [
        Noise(),
        Noise(persona="hurried"),
        Noise(persona="hurried", typo_rate=0.2),
        Noise(persona="hurried", merge_rate=0.2),
        Noise(persona="hurried", merge_rate=0.2, merge_cap=2),
        Noise(persona=own),
    ]
    ids = [build(TOY, task, "drift", 1, 0, noise).id for noise in many]
    assert len(set(ids)) == len(ids) == len({str(noise.settings) for noise in many})
    assert ids[3] == "toy/train/1|drift|b1|s0|hurried-m0.2x3"
    assert all(isinstance(noise, Staged) for noise in many)


def test_a_dialogue_without_options_has_the_plain_id() -> None:
    task = TOY.task("train", 1)
    assert build(TOY, task, "drift", 1, 0, TemplateSimulator()).id == "toy/train/1|drift|b1|s0"


def test_held_out_tasks_get_held_out_fragments() -> None:
    always = Persona("short", "Short.", fragments=1.0)
    for split in ("train", "heldout"):
        finals = {
            build(TOY, TOY.task(split, n), "drift", 1, 0, Noise(persona=always)).turns[-1].utterance
            for n in range(60)
        }
        assert finals == set(FRAGMENTS[split]["final"])
    kinds = FRAGMENTS["train"].keys()
    assert kinds == FRAGMENTS["heldout"].keys()
    assert not any(set(FRAGMENTS["train"][kind]) & set(FRAGMENTS["heldout"][kind]) for kind in kinds)


def test_affixes_carry_nothing() -> None:
    for persona in PERSONAS.values():
        for words in (*persona.openers, *persona.closers):
            assert not numbers_in(words) and not re.search(r"[\d{}]", words)


def test_bad_options() -> None:
    with pytest.raises(UnknownName, match="'hurried'"):
        Noise(persona="huried")
    for options in ({"typo_rate": 1.2}, {"merge_rate": -1.0}, {"merge_rate": 0.5, "merge_cap": 1}):
        with pytest.raises(ConfigError):
            Noise(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="merges"):
        Noise(Noise(merge_rate=0.5))
    with pytest.raises(ConfigError, match="typos"):
        Persona("x", "", typos=2.0)
    with pytest.raises(ConfigError, match="none to draw"):
        Persona("x", "", opener_rate=0.5)

"""Named sets of dialogues: what recipes/sets.yaml says, which splits a family gives, how cases are shared out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from envs.dialogue import CONDITIONS
from envs.drift import BUDGETS
from envs.errors import ConfigError, unknown_name
from envs.families import is_procedural
from envs.grading import Grading
from envs.task import Family
from recipes.wording_settings import WordingSettings


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SetRecipe(_Part):
    about: str
    """What the set is for; the data card says it."""
    role: Literal["evaluation", "train"]
    """Which splits are read, see `splits_of`."""
    families: Literal["benchmark", "all"]
    """Whether procedural families take part without being asked for by name."""
    tasks: Literal["all"] | int
    """All usable tasks, or so many, shared out over the families by `share`."""
    procedural_tasks: int = Field(ge=1)
    """Tasks of a procedural family, whose tasks never end."""
    budgets: tuple[str, ...] = tuple(BUDGETS)
    """Budgets of the conditions that have one."""
    conditions: tuple[str, ...] = CONDITIONS
    disjoint_from: tuple[str, ...] = ()
    """Evaluation sets whose source tasks, and near copies of them, are left out."""
    similarity: float = Field(default=0.3, gt=0, le=1)
    """Jaccard similarity of 8-grams from which two tasks are near copies (recipes/neardup.py)."""
    wording: Mapping[str, Any] = Field(default_factory=dict)
    """Who words the messages: keys of `WordingSettings` but its cache. What a call gives goes first, key by key."""
    grader: str = "strict"
    """The verdict, strict or official, unless a call names one."""

    @field_validator("budgets")
    @classmethod
    def _known_budgets(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known("budget", names, BUDGETS)

    @field_validator("conditions")
    @classmethod
    def _known_conditions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known("condition", names, CONDITIONS)

    @field_validator("wording")
    @classmethod
    def _possible_wording(cls, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        known = WordingSettings().recorded()
        for key in keys:
            if key not in known:
                raise ValueError(str(unknown_name("key of a wording", key, known)))
        try:
            WordingSettings(**keys)
        except (ConfigError, TypeError) as error:
            raise ValueError(str(error)) from None
        return keys

    @field_validator("grader")
    @classmethod
    def _known_grader(cls, name: str) -> str:
        try:
            return Grading(name).verdict
        except ConfigError as error:
            raise ValueError(str(error)) from None


class Source(_Part):
    licence: str
    origin: str


class Sets(_Part):
    evaluation_splits: tuple[str, ...]
    """In order of preference."""
    sets: Mapping[str, SetRecipe]
    sources: Mapping[str, Source]


@functools.cache
def all_sets() -> Sets:
    """Return recipes/sets.yaml. Raises `ConfigError`, which names the key."""
    text = resources.files("recipes").joinpath("sets.yaml").read_text(encoding="utf-8")
    return read_sets(text)


def read_sets(text: str) -> Sets:
    """Return the sets of a YAML text. Raises `ConfigError` for broken YAML and an unknown key, name or value."""
    try:
        sets = Sets.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"sets.yaml is no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        # An unknown key before a missing one: the first is most often the second, misspelt.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        raise ConfigError(f"sets.yaml, {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name, recipe in sets.sets.items():
        for other in recipe.disjoint_from:
            if other not in sets.sets:
                raise unknown_name(f"set in disjoint_from of {name!r}:", other, sets.sets)
            if sets.sets[other].role != "evaluation":
                raise ConfigError(
                    f"set {name!r} can only be kept disjoint from evaluation sets, not {other!r}"
                )
    return sets


def get_set(name: str) -> SetRecipe:
    """Return the set `name`. Raises `UnknownName`."""
    sets = all_sets().sets
    if name not in sets:
        raise unknown_name("set", name, sets)
    return sets[name]


def splits_of(family: Family, role: str) -> tuple[str, ...]:
    """Return the splits that a set of this role reads of a family; none where it has nothing to train on."""
    if role == "train":
        return ("train",) if "train" in family.splits else ()
    for split in all_sets().evaluation_splits:
        if split in family.splits:
            return (split,)
    return tuple(split for split in family.splits if split != "train")


def families_of(recipe: SetRecipe, registry: Mapping[str, Family]) -> list[str]:
    """Return the families of a set when none is asked for by name, sorted; those without a split are left out."""
    return [
        name
        for name in sorted(registry)
        if splits_of(registry[name], recipe.role)
        and (recipe.families == "all" or not is_procedural(registry[name]))
    ]


def share(total: int, capacities: Sequence[int]) -> list[int]:
    """Share `total` cases as evenly as `capacities` allow; what does not divide goes to the first ones.

    What a family cannot give is shared among the others. The sum is min(total, sum of capacities).
    """
    given = [0] * len(capacities)
    left = min(total, sum(capacities))
    while left:
        open_ = [at for at, capacity in enumerate(capacities) if given[at] < capacity]
        each = max(1, left // len(open_))
        for at in open_:
            more = min(each, capacities[at] - given[at], left)
            given[at] += more
            left -= more
    return given


def _known(kind: str, names: tuple[str, ...], known: Mapping[str, int] | Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise ValueError(str(unknown_name(kind, name, known)))
    if not names:
        raise ValueError(f"a set needs at least one {kind}")
    return names

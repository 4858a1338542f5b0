"""From a recipe file and a command line to one checked `OpdConfig`.

Layers, each over the one before: defaults of `recipes/schema.py`, tracker preset (trackers.yaml), recipe,
smoke.yaml if asked for, command line. A resumed run starts from its own `config.yaml` in place of all but the
first and the last. Every error is a `ConfigError` that says which layer set the key.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from envs.errors import ConfigError, FluxForgeError, MissingFiles, UnknownName, unknown_name
from recipes.schema import OpdConfig

HERE = Path(__file__).parent
TRACKERS = HERE / "trackers.yaml"
COMMAND_LINE = "the command line"
WHOLE = ("env.condition_mix", "endpoint.extra")
"""Mappings that a later layer replaces as a whole."""
NOT_COMPARED = ("name", "resume", "wandb", "engine", "checkpoint")
"""Settings that may differ between a run and its resumption: they change neither what is learned nor what is
measured."""


Settings = TypeVar("Settings", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `off`, `on`, `yes` and `no` are words and `1e-4` is a number, as in YAML 1.2."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regex)
        for tag, regex in resolvers
        if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf)$|^\.(nan|NaN)$"),
    list("-+.0123456789"),
)


def load_config(
    recipe: str | Path = "opd",
    overrides: Sequence[str] = (),
    *,
    flags: Mapping[str, Any] | None = None,
    runs: Path = Path("runs"),
    trackers: Path = TRACKERS,
    job: str = "opd",
) -> OpdConfig:
    """Return the checked configuration of a run of `job`, its name filled in.

    `recipe` is a path of a YAML file or the name of one beside this module. `overrides` is what a command
    line holds: `--opd.steps 4`, `--opd.steps=4`, `--smoke` (true); `flags` are values that are parsed
    already. Raises `ConfigError` (an unknown key or name says the nearest known one, a bad value what was
    expected), `MissingFiles` for an absent recipe or data folder.
    """
    line = {**(flags or {}), **parse_overrides(overrides)}
    layers = [(COMMAND_LINE, line)]
    run_yaml = _resumed(line, runs)
    if run_yaml is not None:
        layers.insert(0, (str(run_yaml), {**read_recipe(run_yaml), "resume": True}))
    else:
        path = recipe_path(recipe)
        body = read_recipe(path)
        if line.get("smoke", body.get("smoke", False)) is True:
            layers.insert(0, (str(HERE / "smoke.yaml"), read_recipe(HERE / "smoke.yaml")))
        layers.insert(0, (str(path), body))
        tracker = str(line.get("tracker", body.get("tracker", "tiny")))
        layers.insert(0, (f"{trackers}, tracker {tracker}", _preset(tracker, trackers)))
    config = validated(OpdConfig, layers)
    if config.data is not None and not config.data.is_dir():
        raise MissingFiles(
            f"data folder {config.data} is not there; give the folder that holds gsm8k/ or bfcl/ in their "
            f"upstream layout (DATA=... or --data ...), or leave it out"
        )
    if config.opd.teacher_model is not None:
        _preset(config.opd.teacher_model, trackers, "teacher model")
    if config.name is None:
        config = config.model_copy(update={"name": default_name(config.tracker, config.seed, job)})
    return config


def validated(model: type[Settings], layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Settings:
    """Return the settings of (source, layer) pairs, each over the one before. Raises `ConfigError`, `UnknownName`."""
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, layer in layers:
        _check_keys(layer, source, model)
        _merge(merged, layer, source, origin)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise _plain(error, origin, model) from None


def default_name(tracker: str, seed: int, job: str = "opd") -> str:
    """Return `<job>-<tracker>-<seed>`; of a path or a hub name only the last part counts."""
    last = re.sub(r"[^A-Za-z0-9._-]", "-", tracker.rstrip("/").split("/")[-1]) or "model"
    return f"{job}-{last}-{seed}"


def recipe_path(recipe: str | Path) -> Path:
    """Return the file of a recipe given by path or name. Raises `MissingFiles`, `UnknownName`."""
    if Path(recipe).suffix in (".yaml", ".yml"):
        if not Path(recipe).is_file():
            raise MissingFiles(f"recipe {recipe} is not there; recipes of the package lie in {HERE}")
        return Path(recipe)
    named = HERE / f"{recipe}.yaml"
    if not named.is_file():
        raise unknown_name(
            "recipe", str(recipe), [p.stem for p in HERE.glob("*.yaml") if p.stem != "trackers"]
        )
    return named


def tracker_presets(trackers: Path = TRACKERS) -> dict[str, dict[str, Any]]:
    """Return the presets of trackers.yaml by name, `parameters` and `shape` included."""
    return read_recipe(trackers)


def resolved_yaml(config: BaseModel) -> str:
    """Return the whole configuration as YAML; `load_config` of it gives the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=110, allow_unicode=True)


def fingerprint(config: OpdConfig) -> dict[str, Any]:
    """Return the settings (dotted key -> value) that a resumed run must share with its checkpoint."""
    plain = config.model_dump(mode="json")
    kept = {key: value for key, value in plain.items() if key not in NOT_COMPARED}
    kept["engine"] = {"max_model_len": config.engine.max_model_len}
    return dict(_flat(kept))


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return the nested mapping of `--a.b value`, `--a.b=value` and bare `--flag` (true), `--no-flag`
    (false).
    """
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"expected --key value, got {word!r}; keys are dotted, as in --opd.steps 4")
        key, equals, text = word[2:].partition("=")
        if equals:
            value = _value(text)
        elif rest and not rest[0].startswith("--"):
            value = _value(rest.pop(0))
        elif key.startswith("no-"):
            key, value = key[3:], False
        else:
            value = True
        _assign(found, key.replace("-", "_"), value)
    return found


def known_keys(model: type[BaseModel] = OpdConfig, prefix: str = "") -> list[str]:
    """Return every dotted key a recipe may hold, parts included."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        keys.append(prefix + name)
        part = _part(info.annotation)
        if part is not None:
            keys += known_keys(part, f"{prefix}{name}.")
    return keys


def _resumed(line: Mapping[str, Any], runs: Path) -> Path | None:
    if line.get("resume") is not True:
        return None
    name = line.get("name") or default_name(str(line.get("tracker", "tiny")), line.get("seed", 0))
    path = runs / str(name) / "config.yaml"
    return path if path.is_file() else None


def _preset(tracker: str, trackers: Path, kind: str = "tracker") -> dict[str, Any]:
    presets = tracker_presets(trackers)
    if tracker in presets:
        return {key: value for key, value in presets[tracker].items() if key not in ("parameters", "shape")}
    folder = Path(tracker)
    if folder.is_dir() or re.fullmatch(r"[\w.-]+/[\w.-]+", tracker):
        return {"model": tracker}
    if "/" in tracker:
        raise MissingFiles(
            f"model folder {tracker} is not there; give a folder with config.json, tokenizer files and "
            f"*.safetensors, or one of: {', '.join(sorted(presets))}"
        )
    raise unknown_name(kind, tracker, presets)


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the mapping of a YAML file, empty for an empty one. Raises `ConfigError`."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{path} must hold a mapping of keys to values, got {type(data).__name__}")
    return data


def _value(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        below = tree.setdefault(parent, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--{dotted} goes below {parent!r}, which an earlier flag set to {below!r}")
        tree = below
    tree[leaf] = value


def _check_keys(
    layer: Mapping[str, Any],
    source: str,
    root: type[BaseModel],
    model: type[BaseModel] | None = None,
    prefix: str = "",
) -> None:
    for key, value in layer.items():
        info = (model or root).model_fields.get(str(key))
        if info is None:
            below = "." + next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else ""
            raise _unknown_key(f"{prefix}{key}{below}", source, root)
        part = _part(info.annotation)
        if part is not None and isinstance(value, Mapping):
            _check_keys(value, source, root, part, f"{prefix}{key}.")


def _unknown_key(dotted: str, source: str, root: type[BaseModel]) -> UnknownName:
    known = known_keys(root)
    leaf = dotted.split(".")[-1]
    same_leaf = [key for key in known if key.split(".")[-1] == leaf]
    close = difflib.get_close_matches(dotted, same_leaf, n=1, cutoff=0.7) if "." in dotted else []
    close = close or same_leaf
    close = close or difflib.get_close_matches(dotted, known, n=1, cutoff=0.6)
    if not close:
        leaves = {key.split(".")[-1]: key for key in known}
        close = [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    prefix = dotted.rpartition(".")[0]
    level = [key for key in known if key.rpartition(".")[0] == prefix]
    if not level:
        prefix, level = "", [key for key in known if "." not in key]
    where = f" below {prefix!r}" if prefix else ""
    return UnknownName(
        f"unknown key {dotted!r} (from {source}).{hint} Known{where}: {', '.join(sorted(level))}."
    )


def _merge(
    base: dict[str, Any], layer: Mapping[str, Any], source: str, origin: dict[str, str], prefix: str = ""
) -> None:
    for key, value in layer.items():
        dotted = f"{prefix}{key}"
        origin[dotted] = source
        if isinstance(value, Mapping) and dotted not in WHOLE:
            below = base.get(key)
            base[key] = dict(below) if isinstance(below, Mapping) else {}
            _merge(base[key], value, source, origin, f"{dotted}.")
        else:
            base[key] = value


def _plain(error: ValidationError, origin: Mapping[str, str], root: type[BaseModel]) -> FluxForgeError:
    """Return pydantic's findings in our words: key, what is wrong, what was given and where."""
    found = error.errors()
    lines = [_finding(item, origin, root) for item in found]
    first = found[0]
    unknown = first["type"] == "literal_error" or isinstance(first.get("ctx", {}).get("error"), UnknownName)
    return (UnknownName if unknown else ConfigError)("\n".join(lines))


def _finding(item: Any, origin: Mapping[str, str], root: type[BaseModel]) -> str:
    path = [str(part) for part in item["loc"]]
    dotted = ".".join(path)
    known = next((".".join(path[:n]) for n in range(len(path), 0, -1) if ".".join(path[:n]) in origin), None)
    source = (
        f" (from {origin[known]})"
        if known is not None and known.split(".") == path[: len(known.split("."))]
        else ""
    )
    raised = item.get("ctx", {}).get("error")
    if raised is not None:
        return f"{dotted}{source}: {raised}" if dotted else str(raised)
    if item["type"] == "literal_error":
        choices = _choices(dotted, root)
        return f"{dotted}{source}: {unknown_name('value', str(item['input']), choices)}"
    return f"{dotted}{source}: {item['msg'][0].lower()}{item['msg'][1:]}, got {item['input']!r}"


def _choices(dotted: str, model: type[BaseModel]) -> list[str]:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        part = _part(model.model_fields[parent].annotation)
        assert part is not None, dotted
        model = part
    annotation = model.model_fields[leaf].annotation
    return [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []


def _part(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class of a field that is one (or one or null), else None."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

"""What a run can be told: one frozen pydantic model for each part of a recipe, and what does not go together.

Unknown keys are refused (`extra="forbid"`). Every field has its docstring below it. This module imports
neither torch nor ray: `fluxforge --dry-run` and the tests of a recipe must not pay for them. Files and the
command line are read in `recipes/config.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from envs.dialogue import CONDITIONS
from envs.errors import ConfigError, unknown_name

BUDGETS = {"easy": 1, "medium": 3, "hard": 5}


def _budget(value: Any) -> Any:
    if isinstance(value, str) and not value.isdigit():
        if value not in BUDGETS:
            raise unknown_name("budget", value, BUDGETS)
        return BUDGETS[value]
    if str(value) not in ("1", "3", "5"):
        raise ConfigError(f"a budget is 1 (easy), 3 (medium) or 5 (hard), got {value!r}")
    return int(value)


def _names(value: Any) -> Any:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


Budget = Annotated[Literal[1, 3, 5], BeforeValidator(_budget)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        validate_default=True,
        coerce_numbers_to_str=True,  # --name 2024
    )


class EngineSettings(Part):
    kind: Literal["auto", "vllm", "local"] = "auto"
    """`vllm` (Ray actors), `local` (transformers, in process), or `auto`: vLLM where it is installed."""
    replicas: int = Field(default=1, ge=1)
    """Engines that share the dialogues."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs per engine."""
    max_model_len: int = Field(default=2048, ge=64)
    """Longest context in tokens, what is generated included."""
    kv_cache_gib: float = Field(default=0.5, gt=0)
    """Memory for the KV cache of one engine, in GiB."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of the engine's weights; `auto` is bfloat16 where the hardware is fast in it."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of one engine."""
    ray_address: str = "local"
    """`local` starts a private Ray for this run; else the address of a cluster to join."""
    dashboard_port: int | None = Field(default=None, ge=1024, le=65535)
    """Port of Ray's dashboard; null: no dashboard."""


class EnvSettings(Part):
    families: Names = ("calls", "sql", "math")
    """Procedural families that dialogues are built from."""
    left_out: str | None = None
    """One of `families` that is kept out of training and is a held-out set of its own."""
    budget: Budget = 1
    """Variants per goal and decoys at most: easy (1), medium (3) or hard (5)."""
    condition_mix: dict[str, float] = {"drift": 1.0}
    """Share of each condition among the training dialogues; scaled to sum 1."""
    alias_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of training dialogues with made-up slot names and values, so that they are read, not remembered."""
    protocol: Literal["log", "full"] = "log"
    """`log`: the tracker appends edits; `full`: it rewrites the whole state each turn."""
    base: Literal["templates"] = "templates"
    """Where the agent replies between two user messages come from; `templates`: short neutral texts."""

    @field_validator("families")
    @classmethod
    def _known_families(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        from envs.families import is_procedural, registry

        known = registry()
        procedural = sorted(name for name, family in known.items() if is_procedural(family))
        if not families:
            raise ConfigError(f"name at least one family; procedural ones: {', '.join(procedural)}")
        for family in families:
            if family not in known:
                raise unknown_name("family", family, known)
            if family not in procedural:
                raise ConfigError(
                    f"family {family!r} is read from benchmark files, and these families make the dialogues to "
                    f"train on, so they are procedural: {', '.join(procedural)}. To measure on {family!r}, leave "
                    f"it out here and name the folder that holds {family}/ by data (DATA=... or --data ...)"
                )
        if len(set(families)) != len(families):
            raise ConfigError(f"each family once, got {', '.join(families)}")
        return families

    @field_validator("condition_mix")
    @classmethod
    def _known_conditions(cls, mix: dict[str, float]) -> dict[str, float]:
        return _weights(mix, "condition", CONDITIONS)

    @model_validator(mode="after")
    def _left_out_is_known(self) -> EnvSettings:
        if self.left_out is not None and self.left_out not in self.families:
            raise ConfigError(
                f"left_out names {self.left_out!r}, which is not among families "
                f"({', '.join(self.families)}), so nothing would be left out; add it to families or pick "
                f"one of them"
            )
        if self.left_out is not None and not self.training_families:
            raise ConfigError(
                f"leaving out {self.left_out!r} leaves no family to train on; add one to families"
            )
        return self

    @property
    def training_families(self) -> tuple[str, ...]:
        """`families` without the one left out."""
        return tuple(family for family in self.families if family != self.left_out)


class WarmupSettings(Part):
    steps: int = Field(default=8, ge=0)
    """Optimizer steps of cross-entropy on oracle logs before OPD starts."""
    dialogues: int = Field(default=12, ge=1)
    """Dialogues a step."""
    privileged_share: float = Field(default=0.5, ge=0, le=1)
    """Share of dialogues whose context also shows the expert edit: it makes the start a privileged
    teacher.
    """


class OpdSettings(Part):
    steps: int = Field(default=16, ge=0)
    """Optimizer steps of on-policy distillation; 0 trains the warm-up only."""
    dialogues: int = Field(default=12, ge=1)
    """Dialogues a step."""
    group: int = Field(default=1, ge=1)
    """Samples of each dialogue; loss `state` compares them with each other."""
    teacher: Literal["oracle", "privileged", "model"] = "privileged"
    """`privileged`: the frozen warm start, shown the expert edits; `model`: another model; `oracle`: no
    model.
    """
    teacher_model: str | None = None
    """Tracker name or model folder of teacher `model`."""
    loss: Literal["full", "student_topk", "teacher_topk", "expert", "sampled", "state", "imitation"] = "full"
    """`full` divergence over the vocabulary; `student_topk` reverse KL on the student's best tokens and a tail;
    `teacher_topk` forward KL on the teacher's; `expert` cross-entropy to the expert edit; `sampled` per-token
    policy gradient; `state` advantage from the state score; `imitation` oracle logs again, the off-policy
    control."""
    beta: float = Field(default=1.0, ge=0, le=1)
    """Generalised JSD of loss `full`: 0 forward KL, 1 reverse KL, between them JSD."""
    ratio_clip: float = Field(default=2.0, gt=0)
    """Largest importance ratio of `sampled`, `state` and the top-k losses."""
    top_k: int = Field(default=16, ge=1)
    """Tokens of the support of `student_topk` and `teacher_topk`; the rest is one bucket."""
    state_weight: Literal["none", "token", "prefix"] = "token"
    """How the top-k losses weigh states that other weights sampled: not at all, by the ratio of the token before,
    or by the product of all ratios before; truncated at `ratio_clip`."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the student's rollouts."""
    max_tokens: int = Field(default=48, ge=1)
    """Longest tracker output of one turn, in tokens."""
    compute_budget_pflop: float | None = Field(default=None, gt=0)
    """End the phase when its counted compute is spent (6 P a trained token, 2 P a generated or scored one, P
    parameters; in 1e15); null: only `steps` ends it."""

    @model_validator(mode="after")
    def _goes_together(self) -> OpdSettings:
        topk = self.loss in ("student_topk", "teacher_topk")
        if (topk or self.loss in ("full", "sampled")) and self.teacher == "oracle":
            raise ConfigError(
                f"loss {self.loss!r} needs a teacher's log-probs and teacher 'oracle' has none; use teacher "
                f"'privileged' or 'model', or loss 'expert' or 'state'"
            )
        if self.loss == "state" and self.group < 2:
            raise ConfigError(
                f"loss 'state' compares samples of one dialogue with each other, so it needs group >= 2, got "
                f"{self.group}; set opd.group to 4, say"
            )
        weighs = self.loss in ("sampled", "state") or (topk and self.state_weight != "none")
        if weighs and self.temperature != 1.0:
            raise ConfigError(
                f"loss {self.loss!r} corrects by ratios of the model's own probabilities, which are those "
                f"sampled from only at temperature 1, got {self.temperature}; set opd.temperature to 1"
                + (", or opd.state_weight to none" if topk else "")
            )
        if self.teacher == "model" and self.teacher_model is None:
            raise ConfigError("teacher 'model' needs teacher_model: a tracker name or a model folder")
        if self.teacher != "model" and self.teacher_model is not None:
            raise ConfigError(
                f"teacher_model is set but the teacher is {self.teacher!r}; set opd.teacher to 'model' or "
                f"teacher_model to null"
            )
        return self


class LoraSettings(Part):
    rank: int = Field(default=32, ge=1)
    """Rank of the adapter."""
    alpha: float = Field(default=64.0, gt=0)
    """Scale: the adapter's product is multiplied by alpha / rank."""
    targets: Names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter."""

    @field_validator("targets")
    @classmethod
    def _inner_layers(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        outer = {"lm_head", "embed_tokens"} & set(targets)
        if outer or not targets:
            raise ConfigError(
                f"adapters go on inner linear layers, got {', '.join(targets) or 'none'}: the losses read "
                f"the head's own weights"
            )
        return targets


class StudentSettings(Part):
    lora: LoraSettings | None = None
    """Train an adapter of this shape; null: all weights."""
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay (matrices only)."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps over which the learning rate rises, counted from the start of training."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls from its peak to a tenth of it at the last step; `constant`: not at all."""
    clip: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of the computation; `auto` is bfloat16 where the hardware is fast in it. Master weights, moments
    and losses are float32 always."""
    tokens_per_micro: int = Field(default=2048, ge=64)
    """Tokens of one forward and backward pass."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    freeze_embeddings: bool = False
    """Train all weights but those of the input and output embeddings; with an adapter they are never trained."""

    @field_validator("betas")
    @classmethod
    def _rates(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"both must be in [0, 1), got {betas}")
        return betas


class EvalSettings(Part):
    dialogues: int = Field(default=48, ge=1)
    """Held-out procedural dialogues (unseen words and wordings), before and after."""
    words_dialogues: int = Field(default=0, ge=0)
    """The same with the wordings of training: only the words are unseen."""
    real_dialogues: int = Field(default=24, ge=0)
    """Dialogues from each of `real_families` found below `data`."""
    real_families: Names = ("gsm8k", "bfcl")
    """Families of benchmarks that become held-out sets of their own, where `data` holds their folder."""
    long_dialogues: int = Field(default=0, ge=0)
    """Held-out dialogues about twice as long as those in training."""
    slipped: int = Field(default=0, ge=0)
    """Held-out contexts in which the tracker has just slipped (recovery rate)."""
    budget: Budget = 1
    """Budget of the held-out dialogues."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    in_flight: int | None = Field(default=None, ge=1)
    """Dialogues played at once; null: a whole set. More than the KV cache holds are computed again each turn."""

    @field_validator("real_families")
    @classmethod
    def _read_from_files(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        from envs.families import is_procedural, registry

        real = {name for name, family in registry().items() if not is_procedural(family)}
        for family in families:
            if family not in real:
                raise unknown_name("family that is read from files:", family, real)
        return families


class CheckpointSettings(Part):
    every: int = Field(default=4, ge=1)
    """Steps between two checkpoints; the last step always makes one."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""


class OpdConfig(Part):
    """All of a run. `load_config` makes it; `resolved_yaml` writes it down."""

    name: str | None = None
    """Run folder below `runs/`; null: `opd-<tracker>-<seed>`."""
    seed: int = Field(default=0, ge=0)
    """Decides dialogues, sampling and initial adapters."""
    tracker: str = "tiny"
    """Size name of recipes/trackers.yaml, a model folder, or a Hugging Face name (owner/model)."""
    model: str | None = None
    """Where the weights come from; filled from recipes/trackers.yaml."""
    data: Path | None = None
    """Folder of benchmark files (gsm8k/, bfcl/, ...) for held-out dialogues from real tasks."""
    smoke: bool = False
    """Lay recipes/smoke.yaml over the recipe: the same path in minutes."""
    resume: bool = False
    """Go on from the run folder's newest checkpoint."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Also log to Weights & Biases; `offline` writes below the run folder."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """The engines that generate."""
    env: EnvSettings = Field(default_factory=EnvSettings)
    """The dialogues."""
    warmup: WarmupSettings = Field(default_factory=WarmupSettings)
    """The first phase."""
    opd: OpdSettings = Field(default_factory=OpdSettings)
    """The second phase."""
    student: StudentSettings = Field(default_factory=StudentSettings)
    """The model in training."""
    eval: EvalSettings = Field(default_factory=EvalSettings)
    """What is measured before and after."""
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    """When a checkpoint is written."""

    @field_validator("name")
    @classmethod
    def _folder_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ConfigError(f"a run's name is letters, digits, '.', '_' and '-', got {name!r}")
        return name

    @model_validator(mode="after")
    def _can_run(self) -> OpdConfig:
        if self.warmup.steps + self.opd.steps == 0:
            raise ConfigError(
                "warmup.steps and opd.steps are both 0: nothing to train; use the job 'measure' instead"
            )
        if self.opd.max_tokens >= self.engine.max_model_len:
            raise ConfigError(
                f"opd.max_tokens ({self.opd.max_tokens}) leaves no room for a context within "
                f"engine.max_model_len ({self.engine.max_model_len}); lower the first or raise the second"
            )
        return self


def _weights(given: dict[str, float], kind: str, known: tuple[str, ...]) -> dict[str, float]:
    for name, weight in given.items():
        if name not in known:
            raise unknown_name(kind, name, known)
        if weight < 0:
            raise ConfigError(f"weight of {kind} {name!r} must not be negative, got {weight}")
    if sum(given.values()) <= 0:
        raise ConfigError(f"at least one {kind} needs a weight above 0; known: {', '.join(known)}")
    return given

"""Whole runs of `fluxforge opd` at a toy size: a random two-layer Llama with the tokenizer of `tiny`.

A run takes a second or two, most of it spent outside of the model.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("run_driver.py")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)

SMALL = [
    *("--engine.kind=local", "--engine.dtype=float32", "--engine.threads=1"),
    *("--opd.loss=full", "--opd.teacher=privileged", "--warmup.privileged_share=0.5"),
    *("--student.dtype=float32", "--student.lr=0.01", "--student.tokens_per_micro=1024"),
    *(
        "--warmup.steps=2",
        "--warmup.dialogues=2",
        "--opd.steps=2",
        "--opd.dialogues=2",
        "--opd.max_tokens=8",
    ),
    *("--eval.dialogues=2", "--eval.real_dialogues=0", "--checkpoint.every=1"),
]
"""Flags of the smallest run that has every part: two warm-up and two OPD steps of two dialogues."""


def save_model(folder: Path, seed: int = 0, vocab: int | None = None) -> Path:
    """Write a random fp32 Llama of two layers, with the real tokenizer and chat template, and return `folder`.

    `vocab` gives it an embedding of another size.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rollout.models import resolve_model

    real = resolve_model("tiny")
    settings = json.loads((real / "config.json").read_text(encoding="utf-8"))
    config = LlamaConfig(
        vocab_size=vocab or settings["vocab_size"],
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=settings["bos_token_id"],
        eos_token_id=settings["eos_token_id"],
        pad_token_id=settings.get("pad_token_id"),
        dtype="float32",
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (real / name).is_file():
            shutil.copy(real / name, folder / name)
    return folder


def words(model: Path, name: str, *more: str) -> list[str]:
    """Return the command line of a small run; later flags win."""
    return ["opd", "--tracker", str(model), "--name", name, *_merged([*SMALL, *more])]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: exit code (negative: the signal that ended it) and what it printed."""

    code: int
    out: str
    err: str


class Driver:
    """A process that forks one run after the other, see run_driver.py. Use as a context manager."""

    def __enter__(self) -> Driver:
        env = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "COLUMNS": "110"}
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def run(self, folder: Path, argv: list[str], fault: str = "") -> Ended:
        """Run `fluxforge argv` in `folder` with `fault` and wait for its end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        out, err = folder / "out.txt", folder / "err.txt"
        order = {"folder": str(folder), "argv": argv, "fault": fault, "out": str(out), "err": str(err)}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        pid = self.process.stdout.readline()
        assert pid.startswith("pid "), f"the driver ended: {pid!r}"
        code = self.process.stdout.readline().split()
        assert code and code[0] == "exit", code
        return Ended(int(code[1]), out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def dialogues(run: Path, training_only: bool = True) -> list[dict[str, Any]]:
    """Return the rows of dialogues.parquet, those of training in order of (step, index, sample, turn)."""
    import pyarrow.parquet as pq

    rows = pq.read_table(run / "dialogues.parquet").to_pylist()
    if not training_only:
        return rows
    chosen = [row for row in rows if row["phase"] in ("warmup", "opd")]
    return sorted(chosen, key=lambda row: (row["step"], row["index"], row["sample"], row["turn"]))


def trained_on(run: Path) -> list[tuple[int, str, int, int, str]]:
    """Return (step, phase, index, sample, dialogue id) of every sample trained on, repeats and all."""
    return [
        (row["step"], row["phase"], row["index"], row["sample"], row["dialogue_id"])
        for row in dialogues(run)
        if row["turn"] == 0
    ]


def weights(run: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(run / "tracker" / "model.safetensors")


def _merged(flags: list[str]) -> list[str]:
    """Return `--key=value` flags with the last one of each key; other words stay."""
    last = {flag.split("=", 1)[0]: flag for flag in flags}
    return list(last.values())

"""Checkpoints that are whole or not there.

    <folder>/step-000012/
        weights.safetensors, optimizer.safetensors, ...   one file for each group of tensors
        meta.json                                         everything else, plain JSON
        manifest.json                                     size and SHA-256 of each file above

A checkpoint is written into a hidden folder beside, every file and folder is flushed to disk, and one rename
makes it visible. A crash, a full disk or a kill at any point leaves the older ones as they were. A second
checkpoint of one step gets a suffix (step-000012.1): nothing that is visible is ever written to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from envs.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
META = "meta.json"
_NAME = re.compile(r"step-(\d{6,})(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`tensors[group][name]` on the CPU with the saved dtype and shape; `meta` as it was given."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    meta: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write a checkpoint and return its path; then delete all but the newest `keep`.

    `meta` must be plain JSON data (`meta["fingerprint"]` is what `load_checkpoint` compares, `rng_state()`
    gives the generators). Tensors of any device and layout are saved contiguous; tied ones are saved twice.
    Raises
    `CheckpointError` when anything cannot be written (a full disk, say): what was begun is removed and older
    checkpoints stand. Only one process may write to a folder at a time.
    """
    text = _json(meta)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(".tmp-*"):  # of a process that was killed while it wrote
            shutil.rmtree(stale)
        aside = folder / f".tmp-step-{step:06d}"
        try:
            _write(aside, step, tensors, text)
            final = _free_name(folder, step)
            os.rename(aside, final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _sync_folder(folder)
    except (OSError, SafetensorError) as error:
        last = latest(folder) if folder.is_dir() else None
        stands = f"the newest complete one, {last}, is untouched" if last else "there is no older one"
        raise CheckpointError(
            f"checkpoint of step {step} in {folder} could not be written: {error}; {stands}. Free some space "
            f"(a checkpoint needs {_gib(tensors):.2f} GiB) and resume the run"
        ) from error
    _prune(folder, keep)
    return final


def load_checkpoint(path: Path, fingerprint: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read a checkpoint, after checking every file against the manifest.

    With `fingerprint`, the one in `meta` must be equal. Raises `CheckpointError`, which names the broken
    file, or each setting that differs with both values.
    """
    manifest = _manifest(path)
    for name, entry in manifest["files"].items():
        _check_size(path / name, entry["bytes"])
        if _sha256(path / name) != entry["sha256"]:
            raise _broken(path / name, "its content differs from what was written (SHA-256)")
    meta = json.loads((path / META).read_text(encoding="utf-8"))
    if fingerprint is not None:
        _compare(path, meta.get("fingerprint", {}), json.loads(_json(fingerprint)))
    groups = [name for name in manifest["files"] if name != META]
    tensors = {name.removesuffix(".safetensors"): load_file(path / name) for name in groups}
    return Checkpoint(path, manifest["step"], tensors, meta)


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint below `folder` (manifest present, all sizes right), or None."""
    for path in reversed(_all(folder)):
        try:
            for name, entry in _manifest(path)["files"].items():
                _check_size(path / name, entry["bytes"])
        except CheckpointError:
            continue
        return path
    return None


def rng_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's global generators as plain JSON data."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(internal), gauss_next],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, gauss],
        "torch": _encode(torch.get_rng_state()),
        "cuda": [_encode(state) for state in cuda],
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Inverse of `rng_state`. CUDA generators are set where as many devices are present."""
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(_decode(state["torch"]))
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([_decode(text) for text in state["cuda"]])


def _write(aside: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], meta: str) -> None:
    aside.mkdir()
    for group, named in tensors.items():
        save_file(_plain(named), aside / f"{group}.safetensors")
    (aside / META).write_text(meta, encoding="utf-8")
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(aside.iterdir()):
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    manifest = {"format": FORMAT, "step": step, "files": files}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in aside.iterdir():
        _sync_file(path)
    _sync_folder(aside)


def _plain(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors no two of which share memory (safetensors refuses those)."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in named.items():
        flat = tensor.detach().cpu().contiguous()
        storage = flat.untyped_storage().data_ptr()
        if storage in seen and flat.numel():
            flat = flat.clone()
        seen.add(storage)
        plain[name] = flat
    return plain


def _all(folder: Path) -> list[Path]:
    """Return the visible checkpoints, oldest first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), int(match[2] or 0), path))
    return [path for _, _, path in sorted(found)]


def _free_name(folder: Path, step: int) -> Path:
    path, n = folder / f"step-{step:06d}", 0
    while path.exists():
        n += 1
        path = folder / f"step-{step:06d}.{n}"
    return path


def _prune(folder: Path, keep: int) -> None:
    for path in _all(folder)[: -max(keep, 1)]:
        try:
            gone = path.with_name(
                f".tmp-{path.name}"
            )  # first out of sight, so that no half of it is ever seen
            os.rename(path, gone)
            shutil.rmtree(gone)
        except (
            OSError
        ) as error:  # the new checkpoint stands; an old one in the way is no reason to stop training
            warnings.warn(f"old checkpoint {path} could not be deleted: {error}", stacklevel=3)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        good = isinstance(manifest["step"], int) and all(
            {"bytes", "sha256"} <= set(e) for e in files.values()
        )
    except FileNotFoundError:
        raise _broken(path / MANIFEST, "it is missing, so the checkpoint is not complete") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(path / MANIFEST, f"it cannot be read ({error!r})") from None
    if manifest.get("format") != FORMAT:
        raise _broken(
            path / MANIFEST, f"its format is {manifest.get('format')!r}, this version reads {FORMAT}"
        )
    if not good or META not in files or any("/" in name or name.startswith(".") for name in files):
        raise _broken(path / MANIFEST, "it does not list the files of a checkpoint")
    return manifest


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise _broken(path, "it is missing")
    if path.stat().st_size != size:
        raise _broken(path, f"it has {path.stat().st_size} bytes, {size} were written")


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint file {path}: {what}. Move {path.parent} away to go on from an older checkpoint"
    )


def _compare(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    lines = [
        f"{key}: {saved.get(key, '(not set)')!r} there, {wanted.get(key, '(not set)')!r} here"
        for key in sorted(saved.keys() | wanted.keys())
        if key not in saved or key not in wanted or saved[key] != wanted[key]
    ]
    if lines:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run: {'; '.join(lines)}. Resume with the settings it "
            f"was made with, or start a new run under another name"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_folder = _sync_file


def _json(data: Mapping[str, Any]) -> str:
    try:
        return json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint meta must be plain JSON data: {error}") from None


def _gib(tensors: Mapping[str, Mapping[str, Tensor]]) -> float:
    return sum(t.numel() * t.element_size() for named in tensors.values() for t in named.values()) / 2**30


def _encode(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)

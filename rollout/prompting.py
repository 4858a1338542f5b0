"""The prompts of harnesses: jinja2 files in `rollout/prompts/`, and the hash by which a result names them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).parent / "prompts"


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(  # plain text, not HTML: nothing is escaped; a field that a template lacks is an error
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(name: str, **fields: Any) -> str:
    """Return the prompt `name` (a file of `rollout/prompts`, without its suffix) with its fields filled in."""
    return _environment().get_template(f"{name}.j2").render(**fields).strip()


def prompt_hashes() -> dict[str, str]:
    """Return 16 hex digits for each prompt file, those of trackers included, by file name."""
    files = sorted(path for path in PROMPTS.iterdir() if path.suffix in (".j2", ".txt"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}

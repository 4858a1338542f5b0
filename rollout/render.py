"""Token in, token out: a growing chat as token ids, from the model's own chat template.

Re-rendering a chat each turn re-tokenises what the model wrote and, with thinking templates, rewrites earlier
turns; then the ids that are trained on are not those that were sampled. So the template is read once, as the
text *between* messages: probe chats are rendered as strings and cut at the probe words. A turn then only
appends ids. Message text is encoded as plain text: a user who types "<|im_end|>" does not end a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SYSTEM, _USERS, _REPLIES = (
    "ffsystemprobe",
    ("ffuserone", "ffusertwo", "ffuserthree"),
    ("ffreplyone", "ffreplytwo"),
)
_EMPTY_THINKING = re.compile(r"\s*(<think>\s*</think>)?\s*")


class Renderer:
    """Turns messages into ids for one tokenizer with a chat template.

    The context of turn t is `start(...) + output_0 + next(...) + output_1 + ... + next(...)`.
    `stop_ids`: the id that closes an assistant turn, then the tokenizer's own end of text where that differs.
    Raises `ConfigError` when the tokenizer has no chat template, or when rendering one more turn would not
    extend the turns before it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer: Any = tokenizer  # special ids and added tokens are loosely typed there
        self.name = tokenizer.name_or_path or type(tokenizer).__name__
        added = [text for text in self.tokenizer.get_added_vocab() if len(text) > 1]
        longest_first = sorted(added, key=len, reverse=True)
        self._added = re.compile(f"(?={'|'.join(map(re.escape, longest_first))})") if added else None
        before, between, generation, again = self._read_template()
        self._before_ids, self._between_ids = self._control(before), self._control(between)
        self._generation_ids, self._again_ids = self._control(generation), self._control(again)
        self.close_id = self._close_id(again)
        eos = self.tokenizer.eos_token_id
        extra = [] if eos is None or eos == self.close_id else [int(eos)]
        self.stop_ids: tuple[int, ...] = (self.close_id, *extra)

    def start(self, system: str, user: str) -> list[int]:
        """Return the ids of a new chat up to where the assistant writes."""
        return [
            *self._before_ids,
            *self._plain(system),
            *self._between_ids,
            *self._plain(user),
            *self._generation_ids,
        ]

    def next(self, user: str, output_ids: Sequence[int] | None = None) -> list[int]:
        """Return the ids that follow an assistant turn: its close, the next user message, the assistant's
        header.

        `output_ids` is what the assistant wrote; the close id is added only if it does not end with it (it
        was cut off at a length limit). Without `output_ids` it is taken to be closed, as `encode_output`
        leaves it.
        """
        closed = output_ids is None or (len(output_ids) > 0 and output_ids[-1] == self.close_id)
        close = self._again_ids[1:] if closed else self._again_ids
        return [*close, *self._plain(user), *self._generation_ids]

    def encode_output(self, text: str) -> list[int]:
        """Return the ids of an assistant turn that says `text`, close id included."""
        return [*self._plain(text), self.close_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of output ids without special tokens."""
        said = [i for i in ids if i not in self.stop_ids]
        text = self.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def _read_template(self) -> tuple[str, str, str, str]:
        """Return the template's text before the system prompt, between it and the user's message, after the
        user's message, and between an assistant turn and the next user message."""
        first, second, third = self._chat(1), self._chat(2), self._chat(3)
        before, between, generation = _cut(first, _SYSTEM, _USERS[0])
        _, _, opening, again, generation_2 = _cut(second, _SYSTEM, _USERS[0], _REPLIES[0], _USERS[1])
        # A thinking template opens the turn to come with an empty thinking block and leaves it out of
        # turns that are past. Ours stays where it was generated, so contexts stay prefixes of each other.
        thinking = generation.removeprefix(opening)
        extends = generation.startswith(opening) and _EMPTY_THINKING.fullmatch(thinking) is not None
        past = f"{before}{_SYSTEM}{between}{_USERS[0]}{opening}{_REPLIES[0]}{again}{_USERS[1]}"
        rebuilt_third = f"{past}{opening}{_REPLIES[1]}{again}{_USERS[2]}{generation}"
        if not extends or generation_2 != generation or second != past + generation or third != rebuilt_third:
            raise ConfigError(
                f"the chat template of {self.name!r} rewrites earlier turns: rendering turn n + 1 does "
                f"not extend turn n.\n  turn 1: {first!r}\n  turn 2: {second!r}\n"
                "The tracker log needs an append-only template; use another model or give it a chat template "
                "that leaves past turns as they are"
            )
        return before, between, generation, again

    def _chat(self, users: int) -> str:
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USERS[0]}]
        for reply, user in zip(_REPLIES, _USERS[1:users], strict=False):
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": user}]
        if not self.tokenizer.chat_template:
            raise ConfigError(f"the tokenizer of {self.name!r} has no chat template; use an instruct model")
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        except TemplateError as error:
            raise ConfigError(
                f"the chat template of {self.name!r} refuses a system, user, assistant, user chat: "
                f"{error}; use a model whose template takes a system message"
            ) from error
        return str(text)

    def _close_id(self, again: str) -> int:
        atomic = set(self.tokenizer.get_added_vocab().values())  # never the result of a merge
        if not self._again_ids or self._again_ids[0] not in atomic:
            raise ConfigError(
                f"the chat template of {self.name!r} closes an assistant turn with {again!r}, which "
                "does not begin with a special token, so there is nothing to stop at; use another template"
            )
        return self._again_ids[0]

    def _control(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _plain(self, text: str) -> list[int]:
        """Encode message text. Every added token spelled out in it is cut in two first, so none is ever
        matched."""
        if self._added is None or self._added.search(text) is None:
            return self._control(text)
        cuts = [0, *(match.start() + 1 for match in self._added.finditer(text)), len(text)]
        return [i for a, b in pairwise(cuts) for i in self._control(text[a:b])]


def _cut(text: str, *words: str) -> list[str]:
    """Cut `text` at each of `words`, in order. Raises `ConfigError` if one is not there exactly once."""
    pieces = []
    for word in words:
        if text.count(word) != 1:
            raise ConfigError(f"the chat template drops or repeats a message: {word!r} in {text!r}")
        piece, _, text = text.partition(word)
        pieces.append(piece)
    return [*pieces, text]

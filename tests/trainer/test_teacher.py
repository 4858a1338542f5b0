from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from envs.errors import ConfigError, DataError
from trainer.student import Student, StudentConfig
from trainer.teacher import ModelTeacher, check_tokenizers

sys.path.insert(0, str(Path(__file__).parent))
import tiny_models


class Words:
    """The part of a tokenizer that is compared."""

    def __init__(self, words, eos="</s>", bos="<s>", pad="</s>"):
        self.words, self.eos_token, self.bos_token, self.pad_token = words, eos, bos, pad

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}


def student(vocab=tiny_models.VOCAB):
    return Student(StudentConfig(model="", dtype="float32"), model=tiny_models.llama(vocab=vocab))


def test_tokenizers_must_agree():
    words = ["<s>", "</s>", "a", "b"]
    check_tokenizers(Words(words), Words(list(words)))
    with pytest.raises(ConfigError, match="id 2 is 'a' for the student and 'c' for the teacher"):
        check_tokenizers(Words(words), Words(["<s>", "</s>", "c", "b"]))
    with pytest.raises(ConfigError, match="1 tokens more .'z'"):
        check_tokenizers(Words(words), Words([*words, "z"]))
    with pytest.raises(ConfigError, match="eos_token is '</s>' for the student and 'b' for the teacher"):
        check_tokenizers(Words(words), Words(words, eos="b"))
    check_tokenizers(Words(words), Words(words, pad="b"))  # padding is by length, its id is never read


def test_padded_vocabulary_is_accepted_with_tokenizers_only():
    made, wide = student(), ModelTeacher(tiny_models.llama(seed=3, vocab=128), privileged=False)
    with pytest.raises(ConfigError, match="student vocabulary 97, teacher vocabulary 128"):
        wide.check(made)
    words = Words([str(i) for i in range(90)])
    wide.check(made, student_tokenizer=words, teacher_tokenizer=words)
    rows = tiny_models.rows(count=2, branches=False)
    for row in rows:
        row.weights = []
    assert made.step(rows, "full", teacher=wide)["divergence"] > 0


def test_context_length_is_checked():
    teacher = ModelTeacher(tiny_models.llama(seed=3), privileged=False)
    teacher.check(student(), longest=127)
    with pytest.raises(ConfigError, match="longest row has 128 tokens but teacher .* at most 128"):
        teacher.check(student(), longest=128)


def test_canary():
    model = tiny_models.llama(seed=3)
    teacher = ModelTeacher(model, privileged=False)
    first = teacher.canary(tiny_models.VOCAB)
    assert torch.equal(first, teacher.canary(tiny_models.VOCAB))
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
    with pytest.raises(ConfigError, match="uniform"):
        teacher.canary(tiny_models.VOCAB)
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(float("nan"))
    with pytest.raises(ConfigError, match="not finite"):
        teacher.canary(tiny_models.VOCAB)


@pytest.mark.parametrize("make", [tiny_models.llama, tiny_models.qwen35])
def test_order_does_not_depend_on_batching(make):
    rows = tiny_models.rows(count=7, branches=False)
    whole = ModelTeacher(make(), privileged=True).hidden(rows)
    single = ModelTeacher(make(), privileged=True, tokens_per_micro=1).hidden(rows)
    torch.testing.assert_close(single, whole, rtol=1e-4, atol=1e-4)
    alone = torch.cat([ModelTeacher(make(), privileged=True).hidden([row]) for row in rows])
    torch.testing.assert_close(alone, whole, rtol=1e-4, atol=1e-4)


def test_privileged_needs_its_context_and_changes_the_scores():
    rows = tiny_models.rows(count=2, branches=False)
    plain = ModelTeacher(tiny_models.llama(), privileged=False)
    hinted = ModelTeacher(tiny_models.llama(), privileged=True)
    assert not torch.allclose(plain.hidden(rows), hinted.hidden(rows))
    rows[0].teacher_ids = None
    with pytest.raises(DataError, match="'row0' has no teacher_ids"):
        hinted.hidden(rows)


def test_load_from_a_folder(tmp_path):
    made = student()
    made.save_pretrained(tmp_path)
    rows = tiny_models.rows(count=2, branches=False)
    teacher = ModelTeacher.load(tmp_path, privileged=False, dtype="float32")
    torch.testing.assert_close(teacher.hidden(rows), made.hidden(rows))
    with pytest.raises(ConfigError, match="cannot load"):
        ModelTeacher.load(tmp_path / "missing", privileged=False, dtype="float32")

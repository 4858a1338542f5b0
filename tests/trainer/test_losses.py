from __future__ import annotations

import math

import pytest
import torch

from envs.errors import ConfigError, UnknownName
from trainer.linear_ce import fused_logprobs
from trainer.losses import LOSSES, Tokens, get_loss, group_advantages

torch.set_num_threads(1)  # tensors this small only wait for a second thread

LOGS = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()  # student, as hidden states under an identity head
TEACHER = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()


def tokens(**changes):
    values = {
        "hidden_ND": LOGS.clone().requires_grad_(),
        "head_VD": torch.eye(2),
        "targets_N": torch.tensor([0, 1]),
        "weights_N": torch.tensor([1.0, 1.0]),
        "old_logprobs_N": torch.tensor([0.5, 0.125]).log(),  # ratios 1.5 and 4
        "teacher_NE": TEACHER,
        "teacher_head_VE": torch.eye(2),
    }
    return Tokens(**(values | changes))


KL = [0.75 * math.log(1.5) + 0.25 * math.log(0.5), 0.5 * math.log(5 / 9) + 0.5 * math.log(5)]
ADVANTAGES = [math.log(0.5 / 0.75), math.log(0.1 / 0.5)]
FORWARD = [0.5 * math.log(2 / 3) + 0.5 * math.log(2), 0.9 * math.log(1.8) + 0.1 * math.log(0.2)]
GOLDEN = {
    "full": sum(KL) / 4,
    "student_topk": sum(KL) / 4,  # the support is the whole vocabulary here
    "teacher_topk": sum(FORWARD) / 4,
    "expert": -(math.log(0.75) + math.log(0.5)) / 4,
    "sampled": -(ADVANTAGES[0] * 1.5 + ADVANTAGES[1] * 2.0) / 4,
    "state": -(1.5 + 2.0) / 4,
}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_golden_values(name):
    result = get_loss(name).function(tokens(), denominator=4.0, ratio_clip=2.0)
    assert result.loss.item() == pytest.approx(GOLDEN[name], rel=1e-5)
    assert result.per_token_N.shape == (2,)


def test_golden_gradients():
    """c (q - onehot) with c = w, A rho or w A rho, truncated at 2."""
    q = LOGS.exp()
    onehot = torch.eye(2)
    coefficients = {
        "expert": [1.0, 1.0],
        "sampled": [ADVANTAGES[0] * 1.5, ADVANTAGES[1] * 2.0],
        "state": [1.5, 2.0],
    }
    for name, c in coefficients.items():
        given = tokens()
        get_loss(name).function(given, denominator=4.0, ratio_clip=2.0).loss.backward()
        assert given.hidden_ND.grad is not None
        torch.testing.assert_close(
            given.hidden_ND.grad, torch.tensor(c)[:, None] * (q - onehot) / 4, msg=name
        )


def test_directions():
    """Descent raises what the teacher likes better than the student, and what scored above its group."""
    for name, row, rises in (
        ("sampled", 0, False),
        ("sampled", 1, False),
        ("state", 0, True),
        ("expert", 0, True),
    ):
        given = tokens()
        get_loss(name).function(given, denominator=1.0).loss.backward()
        assert given.hidden_ND.grad is not None
        assert bool(given.hidden_ND.grad[row, int(given.targets_N[row])] < 0) == rises, name


def test_ratio_one_equals_no_ratio_bit_for_bit():
    given, plain = tokens(), tokens()
    old_N, _ = fused_logprobs(given.hidden_ND.detach(), given.head_VD, given.targets_N)
    on_policy = tokens(old_logprobs_N=old_N)
    get_loss("state").function(on_policy, denominator=4.0).loss.backward()
    get_loss("expert").function(plain, denominator=4.0).loss.backward()
    assert on_policy.hidden_ND.grad is not None and plain.hidden_ND.grad is not None
    assert torch.equal(on_policy.hidden_ND.grad, plain.hidden_ND.grad)


def test_expected_sampled_gradient_is_that_of_reverse_kl():
    """Summed over all tokens with their probabilities, the one-sample policy gradient is the full one."""
    torch.manual_seed(0)
    V = 6
    z, t, eye = torch.randn(1, V), torch.randn(1, V), torch.eye(V)
    a = z.clone().requires_grad_()
    get_loss("full").function(
        Tokens(a, eye, torch.zeros(1, dtype=torch.long), torch.ones(1), None, t, eye),
        denominator=1.0,
        beta=1.0,
    ).loss.backward()
    b = z.expand(V, V).clone().requires_grad_()
    logq = z.log_softmax(-1)[0]
    every = Tokens(b, eye, torch.arange(V), logq.exp(), logq, t.expand(V, V), eye)
    get_loss("sampled").function(every, denominator=1.0).loss.backward()
    assert a.grad is not None and b.grad is not None
    torch.testing.assert_close(b.grad.sum(0), a.grad[0], rtol=1e-4, atol=1e-6)


def test_diagnostics():
    sums = get_loss("sampled").function(tokens(), denominator=4.0, ratio_clip=2.0).sums
    assert sums["truncated"].item() == 1.0
    expected = (1.5 - math.log(1.5) - 1) + (4 - math.log(4) - 1)
    assert sums["mismatch_kl"].item() == pytest.approx(expected, rel=1e-5)
    assert sums["k1"].item() == pytest.approx(-sum(ADVANTAGES), rel=1e-5)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) + math.log(2)
    assert sums["entropy"].item() == pytest.approx(entropy, rel=1e-5)
    full = get_loss("full").function(tokens(), denominator=4.0)
    assert full.maxima["divergence_max"].item() == pytest.approx(max(KL), rel=1e-5)


def test_padding_of_the_vocabulary_is_sliced_off():
    wide = torch.cat([torch.eye(2), torch.full((3, 2), 7.0)])
    narrow = get_loss("full").function(tokens(), denominator=4.0).loss
    for change in ({"teacher_head_VE": wide}, {"head_VD": wide}):
        assert get_loss("full").function(tokens(**change), denominator=4.0).loss.item() == narrow.item()


def test_missing_inputs_are_named():
    for name in ("full", "sampled", "student_topk", "teacher_topk"):
        with pytest.raises(ConfigError, match=f"'{name}'.*teacher"):
            get_loss(name).function(tokens(teacher_NE=None), denominator=1.0)
    for name in ("sampled", "state"):
        for old in (None, torch.tensor([math.nan, -1.0])):
            with pytest.raises(ConfigError, match="old_logprobs"):
                get_loss(name).function(tokens(old_logprobs_N=old), denominator=1.0)
    with pytest.raises(UnknownName, match="Did you mean 'sampled'"):
        get_loss("sample")
    with pytest.raises(UnknownName):
        get_loss("k1_direct")


def test_group_advantages():
    assert group_advantages([1.0, 0.0, 0.5]) == pytest.approx([0.5, -0.5, 0.0])
    assert group_advantages([1.0, 0.0], scale=True) == pytest.approx([1.0, -1.0])
    assert group_advantages([0.3, 0.3], scale=True) == [0.0, 0.0]

from __future__ import annotations

import pytest
import torch

pytest.importorskip("trl")

from recipes.bench import divergence as bench


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_contenders_compute_the_same(monkeypatch, beta):
    monkeypatch.setitem(bench.CASES, "small", (20, 60, 8, 12, torch.float32))
    results = {
        name: contender(bench.make_inputs("small"), beta) for name, contender in bench.CONTENDERS.items()
    }
    for name in ("trl", "naive"):
        assert results["ours"][0] == pytest.approx(results[name][0], rel=1e-5)
        for a, b in zip(results["ours"][1:], results[name][1:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    found = bench.measure_differences("small", beta)
    assert all(0 <= value < 1e-5 for value in found.values())


def test_measurements_are_positive(monkeypatch):
    monkeypatch.setitem(bench.CASES, "small", (20, 60, 8, 12, torch.float32))
    monkeypatch.setattr(bench, "ROUNDS", 1)
    assert all(0 < seconds < 60 for seconds in bench.measure_times("small", 1.0).values())
    assert bench.measure_memory("small", "ours", 1.0) > 0

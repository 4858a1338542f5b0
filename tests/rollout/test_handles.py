"""Ray as the engines get it; `ray.init` itself is not called."""

from __future__ import annotations

from typing import Any

import pytest

from rollout import handles

ray = pytest.importorskip("ray")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `ray.init` is called with."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    monkeypatch.setattr(handles, "_ray", {"ours": False, "users": 0})
    return calls


def test_a_private_ray_has_no_dashboard_unless_it_gets_a_port(started: list[dict[str, Any]]) -> None:
    handles.connect_ray(None, 1, 2**28)
    assert started[0]["include_dashboard"] is False and "dashboard_port" not in started[0]
    handles.connect_ray(None, 1, 2**28, dashboard_port=8299)
    assert started[1]["include_dashboard"] is True
    assert (started[1]["dashboard_host"], started[1]["dashboard_port"]) == ("127.0.0.1", 8299)


def test_a_cluster_that_is_joined_keeps_its_own_dashboard(started: list[dict[str, Any]]) -> None:
    handles.connect_ray("ray://10.0.0.1:10001", 1, 2**28, dashboard_port=8299)
    assert started[0]["address"] == "ray://10.0.0.1:10001"
    assert not {"include_dashboard", "dashboard_port"} & started[0].keys()

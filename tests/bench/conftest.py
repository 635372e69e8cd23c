from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def drivers_cache_of_our_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """PoCL keeps what it translates: not in the user's folder, and no test may rest on what an earlier run
    left."""
    cache = tmp_path_factory.getbasetemp() / "pocl"
    Path(cache).mkdir(exist_ok=True)
    monkeypatch.setenv("POCL_CACHE_DIR", str(cache))

"""A page over a database that looks like a node's, on a real port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboard.serving import Served, serve
from dashboard.synthetic import make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Serve a synthetic database; `make` and `serve` say what can be asked for."""
    running: list[Served] = []

    def start(*, hostile: bool = False, **options: object) -> Served:
        store = make(tmp_path / f"node-{len(running)}.db", hostile=hostile)
        running.append(serve(store, **options))
        return running[-1]

    yield start
    for page in running:
        page.close()


@pytest.fixture
def page(start: Callable[..., Served]) -> Served:
    return start()

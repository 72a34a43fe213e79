"""A tokenizer, a checker and a desk between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Desk

from ftis_node.lab.tiny import make_tiny
from ftis_node.tasks.verify import VerifyPool
from ftis_node.tokens import TextCodec


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(make_tiny(tmp_path_factory.mktemp("tiny") / "m"))


@pytest.fixture(scope="module")
def verify() -> Iterator[VerifyPool]:
    pool = VerifyPool()
    yield pool
    pool.close()


@pytest.fixture
def desk(codec: TextCodec, verify: VerifyPool, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(codec, verify, tmp_path)
    yield made
    made.store.close()

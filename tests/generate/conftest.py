from __future__ import annotations

from pathlib import Path

import pytest
from small_models import load_module, write_checkpoint
from torch import nn

from ftis_node.tokens import TextCodec


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tied"), tied=True, seed=1)


@pytest.fixture(scope="session")
def codec(checkpoint: Path) -> TextCodec:
    return TextCodec.load(checkpoint)


@pytest.fixture(scope="session")
def module(checkpoint: Path) -> nn.Module:
    return load_module(checkpoint)

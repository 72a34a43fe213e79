"""A million damaged envelopes through decoding and admission.

Nothing may raise, and the process may not grow by more than 64 MiB after its first thousand. Mutations are those of
tests/envelope_fuzz.py: bytes of the sealed envelope, its fields, the compressed and the unpacked body, single columns,
objects and frames behind a dictionary; below the first layer everything is signed again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "node"), str(ROOT / "protocol")]

from envelope_fuzz import EnvelopeFuzz, resident_bytes  # noqa: E402
from ftis_node.lab.tiny import make_tiny  # noqa: E402
from ftis_node.tokens import TextCodec  # noqa: E402

WARM_UP = 1_000
CHUNK = 50_000
MAX_GROWTH_BYTES = 64 * 2**20


async def run(fuzz: EnvelopeFuzz, count: int) -> tuple[Counter[tuple[str, str]], int]:
    """Outcomes, and the most that the process grew beyond its size after the warm-up, in bytes."""
    outcomes = await fuzz.run(min(WARM_UP, count))
    base, growth, done = resident_bytes(), 0, min(WARM_UP, count)
    while done < count:
        step = min(CHUNK, count - done)
        outcomes += await fuzz.run(step)
        done += step
        growth = max(growth, resident_bytes() - base)
        print(f"{done} envelopes, grown by {growth / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    return outcomes, growth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=1_000_000, help="envelopes (default a million)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    arguments = parser.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        fuzz = EnvelopeFuzz(TextCodec.load(make_tiny(Path(folder) / "model")), Path(folder), arguments.seed)
        outcomes, growth = asyncio.run(run(fuzz, arguments.count))
        fuzz.close()
    seconds = time.process_time() - began
    told: Counter[str] = Counter()
    for (_, reason), count in outcomes.items():
        told[reason] += count
    print(f"{arguments.count} envelopes, {seconds:.0f} CPU seconds, grown by {growth / 2**20:.1f} MiB, no exception")
    print(", ".join(f"{reason} {count}" for reason, count in told.most_common()))
    if arguments.json:
        document = {"count": arguments.count, "seed": arguments.seed, "growth_bytes": growth, "outcomes": told}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if growth < MAX_GROWTH_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())

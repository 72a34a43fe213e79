"""The table of keys, its inverse, and that the documents tell of everything that two nodes must agree on."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import FUZZ, SWARM_ID

from ftis_protocol import limits
from ftis_protocol.envelope import KINDS, Kind
from ftis_protocol.errors import REASON_MEANINGS, Reason
from ftis_protocol.keys import (
    KEY_RULES,
    Subkey,
    Writer,
    body_digest,
    body_key,
    discovery_key,
    manifest_key,
    offers_key,
    parse_key,
    presence_key,
    shard_of,
)

DIGEST = body_digest(b"sealed")
DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"

KEYS = {
    "discovery": discovery_key(),
    "manifest": manifest_key(SWARM_ID),
    "presence": presence_key(SWARM_ID, 3),
    "offers": offers_key(SWARM_ID, 0, 59_000_000),
    "body": body_key(DIGEST),
}


def test_every_rule_has_a_key_that_leads_back_to_it() -> None:
    assert list(KEYS) == [rule.name for rule in KEY_RULES]
    for name, key in KEYS.items():
        parsed = parse_key(key)
        assert parsed is not None
        assert parsed.rule.name == name


def test_the_parts_of_a_key_are_found_again() -> None:
    offers, body = parse_key(KEYS["offers"]), parse_key(KEYS["body"])
    assert offers is not None
    assert (offers.swarm_id, offers.shard, offers.slot, offers.digest) == (SWARM_ID, 0, 59_000_000, None)
    assert body is not None
    assert (body.swarm_id, body.shard, body.slot, body.digest) == (None, None, None, DIGEST)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ftis/1",
        "ftis/2/discovery",
        "ftis/1/discovery\n",
        "ftis/1/SWARM/manifest",
        presence_key(SWARM_ID, 3) + "/",
        presence_key(SWARM_ID, 3).replace("/3", "/03"),
        presence_key(SWARM_ID, 3).replace("/3", "/-3"),
        presence_key(SWARM_ID, 3).replace("/3", "/٣"),
        presence_key(SWARM_ID, 10**20),
        body_key(DIGEST).upper(),
        body_key(DIGEST)[:-1],
        "other/" + discovery_key(),
    ],
)
def test_any_other_key_is_nobodys(key: str) -> None:
    assert parse_key(key) is None


@FUZZ
@given(st.text(max_size=60))
def test_parsing_never_raises(key: str) -> None:
    assert parse_key(key) is None


def test_the_table_agrees_with_the_kinds_it_holds() -> None:
    for rule in KEY_RULES:
        assert rule.max_bytes == max(KINDS[kind].max_bytes for kind in rule.kinds)
        assert 0 < rule.lifetime_seconds <= limits.MANIFEST_LIFETIME_SECONDS
        assert (rule.subkey is Subkey.SENDER) == (rule.writer is Writer.SENDER)
    assert {kind for rule in KEY_RULES for kind in rule.kinds} == set(Kind)


def test_shards_are_even_and_the_same_for_all() -> None:
    assert shard_of("a" * 26, 16) == 8
    loads = Counter(shard_of(f"node {number}", 16) for number in range(1600))
    assert set(loads) == set(range(16))
    assert max(loads.values()) < 150
    assert shard_of("anything", 1) == 0


def test_every_reason_has_one_meaning() -> None:
    assert set(REASON_MEANINGS) == set(Reason)
    assert len(set(REASON_MEANINGS.values())) == len(Reason)
    assert all(reason.value == reason.name.lower() for reason in Reason)


def test_the_document_tells_every_key_kind_reason_and_limit() -> None:
    text = DOCUMENT.read_text()
    for rule in KEY_RULES:
        assert f"| {rule.name} |" in text
    for reason in Reason:
        assert f"| `{reason.value}` | {REASON_MEANINGS[reason]} |" in text
    for kind in Kind:
        assert f"| {int(kind)} | {kind.name.lower()} |" in text
    numbers = {name: value for name, value in vars(limits).items() if name.isupper()}
    for name, value in numbers.items():
        assert f"| `{name}` | {value:,} |" in text or f"| `{name}` | {value} |" in text, name


def test_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, ftis_protocol.envelope, ftis_protocol.keys, ftis_protocol.invite\n"
        "heavy = {'torch', 'transformers', 'vllm', 'hivemind', 'numpy', 'starlette', 'ftis_node'}\n"
        "sys.exit(','.join(heavy & set(sys.modules)) or None)"
    )
    source = str(Path(limits.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

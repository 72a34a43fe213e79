"""The vectors in tests/vectors, read as another implementation would: from JSON to bytes and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftis_protocol import keys
from ftis_protocol.canonical import pack, unpack
from ftis_protocol.codec import canonical_bytes
from ftis_protocol.columns import pack_floats, pack_ints, unpack_floats, unpack_ints
from ftis_protocol.dictionaries import newest_dictionary, text_dictionary
from ftis_protocol.envelope import KINDS, Kind, Message, open_envelope, signed_part
from ftis_protocol.errors import ProtocolError
from ftis_protocol.identity import Identity, friendly_name, node_id_of, verify
from ftis_protocol.rollout import Group, group_digest, item_seed

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "protocol.schema.json").read_text())


def vectors(name: str) -> Any:
    return json.loads((ROOT / "tests" / "vectors" / name).read_text())


MESSAGES = vectors("messages.json")["messages"]
NAMES = vectors("names.json")
FORMS = vectors("forms.json")
REFUSED = vectors("refused.json")


def from_json(value: Any, model: type) -> Any:
    """The message that a vector describes; only a JSON reader knows which text is bytes: the schema's pattern says."""
    return model.model_validate(_typed(value, SCHEMA["$defs"][model.__name__]))


def _typed(value: Any, rule: dict[str, Any]) -> Any:
    if "$ref" in rule:
        rule = SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]]
    if isinstance(value, dict):
        fields = rule.get("properties", {})
        return {
            key: _typed(item, fields.get(key, rule.get("additionalProperties") or {})) for key, item in value.items()
        }
    if isinstance(value, list):
        inner = rule.get("items") or next((r["items"] for r in rule.get("anyOf", []) if "items" in r), {})
        return tuple(_typed(item, inner) for item in value)
    return bytes.fromhex(value) if "0-9a-f]{2}" in rule.get("pattern", "") else value


@pytest.mark.parametrize("vector", MESSAGES.values(), ids=MESSAGES.keys())
def test_a_message_becomes_its_canonical_bytes(vector: dict[str, Any]) -> None:
    message = from_json(vector["message"], KINDS[Kind(vector["kind"])].model)
    assert canonical_bytes(message).hex() == vector["canonical"]


@pytest.mark.parametrize("vector", MESSAGES.values(), ids=MESSAGES.keys())
def test_sealed_bytes_become_their_message(vector: dict[str, Any]) -> None:
    sealed = bytes.fromhex(vector["sealed"])
    opened = open_envelope(sealed, swarm_id=vector["swarm_id"], dictionary=text_dictionary(vector["dictionary"]))
    message: Message = from_json(vector["message"], KINDS[Kind(vector["kind"])].model)
    assert opened.message == message
    assert (opened.sequence, opened.issued_at, int(opened.kind)) == (7, vector["issued_at"], vector["kind"])
    assert opened.sender == NAMES["identities"][1]["node_id"]
    assert keys.body_digest(sealed).hex() == vector["digest"]


@pytest.mark.parametrize("vector", MESSAGES.values(), ids=MESSAGES.keys())
def test_a_signature_is_made_again_from_the_private_key(vector: dict[str, Any]) -> None:
    *head, signature = unpack(bytes.fromhex(vector["sealed"]))
    author = identity(NAMES["identities"][1])
    assert head[3] == author.public_key
    assert author.sign(signed_part(head)) == signature
    assert pack([*head, signature]).hex() == vector["sealed"]


@pytest.mark.parametrize("vector", MESSAGES.values(), ids=MESSAGES.keys())
def test_the_schema_allows_every_message(vector: dict[str, Any]) -> None:
    kind = Kind(vector["kind"])
    jsonschema.validate(vector["message"], SCHEMA | {"oneOf": [{"$ref": f"#/$defs/{KINDS[kind].model.__name__}"}]})


def test_the_schema_refuses_what_the_models_refuse() -> None:
    card = MESSAGES["card"]["message"]
    for change in ({"more": 1}, {"role": "king"}, {"name": ""}, {"pass_at_1": 2}, {"policy_version": -1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(card | change, SCHEMA | {"oneOf": [{"$ref": "#/$defs/NodeCard"}]})


def identity(vector: dict[str, Any]) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["private"])))


@pytest.mark.parametrize("vector", NAMES["identities"], ids=lambda vector: vector["friendly_name"])
def test_a_key_has_its_id_name_shard_and_signature(vector: dict[str, Any]) -> None:
    who, public = identity(vector), bytes.fromhex(vector["public"])
    assert who.public_key == public
    assert (node_id_of(public), friendly_name(vector["node_id"])) == (vector["node_id"], vector["friendly_name"])
    assert keys.shard_of(vector["node_id"], 16) == vector["shard_of_16"]
    signature = bytes.fromhex(vector["signature_of_ftis"])
    assert who.sign(b"ftis") == signature
    assert verify(public, b"ftis", signature)
    assert not verify(public, b"ftiz", signature)


def test_ids_keys_seeds_and_digests() -> None:
    plain = MESSAGES["manifest"]["message"], MESSAGES["manifest with a dictionary"]["message"]
    ids = [from_json(message, KINDS[Kind.MANIFEST].model).swarm_id for message in plain]
    assert ids == list(NAMES["swarm_ids"].values())
    assert NAMES["dictionary"] == newest_dictionary()
    swarm_id, node_id, slot, task, version = NAMES["item_seed"]["of"]
    assert str(item_seed(swarm_id, node_id, slot, task, version)) == NAMES["item_seed"]["is"]
    one, author = NAMES["group_digest"]["of"]
    assert group_digest(from_json(one, Group), author).hex() == NAMES["group_digest"]["is"]
    made = {
        "discovery": keys.discovery_key(),
        "manifest": keys.manifest_key(swarm_id),
        "presence": keys.presence_key(swarm_id, 3),
        "offers": keys.offers_key(swarm_id, 3, slot),
        "body": keys.body_key(bytes(range(32))),
    }
    assert made == NAMES["keys"]
    assert all(keys.parse_key(key) for key in made.values())


def test_canonical_forms() -> None:
    for vector in FORMS["msgpack"]:
        assert pack(vector["value"]).hex() == vector["bytes"]
        assert pack(unpack(bytes.fromhex(vector["bytes"]))).hex() == vector["bytes"]
    for name, packed, read in (("integers", pack_ints, unpack_ints), ("floats", pack_floats, unpack_floats)):
        for vector in FORMS[name]:
            assert packed(vector["values"]).hex() == vector["bytes"]
            assert list(read(bytes.fromhex(vector["bytes"]), len(vector["values"]))) == vector["values"]


@pytest.mark.parametrize("name", REFUSED["refused"])
def test_hostile_bytes_are_refused_with_their_reason(name: str) -> None:
    vector = REFUSED["refused"][name]
    with pytest.raises(ProtocolError) as caught:
        open_envelope(bytes.fromhex(vector["bytes"]), swarm_id=REFUSED["swarm_id"])
    assert caught.value.reason == vector["reason"]


def test_the_files_are_current() -> None:
    import importlib.util

    made = {}
    for name in ("vectors", "schema"):
        spec = importlib.util.spec_from_file_location(f"scripts_{name}", ROOT / "scripts" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        made[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made[name])
    assert made["schema"].document() == (ROOT / "docs" / "protocol.schema.json").read_text(encoding="utf-8")
    for name in ("names.json", "forms.json"):
        assert made["vectors"].text_of(name) == (ROOT / "tests" / "vectors" / name).read_text(encoding="utf-8")
    for name, vector in made["vectors"].messages()["messages"].items():
        # Only compressors may differ between machines; what they compressed may not.
        told = {key: value for key, value in MESSAGES[name].items() if key not in ("sealed", "digest")}
        assert {key: value for key, value in vector.items() if key not in ("sealed", "digest")} == told
    now = {name: entry["reason"] for name, entry in made["vectors"].refused()["refused"].items()}
    assert now == {name: entry["reason"] for name, entry in REFUSED["refused"].items()}

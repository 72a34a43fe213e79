"""Multiaddrs taken apart, chosen for announcement and remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftis_node.swarm.addresses import (
    MAX_REMEMBERED,
    AddressBook,
    announceable,
    out_of_reach,
    parse_endpoint,
    peer_id_of,
)
from ftis_node.swarm.settings import DhtOptions

PEER = "12D3KooWR5PnYTAiXprb7zUYWsPq4VcVxAyJ9qiFTZuw1JHKS3Pp"


def at(host: str, port: int = 4001, protocol: str = "ip4") -> str:
    return f"/{protocol}/{host}/tcp/{port}/p2p/{PEER}"


def test_a_tcp_address_comes_apart():
    endpoint = parse_endpoint(at("node.example", 443, "dns4"))
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, endpoint.peer_id) == ("node.example", 443, PEER)
    assert endpoint.transport == "/dns4/node.example/tcp/443"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "hello",
        "/ip4/1.2.3.4/tcp/4001",
        "/ip4/1.2.3.4/udp/4001/quic/p2p/" + PEER,
        at("1.2.3.4", 0),
        at("1.2.3.4", 70_000),
        at("", 4001),
        "/ip4/1.2.3.4/tcp/٤٠٠١/p2p/" + PEER,
        at("1.2.3.4") + "/p2p-circuit",
        at("x" * 300, protocol="dns4"),
    ],
)
def test_anything_else_does_not(address: str):
    assert parse_endpoint(address) is None


def test_the_peer_at_the_end_of_a_relayed_address_counts():
    assert peer_id_of(f"{at('1.2.3.4')}/p2p-circuit/p2p/QmOther") == "QmOther"
    assert peer_id_of("/ip4/1.2.3.4/tcp/4001") is None


def test_strangers_get_public_addresses_only_when_there_are_any():
    mine, home, world = at("127.0.0.1"), at("192.168.1.5"), at("8.8.8.8")
    assert announceable([mine, home, world], loopback=False) == (world,)
    assert announceable([mine, home], loopback=False) == (home,)
    assert announceable([mine], loopback=False) == ()
    assert announceable([mine], loopback=True) == (mine,)
    assert announceable([at("::1", protocol="ip6"), at("0.0.0.0")], loopback=False) == ()


def test_a_book_keeps_the_newest_and_survives(tmp_path: Path):
    book = AddressBook(tmp_path / "peers.json")
    book.add([at("1.1.1.1"), "nonsense", at("2.2.2.2")])
    book.add([at("1.1.1.1")])
    assert list(book) == [at("1.1.1.1"), at("2.2.2.2")]
    book.save()
    assert list(AddressBook(tmp_path / "peers.json")) == list(book)
    book.add(at("3.3.3.3", port) for port in range(1, 1000))
    assert len(book) == MAX_REMEMBERED
    assert next(iter(book)) == at("3.3.3.3", 999)


@pytest.mark.parametrize("content", ["", "{", "7", '{"a": 1}', '[1, null, "x"]', "\x00\x01"])
def test_a_broken_book_is_empty(tmp_path: Path, content: str):
    (tmp_path / "peers.json").write_text(content)
    assert list(AddressBook(tmp_path / "peers.json")) == []


def test_a_book_without_a_file_writes_nothing(tmp_path: Path):
    book = AddressBook(None)
    book.add([at("1.1.1.1")])
    book.save()
    assert list(tmp_path.iterdir()) == []


def test_the_port_is_remembered(tmp_path: Path):
    options = DhtOptions(state_dir=tmp_path)
    assert options.remembered_port() is None
    options.remember_port(4711)
    assert DhtOptions(state_dir=tmp_path).remembered_port() == 4711
    for broken in ("", "[]", '{"port": "x"}', '{"port": 0}', '{"port": 99999}', "{}"):
        (tmp_path / "p2p.json").write_text(broken)
        assert options.remembered_port() is None
    (tmp_path / "p2p.json").write_text(json.dumps({"port": 1234}))
    assert options.remembered_port() == 1234


def test_options_know_loopback_and_the_listening_address():
    assert DhtOptions(host="127.0.0.1").loopback
    assert DhtOptions(host="::1").listen(7) == "/ip6/::1/tcp/7"
    assert not DhtOptions().loopback
    assert DhtOptions().listen(4001) == "/ip4/0.0.0.0/tcp/4001"


PUBLIC, PRIVATE, HERE = at("8.8.8.8"), at("192.168.1.5"), at("127.0.0.1")


@pytest.mark.parametrize(
    ("own", "others", "hidden"),
    [
        ([PRIVATE], [PUBLIC], True),
        ([PRIVATE, PUBLIC], [PUBLIC], False),
        ([PRIVATE], [PRIVATE], False),
        ([HERE], [HERE, PUBLIC], True),
        ([], [PUBLIC], False),
        ([PRIVATE], [], False),
    ],
)
def test_a_private_node_in_a_public_swarm_is_out_of_reach(own: list[str], others: list[str], hidden: bool):
    assert out_of_reach(own, others) is hidden

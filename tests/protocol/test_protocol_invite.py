"""Invites as people paste them: whole, damaged, and by accident something else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import FUZZ, SWARM_ID

from ftis_protocol import limits
from ftis_protocol.errors import InviteError, Reason
from ftis_protocol.invite import EXAMPLE_ADDRESS, Invite

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
ED_PEER = "12D3KooWBmzXmCMqPgiyhEsK2NRSb3gnUoqQVDPbVvVnXTM8H3yv"
LOOPBACK = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"

GOOD_ADDRESSES = (
    EXAMPLE_ADDRESS,
    LOOPBACK,
    f"/ip6/2001:db8::1/tcp/4001/p2p/{ED_PEER}",
    f"/dns4/node.example.org/tcp/443/wss/p2p/{PEER}",
    f"/dnsaddr/boot.example.org/p2p/{PEER}",
    f"/ip4/10.0.0.1/udp/4001/quic-v1/p2p/{ED_PEER}",
    f"/ip4/10.0.0.1/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{ED_PEER}",
)


@pytest.mark.parametrize("address", GOOD_ADDRESSES)
def test_a_bare_address(address: str) -> None:
    invite = Invite.parse(address)
    assert invite == Invite(None, (address,))
    assert invite.format() == address


def test_a_whole_invite_survives_the_way_it_is_pasted() -> None:
    invite = Invite(SWARM_ID, GOOD_ADDRESSES)
    line = invite.format()
    assert line == f"ftis:{SWARM_ID}@" + ",".join(GOOD_ADDRESSES)
    for pasted in (
        line,
        f"  {line}\n",
        f'"{line}"',
        f"'{line}'",
        f"`{line}`",
        f"<{line}>",
        line.replace(",", " , "),
        line + ",",
    ):
        assert Invite.parse(pasted) == invite
    assert Invite.parse(f"FTIS:{SWARM_ID.upper()}@{LOOPBACK}") == Invite(SWARM_ID, (LOOPBACK,))


def test_an_address_given_twice_counts_once() -> None:
    assert Invite.parse(f"{LOOPBACK},{LOOPBACK}").addresses == (LOOPBACK,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("''", "is empty"),
        ("hello", "neither an invite nor an address"),
        ("https://example.org", "neither an invite nor an address"),
        ("127.0.0.1:4001", "neither an invite nor an address"),
        (SWARM_ID, "neither an invite nor an address"),
        ("ftis:", "no @"),
        (f"ftis:{SWARM_ID}", "no @"),
        (f"ftis:@{LOOPBACK}", "not a swarm id"),
        (f"ftis:{SWARM_ID[:-1]}@{LOOPBACK}", "not a swarm id"),
        (f"ftis:{SWARM_ID}a@{LOOPBACK}", "not a swarm id"),
        (f"ftis:{SWARM_ID[:-1]}1@{LOOPBACK}", "not a swarm id"),
        (f"ftis:{SWARM_ID}@", "no address"),
        (f"ftis:{SWARM_ID}@,,", "no address"),
        (f"ftis:{SWARM_ID}@127.0.0.1", "does not begin with a slash"),
        (f"ftis:{SWARM_ID}@{LOOPBACK},oops", "does not begin with a slash"),
        ("/", "unknown"),
        ("/ip4", "not a host"),
        (f"/ip4/300.1.1.1/tcp/1/p2p/{PEER}", "not a host"),
        (f"/ip4/::1/tcp/1/p2p/{PEER}", "not a host"),
        (f"/ip6/1.2.3.4/tcp/1/p2p/{PEER}", "not a host"),
        (f"/dns4/-bad-/tcp/1/p2p/{PEER}", "not a host"),
        (f"/ip4/1.2.3.4/tcp/0/p2p/{PEER}", "not a port"),
        (f"/ip4/1.2.3.4/tcp/65536/p2p/{PEER}", "not a port"),
        (f"/ip4/1.2.3.4/tcp/x/p2p/{PEER}", "not a port"),
        (f"/ip4/1.2.3.4/tcp/٤٢/p2p/{PEER}", "odd characters"),
        (f"/ip4/1.2.3.4/p2p/{PEER}", "no port"),
        ("/ip4/1.2.3.4/tcp/4001", "no peer id"),
        ("/ip4/1.2.3.4/tcp/4001/", "unknown"),
        ("/ip4/1.2.3.4/tcp/4001/p2p/", "not a peer id"),
        ("/ip4/1.2.3.4/tcp/4001/p2p/Qm0OIl", "not a peer id"),
        (f"/ip4/1.2.3.4/tcp/4001/p2p/{PEER[:20]}", "not a peer id"),
        (f"/ip4/1.2.3.4/tcp/4001/p2p/{PEER}/p2p-circuit", "no peer id"),
        (f"/p2p/{PEER}", "no way to reach it"),
        (f"/tcp/4001/p2p/{PEER}", "does not begin with a host"),
        (f"/onion3/abc:80/p2p/{PEER}", "unknown"),
        ("/" + "a" * limits.MAX_ADDRESS, "too long"),
        (",".join(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}" for port in range(1, 19)), "18 addresses"),
    ],
)
def test_each_fault_is_named_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(InviteError, match=said) as caught:
        Invite.parse(text)
    assert caught.value.reason is Reason.INVITE
    assert caught.value.hint


def test_a_message_cannot_play_tricks_on_the_terminal() -> None:
    with pytest.raises(InviteError) as caught:
        Invite.parse("\x1b[2Jhello" + "x" * 1000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


@FUZZ
@given(st.one_of(st.text(), st.text("ftis:@/,ip4dns.tcp2p0123456789QmabcXYZ", max_size=120)))
def test_any_text_is_an_invite_or_a_named_fault(text: str) -> None:
    for line in (text, "ftis:" + text, f"ftis:{SWARM_ID}@{text}", "/" + text):
        with contextlib.suppress(InviteError):
            invite = Invite.parse(line)
            assert Invite.parse(invite.format()) == invite


@FUZZ
@given(st.data())
def test_a_mistyped_invite_is_an_invite_or_a_named_fault(data: st.DataObject) -> None:
    line = Invite(SWARM_ID, GOOD_ADDRESSES).format()
    place = data.draw(st.integers(0, len(line)))
    typo = line[:place] + data.draw(st.text(max_size=2)) + line[place + data.draw(st.integers(0, 2)) :]
    with contextlib.suppress(InviteError):
        Invite.parse(typo)

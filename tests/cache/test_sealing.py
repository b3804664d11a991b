"""Keys as they are written down, and what is sealed with them."""

from __future__ import annotations

import base64

import pytest

pytest.importorskip("cryptography", reason="nothing can be sealed without it")

from tierway.cache.sealing import Key, Sealer, read_key

RAW = bytes(range(32))
HEX = RAW.hex()
OTHER = base64.b64encode(b"\xfb\xff" * 16).decode()


@pytest.mark.parametrize(
    "text",
    [
        HEX,
        HEX.upper(),
        f"  {HEX}\n",
        base64.b64encode(RAW).decode(),
        base64.b64encode(RAW).decode().rstrip("="),
    ],
)
def test_a_random_key_may_be_written_in_several_ways(text: str) -> None:
    assert read_key(text) == RAW


def test_both_alphabets_of_base64_are_read() -> None:
    assert read_key(OTHER) == read_key(OTHER.translate(str.maketrans("+/", "-_")))


@pytest.mark.parametrize("text", ["correct horse battery staple", "一" * 16, "a" * 31])
def test_anything_long_enough_is_a_passphrase(text: str) -> None:
    assert read_key(text) is None


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 15, HEX[:-2], HEX[:-1], HEX + "00", "A" * 22 + "==", "A" * 87 + "="]
)
def test_what_is_too_short_or_cut_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="32 bytes in base64 or hex, or a passphrase"):
        read_key(text)


def test_the_same_text_gives_the_same_key_and_another_another() -> None:
    one, again, other = (Key.derive(text) for text in (HEX, HEX.upper(), OTHER))
    assert one.id == again.id != other.id
    assert Key.derive("correct horse battery staple").id == (
        Key.derive(" correct horse battery staple ").id
    )
    assert HEX not in repr(one)
    assert "digest_key" not in repr(one)


def test_what_is_sealed_opens_only_in_its_place() -> None:
    sealer = Sealer([Key.derive(HEX)])
    sealed = sealer.seal(b"a secret", b"e1 answer")
    assert b"secret" not in sealed
    assert sealer.open(sealed, b"e1 answer") == b"a secret"
    assert sealer.seal(b"a secret", b"e1 answer") != sealed
    for context in (b"e2 answer", b"e1 question", b""):
        with pytest.raises(ValueError, match="another place"):
            sealer.open(sealed, context)
    for at in (5, 20, len(sealed) - 1):
        broken = bytearray(sealed)
        broken[at] ^= 1
        with pytest.raises(ValueError, match="changed since"):
            sealer.open(bytes(broken), b"e1 answer")
    for broken_one in (b"", sealed[:20], b"\x02" + sealed[1:], b"plain text, never sealed at all"):
        with pytest.raises(ValueError, match="not a sealed text"):
            sealer.open(broken_one, b"e1 answer")


def test_an_old_key_opens_and_the_new_one_seals() -> None:
    old, new = Key.derive(HEX), Key.derive(OTHER)
    sealed = Sealer([old]).seal(b"text", b"c")
    both = Sealer([new, old])
    assert both.open(sealed, b"c") == b"text"
    assert Sealer([new]).open(both.seal(b"text", b"c"), b"c") == b"text"
    with pytest.raises(ValueError, match="another key"):
        Sealer([new]).open(sealed, b"c")


def test_digests_need_the_key() -> None:
    one, other = Sealer([Key.derive(HEX)]), Sealer([Key.derive(OTHER)])
    assert one.digest(b"d" * 16) == one.digest(b"d" * 16) != other.digest(b"d" * 16)
    assert len(one.digest(b"x")) == 16

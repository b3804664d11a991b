"""Sealing of bytes with AES-256-GCM, and the keys for it.

    sealed = version (1 byte) | key id (4) | nonce (12) | ciphertext | tag (16)

The nonce is random (NIST SP 800-38D: good for 2^32 texts under one key, which is a thousand
million entries). `context` is associated data: what was sealed for one place cannot be opened in
another. A key is 32 random bytes, or comes out of a passphrase by scrypt (RFC 7914); what seals,
what digests and what names the key are derived from it apart, by BLAKE2b with a label.

The salt of passphrases is the same everywhere, since gateways that share a store share nothing
else: take a passphrase that nobody else has, or better a random key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

KEY_BYTES = 32
PASSPHRASE_CHARS = 16
WANTED = f"32 bytes in base64 or hex, or a passphrase of at least {PASSPHRASE_CHARS} characters"

_SALT = b"tierway cache store key"
_SCRYPT_COST = 2**16  # 64 MiB and a third of a second, once at the start
_VERSION = b"\x01"
_ID_BYTES, _NONCE_BYTES, _TAG_BYTES = 4, 12, 16
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{22,}={0,2}")


def read_key(text: str) -> bytes | None:
    """The random key that `text` spells, None where it is a passphrase; ValueError for neither."""
    text = text.strip()
    if _HEX.fullmatch(text):
        return _whole(bytes.fromhex(text) if len(text) % 2 == 0 else b"")
    if _BASE64.fullmatch(text) and (len(text) == 43 or text.endswith("=")):
        try:
            padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
            return _whole(base64.urlsafe_b64decode(padded.translate(_TO_URLSAFE)))
        except binascii.Error as error:
            raise ValueError(f"must be {WANTED}") from error
    if len(text) < PASSPHRASE_CHARS:
        raise ValueError(f"must be {WANTED}")
    return None


_TO_URLSAFE = str.maketrans("+/", "-_")


def _whole(key: bytes) -> bytes:
    """A key cut short must not pass for a passphrase."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"must be {WANTED}; these are {len(key)} bytes")
    return key


@dataclass(frozen=True, slots=True)
class Key:
    """`id` stands in front of what the key sealed; it tells nothing about the key."""

    id: bytes
    digest_key: bytes = field(repr=False)
    cipher: Any = field(repr=False, compare=False)

    @classmethod
    def derive(cls, text: str) -> Key:
        """Raises ValueError as `read_key` does. A passphrase costs a third of a second."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secret = read_key(text) or hashlib.scrypt(
            text.strip().encode(), salt=_SALT, n=_SCRYPT_COST, r=8, p=1, maxmem=2**27, dklen=32
        )
        name = _derived(secret, b"id")[:_ID_BYTES]
        return cls(name, _derived(secret, b"digest"), AESGCM(_derived(secret, b"seal")))


def _derived(secret: bytes, label: bytes) -> bytes:
    return hashlib.blake2b(key=secret, person=b"tierway-" + label, digest_size=32).digest()


class Sealer:
    """Seals with the first key, opens with any of them."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._first = keys[0]
        self._by_id = {key.id: key for key in keys}

    def seal(self, data: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._first.cipher.encrypt(nonce, data, context)
        return b"".join((_VERSION, self._first.id, nonce, sealed))

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Raises ValueError for what another key sealed, or for another place, or was changed."""
        from cryptography.exceptions import InvalidTag

        head = 1 + _ID_BYTES
        if len(sealed) < head + _NONCE_BYTES + _TAG_BYTES or sealed[:1] != _VERSION:
            raise ValueError("not a sealed text")
        key = self._by_id.get(sealed[1:head])
        if key is None:
            raise ValueError(f"sealed with another key ({sealed[1:head].hex()})")
        body = head + _NONCE_BYTES
        try:
            opened: bytes = key.cipher.decrypt(sealed[head:body], sealed[body:], context)
        except InvalidTag as error:
            raise ValueError("sealed for another place, or changed since") from error
        return opened

    def digest(self, data: bytes) -> bytes:
        """16 bytes that are the same for the same data and key, and say nothing without it."""
        return hashlib.blake2b(data, key=self._first.digest_key, digest_size=16).digest()

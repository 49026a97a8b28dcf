"""Text that a client keeps for us and can neither read nor change: the sealed `requestState`.

What comes back is an attacker's until it opens (MR-06). Sealed are the payload and the second at which it ends; bound to them, though
not inside, is what the request was: a digest of version, method, subject, arguments, principal and server (MR-07). Whatever is wrong
with a text, opening it fails in one way that says nothing (SA28): a reason would help only those who try. A text opens as often as
it is shown until it ends; who must take it once keeps a note of it (MR-08).

    "v1." + base64url( key id (4) | nonce (12) | AES-256-GCM( expires (8) | payload ) | tag (16) )

The core has no clock and no randomness: nonces and times come in. Nonces are random and 96 bits long, so a key is good for some 2**32
texts; rotation is a new key in front of the old ones.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from callboard.errors import RegistrationError

__all__ = ["MAX_SEALED", "NONCE_SIZE", "KeyRing", "SealError", "bind"]

MAX_SEALED: Final = 1 << 20
"""Characters of a sealed text; what is longer is refused unread."""

NONCE_SIZE: Final = 12
"""Bytes of a nonce: random, and never used twice."""

_MARK = "v1."
_KEY_SIZE, _ID_SIZE, _END_SIZE, _TAG_SIZE = 32, 4, 8, 16
_HEAD_SIZE = _ID_SIZE + NONCE_SIZE
_MAX_PAYLOAD = (MAX_SEALED - len(_MARK)) * 3 // 4 - _HEAD_SIZE - _END_SIZE - _TAG_SIZE
_WAY_OUT = 'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'


class SealError(Exception):
    """A text that does not open. It says no more, whatever the reason."""


class KeyRing:
    """Keys that seal and open: the first seals, all open.

    To change keys, put the new one first and take the old one away once what it sealed has ended.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[bytes | str]) -> None:
        """Takes the keys.

        Args:
            keys: At least one; bytes or text of 32 bytes or more each.

        Raises:
            RegistrationError: There is no key, or one that can't be one. The text never repeats it.
        """
        # A string is a sequence of strings too: each letter would be a key.
        if isinstance(keys, str | bytes | bytearray) or not isinstance(keys, Sequence) or not keys:
            raise RegistrationError(f"keys: a list of at least one key is needed, the first one seals; {_WAY_OUT}")
        self._keys = tuple(_derive(key, place) for place, key in enumerate(keys))

    def seal(self, payload: bytes, binding: bytes, *, nonce: bytes, expires: int) -> str:
        """Seals with the first key.

        Args:
            payload: What to keep.
            binding: What the request was, from `bind`; the text opens for the same binding alone.
            nonce: `NONCE_SIZE` random bytes.
            expires: The second (Unix time) from which on it does not open.

        Raises:
            ValueError: The payload would make a text longer than `MAX_SEALED`, or the nonce has another size.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(payload) > _MAX_PAYLOAD:
            raise ValueError(f"The state has {len(payload)} bytes and may have {_MAX_PAYLOAD}: keep it in a store and seal its name.")
        if len(nonce) != NONCE_SIZE:
            raise ValueError(f"A nonce has {NONCE_SIZE} bytes, this one has {len(nonce)}.")
        ident, key = self._keys[0]
        sealed = AESGCM(key).encrypt(nonce, expires.to_bytes(_END_SIZE, "big") + payload, _around(ident, binding))
        return _MARK + urlsafe_b64encode(ident + nonce + sealed).rstrip(b"=").decode()

    def open(self, text: object, binding: bytes, *, now: int) -> bytes:
        """Gives the payload back.

        Args:
            text: What a client sent, of whatever type.
            binding: What its request is, from `bind`.
            now: The current second (Unix time).

        Raises:
            SealError: Not sealed by one of these keys, changed, for another request, or ended.
        """
        raw = _decode(text)
        ident, nonce, sealed = raw[:_ID_SIZE], raw[_ID_SIZE:_HEAD_SIZE], raw[_HEAD_SIZE:]
        for known, key in self._keys:
            if known == ident and (plain := _decrypt(key, nonce, sealed, _around(ident, binding))) is not None:
                if now >= int.from_bytes(plain[:_END_SIZE], "big"):
                    break
                return plain[_END_SIZE:]
        raise SealError

    def is_foreign(self, text: object) -> bool:
        """Whether a text is whole, and says that a key which is none of these has sealed it."""
        try:
            ident = _decode(text)[:_ID_SIZE]
        except SealError:
            return False
        return all(known != ident for known, _ in self._keys)


def _derive(key: object, place: int) -> tuple[bytes, bytes]:
    """Id and AES key. The labels keep both apart from whatever else the same secret is used for."""
    if not isinstance(key, bytes | str):
        raise RegistrationError(f"keys[{place}]: bytes or str are needed, not {type(key).__name__}; {_WAY_OUT}")
    secret = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    if len(secret) < _KEY_SIZE:
        raise RegistrationError(f"keys[{place}]: {_KEY_SIZE} bytes or more are needed, it has {len(secret)}; {_WAY_OUT}")
    return sha256(b"callboard seal v1 id\0" + secret).digest()[:_ID_SIZE], sha256(b"callboard seal v1 key\0" + secret).digest()


def _around(ident: bytes, binding: bytes) -> bytes:
    """What is authenticated besides what is sealed: no part of the text is open to change."""
    return _MARK.encode() + ident + binding


def _decode(text: object) -> bytes:
    """Bytes of a text that is spelled as `seal` spells it: a payload has one text only, so a changed one never opens."""
    if not isinstance(text, str) or len(text) > MAX_SEALED or not text.startswith(_MARK) or not text.isascii():
        raise SealError
    body = text[len(_MARK) :].encode()
    try:
        raw = urlsafe_b64decode(body + b"=" * (-len(body) % 4))
    except ValueError:
        raise SealError from None
    if urlsafe_b64encode(raw).rstrip(b"=") != body or len(raw) < _HEAD_SIZE + _END_SIZE + _TAG_SIZE:
        raise SealError
    return raw


def _decrypt(key: bytes, nonce: bytes, sealed: bytes, around: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(nonce, sealed, around)
    except InvalidTag:
        return None


def bind(*, version: str, method: str, subject: str, arguments: bytes, principal: str | None, server: str) -> bytes:
    """Digest of what a request is, for `KeyRing.seal` and `KeyRing.open`.

    Two requests have the same digest only when all of this is the same (MR-07).

    Args:
        version: The protocol version that it speaks.
        method: Its method.
        subject: The name or URI of what it asks for.
        arguments: The bytes of its arguments. The same JSON in another order, or with other spaces, is the same.
        principal: Who asks; None for nobody, who is not the one without a name.
        server: The server's name.
    """
    digest = sha256()
    for field in (version, method, subject, principal, server):
        digest.update(_measured(field))
    digest.update(_measured(_canonical(arguments)))
    return digest.digest()


def _measured(field: str | bytes | None) -> bytes:
    """A field with its length before it, so that where one ends and the next begins is never in doubt."""
    if field is None:
        return b"-"
    raw = field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field
    return b"+" + len(raw).to_bytes(8, "big") + raw


def _canonical(arguments: bytes) -> bytes:
    """One spelling of JSON; bytes that are none stay as they are, and are no spelling of anything else."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    except (ValueError, OverflowError, RecursionError):
        return arguments

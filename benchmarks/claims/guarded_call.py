"""Server CPU per `tools/call` of an async tool with a JWT on every request: at most 1.25 times the same call where nobody asks who it is.

The token is verified once a minute; what every other call pays is the look-up.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from benchmarks.contenders import Contender, callboard
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import Exchange, call

ISSUER, RESOURCE = "https://login.example.com", "http://127.0.0.1/mcp"


def segment(data: bytes) -> str:
    """Base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def make_token(key: ec.EllipticCurvePrivateKey) -> str:
    """An access token as authorization servers make them: ES256, some 600 characters."""
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": RESOURCE,
        "sub": "user-0123456789abcdef",
        "client_id": "https://host.example.com/client.json",
        "scope": "mcp files:read files:write",
        "iat": now,
        "exp": now + 3600,
        "jti": "0" * 32,
    }
    head = segment(json.dumps({"alg": "ES256", "typ": "at+jwt", "kid": "k"}).encode())
    signed = f"{head}.{segment(json.dumps(claims).encode())}"
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
    return f"{signed}.{segment(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def make_jwk(key: ec.EllipticCurvePrivateKey) -> str:
    """The public key, as the server reads it from its environment."""
    numbers = key.public_key().public_numbers()
    points = {name: segment(value.to_bytes(32, "big")) for name, value in (("x", numbers.x), ("y", numbers.y))}
    return json.dumps({"kty": "EC", "crv": "P-256", "kid": "k", **points})


def guarded(key: ec.EllipticCurvePrivateKey) -> Contender:
    """This project, with a verifier before it."""
    settings = {"BENCH_JWK": make_jwk(key), "BENCH_ISSUER": ISSUER, "BENCH_RESOURCE": RESOURCE}
    return callboard()._replace(name="guarded", environment=settings)


def measure(options: Options) -> Report:
    """Compare both, sent the very same bytes."""
    key = ec.generate_private_key(ec.SECP256R1())
    plain = call("aecho", {"text": "hello world"})
    exchange = Exchange({**plain.headers, "Authorization": f"Bearer {make_token(key)}"}, plain.body)
    with serving([callboard(), guarded(key)]) as processes:
        rows = compare({name: (process, exchange) for name, process in processes.items()}, options)
    return Report(rows, [Bound("CPU per call, with a JWT / without", ratio(rows, "guarded", "callboard"), 1.25)])


if __name__ == "__main__":
    run_claim(measure)

"""All drivers: functions of bytes that raise when the product has a fault, and say nothing when all is well.

A fault is an exception that is no clean refusal, an answer that is none, or one that an independent reader contradicts. Hangs are for whoever
runs the drivers to see. `tools/fuzz.py` feeds them what it makes up, `test_corpora.py` feeds them what is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from fuzz.app_drivers import run_guarded, run_legacy, run_modern
from fuzz.auth_drivers import run_bearer, run_jwt
from fuzz.core_drivers import run_decode, run_seal, run_sse, run_uri
from fuzz.header_drivers import run_headers, run_security
from fuzz.pipe_driver import run_stdio

__all__ = ["CORPUS", "DRIVERS", "Driver", "corpus_of"]

CORPUS: Final = Path(__file__).with_name("corpus")
"""A folder for each driver, by its name, with inputs worth keeping: others are made from them, or they once showed a fault."""


class Driver(NamedTuple):
    """One driver.

    Attributes:
        run: Takes one input; raises when there is a fault.
        words: What the grammar of its inputs knows.
        largest: Bytes of the longest input worth trying.
    """

    run: Callable[[bytes], None]
    words: tuple[bytes, ...]
    largest: int = 65_536


def _words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


_KEYS = _words("jsonrpc 2.0 id method params result error code message data _meta progressToken name arguments uri cursor")
_METHODS = _words(
    "server/discover tools/list tools/call prompts/list prompts/get resources/list resources/read resources/templates/list completion/complete "
    "subscriptions/listen initialize ping logging/setLevel resources/subscribe resources/unsubscribe tasks/get tasks/list tasks/cancel tasks/result "
    "tasks/update notifications/initialized notifications/cancelled notifications/progress notifications/roots/list_changed"
)
_SERVED = _words(
    "add echo form raw ask sample walk report nap count who advise greet tone $SID $STATE $TASK $ASK $CURSOR $EVENT 2026-07-28 2025-11-25 2025-06-18 "
    "2025-03-26 2024-11-05 town://a town://note/x town://list?a=1&b=2 elicitation sampling roots form extensions requestId inputResponses requestState "
    "action accept decline content task ttl taskId protocolVersion capabilities clientInfo notifications toolsListChanged resourceSubscriptions level "
    "io.modelcontextprotocol/protocolVersion io.modelcontextprotocol/clientCapabilities io.modelcontextprotocol/clientInfo "
    "io.modelcontextprotocol/logLevel io.modelcontextprotocol/tasks text left right ref argument value type ref/prompt ref/resource context"
)
_HEADERS = _words(
    "host: origin: accept: content-type: content-length: content-encoding: mcp-method: mcp-name: mcp-protocol-version: mcp-session-id: "
    "mcp-param-region: last-event-id: x-user: application/json text/event-stream */* q=0 ;q= gzip identity localhost 127.0.0.1 [::1] :8000 "
    "http:// https:// evil.example null =?base64? ?= upgrade: access-control-request-headers:"
)
_VERBS = (
    b"\n--\nPOST /mcp\n\n",
    b"\n--\nGET /mcp\n\n",
    b"\n--\nDELETE /mcp\n\n",
    b"\n--\nWAIT 5\n",
    b"\n--\nDROP\n",
    b"OPTIONS",
    b"/mcp/",
    b"/sse",
)
_GUARD = (
    *_words(
        "authorization: x-api-key: Bearer open-sesame-0123456789-of-ann open-sesame-0123456789-of-bob open-sesame-0123456789-of-eve a.b.c"
    ),
    *(b"\n--\nGET /.well-known/oauth-protected-resource/mcp\n", b"?access_token=open-sesame-0123456789-of-ann"),
)
_TWICE = (b'"id":1,', b'"method":"x",', b'"params":{},', b'"jsonrpc":"2.0",', b'"\\u0069d":2,', b'"_meta":{},')

DRIVERS: Final[dict[str, Driver]] = {
    "decode": Driver(run_decode, (*_KEYS, *_METHODS[:6], *_TWICE, b"\\u0069d", b"\\ud83d", b"1e400")),
    "headers": Driver(
        run_headers,
        (
            *_words("=?base64? ?= YQ== x-mcp-header properties type string integer boolean items $defs region inner count dry"),
            b"=?base64?=",
            b"42.0",
        ),
    ),
    "security": Driver(run_security, _HEADERS, 4096),
    "sse": Driver(
        run_sse, (*_words("data event id retry data: id: message"), b"data: ", b"\r\n\r\n", b"\n\n", b"\r\r", b":", b"\n:", b"retry: 10")
    ),
    "uri": Driver(
        run_uri,
        _words("{a} {+a} {#a} {.a} {/a} {;a} {?a} {&a} {a*} {/a*} {?a*} {a:3} {a,b} {?a,b*} %2F %2e .. ../ C: // ? # & ; = , /a /a/b a=1"),
        16_384,
    ),
    "seal": Driver(run_seal, (b"v1.", b"tools:", b"dG9vbHM6NTA=", b"{}", b'{"a":1}', b"1.0", b"\\u0061"), 16_384),
    "bearer": Driver(
        run_bearer,
        (
            *_words("Bearer bearer Basic DPoP scope= error= realm= resource_metadata= error_description= , = a.b.c =="),
            b'"a"',
            b'\\"',
            b'="',
        ),
        32_768,
    ),
    "jwt": Driver(
        run_jwt,
        _words(
            "alg HS256 EdDSA none RS256 kid s p typ at+jwt JWT application/at+jwt crit b64 jku jwk iss aud exp nbf iat sub client_id scope scp cnf nonce "
            "token_use https://login.example.com https://mcp.example.com/mcp 1800000060 1799999971 1800000031 keys kty RSA EC OKP oct crv P-256 Ed25519 x y n e "
            'AQAB use sig key_ops verify "alg":"none", "aud":[], "exp":9e99,'
        ),
        16_384,
    ),
    "modern": Driver(run_modern, (*_KEYS, *_METHODS, *_SERVED, *_HEADERS, *_VERBS, *_TWICE)),
    "legacy": Driver(run_legacy, (*_KEYS, *_METHODS, *_SERVED, *_HEADERS, *_VERBS, *_TWICE)),
    "guarded": Driver(run_guarded, (*_KEYS, *_METHODS, *_SERVED, *_HEADERS, *_VERBS, *_GUARD)),
    "stdio": Driver(run_stdio, (*_KEYS, *_METHODS, *_SERVED, *_TWICE, b"\n", b"\n~\n", b"\n~5\n")),
}
"""By name."""


def corpus_of(name: str) -> list[Path]:
    """The inputs that are kept for a driver, in a fixed order."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())

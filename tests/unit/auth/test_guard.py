"""The guard of an endpoint: who is let in, what is remembered and for how long, and what the others are told."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import RegistrationError
from callboard.auth.guard import MAX_GRANTS, Denial, Guard
from callboard.auth.metadata import close_over, make_challenge, metadata_paths, metadata_url
from callboard.auth.principal import Principal
from callboard.auth.verifier import Grant, Refusal, Scope, Verifier, read_bearer
from callboard.errors import REASONS

RESOURCE = "https://mcp.example.com/mcp"
WHERE = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
ISSUER = "https://login.example.com"


class Book(Verifier):
    """Knows tokens by heart.

    Attributes:
        asked: How often it was asked.
    """

    def __init__(self, known: Mapping[str, Grant | Refusal], *, issuers: tuple[str, ...] = (), header: bytes = b"authorization") -> None:
        self.known = dict(known)
        self.issuers = issuers
        self.header = header
        self.asked = 0
        self.bound: list[str | None] = []

    def bind(self, resource: str | None) -> None:
        self.bound.append(resource)

    def find(self, headers: Mapping[bytes, bytes], scope: Scope) -> str | Refusal:
        if self.header == b"authorization":
            return super().find(headers, scope)
        value = headers.get(self.header)
        return Refusal("missing") if value is None else value.decode()

    async def verify(self, credential: str) -> Grant | Refusal:
        self.asked += 1
        return self.known.get(credential, Refusal("invalid", "The token is unknown."))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


ALICE = Principal("alice", ["files"], subject="Alice", claims={"sub": "Alice"})
BOOK: dict[str, Grant | Refusal] = {"good": Grant(ALICE, 1_060.0), "once": Grant(ALICE), "down": Refusal("unavailable", "No keys.", 30)}


def bearer(token: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + token.encode()}


def make_scope(query: bytes = b"") -> Scope:
    return {"type": "http", "query_string": query}


async def ask(guard: Guard, headers: Mapping[bytes, bytes]) -> Principal | Denial:
    """What an application does with a request."""
    return guard.recall(headers) or await guard.admit(make_scope(), headers)


def told(denial: Principal | Denial) -> tuple[int, dict[str, str]]:
    """Status and headers of a denial."""
    assert isinstance(denial, Denial)
    return REASONS[denial.fail.reason].status, {name.decode(): value.decode() for name, value in denial.headers}


async def test_a_good_token_lets_in_and_is_remembered_as_long_as_it_was_granted() -> None:
    book, clock = Book(BOOK), Clock()
    guard = Guard([book], clock=clock)
    assert [await ask(guard, bearer("good")) for _ in range(3)] == [ALICE] * 3
    assert book.asked == 1
    clock.now = 1_059.9
    assert await ask(guard, bearer("good")) == ALICE
    clock.now = 1_060.0
    assert await ask(guard, bearer("good")) == ALICE
    assert book.asked == 2


async def test_what_may_not_be_remembered_is_asked_for_each_time() -> None:
    book = Book(BOOK)
    guard = Guard([book])
    assert [await ask(guard, bearer("once")) for _ in range(3)] == [ALICE] * 3
    assert book.asked == 3  # AR-11


async def test_a_new_generation_of_keys_forgets_everything() -> None:
    book, clock = Book(BOOK), Clock()
    guard = Guard([book], clock=clock)
    await ask(guard, bearer("good"))
    book.generation += 1
    del book.known["good"]
    assert told(await ask(guard, bearer("good")))[0] == 401


async def test_a_generation_that_changes_while_a_token_is_verified_does_not_count() -> None:
    class Slow(Book):
        async def verify(self, credential: str) -> Grant | Refusal:
            grant = await super().verify(credential)
            self.generation += 1  # the keys were replaced after this token had been checked with the old ones
            return grant

    book, clock = Slow(BOOK), Clock()
    guard = Guard([book], clock=clock)
    assert await guard.admit(make_scope(), bearer("good")) == ALICE
    assert guard.recall(bearer("good")) is None


async def test_refusals_are_not_remembered() -> None:
    book = Book({})
    guard = Guard([book])
    assert isinstance(await ask(guard, bearer("late")), Denial)
    book.known["late"] = Grant(ALICE)
    assert await ask(guard, bearer("late")) == ALICE


async def test_what_is_remembered_is_bounded() -> None:
    class Everybody(Verifier):
        async def verify(self, credential: str) -> Grant | Refusal:
            return Grant(Principal(credential), 2_000.0)

    guard = Guard([Everybody()], clock=Clock())
    for number in range(MAX_GRANTS + 50):
        await guard.admit(make_scope(), bearer(f"token-{number}"))
    assert [len(granted) for granted in guard._known.values()] == [MAX_GRANTS]
    assert guard.recall(bearer("token-0")) is None
    assert guard.recall(bearer(f"token-{MAX_GRANTS}")) == f"token-{MAX_GRANTS}"


@pytest.mark.parametrize(
    ("headers", "status", "challenge"),
    [
        # SA29, AR-03, AR-04, AR-05: nothing at all has no error; what is no token is 400
        ({}, 401, f'Bearer resource_metadata="{WHERE}", scope="mcp"'),
        ({b"authorization": b"Basic YTpi"}, 401, f'Bearer resource_metadata="{WHERE}", scope="mcp"'),
        (
            bearer("bad"),
            401,
            f'Bearer error="invalid_token", error_description="The token is unknown.", resource_metadata="{WHERE}", scope="mcp"',
        ),
        (
            bearer("a b"),
            400,
            (
                'Bearer error="invalid_request", error_description="The Authorization header holds no bearer token.", '
                f'resource_metadata="{WHERE}", scope="mcp"'
            ),
        ),
        # AR-06
        (
            bearer("good"),
            403,
            (
                f'Bearer error="insufficient_scope", scope="mcp", resource_metadata="{WHERE}", '
                'error_description="A scope that this needs was not granted."'
            ),
        ),
    ],
)
async def test_who_is_not_let_in_learns_what_to_do(headers: dict[bytes, bytes], status: int, challenge: str) -> None:
    guard = Guard([Book(BOOK, issuers=(ISSUER,))], resource=RESOURCE, scopes=["mcp"], clock=Clock())
    assert told(await ask(guard, headers)) == (status, {"www-authenticate": challenge})


async def test_where_nobody_can_tell_the_client_keeps_its_token() -> None:
    guard = Guard([Book(BOOK)])
    assert told(await ask(guard, bearer("down"))) == (503, {"retry-after": "30"})


async def test_the_first_that_grants_decides_and_of_refusals_the_weightiest_is_told() -> None:
    first, second = Book({"down": Refusal("unavailable")}), Book(BOOK)
    guard = Guard([first, second])
    assert await ask(guard, bearer("good")) == ALICE
    assert (first.asked, second.asked) == (1, 1)
    second.known["down"] = Refusal("invalid")
    assert told(await ask(guard, bearer("down")))[0] == 503
    assert told(await ask(guard, {}))[0] == 401


async def test_several_headers_may_carry_a_credential() -> None:
    keys = Book({"k": Grant(Principal("machine"), 1_060.0)}, header=b"x-api-key")
    guard = Guard([Book(BOOK), keys], clock=Clock())
    assert await ask(guard, {b"x-api-key": b"k"}) == "machine"
    assert guard.recall({b"x-api-key": b"k"}) == "machine"
    # the same bytes in another header are another credential
    assert guard.recall({b"authorization": b"k"}) is None


async def test_an_empty_credential_is_never_remembered() -> None:
    guard = Guard([Book({"": Grant(Principal("odd"), 2_000.0)}, header=b"x-api-key")], clock=Clock())
    assert await ask(guard, {b"x-api-key": b""}) == "odd"
    assert guard.recall({}) is None


async def test_a_server_that_takes_keys_alone_says_in_which_header() -> None:
    guard = Guard([Book({}, header=b"x-api-key")])
    assert told(await ask(guard, {})) == (401, {"www-authenticate": 'ApiKey header="x-api-key"'})


async def test_a_broader_scope_stands_for_narrower_ones() -> None:
    # AR-07
    implies = {"files": ["files:write"], "files:write": ["files:read"]}
    guard = Guard([Book(BOOK)], scopes=["files:read"], implies=implies)
    principal = await ask(guard, bearer("good"))
    assert isinstance(principal, Principal)
    assert principal.scopes == {"files", "files:write", "files:read"}
    assert (principal, principal.subject, principal.claims) == ("alice", "Alice", {"sub": "Alice"})


def test_a_hierarchy_may_go_round_in_circles() -> None:
    assert close_over({"a": ["b"], "b": ["a", "c"]}) == {"a": {"a", "b", "c"}, "b": {"a", "b", "c"}}


def test_a_challenge_names_all_that_an_operation_needs() -> None:
    # AR-06: what was granted before need not be there, what every request needs must be
    guard = Guard([Book({}, issuers=(ISSUER,))], resource=RESOURCE, scopes=["mcp"])
    assert b'scope="files:write mcp"' in guard.challenge(["files:write"])


def test_the_document_names_the_authorization_servers_and_what_every_request_needs() -> None:
    # AR-02, AR-03, SC-08
    guard = Guard([Book({}, issuers=(ISSUER,))], resource=RESOURCE, scopes=["mcp"], name="files")
    paths = ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"]
    assert list(guard.documents) == paths
    assert msgspec.json.decode(guard.documents[paths[0]]) == {
        "resource": RESOURCE,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "resource_name": "files",
        "scopes_supported": ["mcp"],
    }


def test_without_an_authorization_server_there_is_no_document() -> None:
    assert Guard([Book({})], resource=RESOURCE).documents == {}


@pytest.mark.parametrize(
    ("resource", "paths"),
    [
        ("https://a.example", ("/.well-known/oauth-protected-resource",)),
        ("https://a.example/", ("/.well-known/oauth-protected-resource",)),
        ("https://a.example/x/mcp", ("/.well-known/oauth-protected-resource/x/mcp", "/.well-known/oauth-protected-resource")),
    ],
)
def test_where_documents_are(resource: str, paths: tuple[str, ...]) -> None:
    assert metadata_paths(resource) == paths
    assert metadata_url(resource) == "https://a.example" + paths[0]


def test_verifiers_learn_what_the_server_is_called() -> None:
    book = Book({})
    Guard([book], resource=RESOURCE)
    assert book.bound == [RESOURCE]


def with_issuer(**options: Any) -> Callable[[], Guard]:
    return lambda: Guard([Book({}, issuers=(ISSUER,))], **options)


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: Guard([]), "auth is a Verifier"),
        (lambda: Guard(["secret"]), "auth is a Verifier"),  # type: ignore[list-item] # that is the point
        (with_issuer(), "resource= is needed"),
        (with_issuer(resource="mcp.example.com"), "resource is the URL"),
        (with_issuer(resource="ftp://mcp.example.com/mcp"), "resource is the URL"),
        (with_issuer(resource="https://mcp.example.com/mcp?x=1"), "without query"),
        (with_issuer(resource="https://mcp.example.com/mcp#x"), "without query"),
        (with_issuer(resource="https://user@mcp.example.com/mcp"), "resource is the URL"),
        (with_issuer(resource='https://mcp.example.com/m"cp'), "resource is the URL"),
        (with_issuer(resource="https://mcp.example.com:port/mcp"), "resource is the URL"),
        (with_issuer(resource=7), "resource is the URL"),
        (with_issuer(resource="http://mcp.example.com/mcp"), "unencrypted"),
        (with_issuer(resource=RESOURCE, scopes="mcp"), "scopes is a list"),
        (with_issuer(resource=RESOURCE, scopes=["a b"]), "'a b' can't be a scope"),
        (with_issuer(resource=RESOURCE, scopes=["offline_access"]), "AR-09"),
        (with_issuer(resource=RESOURCE, implies={"a": "b"}), "implies"),
    ],
)
def test_what_can_not_work_fails_when_it_is_made(make: Callable[[], Guard], culprit: str) -> None:
    with pytest.raises(RegistrationError, match=culprit):
        make()


def test_on_this_machine_http_will_do() -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert Guard([Book({}, issuers=(ISSUER,))], resource=f"http://{host}:8000/mcp").documents


@given(st.text(max_size=60))
def test_nothing_gets_out_of_a_challenge(text: str) -> None:
    challenge = make_challenge("Bearer", error="invalid_token", error_description=text, scope="x").decode("ascii")
    assert challenge.isprintable()
    assert challenge.count('"') == (6 if any(c.isprintable() and c.isascii() and c not in '"\\' for c in text) else 4)
    assert challenge.endswith('scope="x"')


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "missing"),
        (b"", "missing"),
        (b"Basic YTpi", "missing"),
        (b"Bearer", "malformed"),
        (b"Bearer ", "malformed"),
        (b"Bearer a b", "malformed"),
        (b"Bearer =", "malformed"),
        (b"Bearer a=b", "malformed"),
        (b"Bearer \xff", "malformed"),
        (b"Bearer a,Bearer b", "malformed"),
        (b"Bearer\ta", "missing"),
    ],
)
def test_what_is_no_bearer_token(value: bytes | None, expected: str) -> None:
    found = read_bearer(value)
    assert isinstance(found, Refusal)
    assert found.kind == expected


@pytest.mark.parametrize(
    ("value", "token"),
    [(b"Bearer abc", "abc"), (b"bearer abc", "abc"), (b"BEARER  abc ", "abc"), (b"Bearer a.b-c_d~e+f/g==", "a.b-c_d~e+f/g==")],
)
def test_what_is_one(value: bytes, token: str) -> None:
    assert read_bearer(value) == token


async def test_what_has_ended_is_forgotten_when_somebody_new_comes() -> None:
    """Callers bring a new token every few minutes; those before it, with all their claims, were kept until there were ten thousand."""

    class Claims(dict[str, int]):
        """One that can be watched."""

    watched: list[weakref.ref[Claims]] = []

    class Fresh(Book):
        async def verify(self, credential: str) -> Grant:
            claims = Claims()
            watched.append(weakref.ref(claims))
            return Grant(Principal(credential, claims=claims), clock.now + 60)

    clock = Clock()
    guard = Guard([Fresh({})], clock=clock)
    for number in range(5):
        await ask(guard, bearer(f"token{number}"))
    clock.now += 30
    await ask(guard, bearer("token5"))
    clock.now += 31
    assert await ask(guard, bearer("token6")) == "token6"
    gc.collect()
    assert [claims() is not None for claims in watched] == [False] * 5 + [True] * 2

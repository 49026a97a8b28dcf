"""Walks plans of OAuth's by hand: a world is a table of URLs, and a list of what was asked of it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import ConnectionFailed, Origin
from callboard.client.oauth.metadata import ServerMetadata
from callboard.client.oauth.step import Browse, Plan
from callboard.client.oauth.urls import place_of

T = TypeVar("T")
ENDPOINT = "https://mcp.example.com/mcp"
ISSUER = "https://as.example.com"
PLACE = place_of(ENDPOINT)
REDIRECT = "http://127.0.0.1:4000/callback"
JSON = {"content-type": "application/json"}


def document(value: Any, status: int = 200) -> HttpResponse:
    """A JSON answer."""
    return HttpResponse(status, JSON, json.dumps(value).encode())


def metadata(issuer: str = ISSUER, **changes: Any) -> dict[str, Any]:
    """An authorization server's document; None takes a member out."""
    known = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
    }
    return {name: value for name, value in {**known, **changes}.items() if value is not None}


def server(issuer: str = ISSUER, **changes: Any) -> ServerMetadata:
    """The same, as plans have it."""
    return msgspec.convert(metadata(issuer, **changes), ServerMetadata)


def form(request: HttpRequest) -> dict[str, str]:
    """The form in a request."""
    return dict(parse_qsl(request.body.decode(), keep_blank_values=True, strict_parsing=True))


def query(url: str) -> dict[str, str]:
    """The query of a URL."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def back(url: str, **more: str | None) -> str:
    """Where an authorization server that agrees sends a browser."""
    asked = query(url)
    said = {"code": "c0de", "state": asked["state"], **more}
    return f"{asked['redirect_uri']}?{urlencode({name: value for name, value in said.items() if value is not None})}"


Answer = HttpResponse | Exception | Callable[[HttpRequest], HttpResponse]


class World:
    """What a plan finds.

    Args:
        pages: URL -> what it answers; a list answers once each. Everything else is a 404.
        browse: What a browser makes of a page.

    Attributes:
        asked: All requests.
        shown: All pages.
    """

    def __init__(self, pages: Mapping[str, Answer | list[Answer]], browse: Callable[[str], str] = back) -> None:
        self.pages = {url: list(answer) if isinstance(answer, list) else answer for url, answer in pages.items()}
        self.browse = browse
        self.asked: list[HttpRequest] = []
        self.shown: list[str] = []

    @property
    def urls(self) -> list[str]:
        """URLs of all requests."""
        return [request.url for request in self.asked]

    async def fetch(self, request: HttpRequest) -> HttpResponse:
        """As `Fetch`."""
        return self.answer(request)

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        self.asked.append(request)
        answer = self.pages.get(request.url, HttpResponse(404))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, HttpResponse) else answer(request)

    def walk(self, plan: Plan[T]) -> T:
        """Do a plan."""
        came: Any = None
        try:
            step = next(plan)
            while True:
                try:
                    came = self._browsed(step.url) if isinstance(step, Browse) else self.answer(step)
                except ConnectionFailed as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(came)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _browsed(self, url: str) -> str:
        self.shown.append(url)
        return self.browse(url)


def unreachable() -> ConnectionFailed:
    """Nobody answers."""
    return ConnectionFailed("refused", Origin("somewhere"))

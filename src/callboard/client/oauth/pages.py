"""How somebody is sent to a page: by the system's browser, or by whatever the program has in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from callboard.client.errors import ClientError
from callboard.client.oauth.redirect import RedirectReceiver

__all__ = ["HeadlessPage", "Opened", "Page", "browser_page"]


class Page(Protocol):
    """Sends somebody to a page; `RedirectReceiver` is one. It is entered for each login."""

    @property
    def redirect_uris(self) -> tuple[str, ...]:
        """Where the browser may come back to, the best first."""
        ...

    async def __aenter__(self) -> Any:
        """Begin to listen."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        ...

    async def __call__(self, url: str) -> str:
        """Show a page, and give the URL that the browser came back to."""
        ...


class HeadlessPage:
    """A page for a function that gets the answer by itself.

    Args:
        browse: Takes the page's URL, gives the URL that a browser would be sent back to.
        redirect_uri: Where that is.
    """

    def __init__(self, browse: Callable[[str], Awaitable[str]], redirect_uri: str) -> None:
        self._browse = browse
        self.redirect_uris = (redirect_uri,)

    async def __aenter__(self) -> Self:
        """Nothing listens."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to stop."""

    async def __call__(self, url: str) -> str:
        """Hand the page to the function."""
        return await self._browse(url)


class Opened:
    """Opens the first of several pages that can be opened.

    Args:
        pages: The pages, the best first.
    """

    def __init__(self, *pages: Page) -> None:
        self._pages = pages
        self._open: Page | None = None

    async def __aenter__(self) -> Page:
        """Open one; the error of the last is raised."""
        for page in self._pages:
            try:
                await page.__aenter__()
            except ClientError:
                if page is self._pages[-1]:
                    raise
            else:
                self._open = page
                return page
        raise ValueError("there is no page")

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        if self._open is not None:
            await self._open.__aexit__(*error)


def browser_page(redirect_uri: str = "") -> Opened:
    """The system's browser and a port of this machine.

    Args:
        redirect_uri: That of an earlier registration, which holds only at its port; another one is taken if it can't be had.
    """
    try:
        port = urlsplit(redirect_uri).port
    except ValueError:  # what a storage gives may be spoilt
        port = None
    return Opened(RedirectReceiver(port=port), RedirectReceiver()) if port else Opened(RedirectReceiver())

"""What may befall a request on its way through the proxy of tests/fault_proxy.py: `FAULTS`, by name."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from itertools import count

from fault_link import PIECE, STREAM, TICK, Link

__all__ = ["FAULTS"]

PAGE = "<html><head><title>502 Bad Gateway</title></head><body>\n<h1>bad gateway</h1>nginx</body></html>"
# 8 KiB that unpack to 8 MiB.
BOMB = gzip.compress(b" " * 2**23)

# What happens to a request. The name of each function is its kind; its docstring says what the client meets.


async def silent(link: Link) -> None:
    """The request is taken, and nothing comes."""
    await link.hold()


async def drop_before(link: Link) -> None:
    """The connection ends before the server has the request."""
    link.close()


async def drop_after(link: Link) -> None:
    """The connection ends when the server has done the work."""
    await link.fetch()
    link.close()


async def half_close(link: Link) -> None:
    """The server's side of the connection ends, the client's stays open."""
    link.half_close()
    await link.hold()


async def delay(link: Link) -> None:
    """The answer comes late."""

    async def later() -> None:
        await asyncio.sleep(link.fault.pause)
        answer = await link.fetch()
        await link.write(answer.head + answer.body)

    await link.hold(later())


async def cut_head(link: Link) -> None:
    """The connection ends within the head."""
    answer = await link.fetch()
    await link.write(answer.head[: int(link.fault.share * (len(answer.head) - 1))])
    link.close()


async def cut_body(link: Link) -> None:
    """The connection ends within the body: in a frame, a chunk or a value."""
    answer = await link.fetch()
    await link.write(answer.head + answer.body[: int(link.fault.share * len(answer.body))])
    link.close()


async def cut_chunk(link: Link) -> None:
    """The connection ends in the length of a chunk, after a whole event that is not the answer."""
    await link.begin()
    await link.chunk(b": so far so good\n\n")
    await link.write(b"1f")
    link.close()


async def cut_frame(link: Link) -> None:
    """The stream ends in good order in the middle of the event that is the answer."""
    await link.begin()
    event = b"data: " + link.message(result={"content": []})
    await link.chunk(event[: 6 + int(link.fault.share * (len(event) - 6))])
    await link.write(b"0\r\n\r\n")


async def no_answer(link: Link) -> None:
    """The stream ends in good order without the answer."""
    await link.begin()
    await link.chunk(b": nothing to say\n\n")
    await link.write(b"0\r\n\r\n")


async def close_after(link: Link) -> None:
    """The answer comes, and then the connection ends without notice: it can't be used again."""
    answer = await link.fetch()
    await link.write(answer.head + answer.body)
    link.close()


async def reset_reuse(link: Link) -> None:
    """The answer comes, and the next request on the same connection meets a reset."""
    answer = await link.fetch()
    await link.write(answer.head + answer.body)
    await link.read()
    link.fault = link.fault._replace(harsh=True)
    link.close()


async def _drip(link: Link, data: bytes) -> None:
    for at in range(len(data)):
        await link.write(data[at : at + 1])
        await asyncio.sleep(link.fault.pause)


async def slow_head(link: Link) -> None:
    """The head comes byte by byte."""
    answer = await link.fetch()
    await link.hold(_drip(link, answer.head))
    await link.write(answer.body)


async def slow_body(link: Link) -> None:
    """The body comes byte by byte."""
    answer = await link.fetch()
    await link.write(answer.head)
    await link.hold(_drip(link, answer.body))


async def endless_head(link: Link) -> None:
    """Headers come for ever."""
    await link.write(b"HTTP/1.1 200 OK\r\n")
    for number in count():
        await link.write(b"X-More: %d\r\n" % number)
        await asyncio.sleep(TICK)


async def endless_interim(link: Link) -> None:
    """Interim answers come for ever (103 Early Hints)."""
    while True:
        await link.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
        await asyncio.sleep(TICK)


async def bad_gateway(link: Link) -> None:
    """502 with a page of a proxy's."""
    await link.respond(PAGE.encode(), 502, "text/html")


async def unavailable(link: Link) -> None:
    """503 that says when to come again."""
    await link.respond(b"upstream is restarting", 503, "text/plain", "Retry-After: 1")


async def too_many(link: Link) -> None:
    """429 with JSON that is none of the protocol's."""
    await link.respond(b'{"detail": "slow down"}', 429, "application/json", "Retry-After: 1")


async def crash(link: Link) -> None:
    """500 with a text."""
    await link.respond(b"Internal Server Error", 500, "text/plain")


async def forbidden(link: Link) -> None:
    """403 with a text."""
    await link.respond(b"not from here", 403, "text/plain")


async def redirect(link: Link) -> None:
    """307 to the same place."""
    await link.respond(b"", 307, "text/plain", "Location: " + link.url)


async def no_content(link: Link) -> None:
    """204 where an answer is due."""
    await link.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def accepted(link: Link) -> None:
    """202 without a body, where an answer is due."""
    await link.respond(b"", 202)


async def garbage(link: Link) -> None:
    """Bytes that are no HTTP."""
    await link.write(b"\x00\xff\x16\x03SSH-2.0-OpenSSH_9.2\r\n\r\n")
    link.close()


async def bad_length(link: Link) -> None:
    """A length that is none."""
    await link.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: minus one\r\n\r\n{}")
    await link.hold()


async def long_length(link: Link) -> None:
    """A body that is longer by its length than it is."""
    body = link.message(result={"content": []})[:-1]
    await link.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body)
    await link.hold()


async def bad_chunk(link: Link) -> None:
    """A chunk whose length is no number."""
    await link.begin()
    await link.write(b"zz\r\nhello\r\n")
    await link.hold()


async def garbage_json(link: Link) -> None:
    """JSON that is none."""
    await link.respond(b'{"jsonrpc": "2.0", "id": 1, "result": {]]')


async def deep_json(link: Link) -> None:
    """JSON that nests without end."""
    await link.respond(b'{"jsonrpc":"2.0","id":%d,"result":%s' % (link.ask.request_id or 0, b"[" * 200_000))


async def strange_json(link: Link) -> None:
    """JSON that is no answer of the protocol's."""
    await link.respond(b'{"status": "ok"}')


async def wrong_shape(link: Link) -> None:
    """A result that is none of the method's."""
    await link.respond(link.message(result={"content": 7, "tools": "none", "capabilities": []}))


async def bad_utf8(link: Link) -> None:
    """A text that is no UTF-8."""
    await link.respond(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\xff\xfe"}]}}' % (link.ask.request_id or 0))


async def wrong_type(link: Link) -> None:
    """A page where an answer is due, with status 200."""
    await link.respond(b"<html>please log in</html>", 200, "text/html")


async def wrong_id(link: Link) -> None:
    """An answer to a request that was never made."""
    await link.respond(link.message(id=987_654_321, result={"content": []}))


async def empty(link: Link) -> None:
    """An answer without a body."""
    await link.respond(b"")


async def huge(link: Link) -> None:
    """A body that never ends."""
    await link.begin("application/json")
    await link.chunk(b'{"jsonrpc":"2.0","result":"')
    while True:
        await link.chunk(b"x" * PIECE)


async def huge_event(link: Link) -> None:
    """An event that never ends."""
    await link.begin()
    await link.chunk(b"data: ")
    while True:
        await link.chunk(b"x" * PIECE)


async def gzip_bomb(link: Link) -> None:
    """A small body that unpacks to a large one."""
    await link.respond(BOMB, 200, "application/json", "Content-Encoding: gzip")


async def _forever(link: Link, piece: bytes) -> None:
    await link.begin()
    while True:
        await link.chunk(piece)
        await asyncio.sleep(TICK)


async def endless_comments(link: Link) -> None:
    """A stream of comments."""
    await _forever(link, b": keep-alive\n\n")


async def endless_events(link: Link) -> None:
    """A stream of events that say nothing."""
    await _forever(link, b"event: ping\ndata:\n\n")


async def endless_progress(link: Link) -> None:
    """A stream of progress, without an answer."""
    params = {"progressToken": link.ask.request_id, "progress": 1}
    await _forever(
        link, b"data: " + json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode() + b"\n\n"
    )


async def endless_strangers(link: Link) -> None:
    """A stream of answers to others' requests."""
    await _forever(link, b"data: " + link.message(id="somebody else's", result={}) + b"\n\n")


async def other_first(link: Link) -> None:
    """On the stream an answer to another request comes first."""
    answer = await link.fetch()
    if STREAM.encode() not in answer.head.lower():
        kept = [line for line in answer.head.decode("latin-1").split("\r\n") if line.lower().startswith("mcp-")]
        await link.begin(STREAM, *kept)
        await link.chunk(b"data: " + link.message(id=123_456_789, result={"content": []}) + b"\n\n")
        await link.chunk(b"data: " + answer.body + b"\n\n")
        await link.write(b"0\r\n\r\n")
        return
    event = b"data: " + link.message(id=123_456_789, result={"content": []}) + b"\n\n"
    await link.write(answer.head + b"%x\r\n%b\r\n" % (len(event), event) + answer.body)


async def duplicate(link: Link) -> None:
    """The answer comes twice on one connection: the second is taken for the next request's by whoever does not look."""
    answer = await link.fetch()
    await link.write(2 * (answer.head + answer.body))


async def session_gone(link: Link) -> None:
    """404, as servers answer that have forgotten the session (A60)."""
    await link.respond(link.message(error={"code": -32001, "message": "Session not found"}), 404)


async def session_lost(link: Link) -> None:
    """404 in the words of whoever has lost the session, with another code (A60)."""
    await link.respond(link.message(error={"code": -32600, "message": "no valid session id"}), 404)


async def session_unknown(link: Link) -> None:
    """404 without a word of the protocol's."""
    await link.respond(b"Not Found", 404, "text/plain")


FAULTS: dict[str, Callable[[Link], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        *(
            silent,
            drop_before,
            drop_after,
            half_close,
            delay,
            cut_head,
            cut_body,
            cut_chunk,
            cut_frame,
            no_answer,
            close_after,
            reset_reuse,
        ),
        *(slow_head, slow_body, endless_head, endless_interim, bad_gateway, unavailable, too_many, crash, forbidden, redirect, no_content),
        *(accepted, garbage, bad_length, long_length, bad_chunk, garbage_json, deep_json, strange_json, wrong_shape, bad_utf8, wrong_type),
        *(wrong_id, empty, huge, huge_event, gzip_bomb, endless_comments, endless_events, endless_progress, endless_strangers, other_first),
        *(duplicate, session_gone, session_lost, session_unknown),
    )
}

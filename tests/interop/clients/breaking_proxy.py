"""A proxy that cuts the connections of event streams when told to, so that reconnecting can be tried with clients of any language.

    python breaking_proxy.py PORT UPSTREAM_PORT

It passes bytes on, both ways. `POST /cut` breaks off every connection that carries the stream of a GET and answers {"cut": how many};
`POST /seen` answers {"resumed": the Last-Event-ID of each GET that had one}. Standard library only.
"""

import asyncio
import json
import re
import sys
from contextlib import suppress

HOST = "127.0.0.1"
CHUNK = 65536

asked: set[asyncio.StreamWriter] = set()  # connections whose latest request is a GET
streams: set[asyncio.StreamWriter] = set()  # those of them that a stream was opened on
resumed: list[str] = []


def notice(head: bytes, client: asyncio.StreamWriter) -> None:
    """Remembers whether a connection now waits for an event stream. Clients send a head in one piece."""
    if not head.startswith((b"GET ", b"POST ", b"DELETE ")):
        return  # the rest of a body
    streams.discard(client)
    asked.discard(client)
    if head.startswith(b"GET "):
        asked.add(client)
        resumed.extend(found.decode() for found in re.findall(rb"(?i)\r\nlast-event-id: *([^\r]+)", head))


def answer(head: bytes) -> bytes:
    """Does what the proxy itself is asked."""
    facts: dict[str, object] = {"resumed": resumed}
    if head.startswith(b"POST /cut"):
        broken = list(streams)
        streams.clear()
        for stream in broken:
            stream.transport.abort()
        facts = {"cut": len(broken)}
    body = json.dumps(facts).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def requests(reader: asyncio.StreamReader, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
    """Passes a client's bytes on, but what is meant for the proxy, until the client is gone."""
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            if data.startswith((b"POST /cut", b"POST /seen")):
                client.write(answer(data))
            else:
                notice(data, client)
                server.write(data)
    server.close()


async def answers(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    """Passes a server's bytes on until the server is gone."""
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            if data.startswith(b"HTTP/1.1 200") and client in asked:  # a GET may be refused, and its connection stays
                streams.add(client)
            client.write(data)
            await client.drain()
    client.close()


async def serve(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    """Takes a connection."""
    back, server = await asyncio.open_connection(HOST, int(sys.argv[2]))
    try:
        await asyncio.gather(requests(reader, client, server), answers(back, client))
    finally:
        streams.discard(client)
        asked.discard(client)


async def main() -> None:
    """Serves until it is ended."""
    async with await asyncio.start_server(serve, HOST, int(sys.argv[1])) as server:
        await server.serve_forever()


asyncio.run(main())

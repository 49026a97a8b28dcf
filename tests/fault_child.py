"""A server on pipes that misbehaves on purpose, of both eras and of the standard library alone: it starts in no time.

    python -I -S fault_child.py '{"kind": "exit", "share": 0.5, "at": "tools/call", "skip": 0, "times": 1}'

It echoes: `tools/call` answers with the argument `text`, after progress where that is asked for. The fault strikes at `times` requests of the
method `at`, after `skip` of them; `KINDS` names every kind, and what it does. Errors of its own making say so on stderr, and how it ends.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
# Where whoever starts this finds words of its own again.
LAST_WORDS = "the database is on fire"
EXIT_CODE = 3
PAGE = 64 * 1024
_MODERN = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "public",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fault", "version": "1"}},
}


def write(data: bytes) -> None:
    """Write bytes to stdout, however slow the reader."""
    while data:
        data = data[os.write(1, data) :]


def encode(**message: Any) -> bytes:
    """A message, without its line end."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def send(**message: Any) -> None:
    """Write a message."""
    write(encode(**message) + b"\n")


def make_result(message: Message) -> Message:
    """The right result of a request."""
    method, params = message["method"], message.get("params", {})
    if method == "server/discover":
        return {"resultType": "complete", **_MODERN}
    if method == "initialize":
        info = {"name": "fault", "version": "1"}
        return {"protocolVersion": params.get("protocolVersion"), "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "public"}
    if method == "tools/call":
        return {"resultType": "complete", "content": [{"type": "text", "text": params["arguments"]["text"]}]}
    return {"resultType": "complete"}


def answer(message: Message) -> bytes:
    """The right answer to a request, without its line end."""
    return encode(id=message["id"], result=make_result(message))


def reply(message: Message) -> None:
    """Answer as one should."""
    token = message.get("params", {}).get("_meta", {}).get("progressToken")
    if token is not None:
        send(method="notifications/progress", params={"progressToken": token, "progress": 1})
    write(answer(message) + b"\n")


def linger() -> None:
    """Live on, and hear nothing: neither the end of input nor SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


# What happens at a request. The name of each function is its kind; its docstring says what the client meets.


def leave(message: Message, share: float) -> None:
    """It ends without an answer, with an exit code and a word on stderr."""
    os.write(2, f"{LAST_WORDS}\n".encode())
    os._exit(EXIT_CODE)


def leave_quietly(message: Message, share: float) -> None:
    """It ends as if all were well."""
    os._exit(0)


def leave_in_line(message: Message, share: float) -> None:
    """It ends in the middle of the answer's line."""
    line = answer(message)
    write(line[: int(share * len(line))])
    leave(message, share)


def leave_after(message: Message, share: float) -> None:
    """It ends right after the answer."""
    reply(message)
    leave(message, share)


def die(message: Message, share: float) -> None:
    """It is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def chatter(message: Message, share: float) -> None:
    """Lines that are no messages come before the answer."""
    write(b"starting up...\n\n{not json}\n[]\n42\nnull\n\xff\xfe\x00\n" + b"{}\r\n")
    reply(message)


def garbage(message: Message, share: float) -> None:
    """Lines that are no messages come instead of the answer."""
    write(b"Traceback (most recent call last):\n  ...\n\x00\x01\xff\n")


def broken_answer(message: Message, share: float) -> None:
    """The answer is no JSON, though it was meant to be one."""
    write(answer(message)[:-1] + b"]]\n")


def wrong_id(message: Message, share: float) -> None:
    """The answer is for a request that was never made."""
    send(id=987_654_321, result=make_result(message))


def other_first(message: Message, share: float) -> None:
    """An answer to another request comes first, and the answer twice."""
    send(id=987_654_321, result=make_result(message))
    reply(message)
    reply(message)


def wrong_shape(message: Message, share: float) -> None:
    """The result is none of the method's."""
    send(id=message["id"], result={"content": 7, "supportedVersions": 7, "protocolVersion": 7, "capabilities": 7})


def close_stdout(message: Message, share: float) -> None:
    """It closes its stdout and lives on."""
    line = answer(message)
    write(line[: int(share * len(line))])
    os.close(1)
    time.sleep(60)


def close_stdin(message: Message, share: float) -> None:
    """It closes its stdin and lives on."""
    os.close(0)
    time.sleep(60)


def stop(message: Message, share: float) -> None:
    """It is stopped by a signal: it does nothing, and SIGTERM does not reach it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore(message: Message, share: float) -> None:
    """It says that it has begun, and no more; it goes on with the next request."""
    token = message.get("params", {}).get("_meta", {}).get("progressToken")
    if token is not None:
        send(method="notifications/progress", params={"progressToken": token, "progress": 1})


def hang(message: Message, share: float) -> None:
    """It hangs, and heeds neither the end of input nor SIGTERM."""
    linger()


def flood_stderr(message: Message, share: float) -> None:
    """It writes to stderr without end, and answers."""

    def shout() -> None:
        while True:
            os.write(2, b"warning: deprecated\n" * 1000)

    threading.Thread(target=shout, daemon=True).start()
    reply(message)


def flood_stdout(message: Message, share: float) -> None:
    """It writes lines that are no messages without end."""
    while True:
        write(b"debug\n" * 10_000)


def giant_line(message: Message, share: float) -> None:
    """It writes a line that does not end."""
    while True:
        write(b"x" * PAGE)


def giant_answer(message: Message, share: float) -> None:
    """Its answer is larger than the client takes."""
    send(id=message["id"], result={**make_result(message), "_meta": {"x": "x" * (3 * 2**20)}})


def endless_progress(message: Message, share: float) -> None:
    """Progress comes for ever, and no answer."""
    while True:
        send(method="notifications/progress", params={"progressToken": message["id"], "progress": 1})
        time.sleep(0.02)


def endless_questions(message: Message, share: float) -> None:
    """It asks without end what nobody answers."""
    while True:
        send(id="question", method="no/such/method", params={})
        time.sleep(0.02)


def drip(message: Message, share: float) -> None:
    """The answer comes byte by byte."""
    for byte in answer(message) + b"\n":
        write(bytes([byte]))
        time.sleep(0.001)


def late(message: Message, share: float) -> None:
    """The answer comes late, perhaps too late."""
    time.sleep(2 * share)
    reply(message)


def grandchild(message: Message, share: float) -> None:
    """It ends, and a process that it started holds the pipes open."""
    subprocess.Popen(["sleep", "60"])
    leave(message, share)


def talk_on(message: Message, share: float) -> None:
    """It writes on after its input has ended, until it is killed."""
    reply(message)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.read()
    while True:
        try:
            write(b"still here\n" * 1000)
        except OSError:
            linger()


KINDS: dict[str, Callable[[Message, float], None]] = {
    each.__name__: each
    for each in (
        *(leave, leave_quietly, leave_in_line, leave_after, die, chatter, garbage, broken_answer, wrong_id, other_first, wrong_shape),
        *(close_stdout, close_stdin, stop, ignore, hang, flood_stderr, flood_stdout, giant_line, giant_answer, endless_progress),
        *(endless_questions, drip, late, grandchild, talk_on),
    )
}


def command(kind: str, *, share: float = 0.5, at: str = "tools/call", skip: int = 0, times: int = 1) -> list[str]:
    """The command of a server with that fault."""
    fault = {"kind": kind, "share": share, "at": at, "skip": skip, "times": times}
    return [sys.executable, "-I", "-S", __file__, json.dumps(fault)]


def main() -> None:
    """Serve until the input ends."""
    fault = json.loads(sys.argv[1])
    skip = fault["skip"]
    while line := sys.stdin.readline():
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] == fault["at"] or fault["at"] == "any":
            skip -= 1
            if -fault["times"] <= skip < 0:
                KINDS[fault["kind"]](message, fault["share"])
                continue
        reply(message)


if __name__ == "__main__":
    main()

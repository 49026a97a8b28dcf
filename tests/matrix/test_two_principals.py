"""Two principals share a server and know all of each other's ids, cursors, states and names: not one byte crosses, and nothing can be done to
the other's.

Three things are held of any history: what a principal is sent never holds the other's mark; what a principal tries of the other's is answered
as what never existed is; and what a principal has stays as they left it.
"""

import json
import re
from typing import Any, NamedTuple

from asgi_driver import JSON
from estate import Artifact, Estate, mark
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import run

WHO = ("ann", "bob")
NEVER = "never-was-there"


class Act(NamedTuple):
    """One thing that somebody does.

    Attributes:
        name: What; see `Play`.
        who: Who does it.
        whose: Whose things it is about.
        pick: Which of them.
    """

    name: str
    who: str
    whose: str
    pick: int


class Play:
    """Does things, and remembers what each principal's session ought to hold."""

    def __init__(self) -> None:
        self.estate = Estate()
        self.notes: dict[str, list[str]] = {}
        self.owner: dict[str, str] = {}
        self.count = 0

    def text(self, who: str) -> str:
        """Something to say that only this principal says."""
        self.count += 1
        return f"{mark(who)} {self.count}"

    # What makes things.

    async def connect(self, act: Act) -> None:
        session = await self.estate.connect(act.who)
        self.notes[session], self.owner[session] = [], act.who

    async def remember(self, act: Act) -> None:
        """Into one's own session."""
        session, text = self.estate.pick("session", act.who, act.pick), self.text(act.who)
        if session is not None:
            status, body = await self.estate.then(act.who, session, call(self.count, "remember", text=text))
            if status == 200:
                self.notes[session].append(text)
                assert text.encode() in body

    async def confirm(self, act: Act) -> None:
        """A suspended call, whose state the client keeps."""
        self.estate.note("text", act.who, text := self.text(act.who))
        _, body = await self.estate.now(act.who, "tools/call", {"name": "confirm", "arguments": {"text": text}})
        result = last(body)["result"]
        self.estate.note("state", act.who, result["requestState"])
        self.estate.note("key", act.who, next(iter(result["inputRequests"])))

    async def work(self, act: Act) -> None:
        """A task."""
        _, body = await self.estate.now(act.who, "tools/call", {"name": "work", "arguments": {"text": self.text(act.who)}})
        self.estate.note("task", act.who, last(body).get("result", {}).get("taskId"))

    async def list_tools(self, act: Act) -> None:
        """The first page, and whatever cursor comes with it."""
        _, body = await self.estate.now(act.who, "tools/list", {})
        self.estate.note("cursor", act.who, last(body)["result"].get("nextCursor"))

    async def shout(self, act: Act) -> None:
        """Progress, logs and a change of a resource, on a call of the current protocol and in a session."""
        arguments = {"name": "shout", "arguments": {"text": self.text(act.who)}}
        await self.estate.now(act.who, "tools/call", arguments, token="t")
        session = self.estate.pick("session", act.who, act.pick)
        if session is not None:
            message = call(self.count, "shout", text=self.text(act.who))
            message["params"]["_meta"] = {"progressToken": "t"}
            _, body = await self.estate.then(act.who, session, message)
            for event_id in re.findall(rb"id: (\S+)", body):
                self.estate.note("event", act.who, event_id.decode())

    async def listen(self, act: Act) -> None:
        wanted: JSON = {"toolsListChanged": True, "resourceSubscriptions": ["mine://box", f"shelf://{act.whose}"]}
        await self.estate.now(act.who, "subscriptions/listen", {"notifications": wanted}, request_id="same")

    # What tries them; the answer to what is another's is that to what never was.

    async def read(self, act: Act) -> None:
        """What everybody has under the same URI, and what only its owner sees."""
        await self.estate.now(act.who, "resources/read", {"uri": "mine://box"})
        await self.same(act, f"secret://{act.whose}", lambda uri: ("resources/read", {"uri": uri}), f"secret://{NEVER}")
        await self.same(act, f"shelf://{act.whose}", lambda uri: ("resources/read", {"uri": uri}), f"shelf://{NEVER}")

    async def use_names(self, act: Act) -> None:
        await self.same(act, f"secret_{act.whose}", lambda name: ("tools/call", {"name": name, "arguments": {"x": 1}}))
        await self.same(act, f"prompt_{act.whose}", lambda name: ("prompts/get", {"name": name}))
        await self.same(act, f"prompt_{act.whose}", complete)

    async def turn_pages(self, act: Act) -> None:
        await self.same(act, self.estate.pick("cursor", act.whose, act.pick), lambda cursor: ("tools/list", {"cursor": cursor}))

    async def look_after_tasks(self, act: Act) -> None:
        task = self.estate.pick("task", act.whose, act.pick)
        await self.same(act, task, lambda task: ("tasks/get", {"taskId": task}))
        await self.same(act, task, lambda task: ("tasks/update", {"taskId": task, "inputResponses": {"k": {"action": "decline"}}}))
        if act.who != act.whose:
            await self.same(act, task, lambda task: ("tasks/cancel", {"taskId": task}))
            await self.estate.now(act.who, "subscriptions/listen", {"notifications": {"taskIds": [task or NEVER]}}, request_id="t")

    async def go_on(self, act: Act) -> None:
        """With a state, the very arguments it is bound to, and an answer."""
        state, text = (self.estate.pick(kind, act.whose, act.pick) for kind in ("state", "text"))
        answer = {self.estate.pick("key", act.whose, act.pick) or "k": {"action": "accept", "content": {"value": mark(act.who)}}}
        base = {"name": "confirm", "arguments": {"text": text}, "inputResponses": answer}
        await self.same(act, state, lambda state: ("tools/call", {**base, "requestState": state}))

    async def enter_sessions(self, act: Act) -> None:
        """Calls, streams, replays, answers, cancellations, subscriptions and the end of a session."""
        session = self.estate.pick("session", act.whose, act.pick)
        event = self.estate.pick("event", act.whose, act.pick) or "g0-1"
        if session is None or act.who == act.whose:
            return
        messages: list[JSON] = [
            call(self.count, "remember", text=self.text(act.who)),
            {"jsonrpc": "2.0", "id": 7, "method": "tasks/list"},
            {"jsonrpc": "2.0", "id": 7, "method": "resources/subscribe", "params": {"uri": "mine://box"}},
            {"jsonrpc": "2.0", "id": 7, "method": "logging/setLevel", "params": {"level": "debug"}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": self.count}},
            {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {"value": "x"}}},
            {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {}},
        ]
        for message in messages:
            await self.same_session(act.who, session, message)
        await self.same_session(act.who, session, None, "GET")
        await self.same_session(act.who, session, None, "GET", last_event_id=event)
        await self.same_session(act.who, session, None, "DELETE")

    async def same(self, act: Act, artifact: Artifact, make: Any, never: str = NEVER) -> None:
        """Try something of somebody's; where it is another's, demand the answer that something else gets which never was."""
        if artifact is None:
            return
        method, params = make(artifact)
        found = await self.estate.now(act.who, method, params)
        if act.who != act.whose:
            method, params = make(never)
            assert clean(found, artifact) == clean(await self.estate.now(act.who, method, params), never), (act, artifact)

    async def same_session(self, who: str, session: str, message: JSON | None, verb: str = "POST", **headers: str) -> None:
        found = await self.estate.then(who, session, message, verb, **headers)
        assert found[0] == 404
        assert found == await self.estate.then(who, "0" * 32, message, verb, **headers)

    async def check(self) -> None:
        """What everybody has is as they left it, and nobody was ever sent anything of another's."""
        for session, texts in self.notes.items():
            owner = self.owner[session]
            status, body = await self.estate.then(owner, session, call(0, "remember", text="last"))
            assert status == 200
            assert last(body)["result"]["structuredContent"] == {"result": [*texts, "last"]}
        for task in [task for tasks in self.estate.known.get("task", {}).values() for task in tasks]:
            owner = next(who for who, tasks in self.estate.known["task"].items() if task in tasks)
            _, body = await self.estate.now(owner, "tasks/get", {"taskId": task})
            assert last(body)["result"]["status"] in {"working", "input_required"}
        await self.estate.close()
        for who, heard in self.estate.heard.items():
            for other in WHO:
                if other != who:
                    assert mark(other).encode() not in b"".join(heard), f"{who} was sent what is {other}'s"


def call(request_id: int, tool: str, **arguments: str) -> JSON:
    """A call of a tool in a session."""
    return {"jsonrpc": "2.0", "id": f"r{request_id}", "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def complete(name: str) -> tuple[str, JSON]:
    return "completion/complete", {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}}


def last(body: bytes) -> JSON:
    """The last message of a body, be it JSON or a stream."""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith((b"data: {", b"{"))]
    found: JSON = json.loads(lines[-1])
    return found


def clean(answer: tuple[int, bytes], artifact: str) -> tuple[int, bytes]:
    """An answer without what was asked for."""
    return answer[0], answer[1].replace(json.dumps(artifact).strip('"').encode(), b"*")


MAKING = ("connect", "remember", "confirm", "work", "list_tools", "shout", "listen")
TRYING = ("read", "use_names", "turn_pages", "look_after_tasks", "go_on", "enter_sessions")
acts = st.builds(Act, st.sampled_from((*MAKING, *TRYING)), st.sampled_from(WHO), st.sampled_from(WHO), st.integers(0, 5))
# Everybody has something of everything, so that there is much to try from the start.
OPENING = [Act(name, who, who, 0) for name in MAKING for who in WHO]


@settings(max_examples=50, deadline=None)
@given(st.lists(acts, max_size=20))
def test_not_one_byte_crosses(history: list[Act]) -> None:
    # SA21, SA23, SA28, A26, AR-10, CA-03, HL-23, TX-03, TK-09
    async def main() -> None:
        play = Play()
        for act in [*OPENING, *history]:
            await getattr(play, act.name)(act)
        await play.check()

    run(main)


def test_everything_of_the_other_s_is_tried() -> None:
    """The acts of the property above, each at least once in each direction."""

    async def main() -> None:
        play = Play()
        for act in [*OPENING, *(Act(name, who, whose, 0) for name in TRYING for who in WHO for whose in WHO)]:
            await getattr(play, act.name)(act)
        assert play.estate.known.keys() >= {"session", "state", "key", "task", "cursor", "event"}
        await play.check()

    run(main)

"""Random programs that ask, and clients that answer, forget, forge, come back late and to other servers.

"Any interleaving of asks, answers, lost answers, tampering, rotated keys gives either the right value or the flat error." What is right, a model
says (`programs.py`), which runs the same program with the answers that were given, and knows nothing of rounds, seals and suspensions.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from asgi_driver import Answer, Client, make_request
from deployment import METHODS, TTL, Call, Deployment, Frame, check, drawn_again, frames, read_questions, result_of, sayings
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from programs import JSON, Ask, Node, Oracle, Question, Said, programs
from rounds import accept
from virtual_time import run, settle, virtual_time

from callboard.errors import REASONS, Reason

FLAT = {"code": REASONS[Reason.STATE].code, "message": REASONS[Reason.STATE].text}
# The same programs in every run, unless a number of examples asks for others: ASKING_EXAMPLES=3000.
EXAMPLES = int(os.environ.get("ASKING_EXAMPLES", "0"))


@dataclass
class State:
    """What a client keeps of a round.

    Attributes:
        text: The `requestState`.
        call: Of which request.
        answers: Text that was asked and what was said, by id: what the server must remember.
        asked: What it was asked this time: question by key.
        key: What sealed it.
        ends: When it ends.
        used: Whether it has been sent back.
    """

    text: str
    call: Call
    answers: dict[str, tuple[str, Said]]
    asked: dict[str, Question]
    key: str
    ends: float
    used: bool = False


class Visitor:
    """A client that keeps every state it was ever given.

    Args:
        place: The server.
        data: Chance.
    """

    def __init__(self, place: Deployment, data: st.DataObject) -> None:
        self.place = place
        self.draw: Callable[..., Any] = data.draw
        self.states: list[State] = []
        self.known: dict[str, Question] = {}

    async def begin(self) -> None:
        """Begin a call, perhaps with answers to what nobody has asked in it."""
        call = self.draw(st.builds(Call, st.sampled_from(METHODS), st.integers(1, 2), st.sampled_from(["ann", "bob", None])))
        guesses = self.draw(st.sets(st.sampled_from(sorted(self.known)), max_size=2)) if self.known and self.draw(st.booleans()) else set()
        said = {key: self.draw(sayings(self.known[key])) for key in guesses}
        more = {"inputResponses": {key: result_of(self.known[key], each) for key, each in said.items()}} if said else {}
        answers = {self.known[key].id: (self.known[key].text, each) for key, each in said.items()}
        answer = await self.place.send(call, more)
        # What was guessed counts by key alone: there was no question before that it could have been given to.
        current = await Oracle(self.place.version, answers).watch(self.place.program)
        if not said:
            self.keep(call, {}, check(current, answer), answer)

    async def proceed(self) -> None:
        """Go on from some state with some of the answers, and with some that are nobody's."""
        state = self.pick()
        everything = sorted(state.asked)
        told = everything if self.draw(st.booleans()) else sorted(self.draw(st.sets(st.sampled_from(everything)), label="told"))
        said = {key: self.draw(sayings(state.asked[key])) for key in told}
        responses = {key: result_of(state.asked[key], each) for key, each in said.items()}
        strangers = self.draw(st.sets(st.sampled_from(["nobody", "", *sorted(self.known)]), max_size=3), label="strangers")
        responses |= {key: accept(value="strange") for key in strangers - state.asked.keys()}
        before = self.place.runs
        more: JSON = {"requestState": state.text}
        if responses or self.draw(st.booleans()):
            more["inputResponses"] = responses
        answer = await self.place.send(state.call, more, is_swapped=self.draw(st.booleans()))
        opens = state.key in self.place.keys and self.place.now < state.ends and not (self.place.single_use and state.used)
        if not opens:
            self.check_flat(answer, before)
            event("does not open")
            return
        state.used = True
        answers = {**state.answers, **{state.asked[key].id: (state.asked[key].text, each) for key, each in said.items()}}
        fate = await Oracle(self.place.version, answers).watch(self.place.program)
        self.keep(state.call, answers, check(fate, answer), answer)
        event("goes on")

    async def misfit(self) -> None:
        """Answer what does not fit: it is refused, or nobody looks at it."""
        state = self.pick()
        key = self.draw(st.sampled_from(sorted(state.asked)))
        wrong = self.draw(
            st.sampled_from(
                [{}, {"action": "maybe"}, accept(value=5)]
                if state.asked[key].kind == "elicit"
                else [{}, {"role": "nobody", "content": [], "model": 1}, accept(value="x")]
            )
        )
        opens = state.key in self.place.keys and self.place.now < state.ends and not (self.place.single_use and state.used)
        before = self.place.runs
        answer = await self.place.send(state.call, {"requestState": state.text, "inputResponses": {key: wrong}})
        if not opens:
            self.check_flat(answer, before)
            return
        state.used = True
        if "error" in answer.message and answer.error["code"] == -32602:
            assert answer.status == 400 or answer.is_stream
            assert "does not fit what was asked" in answer.error["message"]
            event("misfit")
            return
        # It took the place of what was said to another wording of the question.
        answers = {known: said for known, said in state.answers.items() if known != state.asked[key].id}
        check(await Oracle(self.place.version, answers).watch(self.place.program), answer)

    async def forge(self) -> None:
        """Send what is none of our states, and a state with any other request."""
        state = self.pick()
        text = state.text
        how = self.draw(st.sampled_from(["flip", "cut", "grow", "glue", "empty"]))
        at = self.draw(st.integers(0, 10_000), label="at") % len(text)  # states are random, what is drawn must not be
        if how == "flip":
            chosen = self.draw(st.sampled_from("AZaz09-_.=+/ é"))
            text = text[:at] + (chosen if chosen != text[at] else "B") + text[at + 1 :]
        elif how == "cut":
            text = text[:at]
        elif how == "grow":
            text += self.draw(st.sampled_from(["A", "=", "\n", " ", ".", "AAAA"]))
        elif how == "glue":
            text = text[:at] + self.pick().text[at:]
        else:
            text = self.draw(st.sampled_from(["", "v1.", "v2." + text[3:], "null"]))
        changes: list[dict[str, Any]] = [{"number": 3}, {"principal": "eve"}, {"principal": None}, *({"method": each} for each in METHODS)]
        sent = [(replace(state.call, **change), state.text) for change in changes]
        if all(text != each.text for each in self.states):
            sent.append((state.call, text))
        responses = {key: accept(value="a") for key in state.asked}
        before = self.place.runs
        for call, forged in sent:
            if (call, forged) != (state.call, state.text):
                self.check_flat(await self.place.send(call, {"requestState": forged, "inputResponses": responses}), before)
        event(f"forged: {how}")

    async def rotate(self) -> None:
        """Start it anew with a new key in front, or without old ones."""
        if self.draw(st.booleans()):
            self.place.keys = [str(len(self.states)).rjust(31, "k") + str(len(self.place.keys)), *self.place.keys]
        else:
            self.place.keys = self.place.keys[:1]
        await self.place.restart()

    async def redeploy(self) -> None:
        """Start it anew with other texts."""
        self.place.version = 1 - self.place.version
        await self.place.restart()

    async def wait(self) -> None:
        """Let time pass."""
        self.place.now += self.draw(st.sampled_from([1, TTL - 1, TTL]))

    def pick(self) -> State:
        """One of the states; often the newest, for what has gone on for long has most to get wrong."""
        return self.states[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(self.states), label="state")

    def keep(self, call: Call, answers: Mapping[str, tuple[str, Said]], asked: Mapping[str, Question], answer: Answer) -> None:
        """Keep the state of an answer that asks."""
        if asked:
            text = answer.result["requestState"]
            assert text not in {state.text for state in self.states}
            self.known |= asked
            self.states.append(State(text, call, dict(answers), dict(asked), self.place.keys[0], self.place.now + TTL))

    def check_flat(self, answer: Answer, before: int) -> None:
        """One and the same error for every cause, before anything of the author's runs (SA28)."""
        assert (answer.status, answer.message.get("error")) == (400, FLAT), answer.message
        assert self.place.runs == before


STEPS: list[Callable[[Visitor], Awaitable[None]]] = [Visitor.begin, Visitor.rotate, Visitor.redeploy, Visitor.wait]
WITH_STATE: list[Callable[[Visitor], Awaitable[None]]] = [*[Visitor.proceed] * 6, Visitor.misfit, Visitor.forge, Visitor.forge]


@drawn_again
@settings(max_examples=EXAMPLES or 250, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), data=st.data(), frame=frames, single_use=st.booleans())
def test_any_interleaving_gives_the_right_value_or_the_flat_error(
    program: Node, data: st.DataObject, frame: Frame, single_use: bool
) -> None:
    # MR-06, MR-07, MR-08, MR-10, SA28

    async def main() -> None:
        async with aclosing(Deployment(program, frame, single_use=single_use)) as place:
            tester = Visitor(place, data)
            await tester.begin()
            for _ in range(data.draw(st.integers(2, 14), label="steps")):
                step = data.draw(st.sampled_from([*STEPS, *WITH_STATE] if tester.states else STEPS), label="step")
                await step(tester)

    run(main)


@settings(max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(races=False), frame=frames, count=st.integers(2, 4))
def test_calls_at_once_keep_their_answers_apart(program: Node, frame: Frame, count: int) -> None:
    # SA28: one program, one server, and every client's answers come back to it alone

    async def main() -> None:
        async with aclosing(Deployment(program, frame)) as place:
            results = await asyncio.gather(*(follow(place, Call(number=number)) for number in range(count)))
            await settle()
            assert not +place.awake
            for answers, answer in results:
                check(await Oracle(0, answers).watch(program), answer)

    run(main)


async def follow(place: Deployment, call: Call) -> tuple[dict[str, tuple[str, Said]], Answer]:
    """Make a call to its end, with the call's number for every answer."""
    client, more = Client(place.app, state={"principal": call.principal}), dict[str, Any]()
    answers: dict[str, tuple[str, Said]] = {}
    while True:
        answer = await client.post(make_request(call.method, {**call.params(), **more}, meta=place.frame.meta))
        if answer.message.get("result", {}).get("resultType") != "input_required":
            return answers, answer
        asked = read_questions(answer.result["inputRequests"])
        said = Said("accept", str(call.number))
        answers |= {question.id: (question.text, said) for question in asked.values()}
        responses = {key: result_of(question, said) for key, question in asked.items()}
        more = {"inputResponses": responses, "requestState": answer.result["requestState"]}


@virtual_time
async def test_of_two_that_bring_the_same_state_at_once_one_goes_on() -> None:
    # MR-08
    async with aclosing(Deployment(Ask("q"), single_use=True)) as place:
        first = await place.send(Call(), {})
        (key,) = first.result["inputRequests"]
        more = {"inputResponses": {key: accept(value="a")}, "requestState": first.result["requestState"]}
        answers = await asyncio.gather(*(place.send(Call(), more) for _ in range(3)))
        refused = [answer for answer in answers if "error" in answer.message]
        assert [(answer.status, answer.error) for answer in refused] == [(400, FLAT)] * 2
        assert place.runs == 2

"""Random programs that ask, and clients that answer: of the current protocol, of 2025, and some that go away.

What must come of it a model says (`programs.py`), which runs the same program with the answers that were given, and knows nothing of rounds, seals
and suspensions.
"""

import asyncio
import json
import os
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from asgi_driver import Answer, Client, make_headers, make_request
from deployment import METHODS, Call, Deployment, Frame, check, frames, read_questions, read_value, result_of, sayings
from errands import Follower
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from legacy_driver import V06, V11, Legacy
from programs import JSON, Fate, Node, Oracle, Question, Said, programs, walk
from programs import Once as KeptOnce
from rounds import Rounds, accept
from virtual_time import run, settle

from callboard import Context, Server, asgi

# A client that answers
# The same programs in every run, unless a number of examples asks for others: ASKING_EXAMPLES=3000.
EXAMPLES = int(os.environ.get("ASKING_EXAMPLES", "0"))


@settings(max_examples=EXAMPLES or 120, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), data=st.data(), method=st.sampled_from(METHODS), frame=frames)
def test_a_client_that_answers_gets_the_right_value(program: Node, data: st.DataObject, method: str, frame: Frame) -> None:
    # MR-01, MR-03, MR-09

    async def main() -> None:
        async with aclosing(Deployment(program, frame)) as place:
            call, answers, more = Call(method), dict[str, tuple[str, Said]](), dict[str, Any]()
            seen, rounds = set[str](), 0
            while True:
                answer = await place.send(call, more)
                fate = await Oracle(0, answers).watch(program)
                asked = check(fate, answer)
                if not asked:
                    break
                assert seen.isdisjoint(asked), "an answered question is asked again"
                seen |= asked.keys()
                rounds += 1
                said = {key: data.draw(sayings(question), label=question.id) for key, question in asked.items()}
                answers |= {asked[key].id: (asked[key].text, each) for key, each in said.items()}
                responses = {key: result_of(asked[key], each) for key, each in said.items()}
                more = {"inputResponses": responses, "requestState": answer.result["requestState"]}
            assert place.runs == rounds + 1
            event(f"rounds: {rounds}")

    run(main)


@settings(max_examples=EXAMPLES or 60, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(calm=True), data=st.data())
def test_once_is_once_for_a_client_that_answers(program: Node, data: st.DataObject) -> None:
    # MR-09: whatever is answered first, and in however many rounds

    async def main() -> None:
        async with aclosing(Deployment(program)) as place:
            more: dict[str, Any] = {}
            answer = await place.send(Call(), more)
            for _ in range(100):
                if answer.result["resultType"] == "complete":
                    break
                asked = read_questions(answer.result["inputRequests"])
                told = data.draw(st.sets(st.sampled_from(sorted(asked)), min_size=1), label="told")
                responses = {key: result_of(asked[key], Said("accept", "a")) for key in told}
                answer = await place.send(Call(), {"inputResponses": responses, "requestState": answer.result["requestState"]})
            assert answer.result["resultType"] == "complete"
            assert set(place.bumps.values()) <= {1}
            reached = {node.label for node in walk(program) if isinstance(node, KeptOnce)}
            assert place.bumps.keys() <= reached

    run(main)


# Questions that can't be told apart


@dataclass(frozen=True)
class Branch:
    """Asks of one of several branches that run together.

    Attributes:
        turns: Turns of the loop before each ask.
        texts: What it asks.
    """

    turns: int
    texts: list[str]

    async def run(self, ctx: Context) -> list[str]:
        """Ask it all."""
        told = []
        for text in self.texts:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            told.append(f"{text} {(await ctx.elicit(text, str)).value}")
        return told


branches = st.lists(st.builds(Branch, st.integers(0, 8), st.lists(st.sampled_from("ABC"), max_size=3)), min_size=2, max_size=3)


@settings(max_examples=EXAMPLES or 80, derandomize=not EXAMPLES, deadline=None)
@given(together=branches)
def test_equal_questions_are_refused_together_and_never_share_an_answer(together: list[Branch]) -> None:
    # MR-04: where two wait at once nobody could tell whose an answer is; else each is asked, and each answer is given to one ask

    async def main() -> None:
        server = Server("equals")

        @server.tool
        async def ask(ctx: Context) -> list[list[str]]:
            return await asyncio.gather(*(branch.run(ctx) for branch in together))

        answers: list[str] = []

        def respond(_key: str, request: JSON) -> JSON:
            answers.append(f"{request['params']['message']} {len(answers)}")
            return accept(value=str(len(answers) - 1))

        answer = await Rounds(asgi(server), respond).call("ask")
        if "error" in answer.message:
            assert answer.error["code"] == -32603
            texts = [text for branch in together for text in set(branch.texts)]
            assert len(texts) > len(set(texts)), "no two branches ask the same"
            return
        told: list[list[str]] = answer.result["structuredContent"]
        assert sorted(line for lines in told for line in lines) == sorted(answers)
        assert [[line[0] for line in lines] for lines in told] == [branch.texts for branch in together]

    run(main)


# Clients that go away


@settings(max_examples=EXAMPLES or 120, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), frame=frames, turns=st.integers(0, 30))
def test_a_client_that_goes_away_leaves_nothing_behind(program: Node, frame: Frame, turns: int) -> None:
    # CN-01: whether the call is at work, waits to be suspended, or is being suspended

    async def main() -> None:
        async with aclosing(Deployment(program, frame)) as place:
            await place.send(Call(), {})
            before = asyncio.all_tasks()
            message = make_request("tools/call", Call().params(), request_id=2, meta=frame.meta)
            exchange = Client(place.app, state={"principal": None}).start(json.dumps(message).encode(), make_headers(message))
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.disconnect()
            await exchange.gone()
            await settle()
            assert not +place.awake
            assert asyncio.all_tasks() == before
            check(await Oracle(0, {}).watch(program), await place.send(Call(), {}))

    run(main)


# Clients that answer while the function waits


@settings(max_examples=EXAMPLES or 100, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(races=False), data=st.data(), version=st.sampled_from([V11, V06]))
def test_a_session_that_answers_in_any_order_gets_the_right_value(program: Node, data: st.DataObject, version: str) -> None:
    # EL-03, SM-01: one run, each question once, on the call's own stream

    async def main() -> None:
        async with aclosing(Deployment(program)) as place:
            session = await Legacy(place.app, version, state={"principal": None}).connect(capabilities={"elicitation": {}, "sampling": {}})
            call = session.begin("run", {"number": 1, "other": "x"}, token=1)
            answers = ByText()
            waiting: dict[Any, JSON] = {}
            await settle()
            while not call.ended:
                for message in [await call.message() for _ in call.untaken]:
                    if message["method"] == "notifications/cancelled":
                        del waiting[message["params"]["requestId"]]
                    elif "id" in message:
                        waiting[message["id"]] = message
                message = waiting.pop(data.draw(st.sampled_from(sorted(waiting)), label="which"))
                params = message["params"]
                is_sample = message["method"] == "sampling/createMessage"
                text = params["messages"][0]["content"]["text"] if is_sample else params["message"]
                question = Question(text, text, "sample" if is_sample else "elicit")
                said = data.draw(sayings(question), label=text)
                answers[f"{text}#{1 + sum(known == text for known, _ in answers.values())}"] = (text, said)
                assert (await session.respond(message, result_of(question, said))).status == 202
                await settle()
            fate = await Oracle(0, answers).watch(program)
            check_end(fate, await call.end())
            await settle()
            assert place.runs == 1
            assert not +place.awake

    run(main)


def check_end(fate: Fate, answer: Answer) -> None:
    """Hold the end of a call whose function waited for its answers to what must come of it."""
    if fate.is_confused and "error" in answer.message:
        return
    assert fate.ended, f"it must ask one of {sorted(fate.open)}"
    assert read_value(answer) == (fate.failed, json.loads(json.dumps(fate.value)))


@settings(max_examples=EXAMPLES or 100, derandomize=not EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(races=False), data=st.data(), task=st.sampled_from(["allowed", "always"]))
def test_a_task_that_is_answered_in_any_order_gives_the_right_value(program: Node, data: st.DataObject, task: str) -> None:
    # TX-07: what is asked before it is a task, and what is asked of the task

    async def main() -> None:
        async with aclosing(Deployment(program, Frame(options={"task": task}))) as place:
            client = Follower(place.app)
            answers: dict[str, tuple[str, Said]] = {}

            def respond(requests: JSON) -> JSON:
                asked = read_questions(requests)
                assert not answers.keys() & {question.id for question in asked.values()}, "an answered question is asked again"
                told = data.draw(st.sets(st.sampled_from(sorted(asked)), min_size=1), label="told")
                said = {key: data.draw(sayings(asked[key]), label=asked[key].id) for key in sorted(told)}
                answers.update({asked[key].id: (asked[key].text, each) for key, each in said.items()})
                return {key: result_of(asked[key], each) for key, each in said.items()}

            answer = await client.call("run", Call().params()["arguments"])
            while answer.message.get("result", {}).get("resultType") == "input_required":
                more = {"inputResponses": respond(answer.result["inputRequests"]), "requestState": answer.result["requestState"]}
                answer = await client.call("run", Call().params()["arguments"], **more)
            if answer.message.get("result", {}).get("resultType") != "task":
                check_end(await Oracle(0, answers).watch(program), answer)
                await settle()
                assert not +place.awake
                return
            task_id = answer.result["taskId"]
            await settle()
            while (standing := await client.get(task_id))["status"] in {"working", "input_required"}:
                assert standing["status"] == "input_required", "nothing is asked, and nothing goes on"
                await client.update(task_id, **respond(standing["inputRequests"]))
                await settle()
            fate = await Oracle(0, answers).watch(program)
            if not (fate.is_confused and standing["status"] == "failed"):
                assert fate.ended
                assert (standing["status"] == "failed" or standing["result"].get("isError", False)) is fate.failed
                if not fate.failed:
                    assert json.loads(standing["result"]["content"][0]["text"]) == json.loads(json.dumps(fate.value))
            await settle()
            assert not +place.awake

    run(main)


class ByText(dict[str, tuple[str, Said]]):
    """Answers by text and number, found by the author's keys too, which a client of 2025 does not see."""

    def get(self, key: str, default: Any = None) -> Any:
        """The answer to `label-number` is that to the text of the label."""
        if "#" in key:
            return super().get(key, default)
        label, number = key.rsplit("-", 1)
        return super().get(f"{label}?#{number}") or super().get(f"{label}/0?#{number}", default)

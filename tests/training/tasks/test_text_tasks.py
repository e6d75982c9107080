"""Tasks written as text: thoughts lead to the answers, and no thought depends on later words."""

import json
import random
import re
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast_thinking.data.general import eval_prompts, training_prompts
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.text_examples import ChatFrame, TextExample, TextRules, prepare_texts
from holdfast_thinking.grammar.words import INVENTED
from holdfast_thinking.model.packed import IGNORED, PackSpec, pack
from holdfast_thinking.model.tokenizer import build_tokenizer
from holdfast_thinking.tasks.coin_talk import CoinTalk
from holdfast_thinking.tasks.entities import Entities
from holdfast_thinking.tasks.outside import OUTSIDE, Outside
from holdfast_thinking.tasks.room_talk import RoomTalk
from holdfast_thinking.tasks.rooms import PLACES, Rooms
from holdfast_thinking.tasks.task import TextTask
from holdfast_thinking.tasks.two_hop import TwoHop
from holdfast_thinking.tasks.variable_talk import VariableTalk


def examples(task: TextTask, count: int = 300, most: int = 9) -> list[TextExample]:
    rng = random.Random(5)
    return [task.example(rng, rng.randint(1, most)) for _ in range(count)]


@pytest.mark.parametrize(
    "task",
    [Entities(), TwoHop(), CoinTalk(), VariableTalk(), Outside(), Rooms(), RoomTalk()],
    ids=lambda t: t.name,
)
def test_steps_are_in_order_and_inside_the_prompt(task: TextTask) -> None:
    for each in examples(task, 100):
        places = [step.settled_at for step in each.steps]
        assert places == sorted(places) and all(0 <= at < len(each.prompt) for at in places), each
        assert not any(bad in each.prompt for bad in "{}|"), each.prompt
        assert "  " not in each.prompt, each.prompt


def test_entity_thoughts_answer_every_question() -> None:
    """The last thought about boxes or about rooms has the answer, and so has the last state."""
    for each in examples(Entities()):
        *told, asked = each.steps
        assert asked.at_once and not asked.thought
        clauses = [clause.split() for step in told for clause in step.thought.split(",")]
        words = told[-1].state.split()
        places = dict(zip(words[::2], words[1::2], strict=True))
        question = each.prompt[each.prompt.rindex(". ") + 2 :].removesuffix("? A:")
        answer = each.answer.strip(" .")
        if found := re.fullmatch(r"What is in the (\w+) box", question):
            last = [clause for clause in clauses if clause[0] == found[1]][-1]
            assert " and ".join(last[1:]) == answer, each
            assert asked.state.split() == last, each
            held = [name for name, place in places.items() if place == found[1]]
            assert held == ([] if answer == "nothing" else last[1:]), each
        else:
            name = question.removeprefix("Where is ").removeprefix("the ")
            last = [clause for clause in clauses if name in clause][-1]
            assert answer == (last[1] if last[0] == name else f"{last[0]} box"), each
            assert asked.state.split() == [name, answer.removesuffix(" box")], each
            assert places[name] == answer.removesuffix(" box"), each


def test_room_thoughts_follow_the_text_and_answer_every_question() -> None:
    """The text read again, with a pattern."""
    goes = r"(?:went|moved|journeyed|travelled|went back|walks|ran|goes|came|has gone) to|is in|enters"
    walk = re.compile(rf"(\w+) (?:{goes}) the (\w+)(?: now)?\.")
    for each in examples(Rooms()):
        *told, asked = each.steps
        seen: dict[str, str] = {}
        for going, step, found in zip(told[::2], told[1::2], walk.finditer(each.prompt), strict=True):
            who, place = found.groups()
            assert going.at_once and not going.thought, each
            assert going.state == "".join(f" {name} {room}" for name, room in seen.items()) + f" {who}", each
            assert found.start() + len(who) < going.settled_at < found.end() - len(place), each
            seen[who] = place
            assert step.thought == f" {who} {place}" and place in PLACES, each
            assert step.state == "".join(f" {name} {room}" for name, room in seen.items()), each
            assert each.prompt[: step.settled_at + 1].endswith(f" {place}"), each
        name, room = asked.state.split()
        assert asked.at_once and seen[name] == room and each.answer == f" {room}.", each
        assert each.prompt[: asked.settled_at + 1].endswith(f" {name}"), each


def test_room_talk_thoughts_are_settled_by_what_was_read() -> None:
    """A place is known at its last letter, of those the sentence names, and stays until the next one of theirs."""
    pronouns, together, twice, lower = 0, 0, 0, 0
    for each in examples(RoomTalk()):
        *told, asked = each.steps
        lower += each.prompt.removesuffix(" A:").islower()
        seen: dict[str, str] = {}
        goers: list[str] = []
        for step in told:
            read = each.prompt[: step.settled_at + 1]
            sentence = read[max(read.rfind(mark) for mark in (". ", "? ")) + 1 :]
            everybody = "".join(f" {name} {room}" for name, room in seen.items())
            if step.at_once:
                goers = step.state.removeprefix(everybody).split()
                assert goers and step.state.startswith(everybody) and not step.thought, each
                named = [who for who in goers if re.search(rf"\b{who}\b", sentence, re.IGNORECASE)]
                if named != goers:
                    assert len(goers) == 1 and re.search(r"\b(He|She)\b", sentence, re.IGNORECASE), each
                    pronouns += 1
                together += len(goers) == 2
                continue
            pairs = step.thought.split()
            assert pairs[::2] == goers and len(set(pairs[1::2])) == 1, each
            assert read.endswith(f" {pairs[1]}"), each
            twice += seen.get(pairs[0]) is not None and f" {seen[pairs[0]]}, then to" in sentence
            seen.update(zip(pairs[::2], pairs[1::2], strict=True))
            assert step.state == "".join(f" {name} {room}" for name, room in seen.items()), each
        name, room = asked.state.split()
        assert asked.at_once and seen[name] == room and each.answer == f" {room}.", each
        assert each.prompt[: asked.settled_at + 1].endswith(f" {name}"), each
    assert min(pronouns, together, twice, lower) > 0


def test_only_training_texts_of_entities_begin_with_people() -> None:
    """States are as large as after many events. The texts of an evaluation begin with boxes."""
    rng, task = random.Random(5), Entities()
    first = [task.example(rng, 4).steps[0].thought.split()[0] for _ in range(200)]
    assert 0.25 < sum(each[0].isupper() for each in first) / len(first) < 0.55
    assert all(task.eval_example(rng, 4).prompt.startswith("The ") for _ in range(200))


def test_continued_stories_follow_from_what_is_given() -> None:
    """The text read again, with patterns, from the given state on."""
    puts = re.compile(
        r"[Tt]he (\w+) (?:in|to|goes into|and drops it into) the (\w+) box\.$"  # a thing, a box
    )
    pours = re.compile(r"(?:from|pours) the (\w+) box (?:to|into) the (\w+) box\.$")
    swaps = re.compile(r"(?:swaps|exchanges) the (\w+) (?:and|for) the (\w+)\.$")
    walks = re.compile(r"^(\w+) (?:goes to|walks into|runs to|is in) the (\w+)(?: now)?\.$")
    continued = [each for each in examples(Entities(continues=True), 400) if each.given]
    assert 200 < len(continued) < 280  # three of five
    for each in continued:
        words = each.given.split()
        places = dict(zip(words[::2], words[1::2], strict=True))
        states = iter(step.state for step in each.steps)
        for sentence in re.findall(r"[^.?]+\.", each.message):
            if found := puts.search(sentence):
                places[found[1]] = found[2]
            elif found := pours.search(sentence):
                for name, place in places.items():
                    places[name] = found[2] if place == found[1] else place
            elif found := swaps.search(sentence):
                places[found[1]], places[found[2]] = places[found[2]], places[found[1]]
            elif found := walks.search(sentence.strip()):
                places[found[1]] = found[2]
            else:
                continue
            assert next(states) == "".join(f" {name} {place}" for name, place in places.items()), each
        asked, *found_there = next(states).split()
        answer = each.answer.strip(" .").removesuffix(" box")
        assert answer == (places.get(asked) or " and ".join(found_there)), each
        assert next(states, None) is None


def test_only_training_texts_of_entities_continue_a_story() -> None:
    rng, task = random.Random(5), Entities(continues=True)
    assert not any(task.eval_example(rng, 4).given for _ in range(200))
    assert not any(each.given for each in examples(Entities()))


@pytest.mark.parametrize("frame", [None, ChatFrame("Question: ", " Answer:")])
def test_given_state_is_added_and_not_learned(frame: ChatFrame | None) -> None:
    """It is the thought of the first chunk, without a target; what is read in that chunk is thought later."""
    told = examples(Entities(continues=True), 60, 6)
    tokenizer = build_tokenizer(Entities().words())
    texts = prepare_texts(told, tokenizer, TextRules("thinking", 16, 32, 0, frame, carry=True))
    batch = texts.batch(range(len(told)))
    due = batch.is_thought_about(True)
    packed = pack(batch, PackSpec((None,), 2, while_answering=True, carry=True))
    assert packed.thought is not None
    assert (packed.thought.ids != IGNORED).sum() == ((batch.thoughts >= 0).sum(axis=2) + 1)[due].sum()
    for row, each in enumerate(told):
        said = [
            tokenizer.decode([int(token) for token in thought if token >= 0])
            for thought in batch.thoughts[row]
        ]
        assert due[row, 0] == (not each.given) and due[row, 1 : int(batch.num_tokens[row]) // 16].all()
        if each.given:
            assert said[0].split() == each.given.split(), each
        states = [step.state.split() for step in each.steps]
        assert all(not thought or thought.split() in states for thought in said[bool(each.given) :]), each


def test_tokenizer_of_room_talk_spells_invented_words() -> None:
    known = set(re.findall(r"\w+", " ".join(RoomTalk().words())))
    assert {"went", "Priya", "plumber", "attic", "Rome", "Where", "she"} <= known
    assert not known & {each for each in INVENTED if len(each) > 7}


def test_entity_texts_repeat_no_thought_without_a_cause() -> None:
    """Distractors have no thought: fewer thoughts than sentences."""
    told = examples(Entities())
    assert sum(len(each.steps) - 1 for each in told) < sum(each.prompt.count(".") for each in told)


def test_variable_talk_thoughts_are_right() -> None:
    for each in examples(VariableTalk()):
        known: dict[str, int] = {}
        named: list[str] = []
        for step in each.steps:
            words = step.thought.split()
            work = words[:4] if len(words) > 2 and words[2] in "+-" else []
            words = words[len(work) :]
            pairs = dict(zip(words[::2], map(int, words[1::2]), strict=True))
            if work:
                name, left, sign, right = work
                assert pairs[name] == int(left) + (1 if sign == "+" else -1) * int(right), each
            changed = {name for name, value in pairs.items() if known.get(name) != value}
            if len(changed) == 2 and known:  # two values are swapped
                one, other = changed
                assert (known[one], known[other]) == (pairs[other], pairs[one]), each
            assert len(changed) <= 2 or not known, each
            named += [name for name in pairs if name not in named]
            assert list(pairs) == named, each
            known = pairs
            assert all(0 <= value <= 9 for value in known.values())
        answer = each.answer.strip(" .")
        if answer != "I do not know":
            asked = re.findall(r"\b([A-Za-z]+)\b", each.prompt[each.steps[-1].settled_at :])
            asked += [name.removesuffix("s") for name in asked]  # "what is ages value"
            assert int(answer[-1]) in {known[name] for name in asked if name in known}, each


_WHO = r"(?:(?:[A-Z]\w+|I|we|you|they|he|she|let's) )?"
_SAID = {
    r"(?P<v>[a-z])(?: = (?P=v) \+| \+=) (?P<n>\d)": lambda own, n: own + n,
    r"(?P<v>[a-z])(?: = (?P=v) -| -=) (?P<n>\d)": lambda own, n: own - n,
    r"(?P<v>[a-z])(?: =| is| becomes| :=) (?P<n>\d)": lambda _, n: n,
    rf"{_WHO}[Dd]oubles? (?P<v>[a-z])(?P<n>)": lambda own, _: 2 * own,
    rf"{_WHO}[Hh]alves? (?P<v>[a-z])(?P<n>)": lambda own, _: own // 2,
    rf"{_WHO}[Aa]dd(?:s|ed)? (?P<n>\d) to (?P<v>[a-z])": lambda own, n: own + n,
    rf"{_WHO}(?:[Ss]ubtract|[Rr]emove|[Dd]educt)(?:s|ed|d)? (?P<n>\d) from (?P<v>[a-z])": lambda own, n: (
        own - n
    ),
    r"(?P<v>[a-z]) (?:rises|grows|climbs|went up|goes up|grew|rose|climbed)(?: by)? (?P<n>\d)": lambda own, n: (
        own + n
    ),
    r"(?P<v>[a-z]) (?:falls|drops|shrinks|fell|dropped|sinks|loses|lost)(?: by)? (?P<n>\d)": lambda own, n: (
        own - n
    ),
    r"(?:[Rr]eset|[Cc]lear|[Ww]ipe) (?P<v>[a-z])(?P<n>)": lambda _own, _n: 0,
}


def test_variable_talk_values_are_those_of_its_words() -> None:
    """A reader of its own for the plainest statements."""
    read = 0
    for each in examples(VariableTalk(), 600):
        for before, step in zip(each.steps, each.steps[1:], strict=False):
            said = each.prompt[before.settled_at + 1 : step.settled_at].strip(" \n-.>=/")
            for shape, compute in _SAID.items():
                if found := re.fullmatch(shape, said):
                    old = re.findall(rf" {found['v']} (\d)", before.thought)  # the last one
                    value = compute(int(old[-1]) if old else 0, int(found["n"] or 0))
                    assert f" {found['v']} {value}" in step.thought, each
                    read += 1
    assert read > 20


def test_two_hop_text_never_says_the_answer() -> None:
    task, rng = TwoHop(), random.Random(3)
    for each in examples(task):
        assert each.answer.strip(" .") not in each.prompt
    new = 0
    for _ in range(200):
        asked = task.eval_example(rng, 1)
        assert len(asked.prompt.split()) > 8
        town = next(town for town in task.towns if town in asked.prompt)
        new += town in task.new_towns
    assert 60 < new < 140
    trained = " ".join(
        each.prompt for each in examples(task, 2000) if " in " in each.prompt and len(each.prompt) > 60
    )
    assert not any(f" in {town}." in trained for town in task.new_towns)


def test_other_prompts_are_answered_with_what_is_known() -> None:
    assert {each.answer for each in examples(Outside())} == {OUTSIDE}


def test_some_general_prompts_are_stories_with_a_question() -> None:
    prompts = training_prompts(1000, 0)
    stories = [each for each in prompts if " is " in each.split(".")[0] or " has " in each.split(".")[0]]
    assert 200 < len(stories) < 400 and all(each.endswith("?") for each in stories)
    assert not any("{" in each or "heads" in each for each in prompts)


def test_prompts_of_a_task_are_drawn_as_messages(tmp_path: Path) -> None:
    drawn = draw_prompts("entities", 20, 1)
    assert len(drawn) == 20 and all(each.endswith("?") for each in drawn)
    assert drawn == draw_prompts("entities", 20, 1) != draw_prompts("entities", 20, 2)
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": "."}) + "\n" for n in range(20)))
    assert sorted(draw_prompts(f"chat:{file}", 99, 0)) == sorted(f"{n}?" for n in range(20) if n % 10 < 9)
    for wrong in ("parity", "nothing", "chat:"):
        with pytest.raises(ConfigError, match="expected"):
            draw_prompts(wrong, 1, 0)


def test_general_prompts_for_evaluation_are_not_trained_on() -> None:
    asked = eval_prompts()
    assert len(asked) == len(set(asked)) == 200
    assert not set(asked) & set(training_prompts(10_000, 0))

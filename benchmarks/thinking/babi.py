"""bAbI stories: numbered lines, questions with an answer and the numbers of the facts that support
it.

    1 Mary moved to the bathroom.
    2 Mary got the milk there.
    3 Where is the milk? \\tbathroom\\t2 1

Every question is an example. Which facts support its answer is known only at the end: a later fact
may change it. So a thought is what a fact changes, for whatever question follows, as far as it can be
inferred at the fact's last word: who is where, with what (`StoryWorld`).

    Mary moved to the bathroom. Mary got the milk there. Where is the milk? A: bathroom.
                     Mary bathroom             Mary bathroom milk one

The number stands after the things, so that whoever writes the thought can count them.
A model that carries its states thinks of everybody who was named, and of what lies where; at the
question, of what is asked for: " milk bathroom".

Stories with facts of other kinds have the question before and after the story, and the supporting
facts as thoughts.

    python benchmarks/thinking/babi.py qa1_single-supporting-fact_train.txt qa1_train.jsonl    # for the task jsonl:FILE
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep

_MOVE = re.compile(
    r"(\w+) (?:went(?: back)?|moved|journeyed|travell?ed|walked|ran|is|came) (?:to|in) the (\w+)\W*"
)
_TAKE = re.compile(r"(\w+) (?:got|took|picked up|grabbed) the (\w+)(?: there)?\W*")
_DROP = re.compile(r"(\w+) (?:left|discarded|dropped|put down) the (\w+)(?: there)?\W*")
_GIVE = re.compile(r"(\w+) (?:passed|handed|gave) the (\w+) to (\w+)\W*")
_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass
class StoryWorld:
    """Where people are and what they carry, in the order in which they first had it."""

    places: dict[str, str] = field(default_factory=dict)
    carried: dict[str, dict[str, bool]] = field(default_factory=dict)  # thing -> whether still carried
    lying: dict[str, str] = field(default_factory=dict)  # thing -> where it was left

    def tell(self, fact: str) -> str | None:
        """Take in a fact. Returns what it changes, or None if it is of another kind."""
        if found := _GIVE.fullmatch(fact):
            giver, thing, receiver = found.groups()
            self._drop(giver, thing)
            self._take(receiver, thing)
            return f"{self._person(giver)},{self._person(receiver)}"
        if found := _TAKE.fullmatch(fact):
            self._take(found[1], found[2])
            return self._person(found[1])
        if found := _DROP.fullmatch(fact):
            self._drop(found[1], found[2])
            where = self.places.get(found[1])
            if where is not None:
                self.lying[found[2]] = where
            return self._person(found[1]) + (f", {found[2]} {where}" if where else "")
        if found := _MOVE.fullmatch(fact):
            self.places[found[1]] = found[2]
            return self._person(found[1])
        return None

    def _drop(self, person: str, thing: str) -> None:
        self.carried.setdefault(person, {})[thing] = False

    def _take(self, person: str, thing: str) -> None:
        self.carried.setdefault(person, {})[thing] = True
        self.lying.pop(thing, None)

    def _person(self, person: str) -> str:
        """ " Mary bathroom milk apple two": place if known; things and their number once anything was held."""
        place = self.places.get(person)
        text = f" {person}" + (f" {place}" if place else "")
        had = self.carried.get(person)
        if had is None:
            return text
        held = [thing for thing, is_held in had.items() if is_held]
        return " ".join((text, *held, _NUMBERS[min(len(held), len(_NUMBERS) - 1)]))

    def everything(self) -> str:
        """All people, in the order in which they were named, and all things that lie somewhere."""
        people = dict.fromkeys((*self.places, *self.carried))
        lying = (f" {thing} {place}" for thing, place in self.lying.items())
        return "".join((*(self._person(each) for each in people), *lying))


def read_babi(path: Path) -> list[TextExample]:
    """All questions of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a bAbI text: {error}") from error
    return list(_examples(path, lines))


def _examples(path: Path, lines: list[str]) -> Iterator[TextExample]:
    facts: dict[int, str] = {}
    for line_number, line in enumerate(filter(str.strip, lines), start=1):
        number, _, text = line.strip().partition(" ")
        if not number.isdecimal() or not text:
            raise ConfigError(
                f"{path}, line {line_number}: expected a number and a sentence, found {line[:60]!r}"
            )
        if int(number) == 1:
            facts = {}
        if "\t" not in text:
            facts[int(number)] = text.strip()
            continue
        question, answer, *rest = (part.strip() for part in text.split("\t"))
        named = (rest[0] if rest else "").split()
        if not all(each.isdecimal() for each in named):
            raise ConfigError(
                f"{path}, line {line_number}: expected the numbers of supporting facts, found {rest[0][:60]!r}"
            )
        support = [int(each) for each in named]
        missing = [each for each in support if each not in facts]
        if missing:
            raise ConfigError(
                f"{path}, line {line_number}: the question names line {missing[0]}, which is no fact before it"
            )
        yield _tracked(question, answer, facts) or _supported(question, answer, facts, support)


def _tracked(question: str, answer: str, facts: dict[int, str]) -> TextExample | None:
    """The thoughts are what each fact changes; None if a fact is of another kind."""
    world, prompt, steps = StoryWorld(), "", []
    for fact in facts.values():
        changed = world.tell(fact)
        if changed is None:
            return None
        prompt += f" {fact}" if prompt else fact
        steps.append(ThoughtStep(_last_word(prompt), changed, state=world.everything()))
    prompt = f"{prompt} {question}"
    asked = f" {_asked(question)} {answer.replace(',', ' ')}"
    steps.append(ThoughtStep(_last_word(prompt), "", state=asked, at_once=True))
    return TextExample(f"{prompt}{QUESTION_END}", f" {answer}.", tuple(steps))


def _asked(question: str) -> str:
    """The person of a question, or the thing that is its last word."""
    words = question.rstrip(" ?").split()
    return next((word for word in words[1:] if word[0].isupper()), words[-1])


def _supported(question: str, answer: str, facts: dict[int, str], support: list[int]) -> TextExample:
    """The thoughts are the supporting facts."""
    prompt, steps = question, []
    for number, fact in facts.items():
        prompt += f" {fact}"
        if number in support:
            steps.append(ThoughtStep(_last_word(prompt), f" {fact.rstrip('.!')}"))
    return TextExample(f"{prompt} {question}{QUESTION_END}", f" {answer}.", tuple(steps))


def _last_word(text: str) -> int:
    """The last character that is no mark."""
    return len(text.rstrip(".!?")) - 1


def to_line(example: TextExample) -> str:
    """Return the example as a line of a file for the task `jsonl`."""
    thoughts = [
        {
            "at": step.settled_at,
            "text": step.thought.lstrip(),
            "state": step.state.lstrip(),
            "at_once": step.at_once,
        }
        for step in example.steps
    ]
    return json.dumps({"prompt": example.message, "answer": example.answer.lstrip(), "thoughts": thoughts})


if __name__ == "__main__":
    lines = [f"{to_line(each)}\n" for each in read_babi(Path(sys.argv[1]))]
    Path(sys.argv[2]).write_text("".join(lines), encoding="utf-8")

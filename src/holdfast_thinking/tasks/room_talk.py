"""Who is where in the words people use: any names, jobs, places and cities, many verbs, pronouns, two at once.

    My cat sleeps in Rome. Priya ran to the lab. She returned to the dorm. Where's Priya?
                  cat Rome    cat Rome Priya lab     cat Rome Priya dorm

The thoughts are those of `rooms`, with the names and places as they are written. A model that carries its states
thinks of everybody, and of those who go before it knows where to.
"""

import random
import re

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep
from holdfast_thinking.grammar import room_shapes as shapes
from holdfast_thinking.tasks.filler import SENTENCES

_MOST_PEOPLE = 4
_NUM_PLACES = 6  # of a text
_LOWER = 0.05  # share of texts in lower case
_FEW = 6  # sentences of a short text
_SLOTS = r"\{\w+\}|\|"
_PAST = ("went|", "walked|", "ran|", "came|", "moved|", "entered|", "returned|", "headed|", "drove|", "got|")


class RoomTalk:
    name = "room-talk"

    def words(self) -> list[str]:
        said = (*shapes.vocabulary(), *SENTENCES, "He he She she and the my our his her to in")
        return [f" {re.sub(_SLOTS, '', text)}" for text in said]

    def example(self, rng: random.Random, events: int) -> TextExample:
        """Up to this number of sentences that say where somebody is: half of the texts are short."""
        return self.eval_example(rng, min(events, rng.randint(1, _FEW)) if rng.random() < 0.5 else events)

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        story = _Story(rng)
        idleness = rng.choice((0.0, 0.0, 0.1, 0.4))
        for _ in range(events):
            if rng.random() < idleness:
                story.idle()
            story.go()
        return story.ask()


class _Story:
    """A text as it is told, and where everybody is."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        drawn = [shapes.draw_person(rng) for _ in range(rng.randint(1, _MOST_PEOPLE))]
        self._people = {word: said for said, word in drawn}  # by the word in a thought
        self._places: dict[str, str] = {}
        while len(self._places) < _NUM_PLACES:
            said, word = shapes.draw_place(rng)
            if word not in self._people:
                self._places[word] = said
        self._pronouns = {who: rng.choice(("he", "she")) for who in self._people}
        self._rooms: dict[str, str] = {}
        self._last = ""  # who the last sentence is about, if it is about one
        self._prompt = ""
        self._steps: list[ThoughtStep] = []

    def idle(self) -> None:
        rng = self._rng
        self._last = ""
        if rng.random() < 0.4:
            self._prompt += f"{rng.choice(SENTENCES)} "
            return
        subject = self._draw_subject([rng.choice(list(self._people))])
        self._write(f"{subject} {rng.choice(shapes.IDLE)}.", {"": self._draw_place()})

    def go(self) -> None:
        """A sentence that says where one or two people are."""
        rng = self._rng
        who = rng.choice(list(self._people))
        others = [each for each in self._people if each != who]
        goers = [who, rng.choice(others)] if others and rng.random() < 0.05 else [who]
        shape = self._draw_shape(is_one=len(goers) == 1)
        end = f" {rng.choice(shapes.AFTER)}." if rng.random() < 0.08 and not shape.endswith("now") else "."
        place = self._draw_place(who)
        old = self._rooms.get(who) or self._draw_place(place)
        places = {"": place, "old": old, "next": self._draw_place(who, place)}
        self._write(f"{self._draw_subject(goers)} {shape}{end}", places, goers)
        self._last = who if len(goers) == 1 else ""

    def _draw_shape(self, is_one: bool) -> str:
        rng = self._rng
        if not is_one:
            return rng.choice([each for each in shapes.WALKS if each.startswith(_PAST)])
        kind = rng.random()
        if kind < 0.76:
            return rng.choice(shapes.WALKS)
        return rng.choice(shapes.STAYS if kind < 0.86 else shapes.LEAVES if kind < 0.95 else shapes.TWICE)

    def _draw_subject(self, goers: list[str]) -> str:
        rng = self._rng
        if goers == [self._last] and rng.random() < 0.3:
            subject = self._pronouns[self._last]
        else:
            subject = " and ".join(self._people[each] for each in goers)
        lead = f"{rng.choice(shapes.BEFORE)} " if rng.random() < 0.15 else ""
        text = f"{lead}{subject}"
        return text[0].upper() + text[1:]

    def ask(self) -> TextExample:
        rng = self._rng
        asked = rng.choice(list(self._rooms))
        said, place = self._people[asked], self._rooms[asked]
        before, after = rng.choice(shapes.ASKS).split("{who}")
        self._prompt += before + said
        self._steps.append(ThoughtStep(len(self._prompt) - 1, "", state=f" {asked} {place}", at_once=True))
        example = TextExample(f"{self._prompt}{after}{QUESTION_END}", f" {place}.", tuple(self._steps))
        return _lower(example) if rng.random() < _LOWER else example

    def _draw_place(self, *others: str) -> str:
        """Another one than where these people are, and than these."""
        taken = {self._rooms.get(each, each) for each in others}
        return self._rng.choice([each for each in self._places if each not in taken])

    def _write(self, shape: str, places: dict[str, str], goers: list[str] | None = None) -> None:
        """Add a sentence, part by part; places: of {to}, {in} and {the} (""), {next} and {old}."""
        known = {key: self._places[place] for key, place in places.items()}
        fields = {
            "to": f"to {known['']}",
            "in": f"in {known['']}",
            "the": known[""],
            "old": known.get("old", ""),
        }
        fields["next"] = f"to {known.get('next', '')}"
        before, is_going, after = shape.partition("|")
        self._prompt += before.format(**fields)
        if not is_going or goers is None:
            self._prompt += " "
            return
        going = "".join(f" {each}" for each in goers)
        self._steps.append(
            ThoughtStep(len(self._prompt) - 1, "", f"{self._everybody()}{going}", at_once=True)
        )
        first, has_next, rest = after.partition("{next}")
        self._arrive(first.format(**fields), places[""], goers)
        if has_next:
            self._arrive(fields["next"], places["next"], goers)
            self._prompt += rest
        self._prompt += " "

    def _arrive(self, text: str, place: str, goers: list[str]) -> None:
        start = len(self._prompt)
        self._prompt += text
        at = self._prompt.rindex(self._places[place], start) + len(self._places[place]) - 1
        for who in goers:
            self._rooms[who] = place
        said = "".join(f" {who} {place}" for who in goers)
        self._steps.append(ThoughtStep(at, said, self._everybody()))

    def _everybody(self) -> str:
        return "".join(f" {who} {place}" for who, place in self._rooms.items())


def _lower(example: TextExample) -> TextExample:
    steps = (
        ThoughtStep(each.settled_at, each.thought.lower(), each.state.lower(), each.at_once)
        for each in example.steps
    )
    text = example.prompt.removesuffix(QUESTION_END).lower() + QUESTION_END
    return TextExample(text, example.answer.lower(), tuple(steps))

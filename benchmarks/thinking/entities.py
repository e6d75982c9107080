"""Things in boxes and people in rooms: a thought after each event says what is in the boxes it changed, or
where somebody is.

    The key is in the red box. The blue box is empty. Ada puts the key in the blue box. Where is the key?
                     red key            blue nothing             red nothing, blue key

So what is asked for stands in the last thought with its name, however long the text is. A model that
carries its states thinks of the places of all things and people ("key blue Ada attic"), so that the next
thought depends on the last one and the event alone; at the question, of what is asked for. Sentences that
change nothing stand between the events: people look at boxes, talk about things, or the weather is
described, in some texts for long. Answers: " blue box.", " kitchen.", " ball and key.", " nothing.": things
in alphabetical order.

    holdfast train thinking --out DIR --preset backbone --task benchmarks/thinking/entities.py:Entities
"""

import random
from dataclasses import dataclass, field, replace

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep
from holdfast_thinking.grammar.words import FEW_NAMES, SENTENCES
from holdfast_thinking.settings import TrainingSettings

# fmt: off
_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "grey", "brown")
_THINGS = (
    "key", "ball", "ring", "pen", "lamp", "cup", "book", "map", "spoon", "coin", "apple", "watch", "hat", "bell",
    "shell", "stone",
)
_ROOMS = ("kitchen", "garden", "attic", "cellar", "hall", "office", "library", "bathroom")
# fmt: on
_MOST_IN_A_BOX = 3
_DISTRACTION = 0.3  # share of events with a distractor before them
_STRETCHES, _STRETCH = 0.1, (6, 24)  # share of texts with many distractors in a row, and how many
_WITH_PEOPLE = 0.4  # share of training texts that begin with where people are
_CONTINUED, _MOST_BEFORE = 0.6, 24  # share of training texts that continue a story, and its events so far
_ASKED = (0.25, 0.25)  # shares of questions about people, and about boxes
_ASKED_IN_TRAINING = (0.2, 0.45)  # what is in a box is the hardest to say
_PUTS = (
    "{who} puts the {thing} in the {box} box.",
    "{who} moves the {thing} to the {box} box.",
    "The {thing} goes into the {box} box.",
    "{who} takes the {thing} and drops it into the {box} box.",
)
_EMPTIES = (
    "{who} moves everything from the {box} box to the {other} box.",
    "{who} pours the {box} box into the {other} box.",
)
_SWAPS = (
    "{who} swaps the {thing} and the {second}.",
    "{who} exchanges the {thing} for the {second}.",
)
_WALKS = (
    "{who} goes to the {room}.",
    "{who} walks into the {room}.",
    "{who} runs to the {room}.",
    "{who} is in the {room} now.",
)
_DISTRACTORS = (
    "{who} looks at the {box} box.",
    "{who} talks about the {thing}.",
    "{who} asks for the {room}.",
    "{who} paints a picture of the {box} box.",
    "{who} would like to have the {thing}.",
    "{who} counts the boxes.",
)


@dataclass
class _World:
    """boxes, rooms: only boxes that have been named, only people who have been seen."""

    people: tuple[str, ...]
    boxes: dict[str, list[str]] = field(default_factory=dict)
    rooms: dict[str, str] = field(default_factory=dict)

    def box_of(self, thing: str) -> str:
        return next(box for box, things in self.boxes.items() if thing in things)

    @property
    def things(self) -> list[str]:
        return [thing for things in self.boxes.values() for thing in things]

    def contents(self, *boxes: str) -> str:
        """What is in these boxes."""
        return ",".join(f" {box} {' '.join(sorted(self.boxes[box])) or 'nothing'}" for box in boxes)

    def everything(self) -> str:
        """The box of every thing, the room of everybody: each name has the same place in all thoughts."""
        places = {thing: self.box_of(thing) for thing in sorted(self.things)} | self.rooms
        return "".join(f" {name} {place}" for name, place in places.items())


@dataclass
class _Story:
    """The text so far, and its thoughts."""

    world: _World
    text: str = ""
    steps: list[ThoughtStep] = field(default_factory=list)

    def tell(self, sentence: str, thought: str) -> None:
        self.text += f" {sentence}" if self.text else sentence
        if thought:
            settled_at = len(self.text.rstrip(".")) - 1
            self.steps.append(ThoughtStep(settled_at, thought, state=self.world.everything()))


class Entities:
    """For a model that carries its states, some training texts continue a story that is not told, with all that
    holds given as a state. So the next thought cannot depend on what was read long ago.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self._continued = _CONTINUED if settings.carry else 0.0

    def words(self) -> list[str]:
        rng = random.Random(0)
        texts = [self.example(rng, 12) for _ in range(300)]
        return [
            text for each in texts for text in (each.prompt, each.answer, *(s.thought for s in each.steps))
        ]

    def example(self, rng: random.Random, events: int) -> TextExample:
        """Some texts have many distractors in a row: few events are far apart too, as many events are. Some begin
        with where people are: everybody's place is known after few events too."""
        stretch = rng.randrange(events) if rng.random() < _STRETCHES else None
        if rng.random() < self._continued:
            return self._continue(rng, events, stretch)
        story = self._begin(rng, starts_with_people=rng.random() < _WITH_PEOPLE)
        return self._tell(rng, story, events, stretch, _ASKED_IN_TRAINING)

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        return self._tell(rng, self._begin(rng, starts_with_people=False), events, None, _ASKED)

    def _begin(self, rng: random.Random, starts_with_people: bool) -> _Story:
        """What is in the boxes at first."""
        filled = self._fill(rng, rng.sample(_COLOURS, rng.randint(2, 4)))
        world = _World(tuple(rng.sample(FEW_NAMES, rng.randint(2, 4))))
        story = _Story(world)
        for who in world.people[: rng.randint(1, len(world.people))] if starts_with_people else ():
            story.tell(*self._walk(rng, world, who))
        for box, things in filled.items():
            world.boxes[box] = things
            shown = " and the ".join(things)
            sentence = f"The {shown} {'are' if len(things) > 1 else 'is'} in the {box} box."
            story.tell(sentence if things else f"The {box} box is empty.", world.contents(box))
        return story

    def _continue(self, rng: random.Random, events: int, stretch: int | None) -> TextExample:
        world = self._begin(rng, starts_with_people=False).world
        for _ in range(rng.randint(0, _MOST_BEFORE)):
            self._event(rng, world)
        given = world.everything()
        return replace(self._tell(rng, _Story(world), events, stretch, _ASKED_IN_TRAINING), given=given)

    def _tell(
        self, rng: random.Random, story: _Story, events: int, stretch: int | None, asked: tuple[float, float]
    ) -> TextExample:
        """The events and a question. stretch: the event before which there are many distractors."""
        world = story.world
        for number in range(events):
            for _ in range(rng.randint(*_STRETCH) if number == stretch else int(rng.random() < _DISTRACTION)):
                story.tell(self._distract(rng, world), "")
            story.tell(*self._event(rng, world))
        question, name, answer = self._ask(rng, world, *asked)
        prompt = f"{story.text} {question}"
        found = f" {name} {answer.removesuffix(' box').replace(' and ', ' ')}"
        settled_at = prompt.rfind(name) + len(name) - 1
        steps = (*story.steps, ThoughtStep(settled_at, "", state=found, at_once=True))
        return TextExample(f"{prompt}{QUESTION_END}", f" {answer}.", steps)

    def _fill(self, rng: random.Random, boxes: list[str]) -> dict[str, list[str]]:
        filled: dict[str, list[str]] = {box: [] for box in boxes}
        for thing in rng.sample(_THINGS, rng.randint(2, 2 * len(filled))):
            free = [box for box, things in filled.items() if len(things) < _MOST_IN_A_BOX - 1]
            filled[rng.choice(free)].append(thing)
        return filled

    def _event(self, rng: random.Random, world: _World) -> tuple[str, str]:
        """A sentence and its thought; the world is changed."""
        who, kind = rng.choice(world.people), rng.random()
        if kind < 0.3:
            return self._walk(rng, world, who)
        thing = rng.choice(world.things)
        box = world.box_of(thing)
        others = [each for each in world.things if world.box_of(each) != box]
        if kind < 0.4 and others:
            second = rng.choice(others)
            other = world.box_of(second)
            mine, theirs = world.boxes[box], world.boxes[other]
            mine[mine.index(thing)], theirs[theirs.index(second)] = second, thing
            return rng.choice(_SWAPS).format(who=who, thing=thing, second=second), world.contents(box, other)
        free = [
            each
            for each in world.boxes
            if each != box and len(world.boxes[each]) + len(world.boxes[box]) <= _MOST_IN_A_BOX
        ]
        if kind < 0.55 and free:
            other = rng.choice(free)
            world.boxes[other] += world.boxes[box]
            world.boxes[box] = []
            return rng.choice(_EMPTIES).format(who=who, box=box, other=other), world.contents(box, other)
        room_left = [each for each, held in world.boxes.items() if each != box and len(held) < _MOST_IN_A_BOX]
        target = rng.choice(room_left or [box])
        world.boxes[box].remove(thing)
        world.boxes[target].append(thing)
        changed = world.contents(*dict.fromkeys((box, target)))
        return rng.choice(_PUTS).format(who=who, thing=thing, box=target), changed

    def _walk(self, rng: random.Random, world: _World, who: str) -> tuple[str, str]:
        world.rooms[who] = room = rng.choice(_ROOMS)
        return rng.choice(_WALKS).format(who=who, room=room), f" {who} {room}"

    def _distract(self, rng: random.Random, world: _World) -> str:
        if rng.random() < 0.3:
            return rng.choice(SENTENCES)
        return rng.choice(_DISTRACTORS).format(
            who=rng.choice(world.people),
            box=rng.choice(list(world.boxes)),
            thing=rng.choice(world.things),
            room=rng.choice(_ROOMS),
        )

    def _ask(
        self, rng: random.Random, world: _World, about_people: float, about_boxes: float
    ) -> tuple[str, str, str]:
        """The question, the name in it, and the answer."""
        kind = rng.random()
        if kind < about_people and world.rooms:
            who = rng.choice(list(world.rooms))
            return f"Where is {who}?", who, world.rooms[who]
        if kind < about_people + about_boxes:
            box = rng.choice(list(world.boxes))
            return f"What is in the {box} box?", box, " and ".join(sorted(world.boxes[box])) or "nothing"
        thing = rng.choice(world.things)
        return f"Where is the {thing}?", thing, f"{world.box_of(thing)} box"

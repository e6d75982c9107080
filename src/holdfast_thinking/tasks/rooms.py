"""People who go from room to room: a thought after each walk says where somebody is.

    Ada went to the kitchen. It is raining. Ben ran to the attic. Where is Ada?
                 Ada kitchen                      Ben attic

A model that carries its states thinks of everybody who was named, in that order ("Ada kitchen Ben attic"),
and at the question of who is asked for. It thinks of somebody who goes before it knows where to ("Ada kitchen
Ben"): the place may be in the next chunk, of which a thought is then made without the name in it. The
stories are those of bAbI's first task with many names and places, so that an adapter learns to copy any of
them instead of ten words.
"""

import random
import re

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep
from holdfast_thinking.grammar.words import INVENTED, NAMES
from holdfast_thinking.tasks.filler import SENTENCES, split_list

PLACES = split_list(
    "kitchen garden attic cellar hall office library bathroom bedroom hallway garage park school museum station"
    " market cafe church shop theatre hospital barn stable tower bakery restaurant hotel beach forest bank balcony yard"
    " studio gym pool playground castle harbour cinema factory farm field bridge cave temple lobby basement workshop"
    " stadium courtyard terrace chapel bar pub porch pantry nursery laboratory classroom zoo"
)
# A bar: from here on it is known that {who} goes somewhere.
_WALKS = (
    "{who} went| to the {place}.", "{who} moved| to the {place}.", "{who} journeyed| to the {place}.",
    "{who} travelled| to the {place}.", "{who} went| back to the {place}.", "{who} walks| to the {place}.",
    "{who} ran| to the {place}.", "{who} is in| the {place} now.", "{who} goes| to the {place}.",
    "{who} came| to the {place}.", "{who} enters| the {place}.", "Then {who} went| to the {place}.",
    "{who} has gone| to the {place}.", "After that {who} moved| to the {place}.",
)  # fmt: skip
_IDLE = split_list(
    "{who} is tired.|{who} looks at a photo of the {place}.|{who} talks about the {place}.|{who} likes the {place}.|{who}"
    " reads a book.|{who} says hello.|{who} has never seen the {place}.|{who} sings a song.",
    "|",
)
_ASKS = ("Where is {who}?",) * 6 + ("Where is {who} now?", "Where did {who} go?", "Where can I find {who}?")
_NEW_NAMES = 0.1  # share of people with an invented name
_IDLENESS = (0.0, 0.0, 0.1, 0.4)  # share of walks with another sentence before them, for a text


class Rooms:
    name = "rooms"

    def words(self) -> list[str]:
        said = (*PLACES, *NAMES, *SENTENCES, *_WALKS, *_IDLE, *_ASKS)
        return [re.sub(r"\{\w+\}|\|", "", f" {each}") for each in said]

    def example(self, rng: random.Random, events: int) -> TextExample:
        people = [
            rng.choice(INVENTED).capitalize() if rng.random() < _NEW_NAMES else name
            for name in rng.sample(NAMES, rng.randint(1, 4))
        ]
        people = list(dict.fromkeys(people))
        places, idleness = rng.sample(PLACES, 6), rng.choice(_IDLENESS)
        rooms: dict[str, str] = {}
        prompt, steps = "", list[ThoughtStep]()
        for _ in range(events):
            if rng.random() < idleness:
                idle = rng.choice(_IDLE if rng.random() < 0.6 else SENTENCES)
                prompt += idle.format(who=rng.choice(people), place=rng.choice(places)) + " "
            who = rng.choice(people)
            before, after = rng.choice(_WALKS).split("|")
            prompt += before.format(who=who)
            steps.append(ThoughtStep(len(prompt) - 1, "", f"{_everybody(rooms)} {who}", at_once=True))
            rooms[who] = rng.choice([each for each in places if each != rooms.get(who)])
            prompt += after.format(place=rooms[who])
            settled_at = prompt.rindex(rooms[who]) + len(rooms[who]) - 1
            steps.append(ThoughtStep(settled_at, f" {who} {rooms[who]}", _everybody(rooms)))
            prompt += " "
        asked = rng.choice(list(rooms))
        prompt += rng.choice(_ASKS).format(who=asked)
        found = f" {asked} {rooms[asked]}"
        settled_at = prompt.rindex(asked) + len(asked) - 1
        steps.append(ThoughtStep(settled_at, "", state=found, at_once=True))
        return TextExample(f"{prompt}{QUESTION_END}", f" {rooms[asked]}.", tuple(steps))


def _everybody(rooms: dict[str, str]) -> str:
    return "".join(f" {name} {place}" for name, place in rooms.items())

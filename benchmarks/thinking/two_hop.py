"""Two-hop facts: the first hop is in the text, the second is learned.

    Velma Torin was born in Ostrand. Which country was Velma Torin born in? A: Kelmar.
                              Ostrand Kelmar Ister

Every town has a country and a river, which training teaches by one-hop questions ("Which country is
Ostrand in?"). People are invented for each text. A quarter of the towns is in no two-hop text of
training: their facts are known, their combination with a person is new. Evaluation asks two-hop
questions only, half of them about such towns. A thought recalls what is known about a town.

    holdfast train thinking --out DIR --preset backbone --task benchmarks/thinking/two_hop.py:TwoHop
"""

import random

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep
from holdfast_thinking.settings import TrainingSettings


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(" "))


_NUM_TOWNS, _NUM_COUNTRIES, _NUM_RIVERS = 160, 20, 30
_SEED = 26
_RELATIONS = (  # in the text, in a question for the country, and in one for the river
    ("{who} was born in {town}.", "was {who} born in", "where {who} was born"),
    ("{who} lives in {town}.", "does {who} live in", "where {who} lives"),
    ("{who} works in {town}.", "does {who} work in", "where {who} works"),
    ("{who} went to school in {town}.", "did {who} go to school in", "where {who} went to school"),
)
_IDLE = (
    "{who} likes long walks.",
    "{who} has two brothers.",
    "{who} plays the violin.",
    "{who} is forty years old.",
)
_HEADS = _split(
    "Os Kel Var Tor Mel Ful Gan Ris Bor Dal Nev Pol Hal Lin Sar Wen Yor Zan Cor Bel Tam Fen Gol Ard"
)
_MIDDLES = ("", "a", "e", "i", "o", "en", "ar", "il")
_TAILS = _split("mar strand dale burg wick ton rin vik lund heim ford sel gard nes")


class TwoHop:
    has_events = False

    def __init__(self, settings: TrainingSettings) -> None:
        rng = random.Random(_SEED)
        words = [head + middle + tail for head in _HEADS for middle in _MIDDLES for tail in _TAILS]
        chosen = rng.sample(words, _NUM_TOWNS + _NUM_COUNTRIES + _NUM_RIVERS)
        self.towns, places = chosen[:_NUM_TOWNS], chosen[_NUM_TOWNS:]
        countries, rivers = places[:_NUM_COUNTRIES], places[_NUM_COUNTRIES:]
        self.facts = {town: (rng.choice(countries), rng.choice(rivers)) for town in self.towns}
        self.new_towns = frozenset(self.towns[::4])  # in no two-hop text of training
        self._surnames = [head + tail for head in _HEADS for tail in ("in", "ano", "sky", "er")]
        self._first_names = _split(
            "Velma Ivo Runa Teo Lark Mira Jonas Elin Oto Pia Sven Zora Emil Kaja Nilo Tess"
        )

    def words(self) -> list[str]:
        rng = random.Random(0)
        facts = [self._recall(town) for town in self.towns]
        return [*facts, *(self.example(rng, 1).prompt for _ in range(600))]

    def example(self, rng: random.Random, events: int) -> TextExample:
        """A training text: half of them one-hop."""
        if rng.random() < 0.5:
            return self._one_hop(rng)
        return self._two_hop(rng, events, [town for town in self.towns if town not in self.new_towns])

    def eval_example(self, rng: random.Random, events: int) -> TextExample:
        is_new = rng.random() < 0.5
        return self._two_hop(rng, events, [town for town in self.towns if (town in self.new_towns) == is_new])

    def _recall(self, town: str) -> str:
        return " ".join(("", town, *self.facts[town]))

    def _one_hop(self, rng: random.Random) -> TextExample:
        town = rng.choice(self.towns)
        country, river = self.facts[town]
        prompt, answer = rng.choice(
            (
                (f"Which country is {town} in?", country),
                (f"{town} is a town. Which country does it lie in?", country),
                (f"Which river flows through {town}?", river),
                (f"There is a town called {town}. Which river is it on?", river),
            )
        )
        step = ThoughtStep(prompt.index(town) + len(town) - 1, self._recall(town))
        return TextExample(f"{prompt}{QUESTION_END}", f" {answer}.", (step,))

    def _two_hop(self, rng: random.Random, events: int, towns: list[str]) -> TextExample:
        """1 to 3 people with a town each, and sentences that say nothing about towns."""
        people = [
            f"{rng.choice(self._first_names)} {rng.choice(self._surnames)}" for _ in range(rng.randint(1, 3))
        ]
        facts = [(who, *rng.choice(_RELATIONS), rng.choice(towns)) for who in dict.fromkeys(people)]
        prompt, steps = "", list[ThoughtStep]()
        for who, telling, _, _, town in facts:
            if rng.random() < 0.3:
                prompt += " " + rng.choice(_IDLE).format(who=who)
            prompt += " " + telling.format(who=who, town=town)
            steps.append(ThoughtStep(len(prompt.lstrip()) - 2, self._recall(town)))
        who, _, in_country, at_river, town = rng.choice(facts)
        country, river = self.facts[town]
        if rng.random() < 0.5:
            about, answer = f"Which country {in_country.format(who=who)}?", country
        else:
            about, answer = f"Which river flows through the town {at_river.format(who=who)}?", river
        return TextExample(f"{prompt.lstrip()} {about}{QUESTION_END}", f" {answer}.", tuple(steps))

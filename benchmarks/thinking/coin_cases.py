"""Short stories of one coin or several: who flipped it, how often, which side was up at the start.

    A penny is heads up. A dime is tails up. Ann flips the dime. Which side of the dime is up?    heads.
                   heads     penny heads dime tails    dime heads penny heads dime heads

A task of its own for `holdfast train thinking`: `--task benchmarks/thinking/coin_cases.py:CoinCases`. Of one coin the
thought is the side that is up, of several what has changed, and then all. In chats some stories
go on in a second message.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast_thinking.data.text_examples import QUESTION_END, TextExample, ThoughtStep
from holdfast_thinking.data.words import parse_words
from holdfast_thinking.grammar import coin_phrases as phrases
from holdfast_thinking.grammar import words
from holdfast_thinking.settings import TrainingSettings
from holdfast_thinking.tasks.typed import typed

cases = parse_words(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
SIDES = phrases.shapes.SIDES
_MOST_COINS, _MOST_EVENTS = 4, 6
_FOLLOWS, _SEVERAL = 0.25, 0.45  # shares of texts
_AND = (".", ".", ", and", ",", ";")  # between the coins of a story


class CoinCases:
    has_events = False

    def __init__(self, settings: TrainingSettings) -> None:
        self._in_chat = settings.chat

    def words(self) -> list[str]:
        told = [part for text in cases.texts for part in text.split("|")]
        return [*told, *map(_capital, told), *(f" {name}" for name in words.NAMES), " Yes No 0123456789"]

    def example(self, rng: random.Random, events: int) -> TextExample:
        story = CaseStory(rng, rng.randint(2, _MOST_COINS) if rng.random() < _SEVERAL else 1)
        for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, _MOST_EVENTS)):
            story.event()
        if self._in_chat and len(story.coins) == 1 and rng.random() < _FOLLOWS:
            return story.next_message(story.ask("now"))
        return typed(story.ask(), rng)


class _Coin:
    """key: the word that tells it from the others in a thought. first, later: what it is called."""

    def __init__(self, key: str, first: str, later: str, side: int) -> None:
        self.key, self.first, self.later = key, first.format(key), later.format(key)
        self.start = self.side = side


class CaseStory:
    """flips: who flipped the coin of a story of one, how often, and the side before. kept: who did not."""

    def __init__(self, rng: random.Random, num_coins: int) -> None:
        self.rng = rng
        self.text, self.steps = "", list[ThoughtStep]()
        self.flips, self.kept = list[tuple[str, int, int]](), list[str]()
        self._is_past, self._was_flip = rng.random() < 0.2, False
        self.coins = _draw_coins(rng, num_coins)
        if num_coins > 1 and rng.random() < 0.3:
            self._say(rng.choice(cases.OPENINGS))
        if num_coins > 1 and rng.random() < 0.35:
            self._begin_alike()
        else:
            self._begin()

    def _begin_alike(self) -> None:
        side = self.coins[0].side
        for coin in self.coins:
            coin.side = coin.start = side
        self._say(self.rng.choice(cases.ALL_ARE).format(d=self._all(first=True), s=SIDES[side]))
        self._think()

    def _begin(self) -> None:
        rng, link = self.rng, self.rng.choice(_AND)
        for number, coin in enumerate(self.coins, start=1):
            is_last = number == len(self.coins)
            shapes = cases.IS if number > 1 or not is_last or rng.random() < 0.5 else phrases.shapes.STARTS
            side, other = SIDES[coin.side], SIDES[1 - coin.side]
            told = words.fill(rng.choice(shapes), rng)
            told = told.format(c=coin.first, C=_capital(coin.first), s=side, S=_capital(side), x=other)
            self._say(told, "." if is_last else link)
            self._think(self.coins[:number], is_start=number == 1)

    def event(self) -> None:
        rng, kind, one, other = self.rng, self.rng.random(), _person(self.rng), _person(self.rng)
        if len(self.coins) > 1:
            self._event_of_several(kind, one)
        elif kind < 0.12 and self._was_flip:
            self._say(rng.choice(cases.SO_DOES if kind < 0.06 else cases.DOES_NOT).format(N=one))
            self.tell([one], times=int(kind < 0.06))
        elif kind < 0.22:
            many = rng.choice(cases.MANY).format(N=one, M=other)
            self._say(f"{many} {'flipped' if self._is_past else 'flip'} it")
            self.tell([one, other])
        elif kind < 0.3:
            shape = rng.choice(cases.NOBODY_OF)
            self._say(shape.format(N=one, M=other))
            self.tell([one, other] if "{N}" in shape else [], times=0)
        else:
            self.tell([one], self._does(one, self.coins[0]))

    def _event_of_several(self, kind: float, who: str) -> None:
        flipped = self.coins if kind < 0.1 else []
        if kind < 0.15:
            shape = self.rng.choice(cases.TO_ALL if flipped else cases.TO_NONE)
            self._say(shape.format(N=who, d=self._all()))
        else:
            coin = self.rng.choice(self.coins)
            flipped = [coin] * (self._does(who, coin) % 2)
        for coin in flipped:
            coin.side ^= 1
        self._think(changed=flipped if len(flipped) == 1 else [])

    def tell(self, people: list[str], times: int = 1) -> None:
        """Count these people's flips of the coin, one after the other."""
        coin = self.coins[0]
        for who in people:
            if times:
                self.flips.append((who, times, coin.side))
                coin.side ^= times % 2
            else:
                self.kept.append(who)
        self._was_flip = times == 1
        self._think()

    def _does(self, who: str, coin: _Coin, lead: str = "", tail: str = "") -> int:
        """Say what somebody does with a coin. Return how often it is flipped."""
        rng, kind, times, forms = self.rng, self.rng.random(), 1, phrases.any_flip(self.rng)
        if kind < 0.17:
            count, _, tail = rng.choice(cases.TIMES).partition(" ")
            times, forms = int(count), rng.choice(phrases.COMMON_FLIPS)
        elif kind > 0.68:
            times, tail = 0, ""
            forms = rng.choice(phrases.KEEPS) if kind > 0.84 else phrases.negated(forms, kind > 0.76)
        named = coin.later if len(self.coins) > 1 else rng.choice(("it", "it", coin.later))
        said = phrases.unmarked(forms.past if self._is_past else forms.third)
        said = words.fill(said.replace("{o}", named).replace("{O}", coin.later), rng)
        self._say(f"{lead}{who} {said} {tail}".rstrip())
        return times

    def _all(self, first: bool = False) -> str:
        named = [coin.first if first else coin.later for coin in self.coins]
        if first or self.rng.random() < 0.5:
            return f"{', '.join(named[:-1])} and {named[-1]}"
        return self.rng.choice(cases.BOTH if len(named) == 2 else cases.EVERY)

    def _say(self, said: str, end: str = ".") -> None:
        begins = not self.text or self.text[-1] == "."
        self.text += " " * bool(self.text) + (_capital(said) if begins else said) + end

    def _think(
        self, told: Sequence[_Coin] = (), changed: Sequence[_Coin] = (), is_start: bool = False
    ) -> None:
        """Think the side of one coin; of several the one that has changed, then all that were told of."""
        told, at = told or self.coins, len(self.text.removesuffix(" and").rstrip(".,;")) - 1
        if len(told) == 1:
            side = f" {SIDES[told[0].side]}"
            self.steps.append(ThoughtStep(at, "" if is_start else side, side if is_start else ""))
        else:
            state = "".join(f" {coin.key} {SIDES[coin.side]}" for coin in (*changed, *told))
            self.steps.append(ThoughtStep(at, state, state))

    def ask(self, kind: str = "") -> TextExample:
        """Ask something that has an answer; `kind`, if it is given."""
        rng, coin, answer = self.rng, self.rng.choice(self.coins), ""
        asks = cases.ASKS if len(self.coins) == 1 else (*cases.ASKS_OF_ONE, *cases.ASKS_OF_ALL)
        while not answer:
            asked, _, shape = rng.choice(
                [each for each in asks if each.startswith(f"{kind}|" * bool(kind))]
            ).partition("|")
            people = [who for who, _, _ in self.flips] + self.kept * (asked == "did")
            who = rng.choice(people) if people and asked != "next" else _person(rng)
            side = rng.randrange(2)
            answer = self._answer(asked, coin, side, who)
        question = shape.format(
            c=coin.later, d=self._all() if len(self.coins) > 1 else "", s=SIDES[side], N=who
        )
        return TextExample(f"{self.text} {question}{QUESTION_END}", f" {answer}.", tuple(self.steps))

    def next_message(self, before: TextExample) -> TextExample:
        """Go on in another message of a chat: one event, and a question about the side."""
        rng, who = self.rng, _person(self.rng)
        self.text, self.steps = "", []
        self.tell(
            [who], self._does(who, self.coins[0], f"{rng.choice(cases.NEXT)} ", rng.choice(cases.AGAIN))
        )
        return replace(self.ask(rng.choice(("now", "now", "now?"))), follows=before)

    def _answer(self, asked: str, coin: _Coin, side: int, who: str) -> str:
        """Return "" if the story has no answer."""
        kind = asked.removesuffix("?")
        sides = {"now": coin.side, "start": coin.start, "under": 1 - coin.side, "next": 1 - coin.side}
        if kind in sides:
            up = SIDES[sides[kind]]
            return up if kind == asked else f"{'Yes' if up == SIDES[side] else 'No'}, {up}"
        shown = [each.side for each in self.coins]
        doers, total = [name for name, _, _ in self.flips], sum(count for _, count, _ in self.flips)
        apart = set(self.kept) - set(doers)
        own = [(count, before) for name, count, before in self.flips if name == who]
        is_known = len(own) == 1 and own[0][0] == 1
        found = {
            "before": SIDES[own[0][1]] if is_known else "",
            "after": SIDES[1 - own[0][1]] if is_known else "",
            "who": doers[0] if len(set(doers)) == 1 else "",
            "first": doers[0] if len(doers) > 1 else "",
            "last": doers[-1] if len(doers) > 1 else "",
            "not": self.kept[0] if doers and len(apart) == len(self.kept) == 1 else "",
            "times": str(total) if total < 10 else "",
            "people": str(len(set(doers))),
            "count": str(shown.count(side)),
        }
        facts = {
            "did": who in doers,
            "any": bool(doers),
            "even": total % 2 == 0,
            "odd": total % 2 == 1,
            "twice": total == 2,
            "same": coin.side == coin.start,
            "changed": coin.side != coin.start,
            "alike": len(set(shown)) == 1,
            "all": set(shown) == {side},
        }
        return found[asked] if asked in found else "Yes" if facts[asked] else "No"


def _draw_coins(rng: random.Random, count: int) -> list[_Coin]:
    if count == 1:
        named = "coin" if rng.random() < 0.7 else rng.choice(phrases.shapes.COINS)
        return [_Coin(named, "a {}", "the {}", rng.randrange(2))]
    kinds = [line.split("|") for line in cases.KINDS]
    first, later, listed = rng.choice(
        [each for each in kinds if each[2] == "@" or each[2].count(" ") >= count - 1]
    )
    keys = words.NAMES if listed == "@" else listed.split()
    return [_Coin(key, first, later, rng.randrange(2)) for key in rng.sample(keys, count)]


def _person(rng: random.Random) -> str:
    return rng.choice(words.NAMES) if rng.random() < 0.6 else rng.choice(words.INVENTED).capitalize()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

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
from holdfast_thinking.tasks.outside import idle_sentence
from holdfast_thinking.tasks.typed import typed

cases = parse_words(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
SIDES = phrases.shapes.SIDES
_MOST_COINS, _MOST_EVENTS = 4, 6
_FOLLOWS, _SEVERAL, _IDLE = (
    0.25,
    0.5,
    0.06,
)  # shares of texts, and of events with another sentence before them
_AND = (".", ".", ", and", ",", ";")  # between the coins of a story
_SENTENCE_ENDS = (*(". ",) * 12, ".\n", "\n", "; ", ", then ", "... ")
_NUMBERS = ["no", "one", "two", "three", "four"]


class CoinCases:
    has_events = False

    def __init__(self, settings: TrainingSettings) -> None:
        self._in_chat = settings.chat

    def words(self) -> list[str]:
        told = [part for text in cases.texts for part in text.split("|")]
        return [*told, *map(_capital, told), *(f" {name}" for name in words.NAMES), " Yes No 0123456789"]

    def example(self, rng: random.Random, events: int) -> TextExample:
        story = CaseStory(rng, rng.choice((2, 2, 3, _MOST_COINS)) if rng.random() < _SEVERAL else 1)
        for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, _MOST_EVENTS)):
            if rng.random() < _IDLE:
                story.say(idle_sentence(rng).rstrip("."))
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
    """flips: who flipped the coin of a story of one, how often, and the side before. kept: who did not.

    acts: of several coins who flipped which, how often. at: the coin that "it" means then.
    """

    def __init__(self, rng: random.Random, num_coins: int) -> None:
        self.rng = rng
        self.text, self.steps = "", list[ThoughtStep]()
        self.flips, self.kept = list[tuple[str, int, int]](), list[str]()
        self.acts = list[tuple[str, list[_Coin], int]]()
        self.at: _Coin | None = None
        self._is_past, self._was_flip = rng.random() < 0.25, False
        self._end = rng.choice(_SENTENCE_ENDS)
        self.coins = _draw_coins(rng, num_coins)
        if num_coins > 1 and rng.random() < 0.25:
            self.say(rng.choice(cases.OPENINGS))
        kind = rng.random() if num_coins > 1 else 1.0
        if kind < 0.25:
            self._begin_alike()
        elif kind < 0.5:
            self._begin_list()
        else:
            self._begin()

    def _begin_alike(self) -> None:
        side = self.coins[0].side
        for coin in self.coins:
            coin.side = coin.start = side
        self.say(self.rng.choice(cases.ALL_ARE).format(d=self._all(first=True), s=SIDES[side]))
        self._think()

    def _begin_list(self) -> None:
        """ "Two coins lie on the table: a penny (heads) and a dime (tails)." """
        rng, shape = self.rng, self.rng.choice(cases.ITEMS)
        count = _NUMBERS[len(self.coins)] if rng.random() < 0.8 else str(len(self.coins))
        self._write(_capital(rng.choice(cases.LISTS).format(n=count)))
        link, last = rng.choice(((", ", " and "), (", ", ", "), (", ", ", and "), ("; ", "; ")))
        for number, coin in enumerate(self.coins, start=1):
            before = " " if number == 1 else last if number == len(self.coins) else link
            self._write(before + shape.format(c=coin.first, s=SIDES[coin.side], S=_capital(SIDES[coin.side])))
            self._think(self.coins[:number], is_start=number == 1)
        self._write(".")

    def _begin(self) -> None:
        rng, link, before = self.rng, self.rng.choice(_AND), self.coins[0]
        for number, coin in enumerate(self.coins, start=1):
            is_last = number == len(self.coins)
            shapes = cases.IS if number > 1 or not is_last or rng.random() < 0.5 else phrases.shapes.STARTS
            if number > 1 and link != "." and rng.random() < 0.4:
                shapes = cases.ALSO if coin.side == before.side else cases.UNLIKE
            side, other, before = SIDES[coin.side], SIDES[1 - coin.side], coin
            told = words.fill(rng.choice(shapes), rng)
            told = told.format(c=coin.first, C=_capital(coin.first), s=side, S=_capital(side), x=other)
            self.say(told, "." if is_last else link)
            self._think(self.coins[:number], is_start=number == 1)

    def event(self) -> None:
        rng, kind, one, other = self.rng, self.rng.random(), _person(self.rng), _person(self.rng)
        if len(self.coins) > 1:
            self._event_of_several(kind, one)
        elif kind < 0.12 and self._was_flip:
            self.say(rng.choice(cases.SO_DOES if kind < 0.06 else cases.DOES_NOT).format(N=one))
            self.tell([one], times=int(kind < 0.06))
        elif kind < 0.19:
            many = rng.choice(cases.MANY).format(N=one, M=other)
            self.say(f"{many} {'flipped' if self._is_past else 'flip'} it")
            self.tell([one, other])
        elif kind < 0.25:
            shape = rng.choice(cases.NOBODY_OF)
            self.say(shape.format(N=one, M=other))
            self.tell([one, other] if "{N}" in shape else [], times=0)
        elif kind < 0.31:
            self._roll()
        elif kind < 0.36:
            people = [_person(rng) for _ in range(rng.randint(3, 5))]
            named = f"{', '.join(people[:-1])} and {people[-1]}"
            self.say(rng.choice(cases.EACH).format(P=named, n=len(people)))
            self.tell(people)
        else:
            self.tell([one], self._does(one, self.coins[0]))

    def _roll(self) -> None:
        """ "Ann: yes, Bob: no, Eve: yes": who of a list flips the coin."""
        rng = self.rng
        intro, _, shapes = rng.choice(cases.ROLLS).partition("|")
        gap = rng.choice((", ", ", ", "; ", "\n"))
        self.say(intro, "" if intro else " ")
        for number in range(rng.randint(2, 5)):
            who, flips = _person(rng), rng.random() < 0.5
            self._write((gap if number else " ") + shapes.split("|")[1 - flips].format(N=who))
            self.tell([who], times=int(flips))
        self._write(".")

    def _event_of_several(self, kind: float, who: str) -> None:
        rng, coin, times = self.rng, self.rng.choice(self.coins), 1
        rest = [each for each in self.coins if each is not coin]
        other, side = rng.choice(rest), rng.randrange(2)
        shown = [each for each in self.coins if each.side == side]
        last = [self.at] if self.at else []
        others = [each for each in self.coins if last and each is not self.at]
        listed: tuple[tuple[float, tuple[str, ...], list[_Coin]], ...] = (
            (0.07, cases.TO_ALL, self.coins),
            (0.12, cases.TO_NONE, []),
            (0.21, cases.TO_TWO, [coin, other]),
            (0.27, cases.TO_REST, rest),
            (0.32, cases.TO_SHOWN, shown),
            (0.37, cases.TO_ONE, [coin]),
            (0.41, cases.KEPT_ONE, []),
            (0.47, cases.SET_TO, [coin] * (coin.side != side)),
            (0.52 if last else 0.0, cases.TO_LAST, last),
            (0.57 if len(others) == 1 else 0.0, cases.TO_OTHER, others),
        )
        shapes, flipped = next(((each, coins) for most, each, coins in listed if kind < most), ((), []))
        if shapes:
            shape = rng.choice(shapes)
            named = {"c": coin.later, "e": other.later, "d": self._all(), "s": SIDES[side]}
            self.say(shape.format(N=who, M=_person(rng), **named))
            who = who if "{N}" in shape and "{M}" not in shape else ""
        else:
            times = self._does(who, coin)
            flipped = [coin] * (times > 0)
        if shapes is not cases.TO_LAST:
            self.at = flipped[0] if len(flipped) == 1 else None
        self.acts.append((who, flipped, times))
        for each in flipped:
            each.side ^= times % 2
        self._think(changed=flipped if len(flipped) == 1 and times % 2 else [])

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
            if rng.random() < 0.25:
                count, tail = (number := str(rng.randint(2, 30))), f"{number} times"
            times, forms = int(count), rng.choice(phrases.COMMON_FLIPS)
        elif kind > 0.68:
            times, tail = 0, ""
            forms = rng.choice(phrases.KEEPS) if kind > 0.84 else phrases.negated(forms, kind > 0.76)
        named = coin.later if len(self.coins) > 1 else rng.choice(("it", "it", coin.later))
        lead = lead or (f"{rng.choice(cases.THEN)} " if rng.random() < 0.15 else "")
        said = phrases.unmarked(forms.past if self._is_past else forms.third)
        said = words.fill(said.replace("{o}", named).replace("{O}", coin.later), rng)
        self.say(f"{lead}{who} {said} {tail}".rstrip())
        return times

    def _all(self, first: bool = False) -> str:
        named = [coin.first if first else coin.later for coin in self.coins]
        if first or self.rng.random() < 0.5:
            return f"{', '.join(named[:-1])} and {named[-1]}"
        return self.rng.choice(cases.BOTH if len(named) == 2 else cases.EVERY)

    def say(self, said: str, end: str = ".") -> None:
        """Say a sentence, or a part of one that ends otherwise."""
        begins = not self.text or self.text[-1] in ".\n"
        if self.text.endswith(".") and self._end != ". ":
            self.text = self.text[:-1] + self._end.rstrip(" ")
            begins = self._end.strip() in ("", ".", "...")
        self._write(
            " " * bool(self.text and self.text[-1] != "\n") + (_capital(said) if begins else said) + end
        )

    def _write(self, said: str) -> None:
        self.text += said

    def _think(
        self, told: Sequence[_Coin] = (), changed: Sequence[_Coin] = (), is_start: bool = False
    ) -> None:
        """Think the side of one coin; of several the one that has changed, then all that were told of."""
        told, at = told or self.coins, len(self.text.removesuffix(" and").rstrip(".,;\n")) - 1
        if len(told) == 1:
            side = f" {SIDES[told[0].side]}"
            self.steps.append(ThoughtStep(at, "" if is_start else side, side if is_start else ""))
        else:
            state = "".join(f" {coin.key} {SIDES[coin.side]}" for coin in (*changed, *told))
            self.steps.append(ThoughtStep(at, state, state))

    def ask(self, kind: str = "") -> TextExample:
        """Ask something that has an answer; `kind`, if it is given."""
        rng, coin, other, answer = self.rng, self.rng.choice(self.coins), self.rng.choice(self.coins), ""
        asks = cases.ASKS if len(self.coins) == 1 else (*cases.ASKS_OF_ONE, *cases.ASKS_OF_ALL)
        while not answer:
            asked, _, shape = rng.choice(
                [each for each in asks if each.startswith(f"{kind}|" * bool(kind))]
            ).partition("|")
            doers = [who for who, _, _ in self.flips]
            people = doers + self.kept * (asked in ("did", "own"))
            who = rng.choice(people) if people and asked != "next" else _person(rng)
            side = rng.randrange(2)
            answer = self._answer(asked, coin, side, who, other)
        question = shape.format(
            c=coin.later,
            e=other.later,
            d=self._all() if len(self.coins) > 1 else "",
            s=SIDES[side],
            N=who,
            M=rng.choice([*doers, _person(rng)]),
            x=SIDES[1 - side],
        )
        gap = " " if self.text[-1] == "." and rng.random() < 0.93 else "\n"
        return TextExample(f"{self.text}{gap}{question}{QUESTION_END}", f" {answer}.", tuple(self.steps))

    def next_message(self, before: TextExample) -> TextExample:
        """Go on in another message of a chat: one event, and a question about the side."""
        rng, who = self.rng, _person(self.rng)
        self.text, self.steps = "", []
        self.tell(
            [who], self._does(who, self.coins[0], f"{rng.choice(cases.NEXT)} ", rng.choice(cases.AGAIN))
        )
        return replace(self.ask(rng.choice(("now", "now", "now?"))), follows=before)

    def _answer(self, asked: str, coin: _Coin, side: int, who: str, other: _Coin) -> str:
        """Return "" if the story has no answer."""
        kind = asked.removesuffix("?")
        doers, total = [name for name, _, _ in self.flips], sum(count for _, count, _ in self.flips)
        own = [(count, before) for name, count, before in self.flips if name == who]
        sides = {
            "now": coin.side,
            "start": coin.start,
            "under": 1 - coin.side,
            "next": 1 - coin.side,
            "one": 1 - coin.start if doers and self.flips[0][1] == 1 else None,
            "prior": 1 - coin.side if doers and self.flips[-1][1] == 1 else None,
            "without": coin.side ^ sum(count for count, _ in own) % 2 if own else None,
        }
        if kind in sides:
            turned = sides[kind]
            if turned is None:
                return ""
            up = SIDES[turned]
            return up if kind == asked else f"{'Yes' if turned == side else 'No'}, {up}"
        shown = [each.side for each in self.coins]
        apart = set(self.kept) - set(doers)
        is_known = len(own) == 1 and own[0][0] == 1
        acts = [(name, times) for name, coins, times in self.acts if coin in coins]
        flippers, which = {name for name, _ in acts}, [each for each in self.coins if each.side == side]
        found = {
            "before": SIDES[own[0][1]] if is_known else "",
            "after": SIDES[1 - own[0][1]] if is_known else "",
            "who": doers[0] if len(set(doers)) == 1 else "",
            "first": doers[0] if len(doers) > 1 else "",
            "second": doers[1] if len(set(doers[:2])) == 2 else "",
            "last": doers[-1] if len(doers) > 1 else "",
            "not": self.kept[0] if doers and len(apart) == len(self.kept) == 1 else "",
            "times": str(total) if total < 10 else "",
            "own": str(sum(count for count, _ in own)) if own or who in apart else "",
            "people": str(len(set(doers))),
            "idle": str(len(apart)) if apart and len(apart) == len(self.kept) else "",
            "count": str(shown.count(side)),
            "which": which[0].later if len(which) == 1 < len(shown) else "",
            "its-who": "".join(flippers) if len(flippers) == 1 else "",
            "its-times": str(sum(times for _, times in acts)),
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
            "some": side in shown,
            "its-any": bool(acts),
        }
        if asked == "pair":
            return "" if coin is other else "Yes" if coin.side == other.side else "No"
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
    if rng.random() < 0.12:
        return f"{rng.choice(('my', 'the', 'her', 'our'))} {rng.choice((*words.RELATIONS, *words.JOBS))}"
    return rng.choice(words.NAMES) if rng.random() < 0.6 else rng.choice(words.INVENTED).capitalize()


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

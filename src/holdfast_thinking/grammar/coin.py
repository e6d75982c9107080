"""Sentences about a coin. Marks in a sentence say what happens to the coin, where it is decided.

Everything that is done is a verb phrase (`VerbPhrases`); here are the people who do it, and the
clauses around them.
"""

import random

from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar import coin_phrases as phrases
from holdfast_thinking.grammar import words
from holdfast_thinking.grammar.asks_and_starts import after
from holdfast_thinking.grammar.coin_phrases import (
    FLIP,
    FLIP_IF,
    KEEP,
    TO,
    VerbPhrases,
    any_flip,
    frames,
    join,
    negated,
    shapes,
    unmarked,
)
from holdfast_thinking.grammar.verbs import Forms

links = read_words("coin_links")

_ARTICLES = ("the", "a", "my", "her", "one", "this")
_DO_NOT = ("do not", "don't", "please do not", "never")
_FIXED = tuple(
    dict.fromkeys(each[:4] for each in (*shapes.MODALS, "does", "do not", "don't", "did", "never ", "would"))
)


class CoinGrammar:
    """Draws sentences of one story: a kind of coin, a tense."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._verbs = VerbPhrases(rng)
        self.coin = "coin" if rng.random() < 0.75 else rng.choice(shapes.COINS)
        self._tense = "past" if rng.random() < 0.3 else "third"
        self._is_record = rng.random() < 0.12
        self._is_terse = rng.random() < 0.3
        self.is_simple = rng.random() < 0.3

    def sentence(self, side: int, last: str, first: int | None) -> str:
        """Draw a sentence with marks. last: the mark of the event before. first: the side at the start."""
        kind = self.rng.random()
        if self._is_record and kind < 0.85:
            return self._fill(self._record())
        if self.is_simple and kind < 0.8:
            return self._fill(self._simple())
        if kind < 0.04 and last in (FLIP, KEEP):
            return self._fill(self._follow(last))
        kinds = (
            (0.09, self._passive_sentence),
            (0.13, self._of_nobody),
            (0.19, self._of_people),
            (0.24, lambda: self._without_people(side, first)),
            (0.29, self._order),
            (0.31, self._condition),
            (0.36, self._several_times),
            (0.40, self._asked),
            (0.43, self._seemed),
            (0.46, self._of_group),
            (0.48, self._flips_as_nouns),
            (0.53 if self._is_terse else 0.0, self._terse),
        )
        return self._fill(next((draw for most, draw in kinds if kind < most), self._plain)())

    def _record(self) -> str:
        rng, link = self.rng, self.rng.choice(shapes.RECORD_LINKS)
        if rng.random() < 0.3:
            done = self._verbs.event()
            return f"{self.name()}{link}{done.third}"
        flips = rng.random() < 0.5
        what = rng.choice(shapes.RECORD_FLIPS if flips else shapes.RECORD_KEEPS)
        bare = "." if what.endswith(shapes.WITHOUT_OBJECT) else ""
        return f"{self.name()}{link}{what}{bare}{FLIP if flips else KEEP}"

    def _bare(self) -> str:
        """Return a verb alone: what comes next decides, as there may be an object."""
        rng = self.rng
        who, plural = self._subject()
        lead = f"{rng.choice(shapes.SHORT_LEADS)} " if rng.random() < 0.25 else ""
        verb, mark = (
            (phrases.BARE_FLIP, FLIP)
            if rng.random() < 0.6
            else (negated(phrases.BARE_FLIP, rng.random() < 0.7), KEEP)
        )
        return f"{lead}{who} {self._finite(verb, who, plural)}.{mark}"

    def _simple(self) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.15:
            return self._terse()
        if kind < 0.25:
            return self._bare()
        lead = f"{rng.choice(shapes.SHORT_LEADS)} " if rng.random() < 0.25 else ""
        tail = f" {rng.choice(shapes.SHORT_TAILS)}" if rng.random() < 0.15 else ""
        who, plural = self._subject()
        if kind < 0.33:
            return f"{lead}{who} {self._finite(rng.choice(phrases.ALONE), who, plural)}"  # nothing about the coin
        flip = rng.choice(phrases.COMMON_FLIPS) if rng.random() < 0.7 else any_flip(rng)
        if kind < 0.65:
            forms = flip
        elif kind < 0.8:
            forms = negated(flip, rng.random() < 0.6)
        elif kind < 0.94:
            forms = rng.choice(phrases.KEEPS)
        else:
            forms = self._verbs.set()
        return f"{lead}{who} {self._finite(forms, who, plural)}{tail}"

    def _plain(self) -> str:
        """Return a person, a verb phrase, and sometimes a clause around them."""
        rng, kind = self.rng, self.rng.random()
        who, plural = self._subject()
        said = self._finite(self._verbs.compound(), who, plural)
        if kind < 0.05:
            return f"{self._lead(0.2)}{who}, who {self._finite(self._verbs.idle(), who, plural)}, {said}"
        if kind < 0.10:
            link = rng.choice(("after", "before", "while", "instead of", "by", "without", "after"))
            return f"{link} {self._verbs.idle().ing}, {who} {said}"
        if kind < 0.15:
            why = rng.choice(links.REASONS)
            return f"{self._lead(0.3)}{who} {said}{why}{self._clause()}"
        if kind < 0.19:
            when = rng.choice(links.OCCASIONS)
            return f"{when}{self._clause()}, {who} {said}"
        if kind < 0.20:
            return f"{self._lead(0.1)}{who}, {rng.choice(frames.WHOSE)}, {said}"
        if kind < 0.22:
            return f"{self._participle()}, {who} {said}"
        if kind < 0.23:
            return f"to {self._verbs.idle().base}, {who} {said}"
        if kind < 0.26 and not plural:
            cleft = rng.choice(links.CLEFTS)
            return f"{self._lead(0.4)}{cleft.format(who)} {said}"
        if kind < 0.29:
            told = rng.choice(links.TELLERS)
            return f"{told} {who} {said}"
        return f"{self._lead(0.45)}{who} {said}"

    def _participle(self) -> str:
        """ "Having eaten lunch": before the subject."""
        rng, idle = self.rng, self._verbs.idle()
        kind = rng.random()
        if kind < 0.4:
            return f"having {idle.participle}"
        if kind < 0.5:
            return f"not {idle.ing}"
        if kind < 0.7:
            return (
                f"{rng.choice(('tired of', 'in the middle of', 'right after', 'before', 'busy'))} {idle.ing}"
            )
        return rng.choice(links.APPOSITIONS)

    def _finite(self, forms: Forms, who: str, plural: bool) -> str:
        """Return the phrase as the verb of a sentence, in the story's tense or now and then another."""
        rng = self.rng
        own = forms.past if self._tense == "past" else forms.plural if plural else forms.third
        if plural and own.startswith("was "):
            own = f"were {own.removeprefix('was ')}"
        if who == "I" and own.startswith(("are ", "were ")):
            own = {"are": "am", "were": "was"}[own.split(" ")[0]] + own[own.index(" ") :]
        if rng.random() < 0.87 or own[:4] in _FIXED or " not " in f" {forms.ing}"[:9]:
            return own
        be = "am" if who == "I" else "are" if plural else "is"
        have = "have" if plural else "has"
        done = (f"{have} {forms.participle}", f"{have} just {forms.participle}", f"had {forms.participle}")
        now = (f"{be} {forms.ing}", f"{be} now {forms.ing}", f"{be} seen {forms.ing}")
        return rng.choice((*done, *now, f"will {forms.base}", f"{be} the next to {forms.base}"))

    def _follow(self, last: str) -> str:
        rng = self.rng
        if last == KEEP:
            return rng.choice(shapes.NEITHER).replace("|", KEEP)
        if rng.random() < 0.7:
            return rng.choice(shapes.SAME_FLIPS).replace("|", FLIP)
        return f"{rng.choice(('', '', 'but ', 'however, '))}{rng.choice(shapes.NOT_THE_SAME)}".replace(
            "|", KEEP
        )

    def _passive_sentence(self) -> str:
        rng, done = self.rng, self.rng.choice(phrases.PASSIVES)
        who = "it" if rng.random() < 0.4 else "{O}"
        adverb = f" {self._verbs.adverb()}" if rng.random() < 0.15 else ""
        by = rng.choice(
            ("", "", " by {M}", " by {M}", " by " + rng.choice(shapes.SUBJECTS), f" {self._verbs.tail()}")
        )
        if rng.random() < 0.6:
            return f"{self._lead(0.4)}{who} {rng.choice(shapes.PASSIVES)}{adverb} {done}{by}"
        return (
            f"{self._lead(0.4)}{who} {rng.choice(shapes.PASSIVES_NOT)}{adverb} {done.replace(FLIP, KEEP)}{by}"
        )

    def _of_nobody(self) -> str:
        rng = self.rng
        if rng.random() < 0.25:
            who = rng.choice(links.EVERYBODY)
            kept = rng.choice(phrases.KEEPS)
            many = who.startswith(("all", "both"))
            return f"{self._lead(0.4)}{who} {kept.past if self._tense == 'past' else kept.plural if many else kept.third}"
        flip = any_flip(rng)
        said = (flip.past if self._tense == "past" else flip.third).replace(FLIP, KEEP)
        tail = f" {self._verbs.tail()}" if rng.random() < 0.3 else ""
        return f"{self._lead(0.4)}{rng.choice(shapes.NOBODY)} {said}{tail}"

    def _of_people(self) -> str:
        rng, kind = self.rng, self.rng.random()
        flip = any_flip(rng)
        lead = f"{rng.choice(shapes.LEADS)} " if rng.random() < 0.3 else ""
        if kind < 0.5:
            people = [self.name() for _ in range(rng.choice((2, 2, 2, 3, 3, 4)))]
            each = rng.choice(("each", "both", "both") if len(people) == 2 else ("each", "all"))
            mark = FLIP if len(people) % 2 else KEEP
            one_by_one = (
                rng.choice((" once", " one after the other", "", " in turn")) if each == "all" else ""
            )
            said = flip.past if self._tense == "past" else flip.plural
            said = unmarked(said) + mark + one_by_one
            return f"{lead}{', '.join(people[:-1])} and {people[-1]} {each} {said}"
        first = self._finite(flip, "", False)
        if kind < 0.8:
            link = rng.choice(links.ANOTHER).replace("+", FLIP).replace("-", KEEP)
            return f"{lead}{self.name()} {first}{link}"
        link = rng.choice((", ", " and ", ", then ", ", and then ", ", while ", "; "))
        return (
            f"{lead}{self.name()} {first}{link}{self.name()} {self._finite(self._verbs.event(), '', False)}"
        )

    def _asked(self) -> str:
        rng, flip = self.rng, any_flip(self.rng)
        rest, mark = (frames.OBEYED, FLIP) if rng.random() < 0.5 else (frames.REFUSED, KEEP)
        then, asked = rng.choice(rest), rng.choice(frames.ASKED)
        he, him = rng.choice((("he", "him"), ("she", "her")))
        if rng.random() < 0.3 and asked.startswith("{M} ") and " {N} to " in asked:
            asked, then = asked.replace("{N}", him, 1), then.replace("{N}", he)
        elif rng.random() < 0.4:
            then = then.replace("{N}", he, 1)
        if ". he" in then or ". she" in then:
            then = then.replace(". he", ". He").replace(". she", ". She")
        return f"{self._lead(0.2)}{self._around(asked, flip)}{after(then)}{mark}"

    def _seemed(self) -> str:
        rng, flip = self.rng, any_flip(self.rng)
        kind = rng.random()
        if kind < 0.3:
            wish = self._around(self._finite_plain(rng.choice(phrases.MEANT)), flip)
            end = after(rng.choice(frames.SO_NOT)) if rng.random() < 0.6 else ""
            return f"{rng.choice(frames.WHILE)} {{N}} {wish}, {self._clause()}{end}{KEEP}"
        if kind < 0.6:
            return f"{self._around(rng.choice(frames.THOUGH), flip)}{KEEP}"
        return f"{self._lead(0.2)}{self._around(rng.choice(frames.SEEMED), flip)}{rng.choice(frames.NOT_SO)}{KEEP}"

    @staticmethod
    def _around(shape: str, flip: Forms) -> str:
        return shape.replace("{b}", unmarked(flip.base)).replace("{g}", unmarked(flip.ing))

    def _of_group(self) -> str:
        rng, flip = self.rng, any_flip(self.rng)
        number, verb, who = rng.choice(links.GROUPS).split(" ", 2)
        said = flip.past if self._tense == "past" else flip.third if verb == "one" else flip.plural
        once = rng.choice(("", "", " once", " one time", " exactly once")) if int(number) > 1 else ""
        return f"{self._lead(0.3)}{who} {unmarked(said)}{FLIP if int(number) % 2 else KEEP}{once}"

    def _flips_as_nouns(self) -> str:
        count, _, flips = self.rng.choice(links.FLIPS_AS_NOUNS).partition(" ")
        shape = self.rng.choice(frames.NOUN_SENTENCES)
        return shape.replace("{}", flips + (FLIP if int(count) % 2 else KEEP))

    def _terse(self) -> str:
        rng, event = self.rng, self._verbs.event()
        kind = rng.random()
        if kind < 0.4:
            return f"{rng.choice(('', 'then ', 'next ', 'now ', 'and ', 'after that '))}{event.third}"
        if kind < 0.6:
            return f"{rng.choice(('', 'then ', 'next ', 'again '))}{event.past}"
        if kind < 0.7:
            return f"{event.ing} by {self.name()}" if len(event.ing) < 12 else event.ing
        if kind < 0.76:
            return f"{rng.choice(('flip', 'flip', 'flip', 'turn', 'again a flip', 'flips'))}.{FLIP}"
        flips = rng.random() < 0.5
        return rng.choice(shapes.TERSE_FLIPS if flips else shapes.TERSE_KEEPS) + (FLIP if flips else KEEP)

    def _without_people(self, side: int, first: int | None) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.12 and first is not None:
            if rng.random() < 0.25:
                return f"{self._lead(0.2)}{rng.choice(frames.RESTORED)}{TO[first]}"
            shape = rng.choice(frames.CHANGES)
            if rng.random() < 0.5:
                shape, side = rng.choice(frames.TURNED_DOWN), rng.randrange(2)
            told = shape.replace("{s}", shapes.SIDES[side]).replace("{x}", shapes.SIDES[1 - side])
            return f"{self._lead(0.2)}{told}{TO[1 - side]}"
        if kind < 0.3:
            return f"{self._lead(0.2)}{rng.choice(shapes.STAYS)}".replace("|", KEEP).replace(
                "{s}", shapes.SIDES[side]
            )
        if kind < 0.6:
            return f"{self._lead(0.2)}{rng.choice(shapes.FLIP_SENTENCES)}".replace("|", FLIP)
        if kind < 0.85:
            to = rng.randrange(2)
            return rng.choice(shapes.SET_SENTENCES).replace("{s}", shapes.SIDES[to]) + TO[to]
        if kind < 0.93:
            return rng.choice(shapes.BARE_FLIPS).replace("|", FLIP)
        return rng.choice(shapes.BARE_KEEPS).replace("|", KEEP)

    def _order(self) -> str:
        """ "Now turn it over": the reader or somebody else is told to, and it is done."""
        rng, event = self.rng, self._verbs.event()
        base = event.base
        times, count = self._times()
        if rng.random() < 0.2 and not times.startswith("and"):
            base = f"{rng.choice(phrases.COMMON_FLIPS).base} {times}{KEEP if count % 2 else FLIP}"
        if base.startswith("not "):
            base = f"{rng.choice(_DO_NOT)} {base.removeprefix('not ')}"
        if base.startswith(("be ", "only be ")):
            base = f"leave {{o}} alone{KEEP}"
        lead = rng.choice(links.ORDER_LEADS)
        return lead + base

    def _condition(self) -> str:
        rng, side = self.rng, self.rng.randrange(2)
        shape = rng.choice(links.CONDITIONS)
        said = self._finite_plain(any_flip(rng)).replace(FLIP, FLIP_IF[side])
        return f"{shape.format(shapes.SIDES[side])}{self.name()} {said}"

    def _several_times(self) -> str:
        rng = self.rng
        times, count = self._times()
        if rng.random() < 0.2 and times[:3] not in ("and", "but"):
            mark = KEEP if count % 2 else FLIP
            who = "it" if rng.random() < 0.4 else "{O}"
            done = rng.choice(("flipped", "flipped", "turned over", "flipped over", "inverted"))
            by = " by {M}" if rng.random() < 0.3 else ""
            return f"{self._lead(0.3)}{who} {rng.choice(shapes.PASSIVES)} {done}{FLIP} {times}{mark}{by}"
        flip = rng.choice(
            [each for each in phrases.FLIPS[:20] if each.third.endswith(("over" + FLIP, "{o}" + FLIP))]
        )
        mark = FLIP if count % 2 == 0 else KEEP
        return f"{self._lead(0.3)}{self.name()} {self._finite_plain(flip)} {times}{mark}"

    def _times(self) -> tuple[str, int]:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.7:
            count, _, said = rng.choice(links.TIMES if kind < 0.35 else links.OTHER_TIMES).partition(" ")
            return said, int(count)
        place = min(rng.randrange(len(frames.NUMBERS)), rng.randrange(len(frames.NUMBERS)))
        number = frames.NUMBERS[place] if rng.random() < 0.6 else str(place + 2)
        return f"{rng.choice(frames.TIMES_BEFORE)}{number} times{rng.choice(frames.TIMES_AFTER)}", place + 2

    def _finite_plain(self, forms: Forms) -> str:
        return forms.past if self._tense == "past" else forms.third

    def idle_clause(self) -> str:
        rng = self.rng
        who, plural = (
            self._subject()
            if rng.random() < 0.7
            else (f"{rng.choice(_ARTICLES)} {words.noun_phrase(rng)}", False)
        )
        forms = self._verbs.idle() if rng.random() < 0.5 else self._verbs.idle_with_object()
        if rng.random() < 0.2:
            forms = join(forms, rng.choice((" and ", " but ", " and then ")), self._verbs.idle())
        if rng.random() < 0.12:
            forms = negated(forms, rng.random() < 0.5)
        tail = f" {self._verbs.tail()}" if rng.random() < 0.35 else ""
        return self._fill(f"{self._lead(0.3)}{who} {self._finite(forms, who, plural)}{tail}")

    def _clause(self) -> str:
        idle = self._verbs.idle() if self.rng.random() < 0.7 else self._verbs.idle_with_object()
        return f"{{M}} {self._finite_plain(idle)}"

    def _subject(self) -> tuple[str, bool]:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return self.name(), False
        if kind < 0.8:
            who = rng.choice(shapes.PRONOUNS)
            return who, who in shapes.PLURAL
        return (rng.choice(shapes.SUBJECTS), False) if kind < 0.97 else (rng.choice(shapes.PLURAL), True)

    def name(self) -> str:
        return words.draw_name(self.rng)

    def _lead(self, share: float) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind > share:
            return ""
        if kind < share * 0.7:
            return f"{rng.choice(shapes.LEADS)} "
        if kind < share * 0.8:
            return f"{self._verbs.adverb()}, "
        article, mark = rng.choice(("the", "a", "his", "one", "this")), rng.choice((" ", ", "))
        return f"{rng.choice(words.PREPOSITIONS)} {article} {words.noun_phrase(rng)}{mark}"

    def _object(self) -> str:
        kind = self.rng.random()
        if kind < 0.5:
            return "it"
        return f"the {self.coin}" if kind < 0.85 else self._named()

    def _named(self) -> str:
        shape = self.rng.choice(links.NAMED)
        return shape.format(self.coin)

    def _fill(self, text: str) -> str:
        while "{o}" in text:
            text = text.replace("{o}", self._object(), 1)
        text = text.replace("{O}", f"the {self.coin}").replace("{P}", self.rng.choice(links.CITIES))
        return words.fill(text, self.rng)


def idle_clause(rng: random.Random) -> str:
    return CoinGrammar(rng).idle_clause()


def vocabulary() -> list[str]:
    groups = (text.split(" ", 2)[2] for text in links.GROUPS)
    counted = (*links.TIMES, *links.OTHER_TIMES, *links.FLIPS_AS_NOUNS, *groups)
    who = (*shapes.SUBJECTS, *shapes.NOBODY, *shapes.PLURAL, *shapes.PRONOUNS)
    starts = (*shapes.LEADS, *who, *shapes.FLIP_SENTENCES, *(each.base for each in phrases.FLIPS))
    first = [text[:1].upper() + text[1:] for text in (*starts, *words.PREPOSITIONS)]
    return [*phrases.vocabulary(), *shapes.texts, *frames.texts, *first, *counted]

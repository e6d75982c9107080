"""Sentences about a coin. Marks in a sentence say what happens to the coin, where it is decided.

Everything that is done is a verb phrase in all its forms (`Forms`): a flip, what leaves the coin as it
is, a negation, a compound of two. So each of them can stand wherever a verb phrase can.
"""

import random

from holdfast.training.tasks.filler import split_list
from holdfast.training.tasks.wording import coin_shapes as shapes
from holdfast.training.tasks.wording import idle_shapes, words
from holdfast.training.tasks.wording.verbs import Forms, phrase, phrases

FLIP, KEEP = "\x01", "\x02"
TO = ("\x03", "\x04")  # heads, tails is up from here on
START = "\x07"  # the first side is told
FLIP_IF = ("\x05", "\x06")  # a flip if heads, tails is up
MARKS = START + FLIP + KEEP + "".join(TO) + "".join(FLIP_IF)
_NO_MARKS = str.maketrans("", "", MARKS)
_CITIES = ("Paris", "Rome", "Spain", "London", "Japan", "the city", "the village", "the coast")


def _map(forms: Forms, before: str = "", after: str = "") -> Forms:
    return Forms(*(f"{before}{each}{after}" for each in forms))


def _marked(texts: tuple[str, ...], mark: str) -> tuple[Forms, ...]:
    """The mark stands at the bar, or at the end."""
    return tuple(
        phrase(text.replace("|", mark)) if "|" in text else _map(phrase(text), after=mark) for text in texts
    )


def _passive(forms: Forms) -> str | None:
    """The participle without an object, of one verb with the coin right after it."""
    verb, _, rest = forms.participle.partition(" ")
    if not rest.startswith("{o}") or " and " in rest or verb in ("made", "let"):
        return None
    return verb + rest.removeprefix("{o}")


FLIPS, FLIPS_ONLY = _marked(shapes.FLIPS, FLIP), _marked(shapes.FLIPS_ONLY, FLIP)
_COMMON_FLIPS = FLIPS[: shapes.NUM_COMMON]
KEEPS, NOT_DONE = _marked(shapes.KEEPS, KEEP), _marked(shapes.NOT_DONE, KEEP)
ALONE = phrases(idle_shapes.ALONE)
PASSIVES = tuple(text for each in FLIPS if (text := _passive(each)))
_SETS = tuple(
    tuple(_map(phrase(text.replace("|", FLIP).replace("{s}", side)), after=mark) for text in shapes.SETS)
    for side, mark in zip(shapes.SIDES, TO, strict=True)
)


_IDLE_VERBS = split_list(
    "see like buy sell find lose carry bring open close paint wash clean draw read hear remember forget cook break repair"
    " build visit follow help call love need want keep show send hide steal count measure cut burn fill move pull push lift"
    " drop catch throw feed ride drive climb cross enter leave admire describe imagine fix fold hold hang wear watch check"
    " choose collect cover deliver design empty explain fetch guess hit ignore kick kiss lend name note order pack pick plant"
    " play point polish pour print prove reach save search share shake shut sign smell stop study taste tear test tie touch"
    " trade use wrap write"
)
_AND = (" and ", " and ", " and ", " and then ", ", then ", " and at once ", ", and ", " and quickly ")
_OTHER_LINKS = (" and ", " and then ", ", then ", " and later ")
# Somebody else after a flip: + another flip, - none.
_ANOTHER = (
    " and so does {M}+", ", but {M} doesn't-", " and then {M} does the same+", ", and {M} does too+",
    ", {M} does not-", ", {M} too+", " and {M} undoes it+", ", then {M}+", " but {M} refuses-",
)  # fmt: skip
_WISHES = (
    "want to",
    "like to",
    "need to",
    "plan to",
    "hope to",
    "love to",
    "have to",
    "try to",
    "come here to",
)
_ARTICLES = ("the", "a", "my", "her", "one", "this")
_DO_NOT = ("do not", "don't", "please do not", "never")
_LITTLE = ("touch", "move", "change", "approach", "notice", "see", "want", "take", "reach")


def unmarked(text: str) -> str:
    return text.translate(_NO_MARKS)


_FIXED = tuple(
    dict.fromkeys(each[:4] for each in (*shapes.MODALS, "does", "do not", "don't", "did", "never ", "would"))
)


def _join(one: Forms, link: str, other: Forms) -> Forms:
    return Forms(*(f"{a}{link}{b}" for a, b in zip(one, other, strict=True)))


def _negated(forms: Forms, short: bool) -> Forms:
    """ "does not flip it": no flip happens."""
    kept = Forms(*(each.replace(FLIP, KEEP) for each in forms))
    does, do, did = ("doesn't", "don't", "didn't") if short else ("does not", "do not", "did not")
    base = kept.base
    return Forms(
        f"not {base}",
        f"{do} {base}",
        f"{does} {base}",
        f"{did} {base}",
        f"not {kept.participle}",
        f"not {kept.ing}",
    )


class CoinGrammar:
    """Draws sentences of one story: a kind of coin, a tense."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.coin = "coin" if rng.random() < 0.75 else rng.choice(shapes.COINS)
        self._tense = "past" if rng.random() < 0.3 else "third"
        self._is_record = rng.random() < 0.06

    def sentence(self, side: int, last: str) -> str:
        """One sentence with a mark or more, without a period. last: the mark of the event before."""
        kind = self.rng.random()
        if self._is_record and kind < 0.85:
            return self._fill(self._record())
        if kind < 0.04 and last in (FLIP, KEEP):
            text = self._follow(last)
        elif kind < 0.09:
            text = self._passive_sentence()
        elif kind < 0.13:
            text = self._of_nobody()
        elif kind < 0.19:
            text = self._of_people()
        elif kind < 0.24:
            text = self._without_people(side)
        elif kind < 0.29:
            text = self._order()
        elif kind < 0.31:
            text = self._condition()
        elif kind < 0.34:
            text = self._several_times()
        else:
            text = self._plain()
        return self._fill(text)

    def _record(self) -> str:
        """As in a list of turns: "Bob: flip"."""
        rng, link = self.rng, self.rng.choice(shapes.RECORD_LINKS)
        if rng.random() < 0.3:
            done = self._event()
            return f"{self.name()}{link}{done.third}"
        what, mark = (shapes.RECORD_FLIPS, FLIP) if rng.random() < 0.5 else (shapes.RECORD_KEEPS, KEEP)
        return f"{self.name()}{link}{rng.choice(what)}{mark}"

    # Verb phrases.

    def _event(self) -> Forms:
        kind = self.rng.random()
        if kind < 0.5:
            return self._flip()
        return self._set() if kind < 0.55 else self._no_flip()

    def _flip(self) -> Forms:
        return _any_flip(self.rng) if self.rng.random() < 0.95 else self.rng.choice(FLIPS_ONLY)

    def _set(self) -> Forms:
        return self.rng.choice(_SETS[self.rng.randrange(2)])

    def _no_flip(self) -> Forms:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.38:
            return rng.choice(KEEPS)
        flip = _any_flip(rng)
        if kind < 0.60:
            return _negated(flip, rng.random() < 0.5)
        if kind < 0.63:
            return _negated(phrase(f"{rng.choice(_LITTLE)} {{o}}{KEEP}"), rng.random() < 0.5)
        kept = Forms(*(unmarked(each) for each in flip))
        if kind < 0.68:
            return _map(kept, f"{rng.choice(shapes.NEVER)} ", KEEP)
        if kind < 0.73:
            said = f"{rng.choice(shapes.MODALS)} {kept.base}{KEEP}"
            rest = (f"not {kept.participle}{KEEP}", f"not {kept.ing}{KEEP}")
            return Forms(f"not {kept.base}{KEEP}", said, said, said, *rest)
        if kind < 0.79:
            without = rng.choice((" without ", " without ", " instead of ", " rather than ", ", far from "))
            return _map(self._idle(), "", f"{without}{kept.ing}{KEEP}")
        shape = rng.choice(NOT_DONE)
        return Forms(*(each.replace("{b}", kept.base).replace("{g}", kept.ing) for each in shape))

    def _idle(self) -> Forms:
        """What has nothing to do with the coin, without an object that "it" could mean."""
        rng = self.rng
        if rng.random() < 0.85:
            return rng.choice(ALONE)
        verb = rng.choice(words.INVENTED if rng.random() < 0.6 else words.RARE)
        rest = ("", f" {rng.choice(words.PREPOSITIONS)} {{M}}", f" {rng.choice(words.PLACES)}")
        return phrase(verb + rng.choice(rest))

    def _idle_with_object(self) -> Forms:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.2:
            verb = rng.choice(("flip", "turn over", "flip over", "toss", "roll over", "invert", "spin"))
            return phrase(f"{verb} {rng.choice(idle_shapes.FLIPPED)}")
        verb = rng.choice(_IDLE_VERBS) if kind < 0.9 else rng.choice(words.INVENTED)
        article = rng.choice(("the", "the", "a", "his", "her", "some", "every", "that"))
        return phrase(f"{verb} {article} {noun_phrase(rng)}")

    def _compound(self) -> Forms:
        """An event, and often something else before or after it."""
        rng, kind, event = self.rng, self.rng.random(), self._event()
        is_keep = KEEP in event.third
        if kind < 0.45:
            return event
        links: tuple[str, ...]
        if kind < 0.60:
            links = (" but ", " but ", ", but ", " and then ", " and ", " yet ") if is_keep else _AND
            return _join(self._idle(), rng.choice(links), event)
        if kind < 0.70:
            links = (" but ", ", but ", " and ") if is_keep else _AND
            explicit = Forms(*(each.replace("{o}", "{O}") for each in event))
            return _join(self._idle_with_object(), rng.choice(links), explicit)
        if kind < 0.78:
            other = self._idle() if rng.random() < 0.6 else self._idle_with_object()
            return _join(event, rng.choice(_OTHER_LINKS), other)
        if kind < 0.83:
            return _join(event, rng.choice(_OTHER_LINKS), self._event())
        if kind < 0.88 and not is_keep:
            return _join(phrase(f"{rng.choice(_WISHES)} {self._idle().base}"), " and ", event)
        if kind < 0.94 and not is_keep:
            return _map(event, f"{self._adverb()} ")
        return _map(event, "", f" {self._tail()}")

    # Sentences.

    def _plain(self) -> str:
        """A person, a verb phrase, and sometimes a clause around them."""
        rng, kind = self.rng, self.rng.random()
        who, plural = self._subject()
        said = self._finite(self._compound(), who, plural)
        if kind < 0.05:
            return f"{self._lead(0.2)}{who}, who {self._finite(self._idle(), who, plural)}, {said}"
        if kind < 0.10:
            link = rng.choice(("after", "before", "while", "instead of", "by", "without", "after"))
            return f"{link} {self._idle().ing}, {who} {said}"
        if kind < 0.15:
            why = rng.choice(
                (" because ", " while ", " as ", ", since ", " when ", " so that ", ", and ", " after ")
            )
            return f"{self._lead(0.3)}{who} {said}{why}{self._clause()}"
        if kind < 0.19:
            when = rng.choice(
                ("because ", "while ", "when ", "as ", "since ", "as soon as ", "although ", "after ")
            )
            return f"{when}{self._clause()}, {who} {said}"
        if kind < 0.22:
            return f"to {self._idle().base}, {who} {said}"
        if kind < 0.26 and not plural:
            cleft = rng.choice(
                ("it is {} who", "it was {} who", "{} is the one who", "it's {} who", "here comes {}, who")
            )
            return f"{self._lead(0.4)}{cleft.format(who)} {said}"
        if kind < 0.29:
            told = rng.choice(
                (
                    "I see that",
                    "we know that",
                    "it turns out that",
                    "{M} says that",
                    "they say",
                    "{M} sees how",
                )
            )
            return f"{told} {who} {said}"
        return f"{self._lead(0.45)}{who} {said}"

    def _finite(self, forms: Forms, who: str, plural: bool) -> str:
        """The phrase as the verb of a sentence, in the story's tense or now and then another."""
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
        """A short sentence that refers to the one before."""
        rng = self.rng
        if last == KEEP:
            return rng.choice(shapes.NEITHER).replace("|", KEEP)
        if rng.random() < 0.7:
            return rng.choice(shapes.SAME_FLIPS).replace("|", FLIP)
        return f"{rng.choice(('', '', 'but ', 'however, '))}{rng.choice(shapes.NOT_THE_SAME)}".replace(
            "|", KEEP
        )

    def _passive_sentence(self) -> str:
        rng, done = self.rng, self.rng.choice(PASSIVES)
        who = "it" if rng.random() < 0.4 else "{O}"
        adverb = f" {self._adverb()}" if rng.random() < 0.15 else ""
        by = rng.choice(
            ("", "", " by {M}", " by {M}", " by " + rng.choice(shapes.SUBJECTS), f" {self._tail()}")
        )
        if rng.random() < 0.6:
            return f"{self._lead(0.4)}{who} {rng.choice(shapes.PASSIVES)}{adverb} {done}{by}"
        return (
            f"{self._lead(0.4)}{who} {rng.choice(shapes.PASSIVES_NOT)}{adverb} {done.replace(FLIP, KEEP)}{by}"
        )

    def _of_nobody(self) -> str:
        rng = self.rng
        if rng.random() < 0.25:
            who = rng.choice(
                ("everybody", "everyone", "each of them", "all of us", "every guest", "both {N} and {M}")
            )
            kept = rng.choice(KEEPS)
            many = who.startswith(("all", "both"))
            return f"{self._lead(0.4)}{who} {kept.past if self._tense == 'past' else kept.plural if many else kept.third}"
        flip = _any_flip(rng)
        said = (flip.past if self._tense == "past" else flip.third).replace(FLIP, KEEP)
        tail = f" {self._tail()}" if rng.random() < 0.3 else ""
        return f"{self._lead(0.4)}{rng.choice(shapes.NOBODY)} {said}{tail}"

    def _of_people(self) -> str:
        """Two or three people who flip the coin, together or one after the other."""
        rng, kind = self.rng, self.rng.random()
        flip = _any_flip(rng)
        lead = f"{rng.choice(shapes.LEADS)} " if rng.random() < 0.3 else ""
        if kind < 0.5:
            people = [self.name() for _ in range(rng.choice((2, 2, 2, 3, 3, 4)))]
            each = rng.choice(("each", "both", "both") if len(people) == 2 else ("each", "all"))
            mark = FLIP if len(people) % 2 else KEEP
            one_by_one = (
                rng.choice((" once", " one after the other", "", " in turn")) if each == "all" else ""
            )
            said = flip.past if self._tense == "past" else flip.plural
            said = unmarked(said) + (one_by_one or "") + mark
            return f"{lead}{', '.join(people[:-1])} and {people[-1]} {each} {said}"
        first = self._finite(flip, "", False)
        if kind < 0.8:
            link = rng.choice(_ANOTHER).replace("+", FLIP).replace("-", KEEP)
            return f"{lead}{self.name()} {first}{link}"
        link = rng.choice((", ", " and ", ", then ", ", and then ", ", while ", "; "))
        return f"{lead}{self.name()} {first}{link}{self.name()} {self._finite(self._event(), '', False)}"

    def _without_people(self, side: int) -> str:
        rng, kind = self.rng, self.rng.random()
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
        rng, event = self.rng, self._event()
        base = event.base
        if base.startswith("not "):
            base = f"{rng.choice(_DO_NOT)} {base.removeprefix('not ')}"
        if base.startswith(("be ", "only be ")):
            base = f"leave {{o}} alone{KEEP}"
        lead = rng.choice(
            (
                "",
                "",
                "",
                "now ",
                "then ",
                "please ",
                "next, ",
                "and ",
                "again, ",
                "so ",
                "first ",
                "okay, now ",
            )
        )
        return lead + base

    def _condition(self) -> str:
        rng, side = self.rng, self.rng.randrange(2)
        shape = rng.choice(
            (
                "if it is {}, ",
                "if it shows {}, ",
                "if {} is up, ",
                "only if it is {}, ",
                "in case it shows {}, ",
            )
        )
        said = self._finite_plain(_any_flip(rng)).replace(FLIP, FLIP_IF[side])
        return f"{shape.format(shapes.SIDES[side])}{self.name()} {said}"

    def _several_times(self) -> str:
        rng = self.rng
        times, count = rng.choice(shapes.TIMES)
        flip = rng.choice([each for each in FLIPS[:20] if each.third.endswith(("over" + FLIP, "{o}" + FLIP))])
        after = FLIP if count % 2 == 0 else KEEP
        return f"{self._lead(0.3)}{self.name()} {self._finite_plain(flip)} {times}{after}"

    def _finite_plain(self, forms: Forms) -> str:
        return forms.past if self._tense == "past" else forms.third

    def idle_clause(self) -> str:
        rng = self.rng
        who, plural = (
            self._subject() if rng.random() < 0.7 else (f"{rng.choice(_ARTICLES)} {noun_phrase(rng)}", False)
        )
        forms = self._idle() if rng.random() < 0.5 else self._idle_with_object()
        if rng.random() < 0.2:
            forms = _join(forms, rng.choice((" and ", " but ", " and then ")), self._idle())
        if rng.random() < 0.12:
            forms = _negated(forms, rng.random() < 0.5)
        tail = f" {self._tail()}" if rng.random() < 0.35 else ""
        return self._fill(f"{self._lead(0.3)}{who} {self._finite(forms, who, plural)}{tail}")

    # Words.

    def _clause(self) -> str:
        return f"{{M}} {self._finite_plain(self._idle() if self.rng.random() < 0.7 else self._idle_with_object())}"

    def _subject(self) -> tuple[str, bool]:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return self.name(), False
        if kind < 0.8:
            who = rng.choice(shapes.PRONOUNS)
            return who, who in shapes.PLURAL
        return (rng.choice(shapes.SUBJECTS), False) if kind < 0.97 else (rng.choice(shapes.PLURAL), True)

    def name(self) -> str:
        return draw_name(self.rng)

    def _adverb(self) -> str:
        rng = self.rng
        return rng.choice(words.ADVERBS) if rng.random() < 0.8 else f"{rng.choice(words.INVENTED)}ly"

    def _lead(self, share: float) -> str:
        """A first phrase, with the space after it."""
        rng, kind = self.rng, self.rng.random()
        if kind > share:
            return ""
        if kind < share * 0.7:
            return f"{rng.choice(shapes.LEADS)} "
        if kind < share * 0.8:
            return f"{self._adverb()}, "
        article, mark = rng.choice(("the", "a", "his", "one", "this")), rng.choice((" ", ", "))
        return f"{rng.choice(words.PREPOSITIONS)} {article} {noun_phrase(rng)}{mark}"

    def _tail(self) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return rng.choice(shapes.TAILS)
        if kind < 0.8:
            return rng.choice((*words.PLACES, *words.TIMES))
        return f"{rng.choice(words.PREPOSITIONS)} {rng.choice(('the', 'a', 'her'))} {noun_phrase(rng)}"

    def _object(self) -> str:
        kind = self.rng.random()
        if kind < 0.5:
            return "it"
        return f"the {self.coin}" if kind < 0.85 else self._named()

    def _named(self) -> str:
        shape = self.rng.choice(
            ("that {}", "this {}", "the same {}", "our {}", "the {}", "the poor {}", "the thing", "the piece")
        )
        return shape.format(self.coin)

    def _fill(self, text: str) -> str:
        """Names and the coin in their places."""
        while "{o}" in text:
            text = text.replace("{o}", self._object(), 1)
        while "{M}" in text:
            text = text.replace("{M}", self.name(), 1)
        return (
            text.replace("{O}", f"the {self.coin}")
            .replace("{N}", self.name())
            .replace("{P}", self.rng.choice(_CITIES))
        )


def _any_flip(rng: random.Random) -> Forms:
    """The most common words for it in a third of the cases."""
    return rng.choice(_COMMON_FLIPS if rng.random() < 0.33 else FLIPS)


def idle_clause(rng: random.Random) -> str:
    """A sentence without the coin: a person or a thing, and what it does."""
    return CoinGrammar(rng).idle_clause()


def draw_name(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(words.NAMES)
    return rng.choice(words.INVENTED).capitalize() if kind < 0.95 else rng.choice(words.RARE).capitalize()


def noun_phrase(rng: random.Random) -> str:
    kind = rng.random()
    noun = rng.choice(
        words.NOUNS
        if kind < 0.7
        else words.COMMON
        if kind < 0.85
        else words.RARE
        if kind < 0.95
        else words.INVENTED
    )
    return f"{rng.choice(words.ADJECTIVES)} {noun}" if rng.random() < 0.4 else noun


def vocabulary() -> list[str]:
    """Texts with all words of the sentences."""
    told = [
        unmarked(each)
        for forms in (*FLIPS, *FLIPS_ONLY, *KEEPS, *NOT_DONE, *ALONE)
        for each in forms[:4] + forms[5:]
    ]
    sets = [unmarked(each) for per_side in _SETS for forms in per_side for each in forms]
    lists = [value for value in vars(shapes).values() if isinstance(value, tuple)]
    shown = [text for each in lists for text in each if isinstance(text, str)]
    starts = (
        shapes.LEADS,
        shapes.SUBJECTS,
        shapes.NOBODY,
        shapes.FLIP_SENTENCES,
        shapes.PLURAL,
        shapes.PRONOUNS,
    )
    first = [text[:1].upper() + text[1:] for each in starts for text in each]
    first += [each.base.capitalize() for each in FLIPS] + [text.capitalize() for text in words.PREPOSITIONS]
    return [
        *told,
        *sets,
        *shown,
        *first,
        *(times for times, _ in shapes.TIMES),
        *_IDLE_VERBS,
        *_AND,
        *_WISHES,
        *_LITTLE,
    ]

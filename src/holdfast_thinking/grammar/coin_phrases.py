"""What is done to a coin, or not, as verb phrases in all their forms (`Forms`).

A flip, what leaves the coin as it is, a negation, a compound of two: each can stand wherever a verb
phrase can. Marks say what happens to the coin, where it is decided.
"""

import random

from holdfast_thinking.data.words import read_words
from holdfast_thinking.grammar import words
from holdfast_thinking.grammar.verbs import Forms, inflect, phrase, phrases

frames, shapes, idle = read_words("coin_frames"), read_words("coin_shapes"), read_words("idle")
FLIP, KEEP = "\x01", "\x02"
TO = ("\x03", "\x04")  # heads, tails is up from here on
START = "\x07"  # the first side is told
FLIP_IF = ("\x05", "\x06")  # a flip if heads, tails is up
MARKS = START + FLIP + KEEP + "".join(TO) + "".join(FLIP_IF)
_NO_MARKS = str.maketrans("", "", MARKS)


def unmarked(text: str) -> str:
    return text.translate(_NO_MARKS)


def mapped(forms: Forms, before: str = "", after: str = "") -> Forms:
    return Forms(*(f"{before}{each}{after}" for each in forms))


def _marked(texts: tuple[str, ...], mark: str) -> tuple[Forms, ...]:
    """The mark stands at the bar, or at the end."""
    return tuple(
        phrase(text.replace("|", mark)) if "|" in text else mapped(phrase(text), after=mark) for text in texts
    )


def _passive(forms: Forms) -> str | None:
    """Return the participle without an object, of one verb with the coin right after it."""
    verb, _, rest = forms.participle.partition(" ")
    if not rest.startswith("{o}") or " and " in rest or verb in ("made", "let"):
        return None
    return verb + rest.removeprefix("{o}")


FLIPS, FLIPS_ONLY = _marked(shapes.FLIPS, FLIP), _marked(shapes.FLIPS_ONLY, FLIP)
COMMON_FLIPS = FLIPS[:5]
BARE_FLIP = inflect("flip")
KEEPS, NOT_DONE = _marked(shapes.KEEPS, KEEP), _marked(shapes.NOT_DONE, KEEP)
ALONE = phrases(idle.ALONE)
DONE, FIRST = phrases(frames.DONE), phrases(frames.FIRST)
MEANT, LET_DOWN = phrases(frames.MEANT), phrases(frames.LET_DOWN)
_SET = (
    *(f"{like} {done}" for like in shapes.LIKING for done in shapes.LIKED),
    *(f"{verb} {{o}} {end}" for verb in shapes.LAYING for end in shapes.LAID),
    *(f"{verb} {{o}} {end}" for verb in shapes.TURNING for end in shapes.TURNED),
    *shapes.SETS,
)
PASSIVES = tuple(text for each in FLIPS if (text := _passive(each)))
SETS = tuple(
    tuple(mapped(phrase(text.replace("|", FLIP).replace("{s}", side)), after=mark) for text in _SET)
    for side, mark in zip(shapes.SIDES, TO, strict=True)
)


IDLE_VERBS = read_words("idle_verbs").VERBS
AND = (" and ", " and ", " and ", " and then ", ", then ", " and at once ", ", and ", " and quickly ")
_OTHER_LINKS = (" and ", " and then ", ", then ", " and later ")
WISHES = tuple(
    f"{verb} to" for verb in ("want", "like", "need", "plan", "hope", "love", "have", "try", "come here")
)
LITTLE = ("touch", "move", "change", "approach", "notice", "see", "want", "take", "reach")


def join(one: Forms, link: str, other: Forms) -> Forms:
    return Forms(*(f"{a}{link}{b}" for a, b in zip(one, other, strict=True)))


def negated(forms: Forms, short: bool) -> Forms:
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


class VerbPhrases:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def event(self) -> Forms:
        kind = self.rng.random()
        if kind < 0.5:
            return self.flip()
        return self.set() if kind < 0.58 else self.no_flip()

    def flip(self) -> Forms:
        rng, kind = self.rng, self.rng.random()
        flip = any_flip(rng)
        if kind < 0.8:
            return flip
        if kind < 0.84:
            return rng.choice(FLIPS_ONLY)
        if kind < 0.89:
            return join(rng.choice(FIRST), " and ", flip)
        shape = rng.choice(DONE)
        if " and " in shape.base and "{b} and" in shape.base:  # decided by the last word
            return mapped(Forms(*(each.replace("{b}", unmarked(flip.base)) for each in shape)), after=FLIP)
        return Forms(*(each.replace("{b}", flip.base).replace("{g}", flip.ing) for each in shape))

    def set(self) -> Forms:
        return self.rng.choice(SETS[self.rng.randrange(2)])

    def no_flip(self) -> Forms:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.38:
            return rng.choice(KEEPS)
        flip = any_flip(rng)
        if kind < 0.60:
            return negated(flip, rng.random() < 0.5)
        if kind < 0.63:
            return negated(phrase(f"{rng.choice(LITTLE)} {{o}}{KEEP}"), rng.random() < 0.5)
        kept = Forms(*(unmarked(each) for each in flip))
        if kind < 0.68:
            return mapped(kept, f"{rng.choice(shapes.NEVER)} ", KEEP)
        if kind < 0.73:
            said = f"{rng.choice(shapes.MODALS)} {kept.base}{KEEP}"
            rest = (f"not {kept.participle}{KEEP}", f"not {kept.ing}{KEEP}")
            return Forms(f"not {kept.base}{KEEP}", said, said, said, *rest)
        if kind < 0.79:
            without = rng.choice((" without ", " without ", " instead of ", " rather than ", ", far from "))
            return mapped(self.idle(), "", f"{without}{kept.ing}{KEEP}")
        if kind < 0.88:
            meant, end = rng.choice(MEANT), rng.choice(LET_DOWN)
            link = "" if end.base.startswith(",") else " "
            told = mapped(join(meant, link, end), after=KEEP)
            return Forms(*(each.replace("{b}", kept.base).replace("{g}", kept.ing) for each in told))
        shape = rng.choice(NOT_DONE)
        return Forms(*(each.replace("{b}", kept.base).replace("{g}", kept.ing) for each in shape))

    def idle(self) -> Forms:
        """Return what has nothing to do with the coin, without an object that "it" could mean."""
        rng = self.rng
        if rng.random() < 0.85:
            return rng.choice(ALONE)
        verb = rng.choice(words.INVENTED if rng.random() < 0.6 else words.RARE)
        rest = ("", f" {rng.choice(words.PREPOSITIONS)} {{M}}", f" {rng.choice(words.PLACES)}")
        return phrase(verb + rng.choice(rest))

    def idle_with_object(self) -> Forms:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.2:
            verb = rng.choice(("flip", "turn over", "flip over", "toss", "roll over", "invert", "spin"))
            return phrase(f"{verb} {rng.choice(idle.FLIPPED)}")
        verb = rng.choice(IDLE_VERBS) if kind < 0.9 else rng.choice(words.INVENTED)
        article = rng.choice(("the", "the", "a", "his", "her", "some", "every", "that"))
        return phrase(f"{verb} {article} {words.noun_phrase(rng)}")

    def compound(self) -> Forms:
        """Return an event, and often something else before or after it."""
        rng, kind, event = self.rng, self.rng.random(), self.event()
        is_keep = KEEP in event.third
        if kind < 0.45:
            return event
        links: tuple[str, ...]
        if kind < 0.60:
            links = (" but ", " but ", ", but ", " and then ", " and ", " yet ") if is_keep else AND
            return join(self.idle(), rng.choice(links), event)
        if kind < 0.70:
            links = (" but ", ", but ", " and ") if is_keep else AND
            explicit = Forms(*(each.replace("{o}", "{O}") for each in event))
            return join(self.idle_with_object(), rng.choice(links), explicit)
        if kind < 0.75:
            other = self.idle() if rng.random() < 0.6 else self.idle_with_object()
            return join(event, rng.choice(_OTHER_LINKS), other)
        if kind < 0.83:
            return join(event, rng.choice(_OTHER_LINKS), self.event())
        if kind < 0.88 and not is_keep:
            return join(phrase(f"{rng.choice(WISHES)} {self.idle().base}"), " and ", event)
        if kind < 0.94 and not is_keep:
            return mapped(event, f"{self.adverb()} ")
        return mapped(event, "", f" {self.tail()}")

    def adverb(self) -> str:
        rng = self.rng
        return rng.choice(words.ADVERBS) if rng.random() < 0.8 else f"{rng.choice(words.INVENTED)}ly"

    def tail(self) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return rng.choice(shapes.TAILS)
        if kind < 0.8:
            return rng.choice((*words.PLACES, *words.TIMES))
        return f"{rng.choice(words.PREPOSITIONS)} {rng.choice(('the', 'a', 'her'))} {words.noun_phrase(rng)}"


def any_flip(rng: random.Random) -> Forms:
    return rng.choice(COMMON_FLIPS if rng.random() < 0.33 else FLIPS)


def vocabulary() -> list[str]:
    done = (*FLIPS, *FLIPS_ONLY, *KEEPS, *NOT_DONE, *ALONE, *DONE, *FIRST, *MEANT, *LET_DOWN)
    told = [unmarked(each) for forms in done for each in forms[:4] + forms[5:]]
    sets = [unmarked(each) for per_side in SETS for forms in per_side for each in forms]
    return [*told, *sets, *IDLE_VERBS, *AND, *WISHES, *LITTLE]

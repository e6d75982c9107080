"""First sentences about a coin, composed of parts: what comes before, the coin, where it is, its side.

Every shape has {c}: the coin with its article, {C} with a capital letter; {s}: the side that is up, {x}:
the other one; {N}: people.
"""

import random

from holdfast_thinking.grammar import words
from holdfast_thinking.grammar.coin_shapes import STARTS
from holdfast_thinking.grammar.verbs import phrases
from holdfast_thinking.tasks.filler import split_list

INTROS = split_list(
    "ok so|so|picture this:|here's the situation:|setup:|basically|alright,|well,|story time:|remember:|you"
    " should know that|as you can see,|it so happens that|when we begin,|when the story opens,|one"
    " evening|last night|on Monday|this is how it begins:|first of all,|for a start,|fact:|hear me out,|to set"
    " the scene,|at the outset,|before anything happens,|before anyone moves,|just so you know,|for the"
    " record,|i think you know this one:|everybody can see that|{N} tells us that|{N} notes that|we see that|at"
    " this moment|for now|once again,|it is a {a} day and|in a {a} room|beginning of the game:|start of the"
    " round:|hi,|look:|ok,|ok|now,",
    "|",
)
ASIDES = split_list(
    ", which is {a},|, which is {a} and {b},|, a gift from {N},|, {a} and {b},|, which {N} found,|, made of"
    " {n},|, the one from the {n},| that belongs to {N}| of {N}'s| from the {n}| with a {n} on it|, my last one,|,"
    " as {a} as ever,| (a {a} one)|, as always,| in question",
    "|",
)
STATES = split_list(
    "lies,sits,rests,is,is lying,is resting,is sitting,has been placed,has been put,was put,has been left,was"
    " left,waits,can be found,is found,is seen,lay,sat,was,was lying,was resting,had been put,had come to"
    " rest,came to rest,lies still,has fallen,fell,stays,starts out,started out,began,is waiting,has just landed,"
    "landed,is kept",
    ",",
)
PUTS = phrases(
    split_list(
        "put {c},put {c} down,lay {c},lay {c} down,place {c},set {c} down,drop {c},leave {c},have {c},keep {c},find"
        " {c},see {c},hold {c},show us {c},own {c},spot {c},bring {c},throw {c},take out {c},pull out {c}",
        ",",
    )
)
SPOTS = split_list(
    "on the table,on the floor,on a desk,on the ground,on the counter,on the carpet,on a plate,on a book,on the"
    " shelf,on the bar,on the bench,on the grass,on a chair,on the windowsill,on a tray,in the sand,in the palm of a"
    " hand,between us,between {N} and {M},in front of us,in front of {N},next to the {n},near the {n},on the {a}"
    " {n},under the {n},beside a {n}",
    ",",
)
SHOWN = split_list(
    "{s} up,{s} side up,{s} on top,{s} facing up,{s} showing,{s} visible,the {s} side up,its {s} side up,{s}"
    " upward,{s} face up,the {s} side facing us,the {s} side visible,{s} in view,{s} up top,{s} looking up,{s} facing"
    " the sky,its {s} face up,the {s} face showing,{s} uppermost,{x} facing down,{x} down,{x} on the bottom,{x}"
    " underneath,the {x} side down,{x} against the table,{x} hidden,its {x} side down,{x} face down,{x} facing the"
    " table,{x} at the bottom,{x} out of sight",
    ",",
)
BESIDE = split_list(
    "showing {s}|displaying {s}|with {s} up|so that {s} is up|and {s} is up|and it shows {s}|so you see {s}|so that"
    " {s} can be seen|and we can see {s}|so we are looking at {s}|and the side you see is {s}|and its upper side is"
    " {s}|and what you see is {s}|and it says {s}|and it is {s}|and {x} is down|and {x} is facing the table|so that"
    " {x} is hidden|and {x} touches the table|and you cannot see {x}|and the side on top is {s}|and the face we see is"
    " {s}|and the bottom side is {x}|on its {x} side|with nothing but {s} to be seen",
    "|",
)
TERSE = split_list(
    "{s}|{s} up|coin {s}|coin: {s}|{s} coin|start {s}|starts {s}|begin: {s}|currently {s}|its {s}|{s} first|{s}"
    " showing|{s} face up|({s})|coin={s}|coin is {s}|start = {s}|coin shows {s}|coin starts {s}|coin at {s}|now:"
    " {s}|side: {s}|up: {s}|top: {s}|bottom: {x}|down: {x}|{x} is down|{x} side down|there's {s}|i have"
    " {s}|i got {s}|say {s}|from {s}|{s} to start|{s} to start with|beginning with {s}|starting from {s}|starting at"
    " {s}|coin on {s}|coin lying {s} up|coin facing {s}|coin, {s} up|one coin, {s}|it shows {s}|showing {s}|{c} on"
    " {s}|{c} {s} up|{c}, {s}|{c} - {s}|position: {s}|face: {s}|initial: {s}|init {s}|state = {s}",
    "|",
)
# The side in a clause of its own: after a condition, after what somebody took care of, at the start of a story.
LOOKS = split_list(
    "if you look at it,if you bend over it,if somebody checks,if we check,if you come closer,when you look from above,when"
    " {N} glances at it,if {N} peeks,for anyone who looks,to whoever cares,when the light is on,if you care to know",
    ",",
)
SEEN = split_list(
    "you see {s}|you find {s}|there is {s}|it is {s}|what you get is {s}|{s} is there|{s} looks back at you|you will notice"
    " {s}|the word is {s}|it says {s}|{s} meets the eye|the answer is {s}|you only see {s}|it would be {s}|it must be {s}",
    "|",
)
CARE = split_list(
    "making sure that,taking care that,seeing to it that,such that,in such a way that,with the result that,knowing that,so"
    " it happens that,and {N} sees to it that,and we agree that,and by chance,and as luck has it,after which,which means"
    " that,careful that",
    ",",
)
CLAUSES = split_list(
    "{s} is up|{s} shows|{s} looks at us|{s} was visible|{s} points to the sky|{s} was the upper side|{x} touches the"
    " ground|we see {s}|{s} came out on top|{s} faces us|{s} is what everybody sees|{s} greets the visitor|{s} could be"
    " read|{s} lay on top|{s} is turned to the lamp|the {s} side looks up|the {s} side was ours to see|{x} cannot be"
    " seen|nobody sees {x}|{s} catches the light|it showed {s}|it is {s}",
    "|",
)
OPENS = split_list(
    "begins,starts,opens,enters,joins,comes into,is introduced to,appears in,takes part in,is part of", ","
)
STORIES = split_list(
    "the story,the game,this riddle,our tale,the day,the experiment,this exercise,the scene,our test,the {a} {n},this"
    " problem,the round,the show,the match",
    ",",
)


def draw_start(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(STARTS)
    if kind < 0.42:
        return f"{_intro(rng, 0.2)}{rng.choice(TERSE)}"
    if kind < 0.46:
        return _among_words(rng)
    spot = f" {rng.choice(SPOTS)}" if rng.random() < 0.7 else ""
    if kind < 0.85:
        intro = _intro(rng, 0.4)
        coin = "{c}" if intro else "{C}"
        aside = after(rng.choice(ASIDES)) if rng.random() < 0.25 else ""
        does = (
            f"{rng.choice(OPENS)} {rng.choice(STORIES)}" if rng.random() < 0.15 else rng.choice(STATES) + spot
        )
        told = f"{intro}{coin}{aside} {does}{_side(rng)}"
    else:
        who, put = (
            ("{N}", "third") if rng.random() < 0.7 else (rng.choice(("I", "we", "you", "they")), "plural")
        )
        forms = rng.choice(PUTS)
        said = forms.past if rng.random() < 0.4 else forms.third if put == "third" else forms.plural
        told = f"{_intro(rng, 0.3)}{who} {said}{spot}{_side(rng)}"
    return told


def after(text: str) -> str:
    """With a space before it, unless a mark is its start."""
    return text if text[0] in ",." else f" {text}"


def _intro(rng: random.Random, share: float) -> str:
    return f"{rng.choice(INTROS)} " if rng.random() < share else ""


def _among_words(rng: random.Random) -> str:
    """A coin and a side, and any words around them: whatever else is said, the side is told."""

    def some() -> str:
        return " ".join(words.noun_phrase(rng) for _ in range(rng.randint(1, 4)))

    tail = f" {some()}" if rng.random() < 0.5 else ""
    return f"{_intro(rng, 0.3)}{some()} {{c}} {some()} {rng.choice(('{s}', 'the {s} side', '{s} up'))}{tail}"


def _side(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return f"{rng.choice((', ', ' with ', ', with ', ' '))}{rng.choice(SHOWN)}"
    if kind < 0.6:
        link = rng.choice((", and ", " and ", ", so ", "; ", " - "))
        return f"{link}{rng.choice(LOOKS)}{rng.choice((' ', ', '))}{rng.choice(SEEN)}"
    if kind < 0.75:
        return f"{rng.choice((', ', ' '))}{rng.choice(CARE)} {rng.choice(CLAUSES)}"
    return f"{rng.choice((', ', ' '))}{rng.choice(BESIDE)}"


def vocabulary() -> list[str]:
    put = [each for forms in PUTS for each in forms[1:4]]
    first = [text[0].upper() + text[1:] for text in (*INTROS, *TERSE)]
    clauses = (*LOOKS, *SEEN, *CARE, *CLAUSES, *OPENS, *STORIES)
    return [*INTROS, *ASIDES, *STATES, *put, *SPOTS, *SHOWN, *BESIDE, *TERSE, *clauses, *first]

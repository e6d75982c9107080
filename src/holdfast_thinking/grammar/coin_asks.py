"""Questions about the side of a coin, composed of parts: a frame, which side is meant, when.

A question has a form without a question mark, in small letters at its start.
"""

import random

from holdfast_thinking.grammar import coin_shapes as shapes
from holdfast_thinking.tasks.filler import split_list

UP = split_list(
    "up,on top,showing,visible,facing up,face up,facing us,looking up,in view,at the top,on display,the upper"
    " one,pointing up,to be seen,the visible one,upwards",
    ",",
)
DOWN = split_list(
    "down,face down,facing down,on the bottom,underneath,hidden,at the bottom,facing the table,touching the table,out"
    " of sight,on the underside,not visible,not showing,pointing down,below,the hidden one",
    ",",
)
SIDE_NOUNS = split_list(
    "side,side,side,side,face,one,side of the coin,side of it,face of the coin,of the sides,of its faces,part",
    ",",
)
BE = split_list("is,is,is,is,is now,ends up,would be,will be,was,has ended up,is currently,must be", ",")
TAILS = split_list(
    "now|now|at the end|in the end|after all this|after that|at this point|finally|by now|at last|when they are"
    " done|once everybody is done|after the last move|then|after these steps|after all these moves|as of now|once it is"
    " over|after everything|at the finish|currently|when all is said and done|today|in this case|after this|this time",
    "|",
)
FRAMES = split_list(
    "can you tell me|do you know|could you please say|any idea|tell me|please tell me|i want to know|i wonder|i would"
    " like to know|guess|let me know|say|who can tell me|try to work out|work out|figure out|determine|find out|now"
    " say|the question is|what i want to know is|please say|do you see|can you see|can you say|would you tell me|could"
    " you work out|i'd like to know|can you guess|{N} asks|{N} wants to know|my question is|write down|answer me:",
    "|",
)
INDIRECT = split_list(
    "what it shows|what the coin shows|whether it is heads or tails|if it's heads or tails|how it lies|how the coin"
    " lies|what the coin is showing|what it is|what is on top|what's up|if heads or tails is up|what you see|what we"
    " see on the coin|the side|the side of the coin|the final side|the current state|what it says|what the top side"
    " is|what state the coin is in|what we are looking at|the side it is on|how it ends up|what the coin ended up as",
    "|",
)
DIRECT = split_list(
    "heads or tails|tails or heads|is it heads or tails|is the coin heads or tails|what does it show|what does the coin"
    " show|what would it show|what is it showing|what's it showing|what is it|what's the coin|what is the coin|what"
    " am i looking at|what are we looking at|what do you see|what would you see|what do we see on top|what can i see|how"
    " is it lying|how does it lie|how is the coin|what has it become|what did it end up as|what did the coin end up"
    " on|which is it|which one is it|what's the result|what's the side|what is the state|what's the status|what is"
    " the current side|final side|current side|coin state|state of the coin|top side|end result|result|the answer|what"
    " does it say|what do i get|what do we have|so what is it|where are we|what is its side|is heads or tails"
    " up|does it show heads or tails|did it end up heads or tails|will it be heads or tails|which side did it end up"
    " on|which side does it land on|which side is it on|what side am i looking at|which side do we see|which side"
    " could you see",
    "|",
)
STATEMENTS = split_list(
    "it is {s}|it's {s}|it is {s} up|it's {s} up|the coin is {s}|the coin is {s} up|the coin shows {s}|it shows {s}|{s}"
    " is up|{s} is on top|{s} is showing|{s} is facing up|{s} is visible|it ended up {s}|it ends up on {s}|the coin is"
    " on {s}|we see {s}|the side is {s}|the answer is {s}|the top side is {s}|it must be {s}|the {s} side is up|it"
    " landed {s} up|it will show {s}|the coin is still {s}",
    "|",
)
AGREED = split_list(
    "do you agree that|would you say|would you say that|is it right that|is it fair to say that|am i correct that|do"
    " you believe|do you believe that|is it the case that|can i say that|can we say that|do you think that|is it so"
    " that|does that mean|does this mean that|so does that mean|am i right in thinking that|is it safe to say that|"
    "should i believe that|would you bet that|do you see that|true or false:|yes or no:|is it possible that|can i be"
    " sure that",
    "|",
)
SAID = split_list(
    "i think|i guess|i bet|i believe|i say|i'd say|i suppose|i assume|so|and so|{N} thinks|{N} says|{N} claims|they"
    " say|my guess is that|it seems|surely|then|now|everybody thinks|people say that|i am sure|i'm sure that",
    "|",
)
TAGS = split_list(
    "right|yes|yes or no|no|am i right|is that so|true|true or false|isn't it|is that right|is that true|agreed|do you"
    " agree|what do you say|is this the case|or not|or am i wrong|okay|yeah|is that it",
    "|",
)
INVERTED = split_list(
    "is it {s}|is it {s} up|is the coin {s}|is {s} up|is {s} on top|is {s} facing up|is {s} showing|does it show {s}|does"
    " the coin show {s}|did it end up {s}|did it end up on {s}|did the coin end up {s} up|will it be {s}|will it show"
    " {s}|would it be {s}|has it become {s}|can i see {s}|can you see {s}|do you see {s}|is the side {s}|is the answer"
    " {s}|is it showing {s}|is the {s} side up|is the {s} side visible|was it {s}|is it still {s}|is it back to {s}|is"
    " {s} back up|are we on {s}|are we back to {s}|have we got {s}|do i get {s}|does it say {s}|is it on {s}|{s}|{s}"
    " up|still {s}|is {s} the upper side|does it land on {s}|is it lying {s} up|could i see {s}|should it be {s}",
    "|",
)
ENDS = ("?",) * 12 + ("", "", "??", "???", ".", "?!", " ?", "!")


def draw_side_question(rng: random.Random, down: bool) -> str:
    """Which side is up, or down."""
    kind = rng.random()
    if down:
        return rng.choice(shapes.ASKS_DOWN) if kind < 0.4 else _ended(_which(rng, DOWN, kind < 0.6), rng)
    if kind < 0.45:
        return rng.choice(shapes.ASKS)
    if kind < 0.65:
        return _ended(_timed(rng.choice(DIRECT), rng), rng)
    if kind < 0.75:
        return _ended(_timed(f"{rng.choice(FRAMES)} {rng.choice(INDIRECT)}", rng), rng)
    return _ended(_which(rng, UP, kind < 0.83), rng)


def draw_yes_no(rng: random.Random, down: bool) -> str:
    """A question about {s}: whether it is up, or down."""
    kind = rng.random()
    if down:
        shape = rng.choice(
            ("is {{s}} {}", "is the {{s}} side {}", "do you agree that {{s}} is {}", "is {{s}} now {}")
        )
        return _ended(shape.format(rng.choice(DOWN[:12])), rng)
    if kind < 0.45:
        return rng.choice(shapes.YES_NO)
    if kind < 0.7:
        return _ended(_timed(rng.choice(INVERTED), rng), rng)
    statement = _timed(rng.choice(STATEMENTS), rng)
    if kind < 0.85:
        return _ended(f"{rng.choice(AGREED)} {statement}", rng)
    said = f"{rng.choice(SAID)} " if rng.random() < 0.8 else ""
    return _ended(f"{said}{statement}{rng.choice((', ', ', ', '. ', ' - ', ' '))}{rng.choice(TAGS)}", rng)


def _which(rng: random.Random, where: tuple[str, ...], framed: bool) -> str:
    kind = rng.random()
    if kind < 0.7:
        asked = f"{rng.choice(('which', 'which', 'what'))} {rng.choice(SIDE_NOUNS)} {rng.choice(BE)} {rng.choice(where)}"
    else:
        asked = f"what {rng.choice(BE)} {rng.choice(where)}"
    asked = _timed(asked, rng)
    return f"{rng.choice(FRAMES)} {asked}" if framed else asked


def _timed(text: str, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return text
    when = rng.choice(TAILS)
    return f"{text} {when}" if kind < 0.85 else f"{when}{rng.choice((',', ''))} {text}"


def _ended(text: str, rng: random.Random) -> str:
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:] if text[0] != "{" else text.replace("{s}", "{S}", 1)
    return text + rng.choice(ENDS)


def vocabulary() -> list[str]:
    lists = [value for value in globals().values() if isinstance(value, tuple)]
    said = [text for each in lists for text in each]
    return [*said, *(text[:1].upper() + text[1:] for text in said)]

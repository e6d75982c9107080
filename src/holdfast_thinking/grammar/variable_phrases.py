"""Statements and questions about variables, composed of parts: who does it, a verb in a tense, by how much.

{v}: the variable; {n}: a number or another variable; {a}: another variable; {N}: a person.
"""

import random

from holdfast_thinking.grammar import variable_shapes as shapes
from holdfast_thinking.grammar.verbs import Forms, phrases
from holdfast_thinking.tasks.filler import split_list

# Verbs with the variable as their object, with the variable as their subject, and what it is then.
RAISE = phrases(
    split_list(
        "add {n} to {v}|increase {v} by {n}|raise {v} by {n}|boost {v} by {n}|bump {v} up by {n}|lift {v} by"
        " {n}|put {n}"
        " more in {v}|give {v} {n} more|make {v} grow by {n}|move {v} up by {n}|push {v} up by {n}|count {v} up by"
        " {n}|extend {v} by {n}|enlarge {v} by {n}|bring {v} up by {n}|drop {n} more into {v}|pour {n} into"
        " {v}|hand {n}"
        " to {v}|top {v} up by {n}|load {n} onto {v}|stick {n} more on {v}|tack {n} onto {v}|heap {n} onto {v}|toss {n} more"
        " into {v}|chuck {n} into {v}|push {v} {n} higher|send {v} up {n}|make {v} {n} bigger|make {v} {n}"
        " larger|pump {v} up by {n}|nudge {v} up by {n}",
        "|",
    )
)
LOWER = phrases(
    split_list(
        "subtract {n} from {v}|decrease {v} by {n}|lower {v} by {n}|reduce {v} by {n}|take {n} from {v}|take {n} off"
        " {v}|remove {n} from {v}|cut {v} by {n}|cut {n} from {v}|make {v} shrink by {n}|move {v} down by"
        " {n}|push {v} down"
        " by {n}|count {v} down by {n}|deduct {n} from {v}|bring {v} down by {n}|drop {v} by {n}|steal {n} from"
        " {v}|pull"
        " {n} out of {v}|diminish {v} by {n}|shave {n} off {v}|take {n} out of {v}|chop {n} off {v}|strip {n} from"
        " {v}|snip {n} off {v}|scrape {n} off {v}|bump {v} down by {n}|send {v} down {n}|make {v} {n} smaller|make {v} {n}"
        " lower|trim {v} by {n}|nudge {v} down by {n}|push {v} {n} lower|carve {n} out of {v}",
        "|",
    )
)
RISE = phrases(
    split_list(
        "rise by {n}|grow by {n}|climb by {n}|increase by {n}|jump by {n}|go up by {n}|gain {n}|get {n} more|swell by"
        " {n}|move up by {n}|rise {n}|climb {n}|receive {n}|win {n}|collect {n} more|pick up {n}|earn"
        " {n}|improve by {n}|tick up by {n}|go up {n}|move up {n}|jump up {n}|step up {n}|shoot up by {n}|expand by {n}",
        "|",
    )
)
FALL = phrases(
    split_list(
        "fall by {n}|shrink by {n}|drop by {n}|decrease by {n}|go down by {n}|lose {n}|sink by {n}|decline by"
        " {n}|move down"
        " by {n}|drop {n}|fall {n}|give up {n}|give away {n}|pay {n}|spend {n}|slip by {n}|dip by {n}|get {n} less|tick"
        " down by {n}|go down {n}|move down {n}|step down {n}|shed {n}|tumble by {n}|come down by {n}|contract by {n}",
        "|",
    )
)
BECOME_SO = phrases(("become", "get", "turn", "grow"))
LARGER = ("bigger", "larger", "higher", "greater")
SMALLER = ("smaller", "lower", "lighter", "shorter")
PUT = phrases(
    split_list(
        "set {v} to {n}|put {n} into {v}|make {v} {n}|change {v} to {n}|assign {n} to {v}|store {n} in {v}|write"
        " {n} into"
        " {v}|fix {v} at {n}|reset {v} to {n}|overwrite {v} with {n}|replace {v} with {n}|let {v} be {n}|turn {v} into"
        " {n}|give {v} the value {n}|update {v} to {n}|save {n} as {v}|load {n} into {v}",
        "|",
    )
)
BECOME = split_list(
    "{v} is {n} now|from now on {v} is {n}|{v} ends up at {n}|{v} has become {n}|{v} becomes {n} now|{v} changed"
    " to {n}|{v}"
    " changes to {n}|{v} was set to {n}|{v} has been set to {n}|{v} gets set to {n}|{v} shall be {n}|{v} is"
    " equal to {n}|{v}"
    " now equals {n}|{v} now is {n}|{v} goes to {n}|{v} jumps to {n}|new value of {v}: {n}|{v} -> {n}|{v} <-"
    " {n}|{v}: {n}|the"
    " new {v} is {n}|{v} holds {n} now|whatever {v} was, it is {n} now|forget the old {v}, it is {n}",
    "|",
)
MORE = split_list(
    "{v} is {n} higher|{v} is now {n} larger|{v} is {n} greater than before|{v} becomes {n} larger|{v} is {n}"
    " more than it"
    " was|there is {n} more in {v}|{v} turns {n} higher|plus {n} for {v}|{n} more for {v}|+{n} for {v}|{v} + {n} ->"
    " {v}|{v}: +{n}|{v} +{n}|{n} is put on top of {v}|the new {v} is the old {v} plus {n}|{v} plus {n} becomes {v}|{v} and"
    " {n} more make the new {v}|{v} with {n} added is {v} from now on|{v} up {n}|{v} up by {n}|{v} is up {n}|another {n} for"
    " {v}|an extra {n} goes to {v}|{n} extra in {v}",
    "|",
)
LESS = split_list(
    "{v} is {n} lower|{v} is now {n} less|{v} is {n} smaller than before|{v} becomes {n} lower|{v} is {n} less than it"
    " was|there is {n} less in {v}|{v} turns {n} lower|minus {n} for {v}|{n} less for {v}|-{n} for {v}|{v} - {n}"
    " -> {v}|{v}:"
    " -{n}|{v} -{n}|{n} is gone from {v}|the new {v} is the old {v} minus {n}|{v} minus {n} becomes {v}|{v} without {n} is"
    " {v} from now on|{v} down {n}|{v} down by {n}|{v} is down {n}|{n} fewer in {v}|{v} is {n} short now|{n} of {v} is lost",
    "|",
)
# Of another variable: {a} plus or minus a number.
MORE_THAN = split_list(
    "{v} is {n} more than {a}|{v} becomes {n} more than {a}|set {v} to {n} more than {a}|{v} = {a} + {n}|{v} is"
    " {a} plus"
    " {n}|make {v} {n} larger than {a}|{v} is now {n} above {a}|{v} := {a} + {n}|{v} = {n} + {a}|let {v} be {a}"
    " plus {n}|put {a}"
    " + {n} in {v}|{v} becomes {a} plus {n}|{v} exceeds {a} by {n} now",
    "|",
)
LESS_THAN = split_list(
    "{v} is {n} less than {a}|{v} becomes {n} less than {a}|set {v} to {n} less than {a}|{v} = {a} - {n}|{v} is"
    " {a} minus"
    " {n}|make {v} {n} smaller than {a}|{v} is now {n} below {a}|{v} := {a} - {n}|let {v} be {a} minus {n}|put"
    " {a} - {n} in"
    " {v}|{v} becomes {a} minus {n}",
    "|",
)
CLEARED = split_list(
    "reset {v}|clear {v}|{v} is back to zero|{v} goes to zero|zero out {v}|{v} is reset|{v} is cleared|empty {v}|{v} is"
    " emptied|set {v} back to nothing|{v} becomes nothing|{v} drops to zero|{v} is zeroed|wipe {v}",
    "|",
)
COPIED = split_list(
    "{v} is a copy of {n}|{v} is the same as {n}|{v} copies {n}|{v} equals {n} now|{v} matches {n} now|let {v}"
    " be a copy of"
    " {n}|{v} follows {n}|put a copy of {n} in {v}|give {v} the value of {n}|write {n} into {v}|{v} is now as big as"
    " {n}|make {v} whatever {n} is|{v} gets a copy of {n}|{v} is replaced with {n}",
    "|",
)
DOUBLED = split_list(
    "{v} is twice as big now|make {v} twice as large|{v} becomes twice what it was|{v} times two|{v} gets twice"
    " as large|{v}"
    " grows to twice its size|add {v} to itself|{v} has doubled|{v} doubled|{N} doubles {v}|I double {v}|{v} +="
    " {v}|the value"
    " of {v} is doubled|{v} x 2|{v} * 2 -> {v}",
    "|",
)
HALVED = split_list(
    "{v} is cut in half|{v} is half of what it was|{v} gets halved|{N} halves {v}|we halve {v}|{v} loses half of its"
    " value|take half of {v} away|split {v} in two and keep one half|{v} shrinks to half its size|only half of"
    " {v} is left|{v}"
    " over 2 -> {v}|{v} has been halved",
    "|",
)
SWAPPED = split_list(
    "{a} and {b} change places|switch {a} and {b}|{a} and {b} are switched|{N} swaps {a} and {b}|swap {a} with"
    " {b}|swap the values"
    " of {a} and {b}|{a} gets the value of {b} and {b} that of {a}|{a} and {b} trade values|exchange the values"
    " of {a} and"
    " {b}|trade {a} for {b}|swap({a}, {b})|{a} <-> {b}",
    "|",
)
KEPT = split_list(
    "{v} is left alone|{N} does not touch {v}|{v} stays put|{v} is not changed|{N} wants to add {n} to {v} but"
    " does not|don't"
    " touch {v}|{v} stays where it is|{N} forgets to change {v}|{N} reads {v}|print {v}|{v} is what"
    " it was|nobody"
    " adds anything to {v}|{N} almost changes {v}|{N} decides not to change {v}|{v} is unchanged",
    "|",
)
WHO = ("", "", "", "", "I", "we", "you", "they", "{N}", "{N}", "{N}", "he", "she", "let's")
FRAMES = split_list(
    "can you tell me|do you know|tell me|please tell me|i want to know|i wonder|i'd like to know|guess|let me"
    " know|say|who can"
    " tell me|work out|figure out|determine|find out|the question is|please say|could you work out|can you"
    " calculate|{N} asks|{N}"
    " wants to know|my question is|write down|answer me:|what i need is|please give me|show me",
    "|",
)
INDIRECT = split_list(
    "what {v} is|the value of {v}|how much {v} is|how big {v} is|what {v} equals|what number {v} is|what is in"
    " {v}|what {v}"
    " has become|which number {v} holds|what the value of {v} is|what we have in {v}|{v}|the number in"
    " {v}|what's in {v}|what"
    " remains of {v}",
    "|",
)
DIRECT = split_list(
    "what's {v}|what is {v}|{v} = what|{v} equals what|how much is {v}|how big is {v}|and what is {v}|value of"
    " {v}|what about"
    " {v}|what did {v} become|what's in {v}|what number does {v} hold|what is the number in {v}|what does {v}"
    " hold|what does {v}"
    " come to|{v}|final {v}|current value of {v}|{v} now|what did we get for {v}|which number do i have in"
    " {v}|where is {v}|what"
    " is {v}'s value|what would you get for {v}|how many is {v}|what's left of {v}|where did {v} end up",
    "|",
)
WHEN = split_list(
    "now|at the end|in the end|after all this|after that|at this point|finally|by now|then|after these"
    " steps|currently|after"
    " everything|at last|today|when we are done|once this is done|afterwards",
    "|",
)
CHECKS = split_list(
    "is {v} {n}|is {v} now {n}|does {v} equal {n}|did {v} end up as {n}|is {n} in {v}|i think {v} is {n},"
    " right|i guess {v} ="
    " {n}, yes|{v} is {n}, isn't it|so {v} is {n}|would you say {v} is {n}|do you agree that {v} is {n}|can it"
    " be that {v} is"
    " {n}|{N} says {v} is {n}, is that true|is {v} really {n}|could {v} be {n}|{v} = {n}|{v} == {n}|has {v}"
    " reached {n}|does"
    " {v} hold {n}|true or false: {v} is {n}|yes or no: is {v} equal to {n}|are we at {n} for {v}",
    "|",
)
ENDS = ("?",) * 10 + ("", "", "??", ".", " ?", "?!", "!")


def draw_change(rng: random.Random, adds: bool) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(shapes.ADDS if adds else shapes.TAKES)
    if kind < 0.7:
        return _done(rng.choice(RAISE if adds else LOWER), rng)
    if kind < 0.85:
        return f"{{v}} {_tense(rng.choice(RISE if adds else FALL), rng)}"
    if kind < 0.9:
        return f"{{v}} {_tense(rng.choice(BECOME_SO), rng)} {{n}} {rng.choice(LARGER if adds else SMALLER)}"
    return rng.choice(MORE if adds else LESS)


def draw_set(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(shapes.SETS)
    return _done(rng.choice(PUT), rng) if kind < 0.8 else rng.choice(BECOME)


def draw_question(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(shapes.ASKS)
    if kind < 0.75:
        return _ended(_timed(rng.choice(DIRECT), rng), rng)
    return _ended(_timed(f"{rng.choice(FRAMES)} {rng.choice(INDIRECT)}", rng), rng)


def draw_check(rng: random.Random) -> str:
    return rng.choice(shapes.YES_NO) if rng.random() < 0.5 else _ended(rng.choice(CHECKS), rng)


def either(rng: random.Random, one: tuple[str, ...], other: tuple[str, ...]) -> str:
    return rng.choice(one if rng.random() < 0.5 else other)


def _done(forms: Forms, rng: random.Random) -> str:
    """Somebody does it, or is told to, or it is done."""
    who = rng.choice(WHO)
    if who in ("", "let's"):
        return f"{who} {forms.base}".strip()
    return f"{who} {forms.past if rng.random() < 0.3 else forms.third if who in ('{N}', 'he', 'she') else forms.plural}"


def _tense(forms: Forms, rng: random.Random) -> str:
    done = (
        forms.third,
        forms.third,
        forms.third,
        forms.past,
        forms.past,
        f"has {forms.participle}",
        f"will {forms.base}",
    )
    return rng.choice((*done, f"is {forms.ing}", f"then {forms.third}", f"now {forms.third}"))


def _timed(text: str, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return text
    when = rng.choice(WHEN)
    return f"{text} {when}" if kind < 0.85 else f"{when}{rng.choice((',', ''))} {text}"


def _ended(text: str, rng: random.Random) -> str:
    if rng.random() < 0.5 and text[0] != "{":
        text = text[0].upper() + text[1:]
    return text + rng.choice(ENDS)


def vocabulary() -> list[str]:
    """Texts with all words."""
    lists = [value for value in globals().values() if isinstance(value, tuple)]
    shown = [text for each in lists for text in each if isinstance(text, str)]
    done = [text for forms in (*RAISE, *LOWER, *PUT) for text in forms[:4]]
    first = [forms.base.capitalize() for forms in (*RAISE, *LOWER, *PUT)] + [
        text[:1].upper() + text[1:] for text in shown
    ]
    return [*shown, *done, *first, *(text for forms in (*RISE, *FALL, *BECOME_SO) for text in forms)]

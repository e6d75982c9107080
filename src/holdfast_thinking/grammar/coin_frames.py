"""Parts of sentences around a flip: it happens, or it does not after all, or others are asked to do it.

{b}: the flip in its base form, {g}: its -ing form; {o}: the coin; {N}, {M}: people; stars: see `verbs`.
"""

from holdfast_thinking.tasks.filler import split_list

# The flip is done.
DONE = split_list(
    "happen to {b}|get to {b}|remember to {b}|dare to {b}|be able to {b}|be kind enough to {b}|rush to {b}|hurry to"
    " {b}|choose to {b}|decide to {b}|decide to {b}|succeed in {g}|pass the time by {g}|surprise {N} by {g}|celebrate by"
    " {g}|react by {g}|answer by {g}|start by {g}|break the silence by {g}|end up {g}|take the liberty of {g}|have fun"
    " {g}|enjoy {g}|be busy {g}|insist on {g}|get around to {g}|amuse {N} by {g}|use the chance to {b}|take a second to"
    " {b}|use a finger to {b}|use both hands to {b}|stretch out a hand to {b}|lean over to {b}|come over to {b}|stop by"
    " to {b}|step up to {b}|walk over to {b}|make a point of {g}|be seen {g}|be caught {g}|take a turn {g}|be unable"
    " to resist {g}|be not able to resist {g}|lose no time in {g}|have no problem {g}|be next and *get to {b}|be brave"
    " enough to {b}|be bored enough to {b}|begin by {g}|finish by {g}|respond by {g}|help out by {g}|interrupt {N} by"
    " {g}|win a bet by {g}|join in by {g}|show off by {g}|go ahead by {g}|come back to {b}|be finally able to {b}|be"
    " forced to {b}|be made to {b}|take a break to {b}|get up to {b}|kneel down to {b}|feel the"
    " urge to {b} and *do|be allowed to {b} and *do so|be asked to {b} and *do so|be told to {b} and"
    " *obey|want to {b} and *do so|promise to {b} and *keep the promise|threaten to {b} and *do it",
    "|",
)
# Before "and", with a flip after it.
FIRST = split_list(
    "go ahead|give in|come along|step up|stand up|lean over|reach out|walk up|wake up|obey|agree|say yes|jump up|change"
    " plans|get bored|take a deep breath|finish the {n}|put down the {n}|stretch out an arm|have a go|take a turn|take the"
    " next turn|count to three|look left and right|lift a finger|roll up one sleeve|put the {n} away|take the bet|accept the"
    " dare|take heart",
    "|",
)
# The flip is not done: the first with a {b} or {g}, the second after it.
MEANT = split_list(
    "want to {b}|plan to {b}|be about to {b}|get ready to {b}|reach out to {b}|be on the point of {g}|offer to {b}|mean to"
    " {b}|be eager to {b}|think of {g}|come here to {b}|hope to {b}|be dying to {b}|try to {b}|be asked to {b}|be supposed"
    " to {b}|promise to {b}|threaten to {b}|have every right to {b}|come close to {g}|feel like {g}|talk of {g}|swear to"
    " {b}|claim to {b}|be going to {b}|be gonna {b}|be dared to {b}|be begged to {b}|announce plans to {b}|say that it is"
    " time to {b}|say: I will {b}",
    "|",
)
LET_DOWN = split_list(
    "but {M} says no|but then the phone rings|but *do not|but *give up|but *forget|but *change plans|but *stop in"
    " time|but {M} shouts stop|but *think better of it|but in the end *leave it alone|but *lose courage|but *have no"
    " time|but somehow never *do|but *get distracted|but *fall asleep|but {M} is against it|but *decide against it|but"
    " *hold back|but *let it be|but *miss the chance|but *pull back|but *go home first|but *run out of time|but {M}"
    " does not allow it|but *be too late|but *resist|but *wait too long|, yet *do nothing|, then *do nothing|, then"
    " *leave|but it never happens|but that does not happen|but {M} stops that|but cannot|but only *look|but *sit down"
    " instead",
    "|",
)
# Somebody else would have it flipped; then whether it is.
ASKED = split_list(
    "{M} asks {N} to {b}|{M} tells {N} to {b}|{M} orders {N} to {b}|{M} begs {N} to {b}|{M} wants {N} to {b}|{M} invites"
    " {N} to {b}|{N} is asked to {b}|{N} is told to {b}|it is {N}'s turn to {b}|{M} dares {N} to {b}|{N} is supposed to"
    " {b}|{M} bets that {N} will {b}|{M} reminds {N} to {b}|{N} is free to {b}|{M} advises {N} to {b}|the rules tell {N}"
    ' to {b}|everyone shouts at {N} to {b}|{N} says: I will {b}|{N} says that it is time to {b}|"shall I {b}?" asks'
    ' {N}|"please {b}," says {M}|"go on, {b}" says {M} to {N}|"I\'ll {b}," says {N}',
    "|",
)
OBEYED = split_list(
    ", and {N} does|, and {N} does so|, which {N} does|, {N} obeys| and it is done|, and so it happens|, and {N} does"
    " it|. {N} does so| and {N} agrees and does it|, so that is what {N} does|, and that is what happens|, and {N} does"
    " it at once|. {N} does it| and {N} really does|. Done|, and it is done|, so {N}"
    " does|, and {N} is happy to|. {N} agrees and does it",
    "|",
)
REFUSED = split_list(
    ", but {N} does not|, but {N} doesn't|, but {N} refuses|, {N} refuses|, but {N} says no|, but {N} won't|, but {N} does"
    " nothing|. {N} says no| but {N} would rather not|, but it does not happen|. {N} does not|, but {N} only smiles|, and"
    " {N} says no|, but {N} forgets|, and {N} ignores that|, yet {N} does nothing of the kind|. It never happens|, but"
    " {N} leaves it as it is|, but {N} walks away| in vain|. {N} doesn't do it|, but {N} shakes a"
    " head|, but {N} will not|, and {N} laughs and leaves it|, but {N} has no wish to|, but nothing moves {N}|, but {N} stays"
    " seated|, but {N} runs away",
    "|",
)
# It only seems so: {b} after "might" or "will".
SEEMED = split_list(
    "it looks as if {N} will {b}|everyone expects that {N} will {b}|for a second {M} believes that {N} will {b}|people hope"
    " that {N} will {b}|{M} fears that {N} could {b}|it seems {N} is going to {b}|we all thought {N} would {b}|{N} could"
    " easily {b}|{N} might {b}|maybe {N} should {b}|{N} was supposed to {b}|{N} had the chance to {b}|{N} would {b}|you"
    " might think that {N} would {b}|{M} dreams"
    " that {N} would {b}|{M} falsely claims that {N} did {b}",
    "|",
)
NOT_SO = split_list(
    ", but nothing happens|, but it never comes to that|, but no|, but that is not what happens|, but it was a joke|, but"
    " that is only talk|, but {N} doesn't|, but {N} does not|, but {N} does something else|, but it stays as it is|, but in"
    " fact {N} leaves it alone|, but the coin stays where it is|, but it turns out to be a lie|, but {N} only yawns",
    "|",
)
THOUGH = split_list(
    "although {N} wants to {b}, nothing happens|although {N} could {b}, {N} doesn't|even though it is {N}'s turn to {b},"
    " {N} passes|instead of {g}, {N} just looks at it|instead of {g} {N} goes home|rather than {g}, {N} leaves it as it"
    " is|{M} stops {N} from {g}|no matter how much {M} begs, {N} does not {b}|if only {N} had time to {b}|{N} would {b} if"
    " {M} let that happen|nothing could make {N} {b}|{N} has better things to do than to {b}|there is no time for {N} to"
    " {b}|{N} is not the type to {b}|{N} sees no need to {b}|{N} leaves before {g}|far from {g}, {N} falls asleep|{N}"
    " can think of nothing worse than {g}|while {N} thinks about {g}, time runs out|before {N} can {b}, {M} takes {N}"
    " away|{N} is the last person who would {b}|if {N} were here, {N} would {b}|had {N} been there, {N} would {b}|{N}"
    " says that tomorrow is the day to {b}|last year {N} liked to {b}, but not today|{N} did {b} once, but that was years"
    " ago",
    "|",
)
WHILE = (
    "although",
    "though",
    "while",
    "even though",
    "just when",
    "as",
    "when",
    "whereas",
    "even if",
    "just as",
)
SO_NOT = split_list(
    "and that was that| and it came to nothing|, so nobody does it|, so it is forgotten|, and the moment is gone|, and"
    " everything stays the same|, so it has to wait|, which ends it| and so no flip is seen|, so the plan is dropped|, and"
    " there it ends|, and so it stays",
    "|",
)
# Groups, how many flips, and whether the verb is that of one.
GROUPS = (
    ("they both", 2, False), ("the twins each", 2, False), ("both of them", 2, False), ("all three of them", 3, False),
    ("all four players", 4, False), ("the two brothers each", 2, False), ("both players", 2, False),
    ("the three friends each", 3, False), ("each of the two", 2, True), ("each of the three children", 3, True),
    ("we both", 2, False), ("you and I both", 2, False), ("both sisters", 2, False), ("all three", 3, False),
    ("each of the four", 4, True), ("each twin", 2, True), ("the two of them each", 2, False), ("both {N} and {M}", 2, False),
    ("all five guests", 5, False), ("the couple each", 2, False), ("three people in a row each", 3, False),
    ("two strangers each", 2, False), ("{N} and also {M}", 2, False), ("first {N} and then {M}", 2, True),
    ("only one of them", 1, True), ("exactly one of the two", 1, True), ("only {N}", 1, True), ("not {M} but {N}", 1, True),
    ("{N}, not {M},", 1, True), ("{N} alone", 1, True), ("none of the three", 0, True), ("neither twin", 0, True),
    ("neither of us", 0, True), ("neither player", 0, True), ("neither {N} nor {M}", 0, True), ("not one guest", 0, True),
    ("no one at all", 0, True), ("hardly anyone, in fact nobody,", 0, True), ("absolutely nobody", 0, True),
    ("not {N}, not {M}, nobody", 0, True), ("no player", 0, True), ("none of us", 0, True),
)  # fmt: skip
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TIMES_AFTER = (
    "",
    "",
    "",
    "",
    " in a row",
    " in total",
    " altogether",
    " one after the other",
    " quickly",
    " today",
)
TIMES_BEFORE = ("", "", "", "", "exactly ", "a total of ", "another ")
OTHER_TIMES = (
    ("x2", 2), ("x3", 3), ("x4", 4), ("x 2", 2), ("(twice)", 2), ("(x2)", 2), ("an even number of times", 2), ("(x3)", 3),
    ("an odd number of times", 3), ("one more time", 1), ("a second time", 1), ("just once", 1), ("only once", 1), ("x1", 1),
    ("a single time", 1), ("zero times", 0), ("0 times", 0), ("once and then again", 2),
    ("once, then once more", 2), ("and then does that again", 2), ("twice more", 2), ("again", 1),
    ("and immediately back", 2), ("and then right back", 2), ("and puts it back the way it was", 2), ("and undoes that", 2),
    ("but then flips it back", 2), ("but then turns it back", 2), ("but puts it right back", 2), ("but undoes it", 2),
)  # fmt: skip
FLIPS_AS_NOUNS = (
    ("one flip", 1), ("two flips", 2), ("three flips", 3), ("four flips", 4), ("five flips", 5), ("a double flip", 2),
    ("a single flip", 1), ("no flips", 0), ("a pair of flips", 2), ("another two flips", 2), ("an odd number of flips", 1),
    ("an even number of flips", 2), ("zero flips", 0), ("no flip at all", 0), ("one more flip", 1), ("a quick flip", 1),
)  # fmt: skip
NOUN_SENTENCES = split_list(
    "{} by {N}|{N} makes {}|{N} does {}|{} from {N}|the coin gets {}|{} later|then {}|{N} adds {}|{N} performs {}|{} follow|"
    "we see {}|then come {}|{N} gives it {}|next {}|there were {}|{N}: {}|now {} by {N}",
    "|",
)
# {s}: the side so far, {x}: the other one, which is up from here on.
CHANGES = split_list(
    "it goes from {s} to {x}|it is not {s} any more|the coin is no longer {s} up|it was {s}, and now it is the other|{s}"
    " is no longer on top|{s} goes down and {x} comes up|where there was {s} there is now {x}|from {s} it changes to"
    " {x}|{N} turns {s} into {x}|{N} turns it from {s} to {x}|{x} replaces {s}|{N} flips it from {s} to {x}",
    "|",
)
# {x} is up from here on, whatever it was.
TURNED_DOWN = split_list(
    "whatever it was, it is {x} now|{N} hides {s} and shows {x}|{s} is face down now|now {s} is at the bottom|now {s} faces"
    " the table|{N} lays it down on its {s} side|{N} puts it {s} down|{N} places it with {s} facing down|{N} makes sure that"
    " {s} is hidden|it lands with {s} down|now the bottom side is {s}|{N} covers the table with {s}, so {x} is up|{N} lays it"
    " with {s} against the table|{N} doesn't care what it was and makes it {x}",
    "|",
)
RESTORED = split_list(
    "{N} puts it back to how it was at the start|it is back on its first side|{N} restores the first side|now it is as it"
    " was in the beginning|the coin is reset to its starting side|{N} sets it back to the side it started on|the starting"
    " side is up again|now it looks just as it did at the start",
    "|",
)
WHOSE = split_list(
    "whose {n} is {a}|whose {n} is in the {m}|whose friend is {a}|who has a {n}|who is {a}|who is {a} and {b}|who loves {n}s|"
    "with a {n} in one hand|who came with {M}|whose name is {M}|{a} as ever|as {a} as a {n}|tired of the {n}|who owns the"
    " {n}|not knowing about the {n}|after a long {n}|for once {a}|known for a {a} {n}|still {a}|now {a}|whose turn it is",
    "|",
)

"""Shapes of sentences about a coin.

{c}: the coin with its article, {C} with a capital letter; {o}: the coin as an object, {O} by its
name; {s}: a side, {S} with a capital letter; {x}: the other side; {N}, {M}: people. A bar is where the
event is decided.
"""

from holdfast_thinking.tasks.filler import split_list

SIDES = ("heads", "tails")
COINS = split_list(
    "coin,penny,quarter,dime,nickel,euro,silver coin,gold coin,old coin,dollar coin,token,cent,shiny"
    " coin,lucky coin,small coin,copper coin,pound,yen,peso,disc,disk,chip,medal,half dollar,rupee,little"
    " coin,bronze coin,foreign coin,crown,shilling,krona",
    ",",
)
STARTS = (
    "{C} shows {s}", "{C} lies {s} up", "{C} is {s} up", "{C} is lying on the table, {s} up",
    "{C} starts {s} up", "{C} starts with {s} on top", "{C} starts as {s}", "{C} starts on {s}",
    "{C} starts off as {s}", "{C} begins {s} up", "{C} begins with {s} showing", "{C} is showing {s}",
    "{C}'s state is {s}", "{C}'s upper side is {s}", "{C} rests on the floor with {s} facing up",
    "{C} sits on the desk, {s} side up", "{C} sits in front of {N}, {s} facing up",
    "{C} has landed on {s}", "{C} landed on {s}", "{C} came up {s}", "{C} is on {s}", "{C} is {s}",
    "{C} was {s}", "{C} = {s}", "{C}: {s}", "{C} ({s} up)", "{C} is at {s}", "{C} is set to {s}",
    "{C} is facing {s} up", "{C} is put on the table with the {s} side up", "{C} has {s} up",
    "{C} has {s} on top", "{C} was placed {s} up", "{C} was lying there {s} up", "{C} was showing {s}",
    "{C} was left on the shelf with the {s} side on top", "{C} faces {s} up at the start",
    "{C} displays {s}", "{C} with {s} up lies on the ground", "{C} that {N} found lies {s} up",
    "{C} of {N}'s is {s} up", "{S} is up", "{S} is showing", "{S} is on top of {c}",
    "{S} up, {c} lies on the counter", "{S} is the first side", "{S} to begin with", "{S} at the start",
    "Initially {s}", "Initially {c} shows {s}", "Initial state: {s}", "Initial side: {s}", "State: {s}",
    "Start: {s}", "Start with {s}", "Start with {c} on {s}", "Starting side: {s}", "We begin with {s}",
    "We start with {c} on {s}", "It's {s}", "It is {s} at first", "It starts out as {s}",
    "The top side is {s}", "The visible side is {s}", "The side facing us is {s}",
    "The upper face of {c} is {s}", "There is {c} on the table. It shows {s}",
    "There is {c} here, {s} up", "There's {c} on the shelf. It is {s} up",
    "There was {c} on the bar with {s} on top", "On the table there is {c} that shows {s}",
    "On the counter lies {c}, and {s} is up", "On the ground you find {c}, {s} up",
    "In front of me is {c}, {s} side showing", "In {N}'s hand lies {c}, {s} up", "At first {c} is {s}",
    "At first, {s} is up", "At the beginning {c} shows {s}", "At the very start, {c} lies with {s} up",
    "To begin with, {c} is {s} up", "To start with, {s} is showing on {c}",
    "In the beginning {s} is up on {c}", "Before the game {c} lies {s} up", "This morning {c} was {s} up",
    "Right now {c} is {s} up", "Let {c} be {s} up", "Let's say {c} is showing {s}",
    "Given {c} that shows {s}", "Assume {c} is {s} up", "Consider {c} with {s} up",
    "Imagine {c} lying {s} up", "Imagine that {c} shows {s}", "Suppose {c} shows {s}",
    "Suppose that {s} is up", "Say {c} is on {s}", "Think of {c} with the {s} side up",
    "Take {c} that is {s} up", "You have {c} that is {s} up", "You put {c} on the table, {s} facing up",
    "You find {c} on the road, and it shows {s}", "We have {c}. Its side is {s}",
    "We have {c} showing {s}", "We put {c} down {s} up", "I have {c} here. It is {s}",
    "I've got {c}, {s} up", "I placed {c} in front of me with {s} up",
    "I place {c} on the table. {S} is up", "I toss {c} and it lands on {s}", "Look at {c}: it shows {s}",
    "Look, {c}! It shows {s}", "Here is {c}. {S} is on top", "Here is {c}, {s} up",
    "Here we have {c} that lies {s} up", "{N} puts {c} on the table, {s} up",
    "{N} put {c} on the table with {s} up", "{N} has {c}. It shows {s}", "{N} has {c} with {s} up",
    "{N} owns {c}. At the moment it is {s} up", "{N} finds {c} lying {s} up",
    "{N} lays {c} down with {s} on top", "{N} sees {c}. Its {s} side is up",
    "{N} drops {c}, and it comes to rest {s} up", "{N} tosses {c} and gets {s}",
    "{N} throws {c}: it is {s}", "{N} is holding {c} so that {s} is up", "{N} notices that {c} shows {s}",
    "Someone has placed {c} on the floor, {s} up", "Somebody put {c} there, and it shows {s}",
    "{C} lies on the mat. You can see {s}", "{C} lies on the mat. {N} can see the {s} side",
    "{C} lies with {x} down, so {s} is up", "{C} is lying with its {x} side down",
)  # fmt: skip
# Flips, in the base form. The bar stands as early as the event is decided; without one, at the end.
NUM_COMMON = 5  # the first of `FLIPS`
FLIPS = (
    "flip {o}|", "flip {o}|", "flip {o}| over", "turn {o} over", "turn {o} over", "flip over {O}",
    "flip {o}| back", "flip {o}| to the other side", "flip {o}| around", "flip {o}| upside down",
    "toss {o}|", "toss {o}| over", "turn over {O}", "turn {o} around", "turn {o} upside down",
    "turn {o} to the other side", "turn {o} to its other side", "turn {o} onto its other side",
    "turn {o} back over", "turn {o} the other way up", "turn {o} on its head",
    "turn the other side of {o} up", "turn {o} the other way round", "turn up the other side of {o}",
    "turn {o} so that the other side is up", "turn the other face of {o} up", "invert {o}|",
    "reverse {o}|", "roll {o} over", "roll {o} onto its other side", "tip {o} over", "tip over {O}",
    "twist {o} over", "knock {o} over", "push {o} over onto its other side", "overturn {o}|",
    "upend {o}|", "flick {o} over", "flick {o} onto its other side", "rotate {o} to the other side",
    "rotate {o} so that the other side is up", "swap the sides of {o}", "swap {o} to its other side",
    "switch the side of {o}", "switch {o} to the other side", "switch {o} over", "change the side of {o}",
    "change {o} to the other side", "change which side of {o} is up", "put {o} on its other side",
    "put {o} the other way up", "put {o} down the other way round", "put {o} down on its other side",
    "put {o} upside down", "lay {o} down the other way up", "lay {o} on its other side",
    "place {o} the other way up", "place {o} upside down", "set {o} down with the other side up",
    "give {o} a flip", "give {o} a turn", "give {o} one flip", "give {o} a quick flip",
    "give {o} a half turn", "bring up the other side of {o}", "bring the other side of {o} up",
    "make {o} show its other side", "make {o} show the opposite side",
    "make the other side of {o} visible", "let {o} show its other side", "swing {o} over",
    "spin {o} over", "spin {o} to the other side", "*take {o} and *turn it over",
    "*pick {o} up and *turn it over", "*pick up {O} and *flip it",
    "*lift {o} and *put it back the other way up", "*grab {o} and *flip it over",
    "*lift {o} up and *lay it down on its other side", "*take {o} and *put it down upside down",
    "*reach for {o} and *flip it", "do a flip of {o}", "finish flipping {o}|", "manage to flip {o}|",
    "manage to turn {o} over", "proceed to flip {o}|", "go on to turn {o} over", "help to turn {o} over",
    "reveal the other side of {o}", "exchange the top and the bottom of {o}", "capsize {o}|",
    "topple {o} onto its other side", "somersault {o}|",
)  # fmt: skip
# Flips whose negation is no plain sentence.
FLIPS_ONLY = (
    "do flip {o}|", "actually *flip {o}|", "start to flip {o} and *do it",
    "decide to flip {o} and *do so", "finally *do it and *flip {o}|", "be the next to flip {o}|",
    "be the one to turn {o} over", "be quick to flip {o}|", "turn {o} over| and *leave it that way",
    "pick {o} up, *turn it over| and *lay it down like that", "turn {o} over| and *put it back so",
    "give {o} a turn| so that the other side shows", "turn {o} over| so that the other side is up",
    "flip {o}| and *keep it like this", "take {o}, *turn it over| and *put it down that way",
    "flip {o}| and *let it lie", "turn {o} over| and *walk away", "flip {o}| and *hand it to {N}",
)  # fmt: skip
# What can be done to a coin that leaves its side as it is.
KEEPS = (
    "leave {o} alone", "leave {o} alone", "leave {o} alone", "leave {o} as it is", "leave {o} as is",
    "leave {o} in peace", "leave {o} where it is", "leave {o} untouched", "leave {o} unchanged",
    "leave {o} be", "leave {o} there", "let {o} be", "let {o} lie", "let {o} stay as it is",
    "let {o} rest", "keep {o} as it is", "keep {o} the way it is", "keep the side of {o}",
    "keep {o} in place", "look at {o}", "only *look at {o}", "just *look at {o}", "simply *look at {o}",
    "merely *look at {o}", "only *look", "just *look", "only *watch", "just *watch",
    "look closely at {o}", "have a look at {o}", "take a look at {o}", "take another look at {o}",
    "watch {o}", "only *watch {o}", "just *watch {o}", "stare at {o}", "gaze at {o}", "glance at {o}",
    "merely *glance at {o}", "peek at {o}", "observe {o}", "see {o}", "inspect {o}", "study {o}",
    "examine {o}", "check {o}", "notice {o}", "admire {o}", "ignore {o}", "forget about {o}",
    "do nothing", "do nothing to {o}", "do nothing with {o}", "do nothing at all", "do not do anything",
    "have no interest in {o}", "touch {o}", "only *touch {o}", "clean {o}", "wipe {o}", "polish {o}",
    "dust {o}", "wash {o}", "weigh {o}", "measure {o}", "cover {o} with a hand", "cover {o}", "hide {o}",
    "move {o} a little", "move {o} to the left", "move {o} aside", "slide {o} across the table",
    "slide {o} to the right", "push {o} aside", "push {o} a bit", "pull {o} closer", "tap {o}",
    "tap on {o}", "pat {o}", "stroke {o}", "kiss {o}", "smell {o}", "lick {o}", "scratch {o}",
    "point at {o}", "point to {o}", "smile at {o}", "nod at {o}", "laugh at {o}", "blow on {o}",
    "breathe on {o}", "talk to {o}", "talk about {o}", "speak of {o}", "ask about {o}", "think about {o}",
    "wonder about {o}", "dream of {o}", "describe {o}", "draw {o}", "paint a picture of {o}",
    "photograph {o}", "take a picture of {o}", "film {o}", "count {o}", "praise {o}", "walk around {o}",
    "pass {o}", "step over {o}", "pass by {o}", "stay away from {o}", "keep away from {o}",
    "keep off {o}", "stand next to {o}", "sit beside {o}", "lean over {o}", "bend over {o}", "guard {o}",
    "protect {o}", "hold still", "stay still", "stand still", "keep still", "circle {o}",
    "put a cup over {o}", "put a glass on {o}", "shine a light on {o}", "draw a circle around {o}",
    "*pick {o} up and *put it back as it was", "*lift {o} and *put it back the same way",
    "*take {o} and *lay it down as before", "*hold {o} and *put it back unchanged",
    "pay no attention to {o}", "keep both hands off {o}", "keep {o} on the same side",
    "make sure nothing happens to {o}", "respect {o}", "like {o}", "want {o}", "like the look of {o}",
    "be happy with {o}", "be happy with {o} as it is", "be nowhere near {o}", "be not interested in {o}",
    "be too tired to touch {o}", "be bored by {o}", "be careful with {o}", "have other plans",
    "have no time for {o}", "skip this turn", "pass", "wait", "say no",
    "shake {N}'s hand and *ignore {o}", "guess the year of {o}", "read the date on {o}", "bet on {o}",
    "show {o} to {N}", "*flip nothing", "*turn nothing over",
)  # fmt: skip
# Phrases around a flip that does not happen: {b} base form, {g} -ing form, {p} third person, {r} past.
NOT_DONE = (
    "refuse to {b}", "refuse to {b}", "decline to {b}", "forget to {b}", "forget to {b}", "fail to {b}",
    "neglect to {b}", "decide not to {b}", "decide against {g}", "choose not to {b}", "prefer not to {b}",
    "opt not to {b}", "agree not to {b}", "promise not to {b}", "promise to {b} later",
    "plan to {b} tomorrow", "intend to {b} one day", "hope to {b} some day", "offer to {b} but *do not",
    "try to {b} but *fail", "try to {b} and *fail", "try in vain to {b}",
    "attempt to {b} without success", "want to {b} but *do not", "want to {b} but *stop",
    "would like to {b} but *do not", "be about to {b} but *stop", "be going to {b} but *change plans",
    "be asked to {b} but *refuse", "be asked to {b} and *say no", "be told to {b} but *do not",
    "be told not to {b}", "be not allowed to {b}", "be unable to {b}", "be too lazy to {b}",
    "be too tired to {b}", "be too shy to {b}", "be afraid to {b}", "be afraid of {g}",
    "be not willing to {b}", "be unwilling to {b}", "be against {g}", "be far from {g}",
    "be close to {g} but *do not", "be tempted to {b} but *resist", "have no intention of {g}",
    "have no wish to {b}", "have no reason to {b}", "have no plans to {b}", "avoid {g}", "keep from {g}",
    "stop before {g}", "stop short of {g}", "stop {N} from {g}", "keep {N} from {g}",
    "prevent {N} from {g}", "forbid {N} to {b}", "think about {g}", "think of {g}",
    "only *think about {g}", "dream of {g}", "dream about {g}", "talk about {g}", "only *talk about {g}",
    "speak about {g}", "write about {g}", "consider {g} but *do not", "imagine {g}", "pretend to {b}",
    "only *pretend to {b}", "hesitate to {b}", "see no reason to {b}", "see no point in {g}",
    "leave without {g}", "wait instead of {g}", "do anything but {b}", "warn {N} against {g}",
    "dare not {b}", "hate the idea of {g}", "resist {g}", "refrain from {g}", "get out of {g}",
    "regret not {g}", "be sorry for not {g}", "do everything except {g}", "wonder whether to {b}",
    "wonder what happens after {g}", "ask {N} not to {b}", "tell {N} not to {b}",
)  # fmt: skip
NEVER = (
    "never", "never", "no longer", "hardly ever", "never once", "nearly", "almost", "very nearly",
    "never even",
)  # fmt: skip
MODALS = split_list(
    "will not,won't,cannot,can't,could not,couldn't,would not,wouldn't,may not,must not,mustn't,should"
    " not,shouldn't,would rather not,can not,will never,would never again,could never,might not,is not"
    " to,had better not",
    ",",
)
# The side after the event is {s}, whatever it was.
_LAYING = split_list("put,lay,place,set,leave,position,arrange,slap,drop,park,balance", ",")
_LAID = split_list(
    "with {s} up|with {s} on top|with {s} showing|with the {s} side up|so that {s} shows|so {s} faces up|such that"
    " {s} can be seen|{s} side up|with {s} facing up|in such a way that {s} is up",
    "|",
)
_TURNING = split_list(
    "turn,roll,nudge,spin,tilt,twist,adjust,move,shift,push,work on,play with,keep turning,keep flipping,keep tossing",
    ",",
)
_TURNED = split_list(
    "until {s} is up|until it shows {s}|until {s} is on top|till {s} shows|until it is {s}|until {s} can be seen|so long"
    " that {s} is up|until it lies {s} up|until it says {s}|until {s} comes up",
    "|",
)
_LIKING = split_list(
    "find {s} nicer|think that {s} is prettier|say that {s} suits us|vote for {s}|call for {s}|be fond of {s}|like {s}|want"
    " {s}|believe in {s}|settle on {s}|think of {s}|dream of {s}|argue for {s}|be all for {s}",
    "|",
)
_LIKED = split_list(
    "and *turn {o} accordingly|and *put {o} so|and *lay {o} like that|and *arrange {o} in that manner|and *make {o} so|and"
    " *set {o} to that|and *have {o} that way|and so *place {o}|and so it is|and *bring it up",
    "|",
)
SETS = (
    *(f"{like} {done}" for like in _LIKING for done in _LIKED),
    *(f"{verb} {{o}} {end}" for verb in _LAYING for end in _LAID),
    *(f"{verb} {{o}} {end}" for verb in _TURNING for end in _TURNED),
    "like {s} better and *turn {o} to it", "want {s} on top and *arrange {o} accordingly",
    "prefer {s} and *make {o} show it", "choose {s} and *put {o} like that", "ask for {s} and *get it",
    "need {s} up and *do just that", "pick {s} for {o}", "choose {s} for {o}", "insist on {s} and *have it so",
    "want to see {s} and *place {o} so", "think that {s} is prettier and *lay {o} down that way",
    "set {o} to {s}", "turn {o} to {s}", "turn {o} so that {s} is up", "turn {o} until {s} is up",
    "put {o} {s} up", "put {o} down {s} up", "put {o} on {s}", "place {o} {s} up",
    "place {o} with {s} on top", "lay {o} down with {s} up", "lay {o} down {s} up", "make {o} show {s}",
    "make it {s}", "change {o} to {s}", "switch {o} to {s}", "bring {o} to {s}",
    "rotate {o} until {s} shows", "arrange {o} so that {s} is on top", "set {o} down {s} up",
    "toss {o}| and *get {s}", "flip {o}| and *get {s}", "throw {o} in the air and *get {s}",
    "put {o} back with {s} facing up", "make sure that {s} is up", "make sure {o} shows {s}",
    "*take {o} and *put it down {s} up", "drop {o} and *see it land on {s}", "force {o} to {s}",
)  # fmt: skip
SET_SENTENCES = (
    "now it shows {s}", "now {s} is up", "now it is {s}", "it is now {s}", "it lands on {s}",
    "it ends up {s} up", "the coin falls from the table and lands on {s}", "the coin now shows {s}",
    "somebody has set it to {s}", "the coin is set to {s}", "the coin is put {s} up",
    "the coin is placed {s} up by {N}", "it is turned to {s}", "the wind turns it to {s}",
    "it is made to show {s}", "the coin rolls around and comes to rest with {s} up",
    "the coin comes up {s}",
)  # fmt: skip
# Only where {s} is the side already.
STAYS = (
    "{N} makes sure it stays {s} up|", "it stays {s} up|", "it is still {s}|", "{N} leaves it {s} up|",
    "{N} keeps it {s} up|", "the coin remains {s} up|", "the coin still shows {s}|", "it remains on {s}|",
    "{N} sees that {s} is up|", "{N} checks that it is {s}|", "the coin is still {s} up|",
    "{N} wants it to stay {s}|", "nothing changes|", "nothing happens to the coin|",
    "nothing happens to it|", "the coin stays as it is|", "the coin is left alone|",
    "the coin is left as it is|", "it is left untouched|", "the coin just lies there|",
    "the coin is ignored by {N}|", "the coin does not move|", "the side does not change|",
    "the coin is cleaned by {N}|", "it gets moved a bit|", "there is no flip this time|", "no flip|",
    "this time no flip happens|", "the same side stays up|",
)  # fmt: skip
FLIP_SENTENCES = (
    "there is another flip|", "another flip follows|", "one more flip|", "now the other side is up|",
    "now the other side shows|", "the other side comes up|", "the coin changes its side|",
    "the coin changes sides|", "the side changes|", "the coin flips|", "the coin turns over|",
    "the wind turns it over|", "the wind flips the coin|",
    "a cat jumps on the table and turns the coin over|", "a gust of wind turns the coin over|",
    "the coin rolls over onto its other side|", "a flip|", "{N} makes one flip|",
    "{N}'s flip comes next|", "{N}'s sleeve turns the coin over|", "thanks to {N} the other side is up|",
    "the coin ends up on its other side|", "the opposite side comes up|",
)  # fmt: skip
# Sentences that a bar ends: the period belongs to the event, as a flip may have an object.
BARE_FLIPS = (
    "{N} flips.|", "{N} flips too.|", "{N} flips again.|", "flip.|", "flip again.|", "then {N} flips.|",
)  # fmt: skip
BARE_KEEPS = (
    "{N} doesn't.|", "{N} does not.|", "no flip.|", "{N} passes.|", "{N} does not flip.|", "don't flip.|",
)  # fmt: skip
# After a flip, and after none.
SAME_FLIPS = (
    "so does {N}|", "{N} does the same|", "{N} does too|", "{N} does so as well|", "{N} follows suit|",
    "{N} undoes that|", "{N} undoes this|", "{N} does it again|", "{N} does that once more|",
    "and once more|", "and again|", "then back|", "then {N} does the same|", "{N} repeats that|",
    "{N} reverses that move|", "{N} takes that back|", "likewise {N}|",
)  # fmt: skip
NOT_THE_SAME = (
    "{N} does not|", "{N} doesn't|", "{N} does not do that|", "{N} won't|", "not so {N}|", "{N} refuses|",
)  # fmt: skip
NEITHER = (
    "neither does {N}|", "{N} doesn't either|", "nor does {N}|", "{N} does the same|",
    "{N} does nothing either|",
)  # fmt: skip
TIMES = (
    ("twice", 2), ("two times", 2), ("2 times", 2), ("three times", 3), ("3 times", 3), ("thrice", 3), ("four times", 4),
    ("4 times", 4), ("five times", 5), ("5 times", 5), ("six times", 6), ("6 times", 6), ("seven times", 7),
    ("twice in a row", 2), ("three times in a row", 3), ("and then back", 2), ("and back again", 2), ("and back", 2),
    ("two more times", 2), ("and then once more", 2), ("and again", 2), ("and then flips it back", 2), ("once", 1),
    ("exactly once", 1), ("one time", 1), ("and flips it again", 2), ("and undoes it at once", 2), ("10 times", 10),
)  # fmt: skip
PASSIVES = (
    "is", "gets", "was", "got", "has been", "had been", "is being", "is then", "is now", "was then",
    "is also",
)  # fmt: skip
PASSIVES_NOT = (
    "is not", "isn't", "was not", "wasn't", "has not been", "hasn't been", "is never", "was never",
    "never gets", "won't be", "will not be", "cannot be", "is nearly", "is almost",
    "should be but is not", "does not get", "is not going to be",
)  # fmt: skip
NOBODY = (
    "nobody", "no one", "none of them", "not one of us", "not a single person", "neither of them",
    "no person in the room", "none of the guests", "nobody else", "neither {N} nor {M}",
    "neither {M} nor {N}", "no child", "not even {N}",
)  # fmt: skip
SUBJECTS = split_list(
    "the teacher,my sister,my brother,a stranger,the old man,the waiter,her friend,his mother,the"
    " boy,the girl,a child,the woman in the corner,a man,someone,somebody,the dealer,one of them,the"
    " doctor,the cook,the other player,her brother,the referee,the captain,my friend,our neighbour,the"
    " next person,the first player,the second player,the winner,a tall man,the lady with the hat,the"
    " magician,another person,everybody's friend,his boss,the last one,a cat,the robot,player 1,player"
    " 2,the third one",
    ",",
)
PRONOUNS = ("he", "she", "he", "she", "they", "I", "you", "we")
PLURAL = (
    "they", "I", "you", "we", "the children", "the twins", "my parents", "the players", "people",
    "two friends",
)  # fmt: skip
LEADS = split_list(
    "then|next,|after that|later|now|soon|finally,|a moment later|after a while|in the"
    " meantime|meanwhile|without a word|first|before lunch|at noon|the next day|and then|but"
    " then|so|and|but|also|again|still|this time|once more|afterwards,|eventually,|at last|in the"
    " evening|a bit later|two minutes later|an hour later|some time later|next up,|second,|third,|of"
    " course,|as usual,|to everyone's surprise,|just then|right after that,|with a smile|with both"
    " hands|with a sigh|with her left hand|out of the blue,|for no reason|for fun|by mistake|by"
    " accident|on purpose|before long,|all of a sudden,|in the end|at that moment|while nobody"
    " watches,|when the bell rings,|when it is quiet,|as soon as the door opens,|a second later,|out of"
    " boredom,|because of a bet,|on the way out,|during the break,|however,|well,|okay,|step 2:|this is"
    " what happens:|as it happens,|surprisingly,|luckily,|sadly,|perhaps by chance,|one day,|early in"
    " the morning,|late at night,|in the second round,|round three:|turn 4:",
    "|",
)
TAILS = split_list(
    "again,once more,with care,at once,too,as well,on purpose,by accident,by mistake,for fun,for"
    " luck,with a smile,with a grin,with one hand,with the left hand,without looking,without"
    " thinking,in silence,in a hurry,right away,this time,in front of everybody,for no reason,as a"
    " joke,like a professional,before leaving,after a while,after all,for a bet,behind our backs,with a"
    " pencil,with a spoon,with a loud laugh,of course,now,then,instead,on the table,in the dark,as"
    " expected,as planned,as usual,at the same time,in the end,to be sure,to win,first,next,over there",
    ",",
)
ASKS = (
    "What's the state?", "What is the state?", "What is the coin's state?",
    "What is the state of the coin?", "What is the state now?", "Does the coin show heads or tails?",
    "Which side is up?", "Which side is up now?", "Which side is on top?", "Which side does it show?",
    "Which side faces up?", "What side is showing?", "What does the coin show?", "What does it show now?",
    "What does it show at the end?", "Heads or tails?", "Is it heads or tails?",
    "Is the coin heads or tails now?", "How does the coin lie?", "How does it lie now?",
    "What is up, heads or tails?", "What is the coin showing?", "In the end, which side is up?",
    "So what is up?", "Which face is up?", "Which side can we see?", "What do we see on the coin?",
    "What is the final state?", "Tell me the side that is up.", "Say which side is up.",
    "Which side of it is up at the end?", "Now what is the side of the coin?", "Is heads up or tails?",
    "Tell me the state of the coin.", "Is it tails or heads?", "Is the coin tails or heads?",
    "Tails or heads?", "What's up now?", "What side is it on?", "What side is up?",
    "What side does the coin show now?", "What side of the coin do you see?", "What face is showing?",
    "What's on top?", "What is on top now?", "What is the upper side?",
    "What is the top side of the coin?", "What's the final side?", "What is the result?",
    "What's the outcome?", "What is it now?", "What is it?", "Where does the coin end up?",
    "How does the coin end up?", "How is the coin lying now?", "How is the coin facing?",
    "Which way up is the coin?", "Which way up is it?", "Which one is up?", "Which side is facing up?",
    "Which side is visible?", "Which side is visible now?", "Which side would be up?",
    "Which side ends up on top?", "Which side will I see?", "Which side of the coin is showing?",
    "Can you tell me which side is up?", "Can you tell me what the coin shows?",
    "Could you say how the coin lies?", "Do you know which side is up?",
    "Do you know if it is heads or tails?", "Give me the side of the coin.", "Give the final side.",
    "Name the side that is on top.", "Name the side.", "Answer with heads or tails.",
    "Tell me if it is heads or tails.", "Tell me whether the coin is heads or tails.",
    "I want to know which side is up.", "I wonder what it shows now.", "Guess which side is up now.",
    "The coin is now", "The side that is up is", "So the coin shows", "So it is", "The final state is",
    "State?", "Side?", "Final state?", "Which side?", "And now?", "What now?", "Result?", "So?",
    "What would you see if you looked at the coin?", "When you look at it, what do you see?",
    "What can be seen on top?", "Is heads or tails on top?", "Is heads or tails showing?",
    "Does it show heads, or does it show tails?", "Is the coin lying heads up or tails up?",
    "Will we see heads or tails?", "Should I say heads or tails?",
)  # fmt: skip
ASK_LEADS = split_list(
    "At this point,At the very end,In the end,Finally,Okay,Well,Question:,Quick question:,Right"
    " now,After everything,And at the end,At last,When all is done,To sum up,I ask you:,Tell"
    " me:,Think:,And,My question:,Be honest:,Now then",
    ",",
)
# The side that is not up.
ASKS_DOWN = (
    "Which side is down?", "Which side is face down?", "Which side is at the bottom?",
    "What side faces the table?", "Which side can we not see?", "What is on the underside?",
    "Which side is hidden?", "What is the side that is down?",
)  # fmt: skip
YES_NO = (
    "Is the coin still {s} up?", "Is it still {s} up?", "Is it {s}?", "Is it {s} up?", "Is the coin {s}?",
    "Is the coin {s} up?", "Is {s} up?", "Is {s} still up?", "Does it show {s}?",
    "Does the coin show {s}?", "Does it still show {s}?", "Does the coin still show {s}?",
    "Is the coin showing {s} now?", "Is {s} on top?", "Is {s} on top now?", "Is the {s} side up?",
    "Do we see {s}?", "Can you see {s}?", "Is it on {s} now?", "Does it lie {s} up?",
    "In the end, is it {s}?", "Is the side that is up {s}?", "Is it still {s}?", "Is the coin on {s}?",
    "Is {s} showing?", "Is {s} visible?", "Is {s} facing up?", "Is the coin facing {s} up?",
    "Is the state {s}?", "Is the final state {s}?", "Is the result {s}?", "Is the top side {s}?",
    "Is the visible side {s}?", "Isn't it {s}?", "Isn't the coin {s} up?", "Isn't {s} up now?",
    "Doesn't it show {s}?", "Doesn't the coin show {s} now?", "Does it end up {s}?",
    "Does it end up with {s} on top?", "Does the coin end on {s}?", "Did it end up on {s}?",
    "Has it ended up {s} up?", "Would you see {s}?", "Will I see {s}?", "Would we see the {s} side?",
    "Do you think it is {s}?", "Could it be {s}?", "Am I right that it is {s}?",
    "Am I right that {s} is up?", "I say {s}. Am I right?", "I think it is {s}. Is that right?", "{S}?",
    "{S} up?", "So {s}?", "Still {s}?", "It is {s}, right?", "It's {s}, isn't it?",
    "The coin shows {s} now, yes or no?", "Is it true that {s} is up?",
    "Is it true that the coin shows {s}?", "True or not: {s} is up?", "Yes or no: is it {s}?",
    "Yes or no: is {s} up?", "Tell me if it is {s}.", "Is it correct that it is {s}?",
    "Can it be that {s} is up?", "Is {s} what we see?", "Is the coin lying {s} up?",
    "Is the coin still on {s}?", "Is the {s} side on top?", "Is the {s} side still visible?",
    "{N} says it is {s}. Is {N} right?", "{N} bets on {s}. Does {N} win?",
    "At the end, does it show {s}?", "And now, is it {s}?", "Are we looking at {s}?",
    "Are we seeing {s} now?", "Has it come to show {s}?",
)  # fmt: skip
ANSWER_MARKS = (" A:",) * 14 + (" Answer:", "\nA:", "\nAnswer:", "")
# Turns written as a list.
RECORD_LINKS = (": ", ": ", " -> ", " - ", " => ", ", ", " = ")
RECORD_FLIPS = (
    "flip",
    "flips",
    "flips it",
    "flip it",
    "turns it over",
    "turn",
    "one flip",
    "flipped",
    "toss",
    "yes, flip",
)
RECORD_KEEPS = (
    "no flip", "pass", "passes", "nothing", "no", "skip", "skips", "stays", "leaves it", "no change", "waits",
    "does not flip", "not flipped", "keeps it", "zero flips", "looks", "no turn",
)  # fmt: skip
WITHOUT_OBJECT = (
    "flip",
    "flips",
    "flipped",
    "turn",
    "toss",
    "looks",
    "skip",
    "skips",
    "passes",
)  # one may follow
# Events without a person.
TERSE_FLIPS = split_list(
    "flip it|flips it|flipped it|turn it over|turned over|flipped over|gets flipped|got flipped|other side up|now the"
    " opposite|upside down now|other side now|swapped|reversed|inverted|the other way up|flip once|1 flip|flip the"
    " coin|one turn|turned|other face now|the reverse is up|changed sides|opposite side now",
    "|",
)
TERSE_KEEPS = split_list(
    "no flip here|left alone|not touched|untouched|no change|nothing happens|nothing|still the same|same side|same as"
    " before|unchanged|nothing done|not flipped|not turned|stays|stays put|stays that way|0 flips|skipped|passed|left as"
    " is|nobody moves|no one does anything|just looking|only a look|does not turn it|doesn't flip it|never touches it",
    "|",
)
SHORT_LEADS = split_list(
    "then|then|then,|next|next,|and then|after that|after that,|now|and|ok then|so then|so|later|first|first,|second,|"
    "finally|finally,|but|but then|and now|anyway,|ok|okay|right after that|and after that|afterwards|again,|also|"
    "and finally|last,|at last|thirdly,|plus,|and next,|and so|well then,|next up:|meanwhile|suddenly|a minute later|in turn",
    "|",
)
SHORT_TAILS = split_list(
    "again|too|once more|as well|now|then|next|this time|instead|for fun|too lol|after that|at once|first|though|quickly|of"
    " course|one time|right away|later|in turn|afterwards|yet again|for real|also|anyway|haha|by accident|on purpose",
    "|",
)

"""Statements about variables: {v}: the variable; {n}: a number or another variable; {a}, {b}: operands."""

from holdfast_thinking.tasks.filler import split_list

LETTERS = "abcdefghjkmnpqrstuvwxyz"
CAPITALS = "BCDEFGHKMNPQRSTVWXYZ"
NAMES = split_list(
    "total count score sum price apples points width height speed age num foo bar temp size left cost i l o"
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LISTS = (
    "Let", "Given", "We start with", "First,", "Suppose", "Say", "Assume", "Start with", "Now let", "",
    "", "", "Initially", "Here are", "You have", "I have", "We are given", "In the beginning",
    "To start,", "Consider", "Values:", "Variables:", "Suppose that", "Let's say", "At first", "Set",
    "Define", "These are the values:", "There is", "Take", "Today", "Initial values:",
    "The start values are", "ok so", "so", "we've got", "my numbers are", "with", "start:", "init:", "vars:",
    "the numbers:", "here's what we have:", "assume that", "numbers:", "I start with", "begin with", "{N} has",
    "{N} says", "okay,", "hi,", "we have the values", "two things first:", "there are", "state:", "memory:", "I"
    " know", "We know that", "Right now", "Originally", "Imagine", "my", "the value of", "the counter", "variable",
    "the variable", "the number", "a counter called", "a number", "let me tell you that",
)  # fmt: skip
LIST_TAILS = (
    "", "", "", "", "", "", " to begin with", " initially", " for now", " at this point", " to start",
)  # fmt: skip
IS = (
    " = ", " = ", " = ", " = ", " is ", " is ", " equals ", "=", "=", " := ", ": ", " has the value ", " starts"
    " at ", " starts as ",
    " holds ", " contains ", " is equal to ", " was ", " begins at ", " has ", " -> ", " stands at ", " starts out as ",
    " reads ", " shows ",
)  # fmt: skip
LEADS = (
    "", "", "", "", "", "", "", "", "Then ", "Now ", "After that, ", "Later ", "Also, ", "And then ",
    "Finally, ", "Afterwards ", "So ", "Step 2: ", "And ", "But then ", "Please ", "Again, ", "Soon ",
    "First ", "In this step ", "At noon ", "Okay, ",
)  # fmt: skip
SETS = split_list(
    "{v} = {n}|{v} = {n}|{v} is {n}|{v} is now {n}|set {v} to {n}|{v} becomes {n}|put {n} in {v}|{v}"
    " gets {n}|let {v} be {n}|make {v} equal to {n}|{v} is set to {n}|{v} := {n}|{v} equals {n}|{v}"
    " takes the value {n}|assign {n} to {v}|{n} is assigned to {v}|{v} is changed to {n}|change {v} to"
    " {n}|the value of {v} becomes {n}|{v} now has the value {n}|store {n} in {v}|{n} is stored in"
    " {v}|give {v} the value {n}|we set {v} to {n}|I set {v} to {n}|{v} turns into {n}|replace {v} by"
    " {n}|let {v} = {n}|{v} is reset to {n}|we put {n} into {v}|{v} will be {n}",
    "|",
)
# {n} is a variable.
COPIES = split_list(
    "{v} takes the value of {n}|copy {n} to {v}|{v} is set to the value of {n}|{v} becomes the same as"
    " {n}|{n} is copied into {v}|make {v} the same as {n}|set {v} to whatever {n} is|{v} gets the value"
    " of {n}|copy {n} into {v}",
    "|",
)
ADDS = split_list(
    "{v} = {v} + {n}|{v} = {v} + {n}|{v} = {n} + {v}|add {n} to {v}|increase {v} by {n}|{v} grows by"
    " {n}|{v} goes up by {n}|{v} rises by {n}|{v} plus {n} goes into {v}|{v} += {n}|{v} gets {n}"
    " more|{v} gains {n}|raise {v} by {n}|{v} is raised by {n}|{v} increases by {n}|{v} was increased"
    " by {n}|{v} has been increased by {n}|{v} gets increased by {n}|I add {n} to {v}|you add {n} to"
    " {v}|{N} adds {n} to {v}|{N} increases {v} by {n}|{n} gets added to {v}|{n} was added to {v}|{n}"
    " more is added to {v}|{v} climbs by {n}|{v} jumps up by {n}|the value of {v} goes up by {n}|the"
    " value of {v} is increased by {n}|{v} becomes {v} + {n}|{v} becomes {v} plus {n}|set {v} to {v} +"
    " {n}|{v} is now {v} plus {n}|make {v} larger by {n}|{v} becomes larger by {n}|{v} grows larger by"
    " {n}|to {v}, add {n}|put {n} more into {v}|{v} receives {n} more|we increase {v} by {n}|we raise"
    " {v} by {n}|adding {n} to {v}|{v} := {v} + {n}|let {v} grow by {n}|let {v} = {v} + {n}|count {v}"
    " up by {n}",
    "|",
)
TAKES = split_list(
    "{v} = {v} - {n}|{v} = {v} - {n}|subtract {n} from {v}|decrease {v} by {n}|take {n} away from"
    " {v}|{v} shrinks by {n}|{v} goes down by {n}|{v} falls by {n}|{v} loses {n}|take {n} from {v}|{v}"
    " -= {n}|reduce {v} by {n}|{v} is reduced by {n}|{v} drops by {n}|{v} decreases by {n}|{v} was"
    " decreased by {n}|{v} has been decreased by {n}|{v} gets reduced by {n}|lower {v} by {n}|{v} is"
    " lowered by {n}|I subtract {n} from {v}|you take {n} from {v}|{N} subtracts {n} from {v}|{N}"
    " decreases {v} by {n}|{N} takes {n} away from {v}|{n} gets subtracted from {v}|{n} was taken from"
    " {v}|{n} is taken away from {v}|{n} is removed from {v}|remove {n} from {v}|the value of {v} goes"
    " down by {n}|the value of {v} is reduced by {n}|{v} becomes {v} - {n}|{v} becomes {v} minus"
    " {n}|set {v} to {v} - {n}|{v} is now {v} minus {n}|make {v} smaller by {n}|{v} becomes smaller by"
    " {n}|from {v}, take {n}|we decrease {v} by {n}|we reduce {v} by {n}|subtracting {n} from {v}|{v}"
    " := {v} - {n}|let {v} shrink by {n}|let {v} = {v} - {n}|{v} gives away {n}|{v} sinks by {n}|count"
    " {v} down by {n}|deduct {n} from {v}",
    "|",
)
# Where there is one variable only.
BARE_ADDS = split_list(
    "add {n}|{N} adds {n}|someone adds {n}|plus {n}|+{n}|{n} more|I add {n}|another {n} is added|it goes up by {n}|it ticks"
    " up by {n}|raise it by {n}|{n} is added|we add {n}|one adds {n}|increase it by {n}|and {n} on top",
    "|",
)
BARE_TAKES = split_list(
    "subtract {n}|{N} subtracts {n}|someone takes away {n}|minus {n}|-{n}|{n} less|I take away {n}|another {n} is taken away"
    "|it goes down by {n}|it ticks down by {n}|lower it by {n}|{n} is subtracted|we take off {n}|{N} removes {n}|decrease it"
    " by {n}|take {n} away",
    "|",
)
INCREMENTS = (
    "{v}++", "increment {v}", "{v} goes up by one", "add one to {v}", "{v} is incremented",
    "count {v} up",
)  # fmt: skip
DECREMENTS = (
    "{v}--", "decrement {v}", "{v} goes down by one", "take one from {v}", "{v} is decremented",
    "count {v} down",
)  # fmt: skip
SUMS = (
    "{v} = {a} + {b}", "set {v} to {a} + {b}", "{v} is {a} plus {b}", "{v} becomes {a} + {b}",
    "{v} is the sum of {a} and {b}", "add {a} and {b} and put the result in {v}",
    "{v} becomes the sum of {a} and {b}", "{v} := {a} + {b}",
)  # fmt: skip
DIFFERENCES = (
    "{v} = {a} - {b}", "set {v} to {a} - {b}", "{v} is {a} minus {b}", "{v} becomes {a} - {b}",
    "{v} is the difference of {a} and {b}", "subtract {b} from {a} and put the result in {v}",
    "{v} := {a} - {b}",
)  # fmt: skip
DOUBLES = (
    "double {v}", "{v} doubles", "{v} = {v} + {v}", "{v} is doubled", "{v} = 2 * {v}", "{v} = {v} * 2",
    "multiply {v} by 2", "{v} gets doubled", "{v} is multiplied by two", "{v} *= 2", "we double {v}",
    "twice {v} goes into {v}",
)  # fmt: skip
HALVES = (
    "halve {v}", "{v} is halved", "{v} = {v} / 2", "divide {v} by 2", "{v} is divided by two", "{v} /= 2",
    "cut {v} in half", "{v} becomes half as large",
)  # fmt: skip
SWAPS = (
    "swap {a} and {b}", "{a} and {b} are swapped", "exchange {a} and {b}", "{a} and {b} swap values",
    "{a}, {b} = {b}, {a}", "{a} and {b} trade places", "the values of {a} and {b} are exchanged",
)  # fmt: skip
KEEPS = (
    "{v} stays the same", "{v} does not change", "leave {v} as it is", "do not change {v}",
    "{v} keeps its value", "{v} remains unchanged", "nobody changes {v}", "{N} thinks about {v}",
    "{N} looks at {v}", "{N} likes {v}", "nothing happens to {v}",
)  # fmt: skip
ASKS = (
    "What is the value of {v}?", "What is {v}?", "What's {v}?", "What is {v} now?", "How much is {v}?",
    "What does {v} equal?", "Tell me {v}.", "{v} = ?", "What is the final value of {v}?",
    "What value does {v} have?", "Give me the value of {v}.", "And {v}?", "So what is {v}?",
    "What is {v} at the end?", "How large is {v} now?", "What's the value of {v}?", "What's {v} now?",
    "What is {v} equal to?", "What is {v} equal to now?", "How big is {v}?", "How much is {v} now?",
    "What value has {v}?", "What number is {v}?", "What number is in {v}?",
    "Which value does {v} have now?", "Which number is stored in {v}?", "What do we get for {v}?",
    "What does {v} become?", "What has {v} become?", "What will {v} be?", "Find {v}.",
    "Find the value of {v}.", "Give {v}.", "Print {v}.", "print({v})", "Compute {v}.", "Calculate {v}.",
    "Output {v}.", "Report {v}.", "Return {v}.", "State the value of {v}.", "Tell me the value of {v}.",
    "Tell me what {v} is.", "Say what {v} is now.", "Can you tell me {v}?",
    "Can you tell me the value of {v}?", "Could you compute {v}?", "Do you know {v}?",
    "Do you know what {v} is?", "I want to know {v}.", "{v}?", "Value of {v}?", "The value of {v} is",
    "So {v} is", "{v} is", "{v} =", "Finally, what is {v}?", "After all of this, what is {v}?",
    "In the end, how much is {v}?", "At the end, what's {v}?", "What about {v}?", "Where does {v} stand?",
    "What is left in {v}?", "How much is left in {v}?", "What would {v} be now?", "Which number is {v}?",
)  # fmt: skip
YES_NO = split_list(
    "Is {v} {n}?|Is {v} equal to {n}?|Is {v} now {n}?|Does {v} equal {n}?|Is the value of {v} {n}?|Is"
    " {v} still {n}?|Is {v} = {n}?|Does {v} have the value {n}?|Isn't {v} {n}?|Has {v} become {n}?|Is"
    " {n} the value of {v}?|Is it true that {v} is {n}?|{v} is {n}, right?|Am I right that {v} ="
    " {n}?|In the end, is {v} {n}?|Would {v} be {n}?|Yes or no: is {v} {n}?|Does {v} end up as {n}?|Is"
    " {v} {n} at the end?|Is the final value of {v} {n}?|Do we have {v} = {n}?",
    "|",
)
MARKS = (" A:",) * 10 + (" Answer:", "", "\nA:")

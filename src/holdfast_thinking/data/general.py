"""General text: chat prompts, and a model's own answers to them.

    {"prompt": "Explain how a sailing boat works.", "answer": "A sailing boat ..."}

Training on the answers of the backbone itself keeps a model's way of chatting. There is nothing to
think about in them. Some of the prompts are stories with a question, of lamps, doors and numbers of
things: what a model thinks about is not known by the form of a text. Prompts for training and for
evaluation have different subjects and different forms.
"""

import random

from holdfast_thinking.tasks.filler import NAMES, split_list

NUM_EVAL_PROMPTS = 200
_SUBJECTS = split_list(
    "sailing boats,the moon,bread,bees,chess,the violin,rivers,volcanoes,coffee,the alphabet,castles,bicycles,"
    "mountains,dreams,rain,painting,penguins,gardens,trains,the sun,football,paper,honey,robots,cheese,windmills,"
    "owls,maps,clocks,deserts,whales,poetry,glass,silk,spiders,bridges,the Romans,dinosaurs,salt,lighthouses,"
    "apples,money,music,the brain,vaccines,gravity,algebra,the internet,electric cars,black holes,jazz,yoga,"
    "wolves,forests,the ocean,earthquakes,telescopes,fairy tales,democracy,recycling,photography,tea,fashion,"
    "running,swimming,cooking rice,houseplants,cats,dogs,horses,libraries,museums,theatre,languages",
    ",",
)
_FORMS = (
    "Tell me about {s}.",
    "What do you know about {s}?",
    "Explain {s} to a child.",
    "Write a short poem about {s}.",
    "Give me three facts about {s}.",
    "Why do people like {s}?",
    "Write two sentences about {s}.",
    "I have to give a talk about {s}. How do I start?",
    "What is the history of {s}?",
    "What is the best book about {s}?",
    "Write a Python function that prints a line about {s}.",
    "Is it worth learning about {s}?",
    "Make a list of words that have to do with {s}.",
    "Write a letter to a friend about {s}.",
    "My daughter asks me about {s}. What should I tell her?",
    "Give {s} a funny name.",
    "Anna and Tom talk about {s}. What do they say?",
    "I went to the library and found 3 books about {s}. Which one should I read first?",
    "In which year did {s} become popular?",
    "Compare {s} with something else.",
)
_OWN = split_list(
    "Hello!,How are you?,What is your name?,Thank you very much.,Tell me a joke.,What can you do?,Good evening.,What is"
    " 2 + 2?,Who wrote Hamlet?,What is the capital of France?,Sing me a song.,I am bored.,Give me advice for a job"
    " interview.,How do I boil an egg?,Correct this sentence: he go to school.,What should I cook tonight?",
    ",",
)
_STORY_SHARE = 0.3  # of the prompts
# What there is, its two states, and what is done to it.
_SWITCHED = (
    ("lamp", ("on", "off"), ("{N} presses the switch.", "{N} turns it {s}.", "{N} unplugs the {o}.")),
    ("light in the hall", ("on", "off"), ("{N} flips the switch.", "Somebody turns it {s}.")),
    ("radio", ("on", "off"), ("{N} pushes the button.", "{N} turns the {o} {s}.", "{N} turns it up.")),
    ("door", ("open", "closed"), ("{N} walks through it.", "{N} slams the {o}.", "The wind moves it.")),
    ("window", ("open", "closed"), ("{N} shuts the {o}.", "{N} looks out of it.", "{N} opens it again.")),
    ("card", ("face up", "face down"), ("{N} turns it over.", "{N} flips the {o}.", "{N} leaves it alone.")),
    ("pancake", ("brown", "pale"), ("{N} flips it.", "{N} tosses the {o}.", "{N} turns it over.")),
    ("page", ("blank", "printed"), ("{N} turns the {o}.", "{N} turns it back.", "{N} reads it.")),
    ("glass", ("full", "empty"), ("{N} drinks it.", "{N} turns it upside down.", "{N} fills the {o}.")),
    ("boat", ("upright", "upside down"), ("{N} turns it over.", "A wave flips the {o}.", "{N} rows it.")),
    ("sign", ("green", "red"), ("{N} turns it round.", "{N} paints the {o}.", "{N} only looks at it.")),
)
_SWITCHED_ASKS = (
    "Is the {o} {s}?",
    "Is it still {s}?",
    "Is the {o} {s} or {t} now?",
    "Which side of the {o} is up?",
    "How does the {o} look now?",
    "What should {N} do now?",
)
_COUNTED = split_list(
    "apples,marbles,books,tickets,stamps,eggs,dollars,coins,cats,pencils,cookies,chairs", ","
)
_COUNTED_EVENTS = (
    "{N} gives {M} {i} of them.",
    "{M} buys {i} more.",
    "{N} loses {i}.",
    "{N} sells half of the {o} for ${i} each.",
    "Then {M} brings {i} {o}.",
    "Every day {N} gets {i} {o} more.",
)
_COUNTED_ASKS = (
    "How many {o} does {N} have?",
    "How many {o} are left?",
    "How much money does {M} have now?",
    "Who has more {o}?",
    "How many {o} do they have together?",
    "How long does it take until {N} has {i} {o}?",
)
_EVAL_SUBJECTS = split_list(
    "snow,tigers,the piano,beekeeping,steam engines,soap,kites,the Vikings,opera,mushrooms,sandals,elections,cacti,"
    "ice cream,submarines,comets,handwriting,camping,dolphins,marathons",
    ",",
)
_EVAL_FORMS = (
    "Could you describe {s} in simple words?",
    "Please summarise what is known about {s}.",
    "What would a scientist say about {s}?",
    "Invent a slogan for {s}.",
    "How would you introduce {s} to somebody from another planet?",
    "Write the first lines of a story in which {s} matter.",
    "What are common mistakes people make with {s}?",
    "Our club of 25 members discusses {s} on Friday. Suggest an agenda.",
    "Draft a polite e-mail that asks for information on {s}.",
    "What surprised you most about {s}?",
)


def training_prompts(count: int, seed: int) -> list[str]:
    rng = random.Random(f"general {seed}")
    every = [form.format(s=subject) for form in _FORMS for subject in _SUBJECTS]
    prompts = [*_OWN, *rng.sample(every, min(count, len(every)))]
    return [_story(rng) if rng.random() < _STORY_SHARE else prompt for prompt in prompts][:count]


def _story(rng: random.Random) -> str:
    """Something happens to a thing, or the number of some things changes; then a question."""
    people = dict(zip("NM", rng.sample(NAMES, 2), strict=True))
    if rng.random() < 0.5:
        thing, states, happening = rng.choice(_SWITCHED)
        state, other = rng.sample(states, 2)
        fields = {"o": thing, "s": state, "t": other}
        first, events, asks = "The {o} is {s}.", list(happening), _SWITCHED_ASKS
    else:
        fields = {"o": rng.choice(_COUNTED)}
        first, events, asks = "{N} has {i} {o} and {M} has {j}.", list(_COUNTED_EVENTS), _COUNTED_ASKS
    told = [first, *rng.choices(events, k=rng.randint(1, 4)), rng.choice(asks)]
    return " ".join(
        each.format(**fields, **people, i=rng.randint(2, 30), j=rng.randint(2, 30)) for each in told
    )


def eval_prompts() -> list[str]:
    """The 200 prompts on which a thinking model should think nothing."""
    every = [form.format(s=subject) for form in _EVAL_FORMS for subject in _EVAL_SUBJECTS]
    return random.Random("general evaluation").sample(every, NUM_EVAL_PROMPTS)

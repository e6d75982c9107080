"""Sentences about anything, in a vocabulary of about a thousand words: idle stretches of a text, first
sentences, and prompts that are outside a small model's world.

Most follow a pattern of parts of speech. Some are words in any order, and some have invented words,
so that a model learns to pass over whatever it does not know.
"""

import random

from holdfast.training.tasks.filler import NAMES, SENTENCES, byte_names, split_list
from holdfast.training.tasks.text_examples import QUESTION_END, TextExample

OUTSIDE = " I only know coins and variables."
_NOUNS = split_list(
    "house street river garden window door table chair kitchen letter newspaper train bus car bicycle ship harbour"
    " bridge tower church school teacher doctor farmer baker painter singer dog cat horse bird fish cow sheep tree"
    " flower grass forest mountain valley lake sea island beach cloud rain snow wind storm sun moon star night morning"
    " evening summer winter bread butter cheese milk tea coffee soup apple orange lemon pear plum cake sugar salt"
    " knife fork spoon plate glass cup bottle basket box bag coat hat shoe shirt dress ring watch clock lamp candle"
    " book page story song poem picture photo map film radio phone computer engine wheel road path field wall roof"
    " floor stairs room bed pillow blanket mirror key lock hammer nail rope stone sand gold silver iron wood paper"
    " pencil game ball team king queen soldier judge thief ghost dream idea question answer name number word language"
    " country city village market shop bank office factory hospital museum theatre cinema library park station airport"
    " uncle aunt cousin neighbour friend child baby mother father brother sister husband wife guest waiter cook driver"
    " pilot captain student lesson test prize party wedding birthday holiday journey ticket price money bill job boss"
    " meeting plan problem mistake secret joke smile tear hand foot head eye ear nose mouth heart finger hair back"
)
_ADJECTIVES = split_list(
    "old young new small large long short high low warm cold hot wet dry dark bright quiet loud fast slow heavy light"
    " clean dirty empty full rich poor happy sad angry tired hungry thirsty kind strange famous strong weak early late"
    " red blue green yellow white black grey brown sweet sour fresh broken open closed wooden golden deep narrow wide"
    " beautiful ugly clever simple difficult important round square soft hard thin thick"
)
_VERBS = split_list(
    "sees likes buys sells finds loses carries brings opens closes paints washes cleans draws reads writes sings hears"
    " remembers forgets cooks eats drinks breaks repairs builds visits follows helps meets calls thanks teaches loves"
    " needs wants keeps shows sends hides steals counts measures cuts burns fills moves pulls pushes lifts drops"
    " catches throws feeds rides drives climbs crosses enters leaves admires describes imagines"
)
_PLACES = split_list(
    "in the garden,on the table,at the station,near the river,behind the house,under the bridge,in town,by the sea,at"
    " home,in the old kitchen,on the roof,across the street,at school,in the forest,between two trees,far away,upstairs",
    ",",
)
_TIMES = split_list(
    "today,yesterday,every morning,at night,in summer,on Monday,last week,for an hour,all day,before dinner,after work,"
    "once a year,at six,in the meantime,again and again,as always",
    ",",
)
_LOOSE = split_list(
    "The weather is fine.,It rains.,Everybody laughs.,The music stops.,A bell rings.,Time passes.,That was long ago.,The"
    " room is quiet.,Nothing else happens.,The phone rings twice.,Someone knocks at the door.,The tea gets cold.,Snow is"
    " falling outside.,Dinner is ready.,The lights go out for a moment.,A car stops in front of the house.,They talk"
    " about football.,It is late.,The children are asleep.",
    ",",
)
_ASKS = (
    "What is the {n} of {N}?",
    "Who {v} the {n}?",
    "Where is the {n}?",
    "Why is the {n} {a}?",
    "How many {n}s are in the {n2}?",
    "When does the {n} {v2} the {n2}?",
    "How do I make a {a} {n}?",
    "Can you help me with my {n}?",
    "Tell me a story about a {a} {n}.",
    "Write a poem about the {n}.",
    "What do you know about {N}?",
    "Is the {n} {a}?",
    "Do you like {n}s?",
    "Translate the word {n}.",
    "What should I cook for {N}?",
    "Explain the {n} to a child.",
    "Give me three ideas for a {n}.",
    "What is the capital of this country?",
    "What is your name?",
    "Who are you?",
    "How are you today?",
    "Hello!",
    "Hello, how are you?",
    "Good morning.",
    "Thank you!",
    "What time is it?",
    "What can you do?",
    "Tell me a joke.",
    "Which {n} is {a}?",
    "Does the {n} have a {n2}?",
)
_INVENTED = byte_names(500)


def idle_sentence(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(SENTENCES if rng.random() < 0.4 else _LOOSE)
    if kind < 0.9:
        return _sentence(rng)
    words = [
        rng.choice(rng.choice((_NOUNS, _ADJECTIVES, _VERBS, _INVENTED))) for _ in range(rng.randint(2, 9))
    ]
    return " ".join(words).lower().capitalize() + "."


def opening(rng: random.Random) -> str:
    """One or two first sentences, or a request."""
    if rng.random() < 0.3:
        return rng.choice(
            (
                "Here is a riddle.", "Please read carefully.", "Question:", "Q:", "Consider the following.", "Listen.",
                "Hi!", "Hello.", "A short story.", "Let me ask you something.", "Can you solve this?", "Think about this.",
                "I have a question.", "Okay, next one.", "This happened yesterday.", "Once upon a time,",
            )
        )  # fmt: skip
    return " ".join(idle_sentence(rng) for _ in range(rng.randint(1, 2)))


def words() -> list[str]:
    """Texts with all words, for a tokenizer."""
    rng = random.Random(0)
    lists = [" ".join(each) for each in (_NOUNS, _ADJECTIVES, _VERBS, _PLACES, _TIMES, _LOOSE, _ASKS)]
    return [
        *lists,
        *(each.title() for each in lists),
        *(opening(rng) for _ in range(400)),
        *SENTENCES,
        OUTSIDE,
    ]


class Outside:
    """Prompts about anything else: the answer says what the model knows."""

    name = "outside"

    def words(self) -> list[str]:
        return words()

    def example(self, rng: random.Random, events: int) -> TextExample:
        sentences = [idle_sentence(rng) for _ in range(rng.choice((0, 0, 1, 2, min(events, 12))))]
        asked = rng.choice(_ASKS).format(
            n=rng.choice(_NOUNS),
            n2=rng.choice(_NOUNS),
            a=rng.choice(_ADJECTIVES),
            v=rng.choice(_VERBS),
            v2=rng.choice(_VERBS).removesuffix("s"),
            N=_name(rng),
        )
        if rng.random() < 0.1:
            asked = idle_sentence(rng)
        end = rng.choice((QUESTION_END,) * 8 + ("", " Answer:"))
        return TextExample(" ".join((*sentences, asked)) + end, OUTSIDE, ())


def _sentence(rng: random.Random) -> str:
    subject = (
        _name(rng) if rng.random() < 0.5 else f"{rng.choice(('The', 'A', 'My', 'Her'))} {_noun_phrase(rng)}"
    )
    text = f"{subject} {rng.choice(_VERBS)} {rng.choice(('the', 'a', 'his', 'her', 'every'))} {_noun_phrase(rng)}"
    if rng.random() < 0.4:
        text += f" {rng.choice(_PLACES)}"
    if rng.random() < 0.3:
        text += f" {rng.choice(_TIMES)}"
    return text + "."


def _noun_phrase(rng: random.Random) -> str:
    noun = rng.choice(_NOUNS)
    return f"{rng.choice(_ADJECTIVES)} {noun}" if rng.random() < 0.4 else noun


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.7 else rng.choice(_INVENTED)

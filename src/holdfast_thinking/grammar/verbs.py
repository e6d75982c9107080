"""Verb phrases in all forms, from the base form.

    "turn {o} over"              turns {o} over, turned {o} over, turning {o} over
    "wait and *see"              waits and sees, waited and saw, waiting and seeing
    "only *look"                 only looks, only looked, only looking

The first word is a verb unless it is an adverb or a modal verb. Words with a star are verbs too.
"""

from typing import NamedTuple

from holdfast_thinking.tasks.filler import split_list

_IRREGULAR = {
    words.split()[0]: words.split()
    for words in split_list(
        # Base form, past, participle.
        "be was been,become became become,begin began begun,bend bent bent,bet bet bet,blow blew blown,break broke broken,"
        "bring brought brought,build built built,buy bought bought,catch caught caught,choose chose chosen,"
        "come came come,cut cut cut,do did done,draw drew drawn,drink drank drunk,drive drove driven,"
        "eat ate eaten,fall fell fallen,feed fed fed,feel felt felt,find found found,forbid forbade forbidden,"
        "forget forgot forgotten,get got got,give gave given,go went gone,grow grew grown,hang hung hung,"
        "have had had,hear heard heard,hide hid hidden,hit hit hit,hold held held,keep kept kept,kneel knelt knelt,"
        "know knew known,lay laid laid,lead led led,leave left left,lend lent lent,let let let,lie lay lain,"
        "lose lost lost,make made made,meet met met,pay paid paid,put put put,read read read,"
        "ride rode ridden,rise rose risen,run ran run,say said said,see saw seen,sell sold sold,"
        "send sent sent,set set set,reset reset reset,overwrite overwrote overwritten,shrink shrank shrunk,"
        "shake shook shaken,shed shed shed,shine shone shone,shoot shot shot,show showed shown,shut shut shut,"
        "sing sang sung,sink sank sunk,sit sat sat,sleep slept slept,slide slid slid,speak spoke spoken,"
        "spend spent spent,spin spun spun,"
        "stand stood stood,steal stole stolen,stick stuck stuck,swear swore sworn,swell swelled swollen,swing swung swung,"
        "take took taken,"
        "tear tore torn,tell told told,think thought thought,throw threw thrown,undo undid undone,"
        "wake woke woken,wear wore worn,win won won,write wrote written",
        ",",
    )
}
_DOUBLED = split_list(
    "beg begin bet chat chop clap cut dip drop flip forbid forget get grab hit hum let nod pat plan prefer put"
    " regret rub run set shed shrug shut sit skip slip snip spin step stop strip swap tap tip top trim win wrap"
)
_NO_VERBS = split_list("only just simply merely actually would finally but ,")
_IRREGULAR_THIRD = {"be": "is", "have": "has", "do": "does", "go": "goes", "undo": "undoes"}


class Forms(NamedTuple):
    """A phrase with its verb in each form: flip, (they) flip, flips, flipped, (has) flipped, flipping."""

    base: str
    plural: str
    third: str
    past: str
    participle: str
    ing: str


def inflect(verb: str) -> Forms:
    plural = "are" if verb == "be" else verb
    if verb in _IRREGULAR:
        _, past, participle = _IRREGULAR[verb]
    else:
        past = participle = _past(verb)
    return Forms(verb, plural, _third(verb), past, participle, _ing(verb))


def phrase(text: str) -> Forms:
    """All forms of a phrase in the base form."""
    words = text.split(" ")
    verbs = [place for place, word in enumerate(words) if word.startswith("*")]
    if words[0] not in _NO_VERBS and 0 not in verbs:
        verbs.append(0)
    forms = []
    for number in range(len(Forms._fields)):
        said = list(words)
        for place in verbs:
            said[place] = inflect(words[place].removeprefix("*"))[number]
        forms.append(" ".join(said))
    return Forms(*forms)


def phrases(texts: tuple[str, ...]) -> tuple[Forms, ...]:
    return tuple(phrase(each) for each in texts)


def _third(verb: str) -> str:
    if verb in _IRREGULAR_THIRD:
        return _IRREGULAR_THIRD[verb]
    if verb.endswith(("s", "x", "z", "ch", "sh")):
        return verb + "es"
    return verb[:-1] + "ies" if _ends_in_y(verb) else verb + "s"


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if _ends_in_y(verb):
        return verb[:-1] + "ied"
    return verb + verb[-1] + "ed" if verb in _DOUBLED else verb + "ed"


def _ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee") and verb != "be":
        return verb[:-1] + "ing"
    return verb + verb[-1] + "ing" if verb in _DOUBLED else verb + "ing"


def _ends_in_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2] not in "aeiou"

"""What people who go somewhere do, and the words for them and for places.

Somebody goes {to} a place ("to the attic", "to Rome"), is {in} it, or enters {the} place. {next} is another place they go
to, {old} the one they leave. A bar: from here on it is known that this sentence says where they are.
"""

import random

from holdfast_thinking.grammar.words import INVENTED, JOBS, NOUNS, RARE, RELATIONS
from holdfast_thinking.grammar.words import NAMES as MORE_NAMES
from holdfast_thinking.tasks.filler import NAMES as FEW_NAMES
from holdfast_thinking.tasks.filler import split_list
from holdfast_thinking.tasks.rooms import PLACES as ROOMS

NAMES = tuple(dict.fromkeys((*FEW_NAMES, *MORE_NAMES, *split_list(
    "Aaron Abby Abdul Abigail Agnes Ahmed Albert Alejandro Alma Amara Amina Amir Anders Andre Angela Anita Anton April"
    " Arjun Asha Astrid Audrey Aya Barry Beatrice Bella Benjamin Bernard Bjorn Boris Brenda Bruno Caleb Camila Carlos"
    " Carmen Caroline Casper Cecilia Chen Chloe Claire Claudia Colin Connor Cora Craig Cynthia Dana Darius Deborah Dennis"
    " Derek Diego Dmitri Donna Doris Dylan Edith Edwin Eleanor Elias Elijah Elise Ella Elliot Elsa Emilio Enzo Esther"
    " Ethan Eugene Fatima Faye Fiona Florence Francesca Gabriel Gary Gavin Gemma Gerald Gina Gloria Gordon Graham Gustav"
    " Hamza Harold Hassan Hazel Hector Hiro Holly Hussein Ian Ibrahim Igor Imran Ines Ingrid Irene Iris Isaac Isabel"
    " Ivy Jacob Jada Jamal Janet Jasmine Javier Jin Joan Joanna Joel Jorge Joseph Joshua Joyce Juan Jude Julian June"
    " Karim Karen Keiko Keith Kelly Kenji Khalid Kurt Kyle Lars Layla Leah Leila Lena Leon Liam Lin Logan Lorenzo Lottie"
    " Louis Louise Luca Lucia Luis Luna Lydia Mabel Maggie Malik Manuel Marco Margaret Mario Marta Mateo Maya Mei Melissa"
    " Mohamed Monica Morgan Nadia Naomi Natalie Nathan Neil Nora Norman Olga Oliver Omar Orla Otto Owen Pablo Patricia"
    " Patrick Pavel Pedro Petra Philip Phoebe Pia Priya Rafael Rajesh Ralph Ravi Rebecca Ricardo Richard Rita Ronald"
    " Rosie Ryan Salma Samir Samuel Sana Sandra Santiago Sean Sergei Seth Sharon Sheila Sofia Sonia Stefan Stephen Sven"
    " Sylvia Tamara Tara Teresa Theo Thomas Tobias Todd Tracy Usha Valerie Vanessa Vincent Viola Walter Wanda Wayne"
    " Wei Wilma Yara Yasmin Yuki Yusuf Zainab Zara"
))))  # fmt: skip
PLACES = (*ROOMS, *split_list(
    "airport alley arcade arena armchair auditorium ballroom bookshop boathouse brewery cabin cafeteria campsite canteen"
    " caravan carpark casino cathedral checkout clinic cloakroom closet clubhouse college conservatory corridor cottage"
    " courthouse craftroom crypt deck den desert diner dock dorm driveway dungeon elevator embassy exit farmhouse"
    " fairground fireplace foyer gallery gate gazebo greenhouse grocery hangar haystack hill hostel hut igloo inn island"
    " jail jetty kiosk kiln lab lake landing laundry lawn lift lighthouse loft lounge mall mansion meadow mill mine"
    " monastery mosque mountain observatory orchard outhouse oven palace parlour passage path pavilion pharmacy pier"
    " pizzeria platform plaza pond prison quarry reception river roof room rooftop salon sauna shed shelter shore sofa"
    " spa square staircase stage store storeroom stream street studio submarine suite summit supermarket synagogue"
    " tavern tent toilet trail train treehouse tunnel university valley vault veranda village vineyard wardrobe"
    " warehouse washroom well wharf windmill yacht"
))  # fmt: skip
CITIES = split_list(
    "Paris London Rome Berlin Madrid Vienna Lisbon Oslo Dublin Athens Prague Warsaw Budapest Moscow Cairo Nairobi Lagos"
    " Tokyo Kyoto Seoul Beijing Delhi Mumbai Sydney Boston Chicago Denver Dallas Miami Texas Canada Mexico Brazil Peru"
    " Chile Spain France Italy Germany Poland Norway Sweden Egypt Kenya India China Japan Leeds Munich Geneva Naples Milan"
)
WALKS = split_list(
    "went| {to};went| {to};went| {to};went| {to};goes| {to};goes| {to};moved| {to};moved| {to};walked| {to};walks| {to};"
    "walks| into {the};walked| into {the};ran| {to};runs| {to};came| {to};comes| {to};came| into {the};enters| {the};"
    "entered| {the};journeyed| {to};travelled| {to};traveled| {to};travels| {to};went| back {to};goes| back {to};"
    "returned| {to};returns| {to};headed| {to};heads| {to};hurried| {to};hurries| {to};rushed| {to};rushes| {to};"
    "strolled| {to};strolls| {to};wandered| into {the};wanders| {to};drove| {to};drives| {to};flew| {to};flies| {to};"
    "rode| {to};rides| {to};cycled| {to};took| the bus {to};takes| a taxi {to};took| the train {to};takes| the stairs"
    " {to};arrived| at {the};arrives| at {the};has gone| {to};has moved| {to};moves| {to};jogs| {to};stepped| into {the};"
    "steps| into {the};sneaks| into {the};sneaked| {to};climbed| up {to};climbs| down {to};made| a trip {to};moved| on"
    " {to};set| off and reached {the};was seen| going into {the};reached| {the};reaches| {the};marches| {to};gets| {to};"
    "got| {to};crept| {to};dashed| {to};left| for {the};leaves| for {the};went| out {to};went| up {to};goes| down {to};"
    "was taken| {to};was sent| {to};got sent| {to};decided| to go {to};visits| {the};visited| {the};is back| {in};"
    "shows| up at {the};turned| up at {the};slipped| away {to};skips| {to};hopped| {to};carried| the bags {to};brought|"
    " the mail {to};followed| the cat {to}",
    ";",
)
STAYS = split_list(
    "is| {in};is| {in};is| {in};is| {in} now;is now| {in};is| at {the};was| {in};sits| {in};sat| down {in};sleeps| {in};"
    "fell| asleep {in};waits| {in};waited| at {the};stays| {in};stayed| {in};works| {in};stands| {in};can be found| {in};"
    "is reading| {in};is hiding| {in};eats| lunch {in};lives| {in};rests| {in};plays| cards {in};is sitting| {in}",
    ";",
)
LEAVES = split_list(
    "left {old} and went| {to};left {old} and walked| into {the};leaves {old} for| {the};left {old} for| {the};leaves {old}"
    " and goes| {to};went from {old}| {to};walked from {old}| {to};moved from {old}| {to};was in {old} but is now| {in};"
    "comes out of {old} and goes| {to};got tired of {old} and went| {to}",
    ";",
)
TWICE = split_list(
    "went| {to}, then {next};went| {to} and then {next};goes| {to} and then {next};walked| {to} and from there {next};ran|"
    " {to}, then {next};stopped| at {the} and went on {next};first went| {to} and later {next};drove| {to} and then {next}",
    ";",
)
IDLE = split_list(
    "is tired;looks at a photo of {the};talks about {the};likes {the};reads a book;says hello;has never seen {the};sings a"
    " song;misses {the};dreams of {the};is thinking about {the};laughs;has a new hat;asks about {the};is hungry;paints a"
    " picture of {the};heard about {the} on the radio;drinks tea;calls a friend;does not want to go {to};would like to go"
    " {to};never goes {to};has a map of {the};remembers {the};is cold;whistles;waits a moment;cleans the glasses;is"
    " afraid of {the};did not go {to}",
    ";",
)
BEFORE = split_list(
    "Then;Then;After that;After that,;Later;Later,;Next,;Afterwards,;Meanwhile,;A minute later,;Now;Soon;In the evening,;At"
    " noon,;And then;So;Finally,;But then;The next day,",
    ";",
)
AFTER = split_list(
    "again;now;at noon;quickly;in a hurry;after lunch;without a word;at last;this time;with a smile", ";"
)
ASKS = split_list(
    "Where is {who}?;Where is {who}?;Where is {who}?;Where is {who}?;Where is {who} now?;Where did {who} go?;Where can I find"
    " {who}?;Where's {who}?;Where's {who} now?;Do you know where {who} is?;Tell me where {who} is.;Where would you find"
    " {who}?;Where is {who} at the end?;So where is {who}?;Where was {who} last seen?;What place is {who} in?;Say where"
    " {who} is.;Where should I look for {who}?",
    ";",
)


def vocabulary() -> tuple[str, ...]:
    """All texts but rare and invented words, which have no tokens of their own."""
    people, places = (*NAMES, *JOBS, *RELATIONS), (*PLACES, *CITIES, *NOUNS)
    return (*people, *places, *WALKS, *STAYS, *LEAVES, *TWICE, *IDLE, *BEFORE, *AFTER, *ASKS)


def draw_person(rng: random.Random) -> tuple[str, str]:
    """Somebody as a sentence names them, and the word for them in a thought."""
    kind = rng.random()
    if kind < 0.76:
        name = rng.choice(NAMES)
    elif kind < 0.86:
        name = rng.choice(INVENTED).capitalize()
    elif kind < 0.95:
        name = rng.choice(JOBS)
        return f"the {name}", name
    else:
        name = rng.choice(RELATIONS)
        return f"{rng.choice(('my', 'my', 'our', 'his', 'her'))} {name}", name
    return name, name


def draw_place(rng: random.Random) -> tuple[str, str]:
    """A place as a sentence names it, and its word."""
    kind = rng.random()
    if kind < 0.10:
        name = rng.choice(CITIES)
        return name, name
    if kind < 0.50:
        name = rng.choice(ROOMS)
    elif kind < 0.86:
        name = rng.choice(PLACES)
    else:
        name = rng.choice(NOUNS if kind < 0.92 else RARE if kind < 0.95 else INVENTED)
    return f"the {name}", name

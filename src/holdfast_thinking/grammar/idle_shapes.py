"""Shapes of sentences about anything but a coin: {n}, {m}: nouns; {a}: an adjective; {N}, {M}: people;
{w}: a word of any kind; {t}: a thing that can be turned over.
"""

from holdfast_thinking.tasks.filler import split_list

# In the base form, without an object that "it" could mean.
ALONE = split_list(
    "smile,giggle,sigh,cough,sneeze,yawn,nod,shrug,wait,wait a moment,stand up,enter,enter the"
    " room,leave the room,walk in,walk over,walk to the table,walk around,go to the desk,go outside,go"
    " home,go away,come back,come over,come closer,come along,step forward,step closer,step"
    " outside,turn red,turn to {N},turn around,lean forward,lean back,bend down,kneel down,sit on the"
    " floor,sit next to {N},stand by the window,stand in the"
    " doorway,jump,dance,sing,whistle,hum,whisper,shout,cry,sleep,dream,wake up,think,think hard,think"
    " for a moment,hesitate,stop,stop for a moment,look around,look up,look away,look out of the"
    " window,look at {N},look at the clock,wave at {N},talk to {N},talk for an hour,chat with {N},speak"
    " to {N},ask {N},greet {N},thank {N},call {N},help {N},meet {N},follow {N},wink at {N},point at"
    " {N},argue with {N},agree with {N},play with {N},shake hands with {N},say hello,say nothing,say"
    " goodbye,say a few words,tell a joke,tell a story,make a joke,make a face,make tea,make a"
    " wish,make coffee,take a step,take a breath,take a break,take a seat,take a nap,have lunch,have a"
    " drink,have a cold,have an idea,have to go,get tired,get bored,get angry,get ready,feel tired,feel"
    " happy,be bored,be late,be in a hurry,be very tired,be happy,be angry,be curious,be new here,be"
    " next,be in a good mood,be there too,be a student,be from {P},live in {P},come from {P},arrive"
    " from {P},travel to {P},work in {P},work hard,count to ten,close both eyes,raise a hand,roll up"
    " both sleeves,clap,eat,drink,eat lunch,eat a sandwich,drink water,cook dinner,read the news,write"
    " a letter,open the window,close the door,switch on the light,put on a hat,take off the coat,wash"
    " both hands,clean the table,pay the bill,win the game,lose a bet,run away,run in,rush in,hurry,go"
    " first,go next,go last,move closer,grow up,fall asleep,lie down,rest,study,listen,listen to the"
    " music,play the piano,check the time,check the phone,lose patience,miss the bus,catch a cold,drop"
    " a pencil,want to see more,want to go home,want to win,like games,love music,hate rain,need a"
    " break,try hard,try again,remember the rules,know the rules,explain the rules,forget the"
    " time,learn the rules,begin,begin to laugh,start to cry,keep smiling,keep quiet,stay calm,stay for"
    " dinner,show up,give up,give a speech,give {N} a hug,pick a card,draw a card,roll the dice,spin"
    " around,scratch one ear,rub both hands,stretch,blink,bow,pray,swear,beg,wander about,drive"
    " home,ride past,arrive,arrive late,appear,disappear,return,return from work,hear a noise,see a"
    " bird,see {N},find a seat,lead the way,pull up a chair",
    ",",
)
# Things that are turned over and are no coin.
FLIPPED = split_list(
    "the pancake,a pancake,the page,the card,a card,the switch,a switch,the mattress,the burger,the"
    " egg,the steak,the record,the sign,the book,the box,the cup,the glass,the hourglass,the paper,the"
    " photo,the plate,the table,the pillow,the stone,the boat,the canoe,the omelette,the tile,the"
    " letter,the cushion,the chair,the fish,the shirt,the mat",
    ",",
)
FLIPPED_SHAPES = (
    "{N} flips {t}", "{N} flips {t} over", "{N} turns {t} over", "{N} turns over {t}", "{N} flipped {t}",
    "{N} turned {t} over", "{N} does not flip {t}", "{N} tosses {t} away", "{N} is flipping {t}",
    "{N} wants to flip {t}", "{N} turns {t} upside down", "{N} reverses the car", "{N} turns over in bed",
    "{N} turns around", "{N} turns left", "{N} flips through a magazine", "{N} turns the music down",
    "{N} tosses a ball", "{N} rolls over and sleeps", "{N} turns on the light", "{t} is turned over",
    "{N} switches the lamp on", "{N} tosses and turns all night", "{N} does a back flip",
    "{t} gets flipped by {N}",
)  # fmt: skip
LOOSE = (
    "the weather is fine", "it rains", "everybody laughs", "the music stops", "a bell rings",
    "time passes", "that was long ago", "the room is quiet", "nothing else happens",
    "the phone rings twice", "someone knocks at the door", "the tea gets cold", "snow is falling outside",
    "dinner is ready", "the lights go out for a moment", "a car stops in front of the house",
    "they talk about football", "it is late", "the children are asleep", "it is getting dark",
    "the sun is shining", "it is hot in here", "the {n} is {a}", "the {n} is {a} and {b}",
    "there is a {n} in the {m}", "there are two {n}s on the {m}", "it was a {a} {n}", "{N} is {a}",
    "{N} and {M} are {a}", "{N} has a {a} {n}", "the {n} of {N} is {a}", "nobody knows the {n}",
    "everybody likes the {n}", "{N} is the {n} of {M}", "what a {a} {n}", "a {n} is not a {m}",
    "the {n} smells of {m}", "the {n} near the {m} is {a}", "it smells of {n}", "{N} loves {M}",
    "{N} and {M} are friends", "it is {a} outside", "the {n} is {w}", "someone mentions the {n}",
    "the {n} was {a} last year", "my {n} is {a} today", "the {w} {n} is {w}", "{N} is {w}",
    "no {n} is as {a} as this {m}", "all the {n}s are {a}", "one {n} is missing", "a {a} {n} falls down",
    "the {n} breaks", "a {n} moves", "the {n} does not work", "the {n} never stops",
    "the {n} belongs to {N}", "this has nothing to do with the {n}", "{N} is not here",
    "{N} will be back soon", "{N} is 9 years old", "the {n} costs 5 dollars", "there are 3 {n}s left",
)  # fmt: skip
OPENINGS = split_list(
    "Here is a riddle.|Please read carefully.|Question:|Q:|Consider the following.|Listen.|Hi!|Hello.|A"
    " short story.|Let me ask you something.|Can you solve this?|Think about this.|I have a"
    " question.|Okay, next one.|This happened yesterday.|Once upon a time,|Hey!|Hey there,|Puzzle:|A"
    " puzzle for you.|Try this one.|Problem 1.|Task:|Exercise 3.|Answer the question.|Please"
    " answer.|Read this and answer.|Help me with this.|Quick one:|Story:|Prompt:|User:|Now a"
    " game.|Another question.|Here we go.|Good morning.|Imagine this.|Follow the story.|Be careful.|It"
    " is easy.|You are a helpful assistant.|Solve it.|One more:|Example:|Hi, can you help me?|OK"
    " so|Alright,|So,",
    "|",
)

"""Questions and requests about anything but a coin's side and the values of variables.

{n}, {m}: nouns; {a}, {b}: adjectives; {N}, {M}: people; {w}: any word; {i}, {j}: numbers; {s}: a subject.
"""

from holdfast_thinking.tasks.filler import split_list

SUBJECTS = split_list(
    "the moon,bread,bees,chess,the violin,volcanoes,coffee,castles,mountains,dreams,penguins,trains,the"
    " sun,football,robots,cheese,owls,maps,deserts,whales,poetry,spiders,bridges,the"
    " Romans,dinosaurs,salt,money,music,the brain,gravity,algebra,the internet,black"
    " holes,jazz,yoga,wolves,the ocean,earthquakes,telescopes,fairy"
    " tales,democracy,photography,tea,running,swimming,cats,dogs,museums,languages,Spain,"
    "France,Japan,Germany,India,Africa,Paris,London,Mozart,Einstein,Shakespeare,Napoleon,the"
    " president,the economy,climate"
    " change,cancer,love,happiness,time,space,life,death,"
    "history,physics,chemistry,biology,mathematics,computers,Python,software,cars,food,sports,the"
    " weather,god,art,school,work",
    ",",
)
ASKS = split_list(
    "What is the {n} of {N}?|Who has the {n}?|Who made the {n}?|Who wrote the {n}?|Who was {N}?|Who is"
    " {N}?|Who invented the {n}?|Who discovered {s}?|Who wrote about {s}?|Who won the game?|Who sings"
    " this song?|Who lives in the {n}?|Where is the {n}?|Where is {N}?|Where are my {n}s?|Where can I"
    " buy a {n}?|Where do {n}s come from?|Where does {N} live?|Why is the {n} {a}?|Why do people like"
    " {s}?|Why does the {n} {w}?|Why is {s} important?|Why are {n}s {a}?|Why did {N} leave?|How many"
    " {n}s are in the {m}?|How many {n}s does {N} have?|How many days are in a year?|How much does a"
    " {n} cost?|How old is {N}?|How big is the {n}?|How far is the {n}?|How long does it take to learn"
    " {s}?|How do I make a {a} {n}?|How do I learn {s}?|How do I fix my {n}?|How can I find a {n}?|How"
    " does a {n} work?|How does {s} work?|How do you say {n} in French?|How do {n}s sleep?|How is"
    " {N}?|How was your day?|When does the {n} open?|When was {N} born?|When did {s} begin?|When is the"
    " {n}?|Can you help me with my {n}?|Can you explain {s}?|Can you write a {n}?|Can you sing?|Can you"
    " speak German?|Can a {n} be {a}?|Could you tell me about {s}?|Could you recommend a {n}?|Could you"
    " check my {n}?|Would you like a {n}?|Will it rain today?|Should I buy a {n}?|Should {N} learn"
    " {s}?|Tell me a story about a {a} {n}.|Tell me about {s}.|Tell me something {a}.|Tell me a"
    " joke.|Tell me about {N}.|Tell {N} to bring the {n}.|Write a poem about the {n}.|Write a story"
    " about {N} and {M}.|Write a letter to {N}.|Write an essay about {s}.|Write a Python function that"
    " sorts a list.|Write code that prints a {n}.|Write an email to my {n}.|Write two sentences about"
    " {s}.|What do you know about {N}?|What do you know about {s}?|What do you think about {s}?|What is"
    " {s}?|What is a {n}?|What is the meaning of {w}?|What is the best {n}?|What is the difference"
    " between a {n} and a {m}?|What is the name of the {n}?|What is the colour of the {n}?|What is the"
    " capital of this country?|What is the capital of Spain?|What is the capital of Japan?|What is your"
    " name?|What is your job?|What is the weather like?|What is the time?|What is the date today?|What"
    " is {i} plus {j}?|What is {i} times {j}?|What is {i} + {j}?|What is {i} * {j}?|What are {n}s made"
    " of?|What are the rules of chess?|What are you?|What are you doing?|What can you do?|What color is"
    " the {n}?|What time is it?|What should I cook for {N}?|What should I read?|What should I do with"
    " my {n}?|What happened to {N}?|What happened in the {n}?|What does {w} mean?|What does {N}"
    " want?|What does the {n} look like?|What language is this?|What year is it?|What's new?|What's up"
    " with {N}?|What's the best way to learn {s}?|What would {N} say about {s}?|Which {n} is {a}?|Which"
    " {n} should I buy?|Which {n} does {N} like?|Which country has the most {n}s?|Which is larger, the"
    " {n} or the {m}?|Which book about {s} is good?|Is the {n} {a}?|Is {N} {a}?|Is {N} at home?|Is {s}"
    " {a}?|Is it true that {n}s are {a}?|Is there a {n} near here?|Is it {a} in the {n}?|Are you"
    " {a}?|Are you a robot?|Are {n}s {a}?|Are there any {n}s?|Am I {a}?|Was {N} a {n}?|Were the {n}s"
    " {a}?|Do you like {n}s?|Do you like {s}?|Do you know {N}?|Do you speak French?|Do {n}s have"
    " {m}s?|Does the {n} have a {m}?|Does {N} like the {n}?|Does {s} matter?|Did {N} find the {n}?|Did"
    " you sleep well?|Has {N} seen the {n}?|Have you seen my {n}?|Translate the word {n}.|Translate to"
    " German: the {n} is {a}.|Explain the {n} to a child.|Explain {s} in simple words.|Explain how a"
    " {n} works.|Describe the {n}.|Describe {s}.|Describe {N}.|Define {w}.|Define the word"
    " {n}.|Summarize the {n}.|Summarize {s} in one line.|Give me three ideas for a {n}.|Give me a list"
    " of {n}s.|Give me advice.|Give me facts about {s}.|Give an example of a {n}.|Make a list of {a}"
    " {n}s.|Make me a {n}.|Make a plan for the {n}.|Find the {n}.|Find a word for {a}.|Draw a {n}.|Show"
    " me the {n}.|Sing a song about {s}.|Play some music.|Open the {n}.|Close the {n}.|Call {N}.|Send"
    " the {n} to {N}.|Count the {n}s.|Spell {w}.|Spell the word {n}.|Compare {s} with the {n}.|Compare"
    " a {n} and a {m}.|Correct this: {N} go to the {n}.|Fix this code.|Finish the sentence: the {n}"
    " is|Continue the story.|Repeat after me: {w}.|Say something.|Say {w}.|Say it in French.|Recommend"
    " a {n} for {N}.|Suggest a name for my {n}.|Imagine you are a {n}.|Pretend to be a {n}.|Act as a"
    " {n}.|Plan a trip to the {n}.|Plan a party.|Cook something.|Who are you?|How are you?|How are you"
    " today?|Hello!|Hello|Hi|Hi there!|Hey|Hello, how are you?|Hello {N}!|Good morning.|Good"
    " night!|Good afternoon.|Bye!|See you later.|Thank you!|Thanks a lot.|Thanks, {N}.|Please"
    " help.|Help!|Help me.|Yes.|No.|Okay.|Why?|How?|Who?|When?|What?|Where?|Really?|Sorry.|I am {a}.|I"
    " am bored.|I am hungry.|I love {N}.|I love {s}.|I need a {n}.|I lost my {n}. What now?|I have a"
    " {n}.|I feel {a} today. What can I do?|I want to learn {s}.|I want to buy a {n}. Which one is"
    " good?|I don't know what to do.|My {n} is {a}. What is wrong?|My {n} is broken.|My friend {N} is"
    " {a}. How can I help?|My name is {N}. What is yours?|{N} is {a}. Why?|{N} is a {n} and {M} is a"
    " {m}. Who is older?|{N} has {i} {n}s and buys {j} more. How many {n}s does {N} have?|{N} is older"
    " than {M}. Who is younger?|{N} gave the {n} to {M}. Who has the {n}?|{N} went to the {n}. Where is"
    " {N}?|{N} is in the {n}. {M} is in the {m}. Where is {M}?|If the {n} is {a}, what is the {m}?|If I"
    " have {i} {n}s and eat one, how many are left?|A train leaves at {i}. When does it arrive?|A {n}"
    " costs {i} dollars. How much are two {n}s?|All {n}s are {a}. Is a {n} {a}?|Once there was a {n}."
    " What happened next?|In which year did {s} begin?|In which country is the {n}?|On which day is the"
    " {n}?|For how long is the {n} open?|From where does the {n} come?|To whom does the {n}"
    " belong?|With whom does {N} live?|Whose {n} is this?|Whose {n} is {a}?|print({i})|def"
    " {w}():|import {w}|for i in range({i}):|1 + 1|2 + 2 = ?|{i} * {j} = ?|Is {i} a prime number?|Is"
    " {i} larger than {j}?|Half of {i} is?|Roll a die.|Pick a number.|Guess a number.|Choose a"
    " card.|Name a {n}.|Name three {n}s.|Name the largest {n}.|{w}?|{w} {w}|What {w}?|The {n}|A {a} {n}",
    "|",
)
# The word coin, heads or tails, in another sense.
COINS = split_list(
    "Which coins does Japan use?|Who invented the coin?|What is a coin?|What is a coin made of?|How"
    " much is an old coin worth?|How much does a coin weigh?|Where can I sell my coins?|Where are coins"
    " made?|How many cents are in a dollar?|What is the oldest coin?|Who is on the penny?|What is"
    " bitcoin?|Should I buy a gold coin?|How do I clean a silver coin?|How do I start a coin"
    " collection?|Tell me the history of coins.|Write a poem about a coin.|Write a story about a lucky"
    " coin.|Why are coins round?|Why do dogs have tails?|Why do cats wag their tails?|How many heads"
    " does a dragon have?|Do cats have long tails?|Which animals have no tails?|What is the chance of"
    " heads?|What is the probability of two heads?|What is a fair coin?|Is a coin flip fair?|Who says"
    " heads are better than tails?|What is a variable?|What is a variable in Python?|How do variables"
    " work?|Explain variables to a child.|What is the value of money?|What is the value of a {n}?|What"
    " is the state of the {n}?|What is the state of the economy?|Which side of the {n} is {a}?|Which"
    " side of the road is right?|Which side won the war?|Which side is {N} on?|Is the {n} upside"
    " down?|How do I flip a pancake?|How do I flip a house?|How do I turn over a {n}?|Who turned the"
    " {n} over?|{N} flips the {n}. Why?|{N} turns the page. What does {N} read?|Translate the word"
    " coin.|Spell coin.|What does heads up mean?|What is the other side of the {n}?|I found a coin."
    " What should I do?|I collect coins. Do you?|My coin is from {s}. How old is it?|What are coins"
    " used for?|Do you like coins?|Draw a coin.",
    "|",
)
# What comes before a request, and requests that may follow it.
BEFORE = split_list(
    "hey|hi|hello,|pls|please|ok|okay,|so|quick question:|question:|yo|sorry,|excuse me,|can you|could you|could"
    " you please|would you"
    "|can u|would you mind to|i want you to|i need you to|help me to|you should|let's|now|next:|first,|dear"
    " model,|hi there,|{N} here,",
    "|",
)
REQUESTS = split_list(
    "tell me about {s}|tell me a joke about {n}s|write a song about {s}|explain {s} to me|explain how {n}s are"
    " made|list five"
    " {n}s|list all {n}s|name some {a} {n}s|translate {w} into Spanish|translate this into French: the {n} is"
    " {a}|summarize the"
    " book about {s}|describe a {a} {n}|draw me a {n}|find me a {n}|book a flight to {s}|order a {n}|plan my"
    " week|fix my"
    " {n}|clean my {n}|count to {i}|spell {w} backwards|add {i} and {j}|multiply {i} by {j}|divide {i} by"
    " {j}|solve this"
    " equation: {i} y + {j} = 0|compute the square root of {i}|roll two dice|roll a die for me|draw a card|shuffle the"
    " cards|deal me a hand of poker|pick a random number|play chess with me|play a game|play the song about the"
    " {n}|turn on the"
    " {n}|turn off the lights|turn up the volume|set an alarm for {i}|remind me of the {n}|call {N}|text {N} that i am"
    " {a}|send a mail to {N}|open the {n}|close the window|show me pictures of {n}s|sort these words: {w}"
    " {w}|count the letters in"
    " {w}|rhyme with {w}|make up a story|continue: once upon a time|review my {n}|check this sentence: {N} have"
    " a {n}|debug my"
    " code|write a test|write a regex|write html for a {n}|write a query for the {n} table|convert {i} dollars"
    " to euros|convert"
    " {i} feet to meters|give me a recipe for {m}|give me tips for {s}|recommend a film about {s}|teach me {s}|cheer me"
    " up|talk to me|guess my age|be quiet|stop it|go away|try again",
    "|",
)
CHATS = split_list(
    "haha|ok|okay|cool|nice|wow|great|thanks|thx|ty|bye|good bye|hey|yo|hmm|what|huh|test|testing|hello?|are you"
    " there|who made you|who"
    " are u|what are u|how old are you|where are you from|do you dream|do you have feelings|can you think|are"
    " you human|are you"
    " alive|i like you|i hate {n}s|i am sad|i'm tired|i'm {a}|my {n} died|my {n} won't start|my back hurts|it is"
    " my birthday|i"
    " have a headache|should i marry {N}|does {N} love me|will i be rich|what should i wear|what is for"
    " dinner|what's for"
    " lunch|tell me more|and then what|why not|no way|that's wrong|you are wrong|you're {a}|what is the"
    " point|lorem ipsum|asdf|"
    "qwerty|12345|{i}|{i} {j}|???|...|!|{w} {w} {w}|{w}|the {n} is {a}|{N}|{N} is {a}",
    "|",
)
FACTS = split_list(
    "how tall is {N}|how deep is the sea|how hot is the sun|how far away is the moon|how fast is a {n}|how heavy"
    " is a {n}|how many"
    " people live in {s}|how many planets are there|how many legs has a {n}|how many cards are in a deck|how"
    " many sides does a die"
    " have|what is the chance to roll a six|what is the probability of two sixes|which card is higher, a king or"
    " a queen|what"
    " beats a full house|what is {i} percent of {j}|what is the square of {i}|what's {i} minus {j}|what is {i}"
    " divided by {j}|is"
    " {i} even|is {i} odd|is {i} divisible by {j}|what comes after {i}|how many {n}s can {N} buy for {i}"
    " dollars|if {N} is {i}"
    " years old, when was {N} born|{N} runs {i} miles in {j} hours, how fast is that|who was the first king of"
    " {s}|who painted the"
    " {n}|who built the {n}|who is the richest person|who discovered gravity|when did the war end|when was {s}"
    " founded|where is"
    " {s}|where do {n}s live|why is grass green|why do we dream|why do {n}s {w}|what do {n}s"
    " eat|what is the"
    " largest {n}|what is the tallest {n}|what is the smallest country|what is the longest river|what is the"
    " opposite of {a}|what"
    " is another word for {a}|what is the plural of {n}|what rhymes with {n}|what is {w} in German|is {s} bigger"
    " than {N}|is a"
    " {n} a {m}|are {n}s better than {m}s|can {n}s fly|do {n}s sleep|did {N} win|has {N} ever seen a {n}|was {s}"
    " {a}|which {n} is"
    " the best|which day is today|which planet is the largest|what is the best time for {s}",
    "|",
)

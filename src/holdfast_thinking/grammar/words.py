"""Words by kind, for sentences about anything. `RARE` and invented words have no tokens of their own:
a model reads them letter by letter, like any word it does not know.
"""

import random

from holdfast_thinking.tasks.filler import NAMES as FEW_NAMES
from holdfast_thinking.tasks.filler import split_list

NOUNS = split_list(
    "house street river garden window door table chair kitchen letter newspaper train bus car bicycle"
    " ship harbour bridge tower church school teacher doctor farmer baker painter singer dog cat horse"
    " bird fish cow sheep tree flower grass forest mountain valley lake sea island beach cloud rain"
    " snow wind storm sun moon star night morning evening summer winter bread butter cheese milk tea"
    " coffee soup apple orange lemon pear plum cake sugar salt knife fork spoon plate glass cup bottle"
    " basket box bag coat hat shoe shirt dress ring watch clock lamp candle book page story song poem"
    " picture photo map film radio phone computer engine wheel road path field wall roof floor stairs"
    " room bed pillow blanket mirror key lock hammer nail rope stone sand gold silver iron wood paper"
    " pencil game ball team king queen soldier judge thief ghost dream idea question answer name number"
    " word language country city village market shop bank office factory hospital museum theatre cinema"
    " library park station airport uncle aunt cousin neighbour friend child baby mother father brother"
    " sister husband wife guest waiter cook driver pilot captain student lesson test prize party"
    " wedding birthday holiday journey ticket price money bill job boss meeting plan problem mistake"
    " secret joke smile tear hand foot head eye ear nose mouth heart finger hair back"
)
ADJECTIVES = split_list(
    "old young new small large long short high low warm cold hot wet dry dark bright quiet loud fast"
    " slow heavy light clean dirty empty full rich poor happy sad angry tired hungry thirsty kind"
    " strange famous strong weak early late red blue green yellow white black grey brown sweet sour"
    " fresh broken open closed wooden golden deep narrow wide beautiful ugly clever simple difficult"
    " important round square soft hard thin thick"
)
# Common words of all kinds.
COMMON = split_list(
    "the of and to many in for is he has each as she how are on his her much that does have than at did"
    " total will day more per it with times number can was they cost hours one money week half twice"
    " two from three minutes an first had all them hour make were there every buy bought left their by"
    " years days be miles costs up long year if students get people second take need time then amount"
    " wants old feet month takes third needs pounds water after out school pay spend store new what"
    " books sold remaining buys him apples this four class which rest but only now do pieces price"
    " friends into also average cookies same sells dollars house would gave gets less some car box who"
    " red before last boxes made eat inches pages weeks spent makes while went sell fish when eggs"
    " points other marbles dog so blue home work got five read friend food took off cards cars"
    " calculate ounces another trip paid over book bag used next brother game combined eats ate family"
    " decides together bags run spends speed end minute uses age go both candy gallons pound children"
    " party tickets slices away fewer earn back during not decided shirts cups dogs square sister use"
    " weight oranges able team tree gives worth green works dozen small goes pizza you tall different"
    " rate between fourth trees pencils games scored put bottles weighs cans months company large"
    " making six its these give equal going shoes already chocolate packs tank selling person pairs"
    " shop milk pair sale flowers save girls down runs full balls enough seconds animals morning farm"
    " pack bars been ten white discount buying received foot profit yellow meters set bottle plants"
    " park mother birthday paper coffee contains older boys bus distance walk calories fill additional"
    " through bread start currently lunch paint night bill finish plant balloons jar should gallon play"
    " collected order cats ice garden fruit group liters collection bills cents candies pays room"
    " altogether those score still race movie started could stickers percent receive pens picked"
    " building gas where kids found quarter hold working equally chairs drive cut ticket length drink"
    " cream apple cup dinner soda toys change pool ordered job double bank chickens mile local or show"
    " math percentage final customers lost ride drinks size chips blocks earned cheese beans charges"
    " mom earns caught cake far cupcakes entire teacher today whole seeds bananas kilograms weigh birds"
    " sales items about father owns pie student own saw must restaurant sandwiches extra travel pants"
    " parents degrees leaves add high phone crayons saved roses see stamps test walks season beads"
    " video needed shirt share black truck cat raise tomatoes pizzas market around starts field guests"
    " having weekend sugar cows quarters eight questions want previous cakes playing flour words"
    " chicken way drives floor reading big members collect longer salary bike pies basketball ounce"
    " given kilometers plans any like brought running pick rows socks ago trying piece came monthly lot"
    " height library goal orange train just wide orders parking juice younger complete split grade"
    " account worked farmer wanted corn added road city butter ran fifth original holds classes"
    " computer sum feed apartment reach won child savings son shopping ones page planted puts value"
    " jelly gift rent once adds temperature town movies round fruits herself collects gold package"
    " filled top row legs potatoes grocery card employees adult come men purchase business grams"
    " produce until homework bake walked part everything yards dad free glasses charge certain played"
    " using songs strawberries candles no fee find picks sticks clothes watch catch bowl increased"
    " later capacity driving stop taking traveled difference likes female divided area hair ducks throw"
    " supplies inch machine plates finds egg across table single players brownies level vacation adults"
    " everyone favorite lemonade women daily being budget reads football win neighborhood office sees"
    " meat shells toy break keep afternoon receives sets beach carrots plus because evening basket"
    " planning knows cover clean decide soccer ball land steps baseball help write bring pet type rope"
    " cuts rooms seats carry laundry station wash right normal ages sent customer tax sandwich least"
    " saving puppies breakfast walking delivery slice letters lawn build project gifts hats glass fast"
    " eaten lose episodes finished tables vegetables meal plays bed factory paying bucket dolls sheep"
    " beginning leave zoo population houses space goals summer regular maximum tip again allowance"
    " flower twenty yard groups eating point hot photos ratio purchased floors getting lollipops among"
    " batch visit notebooks player current doing recipe jeans fit packages instead inside pink expenses"
    " cookie produces loves expensive nickels kitchen taken most counted sheets trips living including"
    " goats painting very grow traveling dollar meter originally lake asked pond taxes evenly bar sure"
    " dimes tennis color cleaning bracelets meals watching light hand wife kept place aquarium bedroom"
    " spots brings compared dress himself river bathroom medium kilogram lift purple paintings muffins"
    " comes too animal calls online good daughter teachers rolls watches jump oil open gym bakes faster"
    " well units travels trucks pets contain loaves special practice problems ground male fabric"
    " jellybeans baked tires popcorn salad remain fries colors piggy wood necklaces beef hotel increase"
    " triple pictures wheels stuffed fence brown thirds count dishes shared baby peaches doubles stock"
    " center saves told gum throws street taller siblings dance best thrice block pen done starting"
    " fills air seven squares attended wall remainder scores groceries interest drove yesterday horses"
    " increases normally pennies backyard"
)
RARE = split_list(
    "wool completes workout monitor arranged contact fairy nickel pump surfers tell biked till halves"
    " pork walnuts donut sleeping kilo deer position stone sticker button marked perfume scents slower"
    " falls cubs schedule burritos jello outdoor version longest crops toward fancy portraits easy"
    " caused fountain gear lunches bottled debt famous survey crafts skipped gallery principal sprays"
    " channel heavier remains robot creating porch runners elder manage camping champagne organized"
    " broccoli journal sailors frosting hangs pulls keeping blow speeding vaccine silk avocados lets"
    " vampire sundae plumber theme grabs plain vampires beaded grey creams companies requests coffees"
    " quantity pulling never powder planet toenails pumpkins staff lock pipe growth breeding parent"
    " rush lambs sailboat sail minnows gate reviews circles salads wipes expense parrot died haired"
    " spicy folder hunts colony campers spiral sodium bunnies ladies giraffes crab seedlings kite"
    " boxcars maths lipstick macaroons path numbered heater rise think note gems marigolds slept shore"
    " port patient village hive inflate attending forth lily keyboard babysit tutoring voted sided"
    " greater straw award reward solved rainwater integer upgrade mixing returning overdue heat slow"
    " pushups squats exercised wishes future scheduled services stuffing hiked dividing watts reduces"
    " rack comb bagel knowing utensils mentioned gains necessary flavor cheapest search coworker guinea"
    " nephew replacing contacts invites shovel wardrobe shot carriage joins mosaic asphalt fixing"
    " election parks roommate catering scent eggplants assistant hanging infected badges bumper shell"
    " mass coupons labor fencing lawyer frost shifts difficult sizes dropping bunches periods private"
    " parked fishes visiting though pods triples dentist beer spilled steals diapers basic improve"
    " quizzes pomelos changing hops junk wondering poured interview desert platter megabytes milkshake"
    " salmon provided partner geckos borrows follows sparkling enjoys uphill turkeys vans raisin"
    " dandelion neither primary deducted listen blown grill fields trumpet represent owned jogging"
    " happy crafting biology heard leaf centers taco rains residents cottage collector gigabytes"
    " birdseed involved singers cobbler shed woman treadmill stopping cobs exhibit mushroom ketchup"
    " drums spaceship dining knocked cabinets credits bathtub challenge leopards drain strips handle"
    " wrong commute parsley samples jail stays passenger gross roosters flooring tail reserved"
    " orchestra wasted fluid twigs raffle tents postcards carbon slippers sews sharpen character lamp"
    " towers tabs sibling tricycles mission bone cardinals binder fleas pups blonde pickup carriages"
    " sours covering wish known raspberry construct buried footage groomer hopes canned lined exit"
    " doorbell weekday cashback cleaned officer helping intended unicorns tricycle baguettes hiding"
    " clownfish babysits marching peel florist corner survive flamingos lowest candied leaks randomly"
    " avocado killed buyer transfer proceeds real agent sleeves celery super opening simple beats poles"
    " employed advance juggling crowd outfits trained yoga donating awards pupils zebra contract"
    " whatever homemade causing signing feeder expect lawnmower vending onion helium variety aluminum"
    " falling pillow dairy penny ever promises venue couch burned mittens vlogs relatives kitten shops"
    " carpet chosen lighter diamond snowflake posted bamboo mower twin gravel cinnamon fixed carpenter"
    " voters shingles berry yields bagels cycles refund firm floral farms true manicure orchids workday"
    " mint brew tube goat spelling root pirates purpose thank pumped booked bean jury athletic bounce"
    " helps decade invests devices ropes puffs varsity snowballs melt tourists owed enters continued"
    " escape curtains decreased varnish figured settings unique requested trick amongst unicorn"
    " librarian canteen rated huge solution talk projects solve barn accounts castle knife afterward"
    " ladders tonight buyers wholesale elephant loading deeper asparagus gotten looked downtown"
    " splitting result career spread miniature hills tacos skates compete quality closing renting taxi"
    " defective smoothies vegan similar lattes panda orphanage flagpole lime bulb whom statue bloom"
    " provides striped dancing wilted versus stolen loved dots brochures wild unloaded sightings hatch"
    " invest destroyed brushes eaters carpets voting figuring toddlers misses figurines colouring"
    " producing circus dive lands bundles segment sails almost peak essays jacks guard pelican foreign"
    " capsule olives stations beanie avoid clarinet product humans barrettes vest helmet chickpeas prom"
    " fluffy topping toppings curry brownie lizard shoot police eagle hangers tagged grabbed chlorine"
    " fences pudding safely nautical lived ironing turkey poem garlic fantasy crows napkins awake cloth"
    " inbox raining hikes orchards bookcase runway software pizzeria hibiscus patches olds inks calling"
    " stain stocks omelettes yacht pollywogs merchant westward melts gemstone beeswax freelance rates"
    " recipes potted rowed became stew doctors elves subs bleach hectare loser inflated fourteen chose"
    " uniform likely rodents cages trader newly pail macaroni pools canoe melons enjoy cave handful"
    " aquariums cougars kill stalls estate bead bookshelf suckers beetle errands invite chihuahua"
    " kicked wallpaper pitcher quadruple watt kilowatts cannolis herd camels boats tattered caterer"
    " hotdog names dragons premiere staying potting fairies comforter portable estimates jumbo tracking"
    " scavenger marketing combo cheeses options beanstalk dental console leather deadline love exceeded"
    " lace mode grand drivers dancer finals cast roommates county enclosure lion citrus collars false"
    " singer arranging indoor rowing bundle emptied pastry stacked cameras reported digging southern"
    " waitress mine steel listening painter response ceremony gardening winners demand unused recycle"
    " nurses whale delicious tested fingers issues cheddar answering hang cracked willing screws dock"
    " eligible monster memorized raking softball comparing poetry rule gloss typed queen newest foxes"
    " portrait cabinet ions laptops portion zero followed opera singing charcoal dust awarded engines"
    " tote briefcase pressure quota cranes fulfill president workplace couples strength custard chances"
    " control rhinos triangles finance harvests felt igloo judge mosquito walker flats roofing border"
    " lunchtime tears injury blanket teas pandas screens thing semesters actors committed failed spokes"
    " piglets jugs alligator pharmacy flavors gaming gecko swam hers dose printing washer fallen bronze"
    " adopt utility solar planets precious gram waste entree blank gardens racket daisy binders paws"
    " smoking bellies memory pines teammates matchbox dreams spit peas hedge yearly bushel lots babysat"
)
NAMES = FEW_NAMES + split_list(
    "Adam Aisha Alan Alex Amy Andrew Ann Anthony Arthur Barbara Beth Bill Brian Carl Charles Charlie Chris Daisy"
    " Dan Daniel Diana Ed Edward Elena Eli Ellen Emily Eric Eva Fred George Hannah Harry Helen Henry Jack James Jane"
    " Jason Jeff Jenny Jim Joe John Jose Julia Kate Kevin Kim Lily Linda Lisa Liz Lucas Lucy Luke Maria Mark Martin"
    " Mary Matt Max Michael Mike Molly Nancy Nick Nina Paul Peter Rachel Ray Rob Robert Roger Ruth Sally Sara Sarah"
    " Simon Sophie Stella Steve Sue Susan Ted Tim Tina Toby Tony"
)
ADVERBS = split_list(
    "quickly slowly carefully quietly gently calmly suddenly happily sadly angrily proudly nervously"
    " silently politely lazily eagerly firmly simply briefly secretly cleverly boldly deliberately"
    " accidentally immediately eventually reluctantly promptly neatly smoothly swiftly casually bravely"
    " kindly patiently finally carelessly cheerfully actually really clearly certainly indeed also just"
    " now then soon thoughtfully"
)
PREPOSITIONS = split_list(
    "in on at near behind under beside before after during with by over past for against"
)
PLACES = split_list(
    "in the garden,on the table,at the station,near the river,behind the house,under the bridge,in"
    " town,by the sea,at home,in the old kitchen,on the roof,across the street,at school,in the"
    " forest,between two trees,far away,upstairs,in the corner,at the door,on the sofa,in the"
    " yard,downstairs,next to the window,at the bar,on the train",
    ",",
)
TIMES = split_list(
    "today,yesterday,every morning,at night,in summer,on Monday,last week,for an hour,all day,before"
    " dinner,after work,once a year,at six,in the meantime,again and again,as always,tonight,this"
    " morning,on Friday,after lunch,before breakfast,a minute later,at midnight,for a while,in the"
    " evening",
    ",",
)
_ONSETS = split_list(
    "b bl br c ch cl d dr f fl g gr h j k kr l m n p pl pr qu r s sch sh sk st t th tr v w y z"
)
_VOWELS = split_list("a a e e i i o o u ai au ea ee ei ia ie oo ou y")
_CODAS = ("", "", "", "", *split_list("b ck d f g k l ll m n nd ng nt p r rt s sh ss st t th x z"))


def invented_words(count: int) -> tuple[str, ...]:
    """Words of one to four syllables, in lower case."""
    rng = random.Random("invented words")

    def syllable(first: bool) -> str:
        onset = "" if first and rng.random() < 0.2 else rng.choice(_ONSETS)
        return onset + rng.choice(_VOWELS) + rng.choice(_CODAS)

    return tuple(
        "".join(syllable(not place) for place in range(rng.choice((1, 2, 2, 2, 3, 3, 4))))[:11]
        for _ in range(count)
    )


INVENTED = invented_words(4000)


TITLES = split_list(
    "Mr. Mrs. Ms. Dr. Mr Dr Uncle Aunt Captain Professor Sir Lady King Queen Old Little Big Cousin Agent MC Saint"
    " Grandpa Chef Miss Master Officer Judge Coach Auntie"
)
RELATIONS = split_list(
    "mom dad mum grandma grandpa granny mother father sister brother uncle aunt cousin nephew niece wife husband son"
    " daughter friend boss neighbor neighbour roommate dog cat parrot kid girlfriend boyfriend buddy partner teacher"
)
JOBS = split_list(
    "plumber baker butcher farmer driver painter carpenter dentist nurse lawyer judge singer dancer actor writer poet"
    " student professor scientist engineer programmer pilot sailor soldier policeman firefighter postman waitress"
    " barber tailor gardener hunter fisherman miner clerk secretary manager cashier librarian musician drummer"
    " goalkeeper coach clown wizard king queen prince princess knight priest monk thief detective spy pirate ghost"
    " monster child baby toddler kid man woman lady guy gentleman tourist guest visitor customer player gambler winner"
    " loser host bartender mechanic electrician astronaut chef monkey dog cat parrot squirrel crow robot machine"
)


def draw_name(rng: random.Random) -> str:
    """A person: mostly a name, known or not, or what they are."""
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(NAMES)
    if kind < 0.78:
        return rng.choice(INVENTED).capitalize()
    if kind < 0.81:
        return rng.choice(RARE).capitalize()
    named = rng.choice(NAMES) if rng.random() < 0.5 else rng.choice(INVENTED).capitalize()
    if kind < 0.86:
        return f"{rng.choice(TITLES)} {named}"
    if kind < 0.92:
        article = rng.choice(("the", "the", "the", "a", "this", "our"))
        quality = f"{rng.choice(ADJECTIVES)} " if rng.random() < 0.25 else ""
        return f"{article} {quality}{rng.choice(JOBS if rng.random() < 0.85 else NOUNS)}"
    if kind < 0.95:
        owner = rng.choice(("", "my ", "my ", "his ", "her ", "your ", f"{named}'s "))
        return f"{owner}{rng.choice(RELATIONS)}"
    if kind < 0.98:
        return named.lower()
    return f"{named} {rng.choice(INVENTED).capitalize()}"


def fill(shape: str, rng: random.Random) -> str:
    """Nouns ({n}, {m}), adjectives ({a}, {b}) and people ({M}: each another; {N}: always the same) in their places."""
    for slot, kind in (("{n}", NOUNS), ("{m}", NOUNS), ("{a}", ADJECTIVES), ("{b}", ADJECTIVES)):
        while slot in shape:
            shape = shape.replace(slot, rng.choice(kind), 1)
    while "{M}" in shape:
        shape = shape.replace("{M}", draw_name(rng), 1)
    return shape.replace("{N}", draw_name(rng)) if "{N}" in shape else shape


def noun_phrase(rng: random.Random) -> str:
    kind = rng.random()
    noun = rng.choice(NOUNS if kind < 0.7 else COMMON if kind < 0.85 else RARE if kind < 0.95 else INVENTED)
    return f"{rng.choice(ADJECTIVES)} {noun}" if rng.random() < 0.4 else noun

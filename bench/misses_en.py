"""English words and frames of made_misses.py.

`SWAPS`: kind -> rows of (frames; values a|b), each frame asked with a and with b. `TWINS`: kind ->
rows of (frame|frame, words), each word in both frames. `ORDERS`: (frames, values), the two values
in one order and in the other. `FORMATS` and `SAME` ask the same thing: two writings of a value in
one frame, and a word in any two frames of a row.
"""

from __future__ import annotations

from collections.abc import Mapping

Rows = tuple[tuple[str, str], ...]

SWAPS: Mapping[str, Rows] = {
    "number": (
        (
            """Which board games are fun with {} players?; How large a turkey feeds {} guests?;
            How many calories do {} almonds have?;
            What is a fair way to split rent among {} flatmates?;
            How do I seat {} relatives at a round table?; Which tent sleeps {} hikers comfortably?;
            How long should {} dumplings steam?; How do I juggle {} balls?;
            Which minivan carries {} passengers?; What lesson plan fits a class of {} pupils?""",
            """3|4; 6|9; 15|50; 8|18; twelve|twenty; seven|eleven; 2|22; thirteen|thirty; five|nine;
            16|60; 10|100; four|fourteen; 5|25; eighteen|eighty; 7|70""",
        ),
        (
            """Which phone is worth buying at {} dollars?;
            How is a salary of {} dollars taxed in Oregon?;
            What would a loan of {} dollars cost me over two years?;
            Can a couple retire on {} dollars?; Where should somebody invest {} dollars?;
            Is {} dollars a reasonable price for a used piano?""",
            """800|900; 1,200|12,000; 45000|54000; two thousand|three thousand;
            1.5 million|2.5 million; 650|6500; 99|199; 20,000|25,000; 300|3000; 110|101""",
        ),
        (
            """What changed in {}?; How do I upgrade a server to {}?; Is {} still supported?;
            Which features were removed in {}?; Where is the changelog of {}?""",
            """Python 3.11|Python 3.12; Java 17|Java 21; Android 13|Android 14;
            PostgreSQL 15|PostgreSQL 16; Django 4.2|Django 5.0; Ubuntu 22.04|Ubuntu 24.04;
            Node 18|Node 20; PHP 7|PHP 8; Debian 11|Debian 12""",
        ),
        (
            """What happens in chapter {} of Moby Dick?; Which track is number {} on Abbey Road?;
            What does article {} of the constitution say?; Who sits on row {} of the plane?;
            What is the meaning of psalm {}?; Which element has atomic number {}?""",
            "2|3; 7|17; 11|12; 23|32; 5|15; 40|41; 8|9; 19|90; 6|60; 13|31",
        ),
    ),
    "date": (
        (
            """What festivals are held in Seville in {}?; Which vegetables are planted in {}?;
            How crowded are the beaches of Sicily in {}?; Do whales pass Iceland in {}?;
            Which birds migrate through Texas in {}?; How cold does it get in Quebec in {}?;
            What gets pruned in {}?; Is {} a good month for a safari?""",
            """January|July; March|May; June|September; February|August; April|October;
            November|December; July|June; Jan|Feb; early May|late May; spring|autumn; Sept|Oct;
            winter|summer; March|April""",
        ),
        (
            """Which battles were fought in {}?; Who ruled Prussia in {}?; What was invented in {}?;
            Which novels came out in {}?; What did a loaf of bread cost in {}?;
            Which treaties were signed in {}?; What were women wearing in {}?""",
            """1848|1849; 1756|1765; 1914|1918; the 1920s|the 1930s; 1066|1666; 1789|1799;
            the 18th century|the 19th century; 1901|1910; the 1960s|the 1990s; 1517|1571;
            the fifties|the eighties; 1870|1878""",
        ),
        (
            """Which star sign belongs to somebody born on {}?; Which saint is honoured on {}?;
            What famous people were born on {}?; Are banks in Madrid closed on {}?;
            What happened in history on {}?""",
            """March 3|March 13; 2 May|2 June; August 14|August 15; 1 April|1 November;
            May 21|May 12; October 31|October 30; Feb 28|Feb 29; 4 July|14 July;
            6 January|7 January; the 5th of June|the 15th of June; 1/2|2/1""",
        ),
        (
            """Does the ferry to Capri sail on {}?; When is evensong at York Minster on {}?;
            Is garbage collected in Portland on {}?; Which markets in Lyon take place on {}?;
            Do Dutch pharmacies open on {}?; Is there yoga at the community centre on {}?;
            Can I visit the Prado free of charge on {}?; What is served at the canteen on {}?""",
            """Monday|Thursday; Sunday|Wednesday; Tuesday|Friday; Saturday|Sunday;
            weekdays|weekends; Monday morning|Monday evening; Good Friday|Easter Sunday; Tue|Thu;
            Christmas Eve|Boxing Day""",
        ),
    ),
    "unit": (
        (
            """Can a parcel of {} go by airmail?; How do I carry {} of bricks upstairs?;
            Is a dumbbell of {} right for a beginner?; How big a jar holds {} of honey?;
            What does shipping {} of coffee beans cost?; How long does it take to thaw {} of beef?;
            How many portions are in {} of spinach?""",
            """12 pounds|12 kilograms; 3 ounces|3 pounds; 40 lb|40 kg; 500 grams|500 ounces;
            9 kilos|9 tons; 250 mg|250 g; two pounds|two ounces; 6 stone|6 kilos""",
        ),
        (
            """Can a beginner run {} without training?; How tall is a tree of {} really?;
            Is a fence of {} allowed?; How long does sound need for {}?;
            Which rope should I get for a drop of {}?; How wide a road is {}?;
            How many steps are in {}?""",
            """6 miles|6 kilometres; 8 feet|8 metres; 30 inches|30 centimetres; 5 km|5 m;
            20 yards|20 feet; 200 metres|200 kilometres; ten miles|ten metres; 50 cm|50 mm""",
        ),
        (
            """How long can somebody hold a plank for {}?; Is it safe to fast for {}?;
            What can be learned in {}?; Does milk keep for {} outside the fridge?;
            How do I sit still for {}?; Can the kiln cool down in {}?;
            How much dust settles in {}?""",
            """4 hours|4 minutes; 3 days|3 weeks; 2 months|2 years; 45 seconds|45 minutes;
            6 weeks|6 months; 10 days|10 hours; five minutes|five seconds; 12 hours|12 days;
            7 years|7 weeks""",
        ),
        (
            """Is a fever of {} dangerous?; Does glue melt at {}?; What clothes suit {}?;
            Which plants survive {}?; At {} does chocolate bloom?;
            Will a phone battery suffer at {}?""",
            """40 degrees Celsius|40 degrees Fahrenheit; 35 °C|35 °F;
            20 degrees Fahrenheit|20 degrees Celsius; 100 °F|100 °C; 300 kelvin|300 °C""",
        ),
        (
            """Where can I find a flat for {}?; What guitar is sold at {}?; Is {} a generous tip?;
            How much tax is due on {}?; Which watch costs {}?; How do I send {} to Poland?;
            What could a student do with {}?""",
            """700 euros|700 dollars; 50 pounds|50 euros; 900 yen|900 dollars; €300|$300;
            2000 rupees|2000 dollars; 80 francs|80 euros; 40 cents|40 dollars""",
        ),
        (
            """Does a film fit into {}?; How long takes a download of {}?; How many photos are {}?;
            Which card stores {}?; Is {} of memory enough for video editing?;
            What does {} of cloud storage cost?""",
            """64 MB|64 GB; 2 TB|2 GB; 512 kB|512 MB; 8 gigabytes|8 terabytes; 16 bits|16 bytes;
            100 megabits|100 megabytes""",
        ),
        (
            """How sweet is tea with {} of sugar?; Is {} of salt too much for a soup?;
            How strong is broth with {} of soy sauce?; Does {} of vinegar clean a kettle?""",
            """2 teaspoons|2 tablespoons; 3 cups|3 tablespoons; 1 litre|1 gallon; 4 ml|4 cl;
            5 pints|5 litres; 2 pinches|2 spoons""",
        ),
    ),
    "antonym": (
        (
            """What is the {} river in Asia?; Which is the {} planet?; What is the {} metal?;
            Who is the {} player of the national team?; Which is the {} bridge in Scotland?;
            What is the {} cheese of Switzerland?; Which is the {} route across the Andes?;
            What is the {} animal of the savanna?; Which is the {} town in Finland?""",
            """longest|shortest; largest|smallest; heaviest|lightest; oldest|youngest;
            strongest|weakest; cheapest|most expensive; hottest|coldest; highest|lowest;
            fastest|slowest; hardest|softest; safest|most dangerous; richest|poorest""",
        ),
        (
            """How do I {} a bicycle chain?; Which tool do I need to {} a screw?;
            How can I {} a drum skin?; What is the safe way to {} a safety belt?""",
            "tighten|loosen; attach|detach; fasten|unfasten",
        ),
        (
            """How do I {} a zip archive?; Which command will {} a file?; Can a script {} a folder?;
            How does somebody {} a hard disk?""",
            """encrypt|decrypt; compress|decompress; lock|unlock; mount|unmount; hide|unhide;
            upload|download""",
        ),
        (
            """How do people {} shares?; Which permit is needed to {} seafood?;
            Is it taxed to {} antiques?; Where do farmers {} hay?; Who is allowed to {} gold?""",
            "buy|sell; import|export; lend|borrow",
        ),
        (
            """How can a runner {} weight?; What makes a company {} customers?;
            How do teams {} confidence?; Why do old cars {} value?; How do singers {} their voice?;
            What lets trees {} leaves?""",
            "gain|lose; win|lose; get|lose",
        ),
        (
            """What stretches should I do {} a workout?; Should wine be opened {} dinner?;
            Is it healthy to shower {} sleeping?; Do I water grass {} mowing?;
            What must I sign {} moving house?; Should gloves be worn {} surgery?""",
            "before|after",
        ),
        (
            """Which muscles are in the {} arm?; What causes pain on the {} side of the chest?;
            Why is the {} ear blocked?; Which hospital treats the {} knee?;
            How do I stretch the {} hip?""",
            "left|right; upper|lower",
        ),
        (
            """Why are the walls of old mills {}?; Why is a piano string {}?; When is a river {}?;
            Is a bear's fur {}?; Which stones are {}?; Why are some accents {}?""",
            """thick|thin; wet|dry; rough|smooth; loud|quiet; bright|dark; wide|narrow;
            deep|shallow; full|empty""",
        ),
        (
            """What does {} light mean for a plant?; Is {} humidity harmful for books?;
            What follows from {} inflation?; Which illness brings {} blood sugar?;
            How is {} voltage measured?; Who profits from {} rents?;
            What are the signs of {} iron?""",
            "high|low; rising|falling; too much|too little; maximum|minimum; strong|weak",
        ),
        (
            """How do I {} the volume on a tablet?; What will {} my appetite?;
            How do I {} the font?; Which drinks {} heart rate?;
            How can a cook {} the acidity of a sauce?; How would a bank {} its fees?""",
            "increase|reduce; raise|lower; boost|cut",
        ),
        (
            """How does a {} lion hunt?; What do {} penguins eat?; Where do {} seahorses live?;
            How long does a {} tortoise live?; Why do {} deer fight?; What is a {} goat called?""",
            "male|female; young|old; wild|tame",
        ),
    ),
    "entity": (
        (
            """How do I cook {} in a pressure cooker?; Is {} good for the heart?;
            How much iron is in {}?; Can dogs eat {}?; How should {} be stored?;
            Where does {} grow?; What wine goes with {}?""",
            """lentils|chickpeas; spinach|broccoli; salmon|tuna; quinoa|couscous; mango|papaya;
            pumpkin|eggplant; barley|oats; asparagus|celery; turnip|parsnip; trout|herring""",
        ),
        (
            """How do I get from the airport to {}?; Which museums are worth a visit in {}?;
            Is tap water safe in {}?; What do locals eat in {}?; How did {} get its name?;
            What is the nightlife of {} like?; Do I need a car in {}?""",
            """Lisbon|Porto; Osaka|Kyoto; Seattle|Denver; Vienna|Zurich; Hanoi|Bangkok;
            Naples|Palermo; Dublin|Glasgow; Austin|Houston; Sofia|Bucharest; Havana|Lima""",
        ),
        (
            """Who wrote the song {}?; What is the plot of {}?; Where was {} filmed?;
            How does {} end?; Is {} suitable for children?; How long is {}?""",
            """Titanic|Avatar; Frozen|Moana; Casablanca|Vertigo; Jaws|Alien; Gladiator|Braveheart;
            Cabaret|Chicago; Amadeus|Rocky; Psycho|Rebecca""",
        ),
        (
            """How do I write a loop in {}?; Is {} hard to learn?; Which companies use {}?;
            How do I parse JSON in {}?; What is {} mainly used for?; How does {} manage memory?""",
            """Kotlin|Swift; Haskell|Scala; Perl|Lua; Rust|Zig; Fortran|Cobol; Julia|Matlab;
            Elixir|Erlang""",
        ),
        (
            """Can {} be taken on an empty stomach?; What are side effects of {}?;
            Does {} make people tired?; Is {} safe during pregnancy?;
            How long does {} stay in the body?; Can children have {}?""",
            """ibuprofen|paracetamol; amoxicillin|doxycycline; metformin|insulin;
            melatonin|valerian; cetirizine|loratadine; codeine|morphine""",
        ),
        (
            """What did {} discover?; Where did {} grow up?; How did {} die?;
            Which prize did {} receive?; Which books did {} write?; Who taught {}?""",
            """Marie Curie|Lise Meitner; Kepler|Galileo; Darwin|Mendel; Freud|Jung; Bohr|Planck;
            Gauss|Euler; Tolstoy|Chekhov; Pasteur|Koch""",
        ),
    ),
    "literal": (
        (
            """When should I use {} in Python?; Why does {} raise an exception?;
            What does {} return?; How do I mock {} in a test?; Is {} safe to call from threads?;
            How slow is {}?""",
            """list.sort()|list.append(); os.remove()|os.rename(); str.split()|str.strip();
            json.loads()|json.dumps(); time_sleep|time_clock; parseInt()|parseFloat();
            df.merge()|df.melt(); np.ones()|np.zeros(); asyncio.run()|asyncio.wait();
            map.get()|map.set()""",
        ),
        (
            """How do I fix error {}?; What is behind status {}?; Why does my printer show {}?;
            Which service logs {}?; Is {} a fatal code?""",
            """E1101|E1136; ORA-00942|ORA-00943; 0x80070005|0x80070057; TS2322|TS2345;
            ERR_42|ERR_24; PX100|PX101; SIGTERM|SIGKILL; P0420|P0430; C4996|C4995; EACCES|ENOENT""",
        ),
        (
            """Where is {} read by the system?; How do I edit {} safely?; Who may write to {}?;
            What belongs into {}?; Can I delete {}?; Why is {} empty?""",
            """/etc/hosts|/etc/passwd; /var/log|/var/tmp; ~/.bashrc|~/.profile; /dev/null|/dev/zero;
            /usr/lib|/usr/bin; package.json|tsconfig.json; /etc/fstab|/etc/mtab; setup.py|setup.cfg;
            ~/.ssh/config|~/.ssh/known_hosts""",
        ),
        (
            """What is the meaning of {} in the terminal?; How is `{}` written in a script?;
            Why would somebody run `{}`?; Can `{}` be undone?; Which rights does `{}` need?""",
            """grep -v|grep -i; rm -r|rm -i; docker pull|docker push; kubectl get|kubectl apply;
            tar -x|tar -c; npm install|npm uninstall; git stash|git rebase; ls -a|ls -l;
            sed -n|sed -i; curl -X|curl -x; cp -r|cp -p""",
        ),
        (
            """How do I set {} on a response?; Which proxies strip {}?; Is {} case sensitive?;
            What is a good value of {}?; Why do browsers ignore {}?""",
            """X-Frame-Options|X-Forwarded-For; max_age|max_size; proxy_pass|proxy_redirect;
            \"no-cache\"|\"no-store\"; utf8_bin|utf8_general_ci; keep_alive|keep_empty;
            Accept-Encoding|Accept-Language;
            read_timeout|write_timeout; \"gzip\"|\"deflate\"""",
        ),
        (
            """What does the regular expression `{}` match?; How do I escape `{}` in a shell?;
            Is `{}` greedy?; How do I explain `{}` to a beginner?; Why is `{}` slow?""",
            r"""\d+|\w+; a*b|a+b; ^x|x$; [a-z]|[A-Z]; (ab)?|(ab){2}; .*|.+; \s|\S; \bfoo|\Bfoo;
            (?i)a|(?m)a""",
        ),
    ),
}  # fmt: skip

TWINS: Mapping[str, Rows] = {
    "negation": (
        (
            """Which {} need direct sunlight?|Which {} do not need direct sunlight?;
            Which {} are native to Australia?|Which {} are not native to Australia?;
            Why do {} grow on north walls?|Why don't {} grow on north walls?;
            What if {} get water every day?|What if {} never get water?""",
            """ferns; orchids; cacti; lilies; tulips; mosses; vines; palms; herbs; bamboos;
            begonias; lupins; daisies; violets; geraniums; peonies; magnolias; hostas; irises;
            poppies""",
        ),
        (
            """How do I make {} with eggs?|How do I make {} without eggs?;
            Does {} contain gluten?|What {} contains no gluten?;
            Why did my {} rise?|Why did my {} not rise?; Can I freeze {}?|Why can't I freeze {}?""",
            """banana bread; carrot cake; lasagne; gnocchi; brioche; muffins; waffles; quiche;
            noodles; shortbread; tiramisu; pizza dough; meringue; cornbread; scones; tempura;
            ravioli; pretzels; focaccia; marzipan""",
        ),
        (
            """What happens if a driver has {}?|What happens if a driver has no {}?;
            When is {} required by law?|When is {} not required by law?;
            Who is covered by {}?|Who is not covered by {}?;
            What is the fine for having {}?|What is the fine for not having {}?""",
            """travel insurance; a work permit; liability cover; winter tyres; a parking ticket;
            dental cover; a fishing licence; flood insurance; a residence card; a reflective vest;
            a health card; roadside assistance; a tax number; a guarantor; legal aid;
            a toll sticker; a trailer licence; unemployment insurance; a smoke detector;
            a warning triangle""",
        ),
        (
            """Why does {} start?|Why does {} not start?;
            Who says {} is safe?|Who says {} is not safe?;
            What should I do when {} gets hot?|What should I do when {} doesn't get hot?;
            What if {} does connect?|What if {} doesn't connect?""",
            """the lawn mower; the outboard motor; the doorbell; the dishwasher; the hearing aid;
            the projector; the thermostat; the drone; the e-reader; the scooter; the sewing machine;
            the radio; the dash cam; the garage door; the bread maker; the sauna stove;
            the food processor; the treadmill; the telescope; the walkie-talkie""",
        ),
    ),
    "question": (
        (
            """When was {} built?|Why was {} built?; Who built {}?|When was {} built?;
            Where is {}?|How high is {}?;
            How long did it take to build {}?|How much did it cost to build {}?;
            Why is {} famous?|Where is {} located?; Who paid for {}?|Who designed {}?""",
            """the Suez Canal; the Golden Gate Bridge; Hagia Sophia; the Colosseum; the Alhambra;
            Machu Picchu; the Sydney Opera House; Hadrian's Wall; the Taj Mahal; the Hoover Dam;
            Notre-Dame; Angkor Wat; the Kremlin; the Brooklyn Bridge; Stonehenge; the Pantheon;
            the Panama Canal; Neuschwanstein; the Louvre""",
        ),
        (
            """How do {} sleep?|Where do {} sleep?; When do {} hunt?|What do {} hunt?;
            Why do {} sing?|How do {} sing?; How many young do {} have?|How often do {} have young?;
            What do {} eat?|How much do {} eat?; How long do {} live?|Where do {} live?;
            How big are {}?|How old do {} get?""",
            """otters; owls; dolphins; bats; foxes; seals; badgers; hedgehogs; storks; lynxes;
            walruses; toads; gibbons; puffins; moose; ferrets; newts; condors; lemurs""",
        ),
        (
            """How do I repot {}?|When do I repot {}?;
            Why does {} lose leaves?|When does {} lose leaves?;
            How much water does {} need?|How often does {} need water?;
            Where should I put {}?|How should I cut {}?""",
            """a monstera; a bonsai; a fig tree; a gardenia; a dragon tree; an olive tree;
            a lemon tree; an oleander; a hibiscus; an azalea; a rubber plant; a jade plant;
            a peace lily; a yucca; a camellia; a clivia; a croton; an agave; a laurel""",
        ),
    ),
}  # fmt: skip

ORDERS: Rows = (
    (
        """Can {} catch diseases from {}?; Why do {} run away from {}?; Do {} eat {}?;
        Are {} smarter than {}?; Did {} evolve from {}?; How do {} protect themselves against {}?;
        What happens when {} attack {}?; Why are {} afraid of {}?""",
        """cats|rats; wolves|dogs; sharks|seals; hawks|crows; hyenas|lions; spiders|wasps;
        bears|bees; snakes|frogs; foxes|geese; gulls|crabs; apes|monkeys; ants|termites""",
    ),
    (
        """How do I migrate data from {} to {}?; Is {} faster than {}?;
        Why did people move from {} to {}?; Can {} call code written for {}?;
        How do I replace {} with {}?; Should I learn {} before {}?""",
        """MySQL|Oracle; Trello|Jira; Angular|Svelte; Dropbox|OneDrive; Jenkins|Bamboo;
        Kafka|RabbitMQ; Drupal|Joomla; Redis|Memcached; Excel|Tableau; Windows|Linux""",
    ),
    (
        """What does the train from {} to {} cost?; Is {} north of {}?;
        How late is the last bus from {} to {}?; How do I post a parcel from {} to {}?;
        Has {} ever invaded {}?; Do people commute from {} to {}?""",
        """Milan|Turin; Leeds|York; Ghent|Bruges; Nice|Lyon; Krakow|Warsaw; Malmo|Lund; Basel|Bern;
        Porto|Braga; Graz|Linz; Cork|Galway""",
    ),
    (
        """Should {} be added before {}?; Can {} be used instead of {}?; Does {} dissolve in {}?;
        Is {} heavier than {}?; How do I coat {} with {}?; Why does {} turn into {}?""",
        """salt|vinegar; flour|starch; oil|wax; milk|cream; sugar|honey; yeast|malt; resin|acetone;
        sand|clay; chalk|lime; butter|lard""",
    ),
    (
        """May {} sue {}?; Who decides when {} disagrees with {}?; What does {} owe {}?;
        How does {} complain about {}?; Why does {} trust {}?""",
        """a tenant|a landlord; a patient|a doctor; a buyer|a seller; a nurse|a surgeon;
        an author|a publisher; a pilot|an airline; a client|a lawyer; a pupil|a teacher""",
    ),
)  # fmt: skip

FORMATS: Rows = (
    (
        """How do I save {} of a pension?; What happens when a shop takes {} off?;
        How much is a tip of {} on a taxi ride?; Who pays {} interest?""",
        "15%|15 percent; 15%|15 %; 7.5%|7.5 percent; 40 per cent|40%; ten percent|10%",
    ),
    (
        """Which bicycle can a student get for {}?; What does a gym charge above {}?;
        Where can I rent a boat for {}?; How do I invest {} in bonds?""",
        """$250|250 dollars; $1,500|$1500; 3,000 euros|3000 euros; €80|80 euros;
        1,000,000 dollars|1 million dollars""",
    ),
    (
        """How far can a horse pull {}?; Is a suitcase of {} too heavy?;
        How do I bake {} of potatoes?; Who can lift {}?""",
        "23kg|23 kg; 23 kg|23 kilograms; 5 lb|5 pounds; 300g|300 grams; 7 kilos|7 kg",
    ),
    (
        """How long takes a walk of {}?; Which bus drives {}?; How do I train for {}?;
        What burns more calories than {} of running?""",
        "12km|12 km; 12 km|12 kilometres; 12 kilometers|12 kilometres; 400m|400 m; 3 mi|3 miles",
    ),
    (
        """What can be seen of Rome in {} hours?; Which puzzles take {} hours?;
        How do {} monks share one meal?; How do I tie {} balloons together?""",
        "3|three; eight|8; 12|twelve; six|6; 20|twenty",
    ),
    (
        """Who was the {} pope?; What is played in the {} act of Aida?;
        Which street is the {} on the left?; What opened in the {} century?""",
        "2nd|second; 3rd|third; tenth|10th; 5th|fifth; 1st|first",
    ),
    (
        """{} the longest word in German?; {} a good name for a parrot?;
        {} the colour of a flamingo egg?; {} the shape of a snowflake?;
        {} the best age for a first violin?; {} a haiku?""",
        "What is|What's; What is|what is; WHAT IS|What is; what's|What is",
    ),
    (
        """How is parchment made{}; Why do geysers erupt{}; Who invented the zipper{};
        Where do truffles grow{}; How do sundials work{}; When do glaciers calve{}""",
        "?|; ?|??; ?|!; ?|.; ?|？",
    ),
)  # fmt: skip

SAME: Rows = (
    (
        """I would like to {}. What should I do?; What do I have to do in order to {}?;
        Any advice on how to {}?; Explain how I can {}.; What's a good way to {}?; How does one {}?;
        How should I {}?""",
        """repaint a ceiling; hem a pair of trousers; carve a pumpkin; waterproof a tent;
        brew kombucha; propagate lavender; juggle clubs; bleed a radiator; descale a kettle;
        whistle loudly; restring a ukulele; smoke a trout; tile a bathroom floor;
        fold a fitted sheet; train for a triathlon; repair a dripping gutter; write a eulogy;
        frame a watercolour; read a barometer; set up a beehive""",
    ),
    (
        """Explain {}.; Give me an explanation of {}.; Describe {}.; Could you explain {} to me?;
        I need an explanation of {}.""",
        """the Doppler effect; capillary action; game theory; tidal locking; compound interest;
        the placebo effect; mitosis; continental drift; the Bernoulli principle; red shift;
        deadlock; the butterfly effect; hydrolysis; cognitive dissonance; refraction""",
    ),
    (
        """Who is the author of {}?; Who wrote {}?; Who's the author of {}?;
        By whom was {} written?; Can you tell me who wrote {}?""",
        """Don Quixote; Faust; The Trial; Middlemarch; Dracula; The Stranger; Persuasion; Ulysses;
        Walden; Candide; Emma; The Leopard; Germinal; Utopia; Beloved""",
    ),
    (
        """What is the difference between {}?; What's the difference between {}?;
        Please explain the difference between {}.; Can you tell me the difference between {}?;
        difference between {}""",
        """a violin and a fiddle; a yam and a sweet potato; a moth and a butterfly;
        a hare and a rabbit; a novella and a novel; tin and zinc; a crow and a raven;
        a sonata and a symphony; a bay and a gulf; baroque and rococo; a delta and an estuary;
        frost and rime""",
    ),
    (
        """Which {} would you recommend?; Recommend a {}.; Can you recommend a {}?;
        Please recommend a {}.; Could you recommend a good {}?""",
        """folding kayak; rice cooker; telescope for a child; noise cancelling headset; trail shoe;
        pocket knife; travel pillow; bread knife; baby monitor; graphic tablet; pressure washer;
        label printer""",
    ),
    (
        """Why do {}?; Can you explain why {}?; What is the reason that {}?; Do you know why {}?;
        Tell me why {}.""",
        """cats purr; onions make us cry; leaves turn red; magnets attract iron; bubbles pop;
        knees crack; soda cans fizz; stars twinkle; pearls shine; geese fly in a V; tides change;
        candles flicker""",
    ),
)  # fmt: skip

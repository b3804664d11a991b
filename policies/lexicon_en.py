"""English word lists: what the equivalence check folds together and what it keeps apart."""

from __future__ import annotations

from tierway.policies.lexicon import axes, entries

# Axes of polarity, side:side, with the words that stand on each.
_AXES = entries("""
    on:off open:closed,close,shut enable,enabled:disable,disabled
    increase,raise,gain:decrease,reduce,lower,lose get:lose little,few:much,many up:down in:out
    with:without before:after
    above:below over:under inside:outside start,begin:stop,end,finish,quit first:last
    earliest:latest
    highest,maximum,max,most,biggest,largest,greatest,longest,tallest:lowest,minimum,min,least,smallest,shortest
    best,top:worst good:bad better:worse fast,faster,fastest,quick,quickest:slow,slower,slowest
    cheap,cheapest,cheaper:expensive,costly hot,hottest,warm:cold,coldest,cool high,higher:low
    large,big,larger,bigger:small,little,smaller long,longer:short,shorter
    old,older,oldest:young,younger,youngest,new,newest
    easy,easier,easiest:hard,difficult,harder,hardest buy,purchase:sell rent,lend:borrow
    install:uninstall add:remove,delete,subtract win:lose love,like:hate,dislike
    accept,allow,permit,approve:reject,refuse,deny,forbid,ban,prohibit,decline import:export
    encrypt:decrypt encode:decode compress:decompress,extract upload:download
    login,log_in:logout,log_out connect:disconnect lock:unlock subscribe:unsubscribe
    follow:unfollow mute:unmute pin:unpin freeze:unfreeze block:unblock hide:show,unhide
    push:pull send:receive give:take arrive:leave,depart arrival:departure
    deposit:withdraw,withdrawal credit:debit income:expense profit:loss
    advantage,pro,benefit,strength:disadvantage,con,drawback,weakness
    male,man,men,boy,husband,father,brother,son,mr:female,woman,women,girl,wife,mother,sister,daughter,mrs
    left:right north,northern:south,southern east,eastern:west,western true:false
    positive:negative legal:illegal possible:impossible safe:dangerous,unsafe healthy:unhealthy
    same:different,opposite public:private front:back,rear internal:external input:output
    read:write save:load,discard create,make:destroy,break build:demolish attack:defend
    pass:fail success:failure succeed:fail grow:shrink rise:fall
    ascending,ascend:descending,descend freeze:melt heat:cool empty:full,fill wet:dry
    light:dark,heavy parent:child teacher:student employer:employee buyer:seller doctor:patient
    sender:receiver,recipient lender:borrower winner:loser
    cause:cure,prevent,treat,effect,symptom promote:demote hire:fire expand:collapse,contract
    major:minor majority:minority upgrade:downgrade activate:deactivate mount:unmount
    attach:detach zip:unzip horizontal:vertical row:column client:server summer:winter
    morning:evening day:night sunrise:sunset past:future early,earlier:late,later always:never
    everyone,all,every:nobody,none include:exclude inclusive:exclusive odd:even prefix:suffix
    minimise,minimize:maximise,maximize serial:parallel synchronous,sync:asynchronous,async
    indoor:outdoor local:remote online:offline import:export debit:credit plus:minus
    multiply:divide strong:weak rich:poor iphone,ios,apple:android windows:mac,macos,linux
    online:offline wired:wireless manual:automatic active,activate:inactive,passive
    """)
AXES = axes(_AXES)
NEGATING_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "de", "anti", "mis")
NEGATIONS = frozenset(
    entries("""
    not no never without cannot nor none nothing neither nobody except unless avoid prevent
    """)
)

QUESTION_WORDS = {
    "who": "who", "whom": "who", "whose": "who", "when": "when", "where": "where", "why": "why",
    "what": "what", "which": "what", "how": "how",
} | {
    f"what{kind}": f"what{kind}" for kind in ("time", "year", "date", "day", "month")
} | {
    f"how{kind}": f"how{kind}"
    for kind in entries("""
    many much long old far often tall big high deep fast large heavy expensive
    """)
}  # fmt: skip
OPENERS = {
    verb: row.split(":")[0]
    for row in entries("""
    is:is,are,am past:was,were,did,had do:do,does can:can,could,may,might will:will,would,shall
    should:should,must,ought has:has,have
    """)
    for verb in row.split(":")[1].split(",")
}
PAST = frozenset(["was", "were", "did", "had"])
STOP = frozenset(
    entries("""
    a an the of in on at for to with from by as about into is are was were be been being am do
    does did done can could would may might shall has have had having it its this that these
    those there i me my mine we us our ours you your yours myself yourself one some any and or
    but if then so exactly precisely ever such quite than also just really actually very much
    what which who whom whose when where why how he him his she her hers they them their
    someone somebody anyone owns up out get go etc ok oh well via per
    """)
)  # fmt: skip
PERSONS = {
    **dict.fromkeys(
        entries("""
    i me my mine myself we us our
    """),
        1,
    ),
    **dict.fromkeys(["you", "your", "yours", "yourself"], 2),
    **dict.fromkeys(["he", "him", "his"], 3),
    **dict.fromkeys(["she", "her", "hers"], 4),
    **dict.fromkeys(["they", "them", "their"], 5),
}
# Words that change nothing wherever they stand, and those that do not behind the question word.
OPENING = frozenset(["do", "does", "is", "are"])
ARTICLES = {"a": "a", "an": "a", "the": "the"}
FILLERS = frozenset(
    entries("""
    exactly precisely
    """)
)
# More than one clause: what a negation or a condition belongs to depends on where it stands.
CLAUSES = frozenset(
    entries("""
    if when while because who that which unless until after before and or but to than whether
    although though since so
    """)
)
DIRECTIONS = frozenset(
    entries("""
    from to into than by against towards toward over versus beats
    """)
)
# Only words that stand for each other in every sense: not sort and type, not main and primary.
_SYNONYMS = entries("""
    buy:purchase start:begin,commence movie:film child:kid fix:repair improve:enhance
    often:frequently car:automobile doctor:physician approximately:roughly
    drawback:disadvantage account:acct happen:occur lawyer:attorney gasoline:petrol
    television:tv exam:examination mathematics:math,maths bicycle:bike airplane:aeroplane
    teenager:teen father:dad,daddy mother:mom,mum sick:ill rich:wealthy cheap:inexpensive
    strange:weird photo:photograph,pic organization:organisation color:colour flavor:flavour
    center:centre favorite:favourite
    """)
SYNONYMS = {word: row.split(":")[0] for row in _SYNONYMS for word in row.split(":")[1].split(",")}
_VERBS = entries("""
    win:won come:came become:became make:made get:got,gotten go:went,gone buy:bought bring:brought
    think:thought teach:taught catch:caught build:built send:sent spend:spent keep:kept sleep:slept
    sell:sold tell:told give:gave,given take:took,taken write:wrote,written eat:ate,eaten
    drink:drank,drunk speak:spoke,spoken choose:chose,chosen know:knew,known grow:grew,grown
    begin:began,begun run:ran drive:drove,driven forget:forgot,forgotten lose:lost find:found
    hear:heard hold:held pay:paid say:said see:saw,seen stand:stood understand:understood feel:felt
    fly:flew,flown break:broke,broken steal:stole,stolen
    """)
IRREGULAR = {
    form: row.split(":")[0] for row in _VERBS for form in row.split(":")[1].split(",")
} | {
    "children": "child", "men": "man", "women": "woman", "feet": "foot", "mice": "mouse",
    "teeth": "tooth", "lives": "life", "wives": "wife", "knives": "knife", "leaves": "leave",
}  # fmt: skip
# No plurals, or plurals that are words of their own: the ending stays.
NO_PLURALS = frozenset(
    entries("""
    dates glasses customs arms goods news manners spirits looks airs ashes brains damages means
    pains papers quarters savings scales stairs works contents clothes odds premises remains thanks
    grounds series species windows jeans pants shorts drawers trunks boxers briefs woods sands
    waters blues greens letters honours honors bars specs bus gas yes plus lens has was does this
    his its always less us paris james texas kansas mars atlas canvas forces minutes
    terms times headquarters barracks tails sheets
    fries bonds securities futures options proceeds
    earnings winnings belongings surroundings feelings wages utilities humanities classics
    irons guns hearts spades clubs diamonds jacks checkers draughts darts
    billiards dominoes marbles crossroads gallows innings kudos pliers scissors tights tongs
    tweezers trousers pyjamas pajamas contacts sweets provisions supplies effects respects
    regards wits bowels genitals troops data media oats grits suds dregs whereabouts amends
    authorities communications directions plastics
    regulations skills valuables values
    """)
)
# Small letters and capitals are two words.
CASED = frozenset(
    entries("""
    polish us it who turkey china march may august apple windows go swift rust java ruby oracle
    amazon word excel access teams bath reading nice job lima cologne mercury mars earth god
    aids pin sat act shell bush frank bill mark will rose grace hope jack rob dick pat sue drew
    gene guy art ray ram rom cat dash rag ping led lead can or in me oh ok hi ma pa la id ad am pm
    python unity sketch notion slack zoom signal meta target gap subway chase discover visa orange
    oscar emmy grammy windsor jersey guinea guernsey chad mali jordan georgia chile hungary greece
    wales cork split reno mobile buffalo phoenix orlando japan lens tours nancy derby
    champagne bordeaux burgundy tangier catholic liberal conservative democrat republican democratic
    ford lincoln
    """)
)
# Words that seldom decide what a question asks for.
LIGHT = frozenset(
    entries("""
    good great nice best way thing stuff kind type sort people person human life world today day
    time really truly actually still ever even much many more most very some possible possibly able
    make do want need use know think feel find say tell see look go come take keep start begin try
    help work give become main major important different common certain general various particular
    amazing awesome cool top right proper correct recommend suggest suggestion idea tip advice
    example list fact reason place anyone everyone somebody thing lot little bit currently nowadays
    successful easily quickly effective effectively simple simply basic basics total
    """)
)
# What two forms of one word may end on, after what they share.
ENDINGS = frozenset(
    entries("""
    s es ed d ing er or ers ion tion ation al ly ment ness ity ty ive ful ous y e ence ance ant ent
    able ible ic ical ist ism ize ise ling ning ting ping ming ring ding ged ted ped ned ry ature
    ings ization isation ators ator sion ssion
    """)
) | {""}

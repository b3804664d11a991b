"""English word lists: what the equivalence check folds together and what it keeps apart."""

from __future__ import annotations

from tierway.policies.lexicon import axes, entries

# Axes of polarity, side:side, with the words that stand on each.
_AXES = entries("""
    on:off open:closed,close,shut enable,enabled:disable,disabled
    increase,raise,gain:decrease,reduce,lower,lose up:down in:out with:without before:after
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
    please what which who whom whose when where why how he him his she her hers they them their
    someone somebody people anyone up out get go etc ok oh well via per
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
# Words without content that still tell questions apart: "what is X" and "what is in X".
GRAMMAR = frozenset(
    entries("""
    in on at for to with by from into about up out as via per and or it its this that these
    those have has had having they them he him his she her there who doing done
    """)
)
DIRECTIONS = frozenset(
    entries("""
    from to into than by against towards toward over versus beats
    """)
)
_SYNONYMS = entries("""
    best:top,greatest,finest buy:purchase start:begin,commence large:big,huge
    fast:quick,rapid,quickly photo:picture,pic,image movie:film child:kid
    phone:mobile,cellphone,smartphone make:create,build,develop fix:repair problem:issue,trouble
    improve:enhance,boost remove:delete,erase change:modify,alter easy:simple
    important:significant job:career often:frequently company:firm author:writer car:automobile
    doctor:physician correct:right password:passcode,pwd beautiful:pretty difficult:hard
    need:require approximately:roughly benefit:advantage,pro drawback:disadvantage,con
    medicine:medication account:acct store:shop happen:occur meaning:definition salary:wage
    lawyer:attorney gasoline:petrol apartment:flat resume:cv tv:television exam:examination
    mathematics:math,maths bicycle:bike airplane:plane,aeroplane teenager:teen father:dad,daddy
    mother:mom,mum sick:ill help:assist choose:select,pick reply:respond speak:talk
    smart:intelligent,clever rich:wealthy cheap:inexpensive,affordable example:instance
    kind:type,sort main:primary,chief strange:weird method:technique goal:aim programming:coding
    travel:journey,trip film:movie effect:impact organization:organisation color:colour
    flavor:flavour center:centre favorite:favourite
    """)
SYNONYMS = {word: row.split(":")[0] for row in _SYNONYMS for word in row.split(":")[1].split(",")}
IRREGULAR = {
    "children": "child", "men": "man", "women": "woman", "people": "people", "feet": "foot",
    "mice": "mouse", "teeth": "tooth", "lives": "life", "wives": "wife", "went": "go",
    "made": "make",
    "got": "get", "bought": "buy", "sold": "sell", "lost": "lose", "won": "win", "found": "find",
    "left": "left", "news": "news", "physics": "physics", "bus": "bus", "gas": "gas", "yes": "yes",
    "paris": "paris", "does": "does", "was": "was", "has": "has", "his": "his", "this": "this",
    "less": "less", "process": "process", "address": "address", "status": "status",
    "always": "always",
    "during": "during", "thing": "thing", "something": "something", "nothing": "nothing",
    "anything": "anything", "everything": "everything", "king": "king", "spring": "spring",
    "string": "string", "bring": "bring", "red": "red", "bed": "bed", "need": "need",
    "feed": "feed",
    "speed": "speed", "seed": "seed", "series": "series", "mathematics": "mathematics", "us": "us",
}  # fmt: skip

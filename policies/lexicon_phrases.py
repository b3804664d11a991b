"""Turns of phrase that say the same, rewritten to one of them before words are compared.

A rule is (marks, pattern, replacement). Its marks stand in one string with | between them, and
every match of the pattern holds at least one: a text is searched for them first, at a hundredth
of the pattern's price. Rules apply in order; each leaves one of the question words behind that
questions.py knows.
"""

from __future__ import annotations

import re

Rewrite = tuple[tuple[str, ...], re.Pattern[str], str]


def _compiled(rules: tuple[tuple[str, str, str], ...]) -> tuple[Rewrite, ...]:
    return tuple((tuple(marks.split("|")), re.compile(rule), to) for marks, rule, to in rules)


def rewrite(text: str, rules: tuple[Rewrite, ...]) -> str:
    """`text`, lower-case, after each rule in turn."""
    for marks, pattern, to in rules:
        for mark in marks:
            if mark in text:
                text = pattern.sub(to, text)
                break
    return text


_ENGLISH: tuple[tuple[str, str, str], ...] = (
    ("’|`|´", r"[’`´]", "'"),
    ("can't", r"\bcan't\b", "can not"),
    ("won't", r"\bwon't\b", "will not"),
    ("n't", r"n't\b", " not"),
    (
        "nt",
        r"\b(do|ca|is|does|did|wo|are|was|have|should)nt\b",
        r"\1 not",
    ),
    ("cannot", r"\bcannot\b", "can not"),
    (
        "'s|whats|whos|wheres|whens|hows|whys|thats|heres|its|hes",
        r"\b(what|who|where|when|how|why|that|there|it|he|she|here)'?s\b",
        r"\1 is",
    ),
    ("'re", r"'re\b", " are"),
    ("i'm|im", r"\bi'm\b|\bim\b", "i am"),
    ("'ve", r"'ve\b", " have"),
    ("'ll", r"'ll\b", " will"),
    ("'d", r"'d\b", " would"),
    ("'", r"'s?\b|s'(?=\s)", " "),
    (
        "u.s.|united states|america|usa",
        r"\b(?:u\.s\.a?\.?|the united states(?: of america)?|america|usa)(?![\w.])",
        "usa",
    ),
    (
        "u.k|united kingdom|great britain",
        r"\b(?:u\.k\.?|united kingdom|great britain)(?![\w.])",
        "uk",
    ),
    ("artificial intelligence", r"\bartificial intelligence\b", "ai"),
    ("machine learning", r"\bmachine learning\b", "ml"),
    (
        "hi|hello|hey|please|pls|plz|kindly|thank|thx",
        r"\b(?:hi|hello|hey|please|pls|plz|kindly|thanks|thank you|thx)\b",
        " ",
    ),
    (
        " you|anyone|some",
        r"\b(?:can|could|would|will) (?:you|anyone|somebody|someone) (?:please )?"
        r"(?=(?:tell|explain|help|show|give|let|list|name|describe)\b)",
        " ",
    ),
    (
        "i want|i need|i would like|i wish",
        r"\bi (?:want|need|would like|wanted|wish) to (?:know|ask|find out|understand)\b",
        " ",
    ),
    ("wondering", r"\b(?:i was |i am )?(?:just )?wondering(?: if)?\b", " "),
    ("do you |any idea", r"\bdo you (?:happen to )?know\b|\bany (?:idea|ideas)\b", " "),
    ("let me know|help me ", r"\blet me know\b|\bhelp me (?:to )?(?:understand|find|know)\b", " "),
    (
        "tell|show|give",
        r"\b(?:tell|show|give)(?: me| us)?(?: about)?(?= (?:the|a|an|all|some)\b)",
        " what ",
    ),
    ("tell me|tell us|show me|show us", r"\b(?:tell|show) (?:me|us)(?: about)?\b", " "),
    (
        "how come|reason|what makes",
        r"\bhow come\b|\bfor what reasons?\b|\bwhat (?:is|are|was|were) the (?:main |"
        r"real )?reasons? "
        r"(?:for|of|behind|that|why)\b|\bwhat makes\b",
        "why",
    ),
    (
        "way|method|steps|procedure|process|approach",
        r"\bwhat (?:is|are) (?:the |a |an |some |any |your )?(?:of the )?(?:best |good |"
        r"possible |proper |right |"
        r"correct |recommended |usual )*(?:way|ways|method|methods|steps|procedure|process|"
        r"approach|approaches) "
        r"(?:to|of|for|in which)\b",
        "how",
    ),
    (
        "way|method",
        r"\bwhat (?:is|are) (?:the |a |an |some )?(\w+est|most \w+) (?:way|ways|method|"
        r"methods) (?:to|of|for)\b",
        r"how \1",
    ),
    (
        "do to|do in order to|do so that",
        r"\bwhat (?:should|can|could|must|do|would) (?:i|we|you|one|someone|"
        r"people) (?:need to |have to )?do "
        r"(?:to|in order to|so that)\b",
        "how",
    ),
    (
        "is there|are there",
        r"\b(?:is there|are there) (?:a|an|any|some) (?:good |easy |possible )?(?:way|ways|"
        r"method|trick) "
        r"(?:to|of|for|that)\b",
        "how",
    ),
    (
        "how ",
        r"\bhow (?:do|can|could|should|would|might|may|shall|will|did) "
        r"(?:i|we|you|one|someone|somebody|people|a person|anyone)(?: go about| be able to|"
        r" actually| best)?\b",
        "how",
    ),
    ("how does ", r"\bhow does (?:one|someone|a person)\b", "how"),
    (
        "how to|how is it possible|way to|ways to",
        r"\bhow (?:to|is it possible to)\b|\bways? to\b(?=.)",
        "how",
    ),
    ("stand for|mean", r"\bwhat does (.+?) (?:stand for|mean)\b", r"what meaning \1"),
    (
        "meaning|definition|define|meant",
        r"\bwhat (?:is|are) (?:the )?(?:meaning|definition)s? of(?: the)?(?: word| term)?\b|"
        r"\bdefine\b|"
        r"\bwhat is meant by\b",
        "what meaning",
    ),
    (
        "price|cost",
        r"\b(?:what|how much) (?:is|are) (?:the )?(?:price|cost)s? (?:of|for)\b",
        "howmuch cost",
    ),
    ("cost", r"\bhow much (?:do|does|did|will|would) (.+?) cost\b", r"howmuch cost \1"),
    (
        "how ",
        r"\bhow (many|much|long|old|far|often|tall|big|high|deep|fast|large|heavy|expensive)\b",
        r"how\1",
    ),
    ("number of", r"\bwhat (?:is|are) the (?:total )?number of\b", "howmany"),
    (
        "time|year|date|day|month",
        r"\b(?:at )?what time\b|\b(?:in|on|during|at)? ?(?:what|which) (?:year|date|day|month)\b",
        "when",
    ),
    ("place|location", r"\b(?:in|at|to|from)? ?(?:what|which) (?:place|location)\b", "where"),
    ("which ", r"\bwhich (?:is|are|one is)\b", "what is"),
    ("in order to", r"\bin order to\b", "to"),
    ("get rid of", r"\bget rid of\b", "remove"),
    ("money", r"\bmak(?:e|ing) (?=(?:\w+ )?money\b)", "earn "),
    ("tell|find out|know", r"\b(?:tell|find out|know) (?:if|whether|that)\b", "know"),
    ("turn", r"\bturn(ing|ed)? (on|off)\b", r"turn \2"),
    ("switch|turn|power", r"\b(?:switch|turn|power) (\w+ \w+ |\w+ )(on|off)\b", r"turn \2 \1"),
    ("switch", r"\bswitch (on|off)\b", r"turn \1"),
    ("log in|login|sign in|signin", r"\blog ?in(?:to)?\b|\bsign ?in\b", "login"),
    ("log out|logout|sign out|signout", r"\blog ?out\b|\bsign ?out\b", "logout"),
    ("sign up|signup", r"\bsign ?up\b", "register"),
    ("lot of|lots of", r"\ba lot of\b|\blots of\b", "many"),
    ("phone", r"\bcell ?phones?\b|\bmobile phones?\b|\bsmart ?phones?\b", "phone"),
    ("as soon as possible", r"\bas soon as possible\b", "asap"),
)
_CHINESE: tuple[tuple[str, str, str], ...] = (
    ("", r"[\s,.;:!?，。；：！？、…~～“”\"'‘’（）()《》<>【】\[\]|/\\*_—-]+", " "),
    (
        "你好|您好|请问|谢谢|麻烦|劳驾|哈喽|hello|hi",
        r"你好|您好|请问|谢谢|麻烦|劳驾|哈喽|hello|hi(?![a-z])",
        "",
    ),
    (
        "知道|了解|问|咨询|告诉我",
        r"我?(?:想|要)?(?:知道|了解|问|咨询)(?:一下|下)|我想(?:问|知道|了解|咨询)|想问|"
        r"(?:可以|能)?告诉我",
        "",
    ),
    (
        "帮我|给我|知道",
        r"帮我(?:查|看|找|搜)?(?:一下|下)?|给我(?:讲|说|介绍|推荐)?(?:一下|下)?(?=.)|"
        r"(?:有)?谁知道|有没有人知道",
        "",
    ),
    (
        "回事|原因|为|咋会|怎么会",
        r"怎么回事|是咋回事|什么原因|是何原因|为什么|为何|为啥|为甚么|咋会|怎么会",
        "〈why〉",
    ),
    ("意", r"是什么意思|啥意思|什么意思|何意|的意思是什么|的意思", "〈what〉意思"),
    (
        "时|几|哪|多会",
        r"什么时候|什么时间|啥时候|何时|几时|几点钟?|哪天|哪一天|哪年|哪一年|多会儿?",
        "〈when〉",
    ),
    ("地方|哪|何处", r"什么地方|啥地方|在哪(?:里|儿)?|哪里|哪儿|何处|哪个地方", "〈where〉"),
    ("多|几", r"多长时间|多久时间|多久|几天|几个月|几年|几小时|多少天", "〈howlong〉"),
    (
        "钱|价|几块",
        r"(?:大概|大约)?(?:需?要)?多少钱|什么价格?|价格是多少|价格多少|几块钱?|的价格|多钱",
        "〈howmuch〉",
    ),
    ("岁|多大|年龄", r"多少岁|几岁|多大年龄|多大了?(?=$| )|年龄多大", "〈howold〉"),
    ("多远", r"多远", "〈howfar〉"),
    ("多高", r"多高", "〈howtall〉"),
    ("多重|几斤", r"多重|几斤", "〈howheavy〉"),
    ("多少|几", r"多少|几(?=[个只条张位名次期件台])|几(?=$| )", "〈howmany〉"),
    ("哪", r"哪个好|哪个比较好|哪一个好|哪种好|哪款好", "〈what〉好"),
    (
        "怎么|咋|如何",
        r"怎么办|咋办|如何是好|怎么弄|咋弄|怎么搞|咋整|怎么处理|如何处理|怎么解决|如何解决",
        "〈how〉解决",
    ),
    (
        "好不好|怎么样|咋样|怎样|如何|好吗",
        r"(?:好不好|怎么样|咋样|怎样|如何)(?=$| |啊|呢|呀)|好吗",
        "〈opinion〉",
    ),
    (
        "方法|办法|方式|步骤",
        r"(?:的)?(?:方法|办法|方式|步骤)(?:是什么|有哪些|有什么)?(?=$| )|有(?:什么|"
        r"啥)(?:好)?(?:方法|办法)(?:可以|能)?",
        "〈how〉",
    ),
    (
        "如何|怎样|怎么|怎麼|咋",
        r"如何才?能?|怎样才?能?|怎么才?能?|怎麼|咋(?:么)?|(?:该|应该)?怎么(?:样)?|要怎么",
        "〈how〉",
    ),
    ("谁|哪位|什么人|何人", r"是谁|谁|哪位|什么人|何人", "〈who〉"),
    (
        "什么|哪|啥|何为",
        r"是什么|有什么|有哪些|什么是|哪些|哪个|哪种|哪款|哪一个|什么样的?|什么|啥|哪|何为",
        "〈what〉",
    ),
    (
        "不|否|没有",
        r"是不是|是否|有没有|能不能|能否|可不可以|可否|会不会|要不要|需不需要|用不用|对不对|"
        r"行不行",
        "〈yn〉",
    ),
    ("吗|么|嘛|没|不", r"吗(?=$| )|么(?=$| )|嘛(?=$| )|没有?(?=$| )|不(?=$| )", "〈yn〉"),
)
ENGLISH, CHINESE = _compiled(_ENGLISH), _compiled(_CHINESE)

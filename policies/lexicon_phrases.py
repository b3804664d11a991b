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


# Politeness, only where it is set off from the question and never in a question about words.
_WORDS_ASKED = re.compile(
    r"\b(?:say|says|said|mean|means|meaning|translat\w*|spell\w*|words?|phrases?|pronounc\w*|"
    r"called|write|written)\b|说|意思|翻译|怎么[写读念拼]|拼写|读音|含义|词|字|句"
)
_POLITE_SIGN = re.compile("hi|hello|hey|good|pl|than|thx|你好|您好|哈喽|请问|谢谢|麻烦|劳驾")
_POLITE = re.compile(
    r"^\s*(?:(?:hi|hello|hey|good (?:morning|evening|afternoon))(?: there| all| everyone)?"
    r"\s*[,.!;:，]+\s*|(?:please|pls|plz|kindly)(?=,? (?:tell|explain|help|show|give|let|list|name|"
    r"describe)\b),?|(?:你好|您好|哈喽|hello|hi)[，,。！!；;~、\s]+|"
    r"(?:麻烦)?请问(?:一下|下)?[，, ]?|(?:麻烦|劳驾)问?[一下]*[，,]\s*)(?=.{3})|"
    r"(?<=.{3})[,.!?;，。！？\s]*[,.!?;，。！？]\s*(?:please|pls|plz|thanks|thank you|thx|"
    r"谢谢|多谢)(?: in advance|[你您了啦])?[\s.!。！~]*$"
)


def polite(text: str) -> str:
    """`text`, lower-case, without greeting, please and thanks around the question."""
    if not _POLITE_SIGN.search(text) or _WORDS_ASKED.search(text):
        return text
    return _POLITE.sub("", _POLITE.sub("", text))


_OPENS = r"(?=,? ?(?:what|which|who|whose|when|where|why|how|if|whether)\b)"
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
        "'s|whats|whos|wheres|whens|hows|whys|thats|heres|hes",
        r"\b(what|who|where|when|how|why|that|there|it|he|she|here)'s\b|"
        r"\b(what|who|where|when|how|why|that|here|he)s\b",
        r"\1\2 is",
    ),
    ("'re", r"'re\b", " are"),
    ("i'm|im", r"\bi'm\b|\bim\b", "i am"),
    ("'ve", r"'ve\b", " have"),
    ("'ll", r"'ll\b", " will"),
    ("'d", r"'d\b", " would"),
    ("'", r"(?<=\w)'s\b|(?<=s)'(?=\s\w)", " owns "),
    ("'", r"'", " "),
    (
        "u.s.|united states|usa",
        r"\b(?:u\.s\.a?\.?|the united states(?: of america)?|usa)(?![\w.])",
        "usa",
    ),
    (
        "u.k|united kingdom",
        r"\b(?:u\.k\.?|united kingdom)(?![\w.])",
        "uk",
    ),
    ("artificial intelligence", r"\bartificial intelligence\b", "ai"),
    ("machine learning", r"\bmachine learning\b", "ml"),
    (
        " you|anyone|some",
        r"^\s*(?:can|could|would|will) (?:you|anyone|somebody|someone) (?:please )?"
        r"(?=(?:tell|explain|help|show|give|let|list|name|describe)\b)",
        " ",
    ),
    (
        "i want|i need|i would like|i wish",
        r"^\s*i (?:want|need|would like|wanted|wish) to (?:know|ask|find out|understand)\b"
        + _OPENS,
        " ",
    ),
    ("wondering", r"^\s*(?:i was |i am )?(?:just )?wondering\b" + _OPENS, " "),
    ("do you ", r"^\s*do you (?:happen to )?know\b" + _OPENS, " "),
    ("let me know", r"^\s*let me know\b" + _OPENS, " "),
    ("tell me|tell us", r"^\s*tell (?:me|us)(?= the\b)", " what is "),
    ("tell me|tell us", r"^\s*tell (?:me|us)\b" + _OPENS, " "),
    (
        " is| are",
        r"^(\s*(?:what|who|where)\b(?! (?:is|are)\b).+) (?:is|are)(?=[\s?.!]*$)",
        r"\1",
    ),
    (
        "how come|reason",
        r"\bhow come\b|\bfor what reasons?\b|\bwhat (?:is|are|was|were) the (?:main |"
        r"real )?reasons? "
        r"(?:for|of|behind|that|why)\b",
        "why",
    ),
    (
        "way|method|steps|procedure|process|approach",
        r"\bwhat (?:is|are) (?:the |a |an |some |any |your )?(?:of the )?(?:best |good |"
        r"possible |proper |right |"
        r"correct |recommended |usual )*(?:way|ways|method|methods|steps|procedure|process|"
        r"approach|approaches) "
        r"(?:to|for|in which)\b",
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
        r"\bwhat (?:should|can|could|must|do|would) (?:i|we|you|one|someone) "
        r"(?:need to |have to )?do "
        r"(?:to|in order to|so that)\b",
        "how",
    ),
    (
        "how ",
        r"\bhow (?:(?:do|can|could|should) (?:i|we|one|someone|somebody|a person|anyone)|do you)"
        r"(?: go about| be able to| actually| best)?\b"
        r"(?! (?:do|feel|know|mean|think|like|work|sleep|look|help|live|charge)\b)",
        "how",
    ),
    (
        "how to|how is it possible",
        r"\bhow (?:to|is it possible to)\b",
        "how",
    ),
    ("mean", r"\bwhat does (.+?) mean(?=[\s?.!]*$)", r"what meaning \1"),
    (
        "meaning|meant",
        r"\bwhat (?:is|are) (?:the )?meanings? of(?: the)?(?: word| term)?\b|"
        r"\bwhat is meant by\b",
        "what meaning",
    ),
    (
        "definition|define",
        r"^\s*what (?:is|are) (?:the )?definitions? of(?: the)?(?: word| term)?\b|"
        r"^\s*define\b",
        "what definition",
    ),
    (
        "price|cost",
        r"\b(?:what|how much) (?:is|are) (?:the )?(?:price|cost)s? (?:of|for)\b",
        "howmuch cost",
    ),
    ("cost", r"\bhow much (?:do|does) (.+?) cost\b", r"howmuch cost \1"),
    (
        "how ",
        r"\bhow (many|much|long|old|far|often|tall|big|high|deep|fast|large|heavy|expensive)\b",
        r"how\1",
    ),
    ("number of", r"\bwhat is the total number of\b", "howmany"),
    (
        "time|year|date|day|month",
        r"\b(?:(?:at|in|on|during) )?(?:what|which) (time|year|date|day|month)\b",
        r"what\1",
    ),
    ("place|location", r"\b(?:in|at) (?:what|which) (?:place|location)\b", "where"),
    ("which ", r"\bwhich (?:is|are|one is)\b", "what is"),
    ("in order to", r"\bin order to\b", "to"),
    ("get rid of", r"\bget rid of\b", "remove"),
    ("money", r"\bmake (?=(?:\w+ )?money\b)", "earn "),
    ("tell|find out|know", r"\b(?:tell|find out|know) (?:if|whether)\b", "know if"),
    ("turn", r"\bturn(ing|ed)? (on|off)\b", r"turn \2"),
    ("switch|turn|power", r"\b(?:switch|turn|power) (\w+ \w+ |\w+ )(on|off)\b", r"turn \2 \1"),
    ("switch", r"\bswitch (on|off)\b", r"turn \1"),
    ("log in|login|sign in|signin", r"\blog ?in(?:to)?\b|(?<!the )(?<!a )\bsign ?in\b", "login"),
    ("log out|logout|sign out|signout", r"\blog ?out\b|(?<!the )(?<!a )\bsign ?out\b", "logout"),
    ("sign up|signup", r"(?<!the )(?<!a )\bsign ?up\b", "register"),
    ("lot of|lots of", r"\ba lot of\b|\blots of\b", "many"),
    ("a few|a little", r"\ba (few|little)\b", r"a\1"),
    ("phone", r"\b(?:cell|mobile) ?phone(s?)\b", r"cellphone\1"),
    ("phone", r"\bsmart ?phone(s?)\b", r"smartphone\1"),
    ("as soon as possible", r"\bas soon as possible\b", "asap"),
    # capital of France, France's capital
    (
        " of ",
        r"\b(?:the )?(?<!\d )(?!(?:kind|type|sort|most|some|all|one|part|out|use|percent)s? )"
        r"(\w+) of (?:the |a |an )?"
        r"(\w+(?: (?!in\b|on\b|at\b|for\b|to\b|and\b|or\b|of\b)\w+)?)(?=[\s?.!]*$)",
        r"\2 owns \1",
    ),
)
_CHINESE: tuple[tuple[str, str, str], ...] = (
    (
        "",
        r"(?:[\s;:!?，。；：！？、…~～“”\"'‘’（）()《》<>【】\[\]|/\\*_—-]|[,.](?!\d)|(?<!\d)[,.])+",
        " ",
    ),
    (
        "知道|了解|问|咨询|告诉我",
        r"^ ?(?:我?(?:想|要)(?:知道|了解|问|咨询)(?:一下|下)?|(?:可以|能)?告诉我) ?(?=.{3})",
        "",
    ),
    ("帮我", r"^ ?帮我(?=.{3})", ""),
    ("", r"(?<=..)[呢啊呀哦哈噢](?= ?$)", ""),
    # 谁是鲁迅的老师, 鲁迅的老师是谁
    ("是", r"^ ?(什么|谁|啥|哪里|哪儿|哪个)是(.+?) ?$", r"\2是\1"),
    (
        "用|使用",
        r"^ ?(?:使用|用)(?:什么|啥|哪个|哪种)(软件|工具|方法|app|药|材料|机器)(.+?) ?$",
        r"\2用什么\1",
    ),
    (
        "回事|原因|为",
        r"是?怎么回事|是咋回事|是?什么原因|是何原因|为什么|为何|为啥|为甚么",
        "〈why〉",
    ),
    ("意", r"是什么意思|啥意思|什么意思|何意|的意思是什么|的意思(?= ?$)", "〈what〉意思"),
    ("几|哪", r"几点钟?|几时", "〈whattime〉"),
    ("哪|几号", r"哪一?天|几号", "〈whatday〉"),
    ("哪|几月", r"哪个?月|几月", "〈whatmonth〉"),
    ("哪", r"哪一?年", "〈whatyear〉"),
    ("时|多会", r"什么时候|什么时间|啥时候|何时|多会儿?", "〈when〉"),
    ("地方|哪|何处", r"什么地方|啥地方|在哪(?:里|儿)?|哪里|哪儿|何处|哪个地方", "〈where〉"),
    ("多", r"多长时间|多久时间|多久", "〈howlong〉"),
    (
        "钱|价|几块",
        r"(?:大概|大约)?(?:需?要)?多少钱|什么价格?|价格是多少|价格多少|几块钱|的价格(?= ?$)|多钱",
        "〈howmuch〉",
    ),
    ("岁|多大|年龄", r"多少岁|几岁|多大年龄|多大了|年龄多大", "〈howold〉"),
    ("多大", r"多大", "〈howbig〉"),
    ("多远", r"多远", "〈howfar〉"),
    ("多高", r"多高", "〈howtall〉"),
    ("多重", r"多重", "〈howheavy〉"),
    ("多少|几", r"多少|几(?=[个只条张位名次期件台天年周斤秒分小])|几(?=$| )", "〈howmany〉"),
    ("哪", r"哪个好|哪个比较好|哪一个好|哪种好|哪款好", "〈what〉好"),
    (
        "怎么样|咋样|怎样|如何",
        r"(?:怎么样|咋样|怎样|如何)(?=$| |啊|呢|呀)",
        "〈opinion〉",
    ),
    (
        "如何|怎样|怎么|怎麼|咋",
        r"如何(?:才能?)?|怎样(?:才能?)?|怎么才能?|怎麼|咋(?:么)?|(?:该|应该)?怎么(?:样)?|要怎么",
        "〈how〉",
    ),
    ("谁|哪位|什么人|何人", r"是谁|谁|哪位|什么人|何人", "〈who〉"),
    ("什么样|哪种|哪款", r"什么样的?|哪种|哪款", "〈whatkind〉"),
    ("有", r"有(?:什么|哪些|哪个|啥)", "有〈what〉"),
    (
        "什么|哪|啥|何为",
        r"是什么|什么是|是?哪些|是?哪个|是?哪一个|什么|是?啥|哪|何为",
        "〈what〉",
    ),
    ("不|否", r"是不是|是否", "〈yn〉"),
    ("没有", r"有没有", "〈yn〉有"),
    ("不", r"可不可以", "〈yn〉可以"),
    ("不", r"需不需要", "〈yn〉需要"),
    ("不", r"([能会要用对行])不\1", r"〈yn〉\1"),
    ("否", r"([能可])否", r"〈yn〉\1"),
    ("吗|么|嘛|没|不", r"吗(?=$| )|么(?=$| )|嘛(?=$| )|没有?(?=$| )|不(?=$| )", "〈yn〉"),
)
ENGLISH, CHINESE = _compiled(_ENGLISH), _compiled(_CHINESE)

"""Which language a question is in, and which questions no stored answer may serve.

The word lists of the two languages are in lexicon_en.py and lexicon_zh.py: plain tables, read by
questions.py. Extend one and run `python -m tierway.bench.calibrate` again: the shipped cuts hold
for these tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def entries(table: str) -> list[str]:
    """The entries of a table that is written as text, separated by white space."""
    return table.split()


def by_sign(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """First character -> the words that begin with it, in their order."""
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        found[word[0]] = (*found.get(word[0], ()), word)
    return found


def axes(rows: list[str]) -> dict[str, frozenset[tuple[int, int]]]:
    """Word -> the (axis, side) places it stands at."""
    places: dict[str, set[tuple[int, int]]] = {}
    for axis, row in enumerate(rows):
        for side, words in enumerate(row.split(":")):
            for word in words.split(","):
                places.setdefault(word, set()).add((axis, side))
    return {word: frozenset(found) for word, found in places.items()}


# --- language --------------------------------------------------------------------------------

_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\u31f0-\u31ff\uac00-\ud7af\uff66-\uff9d]")
_ASCII_WORD = re.compile(r"[a-z']+")
_LATIN_WORD = re.compile(r"[a-z\u00c0-\u024f']+", re.IGNORECASE)
_TRADITIONAL = frozenset(
    "麼嗎們個這裡樣為麽國學會說時間電腦網買賣錢開關從後來過還沒東車門問題話對點"
)
_ENGLISH = frozenset(
    entries("""
    a the of to and in is it you that was for on are with as at be this have from or had by but
    what all were when we there can an your which their said if do will each about how up out
    them then she many some so these would other into has more her two him see time could no
    make than first been its who now my did get i me does why where should not he they our us am
    any please define describe meaning tell give show name explain between without was list need
    want like what's who's where's when's how's that's it's i'm can't don't doesn't isn't
    """)
)
_FOREIGN = frozenset(
    entries("""
    le la les des une est dans pour avec sur qui que quel quelle quels comment où der das und
    ist ein eine nicht wie mit von zu wer wo warum el los las del por para como qué cómo cuál
    dónde cuando una il lo gli che di della sono perché come quanto dove o os um uma não em qual
    quem het een van wat hoe och att det som är hur yang apa di untuk dan adalah
    """)
)


def language_of(text: str) -> str:
    """`en`, `zh`, or "" for everything that the lists below know nothing about: other
    languages, mixtures, traditional characters (its answers are written differently)."""
    if text.isascii():
        return _latin(_ASCII_WORD.findall(text.lower()))
    if _OTHER_SCRIPT.search(text):
        return ""
    words = _LATIN_WORD.findall(text)
    if chinese := _CJK.findall(text):
        return "zh" if len(chinese) >= len(words) and _TRADITIONAL.isdisjoint(chinese) else ""
    return _latin([word.lower() for word in words])


def _latin(words: list[str]) -> str:
    english = len([word for word in words if word in _ENGLISH])
    foreign = len([word for word in words if word in _FOREIGN or not word.isascii()])
    if not words or foreign > english or (not english and len(words) > 3):
        return ""
    return "en"


# --- what must not be answered from another question at all ------------------------------------

ANAPHORA = re.compile(
    r"\b(?:it|its|they|them|their|this|that|these|those|he|him|his|she|her|hers|former|latter|"
    r"(?:the|that|this|another|other) ones?|same|above|previous|again|else|instead|more|"
    r"there|then|here|continue|go on|elaborate|and you|what about|how about)\b|"
    r"它|他|她|这个|那个|这些|那些|这样|那样|这种|那种|这里|那里|上面|上述|刚才|前者|后者|"
    r"其中|继续|还有|再来|接着|然后呢|呢$|换一个|同样|另外|另一个",
    re.IGNORECASE,
)
# "that" as a conjunction, "is there", "it" as a formal subject: no pointing back.
NOT_ANAPHORA = re.compile(
    r"\b(?:is|are|was|were) (?:there|it (?:possible|true|safe|legal|ok|okay|normal|bad|good|"
    r"worth|better))\b|"
    r"\b(?:there (?:is|are|was|were)|more than|once more|what time is it|does it (?:take|cost)|"
    r"it (?:takes?|is) (?:to|possible)|this (?:year|month|week)|the same \w+ as)\b|"
    r"(?<=\w )that (?=(?:is|are|was|were|can|could|will|do|does|has|have|the|a|i|you|we|"
    r"people)\b)|其他|吉他|他人",
    re.IGNORECASE,
)
PERSONAL = re.compile(
    r"\b(?:my|mine|our) (?:\w+ ){0,2}?(?:orders?|accounts?|balance|subscription|plan|bills?|"
    r"invoices?|payments?|"
    r"refund|cards?|statements?|transactions?|transfer|salary|bookings?|reservations?|"
    r"flights?|tickets?|"
    r"appointments?|schedule|calendar|emails?|messages?|inbox|files?|documents?|passport|"
    r"address|name|birthday|password|location|profile|history|cart|package|delivery|shipment|"
    r"data|records?|results?|score|grades?|usage|limit|quota|points?|rewards?|insurance|"
    r"policy|visa|"
    r"loan|mortgage|credit|pin|phone|contacts?|to-?do|list|notes?|reminders?|alarms?|meetings?)\b|"
    r"\b(?:who am i|where am i|am i (?:eligible|registered|allowed|logged)|do i (?:have|owe)|"
    r"what do i owe|did i|have i|i owe)\b|"
    r"(?:我|本人|咱)(?:的)?(?:上(?:一|个|次)?)?(?:订单|账户|账号|帐户|帐号|余额|额度|账单|"
    r"快递|包裹|工资|密码|"
    r"预订|预约|航班|机票|车票|会员|套餐|流量|话费|积分|银行卡|信用卡|贷款|借款|还款|花呗|"
    r"借呗|身份证|地址|名字|"
    r"生日|成绩|日程|邮件|消息|文件|合同|保单|退款|支付|转账)|我(?:是谁|在哪|叫什么|欠|还欠)",
    re.IGNORECASE,
)
TIME_SENSITIVE = re.compile(
    r"\b(?:now|today|tonight|tomorrow|yesterday|currently|current|latest|newest|recent|recently|"
    r"(?:last|this|past|coming|next) (?:night|week|weekend|month|quarter|year|morning|afternoon|"
    r"evening|season|match|game|race|election|"
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day)|upcoming|nowadays|so far|live|breaking|news|"
    r"weather|forecast|raining|snowing|temperature (?:in|outside)|"
    r"prices?|pric(?:ed|ing)|stocks?|shares?|market cap|exchange rate|interest rate|"
    r"(?:what(?:'?s| is)|tell me) the (?:time|date)|what time is it|what (?:day|date) is it|"
    r"scores?|standings|who (?:won|wins|is winning|leads)|traffic|"
    r"(?:is|are|was) (?:[\w.-]+ ){1,4}(?:down|up|offline|online|open|closed|alive|dead|working|"
    r"available)|outage|"
    r"(?:days?|weeks?|months?|hours?|long) (?:\w+ )?(?:until|till|to go|left|since)|"
    r"still (?:alive|open|available)|how old is|"
    r"who(?:'?s| is| are|se)\b[^.?!]{0,60}?\b(?:president|prime minister|minister|ceo|cto|cfo|king|"
    r"queen|pope|mayor|governor|senator|chancellor|champion|chair(?:man|woman)?|head|leader|coach|"
    r"captain|owner|richest|monarch|secretary|speaker|director|manager)|"
    r"trending|in stock|net worth|population)\b|"
    r"今天|今日|今晚|今早|明天|明日|明晚|昨天|昨日|昨晚|昨夜|后天|前天|现在|目前|当前|眼下|最新|最近|"
    r"近期|近日|刚刚|刚才|[本这上下]个?(?:周|月|星期|礼拜|季度|赛季|场|轮)|今年|去年|明年|实时|即时|"
    r"天气|气温|下雨|下雪|新闻|股价|股票|大盘|油价|金价|房价|价格|汇率|利率|比分|赛果|路况|几点了|"
    r"现任|在任|赢了|谁赢|崩了|宕机|挂了|行情|排行|热搜|多少钱|"
    r"(?:还有|还剩|距离?|离).{0,8}(?:几|多少|多久)|"
    r"(?:总统|总理|首相|主席|国王|女王|部长|市长|省长|书记|董事长|总裁|首席|教练|队长|冠军|首富)"
    r".{0,3}(?:是谁|谁|叫什么|是哪)|谁是.{0,12}(?:总统|总理|首相|主席|国王|女王|部长|市长|省长|"
    r"书记|董事长|总裁|教练|队长|冠军|首富)",
    re.IGNORECASE,
)
_SUM = re.compile(
    r"\d\s*(?:[+*×÷^=]|/(?!\d+/)|\s-\s|\bx\b|plus|minus|times|divided by|multiplied by|mod|加|"
    r"减|乘|除以|乘以|的平方|的立方)\s*(?:\d|$|[(（])|"
    r"\b(?:square|cube)d? (?:root )?of \d|\d+ ?% of \d",
    re.IGNORECASE,
)
_SUM_IN_WORDS = re.compile(
    r"[零一二三四五六七八九十百千万]\s*(?:加|减|乘以?|除以)\s*[零一二三四五六七八九十百千万]|"
    r"\b(?:calculate|compute|solve|evaluate|factorial|derivative|integrate)\b|"
    r"计算(?=.{0,6}\d)|^计算|等于多少|等于几|求解|解方程|"
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twenty) (?:plus|minus|times|"
    r"divided by) \w+",
    re.IGNORECASE,
)
# Each match holds one of these, that of a sum a digit too.
_SUM_SIGNS = entries("""
    + * × ÷ ^ = / - % x plus minus times divided multiplied mod square cube 加 减 乘 除以 平方 立方
    """)
_SUM_WORDS = entries("""
    plus minus times divided calculate compute solve evaluate factorial derivative integrate
    加 减 乘 除以 计算 等于 求解 解方程
    """)
_DIGIT = re.compile(r"\d")


def arithmetic(text: str) -> bool:
    """True when the question is a sum to do, which no other sum's answer serves."""
    # The patterns, which ignore case, also take dotless and dotted capital I for i.
    lowered = text.lower().replace("\u0131", "i").replace("i\u0307", "i")
    if _DIGIT.search(text) and _any_in(_SUM_SIGNS, lowered) and _SUM.search(text):
        return True
    return _any_in(_SUM_WORDS, lowered) and _SUM_IN_WORDS.search(text) is not None


def _any_in(marks: Iterable[str], text: str) -> bool:
    for mark in marks:  # noqa: SIM110 - any() over a generator takes twice as long
        if mark in text:
            return True
    return False

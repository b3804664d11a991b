"""What a question rests on besides its words: earlier turns, who asks it, when it is asked.

Word lists in English and Chinese, read by pattern. They decide whether a question may be
matched by meaning, whose cache answers it and for how long, never which answer is right.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from tierway.policies.lexicon import language_of

_END_CHARS = 500

_ANAPHORA = re.compile(
    r"\b(?:it|its|they|them|their|this|that|these|those|he|him|his|she|her|hers|former|latter|"
    r"(?:the|that|this|another|other) ones?|same|above|previous|again|else|instead|more|"
    r"there|then|here|continue|go on|elaborate|and you|what about|how about)\b|"
    r"它|他|她|这个|那个|这些|那些|这样|那样|这种|那种|这里|那里|上面|上述|刚才|前者|后者|"
    r"其中|继续|还有|再来|接着|然后呢|呢$|换一个|同样|另外|另一个",
    re.IGNORECASE,
)
# "that" as a conjunction, "is there", "it" as a formal subject: no pointing back.
_NOT_ANAPHORA = re.compile(
    r"\b(?:is|are|was|were) (?:there|it (?:possible|true|safe|legal|ok|okay|normal|bad|good|"
    r"worth|better))\b|"
    r"\b(?:there (?:is|are|was|were)|more than|once more|what time is it|does it (?:take|cost)|"
    r"it (?:takes?|is) (?:to|possible)|this (?:year|month|week)|the same \w+ as)\b|"
    r"(?<=\w )that (?=(?:is|are|was|were|can|could|will|do|does|has|have|the|a|i|you|we|"
    r"people)\b)|其他|吉他|他人",
    re.IGNORECASE,
)
_PERSONAL = re.compile(
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
_TIME_SENSITIVE = re.compile(
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


def self_contained(question: str) -> bool:
    """False when the question leans on earlier turns: pronouns, `continue`, a word or two."""
    text = unicodedata.normalize("NFKC", _ends(question)).strip()
    if _ANAPHORA.search(_NOT_ANAPHORA.sub(" ", text)):
        return False
    if language_of(text) == "zh":
        return len(re.findall(r"[\u4e00-\u9fff]|[A-Za-z0-9]+", text)) >= 5
    return len(text.split()) >= 4


def personal(question: str) -> bool:
    """True when the answer depends on who asks: my order, 我的余额."""
    return _concerns_asker(_ends(question))


def time_sensitive(question: str) -> bool:
    """True when the answer changes within days: today, latest, 天气, price."""
    return _ages(_ends(question))


@lru_cache(maxsize=4096)
def _concerns_asker(text: str) -> bool:
    return _PERSONAL.search(text) is not None


@lru_cache(maxsize=4096)
def _ages(text: str) -> bool:
    # Asked of every request, and many requests are the same: the search costs a tenth of a hit.
    return _TIME_SENSITIVE.search(text) is not None


def _ends(text: str) -> str:
    """What a long text asks stands at its beginning or its end."""
    return text if len(text) <= 2 * _END_CHARS else f"{text[:_END_CHARS]}\n{text[-_END_CHARS:]}"

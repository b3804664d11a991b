"""Does the answer change within days: today, latest, prices, weather, scores, who holds an office?

Sentence by sentence, in English and Chinese. Three kinds of signs, from strong to weak:

    hard    a moment that is named (tonight, right now, 今晚): always
    soft    a word of time (today, current, 最新): not where a procedure or a meaning is asked for
            ("how do I get today's date in Python")
    topic   something whose value is asked for (the price of, weather in, 股价): nor where it is
            to be defined or explained, nor about a year that is named

What only looks like a sign (current divider, price elasticity, 天气预报是怎么做的, quoted words and
code) is taken out first. A wrong yes costs some hits, a wrong no a stale answer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tierway.policies.context import SHORT, ends

_SENTENCE = re.compile(r"[.?!](?:\s|$)|[。？！；\n]")
_QUOTED = re.compile(
    r"`[^`]*`|(?<!\w)'[^']{2,60}'(?!\w)|\"[^\"]{1,80}\"|“[^”]{1,80}”|「[^」]{1,80}」|《[^》]{1,80}》|\w+\(\)"
)
_LETTER = re.compile("[A-Za-z]")
_YEAR = re.compile(r"\b(?:1\d{3}|20[01]\d|202[0-4])(?:s\b|\b|(?=年))|\b(?:1\d|20)th century")


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


# --- English ---------------------------------------------------------------------------------

_TECHNICAL = (
    r"account|and|assets|branch|cell|commit|context|density|dir|directory|divider|element|"
    r"flow|flows|folder|gain|in (?:a|an|the)|is|iteration|iterator|law|liabilit\w+|limiter|"
    r"limiting|line|loop|meter|mirror|node|of|page|path|position|process|ratio|row|scope|sensor|shell|"
    r"source|tag|thread|through|timestamp|transformer|url|user|working"
)
_NOT_TIME_EN = _words(
    r"price (?:elasticity|elastic|ceilings?|floors?|discrimination|fixing|index|mechanism|"
    r"theory|gouging|tag)|"
    rf"currents? (?:{_TECHNICAL})|(?:alternating|direct|electric|electrical|ocean|eddy|sea|dark|"
    r"gulf) currents?|current events?|"
    r"(?:latest|recent|last) (?:commit|tag)|at the latest|latest tag|:latest|"
    r"today's (?:english|world|society|terms|standards|language|economy)|until now|from now on|"
    r"now and then|by now|now that|here and now|apocalypse now|(?:modern|present)[- ]day|"
    r"chicken stock|stock (?:split|photo\w*|option|exchange|keeping|pot|cube)s?|"
    r"shares? (?:buyback|a|an|the|this|it|my|his|her|our|with)|live (?:oak|wire|bait|birth)|"
    r"credit scores?|f1[- ]scores?|scores? (?:range|scale|card|board)|currents? (?:theory|theories|"
    r"understanding|definition|consensus)|scores? (?:a|of a|the goal)|news(?:paper|letter) \w+|"
    r"news article|market capitali[sz]ation|population (?:growth|density|genetics|mean|variance)|"
    r"past and present tense|weather (?:fronts?|satellites?|balloons?|vanes?|widgets?|stations?)|"
    r"exchange rate mechanism|cost of (?:goods|living adjustment|capital)|price of anarchy|"
    r"time series forecast\w*|net present value|recent (?:advances|common)|weathering"
)
_HARD_EN = _words(
    r"tonight|right now|at (?:the|this) moment|(?:this|tomorrow) (?:morning|afternoon|evening)|"
    r"last night|this (?:week(?:end)?|month|season)|next (?:week(?:end)?|month)|as of now|"
    r"so far (?:today|this)|just (?:announced|released|happened)|breaking news"
)
_SOFT_EN = _words(
    r"now|today|tomorrow|yesterday|currently|current|latest|newest|upcoming|nowadays|these days|"
    r"at present|presently|most recent(?:ly)?|recent(?:ly)?|so far|this (?:year|quarter|summer|"
    r"winter|spring|autumn|fall)|(?:last|next|coming|past) (?:year|quarter|season|election|"
    r"match|game|race|(?:mon|tues|wednes|thurs|fri|satur|sun)day)|trending|headlines?"
)
_EVENT = (
    r"game|match|race|fight|final|finals|election|primary|debate|super bowl|world series|"
    r"championships?|title|league|cup|tournament|open|grand prix|playoffs?|oscars?|grammys?|"
    r"award|derby|draft|lottery|powerball"
)
_OFFICE = (
    r"president|prime minister|minister|ceo|cto|cfo|king|queen|pope|mayor|governor|senator|"
    r"chancellor|champion|chair(?:man|woman|person)?|monarch|secretary|speaker|owner|coach|"
    r"captain|richest|world record"
)
_TOPIC_EN = _words(
    r"(?:prices?|costs?|value|fees?) (?:of|for|per)|[\w'’]{1,24} prices?(?=\W*$| (?:in|near|at|per|"
    r"usd|eur|gbp|cny|rmb)\b)|priced at|"
    r"what(?:'?s| is| are) [\w ']{2,40}? (?:worth|trading|selling)|"
    r"(?:dow|nasdaq|s&p ?500|ftse|nikkei|dax|jackpot|league table|top of the (?:table|league)|"
    r"winning numbers)|top of (?:la liga|the bundesliga|serie a)|"
    r"what(?:'?s| is) (?:happening|going on)|how long is the (?:wait|line|queue)|wait times?|"
    r"(?:has|have) (?:[\w'-]+ ){1,6}?been (?:announced|released|found|approved|confirmed|passed|"
    r"signed|elected|cancell?ed|arrested|published)|are there (?:any )?(?:[\w-]+ ){0,2}(?:wild)?"
    r"(?:fires?|protests?|strikes?|delays|outages|warnings|alerts|closures|accidents|tickets)|"
    r"how much (?:is|are) (?!too|enough|\d|that\b|it\b|considered)(?!.*\b(?:in|to) (?:\w+ )?"
    r"(?:meters?|metres?|feet|grams?|ounces|litres?|liters?|cups?|inches)\b).*|"
    r"how much (?:does|do) .{1,60}?\b(?:cost|costs|charge|go for|sell for|run for)|"
    r"weather(?: like| forecast| report)? (?:in|at|for|near|around|out|outside|here|there)|"
    r"(?:weather|forecast)(?: like)?(?=\W*$)|(?:is it|will it|is it going to|going to|does it) "
    r"(?:be )?(?:rain|raining|snow|snowing|sunny|hot|cold|windy|humid|warm|cloudy|freezing)|"
    r"(?:need|bring|wear|take) (?:an? )?(?:umbrella|raincoat|jacket|coat|sunscreen)|"
    r"how (?:hot|cold|warm|windy|humid) is it|temperature (?:in|outside)(?! (?:kelvin|celsius|"
    r"fahrenheit))|(?:pollen|uv) (?:count|index|level)|air quality|(?:high|low) tide|"
    r"(?:stocks?|share price|shares)(?=\W*$)|(?:stock|share) prices? of|trading at|"
    r"how (?:is|are|did) (?:the )?[\w&' ]{1,30}(?:doing|performing|trading)|market cap of|"
    r"exchange rates?(?! (?:mechanism|regime|system))|[a-z]{3} to [a-z]{3} (?:exchange )?rate|"
    r"(?:interest|mortgage|inflation|unemployment|prime|tax) rates? (?:in|at|for|on)|"
    rf"who (?:has )?(?:won|wins|is winning|is leading|leads|is playing|plays)\b.*\b(?:{_EVENT})|"
    rf"who(?:'s| is| are) (?:winning|leading|playing)|who (?:won|wins)(?=\W*$)|"
    rf"did (?:the )?[\w. ]{{2,25}}? (?:win|lose|beat|score)(?=\W*$|.*\b(?:{_EVENT}))|"
    r"(?:what(?:'s|s| is| was)|tell me) the score|score of the (?:\w+ ){0,3}(?:game|match)|"
    r"standings|(?:what(?:'?s| is)|tell me) the (?:time|date)(?= in|\W*$)|what time is it|"
    r"what (?:day|date|month|year) (?:of the week )?is (?:it|this)|"
    rf"who(?:'?s| is| are|se)\b.{{0,60}}?\b(?:{_OFFICE})|who (?:holds|owns|runs|leads|manages)|"
    r"how old (?:is|are) (?!the\b|a\b|an\b|too\b)|net worth|population of|"
    r"(?:days?|weeks?|months?|hours?|minutes?|long) (?:\w+ )?(?:until|till|to go|left)|"
    r"when(?:'s| is| are| does| do| will) (?:the |my |our )?next|"
    r"next (?:train|bus|flight|ferry|full moon|eclipse)|any (?:delays?|news|updates?)|"
    r"is there (?:a |any )?(?:delay|traffic|outage|queue)|traffic (?:like|on|in|at|near)|"
    r"outages?|on tv|in stock|sold out|near me|news (?:about|on|from|in|of)|news(?=\W*$)|"
    r"live (?:scores?|updates|stream of)|(?:in|playing at) (?:theaters|cinemas)|"
    r"(?:account |my |our )balance|status of (?:my|our|the)|where(?:'s| is| are) (?:my|our)"
)
_STATUS_EN = re.compile(
    r"^\W*(?:is|are|isn't|aren't|has|have)\b(?: [\w.'&#-]+){1,8}? (?:down|up and running|"
    r"offline|online|closed|open|delayed|on time|late|available|in stock|cancell?ed|working|"
    r"alive|dead|out yet|released|over|yet)(?: (?:now|yet|again|anymore|in \w+))?"
    r"(?:\W*$| (?:because|due|on|for) \w+)|"
    r"\bstill (?:alive|open|available)",
    re.IGNORECASE,
)
_PROCEDURE_EN = _words(
    r"how (?:do|does|can|could|should|would|did) (?:i|you|we|one|they)|how (?:to|does|do|did)|"
    r"(?:ways?|steps?) to|write (?:a|an|me|code|some)|in (?:python|sql|bash|java|javascript|"
    r"excel|c\+\+|go|rust|ruby|php|pandas|postgres|mysql|linux|html|css|react)"
)
_MEANING_EN = _words(
    r"what (?:does|do|did)|mean|means|meaning|define|definition|difference between|explain|"
    r"what (?:causes|caused)|why (?:do|does|did|is|are|was|were)|"
    r"(?:what|who) (?:is|are|was|were) an?|what is [a-z]+(?=\W*$)|who (?:invented|discovered|"
    r"was|were)|what was|history of|concept of|past tense|translate"
)
# These ask how something goes and are about now all the same.
_ASKS_VALUE_EN = _words(
    r"how (?:much|hot|cold|warm|old|many|is|are|did)|is there|what(?:'s|s| is) the (?:weather|"
    r"price|temperature|score|traffic|time|date)"
)

# --- Chinese ---------------------------------------------------------------------------------

_NOT_TIME_ZH = re.compile(
    r"排队论|实时(?:数据库|数仓|通信)|天气(?:符号|图|现象|成因|俗语|谚语)|价格(?:弹性|歧视|机制|理论|指数)|现在(?:分词|完成|进行|时态)|一般现在|当前(?:目录|路径|时间戳|"
    r"用户|进程|线程|分支|行|页|日期|文件夹)|最近(?:公共祖先|邻)|实时(?:操作)?系统|即时(?:编译|通讯)|活在当下|"
    r"股份|股票(?:代码|分红)|新闻(?:稿|联播|学|专业)|房价收入比|信用评分|昨天的过去式|排行榜的|"
    r"天气(?:和|与)|最新的?提交|目前为止|前天(?=文)|人口普查|定价"
)
_HARD_ZH = re.compile(
    r"今晚|今早|今晨|明晚|昨晚|昨夜|昨儿|外面|这会儿?|眼下|刚刚|此刻|热搜|崩了|宕机|挂了|晚点|堵车|"
    r"路况|赛果|开奖|现在(?:几点|有货|谁是|是谁|多少|在哪)|这周末?|本周末?|这个月|本月|下周末?|下个月"
)
_SOFT_ZH = re.compile(
    r"今天|今日|明天|明日|昨天|昨日|后天|前天|现在|目前|当前|最新|最近|近期|近日|刚才|当下|如今|"
    r"上[个一]?(?:周|月|星期|季度|赛季|场|轮)|本(?:季度|赛季|场|轮|年度)|今年|去年|明年|"
    r"实时|即时|现任|在任"
)
_OFFICE_ZH = (
    "总统|总理|首相|主席|国王|女王|部长|市长|省长|书记|董事长|总裁|CEO|ceo|教练|队长|冠军|首富"
)
_TOPIC_ZH = re.compile(
    r"天气(?!预报(?:是|怎|的))|比分|气温(?=是|多少|怎|$)|(?:会|要|在|有没有|会不会)(?:下雨|下雪|降温|刮风)|"
    r"下雨(?:吗|了|没)|下雪(?:吗|了|没)|冷不冷|热不热|空气质量|雾霾|限行|股价|大盘|油价|金价|菜价|"
    r"(?:股票|基金|比特币|黄金|房价|价格|汇率|利率|行情|指数).{0,8}(?:多少|几|怎么样|如何|涨|跌|走势)|"
    r"(?:股票|基金|比特币|黄金|房价|价格|利率|行情|指数)(?:呢|啊)?$|"
    r"(?:元|币|镑|磅|黄金)(?:兑|对)(?:人民币|美元|欧元|日元|港币)|停运|末班|首班|"
    r"汇率|点位|多少点|[涨跌](?:了|停)|新闻(?=有|$|是)|有(?:哪些|什么)新闻|排行|积分榜|"
    r"星期几|周几|几号了?$|几月几号|几点了|票房|销量|赢了|谁赢|输了|夺冠|"
    r"(?:还有|还剩|距离?|离).{0,8}(?:几天|几个|多少天|多久|多长时间)|倒计时|下一(?:班|趟|场|次)|"
    r"有货|到货|缺货|开门|营业|关门|排队|身价|市值|多大了|多大年纪|几岁了?|"
    r"(?<!水)(?<!利率)(?:多少钱|什么价|几块钱|咋卖|怎么卖)|人口.{0,2}多少|有多少人口?|附近|"
    rf"(?:{_OFFICE_ZH}).{{0,3}}(?:是谁|谁|叫什么|是哪)|谁是.{{0,12}}(?:{_OFFICE_ZH})|"
    r"(?:余额|订单|快递|包裹|物流|审批|申请)(?=.{0,6}(?:多少|到哪|在哪|状态|进度|通过|到了))|"
    r"(?:加息|降息|放假|上映|发布|发售)(?:了|吗|没)"
)
_PROCEDURE_ZH = re.compile(
    r"怎么(?:用|做|写|获取|得到|查看|计算|算|实现|设计|形成|产生|求|定义|构成|给|学|注册|取|设置|"
    r"转换|格式化|解析)|如何(?:获取|得到|查看|计算|实现|设计|定义|构成|学|设置|转换|格式化|解析)|"
    r"是怎么|怎样(?:获取|计算|实现)"
)
_MEANING_ZH = re.compile(
    r"什么意思|^什么(?:是|叫)|的?(?:定义|原理|概念|含义|用法|作者|主题曲|过去式)|区别|的关系|有什么关系|"
    r"怎么说|怎么读|怎么拼|一词|为什么会?|是什么$|第[一二三四五六七八九十\d]+[任届个]|历任|历届|历史上"
)
_LANGUAGE_ZH = re.compile(
    r"用.{1,3}[语文](?:怎么)?(?:说|讲|读|写|翻译)|翻译成|的过去式|什么意思|一词"
)


def time_sensitive(question: str) -> bool:
    """True when the answer changes within days."""
    return _ages(ends(question) if len(question) > SHORT else question)


@lru_cache(maxsize=4096)
def _ages(text: str) -> bool:
    # Asked of every request, and many requests are the same.
    bare = _QUOTED.sub(" ", text)
    chinese = not bare.isascii()
    return any(
        (_LETTER.search(part) and _english(part)) or (chinese and _chinese(part.strip()))
        for part in _SENTENCE.split(bare)
        if part and not part.isspace()
    )


def _english(text: str) -> bool:
    text = _NOT_TIME_EN.sub(" ", text)
    if _HARD_EN.search(text):
        return True
    procedure = _PROCEDURE_EN.search(text) and not _ASKS_VALUE_EN.search(text)
    meaning = _MEANING_EN.search(text) is not None
    if not procedure and _SOFT_EN.search(text) and not (meaning and "mean" in text):
        return True
    if procedure or meaning or _YEAR.search(text):
        return False
    return _TOPIC_EN.search(text) is not None or _STATUS_EN.search(text) is not None


def _chinese(text: str) -> bool:
    text = _NOT_TIME_ZH.sub(" ", text)
    if _LANGUAGE_ZH.search(text):
        return False
    if _HARD_ZH.search(text):
        return True
    procedure = _PROCEDURE_ZH.search(text) is not None
    if not procedure and _SOFT_ZH.search(text):
        return True
    meaning = _MEANING_ZH.search(text) is not None
    if procedure or meaning or _YEAR.search(text):
        return False
    return _TOPIC_ZH.search(text) is not None

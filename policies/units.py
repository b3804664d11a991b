"""Names of units, number words and dates, English and Chinese: the tables of quantities.py."""

from __future__ import annotations

import re

from tierway.policies.lexicon import by_sign, entries

_UNIT_NAMES = {
    "percent": "% percent per_cent pct",
    "usd": "$ usd dollar dollars buck bucks 美元 美金 刀",
    "eur": "€ eur euro euros 欧元",
    "gbp": "£ gbp quid 英镑",
    "cny": "¥ cny rmb yuan 元 块 块钱 元钱 人民币 元人民币",
    "inr": "₹ inr rs rupee rupees 卢比",
    "jpy": "jpy yen 日元",
    "second": "s sec secs second seconds 秒 秒钟",
    "minute": "min mins minute minutes 分钟",
    "hour": "h hr hrs hour hours 小时 钟头 个小时 个钟头",
    "day": "day days 天 日",
    "week": "week weeks wk wks 周 星期 个星期 礼拜 个礼拜",
    "month": "month months 个月 月",
    "year": "yr yrs year years 年",
    "decade": "decade decades",
    "age": "year_old years_old 岁",
    "kg": "kg kgs kilo kilos kilogram kilograms 公斤 千克",
    "gram": "g gram grams 克",
    "jin": "斤",
    "pound": "lb lbs pound pounds 磅",
    "ounce": "oz ounce ounces 盎司",
    "km": "km kms kilometer kilometers kilometre kilometres 公里 千米",
    "metre": "m meter meters metre metres 米",
    "cm": "cm centimeter centimeters centimetre centimetres 厘米 公分",
    "mm": "mm millimeter millimeters 毫米",
    "mile": "mile miles mi 英里",
    "foot": "ft foot feet 英尺",
    "inch": "inch inches 英寸 寸",
    "litre": "l liter liters litre litres 升",
    "ml": "ml milliliter milliliters millilitre millilitres 毫升",
    "gallon": "gallon gallons",
    "cup": "cup cups",
    "celsius": "°c celsius 摄氏度 度",
    "fahrenheit": "°f fahrenheit 华氏度",
    "kb": "kb",
    "mb": "mb megabyte megabytes",
    "gb": "gb gigabyte gigabytes",
    "tb": "tb terabyte terabytes",
    "byte": "byte bytes 字节",
    "calorie": "calorie calories cal kcal 卡 卡路里 大卡",
    "am": "am a.m",
    "pm": "pm p.m",
    "clock": "点 点钟 o'clock",
    "volt": "v volt volts 伏",
    "watt": "w watt watts 瓦",
    "yard": "yd yard yards 码",
    "stone": "stone",
    "ton": "ton tons tonne tonnes 吨",
    "mg": "mg milligram milligrams 毫克",
    "microgram": "mcg ug microgram micrograms 微克",
    "tablespoon": "tbsp tablespoon tablespoons 汤匙 大勺",
    "teaspoon": "tsp teaspoon teaspoons 茶匙 小勺",
    "pint": "pint pints 品脱",
    "quart": "quart quarts 夸脱",
    "acre": "acre acres 英亩",
    "hectare": "ha hectare hectares 公顷",
    "mu": "亩",
    "kelvin": "kelvin kelvins 开尔文",
    "bit": "bit bits 比特",
    "kilobit": "kilobit kilobits",
    "megabit": "megabit megabits mbps",
    "gigabit": "gigabit gigabits gbps",
    "cent": "cent cents 美分",
    "penny": "pence penny pennies",
    "jiao": "角 毛钱 毛",
    "fen": "分钱",
    "joule": "joule joules kj 焦耳 千焦",
    "kilowatt": "kw kilowatt kilowatts 千瓦",
    "megawatt": "mw megawatt megawatts 兆瓦",
    "amp": "amp amps ampere amperes 安培",
    "hertz": "hz hertz 赫兹",
    "megahertz": "mhz megahertz 兆赫",
    "gigahertz": "ghz gigahertz",
    "knot": "knot knots",
    "nanometre": "nm nanometer nanometers nanometre nanometres 纳米",
    "micron": "micron microns 微米",
    "fortnight": "fortnight fortnights",
    "quarter": "季度 个季度",
    "century": "century centuries 世纪 个世纪",
    "millisecond": "ms millisecond milliseconds 毫秒",
    "li": "里 里路 华里",
    "liang": "两",
    "chi": "尺",
    # Chinese measure words follow a number as a matter of grammar: they tell no things apart.
    "piece": "个 只 条 张 位 名 本 首 次 期 件 台 部 集 章 页 级 种 款 份 辆 套 家 行 字",
}
UNITS = {name: unit for unit, names in _UNIT_NAMES.items() for name in names.split()}
# Alone, without a number, these letters and words are rarely units.
_ONLY_AFTER_NUMBER = frozenset(
    entries("""
    s h g m l v w mi cal sec min am pm cup cups second stone ton tons bit bits cent cents ha kw mw
    ms nm ug amp amps knot knots century fortnight
    两 里 尺 角 毛 码 亩 世纪 季度 点 卡 升 月 年 日 天 度
    """)
)
BARE_UNITS = {
    name: unit
    for name, unit in UNITS.items()
    if unit != "piece" and name not in _ONLY_AFTER_NUMBER and (len(name) > 1 or name == "%")
}

SMALL = {
    word: value
    for value, word in enumerate(
        entries("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen
    """)
    )
} | {
    word: 10 * tens
    for tens, word in enumerate(
        entries("""
    twenty thirty forty fifty sixty seventy eighty ninety
    """),
        start=2,
    )
}
SCALES = {
    "hundred": 100.0,
    "thousand": 1e3,
    "k": 1e3,
    "lakh": 1e5,
    "lakhs": 1e5,
    "million": 1e6,
    "millions": 1e6,
    "mn": 1e6,
    "crore": 1e7,
    "crores": 1e7,
    "billion": 1e9,
    "billions": 1e9,
    "bn": 1e9,
    "trillion": 1e12,
}
_ORDINALS = {
    word: value
    for value, word in enumerate(
        entries("""
    first second third fourth fifth sixth seventh eighth ninth tenth
    """),
        start=1,
    )
}
ZH_DIGITS = {c: v for v, c in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0, "俩": 2}
ZH_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 100_000_000}
# Words in which a numeral counts nothing.
_NOT_NUMBERS = entries("""
    一下 一般 一样 一直 一起 一定 一些 一共 一旦 一切 有一点 一点点 一点儿 差一点
    早一点 快一点 多一点 一边 统一 唯一 万一 之一 一会 不一 三星 三国 五一 十一 双十一
    九寨沟 百度 千万 万科 百科 万能 万达 一键 第一次 星期一 周一 万里
    """)
# What stands in their place while numbers are read.
ZH_NOT_NUMBERS = tuple((word, f"\x00{at}\x01") for at, word in enumerate(_NOT_NUMBERS))
ZH_UNITS = by_sign(sorted((n for n in UNITS if ord(n[0]) > 0x2E80), key=len, reverse=True))
ZH_BARE_UNITS = by_sign(name for name in BARE_UNITS if ord(name[0]) > 127)

EN_DATES = {
    name: f"month{at}"
    for at, names in enumerate(
        (
            "january jan",
            "february feb",
            "march",
            "april apr",
            "may",
            "june jun",
            "july jul",
            "august aug",
            "september sep sept",
            "october oct",
            "november nov",
            "december dec",
        ),
        start=1,
    )
    for name in names.split()
} | {
    name: day
    for day in entries("""
    monday tuesday wednesday thursday friday saturday sunday
    """)
    for name in (day, day + "s")
}
EN_DATES |= {
    word: word
    for word in entries("""
    today tomorrow yesterday tonight spring summer autumn winter weekend christmas easter
    halloween thanksgiving morning evening afternoon
    """)
}
EN_DATES["fall"] = "autumn"
EN_PERIODS = {
    "last": "last", "previous": "last", "past": "last",
    "this": "this", "current": "this", "next": "next", "coming": "next",
}  # fmt: skip
EN_PERIOD = re.compile(
    rf"\b({'|'.join(EN_PERIODS)}) "
    r"(second|minute|hour|day|night|week|weekend|month|quarter|year|decade|century|season)s?\b"
)
# Mostly verbs: dates only after in, of, since, by, until or before a number.
EN_DOUBTFUL = {"march", "may", "fall", "second"}
ZH_DATE = re.compile(
    r"今天|明天|后天|大后天|昨天|前天|今晚|明晚|昨晚|今年|明年|后年|去年|前年|"
    r"上个?月|下个?月|这个?月|本月|"
    r"(?:上个?|下个?|这个?|本)(?:周|星期|礼拜)[一二三四五六日天末]?|(?:周|星期|礼拜)[一二三四五六日天]|早上|上午|中午|下午|晚上|凌晨|"
    r"春天|夏天|秋天|冬天|春节|国庆|中秋|端午|元旦|清明|月底|月初|年底|年初|周末"
)
ZH_DATE_SIGN = re.compile("[天晚年月周星礼早午晨春国秋旦清]")

"""Numbers, units and dates of a question in one notation, English and Chinese.

`10%` and `10 percent`, `3000元` and `三千元`, `$100` and `100 dollars`, `2 weeks` and `two weeks`
come out equal. What is not recognised stays a word and is compared as one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from tierway.policies import units as tables

_NUMBER = re.compile(
    r"(?=[-$€£¥₹\d]|\s\d)(?P<sign>(?<![\w.)])-)?(?P<currency>[$€£¥₹])?\s?"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?P<ordinal>st|nd|rd|th)?(?![\d])"
)
_DIGIT = re.compile(r"\d")
_AFTER_EN = re.compile(r"\s?-?\s?(%|°\s?[cf]|[a-z]+(?: cent| old)?)")
_WORD = re.compile(r"[a-z]+")
_ZH_NUMERAL = re.compile(
    r"(第)?([零一二三四五六七八九十百千万亿两〇俩]+)(?:点([零一二三四五六七八九]+))?"
)
_ZH_NUMERAL_SIGN = re.compile("[零一二三四五六七八九十百千万亿两〇俩]")
_ZH_SCALE_AFTER = re.compile(r"[十百千万亿]+")
_ZH_PERCENT = re.compile(r"百分之(\d+(?:\.\d*)?|[零一二三四五六七八九十百两]+)")
# Private characters stand where numbers were: words and digits are found in separate passes.
_FIRST_MARK, _MARKS = 0xE000, 0x1900
_MARK = re.compile("[\ue000-\uf8ff]")
PLACE = "\ue000"
"""Where a number stood in `rest`."""


@dataclass(frozen=True, slots=True)
class Quantities:
    """`numbers` holds (value, unit) in order, unit "" where none follows; `units` every unit named;
    `rest` the text with PLACE for each number and a blank for each date."""

    numbers: tuple[tuple[float, str], ...]
    units: frozenset[str]
    dates: frozenset[str]
    rest: str


def quantities(text: str, language: str) -> Quantities:
    """`text` is NFKC-normalised and lower-case."""
    found: list[tuple[float, str]] = []
    if not text.isascii():
        text = _MARK.sub(" ", text)
    if language == "zh":
        text, dates = _zh_dates(text)
        text = _digits(_zh_numerals(text, found), found)
        bare = _zh_bare_units(text)
    else:
        # Dates and number words only take whole words away: what is none of these stays none.
        words = frozenset(_WORD.findall(text))
        text, dates = _en_dates(text, words)
        if not words.isdisjoint(tables.SMALL):
            text = _en_number_words(text, found)
        text = _digits(text, found)
        bare = _en_bare_units(text) if found or words & tables.BARE_UNITS.keys() else ()
    if not found:
        return Quantities((), frozenset(bare), dates, text)
    units = frozenset([unit for _, unit in found if unit]).union(bare)
    order = [ord(mark) - _FIRST_MARK for mark in _MARK.findall(text)]
    return Quantities(tuple(found[at] for at in order), units, dates, _MARK.sub(f" {PLACE} ", text))


def _en_bare_units(text: str) -> Collection[str]:
    return [tables.BARE_UNITS[word] for word in _WORD.findall(text) if word in tables.BARE_UNITS]


def _zh_bare_units(text: str) -> Collection[str]:
    return [
        tables.BARE_UNITS[name]
        for sign in tables.ZH_BARE_UNITS.keys() & text
        for name in tables.ZH_BARE_UNITS[sign]
        if name in text
    ]


def _mark(found: list[tuple[float, str]], value: float, unit: str) -> str:
    """Notes a number; what it returns holds the number's place in the text until the end."""
    found.append((value, unit))
    return chr(_FIRST_MARK + min(len(found) - 1, _MARKS - 1))


def _en_dates(text: str, words: frozenset[str]) -> tuple[str, frozenset[str]]:
    dates: set[str] = set()

    def period(match: re.Match[str]) -> str:
        dates.add(f"{tables.EN_PERIODS[match[1]]}-{match[2]}")
        return " "

    if not words.isdisjoint(tables.EN_PERIODS):
        text = tables.EN_PERIOD.sub(period, text)
    if words.isdisjoint(tables.EN_DATES):
        return text, frozenset(dates)

    def name(match: re.Match[str]) -> str:
        word = match[0]
        if word not in tables.EN_DATES:
            return word
        if word in tables.EN_DOUBTFUL:
            before = text[: match.start()].rsplit(None, 1)[-1:]
            after = text[match.end() :].lstrip()[:1]
            if before not in (["in"], ["of"], ["since"], ["by"], ["until"]) and not after.isdigit():
                return word
        dates.add(tables.EN_DATES[word])
        return " "

    return _WORD.sub(name, text), frozenset(dates)


def _zh_dates(text: str) -> tuple[str, frozenset[str]]:
    if not tables.ZH_DATE_SIGN.search(text):
        return text, frozenset()
    dates: set[str] = set()

    def take(match: re.Match[str]) -> str:
        name = re.sub("个", "", match[0])
        name = name.replace("礼拜", "周").replace("星期", "周").replace("周天", "周日")
        dates.add(name.replace("本", "这"))
        return " "

    return tables.ZH_DATE.sub(take, text), frozenset(dates)


def _en_number_words(text: str, found: list[tuple[float, str]]) -> str:
    written = text.split(" ")
    words = [word.strip(",.?!") for word in written]
    out: list[str] = []
    at = 0
    while at < len(words):
        value, used = _read_words(words, at)
        if used:
            unit, extra = _unit_of(words, at + used)
            if value != 1 or unit or used > 1:
                out.append(_mark(found, value, unit))
                at += used + extra
                continue
        out.append(written[at])
        at += 1
    return " ".join(out)


def _read_words(words: list[str], at: int) -> tuple[float, int]:
    """(value, words used); "twenty-five", "two hundred", "three million"."""
    total, current, used = 0.0, 0.0, 0
    for word in words[at:]:
        if word in tables.SMALL:
            current += tables.SMALL[word]
        elif "-" in word and tables.SMALL.keys() >= set(word.split("-")):
            current += sum([tables.SMALL[part] for part in word.split("-")])
        elif used and word in tables.SCALES:
            scale = tables.SCALES[word]
            current = max(current, 1) * scale
            if scale > 100:
                total, current = total + current, 0.0
        else:
            break
        used += 1
    return total + current, used


def _unit_of(words: list[str], at: int) -> tuple[str, int]:
    """The unit at `at` and how many words name it."""
    if at >= len(words):
        return "", 0
    word = words[at]
    following = words[at + 1] if at + 1 < len(words) else ""
    for name, used in ((f"{word}_{following}", 2), (word, 1)):
        if name in tables.UNITS:
            return tables.UNITS[name], used
    return "", 0


def _digits(text: str, found: list[tuple[float, str]]) -> str:
    if not _DIGIT.search(text):
        return text
    out: list[str] = []
    end = 0
    for match in _NUMBER.finditer(text):
        if match.start() < end:
            continue
        value = float(match["digits"].replace(",", ""))
        value = -value if match["sign"] else value
        scale, unit, stop = _after(text, match.end())
        if match["currency"]:
            unit = tables.UNITS[match["currency"]]
        elif _rupees(text, match.start()):
            unit = "inr"
        mark = _mark(found, value * scale, unit)
        out += [text[end : match.start()], mark]
        end = stop
    return "".join(out) + text[end:]


def _rupees(text: str, at: int) -> bool:
    return text[:at].rstrip(" .").endswith(("rs", "inr"))


def _after(text: str, at: int) -> tuple[float, str, int]:
    """Scale, unit and end of what follows a number: `million dollars`, `万元`, `kg`."""
    scale = 1.0
    if (name := _zh_unit(text, at)) and len(name) > 1:
        return scale, tables.UNITS[name], at + len(name)  # 12千米 is no 12,000 米
    if chinese := _ZH_SCALE_AFTER.match(text, at):
        for character in chinese[0]:
            scale *= tables.ZH_SCALES[character]
        at = chinese.end()
    at_name = at + (text[at : at + 1] == " ")
    if name := _zh_unit(text, at_name):
        return scale, tables.UNITS[name], at_name + len(name)
    word = _AFTER_EN.match(text, at)
    if word and word[1] in tables.SCALES:
        scale *= tables.SCALES[word[1]]
        at = word.end()
        word = _AFTER_EN.match(text, at)
    if word:
        for name in (word[1].replace(" ", "_"), word[1].split(" ")[0]):
            if name in tables.UNITS:
                return scale, tables.UNITS[name], word.start(1) + len(name)
    return scale, "", at


def _zh_unit(text: str, at: int) -> str:
    """The name of the unit at `at`, "" if there is none."""
    for name in tables.ZH_UNITS.get(text[at : at + 1], ()):
        if text.startswith(name, at):
            return name
    return ""


def _zh_numerals(text: str, found: list[tuple[float, str]]) -> str:
    def percent(match: re.Match[str]) -> str:
        digits = match[1]
        return _mark(found, float(digits) if digits[0].isdigit() else _zh_value(digits), "percent")

    if not _ZH_NUMERAL_SIGN.search(text):
        return text.replace("半年", "6个月")
    text = _ZH_PERCENT.sub(percent, text)
    shields = [shield for shield in tables.ZH_NOT_NUMBERS if shield[0] in text]
    for word, mark in shields:
        text = text.replace(word, mark)
    text = text.replace("半年", "6个月")
    out: list[str] = []
    end = 0
    for match in _ZH_NUMERAL.finditer(text):
        value = _zh_value(match[2])
        if match[3]:
            value += float("0." + "".join(str(tables.ZH_DIGITS[c]) for c in match[3]))
        before = text[: match.start()]
        if match.start() < end or (before and before[-1].isdigit()) or before.endswith("\x00"):
            continue
        if len(match[2]) == 1 and not match[1] and not _zh_unit(text, match.end()):
            continue
        _, unit, stop = _after(text, match.end())
        mark = _mark(found, value, unit)
        out += [text[end : match.start()], match[1] or "", mark]
        end = stop
    text = "".join(out) + text[end:]
    for word, mark in shields:
        text = text.replace(mark, word)
    return text


def _zh_value(numeral: str) -> float:
    """`三千五百` -> 3500, `二〇一五` -> 2015, `十万` -> 100000."""
    if all(c in tables.ZH_DIGITS for c in numeral):
        return float("".join(str(tables.ZH_DIGITS[c]) for c in numeral))
    total = section = digit = 0.0
    for character in numeral:
        if character in tables.ZH_DIGITS:
            digit = tables.ZH_DIGITS[character]
            continue
        scale = float(tables.ZH_SCALES[character])
        if scale >= 10_000:
            total = (total + section + digit) * scale or scale
            section = digit = 0
        else:
            section += (digit or 1) * scale
            digit = 0
    return total + section + digit

"""Which calls are answered by exact repetition only, whatever the vectors say, and why.

The reasons: `max-turns`, `not-self-contained` (context.py), `disguised` and `orders`
(injection.py), `arithmetic`, `creative` (whoever asks for a joke again wants another one),
`too-long`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from tierway.policies.context import (
    asked_of,
    is_conversation,
    self_contained,
    stands_alone,
)
from tierway.policies.injection import disguised, gives_orders
from tierway.policies.lexicon import arithmetic
from tierway.policies.types import Call

_WORKS = (
    r"jokes?|poems?|poetry|story|stories|tales?|songs?|lyrics|haikus?|limericks?|riddles?|puns?|rap|"
    r"sonnets?|slogans?|taglines?|verses?|ballads?|fairy ?tales?|fan ?fiction|pick-?up lines?|"
    r"nicknames?|usernames?|(?:band |baby |pet |brand |company )?names? for|toast|monologue|"
    r"dialogue|screenplay|fun facts?|prank|roast"
)
_CREATIVE_EN = re.compile(
    r"(?<!to )(?<!you )(?<!i )\b(?:tell|give|write|compose|make|create|sing|invent|generate|"
    r"improvise|share|come up with|think of|suggest)\b (?:me |us |up )?(?:(?:a|an|another|some|one|"
    rf"two|three|\d+|the|your|best|[\w-]+) ){{0,4}}(?:{_WORKS})\b|"
    r"\b(?:can|could|will|would) you (?:please )?(?:tell|write|sing|compose|make up)\b.{0,30}\b"
    rf"(?:{_WORKS})\b|"
    r"\b(?:random (?:number(?! gen)|word|fact|name|colou?r|quote|animal|letter|person|movie|song)|"
    r"pick (?:a|any) (?:number|card|colou?r|word)|(?:pick|choose) (?:\w+ ){0,4}(?:randomly|at "
    r"random)|(?:roll|throw) (?:a|the|two|some) (?:die|dice)|(?:flip|toss) a coin|surprise me|"
    r"entertain me|say something (?:funny|nice|random|interesting))\b",
    re.IGNORECASE,
)
_CREATIVE_ZH = re.compile(
    r"(?:讲|说|来|写|编|作|创作|唱|想|起|取|给我)(?:一|两|三|几|个|首|段|则|篇|点|些|我|给|来|"
    r"[\u4e00-\u9fff]){0,9}?(?:笑话|故事|诗|歌词|首歌|段子|谜语|绕口令|对联|童话|小说|剧本|"
    r"脑筋急转弯|名字|情话|祝福语|相声|脱口秀|打油诗|俳句|散文|口号|标语|广告语)|"
    r"随机(?:给|选|挑|生成|说|来|抽)|(?:抛|扔|掷)(?:个|一个|一枚|一次)?(?:硬币|骰子)|逗我笑|随便说点"
)
_LONGEST = 4000  # characters; no encoder's window takes more and tells what differs
_ABOUT_ZH = re.compile(r"怎么|如何|怎样|是谁|什么|哪|技巧|作者|方法")


def why_exact_only(call: Call, *, max_turns: int | None = None) -> str:
    """Why this call must not be matched by meaning; "" where nothing speaks against it.

    `max_turns` bounds the human turns of a conversation.
    """
    if is_conversation(call):
        human = sum([turn.role == "user" for turn in call.ask.turns])
        if max_turns is not None and human > max_turns:
            return "max-turns"
        return _by_text(asked_of(call)) or _leans(asked_of(call))
    return _by_text(asked_of(call)) or _lonely(asked_of(call))


def creative(text: str) -> bool:
    """True when what is wanted is to be made up anew each time."""
    if _CREATIVE_EN.search(text):
        return True
    return (
        not text.isascii() and _CREATIVE_ZH.search(text) is not None and not _ABOUT_ZH.search(text)
    )


def _by_text(question: str) -> str:
    return "too-long" if len(question) > _LONGEST else _by_short_text(question)


@lru_cache(maxsize=1024)
def _by_short_text(question: str) -> str:
    # Asked of every request, and many requests are the same.
    if disguised(question):
        return "disguised"
    text = unicodedata.normalize("NFKC", question)
    if gives_orders(text):
        return "orders"
    if arithmetic(text):
        return "arithmetic"
    return "creative" if creative(text) else ""


@lru_cache(maxsize=1024)
def _leans(question: str) -> str:
    return "" if self_contained(question) else "not-self-contained"


@lru_cache(maxsize=1024)
def _lonely(question: str) -> str:
    return "" if stands_alone(question) else "not-self-contained"

"""Tokens and answers of a simulated engine: deterministic, readable, cheap.

A token is a piece of a word with the blank before it, up to three digits, a Chinese, Japanese
or Korean character, or a sign: about what a real tokenizer makes, at 4 to 5 letters or one
character a token. Cutting a text between two tokens leaves the tokens before the cut as they
are, so that an answer sent back as history falls into the blocks it was generated in.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tierway.bench.profiles import BLOCK_TOKENS

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"<\|[a-z_]+\|>| ?[A-Za-z]{{1,8}}|\d{{1,3}}|[{_CJK}]|\n|[ \t]+|.", re.DOTALL)
_CHARACTER = re.compile(f"[{_CJK}]")
_DIRECTIVE = re.compile(r"\s*\[\[[a-z-]+(?:[: ][^\]]*)?\]\]\s*")
_SHORT = 8

_ENGLISH = (
    "The short answer starts with {a} and then turns to {b}.",
    "Most people meet {a} first, which is why {b} looks harder than it is.",
    "In step {n} compare {a} with {b} and write down what differs.",
    "A good rule for {a}: change one thing, look at {b}, then go on.",
    "There are {n} common cases, and {b} decides which one you have.",
    "Without {a} the rest would not hold, so check it before {b}.",
    "Where {a} is uncertain, {b} gives a safe lower bound.",
    "An example helps: take {n} items of {a} and leave {b} as it is.",
    "Both {a} and {b} matter here, though not equally.",
    "If you only remember one point about {a}, let it be {b}.",
    "Careful readers will notice that {b} limits {a} to about {n} percent.",
    "This is how {a} and {b} fit together in practice.",
    "Finally, test {a} on a small case before you trust {b}.",
)
_CHINESE = (
    "首先要看{a},然后再考虑{b}。",
    "多数人先遇到{a},所以觉得{b}更难。",
    "第{n}步,把{a}和{b}放在一起比较。",
    "关于{a}有一条好规则:一次只改一处,再观察{b}。",
    "常见的情况有{n}种,由{b}决定属于哪一种。",
    "没有{a},其余的就不成立,因此请先确认{b}。",
    "举个例子:取{n}个{a},保持{b}不变。",
    "{a}和{b}都重要,但分量不同。",
    "如果只记住一点,那就是{b}。",
    "细心的读者会发现,{b}把{a}限制在百分之{n}左右。",
    "实际应用中,{a}与{b}就是这样配合的。",
    "最后,先在小例子上检验{a},再相信{b}。",
)
_ENGLISH_WORDS = ("the question", "the context", "the details", "the cost", "the result")
_CHINESE_WORDS = ("这个问题", "上下文", "细节", "成本", "结果")


def tokenise(text: str) -> list[str]:
    """The tokens, whose concatenation is the text."""
    return _TOKEN.findall(text)


def block_keys(tokens: Sequence[str], salt: str) -> list[int]:
    """One key for each full block, chained: equal keys mean equal salt and leading tokens."""
    keys = []
    parent = hash(salt)
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        parent = hash((parent, *tokens[end - BLOCK_TOKENS : end]))
        keys.append(parent)
    return keys


def digest(*parts: object) -> int:
    """A 64-bit number from the parts, the same in every process."""
    joined = "\0".join(str(part) for part in parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


def natural_length(prompt: str, seed: int) -> int:
    """How many tokens an answer has when nobody asks for a length: 20 to 120."""
    return 20 + digest("length", seed, prompt) % 101


def answer_tokens(model: str, prompt: str, question: str, count: int, choice: int = 0) -> list[str]:
    """`count` tokens of an answer that names the model and repeats the head of the question.

    The same prompt gives the same text (as far as `count` reaches); `choice` tells several
    answers to one prompt apart. Chinese questions are answered in Chinese.
    """
    question = " ".join(_DIRECTIVE.sub(" ", question).split())
    chinese = len(_CHARACTER.findall(question)) * 4 > len(question)
    rng = random.Random(digest("text", prompt, choice))
    tokens = tokenise(_opening(model, question, chinese))
    words = _words(question, chinese)
    while len(tokens) < count:
        tokens += tokenise(_sentence(rng, words, chinese))
    if count < _SHORT:
        return tokens[:count]
    return [*tokens[: count - 1], "。" if chinese else "."]


def _opening(model: str, question: str, chinese: bool) -> str:
    if chinese:
        return f"{model}回答:您问的是“{question[:24]}”。"
    head = question if len(question) <= 60 else question[:60].rsplit(" ", 1)[0] + " ..."
    return f'{model} answers: you asked "{head}".'


def _words(question: str, chinese: bool) -> list[str]:
    pattern = rf"[{_CJK}]{{2,4}}" if chinese else r"[A-Za-z][A-Za-z-]{3,}"
    found = list(dict.fromkeys(re.findall(pattern, question)))[:12]
    return [*found, *(_CHINESE_WORDS if chinese else _ENGLISH_WORDS)]


def _sentence(rng: random.Random, words: list[str], chinese: bool) -> str:
    template = rng.choice(_CHINESE if chinese else _ENGLISH)
    first, second = rng.sample(words, 2)
    sentence = template.format(a=first, b=second, n=rng.randrange(2, 90))
    return sentence if chinese else " " + sentence


def filled_schema(schema: Any, question: str) -> str:
    """A JSON object with a value for each property of a JSON schema, whatever was given."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return "{}"
    head = " ".join(_DIRECTIVE.sub(" ", question).split())[:40]
    return orjson.dumps({name: _value(kind, head) for name, kind in properties.items()}).decode()


def _value(schema: Any, head: str) -> Any:
    if not isinstance(schema, Mapping):
        return head
    options = schema.get("enum")
    if isinstance(options, list) and options:
        return options[0]
    values = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    kind = schema.get("type")
    return values.get(kind, head) if isinstance(kind, str) else head

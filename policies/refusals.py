"""Is an answer a refusal in words: "I'm sorry, but I can't help with that", 抱歉，我无法回答?

Only how a short answer begins is read. Models also refuse in the `refusal` field and by the
finish reason; those are cacheability.py's. A wrong yes leaves an answer unstored, no more.
"""

from __future__ import annotations

import re

LONGEST = 600
"""Characters; who goes on for longer did answer."""

_CANNOT = (
    r"(?:can(?:no|')t|cannot|can not|am unable to|am not able to|'m unable to|'m not able to|"
    r"won't be able to|don't have|do not have|am not allowed to|must decline)"
)
_HELP = (
    r"(?:help|assist|provide|answer|comply|access|fulfil?l|do that|share|give|create|generate|"
    r"discuss|engage|support|verify|browse|predict|see|tell|write|continue|respond|real-?time|"
    r"access|the ability|information|enough|personal|any)"
)
_REFUSES = re.compile(
    rf"\W*(?:(?:i'm|i am) (?:\w+ )?sorry|sorry|apologies|unfortunately|i apologi[sz]e)\b.{{0,30}}?"
    rf"\bi\W?{_CANNOT}|"
    rf"\W*i ?{_CANNOT} {_HELP}\b|"
    rf"\W*as an? (?:ai|artificial intelligence|language model|large language model|assistant)\b"
    rf".{{0,60}}?\bi ?(?:{_CANNOT}|am only)|"
    r"\W*(?:很|非常|十分)?(?:抱歉|遗憾|对不起|不好意思).{0,20}?(?:无法|不能|没有(?:办法|权限)|没法|不便|不会)|"
    r"\W*作为(?:一个|一名|一款|人工智能|AI|语言模型|助手).{0,40}?(?:无法|不能|没有|不会)|"
    r"\W*(?:我|本助手)(?:无法|不能|没办法|没法)(?:回答|提供|访问|获取|满足|协助|帮助|给出|讨论|生成)",
    re.IGNORECASE,
)


def refuses(text: str) -> bool:
    return len(text) <= LONGEST and _REFUSES.match(text.replace("’", "'")) is not None

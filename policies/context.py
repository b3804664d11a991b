"""Does the newest turn stand on its own, or lean on the turns before it?

Within a conversation any word that may point back counts ("is it cheap?", 它呢), and so does a text
too short to say what it is about. A single turn has nothing before it: there only a short text
leans, one that wants more of something or whose pronoun can mean nothing that the text itself has
named ("how old is he" leans, "how do birds find their way" does not). What leans is answered by
exact repetition only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from tierway.policies.lexicon import entries, language_of
from tierway.policies.types import Call

SHORT = 1000
"""Characters; of a longer text only its ends are read."""

_POINTING_EN = (
    r"it|its|they|them|their|theirs|this|that|these|those|he|him|his|she|her|hers|former|latter|"
    r"(?:the|that|this|another|other|which) ones?|above|previous|there|here"
)
_POINTING = re.compile(
    rf"\b(?:{_POINTING_EN})\b|"
    r"它|他|她|这个|那个|这些|那些|这样|那样|这种|那种|这里|那里|上面|上述|刚才|前者|后者|其中",
    re.IGNORECASE,
)
# Moves in a conversation: they want more of it, or another turn of the same.
_GOING_ON = re.compile(
    r"\b(?:same|again|else|instead|more|then|continue|go on|keep going|elaborate|and you|"
    r"what about|how about|(?:the|an?) (?:first|second|third|fourth|last|next|other) (?:one|part|"
    r"point|option|example|paragraph|sentence)|(?:an)?other example|what do you mean|you (?:said|"
    r"mentioned|told|wrote)|are you sure|shorter|longer|rephrase|reword)\b|"
    r"^(?:and|or|but|so|also)\b|"
    r"继续|还有|再来|再(?:说|讲|写|给|解释)|接着|然后呢|呢[?？]?$|换一个|换个|同样|另外|另一个|"
    r"第[一二三四五六七八九十\d]+个|举个例子|翻译成|详细(?:点|一点|些)|你(?:确定|刚才|说的)|^那",
    re.IGNORECASE,
)
# "that" as a conjunction, "is there", "it" as a formal subject: no pointing back.
_NOT_POINTING = re.compile(
    r"\b(?:is|are|was|were) (?:there|it (?:possible|true|safe|legal|ok|okay|normal|bad|good|"
    r"worth|better|illegal|healthy|necessary|important|hard|easy|wrong|rude|common))\b|"
    r"\b(?:there (?:is|are|was|were)|more [\w ]{0,30}?than|once more|what time is it|"
    r"does it (?:take|cost|mean to)|it (?:takes?|is) (?:to|possible)|"
    r"this (?:year|month|week(?:end)?|morning|evening|summer|winter)|the same \w+ as|and more)\b|"
    r"(?<=\w )that (?=(?:is|are|was|were|can|could|will|do|does|has|have|had|the|a|an|i|you|we|"
    r"people|it|they|he|she|my|your)\b)|其他|吉他|他人|他们(?=说)",
    re.IGNORECASE,
)
# Pronouns that stand for a thing by themselves; "this app" names what it means.
_BARE = re.compile(
    r"\b(?:it|they|them|he|him|she|(?:this|that|these|those|(?:the|this|that|another|other|"
    r"first|second|third|last) ones?|the (?:above|former|latter|previous))"
    r"(?=\W*$| (?:is|are|was|were|do|does|did|in|into|to|mean|means|work|works|again|please)\b))\b|"
    r"[它他她](?!人)|(?:这|那)(?:个|些|样|种|里|)(?=$|\W|怎么|多少|是|有|能|可以|要|什么|为什么)|"
    r"上面|上述|前者|后者|其中",
    re.IGNORECASE,
)
_FORMAL_IT = re.compile(
    r"\b(?:(?:is|was) (?:it|that) (?:like|me|so|worth|that|to|correct|acceptable|contraindicated|"
    r"\w+ (?:to|that|for|if))|(?:does|do|did|would|will|could|can|might|should|has|had) it "
    r"(?:feel|mean|be|take|cost|happen|been|hurt|matter|rain|snow)|it (?:appears|seems|feels|would|"
    r"takes?|happens|looks like|turns out)|it's (?:been|\w+ (?:to|that))|"
    r"(?:is|what's|what is) it (?:called|when|to|whenever))\b",
    re.IGNORECASE,
)
_ZH_PIECE = re.compile(r"[\u4e00-\u9fff]|[A-Za-z0-9]+")
_WORD = re.compile(r"[A-Za-z][\w'-]*|[\u4e00-\u9fff]")
# Words that name nothing a pronoun could mean.
_NAMES_NOTHING = frozenset(
    entries("""
    a about all am an and any are as at be been being best but by can could cost did do does doing
    done explain find fix for from get give go good had has have help how i if in into is just know
    let like long make many may me mean might more most much my need no not now of off old on one
    or our out please say shall should show so some still summarise summarize take tell than thank
    thanks that the then think to too translate turn up us use used using want was way we were what
    when where which who whom whose why will with work works would write yes you your rewrite
    first last next other same buy call change compare describe happen happens happened open see
    start stop try big tall far fast hot deep high large small cheap safe true right sure
    """)
)
_ZH_NAMES_NOTHING = frozenset(
    "的了吗呢吧啊是什么怎样做用有多少哪在和跟与对把被给让请你我您能会要可以想说"
)
_ZH_SHORTEST, _EN_SHORTEST = 5, 4
_SHORT = {"zh": 12, "en": 8}  # a single turn beyond that says what it is about
_MOVE = {"zh": 7, "en": 4}


def self_contained(question: str) -> bool:
    """False when a turn within a conversation may lean on the turns before it."""
    whole = _normal(question)
    text = _NOT_POINTING.sub(" ", whole)
    if _POINTING.search(text) or _GOING_ON.search(text):
        return False
    if language_of(whole) == "zh":
        return _length(whole, "zh") >= _ZH_SHORTEST
    return _length(whole, "en") >= _EN_SHORTEST


def stands_alone(question: str) -> bool:
    """False when a single turn points at something that it does not name itself."""
    text = _FORMAL_IT.sub(" ", _NOT_POINTING.sub(" ", _normal(question)))
    language = "zh" if language_of(text) == "zh" else "en"
    length = _length(text, language)
    if length > _SHORT[language]:
        return True
    if length <= _MOVE[language] and _GOING_ON.search(text):
        return False
    pointing = _BARE.search(text)
    return pointing is None or _names_something(text[: pointing.start()])


def asked_of(call: Call) -> str:
    """What is asked: the client's own query, else the newest human turn."""
    return call.controls.cache.query or call.ask.question


def is_conversation(call: Call) -> bool:
    return any(turn.role == "assistant" for turn in call.ask.turns)


def concerns(call: Call, test: Callable[[str], bool]) -> bool:
    """Whether `test` holds of what is asked. A turn that leans on the conversation ("and last
    month?") asks about the same as the human turns before it. Never for embeddings, which say
    nothing."""
    if call.wire == "embeddings":
        return False
    asked = call.controls.cache.query or call.ask.question  # inlined: asked of every request
    if test(asked):
        return True
    if len(call.ask.turns) < 2 or not is_conversation(call) or self_contained(asked):
        return False
    return any(turn.role == "user" and test(turn.text) for turn in call.ask.turns)


def ends(text: str) -> str:
    """What a long text asks stands at its beginning or its end."""
    half = SHORT // 2
    return text if len(text) <= SHORT else f"{text[:half]}\n{text[-half:]}"


def _normal(question: str) -> str:
    return unicodedata.normalize("NFKC", ends(question)).strip()


def _length(text: str, language: str) -> int:
    """Words, in Chinese characters."""
    return len(_ZH_PIECE.findall(text)) if language == "zh" else len(text.split())


def _names_something(text: str) -> bool:
    words = [word.lower() for word in _WORD.findall(text)]
    latin = [word for word in words if word.isascii() and word not in _NAMES_NOTHING]
    chinese = [w for w in words if not w.isascii() and w not in _ZH_NAMES_NOTHING]
    return bool(latin) or len(chinese) >= 2

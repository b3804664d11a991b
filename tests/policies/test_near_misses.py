"""Pairs that differ by little and ask for something else: never `equal`, however near they stand.

Each group is one kind; the paraphrases at the end must still be served.
"""

from __future__ import annotations

import pytest

from tierway.bench.verifier_prior import PRIORS
from tierway.policies.equivalence import Equivalence
from tierway.policies.verifier import Verifier

JUDGE = Equivalence([Verifier("test-1", PRIORS)])

POLITENESS = [
    ("How do you say hello in Japanese?", "How do you say thank you in Japanese?"),
    ("What does hello mean in French?", "What does please mean in French?"),
    ("How do you spell thanks?", "How do you spell hey?"),
    ("How do I answer hello?", "How do I answer?"),
    ("谢谢用英语怎么说", "你好用英语怎么说"),
    ("麻烦是什么意思", "劳驾是什么意思"),
    ("你好世界怎么运行", "世界怎么运行"),
    ("怎么避免麻烦", "怎么避免"),
]
TIMES = [
    ("At what time does the store open?", "On what day does the store open?"),
    ("What time is the Super Bowl?", "What date is the Super Bowl?"),
    ("What year did the war end?", "When did the war end?"),
    ("In what month is Easter?", "On what date is Easter?"),
    ("When does the store open?", "What time does the store open?"),
    ("超市几点开门", "超市哪天开门"),
    ("超市几点开门", "超市什么时候开门"),
    ("哪年放假", "哪天放假"),
    ("一年有几个月", "一年有几天"),
]
UNITS = [
    ("How many feet in a mile?", "How many miles in a foot?"),
    ("How many grams are in an ounce?", "How many ounces are in a gram?"),
    ("How many seconds are there in an hour?", "How many hours are there in a second?"),
    ("一米等于多少英尺", "一英尺等于多少米"),
    ("Is it open from Monday to Friday?", "Is it open from Friday to Monday?"),
]
ORDER = [
    ("What eats snakes?", "What do snakes eat?"),
    ("Who does Tom love?", "Who loves Tom?"),
    ("Who is Tom's father?", "Who is Tom the father of?"),
    ("Which dogs chase cats?", "Which dogs do cats chase?"),
    ("Can I drink if I take aspirin?", "Can I take aspirin if I drink?"),
    ("Can I drink if I take aspirin?", "If I drink can I take aspirin?"),
    ("Should I eat before I run?", "Before I eat should I run?"),
    ("Is the child of a king a prince?", "Is the king of a child a prince?"),
    ("Is 5 bigger than x?", "Is x bigger than 5?"),
    ("Why does Tom not like people who smoke?", "Why does Tom like people who do not smoke?"),
    ("What is the mother of Tom's wife called?", "What is the wife of Tom's mother called?"),
    ("谁是鲁迅的老师", "鲁迅是谁的老师"),
    ("我爱的人不爱我", "爱我的人我不爱"),
    ("什么吃蛇", "蛇吃什么"),
    ("如果吃药能喝酒吗", "如果喝酒能吃药吗"),
    ("妈妈和爸爸的老师是谁", "爸爸和妈妈的老师是谁"),
    ("我爱的人是谁", "我爱人是谁"),
]
STEMS = [
    ("What is accounting?", "What is an account?"),
    ("How does marketing work?", "How does the market work?"),
    ("What is engineering?", "What is an engineer?"),
    ("What is banking?", "What is a bank?"),
    ("What is housing?", "What is a house?"),
    ("How do I clean glasses?", "How do I clean glass?"),
    ("What are customs?", "What is a custom?"),
    ("What are arms?", "What is an arm?"),
    ("What are goods?", "What is good?"),
    ("What is a government?", "What is a govern?"),
    ("What is business?", "What is busy?"),
    ("What is a string?", "What is a stringer?"),
]
WORDS = [
    ("How to learn Go programming?", "How to learn programming?"),
    ("How do I sort a Python list?", "How do I type a Python list?"),
    ("What is a primary school?", "What is a main school?"),
    ("How did people communicate?", "How do people communicate?"),
    ("How do people die?", "How do I die?"),
    ("How do I polish nails?", "How do I Polish nails?"),
    ("What is the history of Polish?", "What is the history of polish?"),
    ("What is the best of US?", "what is the best of us?"),
    ("What does IT mean?", "What does it mean?"),
    ("Who runs WHO?", "Who runs who?"),
    ("What is a smartphone?", "What is a phone?"),
    ("How do I make a bed?", "How do I build a bed?"),
    ("What is the meaning of life?", "What is the definition of life?"),
    ("Tell me a joke", "What is a joke?"),
    ("Give a speech", "What is a speech?"),
    ("Few people know?", "A few people know?"),
    ("What does José eat?", "What does Josá eat?"),
    ("得失是什么意思", "失是什么意思"),
    ("都匀在哪里", "匀在哪里"),
    ("可爱怎么写", "能爱怎么写"),
    ("能不能吃虾", "要不要吃虾"),
    ("身份证怎么办", "身份证怎么处理"),
    ("房子多大", "房子年龄多大"),
    ("帮我找工作", "帮工作"),
    ("是非是什么", "非是什么"),
    ("红的花是什么", "红花是什么"),
    ("爱的人多吗", "爱人多吗"),
    ("老板开除的员工怎么办", "老板开除员工怎么办"),
    ("打的去机场多少钱", "打去机场多少钱"),
    ("How can I help?", "How can you help?"),
    ("How old is the king?", "How old is a king?"),
    ("What is a tank used for?", "What tank is used for?"),
    ("What does TCP stand for?", "What does TCP mean?"),
]
PARAPHRASES = [
    ("What is the capital of France?", "What's France's capital?"),
    ("What is the capital of South Korea?", "What's South Korea's capital?"),
    ("How do I turn on dark mode?", "How can I turn on dark mode"),
    ("How do I turn on dark mode?", "Hi, how do I turn dark mode on?"),
    ("How do I turn on dark mode?", "how to turn on dark mode, please"),
    ("Who is the father of Tom?", "Who is Tom's father?"),
    ("At what time does the store open?", "What time does the store open?"),
    ("What is photosynthesis?", "Can you tell me what photosynthesis is?"),
    ("How do I install Docker?", "how do i install docker"),
    ("How do I fix a leaking tap?", "How can I repair a leaking tap?"),
    ("法国的首都是哪里", "法国首都是哪儿"),
    ("谁是法国总统", "法国总统是谁"),
    ("你好，怎么学吉他", "怎么学吉他？谢谢"),
    ("打印机为什么不能用", "为什么打印机不能用"),
    ("超市几点开门", "请问超市几点钟开门"),
    ("红茶和绿茶的区别", "绿茶和红茶的区别"),
    ("《红楼梦》的作者是谁", "红楼梦作者是谁"),
    ("How do I cook rice?", "Hello! How do I cook rice? Thanks"),
    ("Who wrote Hamlet?", "who wrote hamlet"),
]


# As the built-in encoders see them, where that is less than the cosine all others are tried at.
COSINES = {
    "How do I answer hello?": 0.77,
    "How does marketing work?": 0.77,
    "How do I clean glasses?": 0.86,
    "How to learn Go programming?": 0.69,
    "How do I sort a Python list?": 0.67,
    "How do people die?": 0.71,
    "Give a speech": 0.81,
    "How can I help?": 0.88,
    "How old is the king?": 0.953,
}


@pytest.mark.parametrize(
    ("a", "b"), [*POLITENESS, *TIMES, *UNITS, *ORDER, *STEMS, *WORDS], ids=lambda text: text
)
def test_what_asks_for_something_else_is_refused(a: str, b: str) -> None:
    cosine = COSINES.get(a, 0.97)
    assert not JUDGE.judge(a, b, cosine, "test-1").serve
    assert not JUDGE.judge(b, a, cosine, "test-1").serve


@pytest.mark.parametrize(("a", "b"), PARAPHRASES)
def test_a_clean_paraphrase_is_served(a: str, b: str) -> None:
    assert JUDGE.judge(a, b, 0.97, "test-1").reason == "equal"
    assert JUDGE.judge(b, a, 0.97, "test-1").reason == "equal"

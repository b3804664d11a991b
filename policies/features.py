"""Lexical features of a question: what can be seen of its difficulty without a model.

Every feature is a number in [0, 1] that rises with difficulty, so that a fit may be told that
no weight is below zero. English is matched by whole words (one set intersection per list),
Chinese by substrings: there are no word boundaries to split at. Lengths are UTF-8 bytes, which
brings the two languages within a factor of about 1.5 of each other for the same content.
Only the first and the last `_WINDOW` characters of a long text are read; its length counts up
to `_FULL_BYTES`.

Not read: the system prompt (it is the application's, the same for easy and hard questions) and
the answers of earlier turns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from tierway.policies.types import Ask

_WINDOW = 1000
_FULL_BYTES = 8000
_SHORT_REPLY = 40

_WORDS: Mapping[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "code": "python java javascript typescript rust golang sql function def return class code"
        " implement implementation refactor debug bug compile regex api algorithm async thread"
        " unittest html css bash script database schema query recursion runtime stack assert"
        " import list dict string array pointer exception deadlock docker kubernetes",
        "maths": "integral derivative equation matrix eigenvalue polynomial theorem probability"
        " sum integer integers prime modulo triangle circle angle radius logarithm vector sqrt"
        " frac factorial limit series inequality divisible remainder percent ratio average"
        " calculate compute solve evaluate simplify perimeter area volume function convex real"
        " positive smallest largest value determine coordinates variance distribution",
        "science": "velocity acceleration force energy mass momentum voltage current circuit"
        " resistance temperature pressure entropy enthalpy molecule molar reaction equilibrium"
        " acid ion electron quantum wavelength photon magnetic thermodynamic gas liquid kinetic"
        " protein gene dna enzyme cell diffusion friction torque frequency orbital oxide density"
        " heat steam flow viscosity beam stress capacitor inductance transformer gravity",
        "logic": "prove proof derive deduce infer imply implies contradiction therefore hence"
        " assume suppose premise conclusion logically valid puzzle clue clues if unless neither"
        " necessary sufficient iff lemma hypothesis counterexample consistent liar",
        "analysis": "analyze analyse analysis compare contrast evaluate critique discuss assess"
        " explain why justify argue strategy tradeoff tradeoffs trade-offs architecture design"
        " distributed scalable optimize optimise investigate root-cause diagnose migrate plan"
        " implications framework comprehensive detailed thorough in-depth end-to-end",
        "constraints": "must exactly least most only without except never cannot ensure at"
        " maximum minimum within between constraint constraints requirement requirements limit"
        " each every respectively provided subject given avoid satisfy",
        "steps": "first second third then next finally step steps after before afterwards stage"
        " phase subsequently lastly followed phases stages",
        "formats": "json yaml xml csv markdown table latex bullet schema template format html",
        "knowledge": "law legal court statute liability contract plaintiff tax accounting"
        " depreciation bond dividend equity inflation monetary philosophy clinical patient"
        " diagnosis syndrome psychology constitution amendment treaty econometric elasticity"
        " marginal",
        "writing": "write essay article story poem report draft compose summary summarize blog"
        " speech letter proposal screenplay novel",
    }.items()
}

_CHINESE: Mapping[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "code": "代码 函数 编程 算法 数据库 接口 脚本 程序 调试 报错 正则 实现一个 重构"
        " 线程 并发 递归",
        "maths": "计算 方程 积分 导数 矩阵 概率 求解 数列 几何 三角 面积 体积 金额 总和"
        " 平均 百分 余数",
        "science": "速度 加速度 能量 电压 电流 温度 压强 分子 反应 电子 量子 基因 细胞 酶"
        " 频率 磁场",
        "logic": "证明 推导 推理 推断 逻辑 假设 矛盾 如果 因此 充分 必要 真话 假话 反例 前提",
        "analysis": "分析 比较 对比 评价 评估 论述 解释 为什么 原因 设计 架构 方案 优化"
        " 策略 权衡 分布式 详细 全面 深入 规划 诊断",
        "constraints": "必须 只能 至少 至多 不超过 不得 不能 严格 要求 仅 恰好 除了 确保 限制"
        " 每个 满足",
        "steps": "首先 其次 然后 接着 最后 步骤 一步 第一 第二 第三 分步 阶段 依次",
        "formats": "表格 格式 模板 列表 清单",
        "knowledge": "法律 法院 原告 被告 合同 罪 法条 诉讼 税 会计 折旧 医学 患者 诊断 心理"
        " 宪法 经济 金融",
        "writing": "写一 撰写 作文 文章 故事 诗 报告 总结 摘要 论文 演讲 改写 小说",
    }.items()
}

LISTS = tuple(_WORDS)
_LIST_OF = {term: index for index, name in enumerate(LISTS) for term in _CHINESE[name]}
_TERM = re.compile("|".join(sorted(_LIST_OF, key=lambda term: (-len(term), term))))
NAMES = (
    "length", "lines", "numbers", "symbols", "latex", "code_block", "code_marks", "options",
    "questions", "long_words", "substantial", "turns", *LISTS,
)  # fmt: skip

_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_NUMBER = re.compile(r"[0-9]+")
_SYMBOL = re.compile(r"[=+*/^<>≤≥≠√∑∫∞±×÷∈∀∃|%$]")
_LATEX = re.compile(r"\\[a-zA-Z]{2,}|\$[^$\n]{1,80}\$")
_CODE_MARK = re.compile(r"[{};]|[a-z_]\(|->|=>|::|==")
_OPTION = re.compile(r"(?:^|[\s(])[A-J][.):：、]")
_GO_AHEAD = re.compile(
    r"\W*(?:(?:ok(?:ay)?|yes|yep|yeah|sure|please|thanks?|thank you|great|good|nice|right|fine"
    r"|go on|go ahead|continue|proceed|carry on|keep going|next|more|do it|and then|again)\W*)+",
    re.IGNORECASE,
)
_GO_AHEAD_ZH = re.compile(
    r"(?:[\s，。！？、,.!?~～]|好的?|嗯+|行|可以|是的?|对的?|没错|继续(?:吧|说|写)?|接着(?:说|写|来)?|请|谢谢"
    r"|下一[步个]|然后呢?|还有呢?|再来|吧|的|呢|了)+"
)


def is_go_ahead(text: str) -> bool:
    """True for a short reply without a question of its own ("ok, continue", "好的，继续")."""
    if len(text) > _SHORT_REPLY or not text.strip():
        return False
    return bool(_GO_AHEAD.fullmatch(text) or _GO_AHEAD_ZH.fullmatch(text))


def asked_text(ask: Ask) -> str:
    """The question to judge: the newest human turn that is more than a go-ahead."""
    if not is_go_ahead(ask.question):
        return ask.question
    humans = (turn.text for turn in reversed(ask.turns) if turn.role == "user")
    return next((text for text in humans if text and not is_go_ahead(text)), ask.question)


def features(ask: Ask) -> list[float]:
    """One number in [0, 1] per name in `NAMES`."""
    text = asked_text(ask)
    human_turns = sum(1 for turn in ask.turns if turn.role == "user")
    return text_features(text, human_turns)


def text_features(text: str, human_turns: int = 1) -> list[float]:
    read = text if len(text) <= 2 * _WINDOW else f"{text[:_WINDOW]}\n{text[-_WINDOW:]}"
    size = _size(text)
    words = _WORD.findall(read.lower())
    return [
        _log_share(size, _FULL_BYTES),
        _log_share(read.count("\n"), 60),
        _log_share(len(_NUMBER.findall(read)), 60),
        _log_share(len(_SYMBOL.findall(read)), 100),
        _log_share(len(_LATEX.findall(read)), 30),
        float("```" in read),
        _log_share(len(_CODE_MARK.findall(read)), 60),
        min(len(_OPTION.findall(read)), 10) / 10.0,
        min(read.count("?") + read.count("？"), 4) / 4.0,
        _long_words(words),
        min(size, 60) / 60.0,
        _log_share(max(0, human_turns - 1), 20),
        *_list_counts(read, words),
    ]


def _size(text: str) -> int:
    """Bytes in UTF-8; for what is over the full length anyhow, not counted to the last."""
    if len(text) >= _FULL_BYTES or text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


def _list_counts(text: str, words: list[str]) -> list[float]:
    seen = set(words)
    counts = [len(seen & _WORDS[name]) for name in LISTS]
    if not text.isascii():
        for term in set(_TERM.findall(text)):
            counts[_LIST_OF[term]] += 1
    return [min(count, 6) / 6.0 for count in counts]


def _long_words(words: list[str]) -> float:
    """The share of words of nine letters and more, the mark of technical English."""
    return min(1.0, 3.0 * sum(size > 8 for size in map(len, words)) / max(20, len(words)))


def _log_share(count: float, full: float) -> float:
    return min(1.0, math.log1p(count) / math.log1p(full))

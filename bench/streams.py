"""Streams of prompts made from labelled pairs: `python -m tierway.bench.streams --pairs F --out D`.

A class is a connected component of the pairs labelled as the same and of texts that differ in
punctuation and case only. Two mixes, for each language:

    dense     every distinct text once, shuffled; all labelled near misses are in it
    natural   one prompt in twenty is new and has a labelled near miss before it; one in six says
              in new words what was asked before, one in six is an exact repeat (the class drawn
              by Zipf's law, exponent 1.1; classes of many wordings are the popular ones); the
              rest are new questions that no label calls a near miss of an earlier one

Intent sets call whole intents the same question, so English comes without them, and with them as
`en_intents`. Files are `MIX_LANGUAGE.jsonl`, lines {text, class, source, lang}.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tierway.bench.labelled import Pair, Prompt, read_pairs, write_lines

SEED = 20
INTENTS = frozenset({"banking77", "clinc150"})
NEAR_MISSES = 1 / 20
AGAIN = 1 / 3
ZIPF = 1.1


class Classes:
    """The classes of the texts of some pairs, and which classes are near misses of which."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._parent: dict[str, str] = {}
        self.prompts: dict[str, Prompt] = {}
        for pair in pairs:
            self._join(pair)
        names: dict[str, str] = {}
        texts = [text for text in self._parent if not text.startswith("\0")]
        for text in texts:
            names.setdefault(self._root(text), f"c{len(names)}")
        of_pair = {text: (pair.source, pair.lang) for pair in pairs for text in (pair.b, pair.a)}
        for text in texts:
            self.prompts[text] = Prompt(text, names[self._root(text)], *of_pair[text])
        self.members: dict[str, list[Prompt]] = defaultdict(list)
        for prompt in self.prompts.values():
            self.members[prompt.class_].append(prompt)
        self.near: dict[str, set[str]] = defaultdict(set)
        for pair in pairs:
            a, b = self.prompts[pair.a].class_, self.prompts[pair.b].class_
            if not pair.same and a != b:
                self.near[a].add(b)
                self.near[b].add(a)

    def _join(self, pair: Pair) -> None:
        for text in (pair.a, pair.b):
            self._parent.setdefault(text, text)
            # Punctuation and case ask nothing: no label tells such texts apart, nor joins them.
            plain = "\0" + re.sub(r"[\W_]", "", text.lower())
            self._parent.setdefault(plain, plain)
            self._parent[self._root(plain)] = self._root(text)
        if pair.same:
            self._parent[self._root(pair.a)] = self._root(pair.b)

    def _root(self, text: str) -> str:
        while (above := self._parent[text]) != text:
            self._parent[text] = self._parent[above]
            text = above
        return text


def dense(pairs: Sequence[Pair], seed: int = SEED) -> list[Prompt]:
    """Every distinct text once, in an order that the seed fixes."""
    prompts = sorted(Classes(pairs).prompts.values(), key=lambda prompt: prompt.text)
    random.Random(seed).shuffle(prompts)
    return prompts


def natural(pairs: Sequence[Pair], seed: int = SEED) -> list[Prompt]:
    """Ends when there is no new question left that is a near miss of nothing before it."""
    return _Natural(Classes(pairs), random.Random(seed)).draw()


class _Natural:
    def __init__(self, classes: Classes, rng: random.Random) -> None:
        self._classes, self._rng = classes, rng
        self._new = sorted(classes.members)
        rng.shuffle(self._new)
        # What is asked often is asked in many words: the sort keeps ties in shuffled order.
        ranked = sorted(self._new, key=lambda name: -len(classes.members[name]))
        self._popularity = {name: rank**-ZIPF for rank, name in enumerate(ranked, start=1)}
        self._asked: set[str] = set()
        self._used: dict[str, list[Prompt]] = {}
        self._unused: dict[str, list[Prompt]] = {}

    def draw(self) -> list[Prompt]:
        prompts = []
        while (prompt := self._next()) is not None:
            prompts.append(prompt)
        return prompts

    def _next(self) -> Prompt | None:
        kind = self._rng.random()
        if kind < NEAR_MISSES and (name := self._first(near=True)):
            return self._ask(name)
        if kind < NEAR_MISSES + AGAIN / 2 and self._unused:
            return self._reword(self._popular(self._unused))
        if kind < NEAR_MISSES + AGAIN and self._used:
            return self._rng.choice(self._used[self._popular(self._used)])
        name = self._first(near=False)
        return None if name is None else self._ask(name)

    def _first(self, *, near: bool) -> str | None:
        """The next new class that is, or is not, a near miss of one asked before."""
        for name in self._new:
            if self._classes.near[name].isdisjoint(self._asked) != near:
                return name
        return None

    def _ask(self, name: str) -> Prompt:
        self._new.remove(name)
        self._asked.add(name)
        self._unused[name] = self._rng.sample(
            self._classes.members[name], len(self._classes.members[name])
        )
        return self._reword(name)

    def _reword(self, name: str) -> Prompt:
        """The class in words not used yet."""
        prompt = self._unused[name].pop()
        self._used.setdefault(name, []).append(prompt)
        if not self._unused[name]:
            del self._unused[name]
        return prompt

    def _popular(self, among: Iterable[str]) -> str:
        names = list(among)
        return self._rng.choices(names, [self._popularity[name] for name in names])[0]


def streams(pairs: Sequence[Pair], seed: int = SEED) -> dict[str, list[Prompt]]:
    """Every mix by its name: dense_en, dense_en_intents, natural_zh, ..."""
    made = {}
    for name, chosen in _groups(pairs).items():
        made[f"dense_{name}"] = dense(chosen, seed)
        made[f"natural_{name}"] = natural(chosen, seed)
    return made


def _groups(pairs: Sequence[Pair]) -> Mapping[str, list[Pair]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    intents = {pair.lang for pair in pairs if pair.source in INTENTS}
    for pair in pairs:
        language = pair.lang or "any"
        if pair.source not in INTENTS:
            groups[language].append(pair)
        if language in intents:
            groups[f"{language}_intents"].append(pair)
    return groups


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="streams", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=Path, action="append", required=True, help="labelled pairs")
    parser.add_argument("--out", type=Path, required=True, help="folder for the streams")
    parser.add_argument("--seed", type=int, default=SEED, help=f"order and draws ({SEED})")
    options = parser.parse_args(argv)
    try:
        pairs = [pair for path in options.pairs for pair in read_pairs(path)]
        options.out.mkdir(parents=True, exist_ok=True)
        for name, prompts in streams(pairs, options.seed).items():
            write_lines(options.out / f"{name}.jsonl", map(line_of, prompts))
            print(f"{name}: {_summary(prompts)}")
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    return 0


def line_of(prompt: Prompt) -> dict[str, str]:
    """As it stands in a file."""
    return {
        "text": prompt.text,
        "class": prompt.class_,
        "source": prompt.source,
        "lang": prompt.lang,
    }


def _summary(prompts: Sequence[Prompt]) -> str:
    texts = Counter(prompt.text for prompt in prompts)
    classes = {prompt.class_ for prompt in prompts}
    return f"{len(prompts)} prompts, {len(texts)} texts, {len(classes)} classes"


if __name__ == "__main__":
    sys.exit(main())

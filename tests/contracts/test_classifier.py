"""The contract of a Classifier: probabilities, monotone over the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.complexity import CLASSES, LexicalClassifier
from tierway.policies.protocols import Classifier
from tierway.policies.types import Ask, Turn


class ScriptedClassifier:
    """The smallest classifier there can be: the same for every call."""

    def classify(self, ask: Ask, vector: Any) -> Mapping[str, float]:
        return {"7b": 0.5, "70b": 0.75, "175b": 0.875, "cloud": 0.9}


anybody = pytest.mark.parametrize(
    "classifier", [LexicalClassifier(), ScriptedClassifier()], ids=["lexical", "scripted"]
)
texts = st.text(max_size=400)
asks = st.builds(
    lambda question, system, tools, json, media: Ask(
        (Turn("system", system), Turn("user", question, media)),
        question,
        system=system,
        has_tools=tools,
        wants_json=json,
        media=media,
        text_bytes=len(question.encode(errors="replace")),
    ),
    texts,
    texts,
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), ("image",)]),
)


@anybody
@given(ask=asks)
def test_probabilities_rise_with_the_class_for_every_call(classifier: Classifier, ask: Ask) -> None:
    found = classifier.classify(ask, None)
    assert set(found) == set(CLASSES)
    shares = [found[name] for name in CLASSES]
    assert all(0.0 <= share <= 1.0 for share in shares)
    assert shares == sorted(shares)


@anybody
@given(ask=asks)
def test_the_same_call_gets_the_same_answer(classifier: Classifier, ask: Ask) -> None:
    assert classifier.classify(ask, None) == classifier.classify(ask, None)


@anybody
def test_a_vector_is_allowed_and_a_call_may_have_no_turn(classifier: Classifier) -> None:
    empty = Ask((), "")
    assert set(classifier.classify(empty, np.zeros(512, np.float32))) == set(CLASSES)

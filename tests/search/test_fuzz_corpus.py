"""The kept inputs of the coverage-guided fuzzer, through the parsers that they are for: fuzzing.py says what must hold.

`make fuzz` finds new ones. An input that found a fault stays among them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.search import fuzzing


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_what_is_kept_for_a_parser_gives_an_answer_or_an_error_of_ours(target: str) -> None:
    inputs = fuzzing.corpus(target)
    assert len(inputs) > 5
    assert sum(map(len, inputs)) <= fuzzing.KEPT_BYTES
    for data in inputs:
        try:
            fuzzing.TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_changed_inputs_give_an_answer_or_an_error_of_ours(
    target: str, rng: random.Random, budget: Callable[[float], float]
) -> None:
    """Without a compiler for the fuzzer: changes by chance."""
    inputs = fuzzing.corpus(target)
    end = time.monotonic() + budget(1)
    while time.monotonic() < end:
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.choice((0, 1, 1, 4))] = rng.choice((rng.randbytes(1), b"", b"\xff" * 4, bytes(4)))
        try:
            fuzzing.TARGETS[target](bytes(data))
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error

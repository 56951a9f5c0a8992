"""Greedy decoding of prompts, in which both programs continue with the tokens of the float32 run.

Both programs get the same tokens, so an early difference does not cause later ones. A decoder has the form
that exporters for the card write: ``input_ids`` and ``position_ids`` (-1 is padding), caches as
retained state, and for continuous batching ``batch_index``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.metrics import OutputSums, decibels
from qaic.accuracy.samples import TOKENS, Samples
from qaic.compiler.calibration.dataset import SampledInput
from qaic.compiler.ir.model import Model
from qaic.compiler.passes.decoding.cache_slots import cache_slots
from qaic.errors import OptionError
from qaic.support.program_names import RETAINED_STATE_SUFFIX
from qaic.support.text import counted

Arrays = dict[str, NDArray[Any]]

_POSITIONS: Final = "position_ids"
_SLOT: Final = "batch_index"
_LOGITS: Final = "logits"
#: default prompts, for a first look
_RANDOM_PROMPTS: Final = 4

#: columns of `DecodingAccuracy.steps`
STEP_DTYPE: Final = np.dtype(
    [
        ("prompt", "i4"),
        ("step", "i4"),
        ("token", "i8"),
        ("found", "i8"),
        ("sqnr_db", "f8"),
        ("cosine", "f8"),
        ("largest_error", "f8"),
    ]
)


@dataclass(frozen=True, slots=True)
class CacheAccuracy:
    """Error of one cache after the last step of every prompt.

    Parameters
    ----------
    name
        Name of the state in the model.
    sqnr_db
        Power of the reference over that of the difference, in dB.
    """

    name: str
    sqnr_db: float


@dataclass(frozen=True, slots=True)
class DecodingAccuracy:
    """Differences of the tokens of a decoder.

    Parameters
    ----------
    tokens
        Tokens of each prompt.
    steps
        A structured array with one row for each token: ``prompt`` and ``step`` from 0; ``token`` of the
        reference, with which both continue; ``found``, that of the deployed program; errors of its logits.
    caches
        Errors of the caches, in the order of the graph.
    """

    tokens: int
    steps: NDArray[np.void]
    caches: tuple[CacheAccuracy, ...]

    @property
    def first_difference(self) -> tuple[int, int] | None:
        """Prompt and step, from 0, of the first different token; None if all are equal."""
        places = np.flatnonzero(self.steps["token"] != self.steps["found"])
        if not places.size:
            return None
        first = min((self.steps[place] for place in places), key=lambda row: (row["step"], row["prompt"]))
        return int(first["prompt"]), int(first["step"])

    @property
    def equal_tokens(self) -> int:
        """Smallest number of tokens before the first different one, over all prompts."""
        first = self.first_difference
        return self.tokens if first is None else first[1]


class Decoder:
    """Builds the inputs of a decoder.

    `inputs` are those of the program, with state marked as such; `model` is the float graph, with shapes.
    Raises OptionError if it is not a decoder of this form.
    """

    def __init__(self, inputs: Sequence[SampledInput], model: Model) -> None:
        given = {item.name: item for item in inputs if not item.is_state}
        states = {item.name: item for item in inputs if item.is_state}
        results = [spec for spec in model.outputs if not spec.name.endswith(RETAINED_STATE_SUFFIX)]
        logits = [spec for spec in results if spec.name == _LOGITS] or results
        unknown = given.keys() - {TOKENS, _POSITIONS, _SLOT}
        if not {TOKENS, _POSITIONS} <= given.keys() or unknown or len(logits) != 1 or not states:
            raise OptionError(
                f"tokens: found a model with the inputs {', '.join(item.name for item in inputs)} and "
                f"{len(states)} retained states, expected a decoder with {TOKENS}, {_POSITIONS}, caches as "
                f"retained state (retained_state) and one output of logits",
                code="option.accuracy_tokens",
            )
        self._dtypes = {name: item.dtype for name, item in given.items()}
        self.logits = logits[0].name
        self.vocabulary = int(logits[0].dims[-1])
        shapes = given[TOKENS].shapes
        slots = given[_SLOT].shapes if _SLOT in given else [None] * len(shapes)
        sets = sorted(
            ((shape[1], shape[0], slot) for shape, slot in zip(shapes, slots, strict=True)),
            key=lambda item: item[:2],
        )
        self._step, self._chunk = sets[0], sets[-1]
        if self._step[0] != 1 and len({count for count, _, _ in sets}) > 1:
            raise OptionError(
                f"tokens: found at least {self._step[0]} tokens in each set of shapes, expected also a set "
                "with one token, for the steps after a prompt",
                code="option.accuracy_tokens",
            )
        #: most tokens of a prompt and its continuation; infinite without a cache
        dims = {spec.name: spec.dims for spec in model.inputs}
        counts = cache_slots(model.proto.graph, dims, _POSITIONS)
        self.context = min(counts.values(), default=math.inf)

    def prefill(self, prompt: Sequence[int]) -> list[tuple[Arrays, int]]:
        """Return the inferences of a prompt, and the position of the last token in each."""
        size = self._chunk[0]
        chunks = []
        for begin in range(0, len(prompt), size):
            part = prompt[begin : begin + size]
            chunks.append((self._feed(self._chunk, part, begin), len(part) - 1))
        return chunks

    def step(self, token: int, position: int) -> tuple[Arrays, int]:
        """Return the inference of another token."""
        return self._feed(self._step, [token], position), 0

    def _feed(self, shape: tuple[int, int, Any], tokens: Sequence[int], position: int) -> Arrays:
        count, rows, slots = shape
        ids = np.zeros((rows, count), self._dtypes[TOKENS])
        places = np.full((rows, count), -1, self._dtypes[_POSITIONS])
        # Other rows are idle: position -1 writes nothing.
        ids[0, : len(tokens)] = tokens
        places[0, : len(tokens)] = range(position, position + len(tokens))
        feed = {TOKENS: ids, _POSITIONS: places}
        if slots is not None:
            feed[_SLOT] = np.arange(rows, dtype=self._dtypes[_SLOT]).reshape(slots)
        return feed

    def row(self, logits: NDArray[Any], place: int) -> NDArray[np.float32]:
        """Return the logits after the last token of an inference."""
        first = logits.reshape(logits.shape[0], -1, logits.shape[-1])[0]
        row: NDArray[np.float32] = first[place if len(first) > 1 else 0].astype(np.float32)
        return row

    def prompts(self, samples: Samples, tokens: int) -> Iterator[list[int]]:
        """Yield the prompts.

        Raises OptionError if a sample is not a prompt, or too long for the context; the message names it.
        """
        if samples.is_random:
            rng = np.random.default_rng(0)
            size = int(max(1, min(self._chunk[0], self.context - tokens)))
            for _ in range(_RANDOM_PROMPTS):
                yield [int(token) for token in rng.integers(0, self.vocabulary, size)]
            return
        for sample in samples.given():
            for row in _rows(sample.place, sample.arrays):
                if row.size == 0 or row.min() < 0 or row.max() >= self.vocabulary:
                    raise _wrong(sample.place, f"no tokens, or tokens outside 0 to {self.vocabulary - 1}")
                if row.size + tokens > self.context:
                    raise OptionError(
                        f"samples, {sample.place}: found a prompt of {counted(row.size, 'token')} "
                        f"and {tokens} to generate, expected at most {self.context} together, the context "
                        "of the model",
                        code="option.accuracy_tokens",
                    )
                yield [int(token) for token in row]


def _rows(place: str, arrays: Mapping[str, NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the rows of a sample, each a prompt."""
    if set(arrays) != {TOKENS}:
        raise _wrong(place, f"the arrays {', '.join(arrays) or 'none'}")
    array = arrays[TOKENS]
    if array.dtype.kind not in "iu" or array.ndim not in {1, 2}:
        raise _wrong(place, f"{array.dtype} of shape {list(array.shape)}")
    yield from np.atleast_2d(array)


def _wrong(place: str, found: str) -> OptionError:
    return OptionError(
        f"samples, {place}: found {found}, expected a prompt: {TOKENS} alone, integers of shape [n] or "
        "[prompts, n], not padded",
        code="option.accuracy_tokens",
    )


@dataclass(slots=True)
class Passage:
    """Consecutive inferences whose outputs are compared together.

    A passage of a decoder is a prompt with its tokens; of any other model it is one sample.
    """

    #: Inputs of each inference, and the position of the judged logits in its outputs; None if all outputs are
    #: judged, or none.
    feeds: list[tuple[Arrays, int | None]]
    #: Number of the last inferences that are judged.
    judged: int
    #: Outputs that are judged.
    reference: Arrays
    deployed: Arrays


def decoded(
    decoder: Decoder, prompt: Sequence[int], tokens: int, run: Callable[[Arrays], Arrays], prefix: str
) -> Passage:
    """Continue a prompt by the tokens of the reference.

    `decoder` builds the inputs of the model, and `run` runs the instrumented program. `tokens` is the number
    of tokens to generate; the first comes from the prompt. `prefix` precedes the names of outputs of the
    reference.
    """
    feeds: list[tuple[Arrays, int | None]] = []
    found: Arrays = {}
    place = 0
    for feed, place in decoder.prefill(prompt):
        feeds.append((feed, place))
        found = run(feed)
    reference, deployed = [], []
    for number in range(tokens):
        reference.append(decoder.row(found[prefix + decoder.logits], place))
        deployed.append(decoder.row(found[decoder.logits], place))
        if number + 1 < tokens:
            feed, place = decoder.step(int(reference[-1].argmax()), len(prompt) + number)
            feeds.append((feed, place))
            found = run(feed)
    name = decoder.logits
    return Passage(feeds, tokens, {name: np.stack(reference)}, {name: np.stack(deployed)})


def steps_of(passages: Iterable[Passage]) -> NDArray[np.void]:
    """Compare the logits of prompts token by token; see `DecodingAccuracy.steps`."""
    rows = []
    for prompt, passage in enumerate(passages):
        ((name, reference),) = passage.reference.items()
        for step, (expected, made) in enumerate(zip(reference, passage.deployed[name], strict=True)):
            sums = OutputSums(name)
            sums.add(expected, made)
            result = sums.result()
            rows.append(
                (
                    prompt,
                    step,
                    int(expected.argmax()),
                    int(made.argmax()),
                    result.sqnr_db,
                    result.cosine,
                    result.largest_error,
                )
            )
    return np.array(rows, STEP_DTYPE)


def cache_accuracy(
    names: Sequence[str], signal: Sequence[float], noise: Sequence[float]
) -> tuple[CacheAccuracy, ...]:
    """Compute the errors of caches from sums."""
    return tuple(
        CacheAccuracy(name, decibels(a, b) if math.isfinite(a) else math.nan)
        for name, a, b in zip(names, signal, noise, strict=True)
    )
